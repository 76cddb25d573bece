"""A small model made on the spot, end to end on a device: the same texts by kernels as by the Rust rules, and the time.

Protocol: a Llama of random weights (``--layers`` x ``--hidden``) in bfloat16, whose attention is our kernel there, and
in float32 for the comparison with plain decoding; prompts of a fixed seed, greedy and sampled, without drafts, from the
cache and from a second model. Each run is done by the engine with its ops on the logits' device, and again with every
verdict made on the host from a copy of the logits; greedy ones in float32 also by transformers alone. Texts must be
equal; times are those of a second run. ``--device cpu`` is for a rehearsal.
``python benches/gpu_end_to_end.py [--record FOLDER]`` writes a dated JSON file.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import time
from collections import Counter
from pathlib import Path

import torch
import transformers

import specrs
from specrs.engine import verifier
from specrs.models.hf import TransformersTarget
from specrs.ops import torch_ops

VOCABULARY = 32_000


def model(seed, hidden, layers, device, dtype):
    torch.manual_seed(seed)
    shape = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
    heads = max(1, hidden // 64)  # of 64, for which there is a tensor-core kernel
    shape |= {"num_attention_heads": heads, "num_key_value_heads": max(1, heads // 2), "max_position_embeddings": 4096}
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=None, **shape
    )
    made = transformers.LlamaForCausalLM(config).to(device, dtype).eval()
    for parameter in made.parameters():  # at its usual scale a random model writes one token for ever
        parameter.data.mul_(6.0 if parameter.dim() == 2 else 1.0)
    return made


def timed(run):
    run()
    started = time.perf_counter()
    made = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return made, time.perf_counter() - started


def on_host(requests, draft, scores, logits):
    return verifier.decide(requests, draft, scores, logits.detach().cpu())[0]


def models(options, dtype):
    """Return a target and a draft model, the same one's first half: some of its guesses stand."""
    target, draft = (model(0, options.hidden, options.layers, options.device, dtype) for _ in range(2))
    del draft.model.layers[options.layers // 2 :]
    draft.config.num_hidden_layers = options.layers // 2
    return target, draft


class Counted:
    """The ops, and how often each was called."""

    def __init__(self, ops):
        self.ops, self.calls = ops, Counter()

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self.ops, name)


def compared(options, prompts, target_model, draft_model):
    """Return the figures of each temperature and way of drafting; texts by kernels and by Rust rules must be equal."""
    results, verify, dtype = [], verifier.verify, str(target_model.dtype).removeprefix("torch.")
    for temperature in (0.0, 0.8):
        for how in ("none", "cache", "model"):
            given = {"max_new_tokens": options.tokens, "temperature": temperature, "seed": 3, "eos_token_id": None}
            given |= {"drafter": how, "draft_tokens": 4}
            if how == "model":
                given["draft_model"] = TransformersTarget(draft_model)
            target = TransformersTarget(target_model)
            made, seconds = timed(lambda target=target, given=given: specrs.generate(target, prompts, **given))
            verifier.verify = on_host
            try:
                expected, host_seconds = timed(
                    lambda target=target, given=given: specrs.generate(target, prompts, **given)
                )
            finally:
                verifier.verify = verify
            if [one.ids for one in made] != [one.ids for one in expected]:
                found = f"{dtype}, {how} at temperature {temperature}"
                raise SystemExit(f"{found}: kernels and Rust rules give different texts")
            tokens = sum(len(one.ids) for one in made)
            accepted = sum(one.report.accepted for one in made)
            results.append(
                {"dtype": dtype, "drafter": how, "temperature": temperature, "tokens": tokens, "accepted": accepted}
                | {"tokens_per_second": tokens / seconds, "verified_on_the_host": tokens / host_seconds}
            )
            print(
                f"{dtype}, {how}, temperature {temperature}: {tokens / seconds:.0f} tokens/s, verified on the host "
                f"{tokens / host_seconds:.0f}, {accepted} of {tokens} drafted, the same texts"
            )
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="folder for the dated result")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device; --device cpu rehearses")
    generator = torch.Generator().manual_seed(1)
    loops = [torch.randint(VOCABULARY, (11,), generator=generator).tolist() for _ in range(4)]
    prompts = [(loop * 6)[: 40 + 5 * b] for b, loop in enumerate(loops)]
    counted = torch_ops.NAMESPACE = Counted(torch_ops.NAMESPACE)
    try:
        results = compared(options, prompts, *models(options, torch.bfloat16))
        attended = counted.calls["attend_caches"]
        print(f"bfloat16: our attention was called {attended} times")
        if options.device == "cuda" and not attended:
            raise SystemExit("a half-precision model on a device did not attend by our kernel")
        target_model, draft_model = models(options, torch.float32)
        results += compared(options, prompts, target_model, draft_model)
    finally:
        torch_ops.NAMESPACE = counted.ops
    plain = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=options.device)
        out = target_model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=options.tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        plain.append(out[0, len(prompt) :].tolist())
    ours = specrs.generate(
        TransformersTarget(target_model), prompts, drafter="cache", max_new_tokens=options.tokens, eos_token_id=None
    )
    same = sum(list(one.ids) == other for one, other in zip(ours, plain, strict=True))
    print(f"greedy texts equal to those of transformers: {same} of {len(prompts)} (float32; a near-tie may part them)")
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        name = torch.cuda.get_device_name() if options.device == "cuda" else options.device
        facts = {"device": name, "torch": torch.__version__, "specrs": specrs.__version__, "equal_to_plain": same}
        path = options.record / f"{dt.date.today().isoformat()}-gpu-end-to-end.json"
        path.write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
