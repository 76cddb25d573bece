"""``./dev gpu`` without a GPU: its script with stand-ins for what it calls, each of its commands run to its answer."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from benches import gpu_end_to_end, kernels
from tests.kernels import test_gpu
from tests.kernels.emulator import ROOT


def test_the_bench_is_rehearsed(stand_in, capsys):
    stand_in.open()
    stand_in.configure()
    kernels.main(["--rehearse"])
    assert capsys.readouterr().out.count("ran,") == len(list(kernels.cases(kernels.SMALL, torch.device("cpu"))))


def test_the_end_to_end_script_is_rehearsed(tmp_path):
    small = ["--device", "cpu", "--hidden", "32", "--layers", "2", "--tokens", "8", "--record", str(tmp_path)]
    gpu_end_to_end.main(small)
    (record,) = tmp_path.glob("*-gpu-end-to-end.json")
    assert {one["dtype"] for one in json.loads(record.read_text())["results"]} == {"bfloat16", "float32"}


def test_a_machine_without_a_driver_is_told_so_at_once(tmp_path):
    """The script of a GPU run ends before it builds anything, and says what is missing."""
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path)}
    command = ["bash", str(ROOT / "cuda" / "run_on_gpu.sh"), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == 1
    assert "no NVIDIA driver" in done.stderr


#: Keeps its arguments, each ended by a zero byte, in a numbered file.
NOTE = 'printf "%s\\0" "$@" >"$CALLS/$(printf %03d "$(ls "$CALLS" | wc -l)")"'
STUBS = {
    "nvidia-smi": 'case "$*" in *driver_version\\ --format*) echo 580.65;; *) echo "a device, 580.65";; esac',
    "nvcc": "echo 'Cuda compilation tools, release 13.0, V13.0.88'",
    "cargo": "",
    "compute-sanitizer": NOTE,
    # Keeps the program it is given on its input, and says 90 where the device's number is asked for.
    "python": f"""{NOTE}
case "$*" in
  -) cat >"$HOME/check.py";;
  "-m pytest -q -m gpu tests/kernels") exit "$TESTS_EXIT";;
  *get_device_cap*) echo 90;;
esac""",
}


def run_with_stand_ins(folder, tests_exit):
    """The whole script with stand-ins for its programs; also what python and the sanitizer were called with."""
    for name, body in STUBS.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "calls").mkdir()
    folders = {"OUT": "out", "RECORDS": "record", "HOME": "", "CALLS": "calls"}
    environment = {name: str(folder / below) for name, below in folders.items()}
    environment |= {"PATH": f"{folder}:/usr/bin:/bin", "TESTS_EXIT": str(tests_exit)}
    command = ["bash", str(ROOT / "cuda" / "run_on_gpu.sh"), str(folder / "python")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    calls = [file.read_text().split("\0")[:-1] for file in sorted((folder / "calls").iterdir())]
    return done, calls


def test_the_script_goes_on_after_a_failed_step_and_says_so(tmp_path):
    """Every later step runs, the record lists them, the exit is 1."""
    done, _ = run_with_stand_ins(tmp_path, tests_exit=3)
    assert done.returncode == 1
    assert "failed: tests" in done.stderr
    (record,) = (tmp_path / "record").glob("*-gpu.txt")
    lines = record.read_text().splitlines()
    steps = [line.split(":")[0] for line in lines[2:]]
    assert steps == [
        "build",
        "first-launch",
        "tests",
        "bench",
        "end-to-end",
        "memcheck",
        "racecheck",
        "synccheck",
        "initcheck",
    ]
    assert [line for line in lines if "FAILED" in line] == [line for line in lines if line.startswith("tests:")]


def run_here(command):
    """Exit status and output of a command of the script with this environment's Python, from the root."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT, timeout=240
    )
    return done.returncode, done.stdout + done.stderr


BENCHES = {"benches/kernels.py": kernels.main, "benches/gpu_end_to_end.py": gpu_end_to_end.main}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
@pytest.mark.skipif(find_spec("maturin") is None, reason="no maturin")
def test_every_command_of_the_script_runs_here_to_its_answer(tmp_path, stand_in, capsys):
    """What the script calls exists, takes its arguments and says that there is no device; its first launch is right."""
    done, calls = run_with_stand_ins(tmp_path, tests_exit=0)
    assert done.returncode == 0, done.stderr
    code, said = run_here([str(tmp_path / "check.py")])
    assert (code, "sees no CUDA device" in said) == (1, True), said

    texts = [call[1] for call in calls if call[0] == "-c"]
    assert len([compile(text, "script", "exec") for text in texts]) == 4
    (first_launch,) = [text for text in texts if "row_statistics" in text]
    stand_in.open()
    stand_in.configure()
    exec(first_launch.replace('device="cuda"', 'device="cpu"'), {})
    assert "driver and devices (13000, 2)" in capsys.readouterr().out

    (build,) = [call for call in calls if call[:2] == ["-m", "maturin"]]
    code, said = run_here([*build[:3], "--help"])
    assert (code, [flag for flag in build[3:] if flag not in said]) == (0, [])

    (tests,) = [call for call in calls if call[:2] == ["-m", "pytest"]]
    code, said = run_here(tests)
    assert (code, "skipped" in said, "passed" in said) == (0, True, False), said
    tools = [call for call in calls if call[0] == "--tool"]
    assert [call[1] for call in tools] == ["memcheck", "racecheck", "synccheck", "initcheck"]
    for _, _, *exits, python, module, pytest_, quiet, first, mark, gpu, file, select, names in tools:
        assert (exits, python) == (["--error-exitcode", "9"], str(tmp_path / "python"))
        assert [module, pytest_, quiet, first, mark, gpu, select] == ["-m", "pytest", "-q", "-x", "-m", "gpu", "-k"]
        assert (ROOT / file).samefile(test_gpu.__file__)
        assert all(any(name in test for test in vars(test_gpu)) for name in names.split(" or "))

    benches = [call for call in calls if call[0].startswith("benches/")]
    assert [call[0] for call in benches] == list(BENCHES)
    for script, *given in benches:
        assert (ROOT / script).exists()
        if script == "benches/kernels.py":
            BENCHES[script](given)
            assert "no GPU at hand" in capsys.readouterr().out
        else:
            with pytest.raises(SystemExit):
                BENCHES[script](given)
            assert "no CUDA device" in capsys.readouterr().err
