"""Blanks: bidirectional RNN and Transformer against a unigram model and a forward-only RNN.

    python -m bench.blank                                        the built-in text
    python -m bench.blank --text multi30k/train.en.gz --test multi30k/val.en.gz

All models are evaluated on the same blanks of the same test sentences: one per sentence, chosen by
a checksum of the sentence. The weights are selected on the validation split; nothing is chosen on
the test split. bench/results/blank.json has one entry per text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from bench import measure
from bench.judging import train_and_evaluate
from regard import build, recipe
from regard.data.cache import Corpus
from regard.evaluate import questions
from regard.tasks.blank import Blank
from regard.tokenizers import Labels

MODELS = {  # the names are also keys of bench/results/blank.json; "two-way" is bidirectional
    "two-way RNN": ("blank-rnn", []),
    "forward-only RNN": ("blank-rnn", ["encoder.directions=1"]),
    "Transformer": ("blank-transformer", []),
}
METRICS = ("perplexity", "accuracy", "accuracy_at_5")


def recipe_changes(args: argparse.Namespace) -> list[str]:
    """What the command line changes in every recipe."""
    changes = [
        f"seed={args.seed}",
        f"train.threads={args.threads}",
        "train.keep=best",
        *(args.set or []),
        *([f"train.epochs={args.epochs}"] if args.epochs else []),
    ]
    if args.text is None:
        return ["data.valid=0.1", "data.test=0.1", *changes]
    test = f'data.test_path="{args.test}"' if args.test else "data.test=0.05"
    return ["data.kind=text", f'data.path="{args.text}"', "data.valid=0.05", test, *changes]


def unigram(corpus: Corpus, task: Blank) -> dict[str, float]:
    """Scores of word frequencies at possible blanks, with add-one smoothing."""
    counts = np.zeros(corpus.tokenizer.size)
    for i in range(len(corpus.train)):
        row = corpus.train.source[i]
        np.add.at(counts, row[task.blanks(row)], 1)

    shares = (counts + 1)[4:] / (counts + 1)[4:].sum()
    labels = task.tokenizer
    assert isinstance(labels, Labels)
    best = [labels.labels[i] for i in shares.argsort()[::-1][:5]]

    test = corpus.test
    sources = [test.source[i] for i in range(len(test))]
    targets = [test.target[i] for i in range(len(test))]
    words = task.batch(sources, targets).targets[:, 0].numpy()
    perplexity = float(np.exp(-np.log(shares[words - 4]).mean()))

    references = [question.references for question in questions(test, task)]
    return {"perplexity": perplexity} | task.judge([best] * len(references), references).numbers


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--text", type=Path, help="plain text (default: the built-in text)")
    parser.add_argument(
        "--test", type=Path, help="another text for the test (default: a share of --text)"
    )
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="run only this model; the others stay"
    )
    parser.add_argument("--epochs", type=int, help="epochs, instead of those of the recipe")
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a change of all recipes"
    )
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "bench-blank")
    args = parser.parse_args()
    changes = recipe_changes(args)
    corpus = build.corpus(recipe.load("blank-rnn", changes))
    task = build.task(recipe.load("blank-rnn", changes), corpus.tokenizer)
    assert isinstance(task, Blank)
    text = "chatterbot" if args.text is None else f"{args.text.parent.name}/{args.text.name}"
    sizes = {"train": len(corpus.train), "valid": len(corpus.valid), "test": len(corpus.test)}
    record: dict[str, Any] = (
        measure.read("blank") if (measure.RESULTS / "blank.json").exists() else {}
    )
    models = record.get(text, {}).get("models", {}) | {"unigram": unigram(corpus, task)}
    for name in args.model or MODELS:
        print(name, flush=True)
        base, more = MODELS[name]
        all_changes = [*changes, *more]
        folder = args.out / name.replace(" ", "-")
        scores = train_and_evaluate(recipe.load(base, all_changes), folder, METRICS)
        models[name] = scores | {"recipe": base, "changes": all_changes}
        record[text] = {
            **measure.facts(args),
            "examples": sizes,
            "vocabulary": corpus.tokenizer.size,
            "models": models,
        }
        measure.write("blank", record)
    for name, scores in models.items():
        print(f"{name:18}" + "".join(f"{key} {scores[key]:8.4g}   " for key in METRICS))


if __name__ == "__main__":
    main()
