"""Speech: sound in, what is said in it out."""

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
from regard.data.cache import Split
from regard.data.sound import LOUDEST, from_samples, loud, read_sound, too_long
from regard.errors import InputError
from regard.masks import from_lengths
from regard.tasks.chat import Writing
from regard.tasks.task import Batch, Input, Scores, is_sound
from regard.tokenizers import END, PAD, START, Tokenizer


def needs_rate(samples: np.ndarray | Tensor, rate: int) -> InputError:
    """What an array of samples is refused with that comes without its rate, which nobody can
    guess."""
    return InputError(
        "an array of samples needs its rate",
        got=f"{samples.dtype} {tuple(samples.shape)}",
        hint=f"ask(samples, rate={rate}), if there are so many a second",
    )


class SoundSource:
    """Sounds of 16-bit samples, of any length up to `max_seconds`: a file, or (samples, rate), is
    brought to `rate`; an array without a rate is a row of a corpus, which has it already.

    What is softer than the share `trim` of the peak is left away at both ends.
    `speed_perturbation`, `spectral_tilt` and `noise` are how far training bends them: shares of
    their length, of each sample that goes into the next one, and of their peak.
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
        self.rate, self.max_seconds, self.seconds_a_place = rate, max_seconds, seconds_a_place
        self.trim, self.speed_perturbation, self.spectral_tilt, self.noise = (
            trim,
            speed_perturbation,
            spectral_tilt,
            noise,
        )

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        return self.rows([self._one(given) for given in inputs])

    def _one(self, given: Input) -> np.ndarray:
        match given:
            case (samples, rate) if is_sound(given):
                values = samples.detach().cpu().numpy() if isinstance(samples, Tensor) else samples
                return from_samples(values, rate, rate=self.rate, max_seconds=self.max_seconds)
            case np.ndarray(ndim=1, dtype=np.int16) if len(given):  # a row of a corpus
                if len(given) > self.max_seconds * self.rate:
                    raise InputError(
                        too_long(self.max_seconds), got=f"{len(given) / self.rate:,.1f} seconds"
                    )
                return given
            case str() | os.PathLike():
                return read_sound(Path(given), rate=self.rate, max_seconds=self.max_seconds).values
            case np.ndarray() | Tensor():
                raise needs_rate(given, self.rate)
        raise InputError(
            "this model reads sounds",
            got=type(given).__name__,
            hint="a file, or an array of samples and its rate",
        )

    def _cut(self, row: np.ndarray) -> np.ndarray:
        return row[loud(row, self.trim)]

    def rows(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        rows = [self._cut(row) for row in rows]
        lengths = torch.tensor([len(row) for row in rows])
        samples = np.zeros((len(rows), int(lengths.max())), np.int16)
        for line, row in zip(samples, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(samples), from_lengths(lengths)

    def augment(
        self, rows: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        return (
            [self._bent(self._cut(row), draw) for row in rows]
            if self.speed_perturbation or self.spectral_tilt or self.noise
            else rows
        )

    def _bent(self, row: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Read at other places, in straight lines between the samples (a better filter costs
        more than it brings), duller or sharper by the filter x_n + a x_(n-1), and with noise
        whose decibels are drawn evenly."""
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
        """When each place begins."""
        samples = self._one(given)
        part = loud(samples, self.trim)
        first, count = (
            part.start / self.rate,
            np.ceil((part.stop - part.start) / (self.rate * self.seconds_a_place)),
        )
        return [f"{first + i * self.seconds_a_place:.2f} s" for i in range(int(count))]


class Speech(Writing):
    """Judged by what is wrong (CER, WER), by the three similarities of the coursework, which count
    the start and the end mark as tokens, and by how much of that an answer reaches that has not
    heard the sound.

    With `filled`, every text is filled up to as many tokens, and what it is filled with is learned
    too.
    """

    best = "cer"
    source: SoundSource

    def __init__(self, *, tokenizer: Tokenizer, source: SoundSource, filled: int | None = None):
        self.tokenizer, self.source, self.filled = tokenizer, source, filled

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
        right = [[self._cased(one) for one in group] for group in references]
        numbers = {
            "cer": metrics.cer(answers, right),
            "wer": metrics.wer(answers, right),
            "exact": metrics.exact_share(answers, right),
            **metrics.mean_similarities(
                [self._marked(answer) for answer in answers],
                [[self._marked(one) for one in group] for group in right],
            ),
        }
        return Scores(numbers)

    def _cased(self, text: str) -> str:
        return text.lower() if getattr(self.tokenizer, "lower", False) else text

    def _marked(self, text: str) -> list[int]:
        return [START, *self.tokenizer.encode(text), END]

    def baselines(self, references: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
        """What is reached without a sound: by the text of another one, and by one string for all
        that has each character as often as the texts have it in the mean. Both are told the
        texts they are judged by."""
        first = [self._cased(group[0]) for group in references]
        order = random.Random(1).sample(range(len(first)), len(first))
        after = dict(zip(order, [*order[1:], *order[:1]], strict=True))
        others = [first[after[i]] for i in range(len(first))]
        counts = sum((Counter(text) for text in first), Counter())
        histogram = "".join(
            one * round(count / len(first)) for one, count in sorted(counts.items())
        )
        guesses = {"one string": [histogram] * len(first)} | (
            {"another's text": others} if len(first) > 1 else {}
        )
        return {name: self.scores(guess, references).numbers for name, guess in guesses.items()}
