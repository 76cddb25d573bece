"""Who reads logits that lie on a device, besides the round: each gets what it got from a host's."""

import math

import numpy as np
import pytest
import torch
from tests.engine.conftest import tiny_target
from tests.hf.tiny import batch, tiny
from tests.kernels.device import KERNELS, DeviceTensor, device_logits

import specrs
import specrs.hf
from specrs import _core
from specrs.compare import check_shapes, compare
from specrs.drafters.drawing import NO_TOKEN, draw
from specrs.errors import GpuError
from specrs.models.hf import TransformersTarget
from specrs.ops import torch_ops, where
from specrs.ops.drawing import TYPES, Draws
from specrs.policies.cost import measure_rows
from specrs.train.rollout import roll_out
from specrs.types import Draft

PROMPT = [7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9]
OPTIONS = {"max_new_tokens": 10, "eos_token_id": None, "seed": 4}


@pytest.fixture(autouse=True)
def _kernels(stand_in):
    stand_in.open()
    stand_in.configure()


def test_generate_of_transformers_records_the_same_scores(monkeypatch):
    model = tiny()
    options = {"max_new_tokens": 10, "do_sample": True, "top_k": 7, "pad_token_id": 0, "min_new_tokens": 9}
    options |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    # Drafts of one length, or the shapes of forwards, and with them last bits, would follow the clock.
    options |= {"repetition_penalty": 1.2, "custom_generate": specrs.hf.generate, "draft_tokens": 3}
    torch.manual_seed(3)
    expected = model.generate(**batch(), **options)
    torch.manual_seed(3)
    with device_logits(monkeypatch, model) as fetched:
        made = model.generate(**batch(), **options)
    assert fetched
    assert torch.equal(made.sequences, expected.sequences)
    for name in ("scores", "logits"):
        for one, other in zip(made[name], expected[name], strict=True):
            assert type(one) is torch.Tensor
            assert torch.equal(one, other), name


def test_compare_explains_and_checks_shapes(monkeypatch):
    target = tiny_target("llama")
    expected = compare(target, PROMPT, shape_check=True, repetition_penalty=1.1, **OPTIONS)
    with device_logits(monkeypatch, target.model):
        made = compare(target, PROMPT, shape_check=True, repetition_penalty=1.1, **OPTIONS)
        shapes = check_shapes(target, PROMPT, list(made.plain.ids))
    assert made.identical
    assert made.method.ids == expected.method.ids
    assert made.shapes == expected.shapes
    assert shapes.unexplained > 0  # without the penalty the text is another one


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafting_ahead(monkeypatch, temperature):
    target, draft = tiny_target("llama"), tiny_target("llama", seed=7)
    options = OPTIONS | {"drafter": "ssd", "draft_model": draft, "overlap": "none", "temperature": temperature}
    expected = specrs.generate(target, [PROMPT, [5]], **options)
    with device_logits(monkeypatch, target.model, draft.model) as fetched:
        made = specrs.generate(target, [PROMPT, [5]], **options)
    assert fetched
    assert [one.ids for one in made] == [one.ids for one in expected]


def test_training_draws_the_same_texts(monkeypatch):
    target, draft = tiny_target("llama"), tiny_target("llama", seed=7)

    def texts():
        half = lambda hidden: torch.full((len(hidden),), 0.5)  # noqa: E731
        return roll_out(target, draft, [[7, 3, 9], [5]], half, seeds=[1, 2], max_new_tokens=5)

    expected = texts()
    with device_logits(monkeypatch, target.model, draft.model):
        made = texts()
    for one, other in zip(made, expected, strict=True):
        assert one.tokens == other.tokens
        assert torch.equal(one.target_probs, other.target_probs)


def test_a_device_without_our_kernels_gives_its_logits_to_the_host(monkeypatch):
    """As for a card that is too old, or a build without kernels: one warning, the same text."""
    target = tiny_target("llama")
    expected = specrs.generate(target, PROMPT, **OPTIONS)

    def refuse(device):
        raise GpuError("no code for this device")

    monkeypatch.setattr(_core, "gpu_prepare", refuse)
    where._why_not.cache_clear()
    try:
        with device_logits(monkeypatch, target.model) as fetched, pytest.warns(UserWarning, match="no code") as noted:
            made = specrs.generate(target, PROMPT, **OPTIONS)
    finally:
        where._why_not.cache_clear()
    assert made.ids == expected.ids
    assert len(noted) == 1
    assert all(shape[-1] == target.vocab_size for shape in fetched)  # the verdict is the host's


@pytest.mark.parametrize(("error", "tries"), [("CUDA_ERROR_OUT_OF_MEMORY (2)", 2), ("CUDA_ERROR_OTHER (999)", 1)])
def test_short_memory_is_tried_again_and_nothing_else(monkeypatch, error, tries):
    """The first try fails: with memory that is there later the kernels run, with a lasting reason they never do."""
    tried = []

    def prepare(device):
        tried.append(device)
        if len(tried) == 1:
            raise GpuError(f"cuDevicePrimaryCtxRetain failed with {error}")

    monkeypatch.setattr(_core, "gpu_prepare", prepare)
    where._why_not.cache_clear()
    rows = torch.zeros(2, 3).as_subclass(DeviceTensor)
    try:
        with pytest.warns(UserWarning, match="do not run on CUDA device 0") as noted:
            found = [where.on_a_device(rows) for _ in range(3)]
    finally:
        where._why_not.cache_clear()
    assert found == [False, tries == 2, tries == 2]
    assert tried == [0] * tries
    assert len(noted) == 1


def uploads(monkeypatch):
    """Let copies to a CUDA device stay on the host; which tensors went, whether pinned, whether the host waited."""
    noted, pinned, to = [], [], torch.Tensor.to

    def pin(tensor):
        pinned.append(tensor.clone())
        return pinned[-1]

    def moved(tensor, *given, non_blocking=False, **options):
        if torch.device("cuda", 0) not in given:
            return to(tensor, *given, non_blocking=non_blocking, **options)
        noted.append((any(tensor is one for one in pinned), non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    return noted


def test_what_goes_to_a_device_does_not_wait_for_it(monkeypatch):
    """Through pinned memory, which torch keeps until the copy is done; on a host the array itself."""
    array, device = np.arange(6), torch.device("cuda", 0)
    host = where.as_tensor(array, torch.device("cpu"))
    assert host.data_ptr() == array.ctypes.data
    noted = uploads(monkeypatch)
    assert torch.equal(where.as_tensor(array, device), host)
    assert torch.equal(where.as_tensor(host, device), host)
    assert noted == [(True, True)] * 2


def test_a_forward_is_given_all_by_such_copies(monkeypatch):
    """Ids, positions and the rows to keep: the layers' launches follow without the host waiting in between."""
    target = tiny_target("llama")
    state = target.new_state(8)
    target.prefill(state, PROMPT[:4])
    monkeypatch.setattr(TransformersTarget, "device", torch.device("cuda", 0))
    noted = uploads(monkeypatch)
    assert len(target.score([state], [PROMPT[4:5]], Draft.chains([PROMPT[5:7]])).logits) == 3
    assert noted == [(True, True)] * 3


def test_a_policy_is_told_the_same_of_the_law(monkeypatch):
    """Each fact of three rows, one of them unusable, and of two of them picked out."""
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(2)) * 3
    rows[1] = math.nan
    zeros = np.zeros(3)
    given = Draws(zeros + 0.4, zeros + 0.8, zeros, zeros + 0.9, zeros)
    given = Draws(*(array.astype(kind) for array, kind in zip(given, TYPES, strict=True)))
    host, laws = draw([0, 1, 2], rows, given, with_laws=True)
    monkeypatch.setattr(torch_ops, "NAMESPACE", KERNELS)
    device, on_device = draw([0, 1, 2], rows.as_subclass(DeviceTensor), given, with_laws=True)
    assert device.tokens == host.tokens
    assert device.tokens[1] == NO_TOKEN
    assert torch.allclose(on_device, torch.from_numpy(laws), rtol=1e-5, equal_nan=True)
    for kept in ([0, 2], [2]):
        one, other = host.of(kept, [4] * len(kept)), device.of(kept, [4] * len(kept))
        assert (one.requests, one.lengths, one.tokens) == (other.requests, other.lengths, other.tokens)
        assert one.confidence == pytest.approx(other.confidence, rel=1e-5)
        assert one.entropy() == pytest.approx(other.entropy(), rel=1e-5)
        assert one.token_probs() == pytest.approx(other.token_probs(), rel=1e-5)
        assert np.allclose(one.top_probs(50), other.top_probs(50), rtol=1e-5)


def test_a_cut_draft_keeps_its_laws_on_the_device():
    rows = torch.rand(5, 7)
    chains = [[1, 2, 3], [4, 5]]
    host = Draft.chains(chains, draft_probs=rows.numpy()).within([1, 2])
    device = Draft.chains(chains, draft_probs=rows.as_subclass(DeviceTensor)).within([1, 2])
    assert type(device.draft_probs) is DeviceTensor
    assert np.array_equal(device.draft_probs.cpu().numpy(), host.draft_probs)


class Moments:
    """A device's clock: each moment is a second behind the last one."""

    def __init__(self):
        self.count = 0

    def moment(self, rows):
        assert isinstance(rows, DeviceTensor)
        self.count += 1
        return self

    def synchronize(self):
        pass

    def elapsed_time(self, last):
        return 0.0


def test_a_round_takes_the_forward_to_end_when_the_device_says(monkeypatch):
    """Launched is not done: what the host waits for at the verdict is the forward, as far as the device took it."""
    target, clock = tiny_target("llama"), Moments()
    with device_logits(monkeypatch, target.model):
        monkeypatch.setattr(where, "moment", clock.moment)
        made = specrs.generate(target, PROMPT, **OPTIONS)
        assert clock.count == 2 * made.report.target_passes
        assert made.report.time_split["verify"] == 0  # the stand-in's moments lie 0 s apart
        measure_rows(target, [1, 2], batch=1, context=4, repeats=2)
    assert clock.count == 2 * made.report.target_passes + 3 * 2


def test_a_model_keeps_logits_where_they_are(monkeypatch):
    target = TransformersTarget(tiny_target("llama").model)
    with device_logits(monkeypatch, target.model) as fetched:
        state = target.new_state(8)
        target.prefill(state, PROMPT[:4])
        scores = target.score([state], [PROMPT[4:5]], Draft.chains([PROMPT[5:7]]))
    assert type(scores.logits) is DeviceTensor
    assert fetched == []
