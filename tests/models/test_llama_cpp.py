"""The llama.cpp adapter on a stand-in library with llama.cpp's rules, and on the real one where it is installed.

The stand-in (``toy_llama.py``) refuses what llama.cpp refuses and answers by what a row can really see, so trees,
rollback, growth and eviction are checked without a build of llama.cpp. What needs the real kernels is marked.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from tests.models.toy_llama import VOCABULARY, ToyLlama, law

import specrs
from specrs.cli import main
from specrs.errors import (
    CapacityError,
    CorruptFileError,
    InvalidInputError,
    MissingExtraError,
    ModelNotFoundError,
    UnknownNameError,
    UnsupportedModelError,
)
from specrs.models.llama import memory as memory_module
from specrs.models.llama.branches import Branches, waves
from specrs.models.llama.context import Rows, plain_rows
from specrs.models.llama_cpp import LlamaCppTarget
from specrs.types import Draft

needs_llama_cpp = pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed (pip install llama-cpp-python==0.3.36)"
)

#: The user's own cache: the other tests of this folder have an empty one.
CACHE = os.environ.get("SPECRS_CACHE")
#: A tree: 0-1-2 is the likeliest path, 3 and 4 branch off it, 5 is another root.
#:     anchor ─ 0 ─ 1 ─ 2
#:            │   └ 3 ─ 4
#:            └ 5
PARENTS = [-1, 0, 1, 0, 3, -1]
DEPTHS = [1, 2, 3, 2, 3, 1]


@pytest.fixture
def library(monkeypatch):
    toy = ToyLlama()
    monkeypatch.setitem(sys.modules, "llama_cpp", toy)
    return toy


@pytest.fixture
def gguf(tmp_path):
    """A file that passes for a model; the stand-in does not read it."""
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    return path


@pytest.fixture
def target(library, gguf):
    made = specrs.load(gguf, backend="llama.cpp", threads=1)
    made._cost = None
    return made


def tree_draft(tokens, sizes=None):
    """One request's tree, or several requests with the same tree cut to ``sizes`` nodes."""
    sizes = [len(tokens)] if sizes is None else sizes
    return Draft(
        tokens=np.concatenate([tokens[:n] for n in sizes]).astype(np.uint32),
        parents=np.concatenate([PARENTS[:n] for n in sizes]).astype(np.int32),
        depths=np.concatenate([DEPTHS[:n] for n in sizes]).astype(np.int32),
        node_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


def paths(parents):
    found = [[]]
    for node, parent in enumerate(parents):
        found.append([*found[parent + 1], node])
    return found


def check_rows(scores, first, text, tokens, parents):
    """Each row is the law of the committed text and its own path, bit for bit."""
    for offset, path in enumerate(paths(parents)):
        assert np.array_equal(scores.logits[first + offset], law([*text, *tokens[path]])), (offset, path)


# Trees as sequences


def test_branches_of_a_tree():
    tree = Branches.of(PARENTS)
    assert tree.members == ((0, 1), (0,), (0,), (1,), (1,), (2,))
    assert tree.count == 3
    assert [tree.through(node) for node in range(6)] == [0, 0, 0, 1, 1, 2]
    assert Branches.of([]).count == 1
    assert Branches.of([-1, 0, 1]).members == ((0,), (0,), (0,))
    # Branch 0 follows first children even where another leaf has a lower index.
    assert Branches.of([-1, 0, 0, 1]).members == ((0, 1), (0,), (1,), (0,))


def test_waves_cover_a_tree_with_few_leaves_each():
    assert [wave.tolist() for wave in waves(PARENTS, 3)] == [[0, 1, 2, 3, 4, 5]]
    assert [wave.tolist() for wave in waves(PARENTS, 1)] == [[0, 1, 2], [0, 3, 4], [5]]
    assert [wave.tolist() for wave in waves(PARENTS, 2)] == [[0, 1, 2, 3, 4], [5]]


def test_rows_are_cut_to_what_one_forward_takes():
    rows = plain_rows(np.arange(1200), 7, (3,), last_wanted=True)
    sizes = [len(piece.tokens) for piece in rows.pieces()]
    assert sizes == [512, 512, 176]
    assert [piece.wanted.sum() for piece in rows.pieces()] == [0, 0, 1]
    wanted = Rows(rows.tokens, rows.positions, rows.sequences, np.ones(1200, np.bool_))
    assert [len(piece.tokens) for piece in wanted.pieces()] == [256, 256, 256, 256, 176]


# Scores and rollback


@pytest.mark.parametrize("pending", [1, 3, 20])  # an anchor; a short stretch; a prompt's end, read by itself
def test_scores_of_a_tree_and_what_a_commit_keeps(target, pending):
    rng = np.random.default_rng(pending)
    text = rng.integers(0, 60, 30 + pending).astype(np.uint32)
    state = target.new_state(100)
    target.prefill(state, text[:30])
    tokens = np.array([11, 12, 13, 14, 15, 16], np.uint32)
    for kept in ([], [0], [0, 1, 2], [0, 3], [0, 3, 4], [5]):
        scores = target.score([state], [text[state.length :]], tree_draft(tokens))
        assert scores.row_ptr.tolist() == [0, 7]
        check_rows(scores, 0, text, tokens, PARENTS)
        state.commit(np.array(kept, np.int32), len(text) - state.length)
        text = np.concatenate([text, tokens[kept], rng.integers(0, 60, 1).astype(np.uint32)])
        assert state.length == len(text) - 1
        assert state.tokens.tolist() == text[:-1].tolist()
    scores = target.score([state], [text[-1:]], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law(text))
    state.truncate(20)
    assert state.length == 20
    scores = target.score([state], [text[20:22]], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law(text[:22]))


def test_a_batch_of_trees_chains_and_prompts(target, library):
    texts = [np.arange(n, dtype=np.uint32) for n in (5, 12, 9, 33)]
    read = [4, 11, 0, 0]
    states = [target.new_state(64) for _ in texts]
    for state, text, n in zip(states, texts, read, strict=True):
        target.prefill(state, text[:n])
    tokens = np.array([21, 22, 23, 24, 25, 26], np.uint32)
    sizes = [6, 0, 3, 6]
    library.forwards.clear()
    scores = target.score(states, [t[n:] for t, n in zip(texts, read, strict=True)], tree_draft(tokens, sizes))
    assert len(library.forwards) == 2  # the long prompts' ends, then every anchor and node at once
    for b, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        check_rows(scores, scores.row_ptr[b], text, tokens, PARENTS[:size])
    for state, text, n in zip(states, texts, read, strict=True):
        state.commit(np.empty(0, np.int32), len(text) - n)
    assert sorted(c[1] for c in library.contexts[0].cells) == sorted(p for t in texts for p in range(len(t)))


def test_a_round_that_was_never_committed_leaves_nothing(target):
    state = target.new_state(10)
    target.score([state], [np.array([1, 2], np.uint32)], tree_draft(np.arange(6, dtype=np.uint32)))
    scores = target.score([state], [np.array([3], np.uint32)], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law([3]))


def test_logits_are_the_callers_own(target):
    state = target.new_state(10)
    first = target.score([state], [np.array([1], np.uint32)], Draft.empty(1)).logits
    before = first.copy()
    assert first.dtype == np.float32
    target.score([state], [np.array([2], np.uint32)], Draft.empty(1))
    assert np.array_equal(first, before)


def test_more_leaves_than_sequences(target, monkeypatch):
    """A tree that finds too few free sequences is scored subtree by subtree, and its text is read again."""
    text = np.arange(6, dtype=np.uint32)
    tokens = np.array([11, 12, 13, 14, 15, 16], np.uint32)
    states = [target.new_state(16), target.new_state(16)]
    target.prefill(states[0], text[:5])
    target.prefill(states[1], text[:5])
    target._memory._free = target._memory._free[:2]  # enough for the first tree's branches, not for the second's
    scores = target.score(states, [text[5:]] * 2, tree_draft(tokens, [6, 6]))
    for b in range(2):
        check_rows(scores, scores.row_ptr[b], text, tokens, PARENTS)
    for state in states:
        state.commit(np.array([0, 3], np.int32), 1)
    assert [state.length for state in states] == [8, 6]
    pending = [np.array([9], np.uint32), np.array([11, 14, 9], np.uint32)]
    scores = target.score(states, pending, Draft.empty(2))
    for row in scores.logits:
        assert np.array_equal(row, law([*text, 11, 14, 9]))


# The whole round


def generate(target, prompts, **options):
    made = specrs.generate(target, prompts, eos_token_id=None, **options)
    return [one.ids for one in made] if isinstance(made, list) else made.ids


PROMPTS = [[1, 2, 3, 1, 2], [5] * 40, [7, 8], list(range(30))]


@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "cache", "draft_tokens": 7},
        {"drafter": "cache", "draft_tokens": 12, "draft_shape": "tree"},
        {"drafter": "model", "draft_tokens": 4},
    ],
    ids=["cache", "tree", "model"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rounds_write_what_plain_decoding_writes(target, library, gguf, options, temperature):
    if options["drafter"] == "model":
        if temperature:
            pytest.skip("drawn drafts keep the law, not the very text")
        options = {**options, "draft_model": LlamaCppTarget(gguf, threads=1)}
    law_options = {"temperature": temperature, "seed": 3, "max_new_tokens": 40, "frequency_penalty": 0.01}
    plain = [generate(target, prompt, drafter="none", **law_options) for prompt in PROMPTS]
    one_by_one = [generate(target, prompt, **law_options, **options) for prompt in PROMPTS]
    assert one_by_one == plain
    assert generate(target, PROMPTS, **law_options, **options) == plain
    report = specrs.generate(target, PROMPTS[1], eos_token_id=None, **law_options, **options).report
    assert report.accepted > 0


def test_the_toy_text_is_the_law_of_the_toy(target):
    text = list(PROMPTS[0])
    for token in generate(target, PROMPTS[0], drafter="cache", max_new_tokens=30):
        assert token == int(law(text).argmax())
        text.append(token)


def test_logprobs_penalties_bias_and_processors(target):
    """Everything that the law takes works on arrays: the same for a draft's rows as for plain steps."""

    def ban_five(ids, scores):
        scores = scores.clone()
        scores[:, 5] = -np.inf
        return scores

    options = {
        "max_new_tokens": 24,
        "logprobs": 2,
        "repetition_penalty": 1.1,
        "logit_bias": {3: -2.0},
        "min_new_tokens": 4,
        "logits_processor": [ban_five],
    }
    plain = specrs.generate(target, PROMPTS[0], drafter="none", **options)
    drafted = specrs.generate(target, PROMPTS[0], drafter="cache", draft_tokens=6, **options)
    assert drafted.ids == plain.ids
    assert 5 not in plain.ids
    assert drafted.report.accepted > 0
    for a, b in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-6)
        assert [i for i, _ in a.alternatives] == [i for i, _ in b.alternatives]


def test_text_stop_strings_and_ends(target):
    made = specrs.generate(target, "ABCAB", max_new_tokens=30, drafter="cache", stop_token_ids=())
    assert made.text == "".join(chr(ord("A") + i) for i in made.ids if i < 59)
    stop = made.text[3:5]
    cut = specrs.generate(target, "ABCAB", max_new_tokens=30, drafter="cache", stop=stop)
    assert cut.finish_reason == "stop"
    assert cut.ids == made.ids[: len(cut.ids)]
    ended = specrs.generate(target, "ABCAB", max_new_tokens=30, logit_bias={60: 50.0})
    assert ended.ids == [60]
    assert ended.stopped_by == 60
    assert ended.text == ""


def test_a_session_reads_only_what_is_new(target, library):
    session = specrs.Session(target)
    first = specrs.generate(target, PROMPTS[1], max_new_tokens=8, session=session, eos_token_id=None)
    longer = [*PROMPTS[1], *first.ids, 4, 5]
    again = specrs.generate(target, longer, max_new_tokens=8, session=session, eos_token_id=None)
    assert again.report.reused_tokens >= len(PROMPTS[1]) + 6
    assert again.ids == generate(target, longer, max_new_tokens=8)


def test_threads_share_one_context(target):
    expected = [generate(target, prompt, drafter="none", max_new_tokens=20) for prompt in PROMPTS * 3]
    with ThreadPoolExecutor(6) as pool:
        found = list(
            pool.map(lambda p: generate(target, p, drafter="cache", draft_tokens=5, max_new_tokens=20), PROMPTS * 3)
        )
    assert found == expected


# Memory


def test_the_context_grows_and_keeps_every_bit(library, gguf):
    target = LlamaCppTarget(gguf, threads=1, context=256)
    states = [target.new_state(0) for _ in range(3)]
    texts = [np.arange(n, dtype=np.uint32) % 50 for n in (100, 200, 700)]
    for state, text in zip(states, texts, strict=True):
        target.prefill(state, text)
    assert len(library.contexts) > 1
    assert [c.freed for c in library.contexts] == [True] * (len(library.contexts) - 1) + [False]
    scores = target.score(states, [np.array([9], np.uint32)] * 3, Draft.empty(3))
    for row, text in zip(scores.logits, texts, strict=True):
        assert np.array_equal(row, law([*text, 9]))
    assert states[0].size_bytes() == 0  # the toy's file tells no sizes


def test_idle_states_give_way_and_are_read_again(library, gguf, monkeypatch):
    monkeypatch.setattr(memory_module, "GROW_FIRST", 0)
    target = LlamaCppTarget(gguf, threads=1, context=512)
    states = [target.new_state(0) for _ in range(3)]
    texts = [(np.arange(200) * (i + 1)).astype(np.uint32) % 50 for i in range(3)]
    for state, text in zip(states, texts, strict=True):
        target.prefill(state, text)
    assert len(library.contexts) == 1
    assert target._memory.resident == 2
    assert states[0].slot.sequence is None
    assert states[0].length == 200
    scores = target.score([states[0]], [np.array([9], np.uint32)], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law([*texts[0], 9]))
    assert states[1].slot.sequence is None


def test_more_requests_than_sequences(target):
    prompts = [[i % 50, (i + 1) % 50] for i in range(300)]
    states = [target.new_state(4) for _ in prompts]
    for state, prompt in zip(states, prompts, strict=True):
        target.prefill(state, np.array(prompt, np.uint32))
    assert target._memory.resident == 256
    with pytest.raises(CapacityError, match="at most 256 sequences"):
        target.score(states, [np.array([1], np.uint32)] * 300, Draft.empty(300))
    scores = target.score(states[:5], [np.array([1], np.uint32)] * 5, Draft.empty(5))
    assert np.array_equal(scores.logits[0], law([0, 1, 1]))


def test_cells_of_a_dropped_state_come_back(target):
    states = [target.new_state(4) for _ in range(4)]
    for state in states:
        target.prefill(state, np.arange(5, dtype=np.uint32))
    del states, state
    target.prefill(target.new_state(1), np.array([1], np.uint32))
    target.prefill(target.new_state(1), np.array([1], np.uint32))
    assert target._memory.resident <= 1
    generate(target, PROMPTS, drafter="none", max_new_tokens=4)
    with target._memory.exclusive() as context:
        assert len(context._cells.cells) <= 1  # finished texts hold nothing


def test_no_memory_for_a_larger_context(library, gguf):
    target = LlamaCppTarget(gguf, threads=1, context=256)
    state = target.new_state(0)
    text = np.arange(100, dtype=np.uint32) % 50
    target.prefill(state, text)
    library.most_cells = 256
    with pytest.raises(CapacityError, match="out of memory"):
        target.prefill(state, np.zeros(400, np.uint32))
    scores = target.score([state], [np.array([9], np.uint32)], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law([*text, 9]))


def test_cost_is_measured_at_this_targets_rows(target):
    table = target.cost_table
    assert 0 < table.seconds(1) <= table.seconds(16) <= table.seconds(64)
    assert target.plain_step_seconds == table.seconds(1)
    assert target.cost_table is table


# Bad input


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


# The command line


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
    assert all(run["identical"] for run in kept["runs"])
    assert kept["environment"]["backend"].startswith("llama-cpp-python")


# The real library


@needs_llama_cpp
def test_real_float32_model_writes_what_transformers_writes(tmp_path):
    """A tiny float32 model: chains, trees and batches on real cells, against transformers."""
    import torch
    from tests.models.tiny_gguf import reference_network, write_gguf

    network = reference_network(tied=False)
    write_gguf(tmp_path / "tiny.gguf", network)
    target = specrs.load(tmp_path / "tiny.gguf", backend="llama.cpp", threads=1)
    assert target.max_context == 64
    prompt = [5, 6, 7, 8, 5, 6, 7]
    state = target.new_state(32)
    tokens = np.array([9, 10, 11, 12, 13, 14], np.uint32)
    scores = target.score([state], [np.array(prompt, np.uint32)], tree_draft(tokens))
    with torch.no_grad():
        for offset, path in enumerate(paths(PARENTS)):
            row = network(torch.tensor([[*prompt, *tokens[path].tolist()]])).logits[0, -1]
            assert np.allclose(scores.logits[offset], row.numpy(), atol=2e-2), offset
    state.commit(np.array([0, 3], np.int32), len(prompt))
    scores = target.score([state], [np.array([3], np.uint32)], Draft.empty(1))
    with torch.no_grad():
        row = network(torch.tensor([[*prompt, 9, 12, 3]])).logits[0, -1]
    assert np.allclose(scores.logits[0], row.numpy(), atol=2e-2)
    plain = generate(target, [prompt, prompt[:3]], drafter="none", max_new_tokens=30)
    for options in ({"draft_tokens": 5}, {"draft_tokens": 9, "draft_shape": "tree"}):
        assert generate(target, [prompt, prompt[:3]], drafter="cache", max_new_tokens=30, **options) == plain


@needs_llama_cpp
@pytest.mark.model
def test_real_demo_model_is_identical_or_nearly_tied(monkeypatch):
    """SmolLM2 in 4 bits: llama-cpp-python's own greedy text, plain and with drafts."""
    if CACHE is None:
        monkeypatch.delenv("SPECRS_CACHE")
    else:
        monkeypatch.setenv("SPECRS_CACHE", CACHE)
    from llama_cpp import Llama

    from specrs.compare import compare
    from specrs.models.fetch import fetch

    path = fetch("smollm2-135m")
    target = specrs.load("smollm2-135m", backend="llama.cpp", threads=2)
    messages = [{"role": "user", "content": "Repeat this list: apples and pears, apples and plums, apples and figs."}]
    prompt = target.tokenizer.encode(target.tokenizer.apply_chat_template(messages), add_special_tokens=False)
    own = Llama(str(path), n_ctx=512, n_threads=2, n_threads_batch=2, verbose=False)
    texts = []
    for token in own.generate(prompt, temp=0.0):
        texts.append(token)
        if len(texts) == 40 or token in target.eos_token_ids:
            break
    own.close()
    plain = specrs.generate(target, prompt, drafter="none", max_new_tokens=40)
    assert plain.ids == texts
    for options in ({"draft_tokens": 8}, {"draft_tokens": 16, "draft_shape": "tree"}):
        found = compare(target, prompt, drafter="cache", max_new_tokens=40, **options)
        assert found.identical or found.difference.near_tie, found.difference
        assert found.method.report.accepted > 0
