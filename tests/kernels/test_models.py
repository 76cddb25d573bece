"""A transformers model's memory and attention by ops: the rows and texts of torch's own operations."""

import numpy as np
import pytest
import torch
import transformers
from tests.engine.conftest import tiny_target
from tests.kernels.device import KERNELS, recorded_ops

import specrs
from specrs.models import attention
from specrs.models.attention import Segment
from specrs.models.hf import TransformersTarget
from specrs.models.sequence_cache import SequenceCache
from specrs.ops import launch as launch_module
from specrs.ops import where
from specrs.types import Draft


@pytest.fixture
def called(stand_in, monkeypatch):
    """Take every tensor for one on a device, and run its ops as kernels; the names of those that were called."""
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 5)
    names = recorded_ops(monkeypatch, lambda name: getattr(KERNELS, name))
    monkeypatch.setattr(where, "moment", lambda rows: None)
    monkeypatch.setattr(where, "on_a_device", lambda rows: isinstance(rows, torch.Tensor))
    return names


def memory(size=8, sizes=None, capacity=6):
    """Three layers with three committed tokens and six new rows behind them; room grows while they are written."""
    generator = torch.Generator().manual_seed(1)
    state = SequenceCache(3, capacity)
    for rows in (3, 6):
        for layer in range(3):
            shape = (1, 2, rows, sizes[layer] if sizes else size)
            state.write(layer, *(torch.randn(shape, generator=generator) for _ in range(2)))
        if rows == 3:
            state.commit(np.empty(0, np.int32), 3)
    return state


def committed(state):
    return [tensor[:, :, : state.length] for tensor in (*state._keys, *state._values)]


PATHS = [[1, 3], [0, 2, 4], [4], [0, 1], []]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_path_moves_in_one_launch_for_all_layers(called, monkeypatch, path):
    device = memory()
    device.commit(np.array(path, np.int32), 1)
    assert called == ([] if path == list(range(len(path))) else ["commit_cache"])
    monkeypatch.undo()
    host = memory()
    host.commit(np.array(path, np.int32), 1)
    assert device.length == host.length == 4 + len(path)
    assert all(torch.equal(a, b) for a, b in zip(committed(device), committed(host), strict=True))


def test_storage_that_has_grown_is_moved_where_it_lies_now(called, monkeypatch):
    def twice():
        state = memory()
        state.commit(np.array([1, 3], np.int32), 1)
        for layer in range(3):
            state.write(layer, *(torch.arange(2 * 9 * 8.0).view(1, 2, 9, 8) + layer for _ in range(2)))
        state.commit(np.array([2, 7], np.int32), 1)
        return committed(state)

    device = twice()
    assert called == ["commit_cache"] * 2
    monkeypatch.undo()
    assert all(torch.equal(a, b) for a, b in zip(device, twice(), strict=True))


@pytest.mark.parametrize("options", [{"sizes": [8, 12, 8]}, {"size": 6}], ids=["unlike layers", "24 bytes"])
def test_layers_that_one_launch_cannot_move_are_moved_one_by_one(called, monkeypatch, options):
    device = memory(**options)
    device.commit(np.array([1, 3], np.int32), 1)
    assert called == []
    monkeypatch.undo()
    host = memory(**options)
    host.commit(np.array([1, 3], np.int32), 1)
    assert all(torch.equal(a, b) for a, b in zip(committed(device), committed(host), strict=True))


def test_a_tree_is_committed_by_kernels(called, monkeypatch):
    """Texts, and the accepted nodes of every round, are those of the host."""
    options = {"draft_tokens": 6, "draft_shape": "tree", "max_new_tokens": 16, "eos_token_id": None}
    prompts = [[7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9], [5, 8, 5, 9, 5, 8, 5, 9, 5], list(range(20, 38))]
    made = specrs.generate(tiny_target("llama"), prompts, **options)
    assert "commit_cache" in called
    monkeypatch.undo()
    expected = specrs.generate(tiny_target("llama"), prompts, **options)
    assert [one.ids for one in made] == [one.ids for one in expected]
    assert [one.report.accepted for one in made] == [one.report.accepted for one in expected]


def tiny(kind, dtype=torch.float32, **options):
    """Heads of 64, which have a kernel."""
    shape = {"vocab_size": 61, "bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        config = transformers.GPT2Config(**shape, n_embd=128, n_layer=2, n_head=2, n_positions=256)
    else:
        shape |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        shape |= {"num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512, "pad_token_id": None}
        config = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig}[kind](**shape | options)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    return TransformersTarget(model, name=f"tiny-{kind}")


#: What a layer calls of the ops for all requests of a forward.
TOGETHER = ["write_caches", "attend_caches"]
PROMPTS = [[7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9], [5], list(range(20, 38))]


def texts(target, how):
    options = {"drafter": "none" if how == "none" else "cache", "max_new_tokens": 12, "eos_token_id": None}
    if how != "none":
        options |= {"draft_tokens": 4, "draft_shape": how}
    made = specrs.generate(target, PROMPTS, **options)
    return [one.ids for one in made], sum(one.report.accepted for one in made)


@pytest.mark.parametrize("how", ["none", "chain", "tree"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_texts_are_those_of_torchs_attention(called, monkeypatch, kind, how):
    """In float32, so that no near-tie parts them: by the kernel without tensor cores."""
    monkeypatch.setattr(attention, "KERNEL_TYPES", (torch.float32,))
    target = tiny(kind)
    made, accepted = texts(target, how)
    assert {"write_caches", "attend_caches"} <= set(called)
    assert ("commit_cache" in called) <= (how == "tree")
    monkeypatch.undo()
    plain, _ = texts(target, "none")
    assert made == plain
    assert (accepted > 0) == (how != "none")


def scored(target, draft=(-1, 0, 0, 2)):
    """Logits of a tree of four nodes behind a text, and of a long stretch of prompt."""
    state, tokens = target.new_state(96), np.arange(90, dtype=np.uint32) % 61
    target.prefill(state, tokens[:70])
    parents = np.array(draft, np.int32)
    depths = np.zeros(4, np.int32)
    for node, parent in enumerate(draft):
        depths[node] = 1 if parent < 0 else depths[parent] + 1
    tree = Draft(np.arange(4, dtype=np.uint32), parents, depths, np.array([0, 4]))
    return target.score([state], [tokens[70:72]], tree).logits.float()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_half_precision_by_tensor_cores(called, monkeypatch, kind):
    """A prompt of more rows than the op takes stays with torch's attention; the tree behind it is the op's."""
    target = tiny(kind, torch.bfloat16)
    made = scored(target)
    assert called == TOGETHER * 2  # once for each layer: the prompt had 70 rows
    monkeypatch.undo()
    expected = scored(target)
    assert (made - expected).abs().max() < 0.05 * expected.abs().max()
    assert not torch.equal(made, expected)  # another order of sums: the kernel did it


def batch(target, prompts, pending=(1, 2, 1), room=96):
    """Logits of three requests in one forward: a chain, a tree and no draft behind `pending` tokens."""
    states = [target.new_state(room) for _ in prompts]
    for state, prompt, unread in zip(states, prompts, pending, strict=True):
        target.prefill(state, np.array(prompt[:-unread], np.uint32))
    drafts = Draft(
        np.array([4, 5, 6, 7, 8], np.uint32),
        np.array([-1, 0, -1, -1, 1], np.int32),
        np.array([1, 2, 1, 1, 2], np.int32),
        np.array([0, 2, 5, 5]),
    )
    unread = [np.array(prompt[-count:], np.uint32) for prompt, count in zip(prompts, pending, strict=True)]
    return target.score(states, unread, drafts).logits.float()


LONG = [[(7 * i) % 61 for i in range(count)] for count in (80, 5, 30)]


def test_requests_are_written_by_one_launch_and_attended_by_one(called, monkeypatch):
    """Of each layer, whatever their lengths; and what the device is told of all layers goes over in one copy."""
    target, launches, copies = tiny("llama", torch.bfloat16), [], []
    states = [target.new_state(96) for _ in LONG]
    for state, prompt in zip(states, LONG, strict=True):
        target.prefill(state, np.array(prompt[:-1], np.uint32))
    submit, as_tensor = launch_module._submit, where.as_tensor

    def noted(kernel, *rest):
        launches.append(kernel)
        submit(kernel, *rest)

    monkeypatch.setattr(launch_module, "_submit", noted)
    monkeypatch.setattr(where, "as_tensor", lambda rows, device: copies.append(rows) or as_tensor(rows, device))
    nothing = Draft.chains([np.array([1, 2], np.uint32)] * 3)
    for _ in range(2):
        launches.clear()
        copies.clear()
        target.score(states, [np.array([3], np.uint32)] * 3, nothing)
        assert launches == ["write_caches", "tree_attention_bf16_64", "merge_attention_bf16"] * 2
        assert len(copies) == 1 + 3  # ids, positions and the wanted rows are the others


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("pending", [(1, 2, 1), (1, 2, 29), (70, 2, 1), (70, 5, 30)], ids=str)
def test_a_batch_has_the_logits_of_torchs_attention(called, monkeypatch, kind, pending):
    """Requests that the ops take, beside one whose stretch of prompt they do not, and fresh caches beside old ones."""
    monkeypatch.setattr(attention, "KERNEL_TYPES", (torch.float32,))
    target = tiny(kind)
    made = batch(target, LONG, pending)
    assert called[-4:] == TOGETHER * 2
    monkeypatch.undo()
    torch.testing.assert_close(made, batch(target, LONG, pending), rtol=1e-4, atol=1e-4)


def test_caches_that_grow_between_forwards(called, monkeypatch):
    """A cache's storage moves while its neighbour's stays: what the device is told follows."""
    monkeypatch.setattr(attention, "KERNEL_TYPES", (torch.float32,))
    target = tiny("llama")

    def scores():
        states, made = [target.new_state(4), target.new_state(64)], []
        for step in range(5):
            ids = [np.arange(step, step + 3, dtype=np.uint32), np.array([step], np.uint32)]
            nothing = Draft.chains([np.empty(0, np.uint32)] * 2)
            made.append(target.score(states, ids, nothing).logits)
            for state, read in zip(states, ids, strict=True):
                state.commit(np.empty(0, np.int32), len(read))
        return torch.cat(made)

    made = scores()
    assert called == TOGETHER * 2 * 5
    monkeypatch.undo()
    torch.testing.assert_close(made, scores(), rtol=1e-4, atol=1e-4)


def test_a_cache_of_another_type_goes_through_torch(called):
    """One that stores in float32 what comes in half precision."""
    target = tiny("llama", torch.bfloat16)
    target._cache_dtype = torch.float32
    assert scored(target).isfinite().all()
    assert called == []


def test_a_row_has_the_same_bits_alone_and_in_a_draft(called):
    """What plain decoding sees is what a draft's row sees, as far as attention goes."""
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(1, 2, 90, 64, generator=generator).bfloat16() for _ in range(2))
    query = torch.randn(6, 4, 64, generator=generator).bfloat16()

    def attended(first, end):
        rows = end - first
        bits = torch.tensor([[2 ** (i + 1) - 1] for i in range(rows)])
        given = torch.tensor([75 + first]), torch.tensor([0, rows]), bits
        return KERNELS.tree_attention(query[first:end], keys, values, *given)[0]

    together = attended(0, 6)
    for row in range(6):
        assert torch.equal(together[row], attended(row, row + 1)[0])


@pytest.mark.parametrize("options", [{"kind": "mistral", "sliding_window": 16}, {"kind": "llama", "head_dim": 32}])
def test_layers_without_a_kernel_go_through_torch(called, options):
    made = scored(tiny(**{"dtype": torch.bfloat16, **options}))
    assert called == []
    assert made.isfinite().all()


def test_rows_of_guesses_go_through_torch(called, monkeypatch):
    """Drafting ahead keeps a draft and earlier guesses between the committed rows and the new ones."""
    monkeypatch.setattr(attention, "KERNEL_TYPES", (torch.float32,))
    target = tiny("llama")

    def scores():
        """Two guesses behind one and two tokens of a draft that follows five committed ones."""
        state = target.new_state(16)
        target.prefill(state, np.array([7, 3, 9, 11, 5, 20, 21], np.uint32))
        seen = np.array([[True, False, True, False], [True, True, False, True]])
        segment = Segment(0, 2, state, np.array([6, 7]), seen, earlier=np.array([5, 6]))
        return target.forward_segments([segment], np.array([30, 31]))

    made = scores()
    assert called == TOGETHER * 2  # a prompt of seven rows, in two layers
    monkeypatch.undo()
    assert torch.allclose(made, scores(), atol=1e-4)
