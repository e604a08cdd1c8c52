"""Train a recipe and evaluate it on its test split; used by the benchmarks of quality."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import measure
from regard import build, bundle, disk
from regard.evaluate import evaluate
from regard.recipe import Recipe
from regard.train import train

SAMPLES = 8


class ValidationReporter:
    """A training reporter that prints validation scores only."""

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


def train_and_evaluate(recipe: Recipe, folder: Path, metrics: Sequence[str]) -> dict[str, Any]:
    """Train a recipe in `folder`; its scores on test and validation, and what it took."""
    if (folder / disk.MANIFEST).exists():  # an earlier run; `train` refuses any other folder
        shutil.rmtree(folder)
    reporter = ValidationReporter()

    start, start_cpu = time.perf_counter(), time.process_time()
    progress = train(recipe, folder, reporter=reporter)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu

    trained = bundle.load(folder)
    corpus = build.corpus(recipe, trained.tokenizer)
    test = evaluate(trained, corpus.test)
    valid = evaluate(trained, corpus.valid)
    samples = [
        f"{sample.prompt} -> {sample.answer} ({', '.join(sample.references)})"
        for sample in test.samples
    ]
    return {name: round(test.scores[name], 4) for name in metrics} | {
        **({"confusion": test.tables["confusion"]} if "confusion" in test.tables else {}),
        "valid": {name: round(valid.scores[name], 4) for name in metrics},
        "parameters": sum(reporter.facts.parameters.values()),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "steps": progress.step,
        "kept_step": progress.kept_step,
        "examples": reporter.facts.examples,
        "test_examples": len(corpus.test),
        "samples": samples[:SAMPLES],
        "measured": measure.revision(),
    }
