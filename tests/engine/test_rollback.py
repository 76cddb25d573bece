"""Memory after rejections: positions, storage, drafter state, empty drafts, sessions (cases B20 to B29, B55)."""

import gc
import random

import numpy as np
import pytest
import torch
from tests.engine.conftest import VOCABULARY, hf_greedy, tiny_target
from tests.toys import ScriptDrafter, TattleLM, oracle

import specrs
from specrs.drafters.cache import CacheDrafter
from specrs.drafters.model import ModelDrafter
from specrs.errors import InternalError, InvalidInputError
from specrs.models.sequence_cache import SequenceCache
from specrs.types import Draft

PROMPT = [4, 9, 2, 7, 7, 1]
FOREVER = {"eos_token_id": None}


def plain(prompt, count, **options):
    return specrs.generate(TattleLM(), prompt, drafter="none", max_new_tokens=count, **FOREVER, **options).ids


@pytest.mark.parametrize("right", range(6))
def test_b23_partial_acceptance_at_every_index(right):
    """B23: TattleLM hashes positions and what is held; any misplaced or stale entry changes the text."""
    expected = plain(PROMPT, 40)
    drafter = ScriptDrafter(oracle({tuple(PROMPT): expected}, right, 32))
    made = specrs.generate(TattleLM(), PROMPT, drafter=drafter, draft_tokens=6, max_new_tokens=40, **FOREVER)
    assert made.ids == expected
    assert max(made.report.accepted_lengths) == right


@pytest.mark.parametrize("seed", range(20))
def test_b20_random_trees_and_lengths(seed):
    """B20's pattern: full, none, part, one token, in any order, as chains and as trees with dead ends."""
    rng = random.Random(seed)
    expected = plain(PROMPT, 60)

    def propose(request, budget):
        rest = expected[request.generated :]
        tokens, parents, right = [], [], -1
        for _ in range(rng.choice([0, 0, 1, 3, 12])):
            depth = 0 if right < 0 else depths[right]
            tokens.append(rest[depth] if rng.random() < 0.6 and depth < len(rest) else rng.randrange(32))
            above = right if rng.random() < 0.7 else rng.randrange(-1, len(tokens) - 1)
            parents.append(above)
            depths[len(tokens) - 1] = (0 if above < 0 else depths[above]) + 1
            if above == right and depth < len(rest) and tokens[-1] == rest[depth]:
                right = len(tokens) - 1
        depths.clear()
        return tokens, parents

    depths = {}
    made = specrs.generate(
        TattleLM(), PROMPT, drafter=ScriptDrafter(propose), draft_tokens=12, max_new_tokens=60, **FOREVER
    )
    assert made.ids == expected


def test_toys_tell_on_stale_memory():
    """The fixture itself: a memory that commits the wrong node is found out."""
    expected = plain(PROMPT, 20)
    target = TattleLM()
    new_state = target.new_state

    def faulty(capacity):
        state = new_state(capacity)
        commit = state.commit
        state.commit = lambda kept, pending: commit(np.arange(len(kept)), pending)  # what a chain would keep
        return state

    target.new_state = faulty
    drafter = ScriptDrafter(oracle({tuple(PROMPT): expected}, "tree", 32))
    made = specrs.generate(target, PROMPT, drafter=drafter, draft_tokens=9, max_new_tokens=20, **FOREVER)
    assert made.ids != expected


def test_b22_storage_is_rewound_and_never_replaced():
    """B22: the same storage from the first row to the last, whatever was rejected."""
    target = tiny_target("llama")
    text = hf_greedy("llama", PROMPT, 30)
    states, pointers = [], set()
    new_state = target.new_state

    def watched(capacity):
        states.append(new_state(capacity))
        return states[-1]

    def propose(request, budget):
        pointers.update(t.data_ptr() for t in (*states[-1]._keys, *states[-1]._values) if t is not None)
        return oracle({tuple(PROMPT): text}, "alternate", VOCABULARY)(request, budget)

    target.new_state = watched
    try:
        made = specrs.generate(
            target, PROMPT, drafter=ScriptDrafter(propose), draft_tokens=5, max_new_tokens=30, **FOREVER
        )
    finally:
        del target.new_state
    assert made.ids == text
    assert len(pointers) == 2 * 3  # keys and values of three layers
    assert {t.data_ptr() for t in (*states[0]._keys, *states[0]._values)} == pointers


def test_b22_memory_grows_when_the_text_outgrows_it():
    target = tiny_target("qwen3")
    state = SequenceCache(3, 4)
    prompt = np.array([(3 * i) % VOCABULARY for i in range(40)], np.uint32)
    target.prefill(state, prompt[:-1])
    logits = target.score([state], [prompt[-1:]], Draft.empty(1)).logits
    fresh = target.new_state(64)
    expected = target.score([fresh], [prompt], Draft.empty(1)).logits
    assert torch.allclose(logits, expected, atol=1e-3)
    assert int(logits.argmax()) == int(expected.argmax())


def test_memory_refuses_what_it_cannot_do():
    state = SequenceCache(1, 4)
    with pytest.raises(InvalidInputError, match="can keep 0 to 0 tokens, asked to keep 3"):
        state.truncate(3)
    with pytest.raises(InternalError, match="must rise"):
        state.commit(np.array([2, 1], np.int32), 1)


def watch_drafter(drafter):
    drafts = []
    propose = drafter.propose

    def watched(requests, budgets):
        drafts.append(propose(requests, budgets))
        return drafts[-1]

    drafter.propose = watched
    return drafts


def test_b24_nothing_of_one_request_reaches_the_next():
    """B24: a tail that only request A ever had gives no draft in B; A again equals A."""
    drafter = CacheDrafter(32)
    drafts = watch_drafter(drafter)
    options = {"drafter": drafter, "draft_tokens": 6, **FOREVER}
    long_prompt = [11, 12, 13, 14, 15, 16, 11, 12, 13]
    first = specrs.generate(TattleLM(), long_prompt, max_new_tokens=30, **options)
    assert any(len(d.tokens) for d in drafts)
    drafts.clear()
    specrs.generate(TattleLM(), [11, 12, 13], max_new_tokens=2, **options)
    assert [len(d.tokens) for d in drafts] == [0]
    again = specrs.generate(TattleLM(), long_prompt, max_new_tokens=30, **options)
    assert again.ids == first.ids
    assert again.report.accepted == first.report.accepted
    assert drafter._cache.stats()["active_requests"] == 0


@pytest.mark.parametrize("name", ["cache", "model"])
def test_b24_abandoned_half_way(name):
    """B24: a request that is aborted leaves nothing behind; the next is what a fresh object makes of it."""
    drafter = CacheDrafter(32) if name == "cache" else ModelDrafter(TattleLM(salt=1), 32)
    options = {"drafter": drafter, "draft_tokens": 4, **FOREVER}
    running = specrs.stream(TattleLM(), PROMPT, max_new_tokens=30, **options)
    next(running)
    next(running)
    running.close()
    assert running.generations[0].finish_reason == "interrupted"
    assert running.generations[0].ids == plain(PROMPT, 30)[: len(running.generations[0].ids)]
    made = specrs.generate(TattleLM(), [5, 6], max_new_tokens=20, **options)
    assert made.ids == plain([5, 6], 20)
    held = drafter._unread if name == "cache" else drafter._states
    assert not held


def test_b24_a_dropped_stream_lets_go():
    drafter = ScriptDrafter(lambda request, budget: [])
    running = specrs.stream(TattleLM(), PROMPT, drafter=drafter, draft_tokens=4, max_new_tokens=30, **FOREVER)
    next(running)
    assert drafter.active
    del running
    gc.collect()
    assert not drafter.active


def test_b29_two_hundred_empty_drafts_then_five_tokens():
    """B29: an empty draft is a plain step; one token a round at least, always."""
    expected = plain(PROMPT, 220)
    calls = [0]

    def propose(request, budget):
        calls[0] += 1
        return [] if calls[0] <= 200 else expected[request.generated :][:5]

    target = TattleLM()
    made = specrs.generate(
        target, PROMPT, drafter=ScriptDrafter(propose), draft_tokens=5, max_new_tokens=220, **FOREVER
    )
    assert made.ids == expected
    assert [sum(nodes) for _, nodes in target.forwards][:200] == [0] * 200
    assert made.report.target_passes == 200 + 4
    assert made.report.accepted == 16


def test_b29_every_round_makes_progress():
    for draft_tokens in (0, 1, 7):
        running = specrs.stream(TattleLM(), [1, 2], drafter="cache", draft_tokens=draft_tokens, max_new_tokens=80)
        assert all(len(chunk.ids) >= 1 for chunk in running)


class Invariants(ScriptDrafter):
    """Random drafts; checks every counter of the engine at every step."""

    def __init__(self, rng):
        super().__init__(self.random_draft, name="random")
        self.rng = rng

    def random_draft(self, request, budget):
        assert request.state.length == len(request.tokens) - len(request.pending)
        assert len(request.pending) >= 1
        assert (
            request.state.tokens[: request.state.length].tolist()
            == request.tokens[:-1].tolist()[: request.state.length]
        )
        assert request.generated < request.stop.max_new_tokens
        if request.generated:
            assert request.state.length == len(request.tokens) - 1
        statistics = request.statistics
        assert statistics.accepted + statistics.rounds == request.generated
        assert statistics.accepted == sum(n * count for n, count in statistics.accepted_lengths.items())
        size = self.rng.randrange(min(budget, 6) + 1)
        tokens = [self.rng.randrange(32) if self.rng.random() < 0.3 else int(request.tokens[-1]) for _ in range(size)]
        return tokens, [self.rng.randrange(-1, i) for i in range(size)]


def run_invariants(steps, restart):
    rng = random.Random(5)
    drafter = Invariants(rng)
    done = 0
    while done < steps:
        count = rng.randrange(1, restart)
        prompts = [[rng.randrange(32) for _ in range(rng.randrange(1, 9))] for _ in range(3)]
        options = {"max_new_tokens": count, "temperature": rng.choice([0.0, 1.0]), "seed": [1, 2, 3], **FOREVER}
        made = specrs.generate(TattleLM(), prompts, drafter=drafter, draft_tokens=6, **options)
        assert [one.ids for one in made] == [
            specrs.generate(TattleLM(), prompt, drafter="none", **{**options, "seed": i + 1}).ids
            for i, prompt in enumerate(prompts)
        ]
        assert not drafter.active
        done += 3 * count


def test_b55_invariants_over_many_steps():
    """B55: drafter and target lengths follow the committed text, through restarts, greedy and sampled."""
    run_invariants(1000, 50)


@pytest.mark.slow
def test_b55_invariants_over_five_thousand_steps():
    run_invariants(5000, 500)


def test_b55_model_drafter_length_follows_the_text():
    """B55: after each commit the drafter's memory is a prefix of the committed text."""
    drafter = ModelDrafter(TattleLM(salt=2), 32, min_confidence=0.0)
    commit = drafter.commit

    def checked(request, kept):
        commit(request, kept)
        state = drafter._states[request.id]
        assert state.length < len(request.tokens)
        assert state.tokens[: state.length].tolist() == request.tokens[: state.length].tolist()

    drafter.commit = checked
    made = specrs.generate(
        TattleLM(),
        [PROMPT, [3]],
        drafter=drafter,
        draft_tokens=5,
        max_new_tokens=120,
        temperature=1.0,
        seed=4,
        **FOREVER,
    )
    assert sum(one.report.accepted for one in made) > 0


@pytest.mark.parametrize("kind", ["llama", "gemma3-mixed", "gpt2"], indirect=True)
@pytest.mark.parametrize("drafter", ["none", "cache"])
def test_session_continues_without_reading_again(kind, drafter):
    """Multi-turn: the same text as from scratch, the common prefix is reused, and a changed past is noticed."""
    target = tiny_target(kind)
    session = specrs.Session(target)
    options = {"drafter": drafter, "max_new_tokens": 10, **FOREVER}
    if drafter == "cache":
        options["draft_tokens"] = 5
    text = [(7 * i + 2) % VOCABULARY for i in range(12)]
    for turn in range(3):
        made = specrs.generate(target, text, session=session, **options)
        assert made.ids == hf_greedy(kind, text, 10)
        assert made.report.reused_tokens == (0 if turn == 0 else len(text) - 6)
        text = [*text, *made.ids, 1 + turn, 2, 3, 4, 5]
    edited = [*text[:6], 60, *text[7:]]
    made = specrs.generate(target, edited, session=session, **options)
    assert made.ids == hf_greedy(kind, edited, 10)
    assert made.report.reused_tokens == 6
    same = specrs.generate(target, edited, session=session, **options)
    assert same.ids == made.ids
    assert same.report.reused_tokens == len(edited) - 1
    shorter = specrs.generate(target, edited[:3], session=session, **options)
    assert shorter.ids == hf_greedy(kind, edited[:3], 10)
    assert shorter.report.reused_tokens == 2


def test_a_batch_of_conversations_has_a_session_each():
    """Two conversations of unequal length go on side by side, each from its own memory."""
    target = tiny_target("llama")
    sessions = [specrs.Session(target), specrs.Session(target)]
    texts = [[3, 9, 27, 29], [5, 6, 7, 5, 6, 7, 5, 6]]
    for turn in range(2):
        made = specrs.generate(target, texts, session=sessions, draft_tokens=4, max_new_tokens=8, **FOREVER)
        for text, one in zip(texts, made, strict=True):
            assert one.ids == hf_greedy("llama", text, 8)
            assert one.report.reused_tokens == (0 if turn == 0 else len(text) - 3)
        texts = [[*text, *one.ids, 1, 2] for text, one in zip(texts, made, strict=True)]


def test_a_session_keeps_what_the_draft_model_read():
    """Turn after turn the draft model reads what is new to it, an interrupted turn and a changed past included."""
    target, draft = tiny_target("llama"), tiny_target("gpt2")
    session = specrs.Session(target)
    read = []
    score, prefill = draft.score, draft.prefill
    draft.score = lambda states, pending, nodes: (read.extend(map(len, pending)), score(states, pending, nodes))[1]
    draft.prefill = lambda state, tokens: (read.append(len(tokens)), prefill(state, tokens))[1]
    options = {"drafter": "model", "draft_model": draft, "draft_tokens": 3, "session": session, **FOREVER}
    text = [(7 * i + 2) % VOCABULARY for i in range(90)]

    def turn(text, known):
        read.clear()
        made = specrs.generate(target, text, max_new_tokens=8, **options)
        assert made.ids == hf_greedy("llama", text, 8)
        assert len(text) - known <= sum(read) <= len(text) - known + 4 * made.report.target_passes
        return [*text, *made.ids, 1, 2, 3]

    longer = turn(text, 0)
    longest = turn(longer, len(text))
    running = specrs.stream(target, longest, max_new_tokens=20, **options)
    next(running)
    next(running)
    running.close()
    turn([*longest, *running.generations[0].ids], len(longer))
    turn([*text[:50], 60, *text[51:]], 50)
    session.forget_drafters()
    turn(text, 0)


def test_session_after_an_interrupted_turn():
    """B24: an aborted turn leaves a session that goes on correctly."""
    target = TattleLM()
    session = specrs.Session(target)
    expected = plain(PROMPT, 30)
    drafter = ScriptDrafter(oracle({tuple(PROMPT): expected}, "alternate", 32))
    running = specrs.stream(
        target, PROMPT, drafter=drafter, draft_tokens=4, max_new_tokens=30, session=session, **FOREVER
    )
    for _ in range(3):
        next(running)
    running.close()
    written = running.generations[0].ids
    follow = [*PROMPT, *written, 8]
    made = specrs.generate(target, follow, drafter="none", max_new_tokens=10, session=session, **FOREVER)
    assert made.ids == plain(follow, 10)
    assert made.report.reused_tokens == len(follow) - 2
