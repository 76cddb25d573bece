"""The kernels on a real device: the same results as on the host, repeatable bits, graph capture and replay.

What a run on a GPU calls besides is rehearsed on the stand-in driver, so that the first run finds no slip of the pen.
"""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from benches import gpu_end_to_end, kernels
from tests.kernels.emulator import ROOT
from tests.kernels.test_torch_ops import NAMES, arguments

from specrs.ops import torch_ops


def on_a_gpu(test):
    test = pytest.mark.gpu(test)
    return pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test)


def to_device(value):
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return [to_device(item) for item in value] if isinstance(value, list) else value


def on_device(name):
    """The arguments of an op on the device; addresses are those of the moved tensors."""
    given = to_device(arguments()[name][0])
    if name == "commit_cache":
        given[1] = torch_ops.attention.cache_addresses(given[0])
    return given


def flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@on_a_gpu
@pytest.mark.parametrize("name", [name for name in NAMES if name != "commit_cache"])
def test_device_equals_host(name):
    host = flat(getattr(torch.ops.specrs, name)(*arguments()[name][0]))
    device = flat(getattr(torch.ops.specrs, name)(*on_device(name)))
    for a, b in zip(host, device, strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=2e-5, atol=2e-5, equal_nan=True)


@on_a_gpu
def test_commit_on_the_device():
    host, device = arguments()["commit_cache"][0], on_device("commit_cache")
    host[0] = [tensor.cpu().clone() for tensor in device[0]]
    torch.ops.specrs.commit_cache(*host)
    torch.ops.specrs.commit_cache(*device)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(host[0], device[0], strict=True))
    assert torch.equal(host[2], device[2].cpu())


@on_a_gpu
@pytest.mark.parametrize("name", ["verify_chain", "verify_block", "verify_siblings", "tree_attention"])
def test_repeats_bit_for_bit(name):
    given = on_device(name)
    first = flat(getattr(torch.ops.specrs, name)(*given))
    for _ in range(100):
        again = flat(getattr(torch.ops.specrs, name)(*given))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@on_a_gpu
def test_graph_replays_with_fresh_coins():
    given = on_device("verify_chain")
    *rest, accept, emit = given
    eager = [flat(torch.ops.specrs.verify_chain(*rest, accept * s, emit * s)) for s in (1.0, 0.5)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flat(torch.ops.specrs.verify_chain(*rest, accept, emit))
    for replay, expected in enumerate(eager):
        if replay:
            accept.mul_(0.5)
            emit.mul_(0.5)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@on_a_gpu
def test_offsets_beyond_32_bits_on_the_device():
    """The last of so many rows that a 32-bit product of row and vocabulary wraps, in a 4 GiB matrix."""
    rows, vocabulary = 14_200, 151_936
    logits = torch.zeros(rows, vocabulary, dtype=torch.float16, device="cuda")
    assert logits.numel() > 2**31
    logits[-1, 77] = 9.0
    statistics = torch.ops.specrs.row_statistics(logits)
    assert statistics[0][-2:].tolist() == [0, 77]
    assert statistics[0][:2].tolist() == [0, 0]


@on_a_gpu
def test_an_engines_round_stays_on_the_device():
    """Texts by kernels equal those by Rust rules on copies of the logits, at every temperature and way of drafting."""
    gpu_end_to_end.main(["--hidden", "64", "--layers", "2", "--tokens", "16"])


def test_the_bench_is_rehearsed(stand_in, capsys):
    stand_in.open()
    stand_in.configure()
    kernels.main(["--rehearse"])
    assert capsys.readouterr().out.count("ran,") == len(list(kernels.cases(kernels.SMALL, torch.device("cpu"))))


def test_the_end_to_end_script_is_rehearsed(tmp_path):
    small = ["--device", "cpu", "--hidden", "32", "--layers", "2", "--tokens", "8", "--record", str(tmp_path)]
    gpu_end_to_end.main(small)
    assert len(list(tmp_path.glob("*-gpu-end-to-end.json"))) == 1


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
        assert (ROOT / file).samefile(__file__)
        assert all(any(name in test for test in globals()) for name in names.split(" or "))

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
