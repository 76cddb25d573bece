"""Length policies on recorded traces: tokens per second of each, against fixed lengths and oracles.

A trace holds, for every position of a text that the target wrote greedily, the drafter's whole draft there: its
confidences and how many of its tokens the target wrote next. What a policy cuts is then known exactly, whatever it
chooses, so policies are compared on the same texts without running a model. Seconds are those of the cost table that
was measured on the recording machine; the decisions are the library's own code. A cache's drafts end by themselves
where counts get thin, which is a length policy already; ``--uncut`` records them running on.

    python benches/policies.py [--json FILE]                     # replay benches/traces/*.json
    python benches/policies.py record OUT --model NAME [--draft-model NAME] [--limit N] [--tokens T] [--uncut]
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path

import numpy as np

from specrs import _core
from specrs.policies.base import RoundSeconds
from specrs.policies.registry import POLICIES, check
from specrs.types import Confidence, Draft, Verdict

HERE = Path(__file__).parent
#: Seconds of a round beside drafting and scoring.
OVERHEAD = 0.0005
LONGEST = {"cache": 40, "model": 8}


class Text:
    """The request that a policy sees: its id, its temperature, its length."""

    class sampling:  # noqa: N801
        temperature = 0.0

    def __init__(self, number: int, length: int) -> None:
        self.id = number
        self.tokens = range(length)


class Step:
    """Facts of one drafted token; the traces hold the largest probability alone, which a greedy draft's token has."""

    requests = (0,)

    def __init__(self, length: int, confidence: float, entropy: float) -> None:
        self.lengths, self.confidence, self._entropy = (length,), [confidence], entropy

    def entropy(self) -> list[float]:
        return [self._entropy]

    def token_probs(self) -> list[float]:
        return self.confidence


class Costs:
    """The recorded seconds."""

    def __init__(self, record: dict) -> None:
        self.rows = np.array(record["costs"]["seconds"])
        self.step = record["costs"].get("step_seconds", 0.0)

    def score(self, length: int) -> float:
        return float(self.rows[min(length, len(self.rows) - 1)])

    def of(self, lengths, stepwise: bool) -> np.ndarray:
        return np.array([OVERHEAD + (n * self.step if stepwise else 0.0) + self.score(n) for n in lengths])

    def table(self) -> _core.CostTable:
        return _core.CostTable(list(range(1, len(self.rows) + 1)), self.rows.tolist())


def replay(texts, costs: Costs, make, *, stepwise: bool, longest: int):
    """Run one policy over the texts, one after the other; return the tokens and seconds of each."""
    of_texts = []
    policy = make()
    for number, text in enumerate(texts):
        at = 0
        tokens = seconds = 0.0
        drafts = text["drafts"]
        while at < len(drafts):
            stated, entropy, accepted = drafts[at]
            room = min(longest, len(stated), len(drafts) - at - 1)
            request = [Text(number, 64 + at)]
            asked = policy.budgets(request, [max(room, 0)])[0]
            drafted = min(asked, room)
            go_on = policy.go_on(request) if stepwise else None
            if go_on is not None and drafted:
                n = 1
                while n < drafted and go_on(Step(n, stated[n - 1], entropy[n - 1] if entropy else 0.0))[0]:
                    n += 1
                drafted = n
            kind = Confidence.MAX_PROB if stepwise else Confidence.COUNT_RATIO
            draft = Draft.chains([[1] * drafted], confidence=[stated[:drafted]], confidence_kind=kind)
            draft = policy.trim(request, draft)
            length = len(draft.tokens)
            taken = min(accepted, length)
            spent = drafted * costs.step if stepwise else 0.0
            score = costs.score(length)
            verdict = Verdict(
                np.array([0, taken]), np.arange(taken, dtype=np.int32), np.zeros(1, np.uint32), np.zeros(1, np.uint8)
            )
            policy.observe(request, draft, verdict, RoundSeconds(spent, 0.0, score, 0.0, OVERHEAD))
            tokens += 1 + taken
            seconds += spent + score + OVERHEAD
            at += 1 + taken
        policy.finish(Text(number, 0))
        of_texts.append((tokens, seconds))
    return of_texts


def replay_router(texts, costs: Costs, *, longest: int):
    """Run the hybrid drafter's router without a model over a cache's chains; return the tokens and seconds of each."""
    router = _core.PayoffRouter(explore=0.0)
    router.set_costs((list(range(1, len(costs.rows) + 1)), costs.rows.tolist()), None)
    of_texts = []
    for number, text in enumerate(texts):
        drafts, at, tokens, seconds = text["drafts"], 0, 0, 0.0
        # Traces hold no ids: every token of the text gets its own, and a draft's first wrong one the id 0.
        written = np.arange(1, len(drafts) + longest + 1, dtype=np.uint32)
        router.start(number, 0)
        while at < len(drafts):
            stated, _, accepted = drafts[at]
            room = max(0, min(longest, len(stated), len(drafts) - at - 1))
            ids = np.where(np.arange(room) < accepted, written[at : at + room], 0).astype(np.uint32)
            chain = (ids, np.arange(-1, room - 1, dtype=np.int32), np.array(stated[:room], np.float32))
            options = {"budget": longest, "remaining": len(drafts) - at, "uniform": 0.5}
            _, length, _ = router.route(number, written[:at], chain, **options)
            score = costs.score(length)
            router.note_forward(1 + length, score)
            tokens += 1 + min(accepted, length)
            seconds += score + OVERHEAD
            at += 1 + min(accepted, length)
        router.finish(number, written[: len(drafts)])
        of_texts.append((tokens, seconds))
    return of_texts


def speed(of_texts) -> float:
    """Tokens per second of some texts together."""
    tokens, seconds = np.sum(of_texts, axis=0)
    return float(tokens / seconds)


class Oracle:
    """Chooses a round's length with the costs known, for ``replay_oracle``."""

    def __init__(self, texts, costs, *, stepwise, longest, knows) -> None:
        self.costs = costs.of(range(longest + 1), stepwise)
        self.knows = knows
        self.calibration = _calibration(texts) if knows == "confidences" else None

    def length(self, stated, accepted, room) -> int:
        if self.knows == "verdict":
            expected = 1.0 + np.minimum(np.arange(room + 1), accepted)
        else:
            rates = self.calibration(np.array(stated[:room]))
            expected = np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(rates))])
        return int((expected / self.costs[: room + 1]).argmax())


def _calibration(texts):
    """Fit acceptance by confidence to the whole trace: what nobody knows beforehand."""
    bins = 24
    hits, seen = np.full(bins, 0.5), np.full(bins, 1.0)
    for text in texts:
        for stated, _, accepted in text["drafts"]:
            for j, c in enumerate(stated[: accepted + 1]):
                b = min(int(c * bins), bins - 1)
                hits[b] += j < accepted
                seen[b] += 1
    centres = (np.arange(bins) + 0.5) / bins
    return lambda c: np.clip(np.interp(c, centres, hits / seen), 0, 0.999)


def replay_oracle(texts, costs, oracle, *, longest):
    of_texts = []
    for text in texts:
        at = 0
        tokens = seconds = 0.0
        while at < len(text["drafts"]):
            stated, _, accepted = text["drafts"][at]
            room = max(0, min(longest, len(stated), len(text["drafts"]) - at - 1))
            length = oracle.length(stated, accepted, room)
            tokens += 1 + min(accepted, length)
            seconds += oracle.costs[length]
            at += 1 + min(accepted, length)
        of_texts.append((tokens, seconds))
    return of_texts


def make_policy(name, options, costs, *, stepwise, longest):
    from specrs.policies.named import NamedPolicy

    def make():
        values = check(name, options)
        own = {k: values[k] for k in POLICIES[name].options}
        if own.get("max_tokens", 0) is None:
            own["max_tokens"] = longest
        table = costs.table()
        learned = _core.Learned(values["calibration"], values["temperatures"])
        return NamedPolicy(
            name, own, drawn=False, stepwise=stepwise, cost=table, learned=learned, guarded=bool(values["backoff"])
        )

    return make


def temperatures_of(texts, longest):
    """Fit sequential temperature scaling to the first half of the texts."""
    drafts = [d for text in texts[::2] for d in text["drafts"] if len(d[0]) >= longest]
    if len(drafts) < 20:
        return None
    stated = np.array([d[0][:longest] for d in drafts], np.float32).ravel()
    return _core.fit_temperatures(stated, longest, [min(d[2], longest) for d in drafts])


def report(path: Path) -> dict:
    """Print what every policy makes of a trace, on all texts and on those of each set, over plain decoding."""
    record = json.loads(path.read_text(encoding="utf-8"))
    stepwise, longest = record["drafter"] == "model", LONGEST[record["drafter"]]
    costs, texts = Costs(record), record["texts"]
    base = {"stepwise": stepwise, "longest": longest}
    sets = list(dict.fromkeys(text["set"] for text in texts))

    def over_plain(of_texts) -> dict[str, float]:
        plain = 1.0 / (costs.score(0) + OVERHEAD)
        of_set = {s: [one for text, one in zip(texts, of_texts, strict=True) if text["set"] == s] for s in sets}
        return {"all": speed(of_texts) / plain, **{s: speed(some) / plain for s, some in of_set.items()}}

    def run(name, options):
        return over_plain(replay(texts, costs, make_policy(name, options, costs, **base), **base))

    fixed = {k: run("fixed", {"tokens": k, "backoff": False}) for k in [*range(9), 12, 16, 24, 32, 40] if k <= longest}
    best = {s: max(fixed, key=lambda k: fixed[k][s]) for s in ("all", *sets)}
    rows = {}
    for name in POLICIES:
        needs_law = name in ("svip", "adaedl")
        if name in ("fixed", "specdecpp", "disco") or (needs_law and not stepwise):
            continue
        rows[name] = run(name, {})
    for calibration in ("identity", "bins", "temperatures"):
        options = {"calibration": calibration}
        if calibration == "temperatures":
            options["temperatures"] = temperatures_of(texts, min(longest, 8))
            if options["temperatures"] is None:
                continue
        rows[f"libra, {calibration}"] = run("libra", options)
    rows["libra, price of the run"] = run("libra", {"price": "run"})
    rows["libra, no hysteresis"] = run("libra", {"hysteresis": 0.0, "probe_every": 0})
    if not stepwise:
        rows["hybrid's router, no model"] = over_plain(replay_router(texts, costs, longest=longest))
    oracles = {
        knows: over_plain(replay_oracle(texts, costs, Oracle(texts, costs, knows=knows, **base), longest=longest))
        for knows in ("confidences", "verdict")
    }

    print(f"\n{path.name}: {record['model']} + {record['drafter']} {record.get('draft_model') or ''}, "
          f"{len(texts)} texts, {sum(len(t['drafts']) for t in texts)} positions; over plain decoding")  # fmt: skip
    print(f"  {'':28s}{'all':>8s}" + "".join(f"{s:>16s}" for s in sets))

    def line(label, row):
        print(f"  {label:28s}{row['all']:8.3f}" + "".join(f"{row[s]:16.3f}" for s in sets))

    line(f"fixed, k = {best['all']}, best of all", fixed[best["all"]])
    line("fixed, best k of each", {s: fixed[k][s] for s, k in best.items()})
    for label, row in sorted(rows.items(), key=lambda row: -row[1]["all"]):
        line(label, row)
    for knows, row in oracles.items():
        line(f"oracle with the {knows}", row)
    libra, hindsight = rows["libra"]["all"], fixed[best["all"]]["all"]
    print(f"  libra: {libra / hindsight - 1:+.1%} over the best fixed k in hindsight, "
          f"{libra / oracles['confidences']['all'] - 1:+.1%} of the oracle with the confidences")  # fmt: skip
    return {"fixed": fixed, "policies": rows, "oracles": oracles}


def decision_cost(repeats: int = 20000) -> None:
    """Print microseconds of one decision per request: the extension's call, and all of it in Python."""
    costs = type("C", (), {})()
    costs.table = lambda: _core.CostTable(list(range(1, 65)), [1 + 0.02 * m for m in range(64)])
    for batch, n in ((1, 15), (1, 40), (8, 15)):
        policy = make_policy("libra", {}, costs, stepwise=False, longest=40)()
        requests = [Text(b, 100) for b in range(batch)]
        draft = Draft.chains([[1] * n] * batch, confidence=[[0.9] * n] * batch, confidence_kind=Confidence.COUNT_RATIO)
        facts = policy._facts(requests)
        calls = [
            lambda p=policy, f=facts, d=draft: p._core.trim(*f, d.parents, d.confidence, d.node_ptr, True),
            lambda p=policy, r=requests, d=draft: p.trim(r, d),
        ]
        times = []
        for call in calls:
            best = np.inf
            for _ in range(5):
                start = time.process_time()  # of the processor: other processes do not count
                for _ in range(repeats // 5):
                    call()
                best = min(best, (time.process_time() - start) / (repeats // 5))
            times.append(1e6 * best / batch)
        print(f"libra over {n} tokens, batch {batch}: {times[0]:.2f} us per request in the extension, "
              f"{times[1]:.2f} us with the cut draft")  # fmt: skip


def record(arguments) -> None:
    """Write the target's texts, the drafts at every position, and the costs, to a trace file."""
    import specrs
    from specrs.bench import read_prompts
    from specrs.drafters.cache import CacheDrafter
    from specrs.policies.cost import CostTable
    from specrs.prompts import encode_prompts

    target = specrs.load(arguments.model)
    sets = sorted(path.stem for path in (HERE / "prompts").glob("*.jsonl"))
    prompts = read_prompts(HERE / "prompts", sets, arguments.limit)
    rank = {prompt.id: [p for p in prompts if p.set == prompt.set].index(prompt) for prompt in prompts}
    prompts.sort(key=lambda prompt: rank[prompt.id])  # a recording that is broken off has something of each set
    drafting = specrs.load(arguments.draft_model) if arguments.draft_model else None
    # Costs first: a recording that is broken off keeps the texts that it has.
    table = CostTable.profile(target, batches=(1,), contexts=(arguments.context,), rows=range(1, 42), repeats=3)
    costs = {"seconds": [round(table.seconds(m), 6) for m in range(1, 42)]}
    if drafting is not None:
        from specrs.cli.profile import step_seconds

        costs["step_seconds"] = round(step_seconds(drafting, arguments.context), 6)
    trace = {
        "model": target.name,
        "drafter": "cache" if drafting is None else "model",
        "draft_model": None if drafting is None else drafting.name,
        "command": "python benches/policies.py " + " ".join(sys.argv[1:]),
        "fingerprint": table.fingerprint,
        "costs": costs,
        "texts": [],
    }
    for prompt in [] if arguments.costs_only else prompts:
        ids = encode_prompts(target, prompt.messages)[0]
        if len(ids) > arguments.longest_prompt:
            continue
        made = specrs.generate(target, ids, max_new_tokens=arguments.tokens, drafter="cache")
        if drafting is None:
            drafts = _cache_drafts(CacheDrafter(target.vocab_size), ids, made.ids, 0.0 if arguments.uncut else 0.1)
        else:
            drafts = _model_drafts(drafting, ids, made.ids)
        trace["texts"].append({"id": prompt.id, "set": prompt.set, "drafts": drafts})
        accepted = np.mean([d[2] for d in drafts])
        print(f"{prompt.id}: {len(made.ids)} tokens, mean accepted {accepted:.2f}", file=sys.stderr)
        Path(arguments.out).write_text(json.dumps(trace), encoding="utf-8")
    Path(arguments.out).write_text(json.dumps(trace), encoding="utf-8")


def _matches(drafted, text) -> int:
    n = 0
    while n < min(len(drafted), len(text)) and drafted[n] == text[n]:
        n += 1
    return n


def _cache_drafts(drafter, prompt, text, min_prob):
    drafts, cache = [], drafter._cache
    for at in range(len(text)):
        cache.start(1, np.concatenate([prompt, np.array(text[:at], np.uint32)]))
        tokens, _, _, confidence, *_ = cache.draft(1, LONGEST["cache"], min_prob=min_prob)
        drafts.append([[round(float(c), 3) for c in confidence], [], _matches(tokens.tolist(), text[at:])])
        cache.abort(1)
    return drafts


def _model_drafts(model, prompt, text):
    """Greedy drafts at every position, eight positions at a time."""
    whole = np.concatenate([prompt, np.array(text, np.uint32)])
    drafts = []
    n, together = LONGEST["model"], 8
    read = model.new_state(len(whole) + n + 2)
    model.prefill(read, whole[: len(prompt) - 1])
    states = [read, *(copy.deepcopy(read) for _ in range(together - 1))]
    for first in range(0, len(text), together):
        going = list(range(first, min(first + together, len(text))))
        used = states[: len(going)]
        chains = [[] for _ in going]
        facts = [([], []) for _ in going]
        for step in range(n):
            unread = []
            for i, at in enumerate(going):
                start = used[i].length
                unread.append(whole[start : len(prompt) + at] if step == 0 else np.array(chains[i][-1:], np.uint32))
            logits = model.score(used, unread, Draft.empty(len(going))).logits.float()
            laws = logits.softmax(-1)
            entropies = (-(laws * laws.clamp_min(1e-30).log()).sum(-1)).tolist()
            for i, state in enumerate(used):
                state.commit(np.empty(0, np.int32), len(unread[i]))
                chains[i].append(int(logits[i].argmax()))
                facts[i][0].append(round(float(laws[i].max()), 3))
                facts[i][1].append(round(entropies[i], 3))
        for i, at in enumerate(going):
            drafts.append([*facts[i], _matches(chains[i], text[at:])])
            used[i].truncate(len(prompt) + at)
    return drafts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write what the replay found")
    commands = parser.add_subparsers(dest="command")
    recording = commands.add_parser("record")
    recording.add_argument("out")
    recording.add_argument("--model", default="smollm2-135m")
    recording.add_argument("--draft-model")
    recording.add_argument("--limit", type=int, default=4, help="prompts of each set")
    recording.add_argument("--tokens", type=int, default=96)
    recording.add_argument("--context", type=int, default=256, help="tokens of text while costs are measured")
    recording.add_argument("--longest-prompt", type=int, default=1500)
    recording.add_argument("--uncut", action="store_true", help="cache drafts do not end by themselves at low counts")
    recording.add_argument("--costs-only", action="store_true", help="measure, and record no text")
    arguments = parser.parse_args()
    if _core.BUILD_PROFILE != "release":
        raise SystemExit(f"needs a release build of the extension, this one is {_core.BUILD_PROFILE}")
    if arguments.command == "record":
        record(arguments)
        return
    found = {path.stem: report(path) for path in sorted((HERE / "traces").glob("*.json"))}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    decision_cost()


if __name__ == "__main__":
    main()
