"""Whether a refactoring changed any number: losses of the first steps and answers of every shipped
recipe.

    python -m bench.same_numbers record before.json
    python -m bench.same_numbers compare before.json

Each recipe learns ten tiny examples for a few steps, with dropout, label smoothing and averaged
weights on, one thread, and one fixed seed. Every loss is compared to the last bit, and so are the
tokens and scores of greedy and beam answers.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from regard import recipe
from regard.bundle import load
from regard.search import Options
from regard.train import train
from tests.recipes.test_overfit import OWN, ten
from tests.tiny import Silent

STEPS = 30
NOISE = (
    "encoder.dropout=0.1",
    "decoder.dropout=0.1",
    "train.label_smoothing=0.1",
    "train.ema_decay=0.9",
)


def main() -> None:
    action, file = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    numbers = {name: measured(name) for name in recipe.names()}
    if action == "record":
        file.write_text(json.dumps(numbers, indent=1))
        print(f"{len(numbers)} recipes recorded in {file}")
        return
    before = json.loads(file.read_text())
    differing = [
        name
        for name in sorted(before.keys() | numbers.keys())
        if before.get(name) != numbers.get(name)
    ]
    for name in differing:
        print(
            f"{name}: differs in {', '.join(_parts(before.get(name, {}), numbers.get(name, {})))}"
        )
    print(f"{len(before) - len(differing)} of {len(before)} recipes have the same numbers")
    sys.exit(bool(differing))


def measured(name: str) -> dict[str, Any]:
    """The losses of a recipe's first steps, and what it answers after them."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REGARD_CACHE"] = str(Path(folder) / "cache")
        overrides, inputs, _ = ten(name, Path(folder))
        shipped = recipe.load(name)
        noise = [change for change in NOISE if _has(shipped, change)]
        chosen = recipe.load(name, [*overrides, *OWN.get(name, []), *noise, f"train.steps={STEPS}"])
        reporter = Silent()
        train(chosen, Path(folder) / "run", reporter=reporter)
        model = load(Path(folder) / "run")
        numbers: dict[str, Any] = {"losses": reporter.losses}
        for kind, options in _searches(shipped.task).items():
            answers = model.candidates(inputs, options)
            numbers[kind] = [[[list(each.tokens), each.score] for each in row] for row in answers]
        return numbers


def _searches(task: str) -> dict[str, Options]:
    """Short ones: some recipes have no positions for more than their longest example."""
    beams = 1 if task in ("classify", "blank") else 3
    return {
        "greedy": Options(max_new_tokens=8),
        "beam": Options(max_new_tokens=8, num_beams=beams, candidates=beams),
    }


def _has(shipped: recipe.Recipe, change: str) -> bool:
    section, field = change.partition("=")[0].split(".")
    return hasattr(getattr(shipped, section), field)


def _parts(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        part for part in sorted(before.keys() | after.keys()) if before.get(part) != after.get(part)
    ]


if __name__ == "__main__":
    main()
