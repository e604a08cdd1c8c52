"""Arrays of numbers as text inside a page, and which of them fit."""

from __future__ import annotations

import base64
import zlib

import numpy as np

CAP = 25_000_000  # bytes of a page
LEVELS = 255  # of a weight that is drawn


class Arrays:
    """The arrays of a page: a name and a text for each, as long as there is room for their text.

    >>> arrays = Arrays(room=100)
    >>> arrays.add(np.arange(3, dtype=np.uint8))
    'array-0'
    >>> arrays.add(np.random.default_rng(7).integers(0, 256, 1000, np.uint8)) is None
    True
    """

    def __init__(self, room: int = CAP):
        self.texts: dict[str, str] = {}
        self.room = room

    def add(self, array: np.ndarray) -> str | None:
        """The name under which the page has this array; None if there is no room for it."""
        text = encode(array)
        if len(text) > self.room:
            return None
        self.room -= len(text)
        name = f"array-{len(self.texts)}"
        self.texts[name] = text
        return name


def encode(array: np.ndarray) -> str:
    """Base64 of zlib of the bytes of an array of uint8 or float16, row by row. Of float16 the low
    bytes come first, then the high bytes, which compresses better."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.float16:
        octets = array.astype("<f2").view(np.uint8).reshape(-1, 2).T.tobytes()
    else:
        assert array.dtype == np.uint8, array.dtype
        octets = array.tobytes()
    return base64.b64encode(zlib.compress(octets, 6)).decode("ascii")


def decode(text: str, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """The array of a text of `encode`.

    >>> decode(encode(np.array([0.5, -2], np.float16)), np.float16, (2,))
    array([ 0.5, -2. ], dtype=float16)
    """
    octets = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    if dtype is np.float16:
        octets = np.ascontiguousarray(octets.reshape(2, -1).T)
        return octets.view("<f2").astype(np.float16).reshape(shape)
    return octets.reshape(shape)


def quantised(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values from low to high as bytes; the error is at most (high - low) / 510.

    >>> quantised(np.array([0.0, 0.5, 1.0]), 0, 1)
    array([  0, 128, 255], dtype=uint8)
    """
    share = (values.astype(np.float64) - low) / (high - low)
    return np.rint(share * LEVELS).clip(0, LEVELS).astype(np.uint8)


def thumbnail(values: np.ndarray, low: float, high: float, side: int = 20) -> dict[str, object]:
    """A small picture of a map (T, S): each cell is the largest of those it stands for."""
    rows = _pooled(values, 0, side)
    cells = quantised(_pooled(rows, 1, side), low, high)
    text = base64.b64encode(cells.tobytes()).decode("ascii")
    return {"rows": cells.shape[0], "columns": cells.shape[1], "cells": text}


def _pooled(values: np.ndarray, axis: int, most: int) -> np.ndarray:
    """At most `most` entries along an axis, each the one with the largest magnitude of a group."""
    count = values.shape[axis]
    if count <= most:
        return values
    starts = np.arange(most) * count // most
    highest = np.maximum.reduceat(values, starts, axis=axis)
    lowest = np.minimum.reduceat(values, starts, axis=axis)
    return np.where(highest >= -lowest, highest, lowest)
