"""Our candidate generators in the assisted loop of transformers."""

import numpy as np
import pytest
import torch
from tests.hf.tiny import PROMPT, Listener, batch, single, tiny

import specrs.hf
from specrs._core import PayoffRouter
from specrs.errors import InvalidInputError

PLAIN = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}


def fixed(tokens):
    return specrs.hf.CacheCandidateGenerator(policy="fixed", policy_options={"tokens": tokens, "backoff": False})


def assisted(model, generator=None, **options):
    options = {**PLAIN, **options}
    return model.generate(**single(), **options, custom_generate=specrs.hf.assisted, candidate_generator=generator)


GENERATORS = {
    "default": lambda: None,
    "router": specrs.hf.CacheCandidateGenerator,
    "fixed": lambda: fixed(6),
    "libra": lambda: specrs.hf.CacheCandidateGenerator(policy="libra"),
    "routed": specrs.hf.RoutedCandidateGenerator,
}


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("name", GENERATORS)
def test_the_text_is_that_of_plain_decoding(name, kind):
    model = tiny(kind, 4.0)
    assert assisted(model, GENERATORS[name]()).tolist() == model.generate(**single(), **PLAIN).tolist()
    assert "_get_candidate_generator" not in vars(model)  # nothing is left behind


@pytest.mark.parametrize("options", [{"eos_token_id": [9, 31, 44]}, {"max_new_tokens": 1}, {"repetition_penalty": 1.2}])
def test_ends_limits_and_processors_hold(options):
    model = tiny()
    theirs = model.generate(**single(), **{**PLAIN, **options})
    generator = fixed(8)
    assert assisted(model, generator, **options).tolist() == theirs.tolist()


def test_candidates_continue_what_the_text_has_shown():
    generator = fixed(4)
    generator.prepare(vocab_size=61, eos_token_ids=frozenset(), max_length=40)
    ids, logits = generator.get_candidates(torch.tensor([PROMPT]))
    assert logits is None
    assert ids.tolist() == [[*PROMPT, 8, 9, 10, 5]]
    # A shorter draft than was proposed, before the limit: one place is the loop's own.
    generator.prepare(vocab_size=61, eos_token_ids=frozenset(), max_length=len(PROMPT) + 3)
    assert generator.get_candidates(torch.tensor([PROMPT]))[0].shape[1] == len(PROMPT) + 2
    # Before an end of text: the loop draws an end itself.
    generator.prepare(vocab_size=61, eos_token_ids=frozenset({10}), max_length=40)
    assert generator.get_candidates(torch.tensor([PROMPT]))[0].tolist() == [[*PROMPT, 8, 9]]


def test_a_rejected_draft_is_forgotten_and_another_text_begins_anew():
    generator = fixed(3)
    generator.prepare(vocab_size=61, eos_token_ids=frozenset(), max_length=90)
    generator.get_candidates(torch.tensor([PROMPT]))
    generator.update_candidate_strategy(torch.tensor([[*PROMPT, 33]]), None, 0)
    assert generator.get_candidates(torch.tensor([[*PROMPT, 33, 5]]))[0].tolist() == [[*PROMPT, 33, 5, 6, 7, 8]]
    assert generator.get_candidates(torch.tensor([[40, 41, 40, 41, 40]]))[0].tolist()[0][5:] == [41, 40, 41]


def test_the_router_stops_drafting_where_a_row_costs_as_much_as_a_forward():
    text = np.array([PROMPT])
    dear = specrs.hf.CacheCandidateGenerator(router=PayoffRouter(token_cost=5.0))
    cheap = specrs.hf.CacheCandidateGenerator(router=PayoffRouter(token_cost=0.001))
    sizes = []
    for generator in (dear, cheap):
        generator.prepare(vocab_size=61, eos_token_ids=frozenset(), max_length=60)
        sizes.append(generator.get_candidates(torch.from_numpy(text))[0].shape[1] - len(PROMPT))
    assert sizes[0] == 0
    assert sizes[1] > 0


class Recorded(specrs.hf.RoutedCandidateGenerator):
    def __init__(self, **options):
        super().__init__(**options)
        self.arms = []

    def get_candidates(self, input_ids, *arguments, **keywords):
        made = super().get_candidates(input_ids, *arguments, **keywords)
        self.arms.append("model" if self._other_nodes is not None else "cache or plain")
        return made


@pytest.mark.filterwarnings("ignore")
def test_the_router_takes_the_assistant_model_where_it_pays_and_the_text_stays():
    model = tiny()
    router = PayoffRouter(token_cost=0.001, model_cost=0.01, model_acceptance=0.95)
    generator = Recorded(router=router)
    out = assisted(model, generator, assistant_model=model)
    assert out.tolist() == model.generate(**single(), **PLAIN).tolist()
    assert "model" in generator.arms
    assert generator.other is None  # it was made for that text


@pytest.mark.filterwarnings("ignore")
def test_the_assistant_model_copes_with_rounds_that_were_not_its_own():
    class InTurn(Recorded):
        """The model's turn comes late, and then every third round; its drafts are half right."""

        def get_candidates(self, input_ids, *arguments, **keywords):
            self.turn = len(self.arms) % 3 == 2
            return super().get_candidates(input_ids, *arguments, **keywords)

        def _route(self, request, draft, *, other):
            return ("model", 0, 4) if self.turn else super()._route(request, draft, other=False)

    model, assistant = tiny("llama", 3.0), tiny("llama", 3.0, seed=1)
    generator = InTurn(router=PayoffRouter(token_cost=0.001))
    out = assisted(model, generator, assistant_model=assistant, max_new_tokens=60)
    assert out.tolist() == model.generate(**single(), **{**PLAIN, "max_new_tokens": 60}).tolist()
    assert generator.arms.count("model") > 2
    assert generator.arms[0] == generator.arms[1] == "cache or plain"


def test_sampled_texts_run_and_repeat():
    model = tiny("llama", 3.0)
    texts = []
    for _ in range(2):
        torch.manual_seed(3)
        texts.append(assisted(model, fixed(4), do_sample=True).tolist())
    assert texts[0] == texts[1]


def test_the_streamer_is_heard_and_scores_come():
    listener = Listener()
    out = assisted(tiny(), streamer=listener, return_dict_in_generate=True, output_scores=True)
    heard = [token for piece in listener.heard[1:-1] for token in np.ravel(piece).tolist()]
    assert heard == out.sequences[0, 15:].tolist()
    assert len(out.scores) == 30


def test_batches_and_contradictions_are_refused():
    with pytest.raises(InvalidInputError, match="takes one text, got 2"):
        tiny().generate(**batch(), **PLAIN, custom_generate=specrs.hf.assisted)
    with pytest.raises(InvalidInputError, match="both decide"):
        specrs.hf.CacheCandidateGenerator(policy="fixed", router=PayoffRouter())
    with pytest.raises(InvalidInputError, match=r"prepare\(\) comes before"):
        specrs.hf.CacheCandidateGenerator().get_candidates(torch.tensor([PROMPT]))
