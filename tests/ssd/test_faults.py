"""A drafter that dies, is late, lies, or meets bad input costs drafts and one message, never text."""

import mmap
import os
import signal
import socket
import struct
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
from tests.ssd import toys
from tests.ssd.toys import local, request, tattle_drafter
from tests.toys import TattleLM

import specrs
from specrs import _core
from specrs.errors import CapacityError, DrafterLostError, InvalidInputError
from specrs.ssd import SsdOptions, cores, make_ssd, messages
from specrs.ssd.cores import watch_seconds
from specrs.ssd.drafter import SsdDrafter
from specrs.ssd.process import ProcessLink
from specrs.ssd.texts import Answer, Chain, Origin, Query, Reply, Text

PROMPTS = [[7, 3, 9, 11, 7, 3, 9], [5]]
LONG = {"max_new_tokens": 30, "eos_token_id": None}


def plain(prompts=PROMPTS, **options):
    return [one.ids for one in specrs.generate(TattleLM(), prompts, drafter="none", **{**LONG, **options})]


def beside(build, **options):
    link = ProcessLink(build, law_bytes=4 * 8 * 32, **{"patience": 30.0, **options})
    drafter = SsdDrafter(
        link, lookahead=3, vocab_size=32, max_context=link.max_context, tokens_are_drawn=link.tokens_are_drawn
    )
    return drafter, link


def texts(drafter, prompts=PROMPTS, **options):
    return [one.ids for one in specrs.generate(TattleLM(), prompts, drafter=drafter, **{**LONG, **options})]


def test_a_process_drafts_ahead():
    """One process, several calls, greedy and sampled: plain texts, seeded ones as in one process, and hits."""
    drafter, link = beside(partial(tattle_drafter, fan_out=3))
    assert texts(drafter) == plain()
    assert drafter.statistics.by_origin["hit"] > 0
    sampled = {"temperature": 0.8, "seed": [1, 2]}
    here = local(TattleLM(habit=4.0), 32, fan_out=3, lookahead=3, fallback="slow")
    assert texts(drafter, **sampled) == texts(here, **sampled)
    assert 0 < drafter.statistics.message_seconds / drafter.statistics.rounds < 0.2
    drafter.close()
    assert link.process.returncode is not None


@pytest.mark.parametrize("how", ["die", "die-ahead", "raise"])
def test_a_drafter_that_dies(how):
    drafter, link = beside(partial(toys.faulty, how, 5))
    with pytest.warns(UserWarning, match="drafting beside the target ended") as seen:
        assert texts(drafter) == plain()
    assert len(seen) == 1
    if how == "raise":
        assert "out of cheese" in str(seen[0].message)
    link.process.wait(5)
    # It stays away: later calls are plain, without another message.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert texts(drafter, PROMPTS[:1]) == plain(PROMPTS[:1])


def test_a_drafter_killed_mid_round():
    """SIGKILL while the target is scoring."""
    drafter, link = beside(tattle_drafter)

    class Killer(TattleLM):
        def score(self, states, pending, draft):
            if len(self.forwards) == 5:
                os.kill(link.process.pid, signal.SIGKILL)
                link.process.wait(5)
            return super().score(states, pending, draft)

    with pytest.warns(UserWarning, match="is gone"):
        made = specrs.generate(Killer(), PROMPTS, drafter=drafter, **LONG)
    assert [one.ids for one in made] == plain()
    assert sum(one.report.accepted for one in made) > 0


def test_a_drafter_that_is_late_once():
    """The round is decoded plainly, the late answer is thrown away, and drafting goes on."""
    drafter, _ = beside(partial(toys.faulty, "late-once", 4), patience=1.5)
    assert texts(drafter, PROMPTS[:1]) == plain(PROMPTS[:1])
    statistics = drafter.statistics
    assert statistics.late == statistics.stale == 1
    assert statistics.rounds >= 8
    assert statistics.stale_rate == 1 / statistics.asked
    drafter.close()


def test_a_drafter_that_stays_late_is_given_up():
    drafter, link = beside(partial(toys.faulty, "late", 3), patience=0.2)
    with pytest.warns(UserWarning, match="3 times in a row") as seen:
        assert texts(drafter, PROMPTS[:1]) == plain(PROMPTS[:1])
    assert len(seen) == 1
    assert link.process.returncode is not None


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps(jump):
    """Backwards or ahead: waits stay within patience, no time is counted negative, and no text changes."""
    now = [0.0, 0]

    def clock():
        now[1] += 1
        now[0] += jump if now[1] % 3 == 0 else 0.001
        return now[0]

    drafter, _ = beside(tattle_drafter)
    drafter._clock = clock
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert texts(drafter, PROMPTS) == plain(PROMPTS)
    statistics = drafter.statistics
    assert min(statistics.wait_seconds, statistics.service_seconds, statistics.message_seconds) >= 0
    drafter.close()
    side = local(TattleLM(habit=4.0), 32, fan_out=2, lookahead=3, fallback="auto")
    original = side.link.drafter.answer
    side.link.drafter.answer = lambda round_, queries: original(round_, queries, clock)
    assert texts(side) == plain()


def test_a_drafter_that_cannot_start():
    with pytest.raises(DrafterLostError, match="no such model"):
        ProcessLink(toys.broken)
    with pytest.raises(InvalidInputError, match="cannot be sent"):
        ProcessLink(lambda: None)


class Wrong:
    """A link whose answers are spoiled."""

    def __init__(self, spoil):
        self.spoil = spoil

    def start(self, text):
        pass

    def finish(self, request):
        pass

    def close(self):
        pass

    def speculate(self, round_, queries):
        good = [
            Reply(q.request, q.generation, q.accepted, q.bonus, Origin.SLOW, Chain(np.array([1, 2], np.uint32)))
            for q in queries
        ]
        return Answer(round_, tuple(self.spoil(reply) for reply in good))


def law(*rows):
    return np.array(rows, np.float32)


SPOILED = {
    "another round of it": lambda r: Reply(r.request, r.generation - 1, r.accepted, r.bonus, r.origin, r.chain),
    "another outcome": lambda r: Reply(r.request, r.generation, r.accepted + 1, r.bonus, r.origin, r.chain),
    "another token": lambda r: Reply(r.request, r.generation, r.accepted, r.bonus + 1, r.origin, r.chain),
    "a finished request": lambda r: Reply(r.request + 99, r.generation, r.accepted, r.bonus, r.origin, r.chain),
    "too many tokens": lambda r: Reply(
        r.request, r.generation, r.accepted, r.bonus, r.origin, Chain(np.zeros(9, np.uint32))
    ),
    "a law of other rows": lambda r: Reply(
        r.request, r.generation, r.accepted, r.bonus, r.origin, Chain(r.chain.tokens, law([0.0, 1.0, 0.0]))
    ),
    "a law without its token": lambda r: Reply(
        r.request, r.generation, r.accepted, r.bonus, r.origin, Chain(r.chain.tokens, law([1, 0, 0], [0, 0, 1]))
    ),
    "a law that does not sum to 1": lambda r: Reply(
        r.request, r.generation, r.accepted, r.bonus, r.origin, Chain(r.chain.tokens, law([0, 0.5, 0], [0, 0, 1]))
    ),
    "not a number": lambda r: Reply(
        r.request, r.generation, r.accepted, r.bonus, r.origin, Chain(r.chain.tokens, law([np.nan, 1, 0], [0, 0, 1]))
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_answers_to_other_questions_are_not_believed(what):
    drafter = SsdDrafter(Wrong(SPOILED[what]), lookahead=3, vocab_size=32)
    with pytest.warns(UserWarning, match="such drafts are not used") as seen:
        made = specrs.generate(TattleLM(), PROMPTS, drafter=drafter, **LONG)
    assert len(seen) == 1
    assert [one.ids for one in made] == plain(PROMPTS)
    assert drafter.statistics.refused > 0
    assert sum(one.report.drafted for one in made) == 0
    assert made[0].report.ahead["stale_rate"] == 1.0
    assert "100% of the drafts stale" in str(made[0].report)


def test_a_sampled_draft_without_its_law_is_not_believed():
    drafter = SsdDrafter(Wrong(lambda reply: reply), lookahead=3, vocab_size=32)
    with pytest.warns(UserWarning, match="not used"):
        texts(drafter, PROMPTS[:1], temperature=1.0, seed=1)
    assert drafter.statistics.refused > 0


def test_questions_about_strangers_are_refused():
    side = tattle_drafter()
    with pytest.raises(InvalidInputError, match="request 5 is not known"):
        side.answer(1, [Query(5, 1, 0, np.array([1], np.uint32), 0, 3)])
    side.start(Text(5, np.array([1, 2], np.uint32), capacity=9))
    side.finish(5)
    side.finish(5)
    with pytest.raises(InvalidInputError, match="finished"):
        side.answer(1, [Query(5, 1, 0, np.array([1], np.uint32), 0, 3)])
    with pytest.raises(InvalidInputError, match="asked to keep 7"):
        Text(1, np.array([1], np.uint32), capacity=3).update(7, np.array([1], np.uint32))


def test_a_guess_is_good_for_one_round():
    """The same outcome a round later is not a hit: its text is another."""
    side = tattle_drafter()
    side.start(Text(1, np.array([1, 2, 3], np.uint32), capacity=40))
    first = side.answer(1, [Query(1, 1, 3, np.empty(0, np.uint32), -1, 3)]).replies[0]
    side.pre_draft()
    assert len(side.cache) > 0
    accepted = first.chain.tokens[:1]
    kept = np.array([*accepted, 9], np.uint32)
    skipped = side.answer(2, [Query(1, 3, 3, kept, 1, 3)]).replies[0]
    assert skipped.origin == Origin.SLOW
    assert side.cache.counts()["hits"] == 0


def test_full_contexts():
    """Both models end at 40 tokens: drafts shrink, guesses stop, the text is plain decoding's to its last token."""
    target = TattleLM(max_context=40)
    expected = specrs.generate(target, [1, 2, 3], drafter="none", max_new_tokens=100, eos_token_id=None)
    for limit in (40, 30, 12):
        model = TattleLM(habit=4.0, max_context=limit)
        drafter = local(model, 32, fan_out=3, lookahead=4, fallback="slow")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the drafter's shorter context
            made = specrs.generate(target, [1, 2, 3], drafter=drafter, max_new_tokens=100, eos_token_id=None)
        assert made.ids == expected.ids
        assert made.finish_reason == expected.finish_reason == "length"


def test_more_guesses_than_tokens():
    """F > V guesses every token: nothing misses but the first round."""
    drafter = local(TattleLM(habit=4.0), 32, fan_out=40, lookahead=2, fallback="slow")
    assert texts(drafter) == plain()
    statistics = drafter.statistics
    assert statistics.hit_rate > 0.9


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lookahead": -1}, "draft_tokens must be >= 0"),
        ({"fan_out": -1}, "fan_out must be >= 0"),
        ({"fallback": "none"}, "fallback must be"),
        ({"saguaro": 0.0}, "saguaro must be in"),
        ({"saguaro": float("nan")}, "saguaro must be in"),
        ({"max_cache_bytes": -1}, "max_cache_bytes"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(InvalidInputError, match=match):
        SsdOptions(**options)


def test_bad_calls():
    with pytest.raises(InvalidInputError, match="overlap must be one of"):
        specrs.generate(TattleLM(), [1], drafter="ssd", overlap="gpu")
    with pytest.raises(InvalidInputError, match="fan_out is for drafter='ssd'"):
        specrs.generate(TattleLM(), [1], drafter="cache", fan_out=3)
    with pytest.raises(InvalidInputError, match="needs draft_model="):
        make_ssd(TattleLM(), options=SsdOptions(saguaro=0.5), overlap="none")


def test_no_memory_for_guesses():
    drafter = local(TattleLM(habit=4.0), 32, fan_out=3, lookahead=3, fallback="slow", max_cache_bytes=0)
    assert texts(drafter) == plain()
    assert drafter.statistics.hit_rate == 0
    assert drafter.link.drafter.cache.counts()["refused"] > 0


@pytest.fixture
def channels():
    """Both ends of a channel in this process, and the file that the first end reads."""
    files = [messages.shared_file(1 << 14), messages.shared_file(1 << 14)]
    ends = socket.socketpair()
    here = _core.DrafterChannel(ends[0].fileno(), files[1], files[0])
    there = _core.DrafterChannel(ends[1].fileno(), files[0], files[1])
    for end in ends:
        end.close()
    yield here, there, files[0]
    for descriptor in files:
        os.close(descriptor)


def test_messages_travel_whole(channels):
    here, there, _ = channels
    assert here.receive(0.0) is None
    text = Text(2, np.array([1, 2], np.uint32), capacity=9, temperature=0.7, top_p=0.9, seed=2**64 - 1, repeatable=True)
    messages.send_start(here, text)
    here.finish(7)
    messages.send_questions(here, 9, [Query(3, 1, 5, np.array([7, 8], np.uint32), -1, 4)] * 2, 0.5)
    kind, value = there.receive()
    copy = messages.text_of(value)
    assert kind == "start"
    assert (copy.seed, copy.temperature, copy.top_p, copy.repeatable) == (2**64 - 1, 0.7, 0.9, True)
    assert copy.tokens.tolist() == [1, 2]
    assert there.receive() == ("finish", 7)
    number, (again, _), asked = messages.queries_of(there.receive()[1])
    assert (number, asked) == (9, 0.5)
    assert (again.request, again.generation, again.keep, again.accepted, again.budget) == (3, 1, 5, -1, 4)
    assert again.new.tolist() == [7, 8]
    assert not there.has_message()
    rows = np.random.default_rng(0).random((2, 5)).astype(np.float32)
    replies = (
        Reply(1, 2, 0, 7, Origin.HIT, Chain(np.array([3, 4], np.uint32), rows)),
        Reply(2, 2, -1, -1, Origin.ZERO, Chain(np.empty(0, np.uint32))),
        Reply(3, 1, 1, 9, Origin.FAST, Chain(np.array([1], np.uint32))),
    )
    messages.send_answer(there, Answer(4, replies, 0.5, 0.25, 0.125))
    made = messages.answer_of(here.receive(1.0, 0.1)[1])
    assert (made.round, made.service_seconds, made.pre_draft_seconds, made.busy_seconds) == (4, 0.5, 0.25, 0.125)
    for got, sent in zip(made.replies, replies, strict=True):
        assert got.chain.tokens.tolist() == sent.chain.tokens.tolist()
        assert (got.request, got.origin, got.bonus) == (sent.request, sent.origin, sent.bonus)
    assert np.array_equal(made.replies[0].chain.laws, rows)
    assert made.replies[2].chain.laws is None
    there.fail("out of cheese")
    assert here.receive() == ("failure", "out of cheese")


def test_a_reader_that_sleeps_is_woken(channels):
    here, there, _ = channels
    later = threading.Timer(0.2, lambda: here.finish(1))
    later.start()
    started = time.monotonic()
    assert there.receive(20.0) == ("finish", 1)
    assert 0.15 < time.monotonic() - started < 10
    later.join()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities here")
def test_watching_is_long_only_on_cores_of_ones_own():
    own = os.sched_getaffinity(0)
    assert watch_seconds(None, os.getpid()) == 0
    assert watch_seconds([min(own)], os.getpid()) == cores.SHARED
    assert watch_seconds([max(own) + 1], os.getpid()) == cores.APART
    assert watch_seconds([0], 2**22 + 1) == 0, "no process has that number"


def test_bad_messages(channels):
    here, there, descriptor = channels
    with pytest.raises(CapacityError, match="expected at most"):
        messages.send_start(here, Text(1, np.zeros(3000, np.uint32), capacity=3000))
    with pytest.raises(InvalidInputError, match="laws has 1 rows, expected 2"):
        there.answer(1, [0, 0, 0], [(1, 1, 0, 1, 0, np.zeros(2, np.uint32), np.zeros((1, 5), np.float32))])
    laws = np.zeros((2, 5), np.float32, order="F")
    with pytest.raises(InvalidInputError, match="laws must be C-contiguous"):
        there.answer(1, [0, 0, 0], [(1, 1, 0, 1, 0, np.zeros(2, np.uint32), laws)])
    with pytest.raises(InvalidInputError, match="contiguous"):
        here.speculate(1, 0.0, [(1, 1, 1, 0, 1, np.arange(9, dtype=np.uint32)[::2])])
    with pytest.raises(InvalidInputError, match="not negative"):
        _core.DrafterChannel(-1, descriptor, descriptor)
    with pytest.raises(InvalidInputError, match="seconds are"):
        here.receive(float("nan"))
    there.answer(1, [0, 0, 0], [(1, 1, 0, 1, 17, np.zeros(1, np.uint32), None)])
    with pytest.raises(DrafterLostError, match="origin is 17"):
        messages.answer_of(here.receive()[1])
    here.finish(7)
    head, version = 3 * 64 + 8, _core.DRAFTER_MESSAGE_VERSION
    with mmap.mmap(descriptor, 0) as memory:
        struct.pack_into("=Q", memory, head + 8, version + 1)
    with pytest.raises(DrafterLostError, match=f"version {version + 1}, expected .* {version}"):
        there.receive()


def test_a_request_that_is_unknown_to_commit():
    drafter = local(TattleLM(habit=4.0), 32, fan_out=1, lookahead=2)
    asked = request()
    drafter.start(asked)
    drafter.finish(asked)
    drafter.finish(asked)
    with pytest.raises(KeyError):
        drafter.commit(asked, np.array([1], np.uint32))
