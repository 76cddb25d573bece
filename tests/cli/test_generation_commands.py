"""generate, chat, compare and bench on a tiny model made on the spot."""

import io
import json
import sys

import pytest

from specrs.cli import main


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """A random two-layer Llama with a byte-level tokenizer and a chat template, saved as a folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate([*alphabet, "<eos>"])}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=256,
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_generate_streams_the_text_and_reports(tiny_folder, capsys):
    assert main(["generate", "abc abc abc", "--model", tiny_folder, "--max-new-tokens", "12"]) == 0
    printed = capsys.readouterr()
    assert "target passes" in printed.err
    assert len(printed.out) > 1


def test_generate_json_has_ids_and_report(tiny_folder, capsys):
    assert main(["generate", "abc", "--model", tiny_folder, "--max-new-tokens", "9", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["ids"]) == 9
    assert made["finish_reason"] == "length"
    assert made["report"]["parameters"]["max_new_tokens"] == 9
    assert made["report"]["lossless"] is True


def test_generate_takes_a_relaxed_rule_and_says_so(tiny_folder, capsys):
    words = ["generate", "abc abc", "--model", tiny_folder, "--drafter", "model", "--draft-model", tiny_folder]
    words += ["--draft-tokens", "3", "--max-new-tokens", "9", "--temperature", "1", "--seed", "3"]
    assert main([*words, "--verification", "lenience=0.5", "--bias-budget", "0.5"]) == 0
    printed = capsys.readouterr().err
    assert "LOSSY" in printed
    assert "from the target's law (bound)" in printed
    assert main([*words, "--verification", "lenience"]) == 2
    assert "lenience=NUMBER" in capsys.readouterr().err


def test_generate_reads_a_file_and_refuses_an_empty_prompt(tiny_folder, capsys, tmp_path, monkeypatch):
    text = tmp_path / "prompt.txt"
    text.write_text("some text")
    assert main(["generate", "--file", str(text), "--model", tiny_folder, "--max-new-tokens", "2"]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["generate", "--model", tiny_folder]) == 2
    assert "prompt is empty" in capsys.readouterr().err
    assert main(["generate", "--file", str(tmp_path / "absent"), "--model", tiny_folder]) == 2


def test_unknown_drafter_and_model_are_refused(tiny_folder, capsys):
    assert main(["generate", "abc", "--model", tiny_folder, "--drafter", "cashe"]) == 2
    assert "cache" in capsys.readouterr().err
    assert main(["generate", "abc", "--model", "/no/such/folder"]) == 1
    assert "/no/such/folder" in capsys.readouterr().err


def test_a_chat_reuses_what_it_has_read(tiny_folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello there\nand again\n\n"))
    assert main(["chat", "--model", tiny_folder, "--max-new-tokens", "8"]) == 0
    figures = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert len(figures) == 2
    assert "[8 tokens" in figures[0]
    assert ", 0 of " in figures[0]
    reused = int(figures[1].split(" passes, ")[1].split(" of ")[0])
    assert reused > len("user: hello there")


@pytest.mark.parametrize("law", [[], ["--temperature", "0.9", "--seed", "5"]])
def test_compare_finds_the_same_text(tiny_folder, capsys, law):
    argv = ["compare", "abab abab abab", "--model", tiny_folder, "--max-new-tokens", "40", "--draft-tokens", "6", *law]
    assert main(argv) == 0
    assert "every token is the same" in capsys.readouterr().out


def test_compare_counts_what_shapes_explain(tiny_folder, capsys):
    words = ["compare", "abc abc abc", "--model", tiny_folder, "--max-new-tokens", "9", "--dtype", "float32"]
    assert main([*words, "--shape-check"]) == 0
    assert "of 9 positions" in capsys.readouterr().out
    assert main([*words, "--shape-check", "--json"]) == 0
    shapes = json.loads(capsys.readouterr().out)["shapes"]
    assert (shapes["positions"], shapes["unexplained"]) == (9, 0)
    assert main([*words, "--shape-check", "--temperature", "1"]) == 2
    assert "judges greedy texts" in capsys.readouterr().err


def test_bench_measures_methods_and_peers_beside_plain(tiny_folder, capsys, tmp_path):
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    rows = [
        {
            "id": f"toy/{i}",
            "set": "toy",
            "messages": [{"role": "user", "content": "xy " * (5 + i)}],
            "max_new_tokens": 8,
        }
        for i in range(2)
    ]
    (prompts / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = tmp_path / "record.json"
    argv = [
        "bench",
        "--model",
        tiny_folder,
        "--draft-model",
        tiny_folder,
        "--prompts",
        str(prompts),
        "--json",
        str(record),
    ]
    methods = "cache,cache-tree,model,transformers,transformers-lookup,transformers-assisted"
    assert main([*argv, "--methods", methods]) == 0
    kept = json.loads(record.read_text())
    assert {row["method"] for row in kept["summary"]} == {"none", *methods.split(",")}
    assert all(run["identical"] for run in kept["runs"]), kept["runs"]
    assert kept["environment"]["threads"] >= 1
    assert "over plain" in capsys.readouterr().out
    assert main([*argv, "--methods", "cash"]) == 2
