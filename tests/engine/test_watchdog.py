"""A drafter that stops being right begins anew and rests (case B88); memory that ends, and memory shown (B43)."""

import warnings

import pytest
import torch
from tests.engine.conftest import tiny_target
from tests.toys import ScriptDrafter, TattleLM

import specrs
from specrs.engine.watchdog import PATIENCE, TRIAL
from specrs.errors import CapacityError
from specrs.models import sequence_cache

PROMPT = [4, 9, 2, 7]
FOREVER = {"eos_token_id": None}


def plain(tokens):
    return specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=tokens, **FOREVER).ids


class Forgetful(ScriptDrafter):
    """Right for some rounds, then always wrong: until it is started again, or for good."""

    def __init__(self, text, right_rounds, *, healed_by_restart):
        super().__init__(self._next)
        self.text, self.left, self.healed = text, right_rounds, healed_by_restart

    def start(self, request):
        if len(self.started) and self.healed:
            self.left = 10**9
        super().start(request)
        self.kept[request.id] = request.output.tolist()  # a restart meets a text that has begun

    def _next(self, request, budget):
        right = self.text[request.generated] if request.generated < len(self.text) else 0
        self.left -= 1
        return [right] if self.left >= 0 else [(right + 1) % 32]


def test_b88_a_drafter_gone_silent_begins_anew():
    """B88: acceptance falls to nothing and stays there: one warning, the drafter starts again and is right again."""
    tokens = PATIENCE + 200
    text = plain(tokens)
    drafter = Forgetful(text, 20, healed_by_restart=True)
    with pytest.warns(UserWarning, match=f"none of the last {PATIENCE} drafts of drafter 'script'") as found:
        made = specrs.generate(TattleLM(), PROMPT, drafter=drafter, draft_tokens=1, max_new_tokens=tokens, **FOREVER)
    assert len(found) == 1
    assert made.ids == text
    assert len(drafter.started) == 2
    assert not drafter.active
    # 20 right rounds bring 40 tokens, 200 wrong ones 200, and up to 15 rest; then two tokens a round again.
    assert made.report.target_passes <= 20 + PATIENCE + TRIAL + (tokens - 40 - PATIENCE) // 2 + 1


def test_b88_a_drafter_that_stays_wrong_drafts_in_few_rounds():
    tokens = 20 * 2 + PATIENCE + 10 * TRIAL
    text = plain(tokens)
    drafter = Forgetful(text, 20, healed_by_restart=False)
    with pytest.warns(UserWarning, match="begins anew and drafts in one round of 16"):
        made = specrs.generate(TattleLM(), PROMPT, drafter=drafter, draft_tokens=1, max_new_tokens=tokens, **FOREVER)
    assert made.ids == text
    assert 20 + PATIENCE <= made.report.drafted <= 20 + PATIENCE + 10


def test_b88_a_drafter_that_never_was_right_is_left_to_the_policy():
    """Text that repeats nothing is no fault of the drafter's."""
    tokens = PATIENCE + 50
    drafter = Forgetful(plain(tokens), 0, healed_by_restart=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = specrs.generate(TattleLM(), PROMPT, drafter=drafter, draft_tokens=1, max_new_tokens=tokens, **FOREVER)
    assert made.report.drafted >= tokens - 1
    assert made.report.accepted == 0


@pytest.mark.parametrize("whose", ["target", "drafter"])
def test_b43_memory_that_ends_is_named_and_nothing_is_lost(monkeypatch, whose):
    """B43: an allocation that fails surfaces at once, with what was asked for; what was generated is kept."""
    target, draft = tiny_target("llama"), tiny_target("llama")
    caches = []
    grow = sequence_cache.SequenceCache._grow
    real_new_empty = torch.Tensor.new_empty

    def refused(self, *shape, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    def failing(self, stored, rows, needed):
        if self not in caches:
            caches.append(self)
        unlucky = caches.index(self) == (0 if whose == "target" else 1)
        if unlucky and (stored is not None or whose == "drafter"):
            monkeypatch.setattr(torch.Tensor, "new_empty", refused)
        try:
            return grow(self, stored, rows, needed)
        finally:
            monkeypatch.setattr(torch.Tensor, "new_empty", real_new_empty)

    monkeypatch.setattr(sequence_cache.SequenceCache, "_grow", failing)
    state_size = target.new_state
    monkeypatch.setattr(target, "new_state", lambda capacity: state_size(8))  # grows while it decodes
    options = {"drafter": "model", "draft_model": draft, "draft_tokens": 2} if whose == "drafter" else {}
    with pytest.raises(CapacityError, match=r"no memory for the keys or values of \d+ tokens .*: \d+ bytes") as found:
        specrs.generate(target, [*PROMPT, 1, 2, 3], max_new_tokens=40, **options, **FOREVER)
    expected = specrs.generate(tiny_target("llama"), [*PROMPT, 1, 2, 3], drafter="none", max_new_tokens=40, **FOREVER)
    partial = found.value.partial
    assert partial.finish_reason == "interrupted"
    assert partial.ids == expected.ids[: len(partial.ids)]
    assert (len(partial.ids) > 0) == (whose == "target")


@pytest.mark.parametrize("drafter", ["none", "cache", "model", "hybrid"])
def test_b43_the_report_shows_memory(drafter):
    """B43: keys and values for this text, not for the whole context; and what the drafter holds."""
    target = tiny_target("llama")
    options = {"draft_model": tiny_target("llama")} if drafter in ("model", "hybrid") else {}
    if drafter == "model":
        options["draft_tokens"] = 3  # whether it pays is not asked here: what was drafted takes memory
    made = specrs.generate(target, PROMPT, drafter=drafter, max_new_tokens=12, **options, **FOREVER)
    config = target.model.config
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    memory = made.report.memory
    assert memory["target"] == per_token * (len(PROMPT) + 12 + 64)
    if drafter == "none":
        assert memory["drafter"] == 0
    else:
        assert 0 < memory["drafter"] < 10 * per_token * (len(PROMPT) + 12 + 64)
    assert f"target {memory['target'] / 1e6:.1f} MB" in str(made.report)
    assert made.report.to_dict()["memory"] == memory
