"""Planted faults: each wrong variant of a kernel must fail the test that is there to catch it."""

import re

import pytest
import torch
from tests.kernels import (
    test_attention,
    test_bad_input,
    test_caches,
    test_outcome,
    test_rows,
    test_torch_ops,
    test_verify,
)
from tests.kernels.conftest import SCHEDULES
from tests.kernels.emulator import SHARED, Emulator, build, guarded_launches, launched, poisoned

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
        test_verify.test_siblings(stand_in, seed, torch.float32, False)
    test_verify.test_second_sibling_is_tested_against_what_is_left(stand_in)
    test_verify.test_duplicate_siblings_end_the_draft(stand_in)


def attention(splits):
    return lambda stand_in: test_attention.test_attention(stand_in, torch.bfloat16, 64, False, splits)


#: name: file, right text, wrong text, what must notice, which kernels are wrong (a pattern)
FAULTS = {
    "missing barrier": (
        "include/specrs/block.h",
        "  if (lane_id() == 0) slots[warp_id()] = v;\n  __syncthreads();",
        "  if (lane_id() == 0) slots[warp_id()] = v;",
        statistics,
        ".*",
    ),
    "stale residual: the draft's share is not taken out": (
        "include/specrs/choice.h",
        "site.draft_scale = choice.kind == CHOICE_LENIENCE ? choice.value : 1.f;",
        "site.draft_scale = 0.f;",
        chain,
        "accept_chain",
    ),
    "accepts at the boundary": (
        "include/specrs/choice.h",
        "return supported && coin * q < (",
        "return supported && coin * q <= (",
        test_verify.test_the_boundary_itself_is_rejected,
        "accept_chain",
    ),
    "32-bit offsets": (
        "include/specrs/portable.h",
        "return row * stride;",
        "return unsigned(row) * unsigned(stride);",
        test_rows.test_offsets_beyond_32_bits,
        ".*",
    ),
    "duplicate siblings are tested twice": (
        "kernels/verify_siblings.cu",
        "x.status = STATUS_DRAFT_NAN;",
        "x.status = x.status;",
        siblings,
        "verify_siblings",
    ),
    "siblings against a stale draft law": (
        "kernels/verify_siblings.cu",
        "if (!replacement) left = fmax(left - x.draft_prob, 1e-9);",
        "",
        siblings,
        "verify_siblings",
    ),
    "block verification stops at the first failure": (
        "kernels/verify_block.cu",
        "if (accept[row - 1] < h) tau = i;",
        "if (accept[row - 1] < h) tau = i; else break;",
        test_verify.test_block_goes_on_after_a_failed_prefix,
        "accept_block",
    ),
    "splits merged on a wrong base": (
        "kernels/tree_attention.cu",
        "const float weight = exp2_or_nan(lse[row_offset(s, pairs) + at] - largest);",
        "const float weight = exp2_or_nan(lse[at] - largest);",
        attention(3),
        "merge_attention",
    ),
    "running maximum not rescaled": (
        "kernels/tree_attention.cu",
        "const float shrink = exp2_nonpositive(largest[h] - base[h]);",
        "const float shrink = 1.f;",
        attention(1),
        "tree_attention_b?f16",
    ),
    "tiles merged without their maximum": (
        "kernels/row_statistics.cu",
        "const float shift = (partials[i].max - best.value) * rate;",
        "const float shift = 0.f;",
        statistics,
        "row_summary",
    ),
    "reads keys before their copy has landed": (
        "kernels/tree_attention.cu",
        "wait_copies<1>();",
        "wait_copies<2>();",
        attention(1),
        "tree_attention_b?f16",
    ),
    "padding of a tile takes part": (
        "include/specrs/tile.h",
        "to_float(row[id + e]) : negative_infinity();",
        "to_float(row[id + e]) : 30.f;",
        statistics,
        ".*",
    ),
    "ties of top-p kept from the wrong end": (
        "kernels/row_law.cu",
        "nth_tie(row, s.key, -1, ties - kept + 1,",
        "nth_tie(row, s.key, -1, kept,",
        test_rows.test_ties_at_the_cut,
        "row_law",
    ),
    "a cut below where the leaders end is believed": (
        "kernels/row_law.cu",
        "if (floor && law_weight(cut, NO_ID, key_value(floor)) > 0.f) return false;",
        "",
        lambda stand_in: test_rows.test_a_wide_law_is_that_of_its_rows(stand_in, 4000),
        "row_law",
    ),
    "leaders that do not reach the goal are believed": (
        "kernels/row_law.cu",
        "if (!s.reached || s.key <= floor) return false;",
        "if (s.key <= floor) return false;",
        lambda stand_in: test_rows.test_a_wide_law_is_that_of_its_rows(stand_in, 4000),
        "row_law",
    ),
    "ties across the edge of the leaders": (
        "kernels/row_top_k.cu",
        "if (!s.reached || s.key <= floor) return false;",
        "if (!s.reached || s.key < floor) return false;",
        lambda stand_in: test_outcome.test_the_best_where_the_leaders_end(stand_in, 1),
        "row_top_k",
    ),
    "leaders of another row": (
        "include/specrs/leaders.h",
        "list(list_ + row_offset(row, tile_count(vocab_)) * MOST_LISTED)",
        "list(list_ + row_offset(row, tile_count(vocab_)))",
        lambda stand_in: test_rows.test_draws_follow_the_law(stand_in, torch.float32, 8200),
        "row_law|row_top_k",
    ),
    "a law handed over without its cut": (
        "kernels/row_probs.cu",
        "law_prob(law, id, to_float(row[id]))",
        "exp2_nonpositive((to_float(row[id]) - law.max) * law.rate) * law.inverse",
        lambda stand_in: test_rows.test_probabilities_are_the_weights_of_the_draws(stand_in, torch.float32, 8200),
        "row_probs",
    ),
    "a node moved to its neighbour's slot": (
        "kernels/cache_commit.cu",
        "const int source = path[j + i];",
        "const int source = path[j];",
        lambda stand_in: test_attention.test_commit(stand_in, torch.float32),
        "commit_cache",
    ),
    "a move behind the cache": (
        "kernels/cache_commit.cu",
        "if (i < live) store_chunk(address(first + j + i), moved[i]);",
        "for (int k = 0; i < live && k < 33; k += 32) store_chunk(address(first + j + i) + k, moved[i]);",
        test_attention.test_commit_to_the_last_slot,
        "commit_cache",
    ),
    "rows written into a neighbour's cache": (
        "kernels/cache_write.cu",
        "addresses[(of_values ? requests : 0) + b]",
        "addresses[of_values ? requests : 0]",
        lambda stand_in: test_caches.test_rows_are_written_where_they_belong(
            stand_in, torch.bfloat16, torch.Tensor.contiguous
        ),
        "write_caches",
    ),
    "rows written behind a full cache": (
        "kernels/cache_write.cu",
        "prefix > capacity - (row_ptr[b + 1] - row_ptr[b])",
        "prefix > capacity",
        test_caches.test_a_request_that_has_no_room_is_left_out,
        "write_caches",
    ),
    "attends over a neighbour's cache": (
        "kernels/tree_attention.cu",
        "reinterpret_cast<const void*>(caches.addresses[b])",
        "reinterpret_cast<const void*>(caches.addresses[0])",
        lambda stand_in: test_caches.test_attention_over_each_requests_own_cache(
            stand_in, torch.bfloat16, 64, False, 1
        ),
        "tree_attention_b?f16",
    ),
    "cut as the longest neighbour is": (
        "kernels/tree_attention.cu",
        "max(unsigned(total) / unsigned(least_part), 1u)",
        "max(unsigned(total) / unsigned(least_part), unsigned(splits))",
        lambda stand_in: test_caches.test_a_request_has_the_bits_that_it_has_alone(stand_in, True),
        "tree_attention_",
    ),
    "coins of another stream": (
        "include/specrs/philox.h",
        "PURPOSE_ACCEPT = 2",
        "PURPOSE_ACCEPT = 5",
        lambda stand_in: test_verify.test_round_coins_are_those_of_rust(stand_in, by_sibling=False),
        "round_coins",
    ),
    "a margin at each step": (
        "kernels/length_selection.cu",
        "chosen ? multiply(best, 1.0 + EQUAL_RATES) : margin",
        "multiply(chosen ? best : margin, chosen ? 1.0 + fmax(double(hysteresis), EQUAL_RATES) : 1.0)",
        test_outcome.test_the_margin_is_for_drafting_at_all,
        "select_lengths",
    ),
    "a bias that nobody pays": (
        "kernels/verify_chain.cu",
        "if (within) spent += cost;",
        "",
        lambda stand_in: test_torch_ops.test_relaxed_rules_equal_rust(stand_in, "dense"),
        "accept_chain",
    ),
    "one tile's sums taken for the row's": (
        "kernels/relaxed_choice.cu",
        "if (step) before = row_sums(sums + (step - 1) * step_words, tiles);",
        "if (step) before = row_sums(sums + (step - 1) * step_words, 1);",
        lambda stand_in: test_torch_ops.test_relaxed_rules_of_a_row_of_several_tiles_equal_rust(stand_in, "dense"),
        "relaxed_sums",
    ),
    "a request out of range passes for padding": (
        "kernels/verify_walk.cu",
        "int(STATUS_TARGET_NAN) : range.status;",
        "int(STATUS_TARGET_NAN) : int(STATUS_OK);",
        lambda stand_in: test_bad_input.test_row_pointers_that_lead_out_of_the_arrays(stand_in, "walk"),
        "walk_tree",
    ),
    "rows that nobody owns are merged": (
        "kernels/tree_attention.cu",
        "if (!is_among(row_ptr, rows, b, row) || row - row_ptr[b] >= most_rows) splits = 0;",
        "if (row - row_ptr[b] >= most_rows) splits = 0;",
        lambda stand_in: test_bad_input.test_attention_of_rows_that_nobody_owns(stand_in, plain=False),
        "merge_attention",
    ),
    "writes behind its output": (
        "kernels/cache_lookup.cu",
        "if (lane_id() == 0) hits[b] = hit;",
        "if (lane_id() < 2) hits[b + lane_id()] = hit;",
        test_outcome.test_lookup,
        "lookup_cache",
    ),
}


#: Faults that share a build, because no check of a group launches a kernel that another of its faults makes wrong.
GROUPS = {
    "missing barrier": ["missing barrier"],
    "32-bit offsets": ["32-bit offsets"],
    "padding": ["padding of a tile takes part"],
    "leaders": ["a cut below where the leaders end is believed", "ties across the edge of the leaders"],
    "leaders too few": ["leaders that do not reach the goal are believed"],
    "leaders elsewhere": ["leaders of another row"],
    "residual": [
        "stale residual: the draft's share is not taken out",
        "siblings against a stale draft law",
        "a law handed over without its cut",
        "reads keys before their copy has landed",
        "rows written behind a full cache",
    ],
    "boundary": [
        "accepts at the boundary",
        "duplicate siblings are tested twice",
        "block verification stops at the first failure",
        "running maximum not rescaled",
        "rows written into a neighbour's cache",
    ],
    "bias": [
        "a bias that nobody pays",
        "a move behind the cache",
        "splits merged on a wrong base",
        "a request out of range passes for padding",
    ],
    "small": [
        "ties of top-p kept from the wrong end",
        "tiles merged without their maximum",
        "a node moved to its neighbour's slot",
        "coins of another stream",
        "a margin at each step",
        "rows that nobody owns are merged",
        "writes behind its output",
    ],
    "parts": ["cut as the longest neighbour is", "one tile's sums taken for the row's"],
    "own caches": ["attends over a neighbour's cache"],
}


def test_every_fault_is_in_one_group():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(FAULTS)


@pytest.mark.parametrize("group", GROUPS)
def test_faults_are_caught(patched, group):
    names = GROUPS[group]
    cuda = patched(*(FAULTS[name][:3] for name in names))
    faulty = Emulator(build(cuda / "emulator" / "driver.cpp", *SHARED, "-O1", cuda=cuda))
    faulty.open()
    for name in names:
        caught, kernels = [], set()
        for schedule in SCHEDULES:
            faulty.configure(*schedule)
            with poisoned(), guarded_launches(), launched(kernels):
                try:
                    FAULTS[name][3](faulty)
                except (AssertionError, GpuError, IndexError) as error:
                    caught.append(error)
        assert caught, f"nothing noticed: {name}"
        for other in names:
            wrong = [kernel for kernel in kernels if other != name and re.match(FAULTS[other][4], kernel)]
            assert not wrong, f"the check of '{name}' launches {wrong}, which '{other}' makes wrong"
