"""Every entry of the kernel table, each element type and head size: launched by its op, and as the host."""

import pytest
import torch
from tests.kernels.emulator import guarded_launches, launched, poisoned
from tests.kernels.resources import stem
from tests.kernels.test_attention import TOLERANCE, case, visibility
from tests.kernels.test_torch_ops import arguments

from specrs import _core
from specrs.ops import attention, torch_ops

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

#: The op that launches a kernel, by the kernel's name without its type.
OPS = {
    "row_partials": "row_statistics",
    "row_summary": "row_statistics",
    "row_leaders": "verify_walk",
    "row_law": "verify_walk",
    "row_top_k": "top_k_rows",
    "draw_rows": "verify_walk",
    "walk_tree": "verify_walk",
    "row_probs": "draw_tokens",
    "relaxed_bound": "verify_relaxed",
    "relaxed_sums": "verify_relaxed",
    "relaxed_choice": "verify_relaxed",
    "accept_chain": "verify_chain",
    "residual_masses": "verify_chain",
    "residual_draw": "verify_chain",
    "block_sites": "verify_block",
    "accept_block": "verify_block",
    "advance_lengths": "commit_cache",
}


def type_of(entry):
    """The element type that is part of an entry's name, or None."""
    return next((TYPES[part] for part in entry.split("_") if part in TYPES), None)


#: What ends the arguments of the op where its case does not lead to the kernel.
ENDINGS = {"relaxed_bound": ["top_k", [3.0]]}


def by_device_and_host(op, dtype, ending):
    """What an op makes of its case, its first argument in `dtype`, by the kernels and by the host."""
    made = []
    for run in torch_ops.OPS[op][:2]:
        torch.manual_seed(1)
        first, *rest = arguments()[op][0]
        rest[len(rest) - len(ending) :] = ending
        result = run(first if dtype is None else first.to(dtype), *rest)
        changed = {"commit_cache": rest[1:2], "write_caches": rest[0]}
        made.append((*first, *changed[op]) if op in changed else result)
    return made


def attention_by_device_and_host(entry, dtype):
    last = entry.split("_")[-1]
    shapes, dim = [[-1, 0, 0], [-1]], int(last) if last.isdecimal() else 96
    query, keys, values, prefix, row_ptr = case(dtype, dim, 4, 2, [35, 2], shapes, 40)
    given = [query, keys.nan_to_num(), values.nan_to_num(), prefix, row_ptr, visibility(shapes, 1)[0]]
    return attention.tree_attention(*given, splits=2), torch_ops.OPS["tree_attention"][1](*given)


@pytest.mark.parametrize("entry", [name for name, *_ in _core.gpu_kernels()])
def test_every_kernel_is_launched_and_equals_the_host(stand_in, entry):
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 5)
    names, dtype, tolerance = set(), type_of(entry), 2e-5
    with poisoned(), guarded_launches(), launched(names):
        if "attention" in entry:
            device, host = attention_by_device_and_host(entry, dtype)
            tolerance = max(tolerance, TOLERANCE[dtype])
        else:
            name = stem(entry)
            device, host = by_device_and_host(OPS.get(name, name), dtype, ENDINGS.get(name, []))
    assert entry in names
    device, host = ([x] if isinstance(x, torch.Tensor) else x for x in (device, host))
    for ours, theirs in zip(device, host, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
