"""Check that a refactoring changes no number: losses of the first steps and answers of every
shipped recipe.

    python -m bench.same_numbers record before.json
    python -m bench.same_numbers compare before.json

Each recipe is trained on ten tiny examples for a few steps, with dropout, label smoothing and an
exponential moving average of the weights, on one thread, with a fixed seed. Losses are compared bit
by bit, and so are the tokens and scores of the answers of greedy and beam search.
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
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "compare"):
        sys.exit("usage: python -m bench.same_numbers record|compare FILE.json")
    action = sys.argv[1]
    file = Path(sys.argv[2])
    torch.set_num_threads(1)
    numbers = {name: measure(name) for name in recipe.names()}
    if action == "record":
        file.write_text(json.dumps(numbers, indent=1))
        print(f"{len(numbers)} recipes recorded in {file}")
        return

    before = json.loads(file.read_text())
    different = _differing_keys(before, numbers)
    for name in different:
        keys = _differing_keys(before.get(name, {}), numbers.get(name, {}))
        print(f"{name}: differs in {', '.join(keys)}")
    print(f"{len(before) - len(different)} of {len(before)} recipes have the same numbers")
    sys.exit(bool(different))


def measure(name: str) -> dict[str, Any]:
    """The losses of a recipe's first steps, and its answers after them."""
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
            numbers[kind] = [
                [[list(answer.tokens), answer.score] for answer in row] for row in answers
            ]
        return numbers


def _searches(task: str) -> dict[str, Options]:
    """Search options with short answers: some recipes have a maximum number of positions."""
    beams = 1 if task in ("classify", "blank") else 3
    return {
        "greedy": Options(max_new_tokens=8),
        "beam": Options(max_new_tokens=8, num_beams=beams, candidates=beams),
    }


def _has(shipped: recipe.Recipe, change: str) -> bool:
    section, field = change.partition("=")[0].split(".")
    return hasattr(getattr(shipped, section), field)


def _differing_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    keys = sorted(before.keys() | after.keys())
    return [key for key in keys if before.get(key) != after.get(key)]


if __name__ == "__main__":
    main()
