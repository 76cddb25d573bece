"""``custom_generate=specrs.hf.generate`` against plain ``model.generate``: the whole generation configuration."""

import copy

import pytest
import torch
import transformers as t
from tests.hf.tiny import PROMPT, Listener, batch, single, tiny
from transformers.generation import stopping_criteria

import specrs.hf
from specrs.drafters.none import NoDrafter
from specrs.errors import InvalidInputError, NonFiniteLogitsError

PLAIN = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}


def both(model, inputs, **options):
    """Run transformers' own loop and ours."""
    options = {**PLAIN, "return_dict_in_generate": True, "output_scores": True, "output_logits": True, **options}
    theirs = model.generate(**inputs, **copy.deepcopy(options))
    ours = model.generate(**inputs, **options, custom_generate=specrs.hf.generate)
    return theirs, ours


class StopAt(stopping_criteria.StoppingCriteria):
    """Stops a row at its n-th new token, or when a token appears."""

    def __init__(self, token, prompt_length=15):
        self.token, self.prompt_length = token, prompt_length

    def __call__(self, input_ids, scores, **_):
        return (input_ids[:, self.prompt_length :] == self.token).any(dim=1)


class Bonus(t.LogitsProcessor):
    """A user's own processor, with a state that its history decides."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.shape[1])
        assert self.seen == list(range(self.seen[0], self.seen[0] + len(self.seen))), "a state must follow its own row"
        scores = scores.clone()
        scores[:, (input_ids[:, -1] + 1) % scores.shape[1]] += 3.0
        return scores


CONFIGURATIONS = {
    "nothing": {},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram": {"no_repeat_ngram_size": 3},
    "bad_words": {"bad_words_ids": [[7], [8, 9]]},
    "suppress": {"suppress_tokens": [3, 4, 5], "begin_suppress_tokens": [9]},
    "sequence_bias": {"sequence_bias": [[[11, 12], 4.0], [[5], 2.0]]},
    "forced_eos": {"forced_eos_token_id": 13, "eos_token_id": 13},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": list(range(20, 40))},
    "min_length": {"min_length": 20, "eos_token_id": list(range(20, 40))},
    "max_length": {"max_length": 21, "max_new_tokens": None},
    "eos_list": {"eos_token_id": [9, 31, 44]},
    "decay": {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 17},
    "encoder_penalties": {"encoder_repetition_penalty": 1.2},
    "remove_invalid": {"remove_invalid_values": True, "renormalize_logits": True},
}


@pytest.mark.parametrize("inputs", [single, batch], ids=["one", "padded batch"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_greedy_texts_scores_and_logits_are_those_of_transformers(name, inputs):
    theirs, ours = both(tiny(), inputs(), **CONFIGURATIONS[name])
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for got, expected in ((ours.scores, theirs.scores), (ours.logits, theirs.logits)):
        assert len(got) == len(expected) == ours.sequences.shape[1] - 15
    done = torch.zeros(len(ours.sequences), dtype=torch.bool)
    ends = torch.tensor(CONFIGURATIONS[name].get("eos_token_id", [])).flatten()
    for column, token in enumerate(ours.sequences[:, 15:].T):
        for got, expected in ((ours.scores, theirs.scores), (ours.logits, theirs.logits)):
            torch.testing.assert_close(got[column][~done], expected[column][~done], atol=2e-5, rtol=1e-5)
        done |= torch.isin(token, ends)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize(
    "options", [{}, {"draft_tokens": 6}, {"draft_shape": "tree", "draft_tokens": 12}, {"drafter": "none"}]
)
def test_every_way_of_drafting_gives_the_text_of_transformers(kind, options):
    model = tiny(kind, 4.0)
    theirs = model.generate(**batch(), **PLAIN)
    ours = model.generate(**batch(), **PLAIN, custom_generate=specrs.hf.generate, **options)
    assert ours.tolist() == theirs.tolist()


def test_reports_come_with_the_output():
    out = tiny("llama", 2.0).generate(
        **single(), **PLAIN, custom_generate=specrs.hf.generate, draft_tokens=6, return_dict_in_generate=True
    )
    (report,) = out.reports
    assert report.new_tokens == 24
    assert report.accepted > 0
    assert report.target_passes < 24
    assert out.scores is None


def test_an_assistant_model_drafts():
    model = tiny()
    out = model.generate(
        **single(),
        **PLAIN,
        custom_generate=specrs.hf.generate,
        assistant_model=model,
        draft_tokens=3,
        return_dict_in_generate=True,
    )
    assert out.sequences.tolist() == model.generate(**single(), **PLAIN).tolist()
    assert out.reports[0].accepted_by_source == {"model": out.reports[0].accepted}
    assert out.reports[0].accepted > 0


@pytest.mark.parametrize("inputs", [single, batch], ids=["one", "padded batch"])
@pytest.mark.parametrize("ends", [{}, {"eos_token_id": 60}], ids=["no end token", "end token"])
def test_stopping_criteria(inputs, ends):
    free = tiny().generate(**inputs(), **PLAIN)
    for token in sorted(set(free[:, 15:].flatten().tolist()))[:4]:
        criteria = t.StoppingCriteriaList([StopAt(token)])
        theirs, ours = both(tiny(), inputs(), stopping_criteria=criteria, **ends)
        assert ours.sequences.tolist() == theirs.sequences.tolist()
        assert len(ours.scores) == len(theirs.scores)


def test_a_criterion_sees_the_scores_so_far():
    seen = []

    def criterion(input_ids, scores, **_):
        seen.append((input_ids.shape[1], len(scores)))
        assert scores[-1].shape == (1, 61)
        assert int(scores[-1].argmax()) == int(input_ids[0, -1])
        return torch.tensor([len(scores) >= 7])

    _, ours = both(tiny(), single(), stopping_criteria=t.StoppingCriteriaList([criterion]))
    assert ours.sequences.shape[1] == 15 + 7
    assert seen[-7:] == [(15 + n, n) for n in range(1, 8)]


def test_max_time_stops_at_once():
    out = tiny().generate(**single(), **PLAIN, max_time=1e-9, custom_generate=specrs.hf.generate, draft_tokens=0)
    assert out.shape[1] == 15 + 1


@pytest.mark.parametrize("inputs", [single, batch], ids=["one", "padded batch"])
@pytest.mark.parametrize("ends", [{}, {"eos_token_id": [9, 31, 44]}], ids=["no end token", "end token"])
def test_a_streamer_hears_what_it_hears_from_transformers(inputs, ends):
    theirs, ours = Listener(), Listener()
    tiny().generate(**inputs(), **PLAIN, **ends, streamer=theirs)
    tiny().generate(**inputs(), **PLAIN, **ends, streamer=ours, custom_generate=specrs.hf.generate)
    assert ours.heard == theirs.heard


def test_an_exception_of_the_streamer_is_the_callers():
    class Full(Listener):
        def put(self, value):
            super().put(value)
            if len(self.heard) > 3:
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        tiny().generate(**single(), **PLAIN, streamer=Full(), custom_generate=specrs.hf.generate)
    assert tiny().generate(**single(), **PLAIN, custom_generate=specrs.hf.generate).shape[1] == 15 + 24


def test_a_function_of_the_row_number_gets_it():
    def allowed(row, sentence):
        return [10 + row, 20 + row]

    theirs, ours = both(tiny(), batch(), prefix_allowed_tokens_fn=allowed)
    assert ours.sequences.tolist() == theirs.sequences.tolist()


def test_a_processor_with_a_state_follows_its_row():
    theirs = tiny().generate(**single(), **PLAIN, logits_processor=t.LogitsProcessorList([Bonus()]))
    ours = tiny().generate(
        **single(),
        **PLAIN,
        logits_processor=t.LogitsProcessorList([Bonus()]),
        custom_generate=specrs.hf.generate,
        draft_tokens=6,
    )
    assert ours.tolist() == theirs.tolist()


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    # StopStringCriteria looks for this word in the vocabulary.
    words = {"abcdef": 0} | {f"w{i}": i for i in range(1, 61)}
    made = Tokenizer(models.WordLevel(words, unk_token="abcdef"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return t.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="abcdef", pad_token="abcdef")


@pytest.mark.parametrize("inputs", [single, batch], ids=["one", "padded batch"])
def test_stop_strings(inputs):
    words = tokenizer()
    free = tiny().generate(**inputs(), **PLAIN)
    stop = f"w{int(free[0, 20])}"
    options = {**PLAIN, "stop_strings": [stop], "tokenizer": words}
    theirs = tiny().generate(**inputs(), **options)
    assert theirs.shape[1] <= free.shape[1]
    assert tiny().generate(**inputs(), **options, custom_generate=specrs.hf.generate).tolist() == theirs.tolist()
    assert specrs.hf.generate(tiny(), **inputs(), **options).tolist() == theirs.tolist()
    config = t.GenerationConfig(**{k: v for k, v in options.items() if k != "tokenizer"})
    direct = specrs.hf.generate(tiny(), **inputs(), generation_config=config, tokenizer=words)
    assert direct.tolist() == theirs.tolist()
    assert config.stop_strings == [stop]


def test_stop_strings_without_a_tokenizer_are_refused():
    with pytest.raises(InvalidInputError, match="need tokenizer="):
        tiny().generate(**single(), **PLAIN, stop_strings="x", custom_generate=specrs.hf.generate)


def test_a_direct_call_is_the_same_call():
    """B90: a plain callable of the package, through ``custom_generate`` or by itself; no remote code."""
    listener = Listener()
    out = specrs.hf.generate(tiny(), **batch(), **PLAIN, streamer=listener, repetition_penalty=1.2)
    expected = Listener()
    assert out.tolist() == tiny().generate(**batch(), **PLAIN, repetition_penalty=1.2, streamer=expected).tolist()
    assert listener.heard == expected.heard


REFUSED = {
    "beam search": ({"num_beams": 2}, "num_beams=2"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6"),
    "prompt lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
    "dola": ({"dola_layers": "low", "repetition_penalty": 1.2}, "dola_layers='low'"),
    "attentions": ({"output_attentions": True}, "output_attentions=True"),
    "hidden states": ({"output_hidden_states": True}, "output_hidden_states=True"),
    "guidance": ({"guidance_scale": 1.5}, "guidance_scale"),
    "a cache": ({"past_key_values": t.DynamicCache()}, "a cache of your own"),
    "synced": ({"synced_gpus": True}, "synced_gpus=True"),
    "two at once": ({"num_beams": 3, "output_hidden_states": True}, "num_beams=3, output_hidden_states=True"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_honoured_is_refused_by_name_before_any_work(name, monkeypatch):
    options, message = REFUSED[name]
    model = copy.deepcopy(tiny())
    monkeypatch.setattr(model.model, "forward", None)
    with pytest.raises(InvalidInputError, match=message):
        model.generate(**single(), **{**PLAIN, **options}, custom_generate=specrs.hf.generate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_mask": torch.tensor([[1] * 14 + [0]])}, "after its first token"),
        ({"attention_mask": torch.zeros(1, 15, dtype=torch.long)}, "0 throughout"),
        ({"position_ids": torch.arange(3, 18)[None]}, "position_ids must count"),
        ({"input_ids": torch.tensor([[*PROMPT[:-1], 61]])}, "has id 61"),
    ],
)
def test_inputs_that_we_would_misread_are_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        specrs.hf.generate(tiny(), **{**single(), **change}, **PLAIN)


def test_options_that_contradict_each_other_are_refused():
    drafter = NoDrafter()
    for options in ({"draft_shape": "tree"}, {"assistant_model": tiny()}):
        with pytest.raises(InvalidInputError, match="given as an object"):
            tiny().generate(**single(), **PLAIN, custom_generate=specrs.hf.generate, drafter=drafter, **options)
    with pytest.raises(InvalidInputError, match="names of one thing"):
        tiny().generate(
            **single(), **PLAIN, custom_generate=specrs.hf.generate, assistant_model=tiny(), draft_model=tiny()
        )


def test_a_name_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="draft_tokenz"):
        tiny().generate(**single(), **PLAIN, custom_generate=specrs.hf.generate, draft_tokenz=3)


def test_unusable_logits_are_an_error():
    model = copy.deepcopy(tiny())
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteLogitsError, match="row 0 after 0 new"):
        model.generate(**single(), **PLAIN, custom_generate=specrs.hf.generate, draft_tokens=2)


def test_unsupported_versions_are_named():
    from specrs.errors import MissingExtraError
    from specrs.hf.versions import require_supported_transformers

    for version in ("4.57.6", "6.0.0", "nonsense"):
        with pytest.raises(MissingExtraError, match=f">= 5.0 and < 6, found {version}"):
            require_supported_transformers(version)
