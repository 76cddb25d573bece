"""Loading a GGUF model in llama.cpp: what is refused and by which words, its tokenizer, the command line."""

import json
import sys

import pytest
from tests.models.toy_llama import VOCABULARY, ToyLlama

import specrs
from specrs.cli import main
from specrs.errors import (
    CorruptFileError,
    InvalidInputError,
    MissingExtraError,
    ModelNotFoundError,
    UnknownNameError,
    UnsupportedModelError,
)
from specrs.models.llama_cpp import LlamaCppTarget


def test_missing_or_unfit_library(monkeypatch, gguf):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingExtraError, match="pip install 'llama-cpp-python=="):
        specrs.load(gguf, backend="llama.cpp")
    old = ToyLlama()
    old.llama_context_params._fields_ = [("n_ctx", None)]
    monkeypatch.setitem(sys.modules, "llama_cpp", old)
    with pytest.raises(MissingExtraError, match=r"lacks .*kv_unified"):
        specrs.load(gguf, backend="llama.cpp")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "llama-cpp"}, UnknownNameError, "did you mean 'llama.cpp'"),
        ({"dtype": "float32"}, InvalidInputError, "takes no dtype"),
        ({"device": "cuda"}, InvalidInputError, "gpu_layers"),
        ({"contxt": 5}, UnknownNameError, "did you mean 'context'"),
        ({"threads": 0}, InvalidInputError, "threads must be >= 1, got 0"),
        ({"context": 0}, InvalidInputError, "context must be >= 1"),
    ],
)
def test_options_are_checked_before_loading(gguf, options, error, message):
    with pytest.raises(error, match=message):
        specrs.load(gguf, **{"backend": "llama.cpp", **options})


@pytest.mark.usefixtures("library")
def test_what_is_no_model_file(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no model file"):
        specrs.load(tmp_path / "none.gguf", backend="llama.cpp")
    with pytest.raises(ModelNotFoundError, match=r"expected a \.gguf file"):
        specrs.load("some/hub-name", backend="llama.cpp")
    (tmp_path / "text.gguf").write_text("hello, this is no model")
    with pytest.raises(CorruptFileError, match="expected b'GGUF'"):
        specrs.load(tmp_path / "text.gguf", backend="llama.cpp")
    with pytest.raises(InvalidInputError, match="loads names and"):
        specrs.load(object(), backend="llama.cpp")


def test_models_that_cannot_be_rolled_back(library, gguf, monkeypatch):
    monkeypatch.setattr(library, "llama_model_is_recurrent", lambda model: True, raising=False)
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        specrs.load(gguf, backend="llama.cpp")
    monkeypatch.setattr(library, "llama_model_load_from_file", lambda path, settings: None, raising=False)
    with pytest.raises(UnsupportedModelError, match="cannot load"):
        specrs.load(gguf, backend="llama.cpp")


def test_tokenizer_and_template(library, gguf):
    library.template = b"{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}{{ eos_token }}"
    tokenizer = LlamaCppTarget(gguf, threads=1).tokenizer
    assert tokenizer.encode("ABC") == [0, 1, 2]
    assert tokenizer.decode([0, 60, 2]) == "A" + "<end>" * 20 + "C"
    assert tokenizer.decode([0, 60, 2], skip_special_tokens=True) == "AC"
    assert tokenizer.end_ids == (60, 59)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "user:hi;" + "<end>" * 20
    with pytest.raises(InvalidInputError, match="id 61 is not an id"):
        tokenizer.decode([VOCABULARY])


@pytest.mark.usefixtures("library")
def test_command_line(gguf, capsys, tmp_path):
    model = ["--model", str(gguf), "--backend", "llama.cpp", "--threads", "1"]
    assert main(["generate", "ABCABC", *model, "--max-new-tokens", "9", "--json", "--drafter", "cache"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["ids"]) == 9
    assert main(["compare", "ABCABC", *model, "--max-new-tokens", "9"]) == 0
    assert "every token is the same" in capsys.readouterr().out
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    row = {"id": "x/1", "set": "x", "messages": [{"role": "user", "content": "ABAB"}], "max_new_tokens": 8}
    (prompts / "x.jsonl").write_text(json.dumps(row))
    assert main(["generate", "A", *model, "--no-accelerate"]) == 2
    assert "--no-accelerate is for backend 'transformers'" in capsys.readouterr().err
    for words, said in [
        (["--draft-backend", "llama.cpp"], "no draft model"),
        (["--draft-backend", "llama.cp", "--draft-model", "x"], "did you mean 'llama.cpp'"),
        (["--drafter", "ssd", "--draft-backend", "llama.cpp", "--draft-model", "x"], "runs its draft model in"),
    ]:
        assert main(["generate", "A", *model, *words]) == 2
        assert said in capsys.readouterr().err
    bench = ["bench", *model, "--prompts", str(prompts), "--methods"]
    assert main([*bench, "transformers"]) == 2
    assert "benches/llama_cpp.py" in capsys.readouterr().err
    assert main(["chat", *model]) == 1
    assert "no chat template" in capsys.readouterr().err


def test_bench_through_the_command_line(library, gguf, capsys, tmp_path):
    library.template = b"{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"id": "x/1", "set": "x", "messages": [{"role": "user", "content": "ABAB"}], "max_new_tokens": 8})
    )
    record = tmp_path / "record.json"
    words = ["bench", "--model", str(gguf), "--backend", "llama.cpp", "--prompts", str(tmp_path), "--json", str(record)]
    assert main([*words, "--methods", "cache,model", "--draft-model", str(gguf)]) == 0
    assert "tokens/pass" in capsys.readouterr().out
    kept = json.loads(record.read_text())
    assert [run["method"] for run in kept["runs"]] == ["none", "cache", "model"]
    assert kept["environment"]["draft_model"] == {"name": "toy.gguf", "backend": "llama.cpp"}
    assert all(run["identical"] for run in kept["runs"])
    assert kept["environment"]["backend"].startswith("llama-cpp-python")
