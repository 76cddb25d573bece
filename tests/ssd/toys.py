"""Toy pieces for drafting ahead: laws with small denominators, coins on a grid, drafters that misbehave."""

import os
import time
from fractions import Fraction

import numpy as np
from tests.toys import TattleLM, ToyTarget

from specrs.engine.request import Request
from specrs.sampling import SamplingParams, StopRules
from specrs.ssd.cache_branches import CacheBranches
from specrs.ssd.drafter import SsdDrafter
from specrs.ssd.links import LocalLink
from specrs.ssd.model_branches import ModelBranches
from specrs.ssd.predrafter import PreDrafter
from specrs.ssd.sampling import DraftLaw
from specrs.ssd.texts import SsdOptions

#: The prompt of texts whose laws are looked up from what follows it.
PROMPT = (0,)


class LawLM(ToyTarget):
    """A model whose law behind ``PROMPT`` and each text is given as fractions."""

    def __init__(self, vocabulary, laws):
        super().__init__(vocabulary)
        self.laws = laws

    def row(self, tokens, positions):
        assert positions.tolist() == list(range(len(tokens)))
        # Guesses of the last round reach behind what is enumerated.
        law = self.laws.get(tuple(tokens[len(PROMPT) :].tolist()), (1,) * self.vocab_size)
        with np.errstate(divide="ignore"):
            return np.log(np.array([float(prob) for prob in law]))


def pre_drafter(model, vocabulary, **options):
    made = SsdOptions(**options)
    if model is None:
        return PreDrafter(CacheBranches(vocabulary), made, vocabulary)
    return PreDrafter(ModelBranches(model, vocabulary, DraftLaw(made.fan_out + 1, made.saguaro)), made, vocabulary)


def local(model, vocabulary, *, steps=lambda _: None, link=LocalLink, **options):
    """An SSD drafter in this process."""
    side = pre_drafter(model, vocabulary, **options)
    return SsdDrafter(
        link(side, steps) if link is LocalLink else link(side),
        lookahead=side.options.lookahead,
        vocab_size=vocabulary,
        max_context=side.drafter.max_context,
        tokens_are_drawn=side.drafter.tokens_are_drawn,
    )


def request(prompt=PROMPT, *, target=None, seed=None, temperature=0.0, max_new_tokens=50, **options):
    target = TattleLM() if target is None else target
    sampling = SamplingParams(temperature=temperature, seed=seed, **options)
    stop = StopRules(max_new_tokens=max_new_tokens)
    return Request(np.array(prompt, np.uint32), sampling, stop, target.new_state(len(prompt) + max_new_tokens + 8))


def saguaro_law(law, favoured, weight):
    """Saguaro's definition, with fractions."""
    if weight == 1:
        return law
    best = sorted(range(len(law)), key=lambda i: (-law[i], i))[:favoured]
    changed = [prob * (weight if i in best else 1) for i, prob in enumerate(law)]
    return tuple(Fraction(prob, sum(changed)) for prob in changed)


# Drafter processes of the fault tests: functions of a module, so that they pickle.


def tattle_drafter(fan_out=3, lookahead=3, saguaro=1.0, fallback="slow", max_context=None):
    model = TattleLM(habit=4.0, max_context=max_context)
    return pre_drafter(model, 32, fan_out=fan_out, lookahead=lookahead, saguaro=saguaro, fallback=fallback)


class Faulty(PreDrafter):
    """Misbehaves from round ``at`` on."""

    def __init__(self, how, at):
        good = tattle_drafter()
        super().__init__(good.drafter, good.options, 32)
        self.how, self.at = how, at

    def answer(self, round_, queries, **options):
        made = super().answer(round_, queries, **options)
        if round_ < self.at:
            return made
        if self.how == "die":
            os._exit(3)
        if self.how == "raise":
            raise RuntimeError("out of cheese")
        if self.how == "late" or (self.how == "late-once" and round_ == self.at):
            time.sleep(2.0)
        return made

    def pre_draft(self, **options):
        if self.how == "die-ahead" and self._growth is not None and self.at <= 0:
            os._exit(4)
        self.at -= self.how == "die-ahead"
        return super().pre_draft(**options)


def faulty(how, at):
    return Faulty(how, at)


def broken():
    raise ValueError("no such model")
