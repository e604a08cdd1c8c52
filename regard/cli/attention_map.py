"""The attention of an answer in a terminal: where each token attended, and to which turn."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from regard.errors import printable

if TYPE_CHECKING:
    import numpy as np

    from regard.bundle import Bundle
    from regard.values import Answer

SHADES = " ░▒▓█"  # of weights from 0 to 1
NARROWEST = 2  # characters of a column
LONGEST_WORD = 14
TURN_WIDTH = 40  # characters of a turn in a table
NO_ATTENTION = "this model has no attention: it reads the prompt once and remembers"


def attention_text(bundle: Bundle, row: np.ndarray, answer: Answer) -> str:
    """Where each token of an answer attended: a map or, if the terminal is too narrow for it, the
    place with the largest weight. If the model reads a history, also the weight of each turn.
    `row` is the input as the model read it."""
    if answer.weights is None:
        return NO_ATTENTION
    names = _place_names(bundle, row, answer)
    text = attention_map(answer, names) or "\n".join(_largest_weights(answer, names))
    if bundle.task.source.reads_history:
        text += "\n\n" + "\n".join(_turns(bundle, row, answer))
    return text


def attention_map(
    answer: Answer, place_names: Sequence[str] | None = None, columns: int | None = None
) -> str | None:
    """The weights of each step (mean over the heads) as shades below the names of the places; None
    if the map is wider than `columns`, by default those of the terminal."""
    assert answer.weights is not None
    if columns is None:
        columns = shutil.get_terminal_size((100, 24)).columns
    places = [printable(name) or "·" for name in place_names or answer.place_names]
    words = [printable(name.strip()) or "·" for name in answer.step_names]
    widths = [max(NARROWEST, cell_len(place)) for place in places]
    margin = min(LONGEST_WORD, max(map(cell_len, words))) + 2
    if margin + sum(widths) + len(widths) > columns:
        return None

    lines = [_row("", margin, [set_cell_size(*pair) for pair in zip(places, widths, strict=True)])]
    for word, weights in zip(words, answer.weights.mean(1).tolist(), strict=True):
        cells = [_shade(weight) * width for weight, width in zip(weights, widths, strict=True)]
        lines.append(_row(word, margin, cells))
    return "\n".join(lines)


def _row(word: str, margin: int, cells: list[str]) -> str:
    if cell_len(word) > margin - 2:
        word = set_cell_size(word, margin - 3) + "…"
    return (set_cell_size(word, margin) + " ".join(cells)).rstrip()


def _shade(weight: float) -> str:
    """
    >>> [_shade(weight) for weight in (0.04, 0.2, 0.5, 0.7, 1.0)]
    [' ', '░', '▒', '▓', '█']
    """
    return SHADES[min(len(SHADES) - 1, int(weight * len(SHADES) + 0.25))]


def _largest_weights(answer: Answer, names: Sequence[str]) -> Iterator[str]:
    """For each step of an answer, the place with the largest weight (mean over the heads)."""
    assert answer.weights is not None
    for name, weights in zip(answer.step_names, answer.weights.mean(1).tolist(), strict=True):
        weight = max(weights)
        place = names[weights.index(weight)]
        word = printable(name.strip()) or "·"
        yield f"{word:<14}{printable(place):<14}{_bar(weight)}"


def _bar(weight: float) -> str:
    return f"{weight:4.0%} {'█' * round(20 * weight)}"


def _place_names(bundle: Bundle, row: np.ndarray, answer: Answer) -> Sequence[str]:
    """The names of the places; characters also have their number in the turn."""
    names = answer.place_names
    if bundle.tokenizer.kind != "characters" or len(names) != len(row) + 1:
        return names
    number = 0
    numbered_names = []
    for name, token in zip(names, row.tolist(), strict=False):
        if token in bundle.tokenizer.turn_tokens:
            number = 0
            numbered_names.append(name)
        else:
            number += 1
            numbered_names.append(f"{name or '␣'}·{number}")
    return [*numbered_names, names[-1]]


def _turns(bundle: Bundle, row: np.ndarray, answer: Answer) -> Iterator[str]:
    """A line for each turn of the history, with its share of the attention (mean over the steps of
    the answer), and one for the end token, which is in no turn."""
    from regard.tasks.sources import TextSource

    source = bundle.task.source
    assert isinstance(source, TextSource) and answer.weights is not None
    weights = answer.weights.mean((0, 1)).tolist()
    for turn in source.turns_of(row, len(weights)):
        share = sum(weights[place] for place in turn.places)
        text = turn.text if len(turn.text) <= TURN_WIDTH else f"{turn.text[: TURN_WIDTH - 1]}…"
        yield f"{turn.name:<8} {printable(text):<{TURN_WIDTH + 2}}{_bar(share)}"
