"""vLLM engines for the bench: plain, with one drafter, or with several that take turns on the same requests."""

import os
import sys

# In one process, so that the bench can reach the drafter.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
# By default one core is set aside for other processes; here there are none, and two cores are common.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def engine(model, *, speculative=None, rows=8, max_length=4096, dtype="bfloat16", options=None):
    """Load ``model`` into vLLM: eager, prefix caching on, so that a prompt that was read once costs nothing again."""
    from vllm import LLM

    return LLM(
        str(model),
        dtype=dtype,
        enforce_eager=True,
        max_model_len=max_length,
        max_num_seqs=rows,
        max_num_batched_tokens=max(2048, max_length),
        enable_prefix_caching=True,
        block_size=32,
        seed=0,
        speculative_config=speculative,
        additional_config={"specrs": {"log_seconds": 0, **(options or {})}},
    )


def custom(path, draft_tokens):
    """Return the configuration that names a proposer class."""
    return {"method": "custom_class", "model": path, "num_speculative_tokens": draft_tokens}


class Switch:
    """A proposer that hands each step to the drafter in turn: vLLM's own classes, called as vLLM calls them, and ours.

    One engine serves all drafters, so prompts are read once and times are of the same process. ``drafter`` is the one
    in turn; ``fresh`` makes all anew.
    """

    current = None

    def __init__(self, vllm_config):
        self.config = vllm_config
        self.longest = vllm_config.speculative_config.num_speculative_tokens
        self.drafter = "none"
        self.made = {}
        self.last = []
        self.counts = {}
        Switch.current = self

    def load_model(self, *_, **__):
        """There is none."""

    def fresh(self, ngram_tokens):
        """Make every drafter anew, with nothing remembered."""
        self.ngram_tokens = min(ngram_tokens, self.longest)
        self.made = {}

    def use(self, drafter):
        """Put ``drafter`` in turn, and begin to count."""
        self.drafter = drafter
        self.counts = {"steps": 0, "drafted": 0, "accepted": 0, "emitted": 0, "draft_seconds": 0.0}
        self.last = []
        if drafter != "none" and drafter not in self.made:
            self.made[drafter] = self._make(drafter)

    def _make(self, drafter):
        config = self.config.speculative_config
        if drafter == "specrs":
            from specrs.integrations.vllm import Proposer

            return Proposer(self.config)
        if drafter == "suffix":
            from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

            # What SpeculativeConfig sets for this method by default.
            for name, value in (
                ("max_tree_depth", 24),
                ("max_cached_requests", 10000),
                ("max_spec_factor", 1.0),
                ("min_token_prob", 0.1),
            ):
                setattr(config, f"suffix_decoding_{name}", value)
            return SuffixDecodingProposer(self.config)
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        config.prompt_lookup_min, config.prompt_lookup_max = 2, 5
        made = NgramProposer(self.config)
        # numba compiles at the first call with the arrays that the engine really passes.
        made.propose(self.ngram_tokens, [[1]], self.shown[0], self.shown[1])
        return made

    def propose(self, sampled, lengths, tokens, slot_mappings=None):
        import time

        for new, draft in zip(sampled, self.last, strict=False):
            self.counts["drafted"] += len(draft)
            self.counts["accepted"] += max(len(new) - 1, 0)
        self.shown = lengths, tokens
        self.counts["steps"] += 1
        self.counts["emitted"] += sum(map(len, sampled))
        start = time.perf_counter()
        drafter = self.made.get(self.drafter)
        if drafter is None:
            drafts = [[] for _ in sampled]
        elif self.drafter == "specrs":
            drafts = drafter.propose(sampled, lengths, tokens, slot_mappings=slot_mappings)
        elif self.drafter == "suffix":
            # vLLM hands this one its batch, which stands in the frame of the call.
            batch = sys._getframe(1).f_locals["self"].input_batch
            drafts = drafter.propose(self.longest, batch, sampled, slot_mappings=slot_mappings)
        else:
            drafts = drafter.propose(self.ngram_tokens, sampled, lengths, tokens, slot_mappings=slot_mappings)
        self.counts["draft_seconds"] += time.perf_counter() - start
        self.last = drafts
        return drafts
