"""The interface of a task: how its inputs and answers are encoded, and how answers are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.data.batches import pad
from regard.data.corpus import Split
from regard.errors import InputError
from regard.masks import from_lengths
from regard.metrics import Statistic
from regard.search import SpecialTokens
from regard.tokenizers import END, PAD, START, UNKNOWN, Tokenizer

if TYPE_CHECKING:
    from regard.tasks.sources import Source

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

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return Batch(
            raw=self.raw.to(device),
            mask=self.mask.to(device),
            tokens=self.tokens.to(device),
            targets=self.targets.to(device),
            real=self.real.to(device),
            rows=None if self.rows is None else self.rows.to(device),
        )


class Scores(NamedTuple):
    """Scores of answers: numbers, which are logged and may choose the best weights, tables, and
    the numbers that have an interval as statistics."""

    numbers: dict[str, float]
    tables: Mapping[str, Any] = {}
    statistics: Mapping[str, Statistic] = {}

    @classmethod
    def of(
        cls, scores: Mapping[str, Statistic | float], tables: Mapping[str, Any] | None = None
    ) -> Scores:
        """Scores that are statistics, and others that are plain numbers."""
        statistics = {}
        numbers = {}
        for name, score in scores.items():
            if isinstance(score, Statistic):
                statistics[name] = score
                numbers[name] = score.value
            else:
                numbers[name] = score
        return cls(numbers, tables or {}, statistics)


class Task(ABC):
    """How inputs and answers are encoded for the model, and how answers are judged."""

    tokenizer: Tokenizer  # the run's own, as `tokenizer.json` has it
    source: Source  # what inputs are: text, pictures or sounds
    special_tokens: SpecialTokens = SpecialTokens(start=START, end=END, never=(PAD, START, UNKNOWN))
    best: ClassVar[str]  # the score that chooses the best weights, unless a recipe names another
    judged: ClassVar[int] = 200  # examples that are answered at a validation
    # Whether they are answered by greedy search, unless their scores choose the weights.
    judged_greedily: ClassVar[bool] = False
    answers_are_text: ClassVar[bool] = True  # perplexity per word is defined
    # Whether the true answer is ranked among answers to other inputs (`regard.ranking`).
    ranks_answers: ClassVar[bool] = False

    @property
    def answer_tokenizer(self) -> Tokenizer:
        """What turns the tokens of an answer into text: the run's own tokenizer."""
        return self.tokenizer

    def read_one(self, value: Input) -> np.ndarray:
        """One input as a row of a corpus. Raises InputError for what is not an input of this
        task."""
        return self.source.read_one(value)

    def read_rows(self, inputs: Sequence[Input]) -> list[np.ndarray]:
        """Each input as a row of a corpus. Of several inputs, an error says which one it is."""
        rows = []
        for number, value in enumerate(inputs, 1):
            try:
                rows.append(self.read_one(value))
            except InputError as problem:
                if len(inputs) == 1:
                    raise
                raise _numbered(problem, f"input {number} of {len(inputs)}") from None
        return rows

    def read(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        """Inputs as the model's frontend reads them: raw (B, …) and mask (B, S)."""
        return self.sources(self.read_rows(inputs))

    def sources(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Rows of a corpus as the model's frontend reads them."""
        return self.source.rows(rows)

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
        return self.source.augment(sources, draw)

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

    def place_names(
        self, row: np.ndarray, places: int | None = None, grid: tuple[int, int] | None = None
    ) -> tuple[str, ...]:
        """A name for each place of the memory of this row. An encoder that shortens its input
        has fewer `places` than the source; those of a picture lie on a `grid`."""
        return self.source.place_names(row, places, grid)

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

    def copies(
        self, answers: Sequence[str], prompts: Sequence[str], training: Container[str] | None
    ) -> dict[str, Statistic]:
        """How many answers are copies of their prompt, or of a training answer, if these are
        known."""
        return {}


def _numbered(problem: InputError, number: str) -> InputError:
    where = number if problem.where is None else f"{number}, {problem.where}"
    return InputError(problem.what, where=where, got=problem.got, hint=problem.hint)


def padded(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Padded tokens (B, S), and a mask (B, S) of those that are not padding."""
    tokens, lengths = pad(rows)
    return torch.from_numpy(tokens), from_lengths(torch.from_numpy(lengths))


def text_batch(raw: Tensor, mask: Tensor, targets: Sequence[np.ndarray]) -> Batch:
    """A batch whose answers are text: the decoder reads START and the tokens, and should answer
    the tokens and END."""
    return Batch(raw, mask, *text_targets(targets))


def text_targets(targets: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
    """`tokens`, `targets` and `real` of a Batch whose answers are text."""
    tokens, real = padded([np.concatenate([[START], row]) for row in targets])
    answers, _ = padded([np.append(row, END) for row in targets])
    return tokens, answers, real
