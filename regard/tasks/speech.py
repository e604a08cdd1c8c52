"""Speech: a recording in, its transcript out."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard import metrics
from regard.data.corpus import Split
from regard.data.sound import LOUDEST, from_samples, loud, read_sound, too_long
from regard.errors import InputError
from regard.masks import from_lengths
from regard.tasks.chat import Writing
from regard.tasks.task import Batch, Input, Scores, is_sound, to_array
from regard.tokenizers import END, PAD, START, Tokenizer


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


class SoundSource:
    """Sounds of 16-bit samples, of any length up to `max_seconds`.

    A file, or (samples, rate), is resampled to `rate`; an array without a rate is a row of a
    corpus and has that rate already. Both ends are trimmed where they are softer than the share
    `trim` of the peak.

    Training augments sounds: `speed_perturbation` is a share of their length, `spectral_tilt` the
    share of each sample that is added to the next one, `noise` a share of their peak.
    """

    has_place_names = True

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

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.rows([self._samples(sound) for sound in inputs])

    def example(self) -> np.ndarray:
        """A row as a corpus might have it: a second of a square wave."""
        return np.tile(np.array([LOUDEST, -LOUDEST], np.int16), self.rate // 2)

    def _samples(self, sound: Input) -> np.ndarray:
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
            case np.ndarray() | Tensor():
                raise needs_rate(sound, self.rate)
        raise InputError(
            "this model reads sounds",
            got=type(sound).__name__,
            hint="a file, or an array of samples and its rate",
        )

    def _trimmed(self, row: np.ndarray) -> np.ndarray:
        return row[loud(row, self.trim)]

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        rows = [self._trimmed(row) for row in rows]
        lengths = torch.tensor([len(row) for row in rows])
        samples = np.zeros((len(rows), int(lengths.max())), np.int16)
        for line, row in zip(samples, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(samples), from_lengths(lengths)

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

    def place_names(self, given: Input) -> list[str]:
        """The time at which each place begins."""
        part = loud(self._samples(given), self.trim)
        first = part.start / self.rate
        count = np.ceil((part.stop - part.start) / (self.rate * self.seconds_a_place))
        return [f"{first + i * self.seconds_a_place:.2f} s" for i in range(int(count))]


class Speech(Writing):
    """Speech recognition, judged by CER, WER and the three similarities of the coursework, which
    count the start and end tokens too. The baselines are answers that do not depend on the sound.

    With `filled`, every text is padded to that many tokens, and the padding is learned too.
    """

    best = "cer"
    source: SoundSource

    def __init__(self, *, tokenizer: Tokenizer, source: SoundSource, filled: int | None = None):
        self.tokenizer = tokenizer
        self.source = source
        self.filled = filled

    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        if self.filled is None:
            return super().batch(sources, targets)
        raw, mask = self.source.rows(sources)
        full = np.full((len(targets), self.filled + 2), PAD, np.int64)
        for line, row in zip(full, targets, strict=True):
            line[: len(row) + 2] = [START, *row, END]
        tokens = torch.from_numpy(full)
        return Batch(
            raw,
            mask,
            tokens[:, :-1],
            tokens[:, 1:],
            torch.ones_like(tokens[:, 1:], dtype=torch.bool),
        )

    def nothing(self) -> tuple[Tensor, Tensor]:
        raise InputError(
            "a sound has no prior to subtract", where="search.mmi_weight", hint="set it to 0"
        )

    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        right = [[self._cased(text) for text in group] for group in references]
        numbers = {
            "cer": metrics.cer(answers, right),
            "wer": metrics.wer(answers, right),
            "exact": metrics.exact_share(answers, right),
            **metrics.mean_similarities(
                [self._marked(answer) for answer in answers],
                [[self._marked(text) for text in group] for group in right],
            ),
        }
        return Scores(numbers)

    def _cased(self, text: str) -> str:
        return text.lower() if getattr(self.tokenizer, "lower", False) else text

    def _marked(self, text: str) -> list[int]:
        return [START, *self.tokenizer.encode(text), END]

    def baselines(self, references: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
        """Scores reached without hearing the sound: by the text of another example, and by one
        string for all that has each character as often as the texts have it on average. Both know
        the texts they are judged by."""
        first = [self._cased(group[0]) for group in references]
        order = random.Random(1).sample(range(len(first)), len(first))
        after = dict(zip(order, [*order[1:], *order[:1]], strict=True))
        others = [first[after[i]] for i in range(len(first))]
        counts = sum((Counter(text) for text in first), Counter())
        histogram = "".join(
            character * round(count / len(first)) for character, count in sorted(counts.items())
        )
        guesses = {"one string": [histogram] * len(first)}
        if len(first) > 1:
            guesses["another's text"] = others
        return {name: self.scores(guess, references).numbers for name, guess in guesses.items()}
