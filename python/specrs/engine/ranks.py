"""Agreement between the ranks that run one model together: what rank 0 decides, all do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


def whole(value: Any) -> Any:
    """Return ``value``: the other ranks get all of it."""
    return value


class Ranks(Protocol):
    """Ranks that call the engine with the same requests and meet in every forward of the target.

    Attributes
    ----------
    rank, size : int
        This rank, and how many there are.
    """

    rank: int
    size: int

    def attempt(self, work: Callable[[], Value]) -> Value:
        """Return what ``work`` returns; what it raises is held back until the next agreement, where all ranks hear it.

        For work that runs on every rank and may fail on one: a processor or a criterion of the caller's. Its result
        must not be used before the next :meth:`agree`.
        """
        ...

    def agree(self, decide: Callable[[], Value], sent: Callable[[Value], Value] = whole) -> Value:
        """Return what ``decide`` returns on rank 0, on every rank.

        Parameters
        ----------
        decide : callable
            Called on rank 0 alone.
        sent : callable
            Makes of the value what the other ranks get, when they need less of it.

        Raises
        ------
        RankError
            Where another rank has failed. A rank that failed itself raises its own error.
        """
        ...


class OneRank:
    """No other rank: whatever is decided is agreed."""

    rank = 0
    size = 1

    def attempt(self, work: Callable[[], Value]) -> Value:
        """Return ``work()``."""
        return work()

    def agree(self, decide: Callable[[], Value], sent: Callable[[Value], Value] = whole) -> Value:
        """Return ``decide()``."""
        return decide()


ONE_RANK = OneRank()
