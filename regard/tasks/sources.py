"""What inputs are: texts, pictures or sounds, as tasks read them."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.corpus import Split
from regard.data.pictures import decoded, from_array, from_image, is_image, png, read_picture
from regard.data.replies import one_line
from regard.data.sound import LOUDEST, from_samples, loud, read_sound, sound_in, too_long, wav
from regard.errors import InputError
from regard.masks import from_lengths
from regard.tasks.conversation import Turn, read_turns
from regard.tasks.task import Input, is_sound, padded, to_array
from regard.tokenizers import (
    END,
    OTHER,
    OTHER_TURN,
    SELF_TURN,
    START,
    UNKNOWN,
    Tokenizer,
    join_turns,
    plain,
)
from regard.values import END_NAME

LONGEST = 50_000  # characters of an input
PIXELS = 16  # of a picture that cost what a token does
BLANK = "___"  # in the task `blank`, what stands for the word
_SPECIAL_NAMES = {UNKNOWN: "(unknown)", START: BLANK}
_TURN_NAMES = {OTHER_TURN: "(other)", SELF_TURN: "(self)"}


class Source(ABC):
    """What the inputs of a task are. A row is an input as a corpus has it: tokens, pixels or
    samples."""

    prompt_dropout: float = 0.0  # the share of inputs that training makes empty
    reads_history: bool = False  # whether inputs are conversations of several turns

    @abstractmethod
    def read_one(self, value: Input) -> np.ndarray:
        """One input as a row. Raises InputError for what is not an input."""

    @abstractmethod
    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Rows as the model's frontend reads them: raw (B, …) and mask (B, S)."""

    @abstractmethod
    def example(self) -> np.ndarray:
        """A row as a corpus might have it."""

    def as_file(self, row: np.ndarray) -> tuple[str, bytes] | None:
        """The ending and content of a file with this row; a text needs none."""
        return None

    @abstractmethod
    def augment(
        self, rows: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Augmented rows for training; `draw` makes every random draw."""

    @abstractmethod
    def lengths(self, part: Split) -> np.ndarray:
        """The cost of each row in a batch, in places."""

    @abstractmethod
    def place_names(
        self, row: np.ndarray, places: int | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[str, ...]:
        """A name for each place of the memory of a row, see `Task.place_names`."""

    def hide(
        self, row: np.ndarray, place: int, places: int, grid: tuple[int, int] | None = None
    ) -> np.ndarray | None:
        """The row with one of `places` places hidden: unknown tokens, grey pixels or silence. None
        if there is nothing to hide there."""
        return None


class ReadTurn(NamedTuple):
    """A turn of a history as the model read it, or the end token, which is in no turn."""

    name: str  # who speaks, or the name of the end token
    text: str
    places: list[int]  # of the memory


class TextSource(Source):
    """Text as the model reads it: its tokens and the end token. An empty text is the end token.

    With `plain_source`, texts are normalised (`regard.tokenizers.plain`). Training makes the share
    `word_dropout` of the tokens unknown and the share `prompt_dropout` of the texts empty.

    In a chat, a text is the last of some `turns`. A tokenizer with turn tokens encodes as many of
    them as the model was trained to read: up to `turns`, with up to `max_history` tokens. Others
    encode only the last one.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        plain_source: bool,
        max_source: int,
        word_dropout: float = 0.0,
        prompt_dropout: float = 0.0,
        turns: int | None = None,
        max_history: int = 0,
    ):
        self.tokenizer = tokenizer
        self.plain_source = plain_source
        self.max_source = max_source
        self.word_dropout = word_dropout
        self.prompt_dropout = prompt_dropout
        self.turns = turns
        self.max_history = max_history
        self.reads_history = tokenizer.turns

    def example(self) -> np.ndarray:
        """A row as a corpus might have it. Its one token is the blank of the task `blank`."""
        return np.array([START])

    def read_one(self, value: Input) -> np.ndarray:
        if self.reads_history and isinstance(value, np.ndarray):
            return _checked_row(value, self.tokenizer)
        if isinstance(value, list | tuple) and self.turns is not None:
            turns = read_turns(value)
        elif isinstance(value, str):
            turns = [Turn(OTHER, value)]
        else:
            raise InputError("this model reads text", got=type(value).__name__)
        text = turns[-1].text
        if not text.strip():
            raise InputError("the prompt is empty", hint="type a sentence")
        if len(text) > LONGEST:  # do not tokenise a book to find that it is too long
            raise InputError(
                "the prompt is too long", got=f"{len(text):,} characters", hint=self._limit
            )
        if self.reads_history:
            tokens = self._history(turns)
        else:
            tokens = self._encode(text)
        if len(tokens) > self.max_source:
            raise InputError(
                "the prompt is too long",
                where=f"{text[:40]!r}…",
                got=f"{len(tokens):,} tokens",
                hint=self._limit,
            )
        return np.asarray(tokens, dtype=np.int64)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(plain(text) if self.plain_source else text)

    def _history(self, turns: Sequence[Turn]) -> list[int]:
        """The tokens of the last turns, as in training. Empty ones are left out."""
        assert self.turns is not None
        speakers = ""
        rows: list[list[int]] = []
        length = 0
        for turn in reversed(turns[-self.turns :]):
            if length > self.max_history or len(turn.text) > LONGEST:
                break  # it would be left out, and so would those before it
            rows.insert(0, self._encode(one_line(turn.text)))
            speakers = turn.speaker + speakers
            length += len(rows[0])
        return join_turns(rows, speakers, limit=self.max_history)

    def turn_of_places(self, row: np.ndarray) -> list[int]:
        """The number, from 0, of the turn that each token of a row is in."""
        return (np.isin(row, self.tokenizer.turn_tokens).cumsum() - 1).tolist()

    def turns_of(self, row: np.ndarray, places: int) -> list[ReadTurn]:
        """The turns of a row, the end token last, with the places that each has in a memory of so
        many. A place for several tokens is in the turn of its first token."""
        turns = np.asarray(self.turn_of_places(row))
        names = self.place_names(row)
        together = places_together(len(row) + 1, places)
        starts = range(0, len(row) + 1, together)

        read: list[ReadTurn] = []
        for number in np.unique(turns):
            tokens = np.flatnonzero(turns == number)
            own = [i for i, start in enumerate(starts) if start in tokens]
            text = self.tokenizer.decode(row[tokens].tolist())
            read.append(ReadTurn(names[tokens[0]], text, own))
        end = [i for i, start in enumerate(starts) if start == len(row)]
        return [*read, ReadTurn(END_NAME, "", end)]

    @property
    def _limit(self) -> str:
        return f"this model reads at most {self.max_source:,} tokens"

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        return padded([np.append(row, END) for row in rows])

    def augment(
        self, rows: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        augmented = []
        for row in rows:
            if self.prompt_dropout and draw.random() < self.prompt_dropout:
                row = row[:0]
            elif self.word_dropout:
                dropped = draw.random(len(row)) < self.word_dropout
                dropped &= ~np.isin(row, self.tokenizer.turn_tokens)
                row = np.where(dropped, UNKNOWN, row)
            augmented.append(row)
        return augmented

    def lengths(self, part: Split) -> np.ndarray:
        return part.source.lengths + 1

    def place_names(
        self, row: np.ndarray, places: int | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[str, ...]:
        """The token at each place, the end token last. Where the memory has a place for several
        tokens, its name has them all."""
        tokens = row.tolist()
        names = [piece.strip() for piece in self.tokenizer.pieces(tokens)]
        special_names = _SPECIAL_NAMES | (_TURN_NAMES if self.reads_history else {})
        for place, token in enumerate(tokens):
            names[place] = special_names.get(token, names[place])
        names.append(END_NAME)

        together = places_together(len(names), places or len(names))
        starts = range(0, len(names), together)
        return tuple(" ".join(names[start : start + together]) for start in starts)

    def hide(
        self, row: np.ndarray, place: int, places: int, grid: tuple[int, int] | None = None
    ) -> np.ndarray | None:
        """The tokens of the place become unknown. The end token, the blank and the tokens that
        begin a turn stay."""
        together = places_together(len(row) + 1, places)
        part = slice(place * together, (place + 1) * together)
        hidden = row.copy()
        stays = np.isin(row[part], [START, *self.tokenizer.turn_tokens])
        hidden[part] = np.where(stays, row[part], UNKNOWN)
        return None if stays.all() else hidden


class PictureSource(Source):
    """Pictures (h, w, channels) of bytes, all of one size. A file, a PIL image or an array is
    resized to it.

    Training augments pictures: `random_crop` takes a random part, no side of which is shorter by
    more than that share, and resizes it to the whole; `horizontal_flip` mirrors half of them.
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
        self.size = size
        self.channels_in = channels_in
        self.crop = crop
        self.random_crop = random_crop
        self.horizontal_flip = horizontal_flip

    def example(self) -> np.ndarray:
        """A row as a corpus might have it: a black picture."""
        return np.zeros((*self.size, self.channels_in), np.uint8)

    def read_one(self, picture: Input) -> np.ndarray:
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
        if isinstance(picture, bytes):
            return decoded(picture, **form, where="the picture")
        raise InputError(
            "this model reads pictures",
            got=type(picture).__name__,
            hint="a file, a PIL image or an array",
        )

    def as_file(self, row: np.ndarray) -> tuple[str, bytes]:
        return ".png", png(row)

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        raw = torch.from_numpy(np.stack(rows))
        return raw, torch.ones(len(rows), 1, dtype=torch.bool, device=raw.device)

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

    def place_names(
        self, row: np.ndarray, places: int | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[str, ...]:
        return () if grid is None else _grid_names(*grid)

    def hide(
        self, row: np.ndarray, place: int, places: int, grid: tuple[int, int] | None = None
    ) -> np.ndarray | None:
        """The pixels of the place get the mean colour of the picture."""
        if grid is None:
            return None
        y, x = divmod(place, grid[1])
        rows = slice(y * self.size[0] // grid[0], (y + 1) * self.size[0] // grid[0])
        columns = slice(x * self.size[1] // grid[1], (x + 1) * self.size[1] // grid[1])
        hidden = row.copy()
        hidden[rows, columns] = np.rint(row.mean((0, 1))).astype(row.dtype)
        return hidden


class SoundSource(Source):
    """Sounds of 16-bit samples, of any length up to `max_seconds`.

    A file, or (samples, rate), is resampled to `rate`; an array without a rate is a row of a
    corpus and has that rate already. Both ends are trimmed where they are softer than the share
    `trim` of the peak.

    Training augments sounds: `speed_perturbation` is a share of their length, `spectral_tilt` the
    share of each sample that is added to the next one, `noise` a share of their peak.
    """

    def __init__(
        self,
        *,
        rate: int,
        max_seconds: float,
        seconds_a_place: float,
        trim: float = 0.0,
        speed_perturbation: float = 0.0,
        spectral_tilt: float = 0.0,
        noise: float = 0.0,
    ):
        self.rate = rate
        self.max_seconds = max_seconds
        self.seconds_a_place = seconds_a_place
        self.trim = trim
        self.speed_perturbation = speed_perturbation
        self.spectral_tilt = spectral_tilt
        self.noise = noise

    def example(self) -> np.ndarray:
        """A row as a corpus might have it: a second of a square wave."""
        return np.tile(np.array([LOUDEST, -LOUDEST], np.int16), self.rate // 2)

    def read_one(self, sound: Input) -> np.ndarray:
        match sound:
            case (samples, rate) if is_sound(sound):
                values = to_array(samples) if isinstance(samples, Tensor) else samples
                return from_samples(values, rate, rate=self.rate, max_seconds=self.max_seconds)
            case np.ndarray(ndim=1, dtype=np.int16) if len(sound):  # a row of a corpus
                if len(sound) > self.max_seconds * self.rate:
                    raise InputError(
                        too_long(self.max_seconds), got=f"{len(sound) / self.rate:,.1f} seconds"
                    )
                return sound
            case str() | os.PathLike():
                if os.path.isdir(sound):
                    raise InputError("a folder, not a sound", where=sound)
                return read_sound(Path(sound), rate=self.rate, max_seconds=self.max_seconds).values
            case bytes():
                return sound_in(sound, rate=self.rate, max_seconds=self.max_seconds)
            case np.ndarray() | Tensor():
                raise needs_rate(sound, self.rate)
        raise InputError(
            "this model reads sounds",
            got=type(sound).__name__,
            hint="a file, or an array of samples and its rate",
        )

    def _trimmed(self, row: np.ndarray) -> np.ndarray:
        return row[loud(row, self.trim)]

    def as_file(self, row: np.ndarray) -> tuple[str, bytes]:
        return ".wav", wav(row, self.rate)

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        rows = [self._trimmed(row) for row in rows]
        lengths = np.array([len(row) for row in rows])
        samples = np.zeros((len(rows), int(lengths.max())), np.int16)
        for line, row in zip(samples, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(samples), from_lengths(torch.from_numpy(lengths))

    def augment(
        self, rows: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        if not (self.speed_perturbation or self.spectral_tilt or self.noise):
            return rows
        return [self._perturbed(self._trimmed(row), draw) for row in rows]

    def _perturbed(self, row: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """A sound at another speed (linear interpolation; a better filter costs more than it
        brings), filtered by x_n + a x_(n-1), and with noise whose decibels are uniform."""
        faster, softer = draw.uniform(-1, 1), draw.uniform(0, 1)
        places = np.arange(0, len(row) - 1e-9, 1 + self.speed_perturbation * faster)
        samples = np.interp(places, np.arange(len(row)), row).astype(np.float32)
        if self.spectral_tilt:
            peak = float(np.abs(samples).max())
            samples[1:] += np.float32(self.spectral_tilt * draw.uniform(-1, 1)) * samples[:-1]
            samples *= peak / max(1.0, float(np.abs(samples).max()))
        if self.noise:
            level = self.noise * 50**-softer * float(np.abs(samples).max())
            samples += np.float32(level) * draw.standard_normal(len(samples), np.float32)
        return np.rint(samples).clip(-LOUDEST - 1, LOUDEST).astype(np.int16)

    def lengths(self, part: Split) -> np.ndarray:
        return np.ceil(part.source.lengths / (self.rate * self.seconds_a_place)).astype(np.int64)

    def place_names(
        self, row: np.ndarray, places: int | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[str, ...]:
        """The interval of time of each place, in seconds of the recording before it is trimmed."""
        times = self.place_times(row, places)
        return tuple(f"{start:.2f}–{end:.2f} s" for start, end in times)

    def place_times(
        self, row: np.ndarray, places: int | None = None
    ) -> tuple[tuple[float, float], ...]:
        """When each place begins and ends, in seconds of the recording before it is trimmed."""
        part = loud(row, self.trim)
        count: int = math.ceil((part.stop - part.start) / (self.rate * self.seconds_a_place))
        if places is None:
            places = count
        seconds = self.seconds_a_place * places_together(count, places)
        times = [part.start / self.rate + i * seconds for i in range(places + 1)]
        return tuple(pairwise(times))

    def hide(
        self, row: np.ndarray, place: int, places: int, grid: tuple[int, int] | None = None
    ) -> np.ndarray | None:
        """The samples of the place become silence."""
        start, end = self.place_times(row, places)[place]
        hidden = row.copy()
        hidden[round(start * self.rate) : round(end * self.rate)] = 0
        return hidden


def _checked_row(row: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """A row of a corpus: the tokens of a history."""
    is_row = row.ndim == 1 and np.issubdtype(row.dtype, np.integer)
    if not is_row or not len(row) or not 0 <= row.min() <= row.max() < tokenizer.size:
        raise InputError("this model reads text", got=f"an array, {row.dtype} {row.shape}")
    return row.astype(np.int64)


def places_together(source: int, memory: int) -> int:
    """How many places of the source share one of the memory. Encoders halve the length, rounding
    up, so it is a power of 2.

    >>> places_together(5, 5), places_together(5, 3), places_together(9, 2)
    (1, 2, 8)
    """
    together = 1
    while -(-source // together) > memory:
        together *= 2
    return together


@lru_cache
def _grid_names(height: int, width: int) -> tuple[str, ...]:
    """
    >>> _grid_names(1, 2)
    ('row 1, column 1', 'row 1, column 2')
    """
    return tuple(
        f"row {row}, column {column}"
        for row in range(1, height + 1)
        for column in range(1, width + 1)
    )


def needs_rate(samples: np.ndarray | Tensor, rate: int) -> InputError:
    """The error for an array of samples that comes without its rate."""
    return InputError(
        "an array of samples needs its rate",
        got=f"{samples.dtype} {tuple(samples.shape)}",
        hint=f"ask(samples, rate={rate}), if there are so many a second",
    )


def needs_array(samples: object, rate: int) -> InputError:
    """The error for samples in a list rather than in an array."""
    return InputError(
        "the samples of a sound must be an array, not a list",
        where="ask",
        got=f"{type(samples).__name__} in a list of inputs",
        hint=f"ask(numpy.asarray(samples), rate={rate})",
    )


def _read_file(path: str | os.PathLike[str], form: dict[str, Any]) -> np.ndarray:
    if os.path.isdir(path):
        raise InputError("a folder, not a picture", where=path)
    return read_picture(Path(path), **form).values


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
