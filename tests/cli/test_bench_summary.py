"""What ``specrs bench`` makes of its runs: ratios are paired by prompt; over all sets every prompt counts alike."""

import pytest

from specrs.bench import ALL_SETS, Run, against_peers, summarise


def made(prompt, method, decode_seconds, first_seconds=1.0, **facts):
    """Eleven tokens, the first of them after ``first_seconds``."""
    return Run(prompt, prompt.partition("/")[0], method, 11, first_seconds + decode_seconds, 1, first_seconds, **facts)


RUNS = [
    made("edit/a", "none", 8.0, identical=True),
    made("edit/a", "cache", 2.0, identical=True, tokens_per_pass=4.0),
    made("edit/b", "none", 8.0, identical=True),
    made("edit/b", "cache", 8.0, identical=False, near_tie=True, tokens_per_pass=2.0),
    made("chat/c", "none", 4.0, identical=True),
    made("chat/c", "cache", 4.0, identical=True, tokens_per_pass=1.0),
]


def rows(runs):
    return {(row["set"], row["method"]): row for row in summarise(runs)}


def test_ratios_are_geometric_means_of_pairs_and_the_prompt_counts_apart():
    edit = rows(RUNS)["edit", "cache"]
    assert edit["over_plain"] == pytest.approx(2.0)  # 4 and 1
    assert edit["least_over_plain"] == pytest.approx(1.0)
    assert edit["whole_over_plain"] == pytest.approx(3.0**0.5)  # 9 / 3 and 1
    assert edit["decode_tokens_per_second"] == pytest.approx((5.0 + 1.25) / 2)
    assert (edit["identical"], edit["near_ties"], edit["runs"], edit["tokens_per_pass"]) == (1, 1, 2, 3.0)


def test_all_sets_count_every_prompt_alike_and_stand_only_beside_others():
    found = rows(RUNS)
    assert found[ALL_SETS, "cache"]["over_plain"] == pytest.approx(4.0 ** (1 / 3))
    assert found[ALL_SETS, "cache"]["prompts"] == 3
    assert found[ALL_SETS, "none"]["over_plain"] == pytest.approx(1.0)
    assert all(set_ != ALL_SETS for set_, _ in rows(RUNS[:4]))


def test_peers_are_compared_on_the_prompts_that_both_ran():
    peer = made("edit/a", "transformers-lookup", 6.0, first_seconds=3.0)
    (row,) = [row for row in against_peers([*RUNS, peer]) if row["method"] == "cache"]
    assert (row["peer"], row["prompts"]) == ("transformers-lookup", 1)
    assert row["decode"] == pytest.approx(3.0)
    assert row["whole"] == pytest.approx(3.0)
