"""The target's law before temperature: bias, penalties, forbidden ends and processors, on every scored row.

Each row is processed once, before verification, with its own path as history, so that a draft's rows say what plain
decoding would have said there. On a device, bias, penalties and forbidden ends fetch the rows of the requests that have
them; processors are called where the rows are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.engine.request import is_stateless
from specrs.errors import InvalidInputError
from specrs.ops import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from specrs.engine.request import Request
    from specrs.types import Draft, Scores


@dataclass
class ProcessedScores:
    """Logits ready for the verifier.

    Attributes
    ----------
    logits : tensor, shape (B + N, V)
        The scores' own logits where no request asks for processing, a float32 copy otherwise.
    row_states : dict of int to list
        For a row that called processors with a state: the processors as they are after that row.
    """

    logits: Any
    row_states: dict[int, list[Any]]


def process(requests: Sequence[Request], draft: Draft, scores: Scores) -> ProcessedScores:
    """Apply each request's bias, penalties and processors to its rows."""
    wanted = [b for b, request in enumerate(requests) if _needs_processing(request)]
    if not wanted:
        return ProcessedScores(scores.logits, {})
    logits = _float32_copy(scores.logits)
    row_states: dict[int, list[Any]] = {}
    for b in wanted:
        first = int(scores.row_ptr[b])
        states = _process_request(requests[b], draft, b, logits[first : int(scores.row_ptr[b + 1])])
        row_states |= {first + offset: processors for offset, processors in states.items()}
    return ProcessedScores(logits, row_states)


def _float32_copy(logits: Any) -> Any:
    """Return the rows as float32 that may be written to: an array for an array, a tensor for a tensor."""
    if isinstance(logits, np.ndarray):
        return logits.astype(np.float32)
    import torch

    return logits.to(torch.float32, copy=True)


def _needs_processing(request: Request) -> bool:
    return bool(request.processors) or _has_builtin(request)


def _has_builtin(request: Request) -> bool:
    sampling = request.sampling
    return bool(
        sampling.has_penalties
        or sampling.logit_bias
        or (request.generated < request.stop.min_new_tokens and request.stop.ending_ids)
    )


def _process_request(request: Request, draft: Draft, b: int, rows: Any) -> dict[int, list[Any]]:
    """Change the request's rows, shape (1 + nodes, V); return the processors as they are after each of the rows."""
    nodes = draft.nodes_of(b)
    parents = draft.parents[nodes].tolist()
    paths: list[list[int]] = [[]]
    for token, parent in zip(draft.tokens[nodes].tolist(), parents, strict=True):
        paths.append([*paths[parent + 1], token])
    if _has_builtin(request):
        values: npt.NDArray[np.float32] = np.asarray(where.on_host(rows))  # a view of what is on the host
        for path, row in zip(paths, values, strict=True):
            _apply_builtin(request, path, row)
        if where.on_a_device(rows):
            import torch

            rows.copy_(torch.from_numpy(values))
    return _process_rows(request, paths, parents, rows) if request.processors else {}


def _process_rows(request: Request, paths: list[list[int]], parents: list[int], rows: Any) -> dict[int, list[Any]]:
    row_states: dict[int, list[Any]] = {}
    unreachable = [False] * len(paths)
    for offset, path in enumerate(paths):
        before = request.processors
        if offset:
            above = parents[offset - 1] + 1
            # A token that its parent's row rules out is never accepted: what comes below is never read, and a grammar
            # must not be shown a text that it forbids.
            unreachable[offset] = unreachable[above] or bool(rows[above, path[-1]] == -np.inf)
            if unreachable[offset]:
                continue
            before = row_states[above]
        # The anchor's row may use the request's own processors when nothing else starts from them.
        states = [p if is_stateless(p) else copy.deepcopy(p) for p in before] if len(paths) > 1 else before
        _call_processors(request, states, path, rows, offset)
        row_states[offset] = states
    return row_states


def _apply_builtin(request: Request, path: list[int], values: npt.NDArray[np.float32]) -> None:
    sampling = request.sampling
    width = len(values)
    for token, bias in sampling.logit_bias.items():
        if token >= width:
            raise InvalidInputError(f"logit_bias names id {token}, the model has {width} ids")
        values[token] += bias
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.concatenate([request.tokens, np.asarray(path, np.uint32)]))
        picked = values[seen]
        values[seen] = np.where(picked < 0, picked * sampling.repetition_penalty, picked / sampling.repetition_penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        written, counts = np.unique(np.concatenate([request.output, np.asarray(path, np.uint32)]), return_counts=True)
        values[written] -= (sampling.frequency_penalty * counts + sampling.presence_penalty).astype(np.float32)
    if request.generated + len(path) < request.stop.min_new_tokens:
        values[list(request.stop.ending_ids)] = -np.inf


def _call_processors(request: Request, states: list[Any], path: list[int], logits: Any, row: int) -> None:
    import torch

    history = np.concatenate([request.tokens, np.asarray(path, np.uint32)]).astype(np.int64)
    input_ids = torch.from_numpy(history)[None]
    if isinstance(logits, np.ndarray):
        logits = torch.from_numpy(logits)  # processors speak torch; the memory stays the array's
    elif where.on_a_device(logits):
        input_ids = input_ids.to(logits.device)
    scores = logits[row : row + 1]
    for processor in states:
        scores = processor(input_ids, scores)
        if scores.shape != (1, logits.shape[1]):
            raise InvalidInputError(
                f"logits processor {type(processor).__name__} returned shape {tuple(scores.shape)}, "
                f"expected {(1, logits.shape[1])}"
            )
    if scores.data_ptr() != logits[row].data_ptr():
        logits[row] = scores[0]
