"""Inputs that are text or pictures, as tasks read them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.corpus import Split
from regard.data.pictures import from_array, from_image, is_image, read_picture
from regard.errors import InputError
from regard.tasks.task import Input, padded, to_array
from regard.tokenizers import END, START, UNKNOWN, Tokenizer, plain

LONGEST = 50_000  # characters of an input
PIXELS = 16  # of a picture that cost what a token does


class TextSource:
    """Text as the model reads it: its tokens and the end token. An empty text is the end token.

    With `plain_source`, texts are normalised (`regard.tokenizers.plain`). Training makes the share
    `hide` of the tokens unknown and the share `empty` of the texts empty.
    """

    has_place_names = True

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        plain_source: bool,
        max_source: int,
        hide: float = 0.0,
        empty: float = 0.0,
    ):
        self.tokenizer = tokenizer
        self.plain_source = plain_source
        self.max_source = max_source
        self.hide = hide
        self.empty = empty

    def example(self) -> np.ndarray:
        """A row as a corpus might have it. Its one token is the blank of the task `blank`."""
        return np.array([START])

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.rows([self.tokens(text) for text in inputs])

    def tokens(self, text: Input) -> np.ndarray:
        if not isinstance(text, str):
            raise InputError("this model reads text", got=type(text).__name__)
        if not text.strip():
            raise InputError("the prompt is empty", hint="type a sentence")
        if len(text) > LONGEST:  # do not tokenise a book to find that it is too long
            raise InputError(
                "the prompt is too long", got=f"{len(text):,} characters", hint=self._limit
            )
        tokens = self.tokenizer.encode(plain(text) if self.plain_source else text)
        if len(tokens) > self.max_source:
            raise InputError(
                "the prompt is too long",
                where=f"{text[:40]!r}…",
                got=f"{len(tokens):,} tokens",
                hint=self._limit,
            )
        return np.asarray(tokens, dtype=np.int64)

    @property
    def _limit(self) -> str:
        return f"this model reads at most {self.max_source:,} tokens"

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return padded([np.append(row, END) for row in rows])

    def augment(
        self, rows: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        return hide(rows, draw, words=self.hide, prompts=self.empty)

    def lengths(self, part: Split) -> np.ndarray:
        return part.source.lengths + 1

    def place_names(self, text: Input) -> list[str]:
        """The token at each place, the end token last."""
        tokens = self.tokens(text).tolist()
        return [*(self.tokenizer.decode([token]).strip() for token in tokens), "(end)"]


class PictureSource:
    """Pictures (h, w, channels) of bytes, all of one size. A file, a PIL image or an array is
    resized to it.

    Training augments pictures: `random_crop` takes a random part, no side of which is shorter by
    more than that share, and resizes it to the whole; `horizontal_flip` mirrors half of them.
    """

    has_place_names = False

    def __init__(
        self,
        *,
        size: tuple[int, int],
        channels_in: int,
        crop: bool = False,
        random_crop: float = 0.0,
        horizontal_flip: bool = False,
    ):
        self.size = size
        self.channels_in = channels_in
        self.crop = crop
        self.random_crop = random_crop
        self.horizontal_flip = horizontal_flip

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.rows([self._pixels(picture) for picture in inputs])

    def example(self) -> np.ndarray:
        """A row as a corpus might have it: a black picture."""
        return np.zeros((*self.size, self.channels_in), np.uint8)

    def _pixels(self, picture: Input) -> np.ndarray:
        form = {"size": self.size, "channels_in": self.channels_in, "crop": self.crop}
        if isinstance(picture, Tensor):
            picture = to_array(picture)
        if isinstance(picture, np.ndarray):
            corpus_shape = (*self.size, self.channels_in)
            if picture.shape == corpus_shape and picture.dtype == np.uint8:
                return picture
            _check_range(picture)
            return from_array(picture, **form)
        if isinstance(picture, str | os.PathLike):
            return _read_file(picture, form)
        if is_image(picture):
            return from_image(picture, **form)
        raise InputError(
            "this model reads pictures",
            got=type(picture).__name__,
            hint="a file, a PIL image or an array",
        )

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        raw = torch.from_numpy(np.stack(rows))
        return raw, torch.ones(len(rows), 1, dtype=torch.bool)

    def augment(
        self, rows: Sequence[np.ndarray], draw: np.random.Generator, *, sided: Sequence[bool] = ()
    ) -> Sequence[np.ndarray]:
        """Cropped and mirrored pictures. Those for which `sided` is True are not mirrored."""
        if not self.random_crop and not self.horizontal_flip:
            return rows

        draws = draw.random((len(rows), 5))  # as many for each, whatever is done to it
        augmented = []
        for i, (row, chances) in enumerate(zip(rows, draws.tolist(), strict=True)):
            mirrored = self.horizontal_flip and chances[4] < 0.5 and not (sided and sided[i])
            if self.random_crop:
                row = self._cropped(row, *chances[:4])
            augmented.append(row[:, ::-1] if mirrored else row)
        return augmented

    def _cropped(self, row: np.ndarray, *chances: float) -> np.ndarray:
        from PIL import Image

        height = self.size[0] * (1 - self.random_crop * chances[0])
        width = self.size[1] * (1 - self.random_crop * chances[1])
        top = (self.size[0] - height) * chances[2]
        left = (self.size[1] - width) * chances[3]
        box = (left, top, left + width, top + height)

        image = Image.fromarray(row if self.channels_in == 3 else row[..., 0])
        resized = image.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR, box=box)
        return np.asarray(resized).reshape(row.shape)

    def lengths(self, part: Split) -> np.ndarray:
        places = -(-self.size[0] * self.size[1] // PIXELS)
        return np.full(len(part), places, np.int64)

    def place_names(self, given: Input) -> list[str]:
        raise InputError("the places of a picture have no words", hint="this view is for text")


Source = TextSource | PictureSource


def _read_file(path: str | os.PathLike[str], form: dict[str, Any]) -> np.ndarray:
    if os.path.isdir(path):
        raise InputError("a folder, not a picture", where=path)
    try:
        return read_picture(Path(path), **form).values
    except InputError as problem:
        if "BytesIO" not in str(problem.got):
            raise
        raise InputError(
            problem.what, where=problem.where, hint="png, jpg, bmp, gif, webp and tif can be"
        ) from None


def _check_range(values: np.ndarray) -> None:
    """Refuse numbers that are neither bytes nor floats from 0 to 1, and say how to scale them.

    Converting them to bytes as they are is right only for 0 to 255: of the 0 to 16 of
    scikit-learn's digits it makes a nearly black picture.
    """
    is_float = np.issubdtype(values.dtype, np.floating)
    is_integer = np.issubdtype(values.dtype, np.integer) and values.dtype != np.uint8
    if not values.size or not (is_float or (is_integer and values.dtype != np.uint16)):
        return
    lowest = float(values.min())
    highest = float(values.max())
    if not lowest >= 0 or not 1 < highest < np.inf:
        return
    if is_float:
        what = "a picture of floats has them from 0 to 1"
        got = f"{lowest:g} to {highest:g}"
    else:
        what = "a picture is of bytes (uint8), or of floats from 0 to 1"
        got = f"{values.dtype} {values.shape} from {lowest:g} to {highest:g}"
    hint = "divide all pictures by their maximum: images / images.max()"
    raise InputError(what, got=got, hint=hint)


def hide(
    sources: Sequence[np.ndarray], draw: np.random.Generator, *, words: float, prompts: float
) -> list[np.ndarray]:
    """Sources for training: a share `words` of the tokens is made unknown, and a share `prompts`
    of the sources empty."""
    hidden = []
    for row in sources:
        if prompts and draw.random() < prompts:
            row = row[:0]
        elif words:
            row = np.where(draw.random(len(row)) < words, UNKNOWN, row)
        hidden.append(row)
    return hidden
