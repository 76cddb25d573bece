"""``specrs doctor``: what this installation and this machine are, for a bug report or a surprise."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specrs import __version__, _core, config
from specrs.cli.arguments import Parser
from specrs.models import cache
from specrs.models.catalog import CATALOG

#: Looked up in the package metadata: importing torch only to ask its version takes seconds.
_PACKAGES = ("numpy", "torch", "transformers", "accelerate", "safetensors", "gguf", "rich")


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs doctor`` takes."""
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs doctor``."""
    found = facts()
    print(json.dumps(found, indent=2) if arguments.json else _text(found))
    return 0


def facts() -> dict[str, Any]:
    """Return everything that ``specrs doctor`` tells, ready for JSON."""
    return {
        "specrs": __version__,
        "build_profile": _core.BUILD_PROFILE,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": {"model": _cpu_model(), "cores": _cores(), "features": dict(_core.cpu_features())},
        "memory": _memory(),
        "backends": {"cpu": True, "cuda": cuda()},
        "cache": str(config.cache_folder()),
        "models": {name: cache.state(model) for name, model in CATALOG.items()},
    }


def cuda(load: Callable[[str], Any] = ctypes.CDLL) -> dict[str, Any]:
    """Return what the CUDA driver says, asked directly: no toolkit and no torch is needed for that.

    Parameters
    ----------
    load : callable
        Loads a shared library by name, or raises ``OSError``.
    """
    # This build has no kernels; a driver alone is no backend.
    built = _core.GPU_FATBIN_BYTES is not None
    found: dict[str, Any] = {"driver": None, "devices": [], "kernels": built, "problem": None}
    try:
        driver = load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        found["problem"] = "no CUDA driver"
        return found
    version, count = ctypes.c_int(), ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["driver"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if (code := driver.cuInit(0)) != 0:
        found["problem"] = f"the CUDA driver does not start (error {code})"
        return found
    if driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for ordinal in range(count.value):
            name = ctypes.create_string_buffer(256)
            known = driver.cuDeviceGetName(name, len(name), ordinal) == 0
            found["devices"].append(name.value.decode(errors="replace") if known else f"device {ordinal}")
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Cores that this process may use, which in a container is not what the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> dict[str, int | None]:
    """Bytes of memory; None where the system has no /proc."""
    found: dict[str, int | None] = {"total_bytes": None, "available_bytes": None}
    keys = {"MemTotal": "total_bytes", "MemAvailable": "available_bytes"}
    try:
        text = Path("/proc/meminfo").read_text("utf-8")
    except OSError:
        return found
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in keys:
            found[keys[name]] = 1024 * int(value.split()[0])
    return found


def _text(found: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version or 'not installed'}" for name, version in found["packages"].items())
    features = found["cpu"]["features"]
    has = ", ".join(name for name, present in features.items() if present) or "none of those we use"
    lacks = ", ".join(name for name, present in features.items() if not present)
    memory = found["memory"]
    lines = [
        ("specrs", f"{found['specrs']} ({found['build_profile']} build)"),
        ("python", f"{found['python']} on {found['platform']}"),
        ("packages", packages),
        ("cpu", f"{found['cpu']['model']}, {found['cpu']['cores']} cores for this process"),
        ("features", has + (f" (without {lacks})" if lacks else "")),
        ("memory", _memory_text(memory["total_bytes"], memory["available_bytes"])),
        ("backends", f"cpu: yes; cuda: {_cuda_text(found['backends']['cuda'])}"),
        ("cache", found["cache"]),
        ("models", ", ".join(f"{name}: {state}" for name, state in found["models"].items())),
    ]
    if found["build_profile"] != "release":
        lines.append(("warning", "this is a debug build, many times slower than a release build"))
    return "\n".join(f"{name:<9} {value}" for name, value in lines)


def _memory_text(total: int | None, available: int | None) -> str:
    if total is None or available is None:
        return "unknown"
    return f"{total / 2**30:.1f} GiB, {available / 2**30:.1f} GiB available"


def _cuda_text(found: dict[str, Any]) -> str:
    driver = f"driver {found['driver']}" if found["driver"] else None
    devices = ", ".join(found["devices"]) or None
    kernels = "kernels built" if found["kernels"] else "kernels not built"
    return ", ".join(part for part in (found["problem"], driver, devices, kernels) if part)
