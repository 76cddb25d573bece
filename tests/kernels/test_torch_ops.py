"""``torch.ops.specrs.*``: schemas, the compiler's view, and the CPU implementations against the kernels."""

import copy
import re

import numpy as np
import pytest
import torch
from tests.kernels.test_attention import case, verdict_of, visibility
from tests.kernels.test_rows import logits, sampling
from tests.kernels.test_verify import LAWS, chain_case

from specrs.errors import InvalidInputError
from specrs.ops import attention, caches, draft, outcome, relaxed, rows, torch_ops, verify
from specrs.ops.drawing import Draws
from specrs.ops.round import Round

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def whole_round(tree, parameters):
    """The buffer of a round of chains, as the engine packs it."""
    row_ptr, nothing = tree.row_ptr.numpy(), np.zeros(0)
    depths = np.concatenate([np.arange(1, rows) for rows in np.diff(row_ptr)])
    keys = [np.arange(7, 11), np.zeros(4), np.full(4, 5)]
    laws = [parameter.numpy() for parameter in parameters]
    parts = [row_ptr, tree.tokens.numpy(), *keys, nothing, tree.parents.numpy(), depths, *laws, nothing]
    return torch.from_numpy(Round(*parts).packed())


def draws(rows):
    """The buffer of a step of drafting: laws that take turns, row by row."""
    laws = [np.resize(column, rows) for column in zip(*LAWS, strict=True)]
    return torch.from_numpy(Draws(np.arange(rows) / rows, *laws).packed())


def arguments():
    """Arguments of each op, and what calls its kernel with them."""
    scores, tree, drawn_from, accept, emit = chain_case(3, torch.float32, 60)
    parameters, law = sampling(LAWS), draft.DraftLaw(torch.tensor(drawn_from))
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
    written, of_each = ([[torch.randn(1, 2, slots, 64) for slots in (12, 9)] for _ in range(2)] for _ in range(2))
    slots, new = torch.tensor([12, 9]), [torch.randn(5, 2, 64) for _ in range(2)]
    owned = [*of_each, attention.cache_addresses([*of_each[0], *of_each[1]]), slots, prefix, row_ptr, bits]
    coins = [seeds, zeros, zeros + 5, tree.row_ptr, tree.parents]
    return {
        "verify_walk": (walk, lambda: verify.verify_walk(scores, tree, parameters, emit)),
        "verify_chain": (chain, lambda: verify.verify_chain(scores, tree, parameters, law, accept, emit)),
        "verify_block": (chain, lambda: verify.verify_block(scores, tree, parameters, law, accept, emit)),
        "verify_siblings": (
            [*chain, True],
            lambda: verify.verify_siblings(scores, tree, parameters, law, accept, emit, with_replacement=True),
        ),
        "verify_relaxed": (
            [*chain, "lenience", [0.7]],
            lambda: relaxed.verify_relaxed(
                scores, tree, parameters, law, accept, emit, relaxed.RelaxedRule("lenience", (0.7,))
            ),
        ),
        "verify_round": (
            [scores, whole_round(tree, parameters), law.probs, 4, 8],
            lambda: torch_ops.OPS["verify_round"][0](scores, whole_round(tree, parameters), law.probs, 4, 8),
        ),
        "row_statistics": ([three, None, None, 3], lambda: rows.row_statistics(three, exclude=3)),
        "top_k_rows": ([three, 7, 3], lambda: outcome.top_k_rows(three, 7, 3)[:2]),
        "fork_tokens": (
            [three, offsets, counts, offsets, 5],
            lambda: outcome.fork_tokens(three, offsets, counts, offsets, 5)[:2],
        ),
        "lookup_cache": (list(keyed), lambda: outcome.lookup_cache(*keyed)),
        "select_lengths": (
            [law.probs[:, 0].contiguous() + 0.5, tree.row_ptr, cost, 0.02],
            lambda: outcome.select_lengths(law.probs[:, 0].contiguous() + 0.5, tree.row_ptr, cost),
        ),
        "accept_unmasked": (
            [drafts, drafts, depths, 9, "policy"],
            lambda: outcome.accept_unmasked(drafts, drafts, depths, 9),
        ),
        "draw_tokens": (
            [scores, draws(len(scores)), True],
            lambda: torch_ops.draw_tokens_cuda(scores, draws(len(scores)), True),
        ),
        "round_coins": (coins, lambda: verify.round_coins(*coins)),
        "tree_attention": (
            [query, keys, values, prefix, row_ptr, bits],
            lambda: attention.tree_attention(query, keys, values, prefix, row_ptr, bits),
        ),
        "attend_caches": ([query, *owned], lambda: caches.attend_caches(query, *owned)),
        "write_caches": (
            [*written, attention.cache_addresses([*written[0], *written[1]]), slots, prefix, row_ptr, *new],
            None,
        ),
        "commit_cache": (
            [tensors, attention.cache_addresses(tensors), torch.tensor([3, 1]), *verdict[:3]],
            None,
        ),
    }


NAMES = list(torch_ops.TABLE)
#: The ops that return something, each of which has an ``_out`` form.
FILLING = [name for name, op in torch_ops.TABLE.items() if op.results]


def flat(made):
    """What an op returned as a list of tensors."""
    return [] if made is None else [made] if isinstance(made, torch.Tensor) else list(made)


def call_of(name):
    """Arguments of anything registered, and the tensors that it fills by name."""
    functional = name.removesuffix("_out")
    given, _ = arguments()[functional]
    if name == functional:
        return given, {}
    made = flat(getattr(torch.ops.specrs, functional)(*given))
    results = torch_ops.TABLE[functional].results
    return given, {result: torch.full_like(tensor, -7) for result, tensor in zip(results, made, strict=True)}


def same_bits(one, other):
    """Whether two lists of tensors hold the same bits, NaN included."""
    pairs = zip(one, other, strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b) for a, b in pairs)


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


def test_every_op_has_a_case():
    assert set(arguments()) == set(NAMES)


def test_every_op_that_returns_something_has_an_out_form():
    """Derived from its schema: the same arguments, its results as tensors that it says it writes, nothing returned."""
    assert set(torch_ops.OPS) == {*NAMES, *(f"{name}_out" for name in FILLING)}
    assert [name for name in NAMES if name not in FILLING] == ["write_caches", "commit_cache"]  # in place
    for name in FILLING:
        functional, filling = (getattr(torch.ops.specrs, form).default._schema for form in (name, f"{name}_out"))
        written = [argument.name for argument in filling.arguments if argument.kwarg_only]
        assert [a.name for a in functional.arguments] == [a.name for a in filling.arguments if not a.kwarg_only]
        assert written == [result.name for result in functional.returns]
        assert written == [a.name for a in filling.arguments if a.alias_info is not None and a.alias_info.is_write]
        assert written == list(torch_ops.TABLE[name].layout(*arguments()[name][0]))
        assert filling.returns == []


@pytest.mark.parametrize("name", NAMES)
def test_cpu_equals_the_kernel(stand_in, name):
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 5)
    given, kernel = arguments()[name]
    if kernel is None:
        on_host, before = copy.deepcopy(given), copy.deepcopy(tensors_in(given))
        getattr(torch.ops.specrs, name)(*on_host)
        torch_ops.OPS[name][0](*given)
        assert same_bits(tensors_in(on_host), tensors_in(given))
        assert not same_bits(tensors_in(given), before)
        assert name != "commit_cache" or given[2].tolist() == [5, 2]
        return
    host, device = getattr(torch.ops.specrs, name)(*given), kernel()
    pairs = zip(host, device, strict=True) if isinstance(device, tuple) else [(host, device)]
    for of_host, of_device in pairs:
        assert of_host.dtype == of_device.dtype
        torch.testing.assert_close(of_host, of_device, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", torch_ops.OPS)
def test_no_kernel_waits_for_a_value(stand_in, monkeypatch, name):
    """A launch that looked at a tensor would end a graph's capture and stall the stream."""
    stand_in.open()
    given, filled = call_of(name)

    def looked(*_, **__):
        raise AssertionError("the host looked at a tensor")

    for way in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, way, looked)
    torch_ops.OPS[name][0](*given, **filled)


@pytest.mark.parametrize("name", torch_ops.OPS)
def test_opcheck(name):
    given, filled = call_of(name)
    torch.library.opcheck(getattr(torch.ops.specrs, name).default, tuple(given), filled)


@pytest.mark.parametrize("name", FILLING)
def test_out_forms_give_the_same_bits(emulator, name):
    """In the caller's tensors, on the CPU and by the kernels, of which the last writes there itself."""
    given, filled = call_of(f"{name}_out")
    for functional, filling in zip(torch_ops.OPS[name][:2], torch_ops.OPS[f"{name}_out"][:2], strict=True):
        expected = flat(functional(*given))
        for tensor in filled.values():
            tensor.fill_(-7)
        assert filling(*given, **filled) is None
        assert same_bits(filled.values(), expected)
    getattr(torch.ops.specrs, f"{name}_out")(*given, **{result: t.fill_(-7) for result, t in filled.items()})
    assert same_bits(filled.values(), flat(getattr(torch.ops.specrs, name)(*given)))


def wrong_tensors(name, tensor):
    """What cannot be filled in place of a result, and the error that it is refused with."""
    wanted = f"{name} must be {tensor.dtype} of shape {tuple(tensor.shape)}, got "
    for other in (tensor.to(torch.int16), tensor[:-1].clone(), tensor[None].clone()):
        yield other, f"{wanted}{other.dtype} of shape {tuple(other.shape)}"
    yield tensor.to("meta"), f"{name} must be on one device with the others, got meta and cpu"
    gaps = torch.stack([tensor, tensor], dim=-1)[..., 0]
    yield gaps, f"{name} must be contiguous, got strides {gaps.stride()}"


@pytest.mark.parametrize("name", FILLING)
def test_out_forms_refuse_tensors_that_do_not_fit(stand_in, name):
    """By name, with what was given and what is expected, before anything is launched or written."""
    stand_in.open()
    given, filled = call_of(f"{name}_out")
    launches = stand_in.library.emu_launches()
    for result, sound in filled.items():
        for wrong, message in wrong_tensors(result, sound):
            for run in torch_ops.OPS[f"{name}_out"][:2]:
                with pytest.raises(InvalidInputError, match=re.escape(message)):
                    run(*given, **{**filled, result: wrong})
    assert stand_in.library.emu_launches() == launches
    assert all(bool((tensor == -7).all()) for tensor in filled.values())


def tensors_in(values):
    nested = [value if isinstance(value, list) else [value] for value in values]
    return [value for several in nested for value in several if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", torch_ops.OPS)
def test_every_op_compiles_as_one_graph(name):
    """With what is computed behind it from its results and from what it fills or changes."""
    op, eager = getattr(torch.ops.specrs, name), call_of(name)
    compiled = copy.deepcopy(eager)

    def step(given, filled):
        made = flat(op(*given, **filled))
        return [tensor * 2 for tensor in [*made, *filled.values(), *tensors_in(given)]]

    torch.compiler.reset()
    got = torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled)
    assert same_bits(got, step(*eager))
    assert same_bits(tensors_in(compiled[0]), tensors_in(eager[0]))
    assert same_bits(compiled[1].values(), eager[1].values())


def test_a_round_compiles_as_one_graph():
    """What the engine calls in a round, each rule of it, in both forms."""
    chain, _ = arguments()["verify_chain"]
    keys, _ = arguments()["round_coins"]
    best, _ = arguments()["top_k_rows"]
    packed = arguments()["verify_round"][0][1]
    inputs, (_, filled) = chain[:12], call_of("verify_chain_out")

    def step(inputs, keys, top, filled, packed):
        accept, emit = torch.ops.specrs.round_coins(*keys)
        walk = torch.ops.specrs.verify_walk(*inputs[:9], emit)
        path, accepted, bonus, status = torch.ops.specrs.verify_chain(*inputs, accept, emit)
        relaxed = torch.ops.specrs.verify_relaxed(*inputs, accept, emit, "typical", [0.3, 0.09])
        torch.ops.specrs.verify_chain_out(*inputs, accept, emit, **filled)
        words = torch.ops.specrs.verify_round(inputs[0], packed, inputs[9], 4, 8)
        ids, probs = torch.ops.specrs.top_k_rows(*top)
        return [path + 1, accepted, bonus, status, *walk, *relaxed, filled["bonus"] + 1, words, ids, probs * 2]

    got = torch.compile(step, fullgraph=True, backend="aot_eager")(inputs, keys, best, filled, packed)
    expected = step(inputs, keys, best, filled, packed)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def draft_forms(dense):
    probs, ids = torch.tensor(dense).topk(9, dim=1)
    ids[:, -1] = -1
    order = torch.randperm(len(dense), generator=torch.Generator().manual_seed(1))
    return {
        "dense": draft.DraftLaw(torch.tensor(dense)),
        "sparse": draft.DraftLaw(probs.contiguous(), ids.contiguous()),
        "one_hot": draft.DraftLaw(),
        "shared rows": draft.DraftLaw(torch.tensor(dense)[order], None, order.argsort()),
    }


def ragged_chains(vocabulary, form):
    """Six requests, one of them greedy, one truncated, one with an id that no vocabulary has."""
    scores, tree, dense, accept, emit = chain_case(31, torch.float32, vocabulary, counts=(5, 1, 0, 6, 4, 3))
    laws = sampling(
        [(1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (0.8, 0, 1.0, 0.0), (1.1, 20, 0.95, 0.01)] + [(1.0, 0, 1.0, 0.0)] * 2
    )
    tokens = tree.tokens.clone()
    tokens[7] = vocabulary + 3
    return scores, tree._replace(tokens=tokens), laws, draft_forms(dense)[form], accept, emit


def assert_equals_rust(name, inputs, options=()):
    expected = getattr(torch.ops.specrs, name)(*inputs, *options)
    got = torch_ops.OPS[name][0](*inputs, *options)
    for field, a, b in zip(got._fields, got, expected, strict=True):
        if field == "bias":
            torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6, msg=lambda text: f"{text} {options}")
        else:
            assert torch.equal(a, b), (field, options, a, b)
    return got


FORMS = ["dense", "sparse", "one_hot", "shared rows"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["chain", "block", "siblings"])
def test_every_rule_and_draft_law_equals_rust(emulator, kind, form):
    """Exact rules on all forms of the draft law: the same path, bonus and status as the Rust rule on the same coins."""
    scores, tree, laws, law, accept, emit = ragged_chains(60, form)
    if form == "one_hot" and kind != "chain":
        with pytest.raises(InvalidInputError):
            getattr(verify, f"verify_{kind}")(scores, tree, laws, law, accept, emit)
        return
    for options in [(False,), (True,)] if kind == "siblings" else [()]:
        assert_equals_rust(f"verify_{kind}", [scores, *tree, *laws, *law, accept, emit], options)


RELAXED = [
    ("ensemble", []),
    ("lenience", [0.6]),
    ("typical", [0.3, 0.09]),
    ("top_k", [3.0]),
    ("cascade", [4.0]),
    ("fuzzy_total_variation", [0.6]),
    ("fuzzy_jensen_shannon", [0.3]),
    ("fuzzy_kullback_leibler", [1.2]),
]


@pytest.mark.parametrize("form", FORMS)
def test_relaxed_rules_equal_rust(stand_in, form):
    """Every relaxed rule, metered, with and without a budget, within the target's support and beyond it."""
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 9)
    scores, tree, laws, law, accept, emit = ragged_chains(60, form)
    inputs = [scores, *tree, *laws, *law, accept, emit]
    weight = torch.rand(len(tree.tokens), generator=torch.Generator().manual_seed(3)).clamp(min=0.05)
    between = []
    for kind, knobs in RELAXED:
        spent = []
        for budget, beyond in ((None, False), (0.3, True), (0.0, False)):
            left = None if budget is None else torch.full((6,), budget, dtype=torch.float64)
            options = (kind, knobs, weight if kind == "ensemble" else None, left, beyond)
            if form == "one_hot" and kind not in ("typical", "top_k"):
                for run in (torch.ops.specrs.verify_relaxed, torch_ops.OPS["verify_relaxed"][0]):
                    with pytest.raises(InvalidInputError, match="needs the law"):
                        run(*inputs, *options)
                continue
            spent.append(assert_equals_rust("verify_relaxed", inputs, options).bias)
        if spent:
            free, bounded, exact = (float(bias.sum()) for bias in spent)
            # From a draft law with gaps the target is infinitely far: that rule never follows it.
            assert (free > 0.0) == ((form, kind) != ("sparse", "fuzzy_kullback_leibler")), kind
            assert free >= bounded >= exact == 0.0, kind
            between.append(free > bounded > 0.0)
            assert float(spent[1].max()) <= 0.3
    assert form == "one_hot" or any(between), "no budget ended a rule midway: the case shows nothing"


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_relaxed_rules_of_a_row_of_several_tiles_equal_rust(stand_in, form):
    """Sums and bests of three tiles, the last one short; a law wider than the target's and a NaN in one."""
    stand_in.open()
    stand_in.configure("reverse", "shuffle", 5)
    vocabulary = 17_000
    scores, tree, laws, law, accept, emit = ragged_chains(vocabulary, form)
    probs = law.probs.clone()
    probs[16, 9_000 if form == "dense" else 2] = float("nan")
    if form == "dense":
        probs[:16] *= 0.75
        probs = torch.nn.functional.pad(probs, (0, 9_000), value=0.25 / 9_000)
    inputs = [scores, *tree, *laws, probs, law.ids, law.row_of, accept, emit]
    statuses, biases = [], []
    far = [("top_k", [400.0]), ("fuzzy_total_variation", [0.99]), ("fuzzy_kullback_leibler", [400.0])]
    for kind, knobs in [*RELAXED, *far]:
        weight = torch.full((len(tree.tokens),), 0.2) if kind == "ensemble" else None
        for beyond in (False, True):
            made = assert_equals_rust("verify_relaxed", inputs, (kind, knobs, weight, None, beyond))
        statuses.append(made.status.tolist())
        biases.append(float(made.bias.sum()))
    assert sum(bias > 0.0 for bias in biases) >= 7
    assert any(3 in of_rule for of_rule in statuses), "no walk came to the draft row that is no law"


def test_an_ensemble_at_temperature_zero_is_the_mixtures_argmax(stand_in):
    """Greedy requests under an ensemble: the mixture at temperature 1, by weight and budget, as in Rust."""
    stand_in.open()
    stand_in.configure("reverse", "shuffle", 4)
    scores, tree, dense, accept, emit = chain_case(8, torch.bfloat16, 300, counts=(5, 4, 0, 6))
    # Truncation has no say at temperature 0, in the mixture neither.
    laws, law = sampling([(0.0, 3, 0.5, 0.2)] * 4), draft.DraftLaw(torch.tensor(dense))
    scores[12] = float("nan")
    inputs, met = [scores, *tree, *laws, *law, accept, emit], []
    for weight in (0.05, 0.5, 1.0):
        weights = torch.full((len(tree.tokens),), weight)
        for budget in (None, 1.0):
            left = None if budget is None else torch.full((4,), budget, dtype=torch.float64)
            made = assert_equals_rust("verify_relaxed", inputs, ("ensemble", [], weights, left))
            met.append((int(made.accepted.sum()), float(made.bias.sum())))
    assert met[0][0] > met[4][0]  # a light target takes more of the draft
    assert met[0][1] > met[1][1] > met[4][1] == 0.0


def test_an_ensemble_at_temperature_zero_orders_near_ties_by_their_logits(stand_in):
    """Logits one float apart, whose rounded probabilities are one: the larger is taken, whatever ids come first."""
    stand_in.open()
    stand_in.configure("shuffle", "forward", 6)
    near = float(np.nextafter(np.float32(0.1), np.float32(1)))
    scores = torch.full((2, 300), 0.1)
    scores[0, 170], scores[1, 40] = near, near
    tree = draft.DraftTree(torch.tensor([0, 2]), torch.tensor([170]), torch.tensor([-1], dtype=torch.int32), 1)
    one = torch.zeros(2, dtype=torch.float64)
    for other, path in ((1 / 300, [0]), (0.9, [-1])):
        law = torch.full((1, 300), 1 / 300)
        law[0, 9] = other
        inputs = [scores, *tree, *sampling([(0.0, 0, 1.0, 0.0)]), *draft.DraftLaw(law), one, one]
        made = assert_equals_rust("verify_relaxed", inputs, ("ensemble", [], torch.tensor([0.5])))
        assert made.path.tolist() == [path]
        assert made.bonus.tolist() == [40 if path == [0] else 9]
        assert made.bias.tolist() == [0.0 if path == [0] else 1.0]
