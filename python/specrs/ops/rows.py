"""Kernels over vocabulary rows: statistics, sampling laws, plain draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from specrs.errors import InvalidInputError
from specrs.ops.draft import Layout, check_tensor, to_fill
from specrs.ops.launch import launch

if TYPE_CHECKING:
    import torch

#: Elements of a row that one block holds; ``TILE`` of ``cuda/include/specrs/tile.h``.
TILE = 8192
#: Words of one law, of one partial and of one draw site.
LAW_WORDS, PARTIAL_WORDS, SITE_WORDS = 8, 4, 8
#: Leaders of a tile, of 8 bytes each; ``MOST_LISTED`` of ``cuda/include/specrs/leaders.h``.
MOST_LISTED = 256


def tile_count(vocabulary: int) -> int:
    """Return the number of tiles that cover a row, whatever its alignment."""
    return (vocabulary + 7 + TILE - 1) // TILE


class Sampling(NamedTuple):
    """Sampling parameters by request, on the device of the logits.

    ``temperature``, ``top_p`` and ``min_p`` are float32 of shape (B,), ``top_k`` is int32 of shape (B,); 0, 0, 1 and 0
    switch the four off.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


class RowStatistics(NamedTuple):
    """Facts of each row, shapes (R,): argmax int64 (-1 for an unusable row), the others float32, status int32."""

    argmax: torch.Tensor
    max_prob: torch.Tensor
    entropy: torch.Tensor
    log_sum_exp: torch.Tensor
    status: torch.Tensor


class RowLaws(NamedTuple):
    """Sampling laws of rows: ``laws`` (R, 8) int32 words, ``masses`` (R, tiles) float64, and what they came from."""

    laws: torch.Tensor
    masses: torch.Tensor
    partials: torch.Tensor
    tiles: int


def logits_suffix(logits: torch.Tensor) -> str:
    """Return the suffix of the kernels for the type of `logits`, a matrix whose rows are contiguous."""
    import torch

    suffixes = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
    if logits.dim() != 2 or logits.dtype not in suffixes:
        message = (
            f"logits must be a float32, bfloat16 or float16 matrix, got {logits.dtype} of shape {tuple(logits.shape)}"
        )
        raise InvalidInputError(message)
    if not logits.is_contiguous():
        message = f"logits must be contiguous, got strides {logits.stride()} of shape {tuple(logits.shape)}"
        raise InvalidInputError(message)
    if not 0 < logits.shape[1] < 2**31:
        raise InvalidInputError(f"a vocabulary must have 1 to 2**31 - 1 entries, got {logits.shape[1]}")
    return suffixes[logits.dtype]


def _partials(
    logits: torch.Tensor, row_ptr: torch.Tensor | None, temperature: torch.Tensor | None, exclude: int
) -> tuple[torch.Tensor, int]:
    import torch

    rows, vocabulary = logits.shape
    tiles = tile_count(vocabulary)
    partials = torch.empty((rows, tiles, PARTIAL_WORDS), dtype=torch.int32, device=logits.device)
    requests = 0 if row_ptr is None else row_ptr.shape[0] - 1
    launch(
        f"row_partials_{logits_suffix(logits)}",
        rows * tiles,
        [logits, vocabulary, vocabulary, tiles, row_ptr, requests, temperature, exclude, partials],
    )
    return partials, tiles


def row_leaders(
    logits: torch.Tensor, row_ptr: torch.Tensor | None = None, sampling: Sampling | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """List the largest logits of each tile, of the rows whose law is truncated or, without requests, of all.

    Returns
    -------
    (tensor (R, tiles, 256) int64, tensor (R, tiles) int64)
        Pairs of logit and id, and of their number and how far down they reach, which are the kernels' own affair.
    """
    import torch

    rows, vocabulary = logits.shape
    tiles = tile_count(vocabulary)
    leaders = torch.empty((rows, tiles, MOST_LISTED), dtype=torch.int64, device=logits.device)
    listed = torch.empty((rows, tiles), dtype=torch.int64, device=logits.device)
    requests = 0 if row_ptr is None else row_ptr.shape[0] - 1
    parameters = (None, None, None, None) if sampling is None else sampling
    launch(
        f"row_leaders_{logits_suffix(logits)}",
        rows * tiles,
        [logits, vocabulary, vocabulary, tiles, row_ptr, requests, *parameters, leaders, listed],
    )
    return leaders, listed


def row_statistics(
    logits: torch.Tensor,
    row_ptr: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    exclude: int = -1,
    out: RowStatistics | None = None,
) -> RowStatistics:
    """Return argmax, largest probability, entropy (nats) and log-sum-exp of each row, reading each row once.

    Parameters
    ----------
    logits : tensor, shape (R, V)
        float32, bfloat16 or float16.
    row_ptr, temperature : tensor, optional
        int64 (B + 1,) and float32 (B,): a temperature per request. At temperature 0, and without them, it is 1.
    exclude : int
        An id that cannot be predicted (the mask token of a diffusion model), or -1.
    out : RowStatistics, optional
        Tensors to fill.
    """
    check_statistics(logits, row_ptr, temperature, exclude)
    facts = RowStatistics(*to_fill(out, logits, statistics_layout(logits)))
    partials, tiles = _partials(logits, row_ptr, temperature, exclude)
    rows = logits.shape[0]
    requests = 0 if row_ptr is None else row_ptr.shape[0] - 1
    launch("row_summary", (rows + 7) // 8, [partials, tiles, rows, row_ptr, requests, temperature, *facts])
    return facts


def statistics_layout(logits: torch.Tensor, *_: torch.Tensor | int | None) -> Layout:
    """Return the layout of :class:`RowStatistics`."""
    import torch

    kinds = (torch.int64, torch.float32, torch.float32, torch.float32, torch.int32)
    return {name: (kind, (logits.shape[0],)) for name, kind in zip(RowStatistics._fields, kinds, strict=True)}


def check_statistics(
    logits: torch.Tensor, row_ptr: torch.Tensor | None, temperature: torch.Tensor | None, exclude: int
) -> None:
    """Refuse temperatures without their requests, or the other way round, and an id that there is not."""
    import torch

    logits_suffix(logits)
    if (row_ptr is None) != (temperature is None):
        raise InvalidInputError("row_ptr and temperature must be given together, got one of them")
    if row_ptr is not None and temperature is not None:
        requests = temperature.shape[0] if temperature.dim() else -1
        check_tensor("temperature", temperature, torch.float32, (requests,))
        check_tensor("row_ptr", row_ptr, torch.int64, (requests + 1,))
        if requests < 1 <= logits.shape[0]:
            raise InvalidInputError(f"{logits.shape[0]} rows must belong to requests, got none")
    if not -1 <= exclude < logits.shape[1]:
        raise InvalidInputError(f"exclude must be an id below {logits.shape[1]} or -1, got {exclude}")


def row_laws(logits: torch.Tensor, row_ptr: torch.Tensor, sampling: Sampling) -> RowLaws:
    """Form the sampling law of each row (temperature, top-k, top-p, min-p) without a matrix of probabilities.

    Parameters
    ----------
    logits : tensor, shape (R, V)
        float32, bfloat16 or float16.
    row_ptr : tensor, shape (B + 1,)
        int64; request ``b`` owns the rows ``row_ptr[b]`` to ``row_ptr[b + 1]``.
    sampling : Sampling
        One entry per request.
    """
    import torch

    partials, tiles = _partials(logits, row_ptr, sampling.temperature, -1)
    rows, vocabulary = logits.shape
    laws = torch.empty((rows, LAW_WORDS), dtype=torch.int32, device=logits.device)
    masses = torch.empty((rows, tiles), dtype=torch.float64, device=logits.device)
    launch(
        f"row_law_{logits_suffix(logits)}",
        rows,
        [
            logits,
            vocabulary,
            vocabulary,
            row_ptr,
            row_ptr.shape[0] - 1,
            partials,
            tiles,
            *row_leaders(logits, row_ptr, sampling),
            *sampling,
            laws,
            masses,
        ],
    )
    return RowLaws(laws, masses, partials, tiles)


def row_probs(logits: torch.Tensor, laws: RowLaws, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the laws as probabilities: float32 of shape (R, V), the weights that draws are made by; NaN for no law."""
    import torch

    rows, vocabulary = logits.shape
    (probs,) = to_fill(out, logits, {"probs": (torch.float32, (rows, vocabulary))})
    launch(
        f"row_probs_{logits_suffix(logits)}",
        rows * laws.tiles,
        [logits, vocabulary, vocabulary, laws.laws, laws.tiles, probs],
    )
    return probs


def draw_rows(logits: torch.Tensor, laws: RowLaws, emit: torch.Tensor) -> torch.Tensor:
    """Draw one id per row with its emit coin: int64 of shape (R,), -1 for a row without a law."""
    import torch

    rows, vocabulary = logits.shape
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    launch(
        f"draw_rows_{logits_suffix(logits)}",
        rows,
        [logits, vocabulary, vocabulary, laws.laws, laws.masses, laws.tiles, emit, drawn],
    )
    return drawn
