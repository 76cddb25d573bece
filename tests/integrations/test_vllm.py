"""The vLLM proposer against a stand-in of its runner: lifecycle, losslessness, gate, shared store, faults, time."""

import json
import logging
import time

import numpy as np
import pytest
from tests.integrations.standin_vllm import Engine, Request, config

from specrs.errors import (
    InvalidInputError,
    UnknownNameError,
    UnsupportedEngineError,
    VocabularyMismatchError,
)
from specrs.integrations import vllm as vllm_module
from specrs.integrations._config import EngineOptions, read_options
from specrs.integrations._gate import PayoffGate, StepTimes
from specrs.integrations._rows import PATIENCE, Rows
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
    starts = []
    start = proposer._drafter.start
    proposer._drafter.start = lambda request, text: (starts.append(request), start(request, text))
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
    assert 60 <= len(starts) <= 66
    assert not proposer._faults
    assert len(proposer._drafter.active) <= 8 + PATIENCE


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
    assert proposer._drafter.cache.count([7, 8]) == 0
    proposer.close()
    assert proposer._drafter.cache.count([9, 7]) == 1


def test_drafts_stay_within_the_model_length():
    proposer = Proposer(config(max_length=64, draft_tokens=16, options={"gate": "off"}))
    tokens = np.zeros((4, 64), np.int32)
    tokens[:, :64] = np.tile(np.arange(1, 5), 16)
    for length, most in ((40, 16), (60, 3), (63, 0), (64, 0)):
        drafts = proposer.propose([[1]], np.array([length]), tokens)
        assert len(drafts[0]) == most


def test_gate_cuts_what_does_not_pay():
    gate = PayoffGate(0.02)
    for rows in (1, 2, 4, 8, 16, 32):
        for _ in range(20):
            gate.times.observe(rows, 0.1 * rows)  # a forward costs as much per row: nothing below certainty pays
    confidence = np.full((2, 8), 0.8)
    assert gate.cut(confidence, np.array([8, 8]), np.array([4, 4])).tolist() == [0, 0]
    cheap = PayoffGate(0.001)
    assert cheap.cut(confidence, np.array([8, 5]), np.array([4, 4])).tolist() == [8, 5]
    # One row likely, one not: the likely one is kept.
    mixed = PayoffGate(0.15)
    kept = mixed.cut(np.array([[0.95] * 8, [0.2] * 8]), np.array([8, 8]), np.array([40, 2]))
    assert kept[0] > 2
    assert kept[1] == 0


@pytest.mark.parametrize("seed", range(5))
def test_gate_finds_the_best_number_of_tokens(seed):
    """Against trying all lengths of all rows, for the law that the gate states."""
    rng = np.random.default_rng(seed)
    gate = PayoffGate(0.02)
    for rows in range(1, 10):
        gate.times.observe(rows, 1 + 0.03 * rows**1.5)
    confidence = (rng.integers(0, 16, (2, 3)) + 0.5) / 16
    kept = gate.cut(confidence, np.array([3, 3]), np.array([3, 3]))
    survival = np.cumprod(np.minimum(confidence, 0.999), axis=1)

    def speed(a, b):
        seconds = gate.times.seconds(np.array([2.0 + a + b]))[0]
        return (2 + survival[0, :a].sum() + survival[1, :b].sum()) / seconds

    best = max(speed(a, b) for a in range(4) for b in range(4))
    reached = speed(*kept)
    assert reached == pytest.approx(best, rel=1e-6) or (kept.sum() == 0 and best < 1.03 * speed(0, 0))


def test_gate_learns_acceptance_and_comes_back():
    gate = PayoffGate(0.05)
    confidence, matches = np.full((1, 4), 0.9), np.array([3])
    drafted = np.array([[1, 2, 3, 4]])
    for _ in range(60):
        gate.learn(confidence, matches, drafted, np.array([[9, 9, 9, 9]]))
    assert gate.cut(confidence, np.array([4]), matches).tolist() == [0]
    for _ in range(200):  # drafts that are not scored are labelled all the same, by what came
        gate.learn(confidence, matches, drafted, np.array([[1, -2, -2, -2]]))
    assert gate.cut(confidence, np.array([4]), matches)[0] > 0


def test_step_times_rise_and_forgive_outliers():
    times = StepTimes(0.02)
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows = int(rng.choice([1, 4, 8, 20, 32]))
        times.observe(rows, (0.1 + 0.01 * rows) * rng.uniform(0.9, 1.1) * (50 if rng.random() < 0.01 else 1))
    at = np.array([1.0, 4, 8, 20, 32, 64])
    found = times.seconds(at)
    assert (np.diff(found) >= 0).all()
    assert np.abs(found[:5] / (0.1 + 0.01 * at[:5]) - 1).max() < 0.3


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
    step = proposer._drafter.step
    calls = []

    def failing(*args):
        calls.append(1)
        if len(calls) == 2:
            step(*args)  # the cache has read the text when it happens
            raise RuntimeError("disk on fire")
        return step(*args)

    monkeypatch.setattr(proposer._drafter, "step", failing)
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
            second._drafter.history.exchange()
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
    assert Proposer(config(options=options, parallel_config=parallel))._drafter.history is None
    assert not (tmp_path / "store").exists()


def test_rows_tell_requests_apart_that_begin_alike():
    rows = Rows()
    tokens = np.zeros((3, 256), np.int32)
    tokens[:, :100] = np.arange(1, 101)
    tokens[1, 40:60] = 500  # the same beginning and end, another middle
    lengths = np.array([101, 101])
    first = rows.match(tokens, lengths, np.array([1, 1]))
    assert first.new == [0, 1]
    tokens[[0, 1]] = tokens[[1, 0]]
    swapped = rows.match(tokens, lengths + 0, np.array([0, 0]))
    assert swapped.new == []
    assert swapped.requests.tolist() == [1, 0]


def test_a_request_that_stays_away_is_finished():
    rows = Rows()
    tokens = np.zeros((2, 256), np.int32)
    tokens[0, :50], tokens[1, :50] = np.arange(1, 51), np.arange(101, 151)
    rows.match(tokens, np.array([50, 50]), np.array([1, 1]))
    finished = [rows.match(tokens, np.array([50]), np.array([0])).finished for _ in range(PATIENCE + 2)]
    assert finished == [[]] * PATIENCE + [[1], []]


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
