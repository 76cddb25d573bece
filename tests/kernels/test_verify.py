"""Verification kernels against NumPy with the same coins, and against the Rust rules."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from tests.kernels import oracle
from tests.kernels.test_rows import logits, sampling
from tests.verify import edge_cases

from specrs import _core
from specrs.ops.draft import DraftLaw, DraftTree, Verdict, verdict_to_fill
from specrs.ops.launch import launch
from specrs.ops.relaxed import RelaxedRule, verify_relaxed
from specrs.ops.verify import round_coins, verify_block, verify_chain, verify_siblings, verify_walk

LAWS = [(1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (0.8, 6, 1.0, 0.0), (1.2, 0, 0.9, 0.05)]


def trees(shapes, seed, vocabulary, guide=None):
    """Ragged drafts with the given parents; tokens follow `guide`'s argmax half of the time."""
    generator = np.random.default_rng(seed)
    row_ptr = np.cumsum([0] + [len(parents) + 1 for parents in shapes])
    tokens = []
    for b, parents in enumerate(shapes):
        for parent in parents:
            best = None if guide is None else int(guide[row_ptr[b] + parent + 1].float().argmax())
            tokens.append(
                best if best is not None and generator.random() < 0.5 else int(generator.integers(vocabulary))
            )
    parents = [parent for shape in shapes for parent in shape]
    return DraftTree(
        torch.tensor(row_ptr), torch.tensor(tokens, dtype=torch.int64), torch.tensor(parents, dtype=torch.int32), 8
    )


def coins(rows, seed):
    generator = np.random.default_rng(seed)
    return tuple(torch.tensor(generator.random(rows)) for _ in range(2))


def targets_of(rows, row_ptr, laws):
    owner = np.repeat(np.arange(len(row_ptr) - 1), np.diff(row_ptr))
    return [oracle.law(rows[r].double().numpy(), *laws[owner[r]]) for r in range(len(rows))]


def rust(rule, rows, tree, laws, accept, emit, draft=None):
    dtype = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[rows.dtype]
    array = rows.numpy() if dtype == "f32" else rows.view(torch.int16).numpy().view(np.uint16)
    temperature, top_k, top_p, min_p = (np.array(x) for x in zip(*laws, strict=True))
    path_ptr, path, bonus, status = _core.verify(
        array,
        dtype,
        tree.row_ptr.numpy(),
        tree.tokens.numpy().astype(np.uint32),
        tree.parents.numpy(),
        rule,
        temperature.astype(np.float32),
        top_k.astype(np.int32),
        top_p.astype(np.float32),
        min_p.astype(np.float32),
        accept.numpy(),
        emit.numpy(),
        draft,
    )
    paths = [path[path_ptr[b] : path_ptr[b + 1]].tolist() for b in range(len(bonus))]
    return paths, [-1 if token == 2**32 - 1 else int(token) for token in bonus], status.tolist()


def read(verdict):
    verdict = Verdict(*verdict)
    paths = [[node for node in row if node >= 0] for row in verdict.path.tolist()]
    assert [len(path) for path in paths] == verdict.accepted.tolist()
    return paths, verdict.bonus.tolist(), verdict.status.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_walk_equals_the_rust_rule(emulator, dtype):
    shapes = [[-1, -1, 0, 0, 1, 2], [], [-1, 0, 1, 2], [-1] * 5]
    rows = logits(sum(map(len, shapes)) + 4, 1003, dtype, seed=3, scale=6.0)
    rows[8] = float("nan")  # request 2's first row
    tree = trees(shapes, 1, 1003, rows)
    accept, emit = coins(len(rows), 5)
    got = read(verify_walk(rows, tree, sampling(LAWS), emit))
    assert got == rust("greedy_or_fixed", rows, tree, LAWS, accept, emit)
    assert got[2][2] == 2
    assert got[1][2] == -1
    assert sum(map(len, got[0])) > 0


def test_walk_takes_the_first_of_duplicate_children(emulator):
    rows = torch.zeros(4, 9)
    rows[:, 4] = 9.0
    tree = DraftTree(torch.tensor([0, 4]), torch.tensor([4, 4, 4]), torch.tensor([-1, -1, 1], dtype=torch.int32), 8)
    got = read(verify_walk(rows, tree, sampling([(0.0, 0, 1.0, 0.0)]), torch.zeros(4, dtype=torch.float64)))
    assert got == ([[0]], [4], [0])


@pytest.mark.parametrize("nodes", [31, 33, 64, 127])
def test_walk_at_sizes_around_a_warp(emulator, nodes):
    rows = torch.zeros(nodes + 1, 5)
    rows[:, 2] = 9.0
    tokens = torch.ones(nodes, dtype=torch.int64)
    tokens[-1] = 2  # the last child of the anchor is the right one
    tree = DraftTree(torch.tensor([0, nodes + 1]), tokens, torch.full((nodes,), -1, dtype=torch.int32), 4)
    got = read(verify_walk(rows, tree, sampling([(0.0, 0, 1.0, 0.0)]), torch.zeros(nodes + 1, dtype=torch.float64)))
    assert got == ([[nodes - 1]], [2], [0])


def padded_requests():
    """Two live requests between rowless ones, as a captured graph pads them."""
    return torch.tensor([0, 0, 2, 2, 3, 3]), torch.full((1,), 1, dtype=torch.int64)


def test_padding_requests_are_inert(emulator):
    # Request 0 has one node, request 1 none, the others no rows; the arrays have room for all four.
    tree = DraftTree(torch.tensor([0, 2, 3, 3, 3]), torch.tensor([1]), torch.tensor([-1], dtype=torch.int32), 4)
    verdict = verdict_to_fill(None, torch.zeros(5, 6), tree)
    drawn = torch.tensor([1, 1, 1, 7, 7])
    launch("walk_tree", 1, [drawn, tree.row_ptr, tree.tokens, tree.parents, 4, tree.rows, 4, *verdict])
    assert read(verdict) == ([[0], [], [], []], [1, 1, -1, -1], [0, 0, 0, 0])


def chain_case(seed, dtype, vocabulary, counts=(4, 0, 3, 5)):
    shapes = [list(range(-1, n - 1)) for n in counts]
    rows = logits(sum(counts) + len(counts), vocabulary, dtype, seed=seed, scale=2.0)
    tree = trees(shapes, seed, vocabulary, rows)
    generator = np.random.default_rng(seed)
    draft = generator.dirichlet(np.full(vocabulary, 0.3), size=sum(counts)).astype(np.float32)
    draft = 0.5 * draft
    draft[np.arange(len(draft)), tree.tokens.numpy()] += 0.5
    return rows, tree, draft, *coins(len(rows), seed + 1)


@pytest.mark.parametrize("seed", range(4))
def test_chain_equals_numpy_and_rust(emulator, seed):
    dtype = [torch.float32, torch.bfloat16, torch.float16, torch.float32][seed]
    vocabulary = [40, 1003, 64, 8200][seed]
    rows, tree, draft, accept, emit = chain_case(seed, dtype, vocabulary)
    if seed == 1:
        rows[1] = float("nan")
        draft[5, 3] = float("nan")
    got = read(verify_chain(rows, tree, sampling(LAWS), DraftLaw(torch.tensor(draft)), accept, emit))
    assert got == rust("chain", rows, tree, LAWS, accept, emit, draft)


KERNELS = {
    "chain": verify_chain,
    "block": verify_block,
    "specinfer": partial(verify_siblings, with_replacement=True),
    "without_replacement": verify_siblings,
}


def kernel_outcome(case):
    """Path, bonus and status of a named case under the kernels."""
    if "logits" in case:
        rows = torch.tensor(edge_cases.matrix(case["logits"]), dtype=torch.float32)
    else:
        rows = torch.tensor(case["target_probs"], dtype=torch.float64).log().float()
    nodes = len(case["tokens"])
    tokens = torch.tensor(case["tokens"], dtype=torch.int64)
    tree = DraftTree(torch.tensor([0, nodes + 1]), tokens, torch.tensor(case["parents"], dtype=torch.int32), nodes)
    knobs = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | case.get("sampling", {})
    accept, emit = (torch.tensor(case[name], dtype=torch.float64) for name in ("accept", "emit"))
    laws = sampling([tuple(knobs.values())])
    if case["rule"] == "greedy_or_fixed":
        verdict = verify_walk(rows, tree, laws, emit)
    else:
        probs = edge_cases.matrix(case.get("draft_probs", []))
        law = DraftLaw(torch.tensor(probs, dtype=torch.float32).reshape(nodes, -1 if nodes else 1))
        verdict = KERNELS[case["rule"]](rows, tree, laws, DraftLaw() if case.get("one_hot") else law, accept, emit)
    (path,), (bonus,), (status,) = read(verdict)
    return path, bonus, status


def test_named_cases(emulator):
    """The table that the Rust rules, the NumPy reference and the mutants are held against."""
    for case in edge_cases.ALL:
        token = -1 if case["token"] == edge_cases.NO_TOKEN else case["token"]
        assert kernel_outcome(case) == (case["path"], token, case.get("status", 0)), (case["name"], case["why"])


def test_chain_statuses(emulator):
    vocabulary = 6
    rows = torch.log(torch.tensor([[0.5, 0.25, 0.25, 0, 0, 0]] * 12))
    tokens = torch.tensor([0, 9, 1, 2, -3, 0])
    row_ptr = torch.arange(0, 13, 2)
    tree = DraftTree(row_ptr, tokens, torch.full((6,), -1, dtype=torch.int32), 2)
    draft = torch.tensor([[0.5, 0.25, 0.25, 0, 0, 0]] * 6)
    draft[2, 1] = 0.0  # the draft gives its own token nothing
    draft[5] = torch.tensor([0.9, float("nan"), 0.1, 0, 0, 0])
    accept = torch.full((12,), 1 - 2**-53, dtype=torch.float64)
    emit = torch.full((12,), 0.6, dtype=torch.float64)
    verdict = verify_chain(rows, tree, sampling([(1.0, 0, 1.0, 0.0)] * 6), DraftLaw(draft), accept, emit)
    paths, bonus, status = read(verdict)
    # Equal laws accept at every coin; ids out of range, laws that are none, in this order.
    assert (paths, status) == ([[0], [], [], [0], [], []], [0, 4, 3, 0, 4, 3])
    assert bonus == [1, 1, 1, 1, 1, 1]
    assert vocabulary == rows.shape[1]


def test_zero_probability_is_rejected_at_coin_zero(emulator):
    rows = torch.log(torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0]]))
    tree = DraftTree(torch.tensor([0, 2]), torch.tensor([3]), torch.tensor([-1], dtype=torch.int32), 2)
    zero = torch.zeros(2, dtype=torch.float64)
    draft = torch.tensor([[0.25, 0.25, 0.25, 0.25]])
    for law in (DraftLaw(draft), DraftLaw()):
        assert read(verify_chain(rows, tree, sampling([(1.0, 0, 1.0, 0.0)]), law, zero, zero)) == ([[]], [0], [0])


def test_the_boundary_itself_is_rejected(emulator):
    """U * q = p exactly, with p > 0: acceptance asks for less."""
    rows = torch.zeros(2, 4)
    tree = DraftTree(torch.tensor([0, 2]), torch.tensor([3]), torch.tensor([-1], dtype=torch.int32), 2)
    draft = DraftLaw(torch.tensor([[0.0, 0.0, 0.5, 0.5]]))
    accept, emit = torch.full((2,), 0.5, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert read(verify_chain(rows, tree, sampling([(1.0, 0, 1.0, 0.0)]), draft, accept, emit)) == ([[]], [0], [0])


def test_empty_residual_draws_from_the_target(emulator):
    law = torch.tensor([0.5, 0.5, 0, 0])
    rows = torch.log(torch.stack([law, law]))
    tree = DraftTree(torch.tensor([0, 2]), torch.tensor([2]), torch.tensor([-1], dtype=torch.int32), 2)
    # A draft law above the target's everywhere is none, but it must not hang or leave the vocabulary.
    draft = DraftLaw(torch.tensor([[0.5, 0.5, 0.0005, 0]]))
    coin = torch.full((2,), 0.75, dtype=torch.float64)
    assert read(verify_chain(rows, tree, sampling([(1.0, 0, 1.0, 0.0)]), draft, coin, coin)) == ([[]], [1], [1])


@pytest.mark.parametrize(
    ("kind", "weight"),
    [("dense", None), ("sparse", None), ("one_hot", None), ("dense", 0.6), ("sparse", 0.6)],
)
def test_chain_laws_of_the_draft(emulator, kind, weight):
    vocabulary, width = 50, 7
    rows, tree, _, accept, emit = chain_case(9, torch.float32, vocabulary)
    nodes = len(tree.tokens)
    generator = np.random.default_rng(2)
    ids = np.stack([generator.permutation(vocabulary)[:width] for _ in range(nodes)])
    for n, token in enumerate(tree.tokens.tolist()):
        if token not in ids[n]:
            ids[n, 0] = token
    ids[:, -1] = -1
    probs = generator.dirichlet(np.ones(width), size=nodes).astype(np.float32)
    dense = np.zeros((nodes, vocabulary), dtype=np.float32)
    for n in range(nodes):
        dense[n, ids[n, :-1]] = probs[n, :-1]
    if kind == "one_hot":
        dense[:] = 0
        dense[np.arange(nodes), tree.tokens.numpy()] = 1
    law = {
        "dense": DraftLaw(torch.tensor(dense)),
        "sparse": DraftLaw(torch.tensor(probs), torch.tensor(ids)),
        "one_hot": DraftLaw(),
    }[kind]
    laws = [(1.0, 0, 1.0, 0.0)] * 4
    if weight is None:
        got = read(verify_chain(rows, tree, sampling(laws), law, accept, emit))
    else:
        rule = RelaxedRule("ensemble", (), torch.full((nodes,), weight))
        got = read(verify_relaxed(rows, tree, sampling(laws), law, accept, emit, rule)[:4])
    row_ptr, targets = tree.row_ptr.tolist(), targets_of(rows, tree.row_ptr.numpy(), laws)
    for b in range(4):
        r, n, end = row_ptr[b], row_ptr[b] - b, row_ptr[b + 1]
        expected = oracle.chain(
            targets[r:end],
            tree.tokens[n : end - b - 1].tolist(),
            dense[n : end - b - 1].astype(np.float64),
            accept[r:end].tolist(),
            emit[r:end].tolist(),
            None if weight is None else [weight] * (end - r),
        )
        assert (len(got[0][b]), got[1][b], got[2][b]) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_typical_and_top_k_acceptance(emulator, dtype):
    vocabulary, epsilon, delta, count = 60, 0.3, 0.09, 3
    rows, tree, _, accept, emit = chain_case(4, dtype, vocabulary)
    laws = [(1.0, 0, 1.0, 0.0)] * 4
    targets = targets_of(rows, tree.row_ptr.numpy(), laws)
    row_ptr = tree.row_ptr.tolist()
    for rule in (RelaxedRule("typical", (epsilon, delta)), RelaxedRule("top_k", (float(count),))):
        got = read(verify_relaxed(rows, tree, sampling(laws), DraftLaw(), accept, emit, rule)[:4])
        for b in range(4):
            length, r = 0, row_ptr[b]
            for token in tree.tokens[r - b : row_ptr[b + 1] - b - 1].tolist():
                p = targets[r + length]
                entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
                typical = p[token] > min(epsilon, delta * np.exp(-entropy))
                best = (p > p[token]).sum() < count
                if not (typical if rule.kind == "typical" else best):
                    break
                length += 1
            expected = (length, oracle.draw(targets[r + length], float(emit[r + length])), 0)
            assert (len(got[0][b]), got[1][b], got[2][b]) == expected


@pytest.mark.parametrize(
    ("seed", "dtype"),
    [(0, torch.float32), (1, torch.float32), (2, torch.float32), (1, torch.bfloat16), (0, torch.float16)],
)
def test_block_verification(emulator, seed, dtype):
    vocabulary = [30, 500, 8200][seed]
    rows, tree, draft, accept, emit = chain_case(20 + seed, dtype, vocabulary)
    laws = [(1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.0, 8, 1.0, 0.0), (1.0, 0, 1.0, 0.0)]
    got = read(verify_block(rows, tree, sampling(laws), DraftLaw(torch.tensor(draft)), accept, emit))
    targets, row_ptr = targets_of(rows, tree.row_ptr.numpy(), laws), tree.row_ptr.tolist()
    for b in range(4):
        r, n, end = row_ptr[b], row_ptr[b] - b, row_ptr[b + 1]
        expected = oracle.block(
            targets[r:end],
            tree.tokens[n : end - b - 1].tolist(),
            draft[n : end - b - 1].astype(np.float64),
            accept[r:end].tolist(),
            emit[r:end].tolist(),
        )
        assert (len(got[0][b]), got[1][b], got[2][b]) == expected


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize(
    ("seed", "dtype"), [(0, torch.float32), (1, torch.float32), (0, torch.bfloat16), (1, torch.float16)]
)
def test_siblings(emulator, seed, dtype, with_replacement):
    vocabulary = [12, 300][seed]
    shapes = [[-1, -1, -1, 0, 0, 2], [-1, -1], [], [-1, 0, 0, 0, 1]]
    rows = logits(sum(map(len, shapes)) + 4, vocabulary, dtype, seed=seed, scale=1.0)
    generator = np.random.default_rng(seed)
    laws = [(1.0, 0, 1.0, 0.0)] * 4
    tokens, draft = [], []
    for parents in shapes:
        by_parent = {}
        for parent in parents:
            q, left = by_parent.setdefault(parent, [generator.dirichlet(np.ones(vocabulary)).astype(np.float32)] * 2)
            token = int(generator.choice(vocabulary, p=left.astype(np.float64) / left.astype(np.float64).sum()))
            if not with_replacement:
                left = left.copy()
                left[token] = 0
                by_parent[parent][1] = left
            tokens.append(token)
            draft.append(q)
    parents = torch.tensor([p for shape in shapes for p in shape], dtype=torch.int32)
    row_ptr = torch.tensor(np.cumsum([0] + [len(shape) + 1 for shape in shapes]))
    tree, draft = DraftTree(row_ptr, torch.tensor(tokens), parents, 8), np.array(draft)
    accept, emit = coins(len(rows), seed)
    law = DraftLaw(torch.tensor(draft))
    verdict = verify_siblings(rows, tree, sampling(laws), law, accept, emit, with_replacement=with_replacement)
    got, targets, first = read(verdict), targets_of(rows, row_ptr.numpy(), laws), row_ptr.tolist()
    for b, shape in enumerate(shapes):
        r, n, end = first[b], first[b] - b, first[b + 1]
        expected = oracle.siblings(
            targets[r:end],
            tokens[n : n + len(shape)],
            shape,
            draft[n : n + len(shape)].astype(np.float64),
            accept[r:end].tolist(),
            emit[r:end].tolist(),
            with_replacement=with_replacement,
        )
        assert (got[0][b], got[1][b], got[2][b]) == expected


def test_second_sibling_is_tested_against_what_is_left(emulator):
    """p2 = (0, 1, 5.5, 5.5) / 12, q2 = (0, 1, 1, 1) / 3: at coin 1/2 the second falls; under q it would stand."""
    rows = torch.log(torch.tensor([[0.1, 0.15, 0.375, 0.375]] * 3))
    tree = DraftTree(torch.tensor([0, 3]), torch.tensor([0, 1]), torch.tensor([-1, -1], dtype=torch.int32), 2)
    law, half = DraftLaw(torch.tensor([[0.7, 0.1, 0.1, 0.1]] * 2)), torch.full((3,), 0.5, dtype=torch.float64)
    for emit, token in ((0.25, 2), (0.75, 3)):
        coin = torch.full((3,), emit, dtype=torch.float64)
        got = read(verify_siblings(rows, tree, sampling([(1.0, 0, 1.0, 0.0)]), law, half, coin))
        assert got == ([[]], [token], [0])


def test_block_goes_on_after_a_failed_prefix(emulator):
    """C = (1, 1/2, 1) and h_1 = 2/7: the first token alone falls at coin 0.99, both together stand."""
    rows = torch.log(torch.tensor([[0.25, 0.75], [0.8, 0.2], [0.5, 0.5]]))
    tree = DraftTree(torch.tensor([0, 3]), torch.tensor([0, 0]), torch.tensor([-1, 0], dtype=torch.int32), 2)
    law = DraftLaw(torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
    coin = torch.tensor([0.99, 0.99, 0.99], dtype=torch.float64)
    got = read(verify_block(rows, tree, sampling([(1.0, 0, 1.0, 0.0)]), law, coin, coin))
    assert got == ([[0, 1]], [1], [0])


def test_duplicate_siblings_end_the_draft(emulator):
    """A token that comes twice without replacement cannot have been drawn: the stage's law is drawn from, status 3."""
    rows = torch.log(torch.tensor([[0.1, 0.3, 0.3, 0.3]] * 3))
    tree = DraftTree(torch.tensor([0, 3]), torch.tensor([0, 0]), torch.tensor([-1, -1], dtype=torch.int32), 2)
    law, high = DraftLaw(torch.tensor([[0.7, 0.1, 0.1, 0.1]] * 2)), torch.full((3,), 0.99, dtype=torch.float64)
    got = read(verify_siblings(rows, tree, sampling([(1.0, 0, 1.0, 0.0)]), law, high, high))
    assert got == ([[]], [3], [3])
    both = verify_siblings(rows, tree, sampling([(1.0, 0, 1.0, 0.0)]), law, high, high, with_replacement=True)
    assert read(both) == ([[]], [3], [0])


@pytest.mark.parametrize("by_sibling", [False, True])
def test_round_coins_are_those_of_rust(emulator, by_sibling):
    tree = DraftTree(
        torch.tensor([0, 5, 6, 8]),
        torch.zeros(5, dtype=torch.int64),
        torch.tensor([-1, -1, 0, 2, -1], dtype=torch.int32),
        4,
    )
    seeds, samples, positions = torch.tensor([7, -1, 2**40]), torch.tensor([0, 3, 1]), torch.tensor([10, 0, 99])
    accept, emit = round_coins(seeds, samples, positions, tree.row_ptr, tree.parents, by_sibling)
    expected = _core.round_coins(
        seeds.numpy().view(np.uint64),
        samples.numpy().astype(np.uint32),
        positions.numpy().astype(np.uint32),
        tree.row_ptr.numpy(),
        np.array([1, 1, 2, 3, 1], dtype=np.int32),
        tree.parents.numpy() if by_sibling else None,
    )
    assert np.array_equal(accept.numpy(), expected[0])
    assert np.array_equal(emit.numpy(), expected[1])


def test_chain_is_lossless_by_counting(stand_in):
    """Coins on the midpoints of a lattice that contains every threshold: counting outcomes gives the law exactly."""
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 3)
    target, draft = np.array([4, 1, 3, 0]) / 8, np.array([2, 4, 1, 1]) / 8
    counts, steps = np.zeros(4), 8
    lattice = (np.arange(steps) + 0.5) / steps
    fine = (np.arange(8) + 0.5) / 8  # the residual is (2, 0, 2, 0) / 4 and the law counts in eighths
    cases = list(itertools.product(range(4), lattice, fine))
    rows = torch.log(torch.tensor(np.tile(target, (2 * len(cases), 1)), dtype=torch.float32))
    tree = DraftTree(
        torch.arange(0, 2 * len(cases) + 1, 2),
        torch.tensor([case[0] for case in cases]),
        torch.full((len(cases),), -1, dtype=torch.int32),
        1,
    )
    accept = torch.tensor(np.repeat([case[1] for case in cases], 2))
    emit = torch.tensor(np.repeat([case[2] for case in cases], 2))
    law = DraftLaw(torch.tensor(np.tile(draft, (len(cases), 1)), dtype=torch.float32))
    laws = sampling([(1.0, 0, 1.0, 0.0)] * len(cases))
    verdict = verify_chain(rows, tree, laws, law, accept, emit)
    for (token, _, _), accepted, bonus in zip(cases, verdict.accepted.tolist(), verdict.bonus.tolist(), strict=True):
        counts[token if accepted else bonus] += draft[token] / (steps * len(fine))
    # Accept thresholds p/q are 2, 1/4, 3 and 0: on the lattice of eighths.
    assert np.allclose(counts, target, atol=1e-12)
