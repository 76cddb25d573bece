"""One rank of a tensor parallel model: ``python worker.py RANK WORLD FOLDER`` writes what it generated as JSON."""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import transformers as t

import specrs
import specrs.hf
from specrs.errors import RankError
from specrs.models.parallel import ProcessGroupRanks
from specrs.policies.named import NamedPolicy

PROMPTS = [[5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10, 5, 6, 7], [11, 12, 11, 12, 11, 12, 13]]
PADDED = {
    "input_ids": torch.tensor([PROMPTS[0], [0] * 8 + PROMPTS[1]]),
    "attention_mask": torch.tensor([[1] * 15, [0] * 8 + [1] * 7]),
}


def texts(model, draft_model, sharded_draft_model):
    """What must be the same on one process and on every rank: name -> ids."""
    sampled = {"temperature": 0.9, "top_p": 0.95, "seed": [3, 4]}
    drafted = {"drafter": "model", "draft_model": draft_model}
    runs = {
        "greedy": {},
        "greedy, tree": {"draft_shape": "tree", "draft_tokens": 8},
        "greedy, model": {**drafted, "draft_tokens": 4},
        "sampled": sampled,
        "sampled, model": {**drafted, **sampled, "draft_tokens": 4},
        "sampled, sharded drafter": {"drafter": "model", "draft_model": model, **sampled, "draft_tokens": 4},
    }
    made = {
        name: [g.ids for g in specrs.generate(model, PROMPTS, max_new_tokens=20, **options)]
        for name, options in runs.items()
    }
    # Whether to read so long a text is one rank's decision, by costs that a sharded drafter measures on all.
    made["long prompt, sharded drafter"] = specrs.generate(
        model, PROMPTS[0] * 6, max_new_tokens=20, drafter="model", draft_model=sharded_draft_model
    ).ids
    made["generate"] = model.generate(
        **PADDED, max_new_tokens=20, do_sample=False, pad_token_id=0, custom_generate=specrs.hf.generate
    ).tolist()
    return made


def disagreements(model, draft_model, rank):
    """Where ranks left to themselves would part."""
    made = {}
    torch.manual_seed(100 + rank)  # torch's generators differ
    made["unseeded"] = model.generate(
        **PADDED, max_new_tokens=12, do_sample=True, pad_token_id=0, custom_generate=specrs.hf.generate
    ).tolist()
    made["unseeded, model"] = [
        g.ids
        for g in specrs.generate(model, PROMPTS, max_new_tokens=12, temperature=1.0, drafter="model", draft_model=model)
    ]

    def by_the_clock(input_ids, scores, **_):  # holds on rank 0 at 6 new tokens, on the others never
        return torch.tensor([rank == 0 and input_ids.shape[1] >= 15 + 6])

    made["clock"] = model.generate(
        **PADDED,
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=60,
        stopping_criteria=t.StoppingCriteriaList([by_the_clock]),
        custom_generate=specrs.hf.generate,
    ).tolist()

    trim = NamedPolicy.trim
    lengths = []

    def own_mind(self, requests, draft):
        lengths.append(len(draft.tokens))
        return trim(self, requests, draft).within([0 if rank else 5] * draft.batch_size)

    NamedPolicy.trim = own_mind
    try:
        made["length"] = specrs.generate(model, PROMPTS[0], max_new_tokens=20).ids
    finally:
        NamedPolicy.trim = trim
    made["asked for a length"] = bool(lengths)

    def fails(input_ids, scores):
        if rank == failing and input_ids.shape[1] > 15 + 3:
            raise ZeroDivisionError("one rank alone")
        return scores

    fails.stateless = True

    def failure():
        try:
            specrs.generate(model, PROMPTS[0], max_new_tokens=9, draft_tokens=0, logits_processor=[fails])
        except (RankError, ZeroDivisionError) as error:
            return f"{type(error).__name__}: {error}"

    for failing in (0, 1):
        made[f"failure of {failing}"] = failure()
    made["after the failures"] = specrs.generate(model, PROMPTS[0], max_new_tokens=5).ids
    return made


def main(rank, world, folder):
    torch.set_num_threads(1)
    t.logging.set_verbosity_error()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tp_plan= is about to be given another way
        model, sharded_draft_model = (
            t.AutoModelForCausalLM.from_pretrained(folder / name, tp_plan="auto", dtype=torch.float32).eval()
            for name in ("target", "draft")
        )
        draft_model = t.AutoModelForCausalLM.from_pretrained(folder / "draft", dtype=torch.float32).eval()
    assert model.tp_size == world
    assert isinstance(specrs.load(model).ranks, ProcessGroupRanks)
    heads = model.model.layers[0].self_attn.k_proj.weight
    local = heads.to_local() if hasattr(heads, "to_local") else heads
    made = {"local rows": local.shape[0], "texts": texts(model, draft_model, sharded_draft_model)}
    made["disagreements"] = disagreements(model, draft_model, rank)
    (folder / f"rank{rank}.json").write_text(json.dumps(made))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
