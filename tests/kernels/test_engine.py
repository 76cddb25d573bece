"""The engine's verify stage on the kernels: the texts are those of the Rust rules, whatever is drafted and drawn."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.conftest import VOCABULARY, tiny_target
from tests.kernels.device import KERNELS, DeviceTensor, device_logits, on_the_device, on_the_host, recorded_ops
from tests.kernels.emulator import guarded_launches, poisoned
from tests.ssd.toys import local

import specrs
from specrs.drafters.model import ModelDrafter
from specrs.engine.request import Request
from specrs.errors import NonFiniteLogitsError
from specrs.ops import round as rounds
from specrs.ops import torch_ops
from specrs.sampling import SamplingParams, StopRules
from specrs.verification import Cascade, Fuzzy, Lenience, StaticEnsemble, TopKAcceptance, Typical

PROMPTS = [[7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9], [5], list(range(20, 38))]


@pytest.fixture(params=["kernels", "dispatcher"])
def called(request, stand_in, monkeypatch):
    """Let the engine verify by ops: the kernels, or what the dispatcher has for a host; the names that it calls."""
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 5)

    def op_of(name):
        if request.param == "kernels":
            return lambda *given: on_the_device(getattr(KERNELS, name)(*given))
        return lambda *given: on_the_device(getattr(torch.ops.specrs, name)(*map(on_the_host, given)))

    names = recorded_ops(monkeypatch, op_of)
    with poisoned(), guarded_launches():
        yield names


def by_ops(monkeypatch, fetched=None, **options):
    """Generate with logits on the stand-in for a device; `fetched` receives the shapes of what came to the host."""
    draft = options.get("draft_model")
    models = [tiny_target("llama").model] + ([] if draft is None else [draft.model])
    with device_logits(monkeypatch, *models) as noted:
        made = specrs.generate(tiny_target("llama"), PROMPTS, **options)
    if fetched is not None:
        fetched += noted
    return made


def options_of(how, temperature):
    options = {"drafter": "cache" if how == "tree" else how, "max_new_tokens": 12, "eos_token_id": None}
    options |= {"draft_tokens": 4, "temperature": temperature, "top_p": 0.95, "seed": 11}
    if how == "tree":
        options["draft_shape"] = "tree"
    if how in ("model", "hybrid"):
        options["draft_model"] = tiny_target("llama", seed=7)
    return options


def same_texts(made, expected):
    assert [one.ids for one in made] == [one.ids for one in expected]
    assert [one.report.accepted for one in made] == [one.report.accepted for one in expected]
    for one, other in zip(made, expected, strict=True):
        assert one.report.bias == (other.report.bias and pytest.approx(other.report.bias, rel=1e-5))


@pytest.mark.parametrize(
    ("how", "temperature"),
    # A greedy hybrid chooses by the clock who drafts; a seeded one does not.
    [*itertools.product(["none", "cache", "tree", "model"], [0.0, 0.9]), ("hybrid", 0.9)],
)
def test_a_device_gives_the_text_of_the_host(called, monkeypatch, how, temperature):
    options = options_of(how, temperature)
    expected = specrs.generate(tiny_target("llama"), PROMPTS, **options)
    assert called == []
    same_texts(by_ops(monkeypatch, **options), expected)
    assert set(called) == {"verify_round"} | ({"draw_tokens"} if how in ("model", "hybrid") else set())


def test_greedy_and_drawn_requests_draft_together_on_a_device(called, monkeypatch):
    """Of different temperatures and truncations, of different lengths: the laws of each, in the draft's order."""
    sampling = [SamplingParams(), SamplingParams(0.9, top_k=9), SamplingParams(1.2, min_p=0.05)]

    def drafted():
        requests = [
            Request(np.array(prompt, np.uint32), replace(one, seed=b), StopRules(max_new_tokens=9), None)
            for b, (prompt, one) in enumerate(zip(PROMPTS, sampling, strict=True))
        ]
        drafter = ModelDrafter(tiny_target("llama", seed=7), VOCABULARY)
        for request in requests:
            drafter.start(request)
        return drafter.propose(requests, [6, 3, 5], lambda step: [entropy < 3.52 for entropy in step.entropy()])

    host = drafted()
    with device_logits(monkeypatch, tiny_target("llama", seed=7).model):
        device = drafted()
    assert len(set(np.diff(host.node_ptr))) > 1
    assert device.tokens.tolist() == host.tokens.tolist()
    assert device.node_ptr.tolist() == host.node_ptr.tolist()
    assert device.confidence == pytest.approx(host.confidence, rel=1e-5)
    assert type(device.draft_probs) is DeviceTensor
    assert np.allclose(device.draft_probs.cpu().numpy(), host.draft_probs, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("on_device", ["target", "draft model"])
def test_b41_one_of_the_models_alone_is_on_a_device(called, monkeypatch, on_device):
    options = options_of("model", 0.9)
    expected = specrs.generate(tiny_target("llama"), PROMPTS, **options)
    there = tiny_target("llama") if on_device == "target" else options["draft_model"]
    with device_logits(monkeypatch, there.model):
        same_texts(specrs.generate(tiny_target("llama"), PROMPTS, **options), expected)
    assert set(called) == {"verify_round" if on_device == "target" else "draw_tokens"}


@pytest.mark.parametrize(("temperature", "saguaro"), [(0.0, 1.0), (0.9, 1.0), (0.9, 0.4)])
def test_drafting_ahead_on_a_device(called, monkeypatch, temperature, saguaro):
    """Guesses and drafts are drawn where the logits lie: greedy ones come as ids, drawn ones with their laws."""
    options = {"max_new_tokens": 12, "eos_token_id": None, "temperature": temperature, "top_p": 0.95, "seed": 11}
    draft = tiny_target("llama", seed=7)

    def run():
        drafter = local(draft, VOCABULARY, fan_out=12, lookahead=3, fallback="slow", saguaro=saguaro)
        return specrs.generate(tiny_target("llama"), PROMPTS, drafter=drafter, **options), drafter.statistics

    expected, statistics = run()
    assert statistics.by_origin["hit"] > 0
    assert called == []
    with device_logits(monkeypatch, tiny_target("llama").model, draft.model) as fetched:
        made, there = run()
    same_texts(made, expected)
    assert there.by_origin == statistics.by_origin
    assert set(called) == {"verify_round", "draw_tokens", "fork_tokens"}
    assert any(VOCABULARY in shape for shape in fetched) == (temperature > 0)


@pytest.mark.parametrize("how", ["none", "cache", "tree", "model"])
def test_a_round_fetches_its_verdict_and_nothing_else(called, monkeypatch, how):
    """One copy a round, of a path, its length, the bonus, a status and a bias for each request.

    One more a step of a draft model: each token and three numbers.
    """
    options, fetched = options_of(how, 0.9), []
    made = by_ops(monkeypatch, fetched, **options)
    assert called.count("verify_round") == max(one.report.target_passes for one in made)
    assert len(fetched) == len(called)
    for name, (requests, words) in zip(called, fetched, strict=True):
        assert requests <= len(PROMPTS)
        assert words == 4 if name == "draw_tokens" else words <= 4 + 4


def test_what_a_caller_asks_of_the_rows_fetches_no_more_than_that(called, monkeypatch):
    """Penalties bring the rows to the host, log-probs those of the kept tokens; processors are called on the device."""
    seen = []

    def bans(input_ids, scores):
        seen.append(isinstance(scores, DeviceTensor))
        return scores.index_fill(1, torch.tensor([3]), -torch.inf)

    for given, extra in (
        ({"repetition_penalty": 1.3}, lambda rows, kept: rows),
        ({"logprobs": 2}, lambda rows, kept: kept),
        ({"logits_processor": [bans]}, lambda rows, kept: 0),
    ):
        options, fetched = options_of("cache", 0.9) | given, []
        expected = specrs.generate(tiny_target("llama"), PROMPTS, **options)
        seen.clear()
        made = by_ops(monkeypatch, fetched, **options)
        same_texts(made, expected)
        assert [one.logprobs for one in made] == [one.logprobs for one in expected]
        rows = sum(shape[0] for shape in fetched if shape[-1:] == (VOCABULARY,))
        drafted, kept = (sum(of(one) for one in made) for of in (lambda m: m.report.drafted, lambda m: len(m.ids)))
        rounds_of_all = sum(one.report.target_passes for one in made)
        assert rows == extra(rounds_of_all + drafted, kept), given
    assert seen
    assert all(seen)


@pytest.mark.parametrize("how", ["cache", "model"])
def test_a_host_verifies_by_the_function_behind_the_op(monkeypatch, how):
    """The engine calls on a host what the dispatcher would call there: one function, once a round, the same texts."""
    behind = rounds.on_host
    assert torch_ops.on_host is behind
    calls = {"engine": 0, "op": 0}

    def counted(who):
        def run(*given):
            calls[who] += 1
            return behind(*given)

        return run

    monkeypatch.setattr(rounds, "on_host", counted("engine"))
    monkeypatch.setattr(torch_ops, "on_host", counted("op"))
    options = options_of(how, 0.9)
    expected = specrs.generate(tiny_target("llama"), PROMPTS, **options)
    assert calls["engine"] > 0 == calls["op"]
    same_texts(by_ops(monkeypatch, **options), expected)
    assert calls["op"] == calls["engine"]


@pytest.mark.parametrize(
    "rule",
    [StaticEnsemble(0.3), Lenience(0.5), Typical(), TopKAcceptance(4), Cascade(0.5), Fuzzy(0.5)],
    ids=lambda rule: rule.rule,
)
def test_relaxed_rules_on_a_device(called, monkeypatch, rule):
    options = options_of("model", 0.9) | {"verification": rule, "bias_budget": 2.5}
    expected = specrs.generate(tiny_target("llama"), PROMPTS, **options)
    assert max(one.report.bias for one in expected) > 0
    same_texts(by_ops(monkeypatch, **options), expected)
    assert set(called) == {"verify_round", "draw_tokens"}


def test_a_row_that_has_no_law_ends_its_request_alone(called, monkeypatch):
    """NaN logits of one request: the same finish reasons and texts on a device as on a host."""

    def poison(input_ids, scores):
        return scores.fill_(float("nan")) if input_ids[0, 0] == 5 and input_ids.shape[1] > 4 else scores

    options = options_of("cache", 0.9) | {"logits_processor": [poison], "logprobs": 2}
    with pytest.raises(NonFiniteLogitsError) as on_host:
        specrs.generate(tiny_target("llama"), PROMPTS, **options)
    with pytest.raises(NonFiniteLogitsError) as on_device:
        by_ops(monkeypatch, **options)
    expected, made = on_host.value.partial, on_device.value.partial
    assert [one.finish_reason for one in expected] == ["length", "error", "length"]
    same_texts(made, expected)
    assert [one.finish_reason for one in made] == [one.finish_reason for one in expected]
    assert [one.logprobs for one in made] == [one.logprobs for one in expected]
