"""Whether two tokenizers mean the same text by the same ids."""

from __future__ import annotations

from typing import Any

from specrs.errors import VocabularyMismatchError

#: Differing ids that an error names.
NAMED = 5


def require_same_vocabulary(target: Any, drafter: Any) -> None:
    """Compare two tokenizers id by id.

    Ids that only one of them knows are allowed (the heads of a family are padded to different widths): the drafter
    cannot be believed there, and is not asked.

    Parameters
    ----------
    target, drafter : object
        transformers tokenizers.

    Raises
    ------
    VocabularyMismatchError
        An id known to both stands for different texts. Names the first such ids with both texts.
    """
    ours = {i: text for text, i in target.get_vocab().items()}
    theirs = {i: text for text, i in drafter.get_vocab().items()}
    different = [i for i in sorted(ours.keys() & theirs.keys()) if ours[i] != theirs[i]]
    if not different:
        return
    shown = ", ".join(f"{i}: target {ours[i]!r}, drafter {theirs[i]!r}" for i in different[:NAMED])
    more = f" and {len(different) - NAMED} more" if len(different) > NAMED else ""
    raise VocabularyMismatchError(
        f"target ({len(ours)} ids) and drafter ({len(theirs)} ids) mean different texts by {len(different)} ids: "
        f"{shown}{more}. Use a draft model of the target's family"
    )
