"""A stand-in for the parts of SGLang that an algorithm of its registry meets, for machines without SGLang.

Modules of the same names with: an enumeration of algorithms and the registry behind it; and an n-gram worker that
builds a corpus in its constructor, asks ``_prepare_draft_tokens`` for flat trees and a mask, follows the tree with a
target that knows the answer, and relays what it accepted as SGLang's overlap schedule does. The attention, the sampling
kernels and the pools of the real worker are left out.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import numpy as np


class CustomSpecAlgo:
    def __init__(self, name, factory, *, supports_overlap=False, validate_server_args=None):
        self.name, self.factory, self.supports_overlap = name, factory, supports_overlap

    def is_none(self):
        return False

    def is_ngram(self):
        return False

    def has_draft_kv(self):
        return True

    def create_worker(self, server_args):
        return self.factory(server_args)


class SpeculativeAlgorithm(enum.Enum):
    EAGLE = enum.auto()
    NGRAM = enum.auto()
    NONE = enum.auto()

    @classmethod
    def from_string(cls, name):
        return cls[name.upper()] if name.upper() in cls.__members__ else _REGISTRY[name.upper()]

    @classmethod
    def register(cls, name, *, supports_overlap=False, validate_server_args=None, spec_class=CustomSpecAlgo):
        if name.upper() in cls.__members__ or name.upper() in _REGISTRY:
            raise ValueError(f"{name} is taken")

        def decorate(factory):
            _REGISTRY[name.upper()] = spec_class(name.upper(), factory, supports_overlap=supports_overlap)
            return factory

        return decorate

    def is_none(self):
        return self is SpeculativeAlgorithm.NONE

    def is_ngram(self):
        return self is SpeculativeAlgorithm.NGRAM

    def has_draft_kv(self):
        return not self.is_ngram()

    def handle_server_args(self, server_args):
        server_args.handled_as = self.name


_REGISTRY: dict[str, CustomSpecAlgo] = {}


class NgramCorpus:
    def __init__(self, **_):
        raise AssertionError("the engine's own corpus is compiled at this point")


class NGRAMWorker:
    def __init__(self, server_args, gpu_id, nccl_port, target_worker):
        self.server_args, self.target_worker = server_args, target_worker
        self.enable_overlap = server_args.overlap
        self.draft_token_num = server_args.speculative_num_draft_tokens
        corpus = sys.modules[NGRAMWorker.__module__ + ".ngram_worker"].NgramCorpus
        self.ngram_corpus = corpus(max_trie_depth=18, draft_token_num=self.draft_token_num, capacity=10_000_000)
        self._prev_decode_rids = set()

    def clear_cache_pool(self):
        self.ngram_corpus.reset()

    def _prepare_draft_tokens(self, batch):
        raise AssertionError("drafts the last 18 tokens only")

    def _update_ngram_corpus(self, batch):
        self.ngram_corpus.batch_put([])

    def forward_batch_generation(self, batch):
        """One round: draft trees, follow each with the true answer, note who left the batch."""
        nodes = self.draft_token_num
        tokens, mask = self._prepare_draft_tokens(batch)
        assert tokens.dtype == mask.dtype == np.int64
        assert tokens.shape == (len(batch.reqs) * nodes,)
        assert mask.shape == (len(batch.reqs) * nodes**2,)
        accepted = np.zeros((len(batch.reqs), nodes), np.int64)
        counts = []
        for row, (request, tree, seen) in enumerate(
            zip(batch.reqs, tokens.reshape(-1, nodes), mask.reshape(-1, nodes, nodes), strict=True)
        ):
            new = follow(tree, seen, request.answer[request.done :])
            accepted[row, : len(new)] = new
            counts.append(len(new))
            request.done += len(new)
        self._update_ngram_corpus(batch)
        here = {request.rid for request in batch.reqs}
        if left := self._prev_decode_rids - here:
            self.ngram_corpus.erase_match_state(list(left))
        self._prev_decode_rids = here
        return SimpleNamespace(accept_tokens=accepted.ravel(), accept_lens=np.array(counts))


def follow(tree, mask, answer):
    """Return the tokens that a greedy target accepts of a tree, and its own next one."""
    parents = [max((j for j in range(i) if mask[i, j]), default=-1) for i in range(len(tree))]
    for i in range(1, len(tree)):  # the mask is that of a tree
        assert set(np.flatnonzero(mask[i])) == set(np.flatnonzero(mask[parents[i]])) | {i}
    new, at = [], 0
    while len(new) < len(answer):
        new.append(answer[len(new)])
        at = next((i for i in range(at + 1, len(tree)) if parents[i] == at and tree[i] == new[-1]), None)
        if at is None:
            break
    return new


@dataclass
class Request:
    rid: str
    origin_input_ids_unpadded: list[int]
    answer: list[int]
    output_ids: list[int] = field(default_factory=list)
    done: int = 0


class Scheduler:
    """Runs requests through a worker, in step or with results one round behind."""

    def __init__(self, worker):
        self.worker, self.rounds = worker, 0
        self.batch: list[Request] = []
        self._relay = {}

    def add(self, request):
        """Take a request in, its prompt read and the first token sampled (again, if it was retracted)."""
        if not request.done:
            request.done = 1
        request.output_ids = request.answer[: request.done - 1]
        self._relay[request.rid] = request.answer[request.done - 1 : request.done]
        if not self.worker.enable_overlap:
            request.output_ids = request.answer[: request.done]
        self.batch.append(request)

    def round(self):
        nodes = self.worker.draft_token_num
        spec = SimpleNamespace(
            accept_tokens=np.array([(self._relay[r.rid] + [0] * nodes)[:nodes] for r in self.batch]).ravel(),
            accept_lens=np.array([len(self._relay[r.rid]) for r in self.batch]),
        )
        batch = SimpleNamespace(reqs=list(self.batch), spec_info=spec, grammar_needs_sync=lambda: False)
        before = [request.done for request in self.batch]
        self.worker.forward_batch_generation(batch)
        for request, start in zip(list(self.batch), before, strict=True):
            new = request.answer[start : request.done]
            request.output_ids += self._relay[request.rid] if self.worker.enable_overlap else new
            self._relay[request.rid] = new
            if request.done == len(request.answer):
                self.batch.remove(request)
        self.rounds += 1

    def run(self):
        while self.batch:
            self.round()


def modules():
    """Return the stand-in as modules by name."""
    package = "sglang.srt.speculative"
    made = {name: ModuleType(name) for name in ("sglang", "sglang.srt", package)}
    info = made[f"{package}.spec_info"] = ModuleType(f"{package}.spec_info")
    registry = made[f"{package}.spec_registry"] = ModuleType(f"{package}.spec_registry")
    worker = made[f"{package}.ngram_worker"] = ModuleType(f"{package}.ngram_worker")
    _REGISTRY.clear()
    info.SpeculativeAlgorithm = SpeculativeAlgorithm
    registry.CustomSpecAlgo, registry.get_spec = CustomSpecAlgo, lambda name: _REGISTRY.get(name.upper())
    NGRAMWorker.__module__ = package
    worker.NGRAMWorker, worker.NgramCorpus = NGRAMWorker, NgramCorpus
    return made


def server_args(*, nodes=8, overlap=False, tp_size=1):
    return SimpleNamespace(
        speculative_num_draft_tokens=nodes, overlap=overlap, tp_size=tp_size, tokenizer_path="none", model_path="none"
    )


def target_worker(vocab_size=1000, eos=()):
    model = SimpleNamespace(vocab_size=vocab_size, hf_eos_token_id=set(eos))
    return SimpleNamespace(model_runner=SimpleNamespace(model_config=model))
