"""Train a small translator and draw where it attends: docs/images/alignment.png.

    python -m bench.attention_picture                  half a minute on one core
    python -m bench.attention_picture --out mine.png "sixty-four" "the fifth of May two thousand"

The model is the recipe `translate-alignment`. The two sentences were chosen to show the order of
German numbers; the command takes others.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import measure
from bench.judging import ValidationReporter
from regard import bundle, recipe
from regard.bundle import Bundle
from regard.disk import MADE_BY, write_output
from regard.train import train

PICTURE = measure.ROOT / "docs" / "images" / "alignment.png"
SENTENCES = (
    "ninety-one thousand six hundred and twenty-eight",
    "the first of October nineteen ninety-six",
)
INCHES = 0.36  # of a cell
INK = "#1f2328"
PAPER = "#ffffff"  # opaque, so that the labels can be read on a dark page too


class Alignment(NamedTuple):
    """Attention weights (T, S) of an answer, with the tokens of both sides."""

    source: list[str]
    answer: list[str]
    weights: np.ndarray


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("sentences", nargs="*", default=SENTENCES, help="English numbers or dates")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=PICTURE)
    parser.set_defaults(seed=1, threads=1)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        bot = trained(Path(folder) / "run", args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(args.out, [alignment(bot, sentence) for sentence in args.sentences])
    print(f"wrote {args.out}")


def trained(folder: Path, args: argparse.Namespace) -> Bundle:
    """The translator, trained in `folder`."""
    settings = (f"seed={args.seed}", f"train.threads={args.threads}", f"train.steps={args.steps}")
    train(recipe.load("translate-alignment", settings), folder, reporter=ValidationReporter())
    return bundle.load(folder)


def alignment(bot: Bundle, sentence: str) -> Alignment:
    """The greedy translation of a sentence and its attention, averaged over heads."""
    answer = bot.ask(sentence, num_beams=1)
    assert answer.weights is not None
    print(f"{sentence}  ->  {answer.text}")
    return Alignment(
        source=list(answer.place_names),
        answer=[name.strip() for name in answer.step_names],
        weights=answer.weights.mean(1).numpy(),
    )


def draw(path: Path, alignments: list[Alignment]) -> None:
    """A PNG with one heat map per sentence: source tokens across, answer tokens down."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no window

    widths = [len(panel.source) for panel in alignments]
    height = max(len(panel.answer) for panel in alignments)
    figure = Figure(
        figsize=(INCHES * sum(widths) + 1.7 * len(widths), INCHES * height + 1.3),
        facecolor=PAPER,
        layout="constrained",
    )
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for ax, panel in zip(axes, alignments, strict=True):
        ax.imshow(panel.weights, cmap="Blues", vmin=0, vmax=1)
        literal = {"parse_math": False}  # a token "$" is not the start of a formula
        ax.set_xticks(range(len(panel.source)), panel.source, rotation=60, ha="left", **literal)
        ax.set_yticks(range(len(panel.answer)), panel.answer, **literal)
        ax.tick_params(length=0, labelsize=10, labelcolor=INK, top=True, labeltop=True)
        ax.tick_params(bottom=False, labelbottom=False)
        ax.spines[:].set_color("#d0d7de")
        ax.set_anchor("N")
    metadata = {"Software": MADE_BY}
    write_output(path, lambda file: figure.savefig(file, format="png", dpi=110, metadata=metadata))


if __name__ == "__main__":
    main()
