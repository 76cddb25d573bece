"""The command line as a whole: exit codes, suggestions, interruption."""

import subprocess
import sys

import pytest

import specrs
from specrs.cli import COMMANDS, doctor, main
from specrs.errors import FileAccessError


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"specrs {specrs.__version__}\n"


def test_without_a_command_the_help_lists_all(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out and summary in out for name, summary in COMMANDS.items())


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: specrs {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["modles"], "specrs: unknown command 'modles'; did you mean 'models'?"),
        (["xyzzy"], "specrs: unknown command 'xyzzy'; expected one of: generate, "),
        (["--verson"], "specrs: unknown option '--verson'; did you mean '--version'?"),
        (["models", "--jsn"], "specrs models: unknown option '--jsn'; did you mean '--json'?"),
        (["models", "--js"], "specrs models: unknown option '--js'; did you mean '--json'?"),
        (["models", "fech"], "unknown action 'fech'; did you mean 'fetch'?"),
        (["models", "fetch", "smollm"], "unknown model 'smollm'; did you mean 'smollm2-135m'?"),
        (["models", "fetch"], "specrs: `specrs models fetch` needs a name: smollm2-135m, "),
        (["models", "list", "gemma3-270m"], "specrs: `specrs models list` takes no name, got 'gemma3-270m'"),
        (["doctor", "now"], "specrs doctor: unexpected argument 'now'"),
        (["doctor", "--json=yes"], "specrs doctor: argument --json: ignored explicit argument 'yes'"),
    ],
)
def test_wrong_usage_is_one_line_with_code_2(words, message, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_a_failure_is_one_line_with_code_1(monkeypatch, capsys):
    def fail(_arguments):
        raise FileAccessError("cannot write /x: no space left on the disk")

    monkeypatch.setattr(doctor, "run", fail)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "specrs: cannot write /x: no space left on the disk\n"


def test_an_interruption_is_code_130_without_a_traceback(monkeypatch, capsys):
    def interrupt(_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupt)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "specrs: interrupted\n"


def test_as_a_process_it_imports_no_framework():
    code = (
        "import sys; from specrs.cli import main; codes = [main(['models']), main(['doctor'])]; "
        "heavy = {'torch', 'transformers', 'rich'} & set(sys.modules); "
        "sys.exit(f'{codes} {heavy}' if heavy or any(codes) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "specrs.cli", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 1
