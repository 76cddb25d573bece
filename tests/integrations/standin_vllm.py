"""A stand-in for the part of vLLM that drives a proposer: persistent rows, preemption, stops, greedy verification.

It keeps its batch as vLLM's V1 runner does: requests hold rows of a preallocated array; rows left empty are filled
from the end; preempted requests leave and come back with all of their text to be read again; tokens beyond a stop are
seen by the proposer and dropped afterwards; the proposer learns no request ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np


def config(*, draft_tokens=8, max_length=512, vocab_size=1000, eos=None, options=None, **changes):
    """Return what a proposer is made with."""
    made = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=draft_tokens),
        model_config=SimpleNamespace(
            max_model_len=max_length,
            get_vocab_size=lambda: vocab_size,
            hf_config=SimpleNamespace(eos_token_id=eos),
            try_get_generation_config=dict,
            tokenizer="none",
        ),
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1),
        additional_config={"specrs": {"log_seconds": 0, **(options or {})}},
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@dataclass
class Request:
    """One request: the text that greedy decoding gives, how far it is, and where it stands."""

    id: str
    prompt: list[int]
    answer: list[int]
    out: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    chunks: int = 1

    @property
    def text(self):
        return self.prompt + self.out


class Engine:
    """Runs requests through a proposer, with the answers known beforehand."""

    def __init__(self, proposer, *, rows=8, max_length=512, eos=None):
        self.proposer = proposer
        self.eos = eos
        self.tokens = np.zeros((rows, max_length), np.int32)
        self.lengths = np.zeros(rows, np.int32)
        self.batch: list[Request] = []
        self.steps = 0
        self.drafted = self.accepted = 0

    def add(self, request):
        """Put a request into the first row behind the others."""
        self.batch.append(request)
        request.draft = []

    def remove(self, request):
        """Take a request out; the last one moves into its row."""
        row = self.batch.index(request)
        last = self.batch.pop()
        if last is not request:
            self.batch[row] = last

    preempt = abort = remove

    def swap(self, a, b):
        self.batch[a], self.batch[b] = self.batch[b], self.batch[a]

    def step(self):
        """Verify the drafts, show the rows to the proposer, take its drafts; return the finished requests."""
        sampled, finished = [], []
        for request in self.batch:
            if request.chunks > 1:
                request.chunks -= 1
                sampled.append([])
                continue
            left = request.answer[len(request.out) :]
            right = 0
            while right < min(len(request.draft), len(left) - 1) and request.draft[right] == left[right]:
                right += 1
            self.drafted += len(request.draft)
            self.accepted += right
            sampled.append(left[: right + 1])
        for row, (request, new) in enumerate(zip(self.batch, sampled, strict=True)):
            text = request.text + new
            self.tokens[row, : len(text)] = text
            self.lengths[row] = len(text)
        drafts = self.proposer.propose(sampled, self.lengths, self.tokens, slot_mappings=None)
        assert len(drafts) == len(self.batch)
        for request, new, draft in zip(list(self.batch), sampled, drafts, strict=True):
            assert all(isinstance(token, int) for token in draft)
            assert not draft or new, "a draft for a request whose prompt is still being read"
            request.out += new
            if self.eos in request.out:
                request.out = request.out[: request.out.index(self.eos) + 1]
            request.draft = draft
            if len(request.out) >= len(request.answer) or request.out[-1:] == [self.eos]:
                finished.append(request)
        for request in finished:
            self.remove(request)
        self.steps += 1
        return finished

    def run(self, most=10_000):
        """Step until no request is left."""
        while self.batch:
            self.step()
            assert self.steps < most
