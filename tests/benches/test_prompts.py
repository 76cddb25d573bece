"""The prompt sets: their schema, sizes, licences, and that they are what their recipes give."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROMPTS = Path(__file__).resolve().parents[2] / "benches" / "prompts"
SETS = ("code_edit", "agent", "long_qa", "chat", "docstring_code")
# The most prompt tokens that keep a set fit for a bench on two cores.
MOST_TOKENS = {"code_edit": 1500, "agent": 2500, "long_qa": 3500, "chat": 200, "docstring_code": 500}
# The same without a tokenizer at hand: code has about 3 characters to a token, prose about 4.
MOST_CHARACTERS = {"code_edit": 4500, "agent": 7500, "long_qa": 12500, "chat": 500, "docstring_code": 1500}
ALLOWED_LICENCES = {"Apache-2.0", "PSF-2.0"}
MACHINE_PATH = re.compile(r"/root\b|/work\b|/home/|/tmp/|/usr/lib/python|/usr/local/|pyenv|site-packages|\.venv")


def read(set_name):
    lines = (PROMPTS / f"{set_name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def make_prompts(*arguments):
    command = [sys.executable, "-B", str(PROMPTS / "make_prompts.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("set_name", SETS)
def test_schema(set_name):
    prompts = read(set_name)
    assert len(prompts) >= 8
    for prompt in prompts:
        assert list(prompt) == ["id", "set", "messages", "max_new_tokens", "source"]
        assert re.fullmatch(rf"{set_name}/[a-z0-9_]+", prompt["id"])
        assert prompt["set"] == set_name
        assert type(prompt["max_new_tokens"]) is int
        assert 128 <= prompt["max_new_tokens"] <= 1536
        assert list(prompt["source"]) == ["what", "licence"]


def test_ids_are_unique():
    ids = [prompt["id"] for set_name in SETS for prompt in read(set_name)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("set_name", SETS)
def test_roles_alternate_from_user_to_user(set_name):
    for prompt in read(set_name):
        messages = prompt["messages"]
        assert all(list(message) == ["role", "content"] for message in messages)
        assert all(message["content"].strip() for message in messages)
        roles = [message["role"] for message in messages]
        spoken = roles[1:] if roles[0] == "system" else roles
        assert spoken == [("user", "assistant")[turn % 2] for turn in range(len(spoken))], prompt["id"]
        assert spoken[-1] == "user"


@pytest.mark.parametrize("set_name", SETS)
def test_sizes(set_name):
    for prompt in read(set_name):
        characters = sum(len(message["content"]) for message in prompt["messages"])
        assert characters <= MOST_CHARACTERS[set_name], prompt["id"]


def test_all_files_together_are_small():
    files = [path for path in PROMPTS.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= 400_000


@pytest.mark.model
@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("model", ["smollm2-135m", "qwen2.5-coder-0.5b"])
def test_sizes_in_tokens(model, set_name):
    tokenizers = pytest.importorskip("tokenizers")
    path = Path.home() / ".cache" / "specrs" / "models" / model / "tokenizer.json"
    if not path.exists():
        pytest.skip(f"no {path}: fetch {model} to count its tokens")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    for prompt in read(set_name):
        # Chat templates put about five tokens around a message, and some a system message of their own.
        template = 5 * len(prompt["messages"]) + 40
        contents = [message["content"] for message in prompt["messages"]]
        tokens = template + sum(len(encoded.ids) for encoded in tokenizer.encode_batch(contents))
        assert tokens <= MOST_TOKENS[set_name], prompt["id"]
        if set_name == "long_qa":
            assert tokens >= 1800, prompt["id"]


def test_code_edits_quote_a_file_of_the_agreed_length_and_leave_room_for_it():
    for prompt in read("code_edit"):
        quoted = prompt["messages"][-1]["content"].split("```python\n")[1].removesuffix("\n```")
        assert 60 <= len(quoted.splitlines()) <= 140, prompt["id"]
        compile(quoted, prompt["id"], "exec")
        assert prompt["max_new_tokens"] >= len(quoted) / 4.5, prompt["id"]


def test_tool_calls_of_the_agent_set_are_json():
    calls = 0
    for prompt in read("agent"):
        for message in prompt["messages"]:
            if message["role"] == "assistant" and message["content"].startswith("{"):
                for line in message["content"].splitlines():
                    assert list(json.loads(line)) == ["tool", "arguments"], prompt["id"]
                    calls += 1
    assert calls >= 12


@pytest.mark.parametrize("set_name", SETS)
def test_no_machine_paths_and_no_placeholders_left(set_name):
    for prompt in read(set_name):
        for message in prompt["messages"]:
            assert not MACHINE_PATH.search(message["content"]), prompt["id"]
            assert not re.search(r"<<[\w./]+(:|>>)", message["content"]), prompt["id"]


@pytest.mark.parametrize("set_name", SETS)
def test_licences_are_permissive_and_named(set_name):
    readme = (PROMPTS / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith(f"| `{set_name}.jsonl`"))
    for prompt in read(set_name):
        licences = set(prompt["source"]["licence"].split(" AND "))
        assert licences <= ALLOWED_LICENCES, prompt["id"]
        assert ("CPython" in prompt["source"]["what"]) == ("PSF-2.0" in licences), prompt["id"]
        assert all(licence in row for licence in licences), prompt["id"]
    assert f"| {len(read(set_name))} |" in row


def test_prompts_are_what_their_recipes_give():
    run = make_prompts("--check")
    # 3: nothing is wrong, but another Python than the pinned one has other text in places.
    assert run.returncode in (0, 3), run.stdout + run.stderr
    same = int(re.match(r"(\d+) prompts as their recipes give them, 0 not", run.stdout)[1])
    assert same >= 20


def test_check_names_a_changed_prompt(tmp_path):
    for set_name in SETS:
        text = (PROMPTS / f"{set_name}.jsonl").read_text(encoding="utf-8")
        (tmp_path / f"{set_name}.jsonl").write_text(text.replace("side of the moon", "side of Mars"), encoding="utf-8")
    run = make_prompts("--check", "--folder", str(tmp_path))
    assert run.returncode == 1
    assert "chat/moon is not what its recipe gives" in run.stderr


def test_writing_gives_the_checked_in_files_or_refuses(tmp_path):
    run = make_prompts("--folder", str(tmp_path))
    written = sorted(path.name for path in tmp_path.iterdir())
    if run.returncode == 3:
        assert "nothing written" in run.stderr
        assert written == []
        return
    assert run.returncode == 0, run.stderr
    assert written == sorted(f"{set_name}.jsonl" for set_name in SETS)
    for name in written:
        assert (tmp_path / name).read_bytes() == (PROMPTS / name).read_bytes()
