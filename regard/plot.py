"""Curves of a run, from its metrics.jsonl."""

from __future__ import annotations

import json
import math
from pathlib import Path

from regard.disk import write_file


def curves(run: Path) -> Path:
    """Draw training and validation loss, and every other validation score, into `curves.png`."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no window

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    trained = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train" and "loss" in line]
    valid = [line for line in lines if line["kind"] == "valid"]
    hidden = ("step", "epoch", "seconds", "perplexity", "word_perplexity")
    others = sorted({k for line in valid for k, v in line.items() if isinstance(v, float) and k not in hidden})

    figure = Figure(figsize=(6.4 * (1 + bool(others)), 4.2), layout="constrained")
    left = figure.add_subplot(1, 1 + bool(others), 1)
    left.plot(*zip(*trained, strict=True), label="training", color="0.6", linewidth=1) if trained else None
    scored = [(line["step"], math.log(line["perplexity"])) for line in valid if "perplexity" in line]
    left.plot(*zip(*scored, strict=True), label="validation", color="C0", marker="o", markersize=3) if scored else None
    left.set(xlabel="step", ylabel="loss (nats a token)", title=run.name)
    left.legend()
    if others:
        right = figure.add_subplot(1, 2, 2)
        for name in others:
            points = [(line["step"], line[name]) for line in valid if name in line]
            right.plot(*zip(*points, strict=True), label=name, marker="o", markersize=3)
        right.set(xlabel="step", title="validation scores")
        right.legend()
    path = run / "curves.png"
    write_file(path, lambda draft: figure.savefig(draft, format="png", dpi=120))
    return path
