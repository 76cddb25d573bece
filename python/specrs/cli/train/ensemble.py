"""``specrs train ensemble``: train and save the head of a dynamic ensemble for a pair of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrs.cli.arguments import one_of

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser
    from specrs.train.ensemble import Update

#: Tasks by name, as in ``specrs.train.TASKS``, which is imported only when something is trained.
TASKS = ("arithmetic",)


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs train ensemble`` takes."""
    parser.add_argument("--model", required=True, help="the target: a name or folder")
    parser.add_argument("--draft-model", required=True, help="the drafting model: a name or folder")
    parser.add_argument("--task", type=one_of("task", TASKS), default="arithmetic", help="what is rewarded")
    parser.add_argument("--out", required=True, metavar="FILE", help="the head: FILE.safetensors and FILE.json")
    parser.add_argument("--steps", type=int, default=60, help="updates (default 60)")
    parser.add_argument("--batch", type=int, default=8, help="texts per update (default 8)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the texts drawn (default 1)")
    parser.add_argument("--max-new-tokens", type=int, default=40, help="longest text (default 40)")
    parser.add_argument("--seed", type=int, default=42, help="of prompts and texts (default 42)")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs train ensemble``."""
    from specrs.engine.relaxed import pair_of
    from specrs.models.loading import load
    from specrs.models.vocabulary import require_same_vocabulary
    from specrs.train.ensemble import EnsembleTraining, train_ensemble
    from specrs.train.rollout import text_sampler
    from specrs.train.tasks import TASKS as MAKERS

    settings = EnsembleTraining(steps=arguments.steps, batch=arguments.batch, seed=arguments.seed)
    target, draft = load(arguments.model), load(arguments.draft_model)
    require_same_vocabulary(target.tokenizer, draft.tokenizer)
    task = MAKERS[arguments.task](settings.steps * settings.batch, arguments.seed)
    sample = text_sampler(
        target,
        draft,
        task,
        temperature=arguments.temperature,
        max_new_tokens=arguments.max_new_tokens,
        seed=arguments.seed,
    )
    head = train_ensemble(sample, pair_of(target, draft), task=task.name, settings=settings, seen=_show)
    print(f"saved {head.save(arguments.out)} and its .json")
    return 0


def _show(step: int, update: Update) -> None:
    print(
        f"update {step + 1:4}  reward {update.reward:.3f}  acceptance {update.acceptance:.3f}  "
        f"target weight {update.weight:.3f}",
        flush=True,
    )
