"""Greedy float32: token by token the text of plain decoding and of transformers (cases B19, B37, B38, B47, B59)."""

import functools

import pytest
import torch
from tests.engine.conftest import VOCABULARY, hf_greedy, tiny_target
from tests.toys import ScriptDrafter, TattleLM, oracle

import specrs

REPEATING = [7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9]
PROMPTS = [REPEATING, [5], [1, 2, 3, 4], list(range(20, 38))]
COUNT = 32


@functools.cache
def reference(kind, index):
    return tuple(hf_greedy(kind, PROMPTS[index], COUNT))


def outputs(kind):
    return {tuple(prompt): list(reference(kind, i)) for i, prompt in enumerate(PROMPTS)}


def make(how, kind):
    """Return the drafting options called ``how``."""
    if how in ("none", "cache"):
        return {"drafter": how}
    if how == "cache-tree":
        return {"drafter": "cache", "draft_shape": "tree"}
    if how == "self":
        return {"drafter": "model", "draft_model": tiny_target(kind)}
    if how == "hybrid":
        return {"drafter": "hybrid", "draft_model": tiny_target("llama", seed=7)}
    if how == "hybrid-self":
        return {"drafter": "hybrid", "draft_model": tiny_target(kind)}
    if how == "model":
        return {"drafter": "model", "draft_model": tiny_target("llama", seed=7)}
    return {"drafter": ScriptDrafter(oracle(outputs(kind), how, VOCABULARY), name=str(how))}


HOWS = [
    "none",
    "cache",
    "cache-tree",
    "model",
    "hybrid",
    "hybrid-self",
    "self",
    "wrong",
    "right",
    "alternate",
    2,
    "tree",
]


def grid():
    """Every drafter, length and batch size; the default run takes a part of it, in turn, and ``slow`` the rest."""
    cells = [("none", 1, 1), ("none", 4, 1)]
    cells += [(how, batch, k) for k in (1, 4, 8, 16) for batch in (1, 4) for how in HOWS[1:]]
    for index, cell in enumerate(cells):
        marks = () if cell[0] == "none" or index % 5 == 0 else (pytest.mark.slow,)
        yield pytest.param(*cell, marks=marks, id="-".join(map(str, cell)))


@pytest.mark.parametrize(("how", "batch", "draft_tokens"), list(grid()))
def test_b47_greedy_is_that_of_transformers(kind, how, batch, draft_tokens):
    """B47 and B37: every drafter, length and batch size; rows of different length that finish at different times."""
    made = specrs.generate(
        tiny_target(kind),
        PROMPTS[:batch],
        max_new_tokens=COUNT,
        draft_tokens=draft_tokens,
        eos_token_id=None,
        **make(how, kind),
    )
    assert [one.ids for one in made] == [list(reference(kind, i)) for i in range(batch)]
    if how == "right":
        assert all(one.report.acceptance_rate == 1.0 for one in made)
    if how == "wrong":
        assert all(one.report.accepted == 0 for one in made)
    if how == "self":
        assert all(one.report.accepted == one.report.drafted > 0 for one in made)


def test_references_are_diverse():
    """The identity above would mean little for models that repeat one token."""
    for kind in ("llama", "qwen2", "qwen3", "mistral-window", "gemma3-mixed", "gpt2"):
        assert len(set(reference(kind, 0) + reference(kind, 1))) >= 10, kind


@pytest.mark.parametrize("length", range(5, 13))
@pytest.mark.parametrize("kind", ["mistral-window", "gemma3-mixed"], indirect=True)
def test_b19_windows_survive_rollback(kind, length):
    """B19: the window (8) is crossed by the prompt or by the drafts, which are wrong and right in turn."""
    prompt = list(range(30, 30 + length))
    expected = hf_greedy(kind, prompt, 30)
    for how in ("alternate", "wrong", "tree"):
        drafter = ScriptDrafter(oracle({tuple(prompt): expected}, how, VOCABULARY))
        made = specrs.generate(
            tiny_target(kind), prompt, drafter=drafter, draft_tokens=6, max_new_tokens=30, eos_token_id=None
        )
        assert made.ids == expected, how


@pytest.mark.parametrize("length", [8, 9, 25])
@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_b19_b23_prefill_in_chunks(kind, length, chunk, monkeypatch):
    """The prompt is read in pieces that do not fit the window, and the text does not change."""
    prompt = [(5 * i * i + 3) % VOCABULARY for i in range(length)]
    target = tiny_target(kind)
    monkeypatch.setattr(target, "prefill_chunk", chunk, raising=False)
    made = specrs.generate(target, prompt, drafter="cache", draft_tokens=4, max_new_tokens=12, eos_token_id=None)
    assert made.ids == hf_greedy(kind, prompt, 12)


@pytest.mark.parametrize("max_batch", [1, 2, 3, 8])
def test_b37_requests_wait_their_turn(max_batch):
    """Rows come and go; each is what it is alone."""
    prompts = [[i, i + 1, i + 2, i] for i in range(7)]
    limits = {"max_new_tokens": 25, "eos_token_id": list(range(0, 32, 11))}
    alone = [specrs.generate(TattleLM(), p, drafter="none", **limits).ids for p in prompts]
    made = specrs.generate(TattleLM(), prompts, drafter="cache", draft_tokens=5, max_batch=max_batch, **limits)
    assert [one.ids for one in made] == alone
    assert len({len(ids) for ids in alone}) > 1, "the rows finish at different steps"


class Halve:
    """A processor with a state: how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        out = scores.clone()
        out[:, self.calls % scores.shape[1]] -= 2.0
        return out


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("with_processor", [False, True])
@pytest.mark.parametrize("draft_tokens", [1, 2, 16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("how", ["cache", "cache-tree", "right", "tree"])
@pytest.mark.parametrize("kind", ["qwen2"], indirect=True)
def test_b38_matrix(kind, temperature, with_processor, draft_tokens, batch, how):
    """B38: sampled or not, with and without processors, every length and batch: the text of plain decoding."""
    options = {
        "max_new_tokens": 12,
        "eos_token_id": None,
        "temperature": temperature,
        "seed": 5,
        "logits_processor": [Halve()] if with_processor else [],
        "logprobs": 2,
    }
    plain = [specrs.generate(tiny_target(kind), p, drafter="none", **options) for p in PROMPTS[:batch]]
    drafting = make(how, kind)
    if how in ("right", "tree"):
        known = {tuple(p): one.ids for p, one in zip(PROMPTS, plain, strict=False)}
        drafting = {"drafter": ScriptDrafter(oracle(known, how, VOCABULARY))}
    made = specrs.generate(tiny_target(kind), PROMPTS[:batch], draft_tokens=draft_tokens, **drafting, **options)
    for one, expected in zip(made, plain, strict=True):
        assert one.ids == expected.ids
        for mine, theirs in zip(one.logprobs, expected.logprobs, strict=True):
            assert mine.token == theirs.token
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            assert [t for t, _ in mine.alternatives] == [t for t, _ in theirs.alternatives]
    if how == "right":
        assert all(one.report.acceptance_rate == 1.0 for one in made)


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("budget", [1, 2, 7, 64])
@pytest.mark.parametrize("kind", ["gemma3-mixed", pytest.param("llama", marks=pytest.mark.slow)], indirect=True)
def test_b59_tree_grid(kind, depth, width, budget):
    """B59: any depth, width and budget starts and equals plain decoding; the right token is among the siblings."""
    text = list(reference(kind, 0))

    def propose(request, _):
        rest = text[request.generated :]
        tokens, parents, above = [], [], -1
        for level in range(min(depth, len(rest))):
            right = len(tokens) + level % width
            tokens += [(rest[level] + i - level % width) % VOCABULARY for i in range(width)]
            parents += [above] * width
            above = right
        return tokens, parents

    made = specrs.generate(
        tiny_target(kind),
        PROMPTS[0],
        drafter=ScriptDrafter(propose),
        draft_tokens=budget,
        max_new_tokens=24,
        eos_token_id=None,
    )
    assert made.ids == text[:24]
    assert made.report.accepted > 0 or budget < width


@pytest.mark.parametrize("draft_tokens", [2, 6])
def test_b47_half_precision_differs_at_near_ties_alone(draft_tokens):
    """B47, soft: where bfloat16 texts part, the two logits are within the bound that compare states."""
    from tests.engine.conftest import tiny_model
    from transformers import LlamaForCausalLM

    from specrs.compare import compare
    from specrs.models.hf import TransformersTarget

    source = tiny_model("llama")
    model = LlamaForCausalLM(source.config)
    model.load_state_dict(source.state_dict())
    target = TransformersTarget(model.to(torch.bfloat16).eval(), name="tiny-bf16")
    for prompt in PROMPTS:
        found = compare(
            target, prompt, drafter="cache", draft_tokens=draft_tokens, max_new_tokens=60, eos_token_id=None
        )
        assert found.identical or found.difference.near_tie, found.difference
