"""Planted faults: each wrong variant of a kernel must fail the test that is there to catch it."""

import pytest
import torch
from tests.kernels import test_attention, test_outcome, test_rows, test_verify
from tests.kernels.conftest import SCHEDULES
from tests.kernels.emulator import SHARED, Emulator, build, guarded_launches, poisoned

from specrs.errors import GpuError


def statistics(stand_in):
    test_rows.test_statistics(stand_in, torch.float32, 8193)


def draws(stand_in):
    test_rows.test_draws_follow_the_law(stand_in, torch.float32, 1001)


def chain(stand_in):
    for seed in (0, 2):
        test_verify.test_chain_equals_numpy_and_rust(stand_in, seed)


def siblings(stand_in):
    for seed in (0, 1):
        test_verify.test_siblings(stand_in, seed, False)
    test_verify.test_second_sibling_is_tested_against_what_is_left(stand_in)
    test_verify.test_duplicate_siblings_end_the_draft(stand_in)


def attention(splits):
    return lambda stand_in: test_attention.test_attention(stand_in, torch.bfloat16, 64, False, splits)


#: name: file, right text, wrong text, what must notice
FAULTS = {
    "missing barrier": (
        "include/specrs/block.h",
        "  if (lane_id() == 0) scratch.number[warp_id()] = v;\n  __syncthreads();",
        "  if (lane_id() == 0) scratch.number[warp_id()] = v;",
        statistics,
    ),
    "stale residual: the draft's share is not taken out": (
        "kernels/verify_chain.cu",
        "site.draft_scale = lenience;",
        "site.draft_scale = 0.f;",
        chain,
    ),
    "accepts at the boundary": (
        "kernels/verify_chain.cu",
        "accept[row] * lenience * q < mix",
        "accept[row] * lenience * q <= mix",
        test_verify.test_the_boundary_itself_is_rejected,
    ),
    "32-bit offsets": (
        "include/specrs/portable.h",
        "return row * stride;",
        "return unsigned(row) * unsigned(stride);",
        test_rows.test_offsets_beyond_32_bits,
    ),
    "duplicate siblings are tested twice": (
        "kernels/verify_siblings.cu",
        "x.status = STATUS_DRAFT_NAN;",
        "x.status = x.status;",
        siblings,
    ),
    "siblings against a stale draft law": (
        "kernels/verify_siblings.cu",
        "if (!replacement) left = fmax(left - x.draft_prob, 1e-9);",
        "",
        siblings,
    ),
    "block verification stops at the first failure": (
        "kernels/verify_block.cu",
        "if (accept[row - 1] < h) tau = i;",
        "if (accept[row - 1] < h) tau = i; else break;",
        test_verify.test_block_goes_on_after_a_failed_prefix,
    ),
    "splits merged on a wrong base": (
        "kernels/tree_attention.cu",
        "const float weight = exp2_nonpositive(lse[row_offset(s, pairs) + at] - largest);",
        "const float weight = exp2_nonpositive(lse[at] - largest);",
        attention(3),
    ),
    "running maximum not rescaled": (
        "kernels/tree_attention.cu",
        "const float shrink = exp2_nonpositive(largest[h] - base[h]);",
        "const float shrink = 1.f;",
        attention(1),
    ),
    "tiles merged without their maximum": (
        "kernels/row_statistics.cu",
        "const float shift = (partials[i].max - best.value) * rate;",
        "const float shift = 0.f;",
        statistics,
    ),
    "reads keys before their copy has landed": (
        "kernels/tree_attention.cu",
        "wait_copies<1>();",
        "wait_copies<2>();",
        attention(1),
    ),
    "padding of a tile takes part": (
        "include/specrs/tile.h",
        "to_float(row[id + e]) : negative_infinity();",
        "to_float(row[id + e]) : 30.f;",
        statistics,
    ),
    "ties of top-p kept from the wrong end": (
        "kernels/row_law.cu",
        "nth_tie(row, s.key, -1, s.ties - kept + 1,",
        "nth_tie(row, s.key, -1, kept,",
        test_rows.test_ties_at_the_cut,
    ),
    "a node moved to its neighbour's slot": (
        "kernels/cache_commit.cu",
        "const int source = path[j + i];",
        "const int source = path[j];",
        lambda stand_in: test_attention.test_commit(stand_in, torch.float32),
    ),
    "coins of another stream": (
        "include/specrs/philox.h",
        "PURPOSE_ACCEPT = 2",
        "PURPOSE_ACCEPT = 5",
        lambda stand_in: test_verify.test_round_coins_are_those_of_rust(stand_in, by_sibling=False),
    ),
    "writes behind its output": (
        "kernels/cache_lookup.cu",
        "if (lane_id() == 0) hits[b] = hit;",
        "if (lane_id() < 2) hits[b + lane_id()] = hit;",
        test_outcome.test_lookup,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(patched, name):
    file, old, new, check = FAULTS[name]
    cuda = patched(file, old, new)
    faulty = Emulator(build(cuda / "emulator" / "driver.cpp", *SHARED, "-O1", cuda=cuda))
    faulty.open()
    caught = []
    for schedule in SCHEDULES:
        faulty.configure(*schedule)
        with poisoned(), guarded_launches():
            try:
                check(faulty)
            except (AssertionError, GpuError, IndexError) as error:
                caught.append(error)
    assert caught, f"nothing noticed: {name}"
