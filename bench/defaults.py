"""Test scores of the shipped recipes that have built-in data, trained as they are.

    python -m bench.defaults                            all of them
    python -m bench.defaults --recipe image-pool        one of them; the others stay in the record

Nothing is chosen on the test split. Chat, sentiment and blanks have their own benchmarks:
bench.cornell, bench.sentiment, bench.blank.
"""

from __future__ import annotations

from pathlib import Path

from bench import measure
from bench.judging import train_and_evaluate
from regard import recipe

METRICS = {
    "translate-attention": ("exact", "bleu", "chrf"),
    "translate-gru": ("exact", "bleu", "chrf"),
    "translate-convolution": ("exact", "bleu", "chrf"),
    "translate-transformer": ("exact", "bleu", "chrf"),
    "translate-maclaurin": ("exact", "bleu", "chrf"),
    "image-pool": ("accuracy", "f1"),
    "image-stride": ("accuracy", "f1"),
    "image-patches": ("accuracy", "f1"),
    "caption-attention": ("exact", "bleu_4", "chrf"),
    "caption-transformer": ("exact", "bleu_4", "chrf"),
    "speech-attention": ("wer", "cer", "exact"),
    "speech-transformer": ("wer", "cer", "exact"),
}


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument(
        "--recipe",
        action="append",
        choices=tuple(METRICS),
        help="run only this recipe; the others stay",
    )
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a change of all recipes"
    )
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "bench-defaults")
    parser.set_defaults(seed=1)  # as in the recipes
    args = parser.parse_args()
    for name in args.recipe or METRICS:
        print(name, flush=True)
        changes = [f"seed={args.seed}", f"train.threads={args.threads}", *(args.set or [])]
        scores = train_and_evaluate(recipe.load(name, changes), args.out / name, METRICS[name])
        measure.enter("defaults", "recipes", name, scores, args)
        print(name, {key: scores[key] for key in (*METRICS[name], "seconds", "cpu_seconds")})


if __name__ == "__main__":
    main()
