"""Two processes hold one model by the library's own plan: every rank writes the text that one process writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.hf.tiny import tiny
from tests.parallel import worker

import specrs
from specrs.errors import UnsupportedModelError
from specrs.models.parallel import ranks_of

WORLD = 2
#: Two processes import two frameworks each; on a busy machine that alone takes a minute.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    tiny("llama", 3.0).save_pretrained(folder / "target")
    tiny("llama", 3.0, seed=1).save_pretrained(folder / "draft")
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "RANK": "",
        "WORLD_SIZE": str(WORLD),
        "OMP_NUM_THREADS": "1",
        "SPECRS_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(root), str(Path(specrs.__file__).parents[1])]),
    }
    running = [
        subprocess.Popen(
            [sys.executable, worker.__file__, str(rank), str(WORLD), str(folder)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        said = [process.communicate(timeout=500)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    for process, text in zip(running, said, strict=True):
        assert process.returncode == 0, text
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(WORLD)]


def test_the_model_is_really_sharded(ranks):
    whole = tiny("llama", 3.0).model.layers[0].self_attn.k_proj.weight.shape[0]
    assert [made["local rows"] for made in ranks] == [whole // WORLD] * WORLD


def test_every_rank_writes_what_one_process_writes(ranks):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = worker.texts(tiny("llama", 3.0), *(tiny("llama", 3.0, seed=1) for _ in range(2)))
    finally:
        torch.set_num_threads(before)
    for made in ranks:
        assert made["texts"] == alone


@pytest.mark.parametrize("what", ["unseeded", "unseeded, model", "clock", "length", "after the failures"])
def test_ranks_agree_where_their_own_decisions_would_differ(ranks, what):
    assert ranks[0]["disagreements"][what] == ranks[1]["disagreements"][what]


def test_rank_0_says_where_a_text_ends_and_how_long_a_draft_is(ranks):
    assert len(ranks[1]["disagreements"]["clock"][0]) == 15 + 6
    assert ranks[0]["disagreements"]["asked for a length"]
    assert not ranks[1]["disagreements"]["asked for a length"]


@pytest.mark.parametrize("failing", range(WORLD))
def test_a_failure_of_one_rank_ends_the_others(ranks, failing):
    for rank, made in enumerate(ranks):
        said = made["disagreements"][f"failure of {failing}"]
        own = "ZeroDivisionError: one rank alone"
        assert said == own if rank == failing else said.startswith(f"RankError: rank {failing} of 2 failed")
        assert own in said


@pytest.mark.parametrize(("attribute", "message"), [("fsdp_size", "by fsdp"), ("tp_size", "no process group")])
def test_other_shardings_are_refused(attribute, message):
    class Sharded:
        pass

    setattr(Sharded, attribute, 2)
    with pytest.raises(UnsupportedModelError, match=message):
        ranks_of(Sharded())
