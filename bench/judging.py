"""Train a recipe, judge it on its test part, and say what that took: what benchmarks of quality
share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import measure
from regard import build, bundle
from regard.evaluate import evaluate
from regard.recipe import Recipe
from regard.train import train

SAMPLES = 8


class Quiet:
    """A reporter that prints validations only."""

    def began(self, facts) -> None:
        self.facts = facts

    def stepped(self, progress, loss, speed, done) -> None: ...

    def validated(self, record, samples) -> None:
        scores = {
            name: round(value, 4) for name, value in record.items() if isinstance(value, float)
        }
        print("  ", scores, "step", record["step"], flush=True)

    def noted(self, message) -> None:
        print(message)


def judged(chosen: Recipe, folder: Path, shown: Sequence[str]) -> dict[str, Any]:
    """The scores `shown`, of the test part and of the validation part."""
    shutil.rmtree(folder, ignore_errors=True)
    clock, cpu, reporter = time.perf_counter(), time.process_time(), Quiet()
    progress = train(chosen, folder, reporter=reporter)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    bot = bundle.load(folder)
    corpus = build.corpus(chosen, bot.tokenizer)
    found, chosen_by = evaluate(bot, corpus.test), evaluate(bot, corpus.valid)
    asked = [
        f"{one['prompt']} -> {one['answer']} ({', '.join(one['references'])})"
        for one in found["samples"]
    ]
    return {name: round(found[name], 4) for name in shown} | {
        **({"confusion": found["confusion"]} if "confusion" in found else {}),
        "valid": {name: round(chosen_by[name], 4) for name in shown},
        "parameters": sum(reporter.facts.parameters.values()),
        "seconds": round(clock, 1),
        "cpu_seconds": round(cpu, 1),
        "steps": progress.step,
        "kept_step": progress.kept_step,
        "examples": reporter.facts.examples,
        "test_examples": len(corpus.test),
        "samples": asked[:SAMPLES],
        "measured": measure.revision(),
    }
