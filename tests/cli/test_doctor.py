"""``specrs doctor``."""

import ctypes
import json

import specrs
from specrs import _core
from specrs.cli import doctor, main


def test_text_names_what_a_bug_report_needs(capsys):
    """B86: one command whose output goes into a report."""
    assert main(["doctor"]) == 0
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert found["specrs"].startswith(f"{specrs.__version__} ({_core.BUILD_PROFILE} build)")
    assert "numpy" in found["packages"]
    built = "kernels built" if _core.GPU_FATBIN_BYTES is not None else "kernels not built"
    assert built in found["backends"]
    assert ("warning" in found) == (_core.BUILD_PROFILE != "release")


def test_json_is_complete(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cache"] == str(tmp_path)
    assert found["cpu"]["cores"] >= 1
    assert found["cpu"]["features"] == dict(_core.cpu_features())
    assert set(found["models"].values()) == {"absent"}
    assert found["backends"]["cpu"] is True


def test_a_package_that_is_not_installed_is_said_to_be_so(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_PACKAGES", ("numpy", "no-such-package"))
    main(["doctor"])
    assert "no-such-package not installed" in capsys.readouterr().out


class Driver:
    """A CUDA driver with one device."""

    def __init__(self, start=0):
        self.start = start

    def cuDriverGetVersion(self, out):  # noqa: N802 - the driver's name
        out._obj.value = 13010
        return 0

    def cuInit(self, _flags):  # noqa: N802
        return self.start

    def cuDeviceGetCount(self, out):  # noqa: N802
        out._obj.value = 1
        return 0

    def cuDeviceGetName(self, buffer, length, ordinal):  # noqa: N802
        assert isinstance(buffer, ctypes.Array)
        assert (length, ordinal) == (256, 0)
        buffer.value = b"Some GPU"
        return 0


def test_a_cuda_driver_is_asked_for_its_devices():
    found = doctor.cuda(load=lambda _name: Driver())
    built = _core.GPU_FATBIN_BYTES is not None
    assert found == {"driver": "13.1", "devices": ["Some GPU"], "kernels": built, "problem": None}
    assert doctor._cuda_text(found) == f"driver 13.1, Some GPU, kernels {'built' if built else 'not built'}"


def test_a_cuda_driver_that_does_not_start_is_told():
    found = doctor.cuda(load=lambda _name: Driver(start=100))
    assert found["devices"] == []
    assert found["problem"] == "the CUDA driver does not start (error 100)"


def test_without_a_driver_there_is_no_cuda():
    def load(name):
        raise OSError(name)

    assert doctor.cuda(load=load)["problem"] == "no CUDA driver"
