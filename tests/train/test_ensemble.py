"""Training of the ensemble head: its gradients, what it learns on a problem with a known answer, and its files."""

import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from specrs.errors import InvalidInputError, SpecrsError  # noqa: E402
from specrs.train import EnsembleTraining, Rollout, arithmetic, train_ensemble  # noqa: E402
from specrs.train.ensemble import HeadTrainer  # noqa: E402
from specrs.verification import EnsembleHead, Pair  # noqa: E402

PAIR = Pair("small", "large", 2, 3)


def text(weight_seed=0, length=4):
    generator = torch.Generator().manual_seed(weight_seed)
    p, q, distance = torch.rand(3, length, generator=generator)
    return Rollout(list(range(length)), p, q, distance, torch.randn(length, 5, generator=generator))


def test_losses_are_the_formulas():
    trainer = HeadTrainer(5, EnsembleTraining())
    with torch.no_grad():
        trainer.parameters[0].copy_(torch.linspace(-1, 1, 5))
    texts, advantages = [text(0), text(1, 7)], [0.5, -1.0]
    reward_loss, acceptance_loss = trainer.losses(texts, advantages)
    total_reward, total_acceptance = 0.0, 0.0
    for one, advantage in zip(texts, advantages, strict=True):
        for t in range(len(one.tokens)):
            w = 1 / (1 + math.exp(-float(one.hidden[t] @ trainer.parameters[0].detach())))
            p, q, distance = (float(x[t]) for x in (one.target_probs, one.draft_probs, one.distances))
            total_reward += advantage * math.log(w * p + (1 - w) * q)
            total_acceptance += 1 - w * distance
    assert reward_loss.item() == pytest.approx(-total_reward / 2, rel=1e-5)
    assert acceptance_loss.item() == pytest.approx(-total_acceptance / 2, rel=1e-5)


def test_acceptance_term_pulls_acceptance_up():
    # Equal rewards: no advantage, so only the acceptance term acts; a sign error would push the weight up.
    trainer = HeadTrainer(5, EnsembleTraining(learning_rate=0.05, warmup=0, steps=50))
    texts = [text(0), text(1)]
    first = trainer.update(texts, [1.0, 1.0])
    for _ in range(30):
        last = trainer.update(texts, [1.0, 1.0])
    assert last.weight < first.weight
    assert last.acceptance > first.acceptance


def two_contexts(trainer, indices):
    return [two_context_text(trainer, index) for index in indices]


def two_context_text(trainer, index):
    """One token per text. In context 0 the target is right and the draft wrong; in context 1 both are right."""
    context = index % 2
    generator = torch.Generator().manual_seed(index)
    hidden = torch.tensor([1.0 - context, 0.0, context, 0.0, 0.0])
    # Token 1 is the right one. The two laws are equally far apart in both contexts.
    p = torch.tensor([0.05, 0.95, 0.0] if context == 0 else [0.0, 0.9, 0.1])
    q = torch.tensor([0.95, 0.05, 0.0] if context == 0 else [0.9, 0.1, 0.0])
    w = float(trainer.weights_of(hidden[None])[0])
    token = int(torch.multinomial(w * p + (1 - w) * q, 1, generator=generator))
    right = token == 1 if context == 0 else True
    distance = (p - q).abs().sum()[None] / 2
    return Rollout([token], p[token][None], q[token][None], distance, hidden[None]), float(right)


def test_learns_where_the_target_is_needed():
    settings = EnsembleTraining(steps=150, batch=16, learning_rate=0.1, acceptance_share=0.5)
    head = train_ensemble(two_contexts, PAIR, task="toy", settings=settings)
    draft = np.array([[1, 0], [0, 0]], np.float32)
    target = np.array([[0, 0, 0], [1, 0, 0]], np.float32)
    needed, harmless = head.weights(draft, target)
    assert needed > 0.8
    assert harmless < 0.5


def test_files_come_back_and_other_pairs_are_refused(tmp_path):
    head = EnsembleHead(np.arange(5, dtype=np.float32) / 7, -0.25, PAIR, "toy")
    file = head.save(tmp_path / "made" / "head-1.5b-0.5b")
    assert sorted(made.name for made in file.parent.iterdir()) == [
        "head-1.5b-0.5b.json",
        "head-1.5b-0.5b.safetensors",
    ]
    again = EnsembleHead.load(file, PAIR)
    assert np.array_equal(again.weight, head.weight)
    assert (again.bias, again.pair, again.task) == (head.bias, PAIR, "toy")
    with pytest.raises(InvalidInputError, match="was trained for"):
        EnsembleHead.load(file, Pair("small", "larger", 2, 3))
    about = json.loads(file.with_suffix(".json").read_text())
    file.with_suffix(".json").write_text(json.dumps(about | {"convention": "draft weight"}))
    with pytest.raises(InvalidInputError, match="convention"):
        EnsembleHead.load(file)
    file.with_suffix(".json").write_text(json.dumps(about | {"pair": {"draft": "small"}}))
    with pytest.raises(SpecrsError, match="no ensemble head"):
        EnsembleHead.load(file)


def test_bad_input_is_refused():
    with pytest.raises(InvalidInputError, match="shape"):
        EnsembleHead(np.zeros(4, np.float32), 0.0, PAIR)
    with pytest.raises(InvalidInputError, match="hidden states"):
        EnsembleHead(np.zeros(5, np.float32), 0.0, PAIR).weights(np.zeros((1, 3)), np.zeros((1, 2)))
    with pytest.raises(InvalidInputError, match="learning_rate"):
        EnsembleTraining(learning_rate=0)
    with pytest.raises(InvalidInputError, match="baseline_momentum"):
        EnsembleTraining(baseline_momentum=1)


def test_extreme_states_keep_weights_inside():
    head = EnsembleHead(np.full(5, 1e6, np.float32), 0.0, PAIR)
    weights = head.weights(np.array([[-1, 0], [1, 0]], np.float32), np.zeros((2, 3), np.float32))
    assert 0 < weights[0] < 1e-3
    assert weights[1] == 1


def test_arithmetic_is_checked_exactly():
    task = arithmetic(5, seed=3)
    assert task.prompts == arithmetic(5, seed=3).prompts
    line = task.prompts[0].split("\n")[2]
    value = eval(line.removeprefix("Q: What is ").removesuffix("?"))
    assert task.reward(0, f" so the answer is {value}.\nQ: 1") == 1.0
    assert task.reward(0, f" {value + 1}\nQ: {value}") == 0.0
    assert task.reward(0, " none") == 0.0


def test_texts_are_drawn_from_the_mixture_and_alone():
    from tests.engine.conftest import tiny_target

    from specrs.train import roll_out

    target, draft = tiny_target("llama"), tiny_target("llama", seed=7)
    prompts = [[7, 3, 9], [5], [1, 2, 3, 4]]
    half = lambda hidden: torch.full((len(hidden),), 0.5)  # noqa: E731
    texts = roll_out(target, draft, prompts, half, seeds=[1, 2, 3], max_new_tokens=5)
    for prompt, seed, made in zip(prompts, [1, 2, 3], texts, strict=True):
        alone = roll_out(target, draft, [prompt], half, seeds=[seed], max_new_tokens=5)[0]
        assert alone.tokens == made.tokens
        # Teacher-forced by transformers: the laws behind each context.
        ids = torch.tensor([prompt + made.tokens[:-1]])
        with torch.no_grad():
            p, q = (m.model(ids).logits[0, len(prompt) - 1 :].float().softmax(-1) for m in (target, draft))
        rows = torch.arange(5)
        assert torch.allclose(made.target_probs, p[rows, made.tokens], atol=1e-5)
        assert torch.allclose(made.draft_probs, q[rows, made.tokens], atol=1e-5)
        assert torch.allclose(made.distances, (p - q).abs().sum(-1) / 2, atol=1e-5)
    with pytest.raises(InvalidInputError, match="temperature"):
        roll_out(target, draft, prompts, half, seeds=[1, 2, 3], temperature=0.0)
