"""The vLLM proposer against a stand-in of its runner: lifecycle, losslessness, gate, shared store, faults, time."""

import json
import logging
import time

import numpy as np
import pytest
from tests.integrations.standin_vllm import Engine, Request, config

from specrs._core import BatchProposer
from specrs.cache import SuffixCache
from specrs.errors import (
    InvalidInputError,
    UnknownNameError,
    UnsupportedEngineError,
    VocabularyMismatchError,
)
from specrs.integrations import vllm as vllm_module
from specrs.integrations._config import EngineOptions, read_options
from specrs.integrations.vllm import Proposer


def texts(seed, count, length=60, vocab=1000):
    """Texts that repeat themselves in part, as code does."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        phrase = rng.integers(1, vocab, 12).tolist()
        made.append((phrase + rng.integers(1, vocab, 3).tolist() + phrase * (length // 12))[:length])
    return made


def test_a_repeating_text_takes_fewer_steps_and_stays_the_same():
    proposer = Proposer(config(options={"gate": "off"}))
    engine = Engine(proposer)
    requests = [Request(str(i), t[:20], t[20:]) for i, t in enumerate(texts(0, 5))]
    for request in requests:
        engine.add(request)
    engine.run()
    assert [r.out for r in requests] == [r.answer for r in requests]
    assert engine.steps < 20
    stats = proposer.stats()
    assert (stats["drafted"], stats["accepted"]) == (engine.drafted, engine.accepted) or stats["drafted"] > 0
    assert stats["requests"] == 5


def test_finished_text_serves_the_next_request():
    proposer = Proposer(config(options={"gate": "off"}))
    engine = Engine(proposer)
    text = np.random.default_rng(1).permutation(np.arange(1, 200)).tolist()  # nothing repeats within it
    steps = []
    for id_ in ("a", "a"):  # the id is used again: it is not the key
        engine.add(Request(id_, text[:20], text[20:120]))
        before = engine.steps
        engine.run()
        steps.append(engine.steps - before)
    assert steps[0] == 100
    assert steps[1] < 20


def test_without_history_nothing_is_carried_over():
    proposer = Proposer(config(options={"gate": "off", "history": False}))
    engine = Engine(proposer)
    text = np.random.default_rng(1).permutation(np.arange(1, 200)).tolist()
    for _ in range(2):
        engine.add(Request("a", text[:20], text[20:120]))
        engine.run()
    assert engine.steps == 200
    assert engine.drafted == 0


def test_random_lifecycles_keep_rows_and_requests_together():
    """Arrivals, preemptions, aborts, moved rows, chunked prompts in random order: no request is taken for another."""
    rng = np.random.default_rng(2)
    proposer = Proposer(config(options={"gate": "off"}))
    engine = Engine(proposer)
    waiting = [Request(str(i % 7), t[:25], t[25:]) for i, t in enumerate(texts(3, 60, 90))]
    everyone, away, aborted = list(waiting), [], []
    while waiting or away or engine.batch:
        if away and len(engine.batch) < 8:
            back = away.pop()
            back.chunks = int(rng.integers(1, 3))
            engine.add(back)
        elif waiting and len(engine.batch) < 8 and rng.random() < 0.5:
            request = waiting.pop()
            request.chunks = int(rng.integers(1, 4))
            engine.add(request)
        if len(engine.batch) > 2 and rng.random() < 0.2:
            engine.swap(*rng.choice(len(engine.batch), 2, replace=False))
        if engine.batch and rng.random() < 0.08:
            request = engine.batch[int(rng.integers(len(engine.batch)))]
            engine.abort(request)
            aborted.append(request)
        if engine.batch and rng.random() < 0.15:
            request = engine.batch[int(rng.integers(len(engine.batch)))]
            engine.preempt(request)
            away.append(request)
        if engine.batch:
            engine.step()
    for request in everyone:
        assert request.out == request.answer or request in aborted
    # A request is met once, also when it was preempted or moved: 60, and a few that returned beside a new one.
    assert 60 <= proposer.stats()["requests"] <= 66
    assert not proposer._faults
    assert proposer.stats()["active"] <= 8 + 16  # those that left at the last 16 steps may come back
    proposer.close()
    assert proposer.stats()["cache"]["active_requests"] == 0


def test_a_preempted_request_goes_on_where_it_was():
    proposer = Proposer(config(options={"gate": "off"}))
    engine = Engine(proposer)
    (text, other) = texts(4, 2, 120)
    request, beside = Request("a", text[:20], text[20:]), Request("b", other[:20], other[20:])
    engine.add(request)
    engine.add(beside)
    for _ in range(3):
        engine.step()
    engine.preempt(request)
    for _ in range(4):
        engine.step()
    request.chunks = 2
    engine.add(request)
    engine.run()
    assert request.out == request.answer
    assert proposer.stats()["requests"] == 2


def test_text_after_an_end_token_is_not_learnt():
    proposer = Proposer(config(eos=7, options={"gate": "off"}))
    engine = Engine(proposer, eos=7)
    engine.add(Request("a", [1, 2, 3, 4], [5, 6, 7]))
    engine.run()
    # The drafts of a second request end with the end token.
    again = Request("b", [1, 2, 3, 4], [5, 6, 7])
    engine.add(again)
    engine.step()
    assert again.draft == [6, 7]
    engine.run()
    tokens = np.array([[1, 2, 3, 9, 7, 8, 8, 8]], np.int32)
    proposer.propose([[9, 7, 8]], np.array([6]), tokens)
    assert proposer._cache.count([7, 8]) == 0
    proposer.close()
    assert proposer._cache.count([9, 7]) == 1


def test_drafts_stay_within_the_model_length():
    proposer = Proposer(config(max_length=64, draft_tokens=16, options={"gate": "off"}))
    tokens = np.zeros((4, 64), np.int32)
    tokens[:, :64] = np.tile(np.arange(1, 5), 16)
    for length, most in ((40, 16), (60, 3), (63, 0), (64, 0)):
        drafts = proposer.propose([[1]], np.array([length]), tokens)
        assert len(drafts[0]) == most


def replayed(proposer, answer, cost, monkeypatch):
    """Run one request against an engine whose step over n rows takes ``cost(n)``; return the drafts' lengths."""
    clock = [0.0]
    monkeypatch.setattr(vllm_module.time, "perf_counter", lambda: clock[0])
    engine = Engine(proposer)
    request = Request("a", answer[:20], answer[20:])
    engine.add(request)
    lengths = []
    while engine.batch:
        clock[0] += cost(1 + len(request.draft))
        engine.step()
        lengths.append(len(request.draft))
    assert request.out == request.answer
    return lengths


def test_gate_drafts_where_rows_are_cheap(monkeypatch):
    (answer,) = texts(0, 1, 300)
    lengths = replayed(Proposer(config()), answer, lambda rows: 1 + 0.01 * rows, monkeypatch)
    assert lengths[0] == 0, "nothing is drafted before a plain step was timed"
    assert sum(length > 4 for length in lengths) > 10


def test_gate_learns_that_rows_cost_more_than_a_step(monkeypatch):
    """The first request pays for what is learnt; later ones draft no more than is tried every now and then."""
    proposer = Proposer(config())
    first, *later = (
        replayed(proposer, answer, lambda rows: 1 + 1.5 * (rows - 1), monkeypatch) for answer in texts(0, 4, 300)
    )
    assert sum(first) < 0.5 * len(first)
    for lengths in later:
        assert sum(lengths) < 0.2 * len(lengths)


def test_options_come_from_environment_and_engine(monkeypatch, tmp_path):
    assert read_options() == EngineOptions()
    monkeypatch.setenv("SPECRS_ENGINE", '{"gate": "off", "threads": 2}')
    assert read_options() == EngineOptions(gate="off", threads=2)
    assert read_options({"specrs": {"threads": 3}}) == EngineOptions(gate="off", threads=3)
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"history_tokens": 5000}))
    monkeypatch.setenv("SPECRS_ENGINE", str(file))
    assert read_options().history_tokens == 5000


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ('{"gates": "off"}', UnknownNameError, "did you mean 'gate'"),
        ('{"gate": "on", "threads": 0}', InvalidInputError, "gate = 'on'.*threads = 0"),
        ("[1]", InvalidInputError, "neither a JSON object nor the path"),
        ("{", InvalidInputError, "no JSON"),
        ("/nowhere/options.json", InvalidInputError, "nowhere"),
    ],
)
def test_wrong_options_are_refused_by_name(monkeypatch, text, error, says):
    monkeypatch.setenv("SPECRS_ENGINE", text)
    with pytest.raises(error, match=says):
        Proposer(config())


def test_another_release_is_refused():
    """B85: an engine outside the tested range is named, with the range."""
    with pytest.raises(UnsupportedEngineError, match=r"tested with vLLM"):
        Proposer(config(model_config=None))
    with pytest.raises(UnsupportedEngineError, match=r"num_speculative_tokens"):
        Proposer(config(speculative_config=object()))


def test_empty_batch_is_no_step():
    proposer = Proposer(config())
    assert proposer.propose([], np.zeros(8, np.int32), np.zeros((8, 64), np.int32)) == []


def test_wrong_arguments_give_a_plain_step_and_one_warning(caplog):
    proposer = Proposer(config())
    tokens = np.zeros((2, 64), np.int32)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert proposer.propose([[1]], np.array([99]), tokens) == [[]]
    assert len(caplog.records) == 1
    assert "99" in caplog.text


def test_the_engine_survives_any_fault(monkeypatch, caplog):
    proposer = Proposer(config(options={"gate": "off"}))
    engine = Engine(proposer)
    requests = [Request(str(i), t[:20], t[20:]) for i, t in enumerate(texts(5, 4))]
    for request in requests:
        engine.add(request)
    engine.step()
    keep = proposer._keep
    calls = []

    def failing(finished):
        calls.append(1)
        if len(calls) == 2:  # the cache has read the text when it happens
            raise RuntimeError("disk on fire")
        keep(finished)

    monkeypatch.setattr(proposer, "_keep", failing)
    with caplog.at_level(logging.WARNING):
        engine.run()
    assert [r.out for r in requests] == [r.answer for r in requests]
    assert "disk on fire" in caplog.text
    assert proposer.stats()["accepted"] > 0
    assert proposer.stats()["requests"] == 8  # met anew after the fault


def test_dead_drafts_start_anew_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(vllm_module, "DEAD_STEPS", 5)
    proposer = Proposer(config(options={"gate": "off"}))
    rng = np.random.default_rng(0)
    tokens = np.zeros((1, 512), np.int32)
    text, new = [1, 2, 3, 4, 5, 6] * 6, [6]
    with caplog.at_level(logging.WARNING):
        for step in range(40):
            tokens[0, : len(text)] = text
            (draft,) = proposer.propose([new], np.array([len(text)]), tokens)
            # A few drafts are accepted, then none.
            new = [*draft, 1 + len(draft) % 6] if step < 3 else [int(rng.choice([1, 2, 3]))]
            text += new
    assert "starting anew" in caplog.text
    assert proposer.stats()["accepted"] > 0


def test_two_processes_share_a_store(tmp_path):
    options = {"gate": "off", "store": str(tmp_path / "store"), "fingerprint": "toy", "store_seconds": 3600}
    first, second = Proposer(config(options=options)), Proposer(config(options=options))
    text = np.random.default_rng(1).permutation(np.arange(1, 200)).tolist()
    engine = Engine(first)
    engine.add(Request("a", text[:20], text[20:120]))
    engine.run()
    first.close()
    other = Engine(second)
    for exchange, steps in ((False, 100), (True, 20)):
        if exchange:
            second._history.exchange()
        before = other.steps
        probe = Request("b", text[:20], text[20:120])
        other.add(probe)
        if exchange:
            other.run()
            assert other.steps - before < steps
        else:
            other.step()
            assert probe.draft == []
            other.abort(probe)
    third = Proposer(config(options=options))
    assert third.stats()["cache"]["cached_documents"] >= 1


def test_a_store_of_another_tokenizer_is_refused(tmp_path):
    options = {"store": str(tmp_path / "store"), "fingerprint": "one"}
    Proposer(config(options=options)).close()
    with pytest.raises(VocabularyMismatchError, match="two"):
        Proposer(config(options={**options, "fingerprint": "two"}))


def test_a_tokenizer_that_cannot_be_read_names_the_option(tmp_path):
    engine = config(options={"store": str(tmp_path / "store")})
    engine.model_config.tokenizer = str(tmp_path)
    with pytest.raises(InvalidInputError, match="fingerprint"):
        Proposer(engine)


def test_only_one_rank_keeps_the_store(tmp_path):
    options = {"store": str(tmp_path / "store"), "fingerprint": "toy"}
    parallel = type("Parallel", (), {"rank": 1, "tensor_parallel_size": 2})()
    assert Proposer(config(options=options, parallel_config=parallel))._history is None
    assert not (tmp_path / "store").exists()


def batch_proposer(**options):
    return BatchProposer(SuffixCache(1000), 4, 64, **{"gate": False, **options})


@pytest.mark.parametrize(
    ("tokens", "lengths", "fresh", "says"),
    [
        (np.ones((2, 8), np.int32), [9, 1], [1, 1], "row 0 has 9 tokens"),
        (np.ones((2, 8), np.int32), [4, 4], [1, 5], "row 1 has 4 tokens of which 5 are new"),
        (np.ones((2, 8), np.int32), [4], [1, 1], "2 rows"),
        (np.ones((2, 8), np.int32), [4, -4], [1, 1], "lengths must be 0 or more, got -4"),
        (np.full((1, 8), -3, np.int32), [4], [1], "got -3 in row 0"),
        (np.ones((8, 2), np.int32).T, [4, 4], [1, 1], r"C-contiguous, got strides \[4, 8\]"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_the_next_one_is_served(tokens, lengths, fresh, says):
    proposer = batch_proposer()
    with pytest.raises(InvalidInputError, match=says):
        proposer.step(tokens, lengths, fresh)
    proposer.forget()
    text = np.array([[1, 2, 3, 1, 2, 3, 1, 2]], np.int32)
    drafts, finished, anew = proposer.step(text, [8], [1])
    assert (drafts, finished, anew) == ([[3, 1, 2, 3]], [], False)


@pytest.mark.parametrize("option", [{"threads": 0}, {"token_cost": 0.0}, {"token_cost": np.nan}, {"min_prob": 1.5}])
def test_options_of_a_batch_proposer_out_of_range_are_refused(option):
    with pytest.raises(InvalidInputError, match=r"threads must be at least 1.*got"):
        batch_proposer(**option)


def test_text_that_a_request_came_back_with_is_read_while_it_reads_its_prompt_again():
    proposer = batch_proposer(hand_out=True)
    text = np.array([[1, 2, 3, 4, 5, 6]], np.int32)
    proposer.step(text, [3], [1])
    proposer.step(text, [5], [0])
    proposer.step(text, [6], [1])
    assert [text.tolist() for text in proposer.finish_all()] == [[1, 2, 3, 4, 5, 6]]


def test_finished_text_is_handed_out_when_it_is_asked_for():
    for hand_out in (True, False):
        proposer = batch_proposer(hand_out=hand_out)
        proposer.step(np.array([[1, 2, 3, 0]], np.int32), [3], [1])
        _, finished, _ = proposer.step(np.array([[7, 8, 9, 0]], np.int32), [3], [1])
        assert [text.tolist() for text in finished] == [[1, 2, 3]] * hand_out
        assert [text.tolist() for text in proposer.finish_all()] == [[7, 8, 9]] * hand_out
        assert proposer.counts()["active"] == 0


@pytest.mark.slow
def test_a_step_of_64_requests_is_short():
    """The bound is wide, for a busy machine; benches/vllm/step.py measures."""
    proposer = Proposer(config(draft_tokens=16, max_length=4096))
    rng = np.random.default_rng(0)
    tokens = np.zeros((64, 4096), np.int32)
    text = np.concatenate([rng.permutation(400)[:300] + 1 for _ in range(8)])
    tokens[:, : len(text)] = text
    lengths = np.full(64, 1000)
    proposer.propose([[1]] * 64, lengths, tokens)
    seconds = []
    for _ in range(100):
        lengths = lengths + 2
        start = time.perf_counter()
        proposer.propose([[1, 1]] * 64, lengths, tokens)
        seconds.append(time.perf_counter() - start)
    assert np.median(seconds) < 0.01
