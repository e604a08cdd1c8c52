"""The map of attention in a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.cli.attention_map import attention_map
from regard.values import Answer

PLACES = ("ninety", "-", "one", "(end)")


def answer(weights: list[list[float]], pieces: tuple[str, ...] = ("einund", "neunzig")) -> Answer:
    return Answer(
        tokens=tuple(range(4, 4 + len(pieces))),
        text="".join(pieces),
        score=-1.0,
        pieces=pieces,
        logprobs=(-0.25,) * (len(pieces) + 1),
        finish="stop",
        weights=torch.tensor(weights)[:, None],
        place_names=PLACES,
    )


ALIGNED = answer([[0.0, 0.0, 1.0, 0.0], [0.7, 0.3, 0.0, 0.0], [0.0, 0.0, 0.1, 0.9]])


def test_a_row_for_each_token_and_a_column_for_each_place():
    assert attention_map(ALIGNED, columns=80) == "\n".join(
        [
            "         ninety -  one (end)",
            "einund             ███",
            "neunzig  ▓▓▓▓▓▓ ░░",
            "(end)                  █████",
        ]
    )


@pytest.mark.parametrize("columns", [27, 28, 29])
def test_it_is_as_wide_as_the_terminal_at_most(columns: int):
    text = attention_map(ALIGNED, columns=columns)
    assert (text is None) == (columns < 29)
    assert text is None or max(map(len, text.splitlines())) <= columns


def test_heads_are_averaged():
    both = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    averaged = replace(ALIGNED, weights=both.expand(3, 2, 4))
    text = attention_map(averaged, columns=80)
    assert text is not None
    assert all(line[9:15] == "▒▒▒▒▒▒" for line in text.splitlines()[1:])


def test_control_characters_and_wide_letters_keep_the_columns():
    wide = answer([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]], pieces=("\x1b[31m東京",))
    text = attention_map(wide, columns=80)
    assert text is not None and "\x1b" not in text
    header, first, _ = text.splitlines()
    assert header.index("one") == first.index("█") + 2  # two letters are two columns wide each


def test_long_words_are_cut():
    text = attention_map(answer([[1.0, 0, 0, 0]] * 2, pieces=("neunzehnhundertzwanzig",)))
    assert text is not None and "neunzehnhunde…" in text
