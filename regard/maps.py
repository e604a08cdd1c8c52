"""The attention of an answer to a picture: a map upon the picture for each token."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from regard.disk import MADE_BY, write_output
from regard.errors import printable
from regard.values import Answer

COLUMNS = 5  # panels side by side
INCHES = 2.4  # of a panel
HEAT = "inferno"


def draw(path: Path, picture: np.ndarray, answer: Answer) -> None:
    """A PNG of the picture (h, w, channels) and, for each token of the answer, of its weights upon
    the picture (mean of the heads). A map is as bright as its own largest weight, which stands over
    it."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no window

    assert answer.weights is not None and answer.grid is not None
    words = [piece.strip() for piece in answer.pieces]
    weights = answer.weights[: len(words)].mean(1).cpu().numpy()  # without the end token
    rows = math.ceil((1 + len(words)) / COLUMNS)
    figure = Figure(figsize=(INCHES * COLUMNS, (INCHES + 0.3) * rows + 0.4), layout="constrained")
    axes = [figure.add_subplot(rows, COLUMNS, place) for place in range(1, 2 + len(words))]
    height, width = picture.shape[:2]
    grey = picture.mean(-1)
    axes[0].imshow(picture if picture.shape[2] == 3 else grey, cmap="gray", vmin=0, vmax=255)
    for ax, word, row in zip(axes[1:], words, weights, strict=True):
        ax.imshow(grey, cmap="gray", vmin=0, vmax=255)
        heat = row.reshape(answer.grid)
        ax.imshow(
            heat,
            cmap=HEAT,
            alpha=0.6,
            vmin=0,
            extent=(0, width, height, 0),
            interpolation="bilinear",
        )
        ax.set_title(f"{printable(word)}  {heat.max():.2f}", fontsize=9, parse_math=False)
    for ax in axes:
        ax.set_axis_off()
        ax.set_xlim(0, width)
        ax.set_ylim(height, 0)
    figure.suptitle(printable(answer.text), fontsize=10, wrap=True, parse_math=False)
    metadata = {"Software": MADE_BY}
    write_output(path, lambda file: figure.savefig(file, format="png", dpi=110, metadata=metadata))
