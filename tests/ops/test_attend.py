"""The row-invariant attention kernel: right, a row's bits its own, and with the linear kernel so are whole models'."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.engine.conftest import KINDS, VOCABULARY, tiny_model  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import specrs  # noqa: E402
from specrs.errors import InvalidInputError  # noqa: E402
from specrs.models.hf import TransformersTarget  # noqa: E402
from specrs.ops import linear  # noqa: E402
from specrs.ops.attend import attend  # noqa: E402
from specrs.types import Draft  # noqa: E402

PARENTS = np.array([-1, 0, 0, 1, 2, 4, -1, 3], np.int32)


def tensors(heads, key_heads, size, slots, rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, rows, size), (key_heads, slots, size), (key_heads, slots, size))
    return [torch.randn(*shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(4, 4, 8), (6, 2, 64), (3, 1, 40)])
@pytest.mark.parametrize(("committed", "rows"), [(0, 1), (0, 70), (31, 1), (31, 9), (500, 6)])
def test_close_to_torch(heads, key_heads, size, committed, rows, window):
    slots = committed + rows
    query, keys, values = tensors(heads, key_heads, size, slots, rows)
    out = torch.empty(rows, heads, size)
    positions = np.arange(committed, slots)
    attend(query, keys, values, positions, None, out, window=window, scale=0.2)
    places = torch.arange(slots)
    seen = places <= places[committed:, None]
    if window is not None:
        seen &= places[committed:, None] - places < window
    expected = scaled_dot_product_attention(
        query, *(t.repeat_interleave(heads // key_heads, 0) for t in (keys, values)), attn_mask=seen, scale=0.2
    )
    torch.testing.assert_close(out, expected.transpose(0, 1), atol=2e-6, rtol=1e-5)


def test_strides_are_followed():
    query, keys, values = tensors(4, 2, 16, 20, 3)
    expected, out = torch.empty(3, 4, 16), torch.empty(3, 4, 16)
    attend(query, keys, values, np.arange(17, 20), None, expected)
    apart = [torch.zeros(2, 50, 16) for _ in range(2)]
    for to, given in zip(apart, (keys, values), strict=True):
        to[:, :20] = given
    rows_first = query.transpose(0, 1).contiguous().transpose(0, 1)
    attend(rows_first, apart[0][:, :20], apart[1][:, :20], np.arange(17, 20), None, out)
    assert torch.equal(out, expected)


def joined(trees):
    depths = []
    for _, parents in trees:
        of_tree = []
        for parent in parents:
            of_tree.append(1 if parent < 0 else of_tree[parent] + 1)
        depths += of_tree
    return Draft(
        tokens=np.concatenate([tokens for tokens, _ in trees]),
        parents=np.concatenate([parents for _, parents in trees]),
        depths=np.array(depths, np.int32),
        node_ptr=np.cumsum([0, *(len(tokens) for tokens, _ in trees)]).astype(np.int64),
    )


def accelerated(kind, dtype, monkeypatch):
    monkeypatch.setattr(linear, "worthwhile", lambda dtype: True)
    target = TransformersTarget(copy.deepcopy(tiny_model(kind)).to(dtype))
    target.accelerate()
    return target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gpt2"])  # whose products are no torch.nn.Linear
def test_a_draft_is_scored_with_the_bits_of_plain_decoding(kind, dtype, monkeypatch):
    """Trees, chains, pending tokens and neighbours: each row's logits are those of reading its path token by token."""
    target = accelerated(kind, dtype, monkeypatch)
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, VOCABULARY, length).astype(np.uint32) for length in (20, 7)]
    tokens = generator.integers(0, VOCABULARY, 8).astype(np.uint32)

    def plain(ids):
        state = target.new_state(64)
        for at in range(len(ids)):
            logits = target.score([state], [ids[at : at + 1]], Draft.empty(1)).logits
            state.commit(np.empty(0, np.int32), 1)
        return logits[0]

    states = [target.new_state(64) for _ in prompts]
    target.prefill(states[0], prompts[0][:17])
    target.prefill(states[1], prompts[1][:6])
    draft = joined([(tokens, PARENTS), (tokens[:3], np.array([-1, 0, 1], np.int32))])
    scores = target.score(states, [prompts[0][17:], prompts[1][6:]], draft)
    for b, prompt in enumerate(prompts):
        nodes = draft.nodes_of(b)
        paths = [[]]
        for token, parent in zip(draft.tokens[nodes], draft.parents[nodes], strict=True):
            paths.append([*paths[parent + 1], token])
        for offset, path in enumerate(paths):
            found = scores.logits[scores.row_ptr[b] + offset]
            assert torch.equal(found, plain(np.array([*prompt, *path], np.uint32)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prompts_bits_do_not_depend_on_its_cut(dtype, monkeypatch):
    target = accelerated("llama", dtype, monkeypatch)
    ids = np.random.default_rng(4).integers(0, VOCABULARY, 400).astype(np.uint32)
    found = []
    for cut in (None, 1, 37, 64, 130, 399):
        state = target.new_state(400)
        for start in range(0, 399, cut) if cut else ():
            target.prefill(state, ids[start : min(start + cut, 399)])
        found.append(target.score([state], [ids[state.length :]], Draft.empty(1)).logits)
    for other in found[1:]:
        assert torch.equal(other, found[0])


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_bfloat16_texts_equal_plain_decoding(shape, monkeypatch):
    target = accelerated("llama", torch.bfloat16, monkeypatch)
    options = {"max_new_tokens": 60, "eos_token_id": None}
    prompts = [[7, 3, 9, 11, 7, 3, 9], [5, 6, 5, 6, 5]]
    expected = specrs.generate(target, prompts, drafter="none", **options)
    made = specrs.generate(target, prompts, drafter="cache", draft_shape=shape, draft_tokens=6, **options)
    assert [one.ids for one in made] == [one.ids for one in expected]
    assert sum(one.report.accepted for one in made) > 0


def test_what_does_not_fit_is_refused():
    query, keys, values = tensors(4, 2, 16, 20, 3)
    out, positions = torch.empty(3, 4, 16), np.arange(17, 20)
    with pytest.raises(InvalidInputError, match=r"float32 tensors on the CPU.*bfloat16"):
        attend(query.bfloat16(), keys, values, positions, None, out)
    with pytest.raises(InvalidInputError, match="do not fit size 16"):
        attend(query, keys, values[:, :19], positions, None, out)
    with pytest.raises(InvalidInputError, match="out must be dense"):
        attend(query, keys, values, positions, None, out[:2])
    with pytest.raises(InvalidInputError, match="20 slots cannot hold 30 positions"):
        attend(query, keys, values, np.arange(30), None, out)
    with pytest.raises(InvalidInputError, match="3 new rows have 2 positions"):
        attend(query, keys, values, positions[:2], None, out)
    with pytest.raises(InvalidInputError, match="must see itself and no later row"):
        attend(query, keys, values, positions, np.ones((3, 3), np.bool_), out)
    with pytest.raises(InvalidInputError, match="multiple of 8 elements, got 12"):
        attend(query[..., :12], keys[..., :12], values[..., :12], positions, None, torch.empty(3, 4, 12))
    with pytest.raises(InvalidInputError, match="multiple of the 2 key heads"):
        attend(query[:3], keys, values, positions, None, torch.empty(3, 3, 16))
