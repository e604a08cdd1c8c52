"""Curves of a run, from its metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.disk import MADE_BY, read_json_lines, write_output
from regard.errors import printable
from regard.metrics import LOWER_IS_BETTER

HIDDEN = (
    "step",
    "epoch",
    "seconds",
    "perplexity",
    "word_perplexity",
)  # the loss shows perplexity already
SHARES = "shares"
OVERLAPS = "overlap with the right answers"
RANKS = "the true answer among 20"
RANKED = ("hits_at_1", "mrr")  # end the names of scores of its rank
WIDER = (
    "bleu",
    "chrf",
    "mean_length",
)  # begin the names of scores that may stay below 1, and are no shares
FEW = 12  # labels beside which the counts can be read
LONGEST = 20  # characters of a label
GREY, BLUE, ORANGE, RED = "0.6", "C0", "C1", "C3"
JUDGED_ON = {
    "valid": "validation",
    "training_examples": "training examples",
}  # kinds of lines with scores, as shown


def curves(run: Path) -> Path:
    """Draw how a run went into its `curves.png`."""
    drawing = figure(read_log(run), run.resolve().name)
    path = run / "curves.png"
    _write(drawing, path)
    return path


def _write(drawing: Any, path: Path) -> None:
    """Write a PNG that says who made it; a person's own file of that name is refused."""
    metadata = {"Software": MADE_BY}
    write_output(path, lambda file: drawing.savefig(file, format="png", dpi=120, metadata=metadata))


def read_log(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl that can be drawn; damaged ones are skipped."""
    return [line for line in read_json_lines(run / "metrics.jsonl") if _can_be_drawn(line)]


def _can_be_drawn(line: dict[str, Any]) -> bool:
    step = line.get("step")
    if not isinstance(line.get("kind"), str):
        return False
    if not isinstance(step, int) or not 0 <= step < 1 << 53:
        return False
    for name in ("loss", "perplexity", "word_perplexity"):
        if name in line and not _is_number(line[name]):
            return False
    if line.get("perplexity", 1) <= 0:
        return False
    score = line.get("score", "perplexity")
    if not isinstance(score, str) or (score in line and not _is_number(line[score])):
        return False
    return _is_table_of_scores(line.get("baselines", {})) and _is_confusion(line)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_table_of_scores(baselines: Any) -> bool:
    if not isinstance(baselines, dict):
        return False
    for scores in baselines.values():
        if not isinstance(scores, dict) or not all(map(_is_number, scores.values())):
            return False
    return True


def _is_confusion(line: dict[str, Any]) -> bool:
    """Whether the counts are a square table with a label for each row, or there are none."""
    counts = line.get("confusion")
    if not counts:
        return True
    labels = line.get("labels")
    if not isinstance(counts, list) or not isinstance(labels, list):
        return False
    size = len(labels)
    for row in counts:
        if not isinstance(row, list) or len(row) != size or not all(map(_is_number, row)):
            return False
    return len(counts) == size


def figure(lines: list[dict[str, Any]], name: str) -> Any:
    """Training and validation loss and every other validation score, dashed what is reached
    without looking at the input, and which labels the weights that were kept took for which. A
    ring is around what was kept, at the score that decides which weights are best."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no window
    from matplotlib.ticker import MaxNLocator

    valid = [line for line in lines if line["kind"] in JUDGED_ON]
    panels = score_panels(valid)
    confused = [line for line in valid if line.get("confusion")]
    count = 1 + len(panels) + bool(confused)
    columns = 2 if count > 1 else 1
    rows = math.ceil(count / columns)
    made = Figure(figsize=(6.4 * columns, 4.0 * rows), layout="constrained")
    axes = [made.add_subplot(rows, columns, place) for place in range(1, 1 + count)]
    if confused:
        kept = [line for line in confused if line.get("kept", line.get("best"))]
        _confusion(axes.pop(), (kept or confused)[-1])
    _loss(axes[0], lines, valid)
    axes[0].set_title(printable(name), parse_math=False)
    for ax, (title, names) in zip(axes[1:], panels.items(), strict=True):
        for name in names:
            _line(
                ax,
                [(line["step"], line[name]) for line in valid if name in line],
                label=name,
                marker="o",
            )
            if blind := [
                guess[name] for guess in valid[-1].get("baselines", {}).values() if name in guess
            ]:
                reached = min(blind) if name in LOWER_IS_BETTER else max(blind)
                ax.axhline(reached, color=ax.lines[-1].get_color(), linewidth=0.9, linestyle="--")
        if valid[-1].get("baselines"):
            ax.plot([], [], color=GREY, linewidth=0.9, linestyle="--", label="without the input")
        ax.set_title(title)
        if title == SHARES:
            ax.set_ylim(-0.02, 1.02)
    _ring(axes, list(panels.values()), valid)
    for ax in axes:
        for line in lines:
            if line["kind"] == "changed":  # the run went on in another way from here
                ax.axvline(line["step"], color=RED, linewidth=0.8, linestyle=":")
        ax.set_xlabel("step")
        ax.set_xlim(0, 1.02 * max((line["step"] for line in lines), default=1) or 1)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        if len(ax.get_legend_handles_labels()[0]) > 1 or ax.get_title() in (
            SHARES,
            RANKS,
            OVERLAPS,
        ):
            ax.legend(frameon=False)
    return made


def together(runs: Mapping[str, Path], score: str, path: Path) -> Path:
    """Draw several runs into one file."""
    made = comparison(runs, score)
    _write(made, path)
    return path


def comparison(runs: Mapping[str, Path], score: str) -> Any:
    """Training loss and one score of several runs, each under its name."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(12.8, 4.8), layout="constrained")
    trained, judged = (made.add_subplot(1, 2, place) for place in (1, 2))
    kinds: set[str] = set()
    for number, (name, run) in enumerate(runs.items()):
        lines = read_log(run)
        dashes = ("-", "--", ":", "-.")[number // 10 % 4]
        look = {"label": printable(name), "color": f"C{number % 10}", "linestyle": dashes}
        _line(trained, [(line["step"], line["loss"]) for line in lines if "loss" in line], **look)
        scored = [line for line in lines if line["kind"] in JUDGED_ON and score in line]
        kinds |= {line["kind"] for line in scored}
        _line(judged, [(line["step"], line[score]) for line in scored], **look, marker="o")
    if score == "perplexity":
        judged.set_yscale("log")
    judged_on = " and ".join(name for kind, name in JUDGED_ON.items() if kind in kinds)
    for ax, title in (
        (trained, "training loss (nats per token)"),
        (judged, f"{score}, {judged_on}"),
    ):
        ax.set_title(title)
        ax.set_xlabel("step")
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    if 1 < len(runs) <= 20:
        judged.legend(frameon=False, fontsize="small")
    return made


def score_panels(valid: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Which scores share a panel: those of ranks, BLEU and chrF, and others between 0 and 1. The
    rest have scales of their own.

    >>> first = {"bleu_4": 0.0, "exact": 0.0, "wer": 1.2, "mrr": 0.2}
    >>> for panel in score_panels([first, {"bleu_4": 0.5, "exact": 0.25, "wer": 0.9}]).items():
    ...     print(panel)
    ('the true answer among 20', ['mrr'])
    ('overlap with the right answers', ['bleu_4'])
    ('wer', ['wer'])
    ('shares', ['exact'])
    """
    names = sorted(
        {
            name
            for line in valid
            for name, v in line.items()
            if isinstance(v, float) and name not in HIDDEN
        }
    )
    ranks = [name for name in names if name.endswith(RANKED)]
    overlaps = [name for name in names if name.startswith(("bleu", "chrf"))]
    shares = [
        name
        for name in names
        if not name.startswith(WIDER)
        and name not in ranks
        and all(0 <= line[name] <= 1 for line in valid if name in line)
    ]
    panels = {RANKS: ranks} if ranks else {}
    if overlaps:
        panels[OVERLAPS] = overlaps
    apart = {*shares, *ranks, *overlaps}
    panels |= {name: [name] for name in names if name not in apart}
    return panels | ({SHARES: shares} if shares else {})


def _loss(ax: Any, lines: list[dict[str, Any]], valid: list[dict[str, Any]]) -> None:
    trained = [
        (line["step"], line["loss"]) for line in lines if line["kind"] == "train" and "loss" in line
    ]
    _line(
        ax, trained, label="training batches", color=GREY, marker="o" if len(trained) < 3 else None
    )
    for (kind, name), colour in zip(JUDGED_ON.items(), (BLUE, ORANGE), strict=True):
        scored = [line for line in valid if line["kind"] == kind and "perplexity" in line]
        points = [(line["step"], math.log(line["perplexity"])) for line in scored]
        _line(ax, points, label=name, color=colour, marker="o")
    ax.set_ylabel("loss (nats per token)")


def _ring(
    axes: Sequence[Any], panels: Sequence[Sequence[str]], valid: list[dict[str, Any]]
) -> None:
    """Around the weights that were kept, in the panel of the score that says which are best: the
    first is the loss."""
    kept = [line for line in valid if line.get("kept", line.get("best"))]
    if not kept:
        return
    last = kept[-1]
    score = last.get("score", "perplexity")
    if score not in last:  # it was not a number
        return
    place = next((number for number, names in enumerate(panels, 1) if score in names), 0)
    height = last[score] if place else math.log(last["perplexity"])
    look = {"color": "black", "marker": "o", "markersize": 9, "fillstyle": "none", "linestyle": ""}
    _line(axes[place], [(last["step"], height)], label=f"kept, step {last['step']:,}", **look)


def _confusion(ax: Any, line: dict[str, Any]) -> None:
    """Shares of the label of a row that are answered with the label of a column."""
    labels = [printable(label) for label in line["labels"]]
    labels = [label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…" for label in labels]
    counts = line["confusion"]
    shares = [[n / max(1, sum(row)) for n in row] for row in counts]
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    few, sideways = len(labels) <= FEW, max(map(len, labels)) > 3
    written = {
        "fontsize": "small" if few else 5,
        "parse_math": False,
    }  # a label with two $ is no formula
    ax.set_xticks(range(len(labels)), labels, rotation=90 if sideways else 0, **written)
    ax.set_yticks(range(len(labels)), labels, **written)
    if few:
        for y, row in enumerate(counts):
            for x, n in enumerate(row):
                shade = "white" if shares[y][x] > 0.5 else "black"
                ax.text(x, y, n, ha="center", va="center", color=shade, fontsize="small")
    ax.set(
        title=f"right (rows) and answered, step {line['step']:,}", xlabel="answered", ylabel="right"
    )


def _line(ax: Any, points: list[tuple[float, float]], **look: Any) -> None:
    if points:
        ax.plot(*zip(*points, strict=True), **{"linewidth": 1.2, "markersize": 3} | look)
