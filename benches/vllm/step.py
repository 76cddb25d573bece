"""Time one drafting step of 64 requests without an engine: the proposer's whole call, rows matched, drafted and cut.

    python benches/vllm/step.py [--history 1000000] [--requests 64] [--draft-tokens 16] [--json FILE]

The text is the Python standard library, cut into words, blanks and signs. Requests replay files that are not in the
history, greedily: what agrees with the file is accepted. Where arctic-inference is installed, vLLM's suffix method is
timed on the same replay, called as vLLM calls it (a Python loop over requests).
"""

import argparse
import json
import re
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

LENGTH = 4096
WORD = re.compile(r"\w+|[^\S\n]+|\n|[^\w\s]")


def documents(tokens):
    """Return token ids of standard library files, ``tokens`` and some in all, and the size of the vocabulary."""
    ids, made, total = {}, [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        words = WORD.findall(path.read_text("utf-8", errors="replace"))
        if len(words) < 600:
            continue
        made.append(np.array([ids.setdefault(word, len(ids)) for word in words], np.int32))
        total += len(words)
        if total > tokens:
            break
    return made, len(ids)


def specrs_proposer(vocabulary, history, draft_tokens, gate):
    from specrs.integrations.vllm import Proposer

    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=draft_tokens),
        model_config=SimpleNamespace(max_model_len=LENGTH, get_vocab_size=lambda: vocabulary),
        additional_config={"specrs": {"gate": gate, "log_seconds": 0}},
    )
    proposer = Proposer(config)
    ptr = np.concatenate([[0], np.cumsum([len(text) for text in history])]).astype(np.int64)
    proposer._cache.add_many(np.concatenate(history), ptr)
    return lambda sampled, lengths, tokens, prompts: proposer.propose(sampled, lengths, tokens)


def suffix_proposer(history, draft_tokens):
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=24, max_cached_requests=10000)
    for number, text in enumerate(history):
        cache.start_request(("history", number), np.empty(0, np.int32))
        cache.add_active_response(("history", number), text)
        cache.stop_request(("history", number))

    def propose(sampled, lengths, tokens, prompts):
        drafts = []
        for row, new in enumerate(sampled):
            if row not in cache.active_requests:
                cache.start_request(row, tokens[row, : prompts[row]])
            cache.add_active_response(row, new)
            pattern = tokens[row, max(0, lengths[row] - 24) : lengths[row]]
            drafts.append(
                cache.speculate(
                    row, pattern, max_spec_tokens=draft_tokens, max_spec_factor=1.0, min_token_prob=0.1
                ).token_ids
            )
        return drafts

    return propose


def replay(propose, texts, steps):
    """Run requests through a proposer; return the seconds of each step, and the tokens per step and request."""
    tokens = np.zeros((len(texts), LENGTH), np.int32)
    prompts = [min(len(text) // 2, 1000) for text in texts]
    lengths = np.array(prompts, np.int64)
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        tokens[row, :prompt] = text[:prompt]
    drafts = [[] for _ in texts]
    seconds, emitted = [], 0
    for _ in range(steps):
        sampled = []
        for row, (text, draft) in enumerate(zip(texts, drafts, strict=True)):
            new = []
            while len(new) < len(draft) and draft[len(new)] == text[(lengths[row] + len(new)) % len(text)]:
                new.append(int(draft[len(new)]))
            new.append(int(text[(lengths[row] + len(new)) % len(text)]))
            tokens[row, lengths[row] : lengths[row] + len(new)] = new
            lengths[row] += len(new)
            emitted += len(new)
            sampled.append(new)
        start = time.perf_counter()
        drafts = propose(sampled, lengths, tokens, prompts)
        seconds.append(time.perf_counter() - start)
        if lengths.max() > LENGTH - 64:
            break
    return np.array(seconds[1:]), emitted / len(seconds) / len(texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    made, vocabulary = documents(arguments.history + arguments.requests * 4000)
    texts, history = made[:: max(1, len(made) // arguments.requests)][: arguments.requests], []
    held = 0
    taken = {id(text) for text in texts}
    for text in made:
        if id(text) not in taken and held < arguments.history:
            history.append(text)
            held += len(text)
    proposers = {
        "specrs": specrs_proposer(vocabulary, history, arguments.draft_tokens, "payoff"),
        "specrs, gate off": specrs_proposer(vocabulary, history, arguments.draft_tokens, "off"),
    }
    try:
        proposers["suffix (arctic)"] = suffix_proposer(history, arguments.draft_tokens)
    except ImportError:
        print("arctic-inference is not installed: its row is left out")
    rows = []
    for name, propose in proposers.items():
        seconds, per_step = replay(propose, texts, arguments.steps)
        low, median, high = np.percentile(seconds * 1e3, [10, 50, 90])
        rows.append(
            {
                "drafter": name,
                "ms_p10": low,
                "ms_median": median,
                "ms_p90": high,
                "tokens_per_step": per_step,
                "steps": len(seconds),
            }
        )
        print(
            f"{name:18} ms per step: p10 {low:.2f}, median {median:.2f}, p90 {high:.2f}; tokens per step {per_step:.2f}"
        )
    if arguments.json:
        record = {"history_tokens": held, "requests": len(texts), "draft_tokens": arguments.draft_tokens, "rows": rows}
        Path(arguments.json).write_text(json.dumps(record) + "\n", "utf-8")


if __name__ == "__main__":
    main()
