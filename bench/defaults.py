"""Every recipe that needs no data of yours (but chat, which bench.cornell judges), as it is
shipped: trained, then judged on examples that chose nothing.

    python -m bench.defaults                            all of them
    python -m bench.defaults --recipe image-pool        one of them; the others stay in the table

Sentiment and blanks have tables of their own: bench.sentiment, bench.blank.
"""

from __future__ import annotations

from pathlib import Path

from bench import measure
from bench.judging import judged
from regard import recipe

SHOWN = {
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
        choices=tuple(SHOWN),
        help="train only this one; the others stay",
    )
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a change for all recipes"
    )
    parser.add_argument("--out", type=Path, default=measure.ROOT / "runs" / "bench-defaults")
    parser.set_defaults(seed=1)  # as the recipes have it
    given = parser.parse_args()
    for name in given.recipe or SHOWN:
        print(name, flush=True)
        changes = [f"seed={given.seed}", f"train.threads={given.threads}", *(given.set or [])]
        found = judged(recipe.load(name, changes), given.out / name, SHOWN[name])
        measure.enter("defaults", "recipes", name, found, given)
        print(name, {key: found[key] for key in (*SHOWN[name], "seconds", "cpu_seconds")})


if __name__ == "__main__":
    main()
