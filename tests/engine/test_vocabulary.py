"""Drafters of another vocabulary, ids that do not exist, malformed drafts (cases B30, B31, B36)."""

import numpy as np
import pytest
from tests.engine.conftest import VOCABULARY, hf_greedy, tiny_target
from tests.toys import ScriptDrafter, TableLM, TattleLM, Vocabulary, oracle

import specrs
from specrs.errors import InvalidInputError, SpecrsError, VocabularyMismatchError
from specrs.models.vocabulary import require_same_vocabulary
from specrs.types import Draft

FOREVER = {"eos_token_id": None}
TEXTS = [f"t{i}" for i in range(32)]


def swapped(*pairs):
    texts = list(TEXTS)
    for a, b in pairs:
        texts[a], texts[b] = texts[b], texts[a]
    return Vocabulary(texts)


def test_b31_swapped_ids_are_named():
    """B31: same size, ids 7 and 9 swapped."""
    with pytest.raises(VocabularyMismatchError, match=r"2 ids: 7: target 't7', drafter 't9', 9: target 't9'"):
        require_same_vocabulary(Vocabulary(TEXTS), swapped((7, 9)))


def test_b31_four_special_tokens_differ():
    theirs = Vocabulary([*TEXTS[:28], "<a>", "<b>", "<c>", "<d>"])
    with pytest.raises(VocabularyMismatchError, match=r"by 4 ids: 28: target 't28', drafter '<a>'.*family"):
        require_same_vocabulary(Vocabulary(TEXTS), theirs)


def test_b31_many_differences_are_counted():
    with pytest.raises(VocabularyMismatchError, match=r"by 20 ids.*and 15 more"):
        require_same_vocabulary(Vocabulary(TEXTS), swapped(*((i, i + 1) for i in range(0, 20, 2))))


def test_b31_is_an_error_by_default():
    target, drafting = TattleLM(tokenizer=Vocabulary(TEXTS)), TattleLM(tokenizer=swapped((7, 9)))
    with pytest.raises(VocabularyMismatchError, match="7: target 't7'"):
        specrs.generate(target, [1], drafter="model", draft_model=drafting)
    assert target.forwards == [], "refused before any work"


@pytest.mark.parametrize("ours", [28, 32, 40])
@pytest.mark.parametrize("theirs", [28, 32, 40])
def test_b30_tokenizers_of_different_length(ours, theirs):
    """B30: padded heads and extra ids are no mismatch; the ids both know are compared."""
    texts = [f"t{i}" for i in range(40)]
    require_same_vocabulary(Vocabulary(texts[:ours]), Vocabulary(texts[:theirs]))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafter_width", [20, 32, 50])
def test_b30_models_of_different_width(drafter_width, temperature):
    """B30: a narrower and a wider drafter; no crash, and the greedy text is plain decoding's."""
    options = {"max_new_tokens": 40, "temperature": temperature, "seed": 1, **FOREVER}
    made = specrs.generate(
        TattleLM(),
        [3, 1, 2],
        drafter="model",
        draft_model=TattleLM(drafter_width, habit=2.0),
        draft_tokens=4,
        **options,
    )
    assert made.report.drafted > 0
    assert max(made.ids) < 32
    if temperature == 0:
        assert made.ids == specrs.generate(TattleLM(), [3, 1, 2], drafter="none", **options).ids


def test_b30_narrow_drafter_meets_an_id_it_does_not_have():
    """The committed text holds ids beyond the drafter's head: it cannot read them, and the text goes on."""
    options = {"max_new_tokens": 40, **FOREVER}
    prompt = [31, 30, 29, 2]
    narrow = tiny_like(24)
    made = specrs.generate(TattleLM(), prompt, drafter="model", draft_model=narrow, draft_tokens=4, **options)
    assert made.ids == specrs.generate(TattleLM(), prompt, drafter="none", **options).ids


def tiny_like(vocab_size):
    """A real model of another vocabulary: an id beyond it fails in the embedding."""
    import torch
    from tests.engine.conftest import SHAPE
    from transformers import LlamaConfig, LlamaForCausalLM

    from specrs.models.hf import TransformersTarget

    torch.manual_seed(1)
    return TransformersTarget(
        LlamaForCausalLM(LlamaConfig(**{**SHAPE, "vocab_size": vocab_size})).eval(), name="narrow"
    )


@pytest.mark.parametrize("bad", [VOCABULARY, VOCABULARY + 10, 2**32 - 2])
@pytest.mark.parametrize("where", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 4}, {"repetition_penalty": 1.2}], ids=str)
def test_b30_ids_that_the_target_lacks(bad, where, options):
    """B30: never accepted, no crash in the embedding or in the penalties, whatever hangs below them."""
    prompt = [7, 3, 9, 11]
    options = {"max_new_tokens": 20, **FOREVER, **options}
    plain = specrs.generate(tiny_target("llama"), prompt, drafter="none", **options).ids

    def propose(request, budget):
        chain = plain[request.generated :][:5]
        if len(chain) > where:
            chain[where] = bad
        return chain

    made = specrs.generate(tiny_target("llama"), prompt, drafter=ScriptDrafter(propose), draft_tokens=5, **options)
    assert made.ids == plain
    assert made.report.acceptance_rate < 1


def chains(*rows):
    return Draft.chains([list(row) for row in rows])


def flat(tokens, parents, depths, node_ptr):
    return Draft(
        tokens=np.array(tokens, np.uint32),
        parents=np.array(parents, np.int32),
        depths=np.array(depths, np.int32),
        node_ptr=np.array(node_ptr, np.int64),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [-1, 1], [1, 2], [0, 2]), r"node 1 has parent 1, expected -1 to 0"),
        (([1, 2], [1, -1], [2, 1], [0, 2]), r"node 0 has parent 1"),
        (([1, 2], [-1, -2], [1, 1], [0, 2]), r"node 1 has parent -2"),
        (([1, 2], [-1, 0], [1, 1], [0, 2]), r"node 1 with parent 0 has depth 1, expected 2"),
        (([1, 2, 3], [-1, 0, 0], [1, 2, 2], [0, 1, 3]), r"node 0 has parent 0"),
        (([1, 2], [-1], [1, 2], [0, 2]), r"parents has 1 rows, expected one per node: 2"),
        (([1, 2], [-1, 0], [1, 2], [0, 3]), r"node_ptr must rise from 0 to 2"),
        (([1, 2], [-1, 0], [1, 2], [0, 2, 1, 2]), r"node_ptr must rise"),
    ],
)
def test_malformed_drafts_are_refused(arguments, message):
    """A tree that is not one, or depths that are not its own, would have been scored at wrong positions."""
    with pytest.raises(InvalidInputError, match=message):
        flat(*arguments)


@pytest.mark.parametrize("lengths", [(0,), (5,), (0, 3, 1), (2, 0, 0), (0, 0)])
def test_b36_lengths_are_explicit(lengths):
    """B36: no padding; row pointers say what is whose."""
    draft = chains(*([9] * n for n in lengths))
    assert np.diff(draft.node_ptr).tolist() == list(lengths)
    assert draft.depths.tolist() == [d for n in lengths for d in range(1, n + 1)]
    assert [draft.within([1] * len(lengths)).tokens.tolist()] == [[9] * sum(min(n, 1) for n in lengths)]


def test_a_draft_cut_to_its_budgets_keeps_its_trees():
    draft = flat([1, 2, 3, 4, 5, 6], [-1, -1, 0, 2, -1, 0], [1, 1, 2, 3, 1, 2], [0, 4, 6])
    cut = draft.within([3, 0])
    assert cut.tokens.tolist() == [1, 2, 3]
    assert cut.parents.tolist() == [-1, -1, 0]
    assert cut.node_ptr.tolist() == [0, 3, 3]
    assert draft.within([4, 9]) is draft


def test_a_draft_for_the_wrong_number_of_requests_is_named():
    class Short(ScriptDrafter):
        def propose(self, requests, budgets):
            return chains([1])

    with pytest.raises(SpecrsError, match="'script' drafted for 1 requests, expected 2"):
        specrs.generate(TattleLM(), [[1], [2]], drafter=Short(lambda request, budget: []), draft_tokens=2)


def test_b30_drafter_that_returns_nan_goes_on_without():
    drafting = TableLM(32, lambda prefix: np.full(32, np.nan) if len(prefix) % 3 == 0 else np.arange(32) / 4.0)
    for temperature in (0.0, 1.0):
        options = {"max_new_tokens": 30, "temperature": temperature, "seed": 1, **FOREVER}
        made = specrs.generate(TattleLM(), [1, 2], drafter="model", draft_model=drafting, draft_tokens=4, **options)
        assert len(made.ids) == 30
        if temperature == 0:
            assert made.ids == specrs.generate(TattleLM(), [1, 2], drafter="none", **options).ids


def test_oracle_of_the_real_model_is_accepted():
    text = hf_greedy("llama", [7, 3, 9, 11], 20)
    drafter = ScriptDrafter(oracle({(7, 3, 9, 11): text}, "right", VOCABULARY))
    made = specrs.generate(tiny_target("llama"), [7, 3, 9, 11], drafter=drafter, draft_tokens=5, max_new_tokens=20)
    assert made.ids == text
