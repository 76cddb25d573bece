"""Properties for any input: purity, independence of neighbours, plain decoding's text, chi-square of random coins."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import specrs
from specrs import _core
from specrs.verification import (
    BlockVerification,
    ChainRejection,
    DenseLaw,
    FixedCandidates,
    IndependentSiblings,
    OptimalTransport,
    SiblingsWithoutReplacement,
    StaticEnsemble,
)

CHAINS = [ChainRejection(), BlockVerification(), StaticEnsemble(0.4)]
TREES = [FixedCandidates(), IndependentSiblings(), SiblingsWithoutReplacement(), OptimalTransport()]


@st.composite
def batches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    vocabulary = draw(st.sampled_from([1, 2, 5, 130, 300]))
    requests = draw(st.integers(0, 5))
    verifier = draw(st.sampled_from(CHAINS + TREES))
    sizes = rng.integers(0, 6, requests)
    parents = [
        np.arange(-1, n - 1) if verifier in CHAINS else np.array([rng.integers(-1, node + 1) - 1 for node in range(n)])
        for n in sizes
    ]
    parents = [np.maximum(p, -1) for p in parents]
    nodes, rows = int(sizes.sum()), int(sizes.sum()) + requests
    logits = (rng.standard_normal((rows, vocabulary)) * 3).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    if draw(st.booleans()) and rows:
        logits[rng.integers(rows)] = rng.choice([np.nan, -np.inf, np.inf])
    draft = rng.dirichlet(np.ones(vocabulary), nodes).astype(np.float32).reshape(nodes, vocabulary)
    coins = rng.choice([0.0, 1 - 2.0**-53, 0.5], (2, rows)) if draw(st.booleans()) else rng.random((2, rows))
    return {
        "logits": logits,
        "tokens": rng.integers(0, vocabulary, nodes),
        "parents": np.concatenate([*parents, np.zeros(0)]).astype(np.int32),
        "row_ptr": np.concatenate([[0], np.cumsum(sizes + 1)]).astype(np.int64),
        "verifier": verifier,
        "draft_law": DenseLaw(draft),
        "temperature": rng.choice([0.0, 0.7, 1.5], requests),
        "top_k": rng.choice([0, 1, 3], requests),
        "top_p": rng.choice([1.0, 0.9, 0.3], requests),
        "min_p": rng.choice([0.0, 0.1], requests),
        "accept_coins": coins[0],
        "emit_coins": coins[1],
    }


def part(batch, order):
    """The batch of the requests in ``order``."""
    rows = [np.arange(batch["row_ptr"][b], batch["row_ptr"][b + 1]) for b in order]
    nodes = [np.arange(batch["row_ptr"][b] - b, batch["row_ptr"][b + 1] - b - 1) for b in order]
    rows = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)
    sizes = np.array([len(n) + 1 for n in nodes], np.int64)
    nodes = np.concatenate([*nodes, np.zeros(0, np.int64)]).astype(np.int64)
    chosen = dict(batch)
    chosen |= {"logits": batch["logits"][rows], "tokens": batch["tokens"][nodes], "parents": batch["parents"][nodes]}
    chosen |= {key: batch[key][rows] for key in ("accept_coins", "emit_coins")}
    chosen |= {key: batch[key][order] for key in ("temperature", "top_k", "top_p", "min_p")}
    chosen["row_ptr"] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    chosen["draft_law"] = DenseLaw(np.ascontiguousarray(batch["draft_law"].probs[nodes]))
    return chosen


def arrays(batch):
    found = [value for value in batch.values() if isinstance(value, np.ndarray)]
    return [array.tobytes() for array in [*found, batch["draft_law"].probs]]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(batches())
def test_verdict_is_pure_and_rows_are_independent(batch):
    before = arrays(batch)
    verdict = specrs.verify(**batch)
    assert arrays(batch) == before
    again = specrs.verify(**batch)
    requests = len(batch["row_ptr"]) - 1
    order = np.arange(requests)[::-1].copy()
    turned = specrs.verify(**part(batch, order))
    for b in range(requests):
        path = verdict.path_of(b)
        parents = part(batch, np.array([b]))["parents"]
        assert path.tolist() == again.path_of(b).tolist() == turned.path_of(requests - 1 - b).tolist()
        assert verdict.bonus[b] == again.bonus[b] == turned.bonus[requests - 1 - b]
        assert verdict.status[b] == turned.status[requests - 1 - b]
        assert [-1, *path.tolist()][:-1] == parents[path].tolist() if len(path) else True
        assert verdict.status[b] == 2 or verdict.bonus[b] < batch["logits"].shape[1]
        assert (verdict.status[b] == 2) == (verdict.bonus[b] == 0xFFFFFFFF)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([0.0, 0.8, 1.3]))
def test_fixed_drafts_write_what_plain_decoding_writes(seed, nodes, temperature):
    """The same coins at the same positions give the same text, whatever the draft."""
    rng = np.random.default_rng(seed)
    vocabulary = 40
    table = (rng.standard_normal((vocabulary, vocabulary)) * 2).astype(np.float32)
    sampling = {"temperature": temperature, "top_p": 0.9}

    def coins(position, depths):
        return _core.round_coins(
            np.array([seed], np.uint64), np.zeros(1, np.uint32), np.array([position], np.uint32),
            np.array([0, len(depths) + 1]), np.array(depths, np.int32),
        )  # fmt: skip

    def step(text, tokens, parents):
        depths = []
        for parent in parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        accept, emit = coins(len(text), depths)
        logits = table[[text[-1], *tokens]]
        verdict = specrs.verify(
            logits, tokens, np.array(parents, np.int32), accept_coins=accept, emit_coins=emit, **sampling
        )
        return [*text, *[tokens[node] for node in verdict.path], int(verdict.bonus[0])]

    plain = [3]
    while len(plain) < 20:
        plain = step(plain, [], [])
    drafted = [3]
    while len(drafted) < 20:
        # Half of the drafts follow the plain text, so that some are accepted.
        tokens = [
            plain[min(len(drafted) + n, 19)] if rng.random() < 0.5 else int(rng.integers(vocabulary))
            for n in range(nodes)
        ]
        parents = [int(rng.integers(-1, node)) if node else -1 for node in range(nodes)]
        drafted = step(drafted, tokens, parents)
    assert drafted[:20] == plain[:20]


def test_sibling_coins_differ_and_the_first_is_the_parents():
    keys = (np.array([7], np.uint64), np.zeros(1, np.uint32), np.array([10], np.uint32), np.array([0, 5]))
    depths, parents = np.array([1, 1, 1, 2], np.int32), np.array([-1, -1, -1, 1], np.int32)
    plain, emit = _core.round_coins(*keys, depths)
    own, same = _core.round_coins(*keys, depths, parents)
    assert emit.tolist() == same.tolist()
    assert own[1] == plain[0] == _core.coins(7, np.array([10], np.uint32), "accept")[0]
    assert own[4] == plain[1] == plain[2]
    assert len(set(own[1:].tolist())) == 4


def chi_square(observed, expected):
    small = expected < 5
    observed = np.append(observed[~small], observed[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    assert observed[~keep].sum() == 0
    return ((observed - expected)[keep] ** 2 / expected[keep]).sum(), keep.sum() - 1


@pytest.mark.parametrize("verifier", [FixedCandidates(), ChainRejection(), BlockVerification()], ids=lambda v: v.rule)
def test_random_path_has_the_targets_law(verifier):
    """Both emitted positions jointly, drafts and verification on their own Philox streams."""
    vocabulary, n = 5, 200_000
    rng = np.random.default_rng(12)
    logits = rng.standard_normal((1 + vocabulary, vocabulary)).astype(np.float32)
    draft_logits = rng.standard_normal((1 + vocabulary, vocabulary)).astype(np.float32)

    def ones(value, dtype, count=n):
        return np.full(count, value, dtype)

    def drawn(rows, position):
        return _core.draw(
            draft_logits[rows], "f32", ones(1, np.float32), ones(0, np.int32), ones(1, np.float32),
            ones(0, np.float32), _core.coins(99, np.arange(n, dtype=np.uint32), "draft", index=position), True,
        )  # fmt: skip

    first, first_law = drawn(np.zeros(n, np.int64), 0)
    accept, emit = (_core.coins(99, np.arange(3 * n, dtype=np.uint32), purpose) for purpose in ("accept", "emit"))
    rows = np.column_stack([np.zeros(n, np.int64), first + 1]).ravel()
    verdict = specrs.verify(
        logits[rows], first, ones(-1, np.int32), np.arange(n + 1) * 2, verifier=verifier,
        draft_law=DenseLaw(first_law), temperature=1.0, accept_coins=accept[: 2 * n], emit_coins=emit[: 2 * n],
    )  # fmt: skip
    stands = verdict.accepted == 1
    x1 = np.where(stands, first, verdict.bonus)
    rest = specrs.verify(
        logits[x1 + 1], [], [], np.arange(n + 1), temperature=1.0, accept_coins=ones(0.0, float),
        emit_coins=emit[2 * n :],
    ).bonus  # fmt: skip
    x2 = np.where(stands, verdict.bonus, rest)
    probs = np.exp(logits.astype(np.float64))
    probs /= probs.sum(-1, keepdims=True)
    joint = probs[0][:, None] * probs[1:]
    statistic, freedom = chi_square(np.bincount(x1 * vocabulary + x2, minlength=25), joint.ravel() * n)
    assert freedom == 24
    assert statistic < 58.6  # level 1e-4
    assert 0.1 < stands.mean() < 0.95
