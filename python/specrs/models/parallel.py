"""Tensor parallelism: the ranks that hold one model's parts agree on every decision, by rank 0's word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from specrs.engine.ranks import ONE_RANK, OneRank, whole
from specrs.errors import RankError, SpecrsError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


class ProcessGroupRanks:
    """The ranks of a torch process group.

    A forward of a sharded model is a chain of collectives: all ranks must bring the same rows, or they wait for each
    other for ever. What goes into it (draft lengths, drafts) and what comes out (verdicts, ends of texts) depends on
    clocks, on random numbers, and on floats that another processor may round otherwise; so rank 0 decides and the
    others are told. Two ranks then commit the same text even where their own computation would have differed.

    A rank that fails tells so at the next agreement, so that nobody waits for it: the failure of one is the end of the
    run for all. (A failure within a forward is beyond us; the process group's own timeout ends it.)

    Parameters
    ----------
    group : ProcessGroup, optional
        Default: all processes.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._failure: BaseException | None = None

    def attempt(self, work: Callable[[], Value]) -> Value:
        """Return ``work()``, or hold its failure back until the next agreement."""
        if self._failure is None:
            try:
                return work()
            except BaseException as error:  # told to all ranks, then raised
                self._failure = error
        return None  # type: ignore[return-value]

    def agree(self, decide: Callable[[], Value], sent: Callable[[Value], Value] = whole) -> Value:
        """Return on every rank what ``decide`` returns on rank 0.

        Raises
        ------
        RankError
            Where another rank has failed.
        """
        value = self.attempt(decide) if self.rank == 0 else None
        failure, self._failure = self._failure, None
        told = None if failure is None else f"{type(failure).__name__}: {failure}"
        heard: list[Any] = [None] * self.size
        dist.all_gather_object(heard, (sent(value) if self.rank == 0 and told is None else None, told), self._group)
        if failure is not None:
            raise failure
        for rank, (_, message) in enumerate(heard):
            if message is not None:
                raise RankError(f"rank {rank} of {self.size} failed, and all ranks stop with it: {message}")
        return value if self.rank == 0 else heard[0][0]  # type: ignore[no-any-return]


def ranks_of(model: Any) -> OneRank | ProcessGroupRanks:
    """Return the ranks among which ``model`` is sharded; one rank for a model that is whole here.

    Raises
    ------
    UnsupportedModelError
        The model is sharded in another way than by tensor parallelism, or without a process group.
    """
    for kind in ("fsdp", "pp"):
        size = getattr(model, f"{kind}_size", None) or getattr(model, f"_{kind}_size", None)
        if isinstance(size, int) and size > 1:
            raise UnsupportedModelError(
                f"{type(model).__name__} is sharded over {size} ranks by {kind}; specrs drives tensor parallel models "
                "(tp_plan='auto') and whole ones"
            )
    size = getattr(model, "tp_size", None) or 1
    if size == 1:
        return ONE_RANK
    if not (dist.is_available() and dist.is_initialized()):
        raise UnsupportedModelError(f"{type(model).__name__} is sharded over {size} ranks, but no process group is up")
    return ProcessGroupRanks(_group_of(model, size))


def _group_of(model: Any, size: int) -> Any:
    """Return the process group of the model's tensor parallel ranks; None stands for all processes."""
    mesh = getattr(model, "_device_mesh", None)
    if mesh is not None:
        names = mesh.mesh_dim_names or ()
        return mesh["tp"].get_group() if "tp" in names and mesh.ndim > 1 else mesh.get_group()
    if dist.get_world_size() != size:
        raise SpecrsError(
            f"the model is sharded over {size} ranks of {dist.get_world_size()} and does not say which (no device mesh)"
        )
    return None
