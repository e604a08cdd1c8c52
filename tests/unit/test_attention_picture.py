"""The picture of attention in the README, without the training before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.attention_picture import PICTURE, Alignment, draw
from regard.errors import RegardError


def test_a_picture_has_a_panel_for_each_sentence(tmp_path: Path):
    panels = [
        Alignment(["two", "(end)"], ["zwei"], np.array([[0.7, 0.3]])),
        Alignment(["one", "-", "$x$"], ["a", "b"], np.full((2, 3), 1 / 3)),
    ]
    one, both = tmp_path / "one.png", tmp_path / "both.png"
    draw(one, panels[:1])
    draw(both, panels)
    with Image.open(one) as narrow, Image.open(both) as wide:
        assert wide.width > narrow.width


def test_a_picture_of_somebody_else_is_not_overwritten(tmp_path: Path):
    path = tmp_path / "mine.png"
    path.write_bytes(b"mine")
    with pytest.raises(RegardError):
        draw(path, [Alignment(["two"], ["zwei"], np.ones((1, 1)))])
    assert path.read_bytes() == b"mine"


def test_the_picture_in_the_repository_was_made_by_this_program():
    with Image.open(PICTURE) as picture:
        assert picture.info["Software"] == "made by regard"
    assert PICTURE.stat().st_size < 150_000
