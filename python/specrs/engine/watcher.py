"""Who looks over a request's shoulder: sees every run before it is trimmed, and may end the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Watcher(Protocol):
    """Follows one request token by token, in text order; the stop rules of another framework, say.

    Attributes
    ----------
    wants_rows : bool
        Whether :meth:`offered` is to be called: rows of logits cost a copy.
    """

    wants_rows: bool

    def offered(self, raw: Any, processed: Any) -> None:
        """See the rows that a run of n tokens was decided by, before it is trimmed.

        Parameters
        ----------
        raw, processed : tensor, shape (n, V)
            As the target gave them, and after bias, penalties and processors.
        """
        ...

    def stops(self, run: Sequence[int]) -> str | None:
        """Return what ends the text with the last token of ``run``, if anything does.

        Called for each token of a run in turn; ``run`` holds the tokens from the last commit up to this one.
        """
        ...

    def kept(self, count: int) -> None:
        """Learn that the first ``count`` tokens of the run were committed."""
        ...
