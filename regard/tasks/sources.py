"""Inputs that are text or pictures, as tasks read them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.data.cache import Split
from regard.data.pictures import from_array, from_image, is_image, read_picture
from regard.errors import InputError
from regard.tasks.task import Input, padded
from regard.tokenizers import END, UNKNOWN, Tokenizer, plain

LONGEST = 50_000  # characters of an input
PIXELS = 16  # of a picture that cost what a token does


class TextSource:
    """Text as the model reads it: its tokens and the end mark; nothing said is the end mark alone.

    `plain_source` drops what does not matter for a question; `hide` and `empty` are the shares of
    tokens and of whole texts that training hides.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        plain_source: bool,
        max_source: int,
        hide: float = 0.0,
        empty: float = 0.0,
    ):
        self.tokenizer, self.plain_source, self.max_source = tokenizer, plain_source, max_source
        self.hide, self.empty = hide, empty

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
        """The token at each place, the end mark last."""
        return [
            *(self.tokenizer.decode([token]).strip() for token in self.tokens(text).tolist()),
            "(end)",
        ]


class PictureSource:
    """Pictures (h, w, channels) of bytes, all of one size, to which a file, a PIL image or an array
    is fitted.

    Training sees a part of each, cut out at random and stretched to the size of the whole, no side
    of which is shorter by more than the share `random_crop`; and half of them as in a mirror, if
    `horizontal_flip`.
    """

    def __init__(
        self,
        *,
        size: tuple[int, int],
        channels_in: int,
        crop: bool = False,
        random_crop: float = 0.0,
        horizontal_flip: bool = False,
    ):
        self.size, self.channels_in, self.crop, self.random_crop, self.horizontal_flip = (
            size,
            channels_in,
            crop,
            random_crop,
            horizontal_flip,
        )

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.rows([self._one(given) for given in inputs])

    def _one(self, given: Input) -> np.ndarray:
        form = {"size": self.size, "channels_in": self.channels_in, "crop": self.crop}
        if isinstance(given, Tensor):
            given = given.detach().cpu().numpy()
        if isinstance(given, np.ndarray):
            if (
                given.shape == (*self.size, self.channels_in) and given.dtype == np.uint8
            ):  # a row of a corpus
                return given
            return from_array(given, **form)
        if isinstance(given, str | os.PathLike):
            return read_picture(Path(given), **form).values
        if is_image(given):
            return from_image(given, **form)
        raise InputError(
            "this model reads pictures",
            got=type(given).__name__,
            hint="a file, a PIL image or an array",
        )

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        raw = torch.from_numpy(np.stack(rows))
        return raw, torch.ones(len(rows), 1, dtype=torch.bool)

    def augment(
        self, rows: Sequence[np.ndarray], draw: np.random.Generator, *, sided: Sequence[bool] = ()
    ) -> Sequence[np.ndarray]:
        """`sided` says which of them tell left from right, and are not mirrored."""
        if not self.random_crop and not self.horizontal_flip:
            return rows
        draws = draw.random((len(rows), 5))  # the same number for each, whatever is done to it
        return [
            self._seen(
                row,
                *chances[:4],
                mirrored=self.horizontal_flip and chances[4] < 0.5 and not (sided and sided[i]),
            )
            for i, (row, chances) in enumerate(zip(rows, draws.tolist(), strict=True))
        ]

    def _seen(self, row: np.ndarray, *chances: float, mirrored: bool) -> np.ndarray:
        if self.random_crop:
            from PIL import Image

            height, width = (
                side * (1 - self.random_crop * chance)
                for side, chance in zip(self.size, chances, strict=False)
            )
            top, left = (self.size[0] - height) * chances[2], (self.size[1] - width) * chances[3]
            box, whole = (left, top, left + width, top + height), (self.size[1], self.size[0])
            image = Image.fromarray(row if self.channels_in == 3 else row[..., 0])
            row = np.asarray(image.resize(whole, Image.Resampling.BILINEAR, box=box)).reshape(
                row.shape
            )
        return row[:, ::-1] if mirrored else row

    def lengths(self, part: Split) -> np.ndarray:
        places = -(-self.size[0] * self.size[1] // PIXELS)
        return np.full(len(part), places, np.int64)

    def place_names(self, given: Input) -> list[str]:
        raise InputError("the places of a picture have no words", hint="this view is for text")


Source = TextSource | PictureSource


def hide(
    sources: Sequence[np.ndarray], draw: np.random.Generator, *, words: float, prompts: float
) -> list[np.ndarray]:
    """Training sources with a share of their tokens made unknown, and a share of them made
    empty."""
    hidden = []
    for row in sources:
        if prompts and draw.random() < prompts:
            row = row[:0]
        elif words:
            row = np.where(draw.random(len(row)) < words, UNKNOWN, row)
        hidden.append(row)
    return hidden
