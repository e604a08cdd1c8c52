"""Blanks: the two-way RNN and the Transformer against a unigram and a model that sees only what
stands before them.

    python -m bench.blank                                        the text that regard brings
    python -m bench.blank --text ../shared/data/multi30k/train.en.gz --test ../shared/data/multi30k/val.en.gz

All are judged on the same blanks of the same test sentences: one a sentence, chosen by the
sentence. The weights are chosen on a validation part; nothing is chosen on the test part.
bench/results/blank.json keeps one entry a text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from bench import measure
from bench.judging import judged
from regard import build, recipe
from regard.data.cache import Corpus
from regard.evaluate import questions
from regard.tasks.blank import Blank

MODELS = {
    "two-way RNN": ("blank-rnn", []),
    "forward-only RNN": ("blank-rnn", ["encoder.directions=1"]),
    "Transformer": ("blank-transformer", []),
}
SHOWN = ("perplexity", "accuracy", "accuracy_at_5")


def own_data(given: argparse.Namespace) -> list[str]:
    changes = [
        f"seed={given.seed}",
        f"train.threads={given.threads}",
        "train.keep=best",
        *(given.set or []),
        *([f"train.epochs={given.epochs}"] if given.epochs else []),
    ]
    if given.text is None:
        return ["data.valid=0.1", "data.test=0.1", *changes]
    held = [f'data.test_path="{given.test}"'] if given.test else ["data.test=0.05"]
    return ["data.kind=text", f'data.path="{given.text}"', "data.valid=0.05", *held, *changes]


def unigram(corpus: Corpus, task: Blank) -> dict[str, float]:
    """Words by how often they stand where a blank might be, each counted once more than it was
    seen."""
    counts = np.zeros(corpus.tokenizer.size)
    for row in (corpus.train.source[i] for i in range(len(corpus.train))):
        np.add.at(counts, row[task.blanks(row)], 1)
    shares = (counts + 1)[4:] / (counts + 1)[4:].sum()
    best = [task.tokenizer.labels[i] for i in shares.argsort()[::-1][:5]]
    part = corpus.test
    words = task.batch(
        [part.source[i] for i in range(len(part))], [part.target[i] for i in range(len(part))]
    ).targets
    asked = questions(part, task)
    scores = task.judge([best] * len(asked), [one.references for one in asked]).numbers
    return {"perplexity": float(np.exp(-np.log(shares[words[:, 0].numpy() - 4]).mean()))} | scores


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--text", type=Path, help="plain text; not given: what regard brings")
    parser.add_argument(
        "--test", type=Path, help="other text to judge by; not given: a share of the first"
    )
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="train only this one; the others stay"
    )
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a change for all models"
    )
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "bench-blank")
    given = parser.parse_args()
    changes = own_data(given)
    corpus = build.corpus(recipe.load("blank-rnn", changes))
    task = build.task(recipe.load("blank-rnn", changes), corpus.tokenizer)
    assert isinstance(task, Blank)
    text = "chatterbot" if given.text is None else f"{given.text.parent.name}/{given.text.name}"
    sizes = {"train": len(corpus.train), "valid": len(corpus.valid), "test": len(corpus.test)}
    record: dict[str, Any] = (
        measure.read("blank") if (measure.RESULTS / "blank.json").exists() else {}
    )
    models = record.get(text, {}).get("models", {}) | {"unigram": unigram(corpus, task)}
    for name in given.model or MODELS:
        print(name, flush=True)
        base, more = MODELS[name]
        chosen, folder = recipe.load(base, [*changes, *more]), given.out / name.replace(" ", "-")
        models[name] = judged(chosen, folder, SHOWN) | {
            "recipe": base,
            "changes": [*changes, *more],
        }
        record[text] = {
            **measure.facts(given),
            "examples": sizes,
            "vocabulary": corpus.tokenizer.size,
            "models": models,
        }
        measure.write("blank", record)
    for name, scores in models.items():
        print(f"{name:18}" + "".join(f"{key} {scores[key]:8.4g}   " for key in SHOWN))


if __name__ == "__main__":
    main()
