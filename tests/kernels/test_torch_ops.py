"""``torch.ops.specrs.*``: schemas, the compiler's view, and the CPU implementations against the kernels."""

import pytest
import torch
from tests.kernels.test_attention import case, verdict_of, visibility
from tests.kernels.test_rows import logits, sampling
from tests.kernels.test_verify import LAWS, chain_case

from specrs.errors import InvalidInputError
from specrs.ops import attention, outcome, rows, torch_ops, verify

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def arguments():
    """Arguments of each op, and what calls its kernel with them."""
    scores, tree, draft, accept, emit = chain_case(3, torch.float32, 60)
    parameters, law = sampling(LAWS), verify.DraftLaw(torch.tensor(draft))
    walk = [scores, *tree, *parameters, emit]
    chain = [scores, *tree, *parameters, law.probs, None, None, accept, emit]
    query, keys, values, prefix, row_ptr = case(torch.float32, 64, 4, 2, [5, 2], [[-1, 0], [-1]], 12)
    keys, values = keys.nan_to_num(), values.nan_to_num()
    bits, _ = visibility([[-1, 0], [-1]], 1)
    counts, offsets = torch.tensor([2, 0, 3], dtype=torch.int32), torch.tensor([0, 2, 2])
    three = logits(3, 50, torch.bfloat16)
    keyed = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[4, 5, 6], [1, 2, 4]])
    cost = torch.tensor([1.0, 1.1, 1.2, 2.0])
    drafts = torch.tensor([[[1, 9], [1, 1]], [[9, 1], [0, 1]]])
    depths = torch.tensor([1, 1], dtype=torch.int32)
    seeds, zeros = torch.tensor([7, 8, 9, 10]), torch.zeros(4, dtype=torch.int64)
    verdict = verdict_of([[1], []], 2)
    tensors = [torch.randn(2, 2, 12, 8) for _ in range(2)]
    coins = [seeds, zeros, zeros + 5, tree.row_ptr, tree.parents]
    return {
        "verify_walk": (walk, lambda: verify.verify_walk(scores, tree, parameters, emit)),
        "verify_chain": (chain, lambda: verify.verify_chain(scores, tree, parameters, law, accept, emit)),
        "verify_block": (chain, lambda: verify.verify_block(scores, tree, parameters, law, accept, emit)),
        "verify_siblings": (
            [*chain, True],
            lambda: verify.verify_siblings(scores, tree, parameters, law, accept, emit, with_replacement=True),
        ),
        "row_statistics": ([three, None, None, 3], lambda: rows.row_statistics(three, exclude=3)),
        "top_k_rows": ([three, 7, 3], lambda: outcome.top_k_rows(three, 7, 3)[:2]),
        "fork_tokens": (
            [three, offsets, counts, offsets, 5],
            lambda: outcome.fork_tokens(three, offsets, counts, offsets, 5)[:2],
        ),
        "lookup_cache": (list(keyed), lambda: outcome.lookup_cache(*keyed)),
        "select_lengths": (
            [law.probs[:, 0].contiguous() + 0.5, tree.row_ptr, cost, 1.02],
            lambda: outcome.select_lengths(law.probs[:, 0].contiguous() + 0.5, tree.row_ptr, cost),
        ),
        "accept_unmasked": (
            [drafts, drafts, depths, 9, "policy"],
            lambda: outcome.accept_unmasked(drafts, drafts, depths, 9),
        ),
        "round_coins": (coins, lambda: verify.round_coins(*coins[:3], tree)),
        "tree_attention": (
            [query, keys, values, prefix, row_ptr, bits],
            lambda: attention.tree_attention(query, keys, values, prefix, row_ptr, bits),
        ),
        "commit_cache": (
            [tensors, attention.cache_addresses(tensors), torch.tensor([3, 1]), *verdict[:3]],
            None,
        ),
    }


NAMES = [name for name in torch_ops.OPS if not name.endswith("_out")]


def test_every_op_has_a_case():
    assert set(arguments()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_cpu_equals_the_kernel(stand_in, name):
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 5)
    given, kernel = arguments()[name]
    if kernel is None:
        copies = [given[0], *given[1:]]
        on_host = [[tensor.clone() for tensor in given[0]], given[1], given[2].clone(), *given[3:]]
        getattr(torch.ops.specrs, name)(*on_host)
        torch_ops.OPS[name][0](*copies)
        assert all(torch.equal(a, b) for a, b in zip(on_host[0], copies[0], strict=True))
        assert on_host[2].tolist() == copies[2].tolist() == [5, 2]
        return
    host, device = getattr(torch.ops.specrs, name)(*given), kernel()
    pairs = zip(host, device, strict=True) if isinstance(device, tuple) else [(host, device)]
    for of_host, of_device in pairs:
        assert of_host.dtype == of_device.dtype
        torch.testing.assert_close(of_host, of_device, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    given, _ = arguments()[name]
    torch.library.opcheck(getattr(torch.ops.specrs, name).default, tuple(given))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("verify_")])
def test_out_forms_fill_the_callers_tensors(stand_in, name):
    stand_in.open()
    given, _ = arguments()[name]
    inputs, options = (given, []) if name == "verify_walk" else (given[:14], given[14:])
    expected = getattr(torch.ops.specrs, name)(*given)
    for run in (getattr(torch.ops.specrs, f"{name}_out"), torch_ops.OPS[f"{name}_out"][0]):
        out = [torch.full_like(tensor, -7) for tensor in expected]
        assert run(*inputs, *out, *options) is None
        assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))
    torch.library.opcheck(getattr(torch.ops.specrs, f"{name}_out").default, (*inputs, *out, *options))


def test_compiles_as_one_graph():
    given, _ = arguments()["verify_chain"]
    best, _ = arguments()["top_k_rows"]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(chain, top):
        path, accepted, bonus, status = torch.ops.specrs.verify_chain(*chain)
        ids, probs = torch.ops.specrs.top_k_rows(*top)
        return path + 1, accepted, bonus, status, ids, probs * 2

    got = step(given, best)
    expected = torch.ops.specrs.verify_chain(*given)
    assert torch.equal(got[0], expected[0] + 1)
    assert torch.equal(got[2], expected[2])
    assert torch.equal(got[4], torch.ops.specrs.top_k_rows(*best)[0])


RULES = [
    ("ratio", None, 1.0),
    ("ratio", None, 0.6),
    ("ratio", 0.7, 1.0),
    ("typical", None, 1.0),
    ("top_k", None, 1.0),
]


@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot", "shared rows"])
@pytest.mark.parametrize("kind", ["chain", "block", "siblings", "relaxed"])
def test_every_rule_and_draft_law_equals_rust(emulator, kind, form):
    """All rules on all forms of the draft law: the same path, bonus and status as the Rust rule on the same coins."""
    vocabulary = 60
    scores, tree, dense, accept, emit = chain_case(31, torch.float32, vocabulary, counts=(5, 1, 0, 6, 4, 3))
    laws = sampling(
        [(1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (0.8, 0, 1.0, 0.0), (1.1, 20, 0.95, 0.01)] + [(1.0, 0, 1.0, 0.0)] * 2
    )
    if kind == "relaxed":  # a greedy ensemble is a rule of its own in Rust
        laws.temperature[1] = 0.5
    tokens = tree.tokens.clone()
    tokens[7] = vocabulary + 3
    tree = tree._replace(tokens=tokens)
    law = verify.DraftLaw(torch.tensor(dense))
    if form == "sparse":
        probs, ids = torch.tensor(dense).topk(9, dim=1)
        ids[:, -1] = -1
        law = verify.DraftLaw(probs.contiguous(), ids.contiguous())
    if form == "one_hot":
        law = verify.DraftLaw()
    if form == "shared rows":
        order = torch.randperm(len(dense), generator=torch.Generator().manual_seed(1))
        law = verify.DraftLaw(torch.tensor(dense)[order], None, order.argsort())
    if form == "one_hot" and kind in ("block", "siblings"):
        with pytest.raises(InvalidInputError):
            getattr(verify, f"verify_{kind}")(scores, tree, laws, law, accept, emit)
        return
    inputs = [scores, *tree, *laws, *law, accept, emit]
    options = [[]]
    if kind == "siblings":
        options = [[False], [True]]
    if kind == "relaxed":
        options = [
            [rule, None if weight is None else torch.full((len(tokens),), weight), lenience, 0.3, 0.09, 3]
            for rule, weight, lenience in RULES
        ]
    name = "verify_chain" if kind == "relaxed" else f"verify_{kind}"
    for option in options:
        if form == "one_hot" and kind == "relaxed" and (option[1] is not None or option[2] != 1.0):
            for run in (getattr(torch.ops.specrs, name), torch_ops.OPS[name][0]):
                with pytest.raises(InvalidInputError):
                    run(*inputs, *option)
            continue
        expected = getattr(torch.ops.specrs, name)(*inputs, *option)
        got = torch_ops.OPS[name][0](*inputs, *option)
        for field, a, b in zip(got._fields, got, expected, strict=True):
            assert torch.equal(a, b), (field, option)
