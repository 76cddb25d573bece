"""Notices a drafter that used to be right and no longer is: acceptance that falls to nothing and stays there."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.drafters.base import Drafter
    from specrs.engine.request import Request

#: Rounds in a row whose drafts were all refused before a drafter that used to be right is distrusted.
PATIENCE = 200
#: A distrusted drafter drafts in one round of so many, until something is accepted again.
TRIAL = 16


class Watchdog:
    """Resets a drafter that has gone silent, and lets it draft in few rounds until it is right again.

    A fault in a drafter's memory never shows in the text, which the target vouches for: it shows as drafts that are
    all refused, paid for each round. Length policies rest on their own account of costs; this watches every one,
    ``fixed`` too.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._was_right = False
        self._refused = 0
        self._resting = False
        self._skipped = 0

    def may_draft(self) -> bool:
        """Tell whether the drafter is asked this round."""
        if not self._resting:
            return True
        self._skipped += 1
        return self._skipped % TRIAL == 0

    def note(self, requests: Sequence[Request], drafted: int, accepted: int) -> None:
        """Take a round's nodes, drafted and accepted, of all requests; the running ones meet a reset drafter anew."""
        if not drafted:
            return
        if accepted:
            self._was_right, self._resting, self._refused = True, False, 0
            return
        self._refused += 1
        if self._refused < PATIENCE or self._resting or not self._was_right:
            return
        self._resting = True
        for request in requests:
            if request.finish_reason is None:
                self._drafter.finish(request)
                if request.session is not None:  # what it remembers may be what is wrong
                    request.session.forget_drafters()
                self._drafter.start(request)
        warnings.warn(
            f"none of the last {PATIENCE} drafts of drafter {self._drafter.name!r} was accepted, and earlier ones "
            f"were: it begins anew and drafts in one round of {TRIAL} until it is right again. The text is not "
            "affected; if it did not change its subject, please report this",
            stacklevel=2,
        )
