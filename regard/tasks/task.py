"""The interface of a task: how its inputs and answers are encoded, and how answers are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.data.batches import pad
from regard.data.corpus import Split
from regard.errors import InputError
from regard.masks import from_lengths
from regard.search import SpecialTokens
from regard.tokenizers import END, PAD, START, UNKNOWN, Tokenizer

# A text; the file, PIL image or array of a picture; the file or (samples, rate) of a sound.
Input = Any


def is_sound(given: object) -> bool:
    """Whether this is (samples, rate): an array or tensor, and a number.

    >>> is_sound((np.zeros(3), 8000)), is_sound(("a prompt", "another"))
    (True, False)
    """
    match given:
        case (np.ndarray() | Tensor(), int() | float() | np.integer() | np.floating()):
            return isinstance(given, tuple)
    return False


def to_array(tensor: Tensor) -> np.ndarray:
    """A tensor of any type, layout and device as an array."""
    kind = f"{tensor.dtype} {tuple(tensor.shape)}"
    if tensor.device.type == "meta":
        raise InputError("a tensor on the device meta has no values", got=kind)
    try:
        tensor = tensor.detach().cpu()
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        if tensor.dtype.is_floating_point and tensor.dtype not in _NUMPY_FLOATS:
            tensor = tensor.float()
        return tensor.numpy(force=True)
    except (RuntimeError, TypeError, ValueError) as problem:
        reason = str(problem).partition("\n")[0][:120]
        raise InputError(
            "a tensor that cannot be read as an array",
            got=f"{kind}: {reason}",
            hint="convert it with .to_dense().float()",
        ) from None


_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


class Batch(NamedTuple):
    """The arguments of `Model.loss`: a padded source, the tokens the decoder reads and those it
    should answer."""

    raw: Shaped[Tensor, "R ..."]
    mask: Bool[Tensor, "R S"]
    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    real: Bool[Tensor, "B T"]
    rows: Int[Tensor, " B"] | None = None  # which row of raw each has; None: raw has one for each


class Scores(NamedTuple):
    """Scores of answers: numbers, which are logged and may choose the best weights, and tables."""

    numbers: dict[str, float]
    tables: Mapping[str, Any] = {}


class Task(ABC):
    """How inputs and answers are encoded for the model, and how answers are judged."""

    tokenizer: Tokenizer  # of the answers, and of the source if that is text
    source: Any  # a TextSource, PictureSource or SoundSource
    special_tokens: SpecialTokens = SpecialTokens(start=START, end=END, never=(PAD, START, UNKNOWN))
    best: ClassVar[str]  # the score that chooses the best weights, unless a recipe names another
    # Whether answers are judged at every validation, even if they do not choose the weights.
    watched: ClassVar[bool] = True
    judged: ClassVar[int] = 200  # examples that are answered at a validation
    answers_are_text: ClassVar[bool] = True  # perplexity per word is defined

    @abstractmethod
    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        """Inputs as the model's frontend reads them: raw (B, …) and mask (B, S). Raises InputError
        for what is not an input of this task."""

    @abstractmethod
    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Rows of a cached corpus as the model's frontend reads them."""

    @abstractmethod
    def batch(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Batch:
        """Rows of a cached corpus as a batch to train on."""

    @abstractmethod
    def nothing(self) -> tuple[Tensor, Tensor]:
        """An empty input, given which the decoder is a language model of answers."""

    def augment(
        self, sources: Sequence[np.ndarray], draw: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Augmented sources for training; `draw` makes every random draw."""
        return sources

    def augment_pairs(
        self,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        draw: np.random.Generator,
    ) -> Sequence[np.ndarray]:
        """Augmented sources, if what may be done to a source depends on its answer."""
        return self.augment(sources, draw)

    @abstractmethod
    def lengths(self, part: Split) -> tuple[np.ndarray, np.ndarray]:
        """The cost of each example in a batch, in places of the source and of the target."""

    @abstractmethod
    def place_names(self, given: Input) -> list[str]:
        """A name for each place of the source."""

    @abstractmethod
    def scores(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        """Scores of answers, besides their likelihood."""

    def baselines(self, references: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
        """Scores of answers that do not depend on the input, by the name of the baseline."""
        return {}

    def judge(
        self, answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> Scores:
        """Scores of the ranked answers to each input, as many as the search returns."""
        return self.scores([best for best, *_ in answers], references)

    def question(self, source: str, target: str) -> tuple[str, str]:
        """The prompt and the right answer of a held-out example, from its two texts."""
        return source, target

    def of_references(self, references: Sequence[str]) -> dict[str, float]:
        """Scores of the references themselves."""
        return {}


def padded(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Padded tokens (B, S), and a mask (B, S) of those that are not padding."""
    tokens, lengths = pad(rows)
    return torch.from_numpy(tokens), from_lengths(torch.from_numpy(lengths))


def text_batch(raw: Tensor, mask: Tensor, targets: Sequence[np.ndarray]) -> Batch:
    """A batch whose answers are text: the decoder reads START and the tokens, and should answer
    the tokens and END."""
    tokens, real = padded([np.concatenate([[START], row]) for row in targets])
    answers, _ = padded([np.append(row, END) for row in targets])
    return Batch(raw, mask, tokens, answers, real)
