"""The result of a comparison as plain values: what comparison.json holds, and a page may draw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from regard.compare.statistics import Difference, Estimate, finite

FORMAT = 1


@dataclass(frozen=True)
class SeedResult:
    """One run of a contender; a failed one is a result too.

    kept_step   the step whose weights are scored; None: its log does not say
    best_step   the step whose validation score was best
    """

    seed: int
    run: str
    state: str
    why: str
    scores: dict[str, float | None]
    kept_step: int | None = None
    best_step: int | None = None


@dataclass(frozen=True)
class Curve:
    """The validations of one run: its steps, seconds of training, multiplications, and every score
    that was logged."""

    seed: int
    steps: list[int]
    seconds: list[float]
    multiplications: list[float | None]
    scores: dict[str, list[float | None]]


@dataclass(frozen=True)
class Costs:
    """What a contender costs: means over its runs.

    parameters, multiplications (of all training), forward (of one example), depth (sequential
    operations of that), training_memory (bytes): by formulas
    steps, tokens, seconds, tokens_per_second, peak_memory, waited: measured
    """

    parameters: int | None
    multiplications: float | None
    forward: int | None
    depth: int | None
    training_memory: int | None
    steps: float | None
    tokens: float | None
    seconds: float | None
    tokens_per_second: float | None
    peak_memory: float | None
    waited: float | None


@dataclass(frozen=True)
class Tuning:
    """The trials that chose the values of a contender, and their validation scores."""

    trials: int
    values: dict[str, str]
    scores: list[dict[str, Any]]


@dataclass(frozen=True)
class ContenderResult:
    """A contender: its scores over all seeds, its costs and its runs."""

    name: str
    summary: str
    changes: list[str]  # fields in which its recipe differs from the first contender's
    scores: dict[str, Estimate]
    numbers: dict[str, float | None]  # scores without an interval, means over seeds
    costs: Costs
    seeds: list[SeedResult]
    curves: list[Curve]
    tuning: Tuning | None
    is_on_front: bool  # no other contender is as good for less

    @property
    def done(self) -> int:
        return sum(result.state == "done" for result in self.seeds)

    @property
    def failed(self) -> int:
        return sum(result.state == "failed" for result in self.seeds)


@dataclass(frozen=True)
class Bucket:
    """The difference on some of the items."""

    kind: str  # length, frequency, label
    name: str
    items: int
    difference: Difference


@dataclass(frozen=True)
class Example:
    """An item on which two contenders differ. The answers are those of their first seeds; the
    difference is of the mean over all seeds, and positive where the first is better."""

    prompt: str
    references: list[str]
    answers: list[str]
    scores: list[float | None]
    difference: float
    commands: list[str]  # that show the attention of both
    attention: str = ""  # the page with the attention of both, a path in the comparison's folder


@dataclass(frozen=True)
class Pair:
    """Two contenders: the verdict, and the differences of all scores."""

    first: str
    second: str
    verdict: str
    outcome: str  # better, worse, undecided, runs, failed, incomplete
    adjusted_p_value: float | None
    differences: dict[str, Difference]
    buckets: list[Bucket]
    examples: list[Example]
    attention_note: str = ""  # why examples have no page with their attention


@dataclass(frozen=True)
class Comparison:
    """All that a comparison found.

    score      the score of the verdicts, and whether "higher" or "lower" is better
    unit       what an item is
    items      how many there are; answered: how many of them were answered
    baselines  scores without looking at the input
    question   what a ready-made plan asks
    advice     which contender to take
    same       what all contenders had in common: data, budget, seeds
    command    makes the comparison again, or goes on with it
    """

    title: str
    task: str
    score: str
    better: str | None
    split: str
    unit: str
    items: int
    answered: int
    budget: str
    trials: int
    contenders: list[ContenderResult]
    pairs: list[Pair]
    baselines: dict[str, dict[str, float]]
    notes: list[str] = field(default_factory=list)
    is_complete: bool = True
    question: str = ""
    advice: str = ""
    same: dict[str, str] = field(default_factory=dict)
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT} | _plain(self)


def _plain(value: Any) -> Any:
    """As JSON can hold it: dataclasses as objects, what is no number as null."""
    if isinstance(value, Estimate):
        return value.to_json()
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
