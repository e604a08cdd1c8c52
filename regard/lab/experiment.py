"""The parts of an experiment: `run` takes Settings and returns a Report of claims, tables and a
figure.

    class Settings(experiment.Settings): ...      one field a setting, documented by a sentence
    def run(settings: Settings) -> Report: ...    deterministic, except for measured times
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from regard.errors import InputError, did_you_mean
from regard.recipe import allowed, read_value, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colour-blind safe palette of Okabe and Ito (2008): black, blue, orange, green, purple, sky
# blue, vermilion.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
BLACK, BLUE, ORANGE, GREEN, PURPLE, SKY, RED = COLOURS

ROUNDING = 1e-12  # differences below this are rounding errors of float64


class Settings(BaseModel):
    """The settings that every experiment has. The sentence below a field documents it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    """Seed of every random draw."""


@dataclass(frozen=True)
class Claim:
    """A statement, its prediction, the measurement, and whether they agree."""

    text: str
    expected: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Table:
    """A titled table; `cell` formats its entries."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Report:
    """The result of an experiment."""

    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]
    figure: Figure  # created without pyplot: no global state, no window
    notes: tuple[str, ...] = ()  # warnings about the tables, e.g. that the machine was busy

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


def near(text: str, *, expected: float, measured: float, within: float) -> Claim:
    """A claim that a number equals another up to `within`.

    >>> near("the variance is 1", expected=1, measured=1.25, within=0.1)
    Claim(text='the variance is 1', expected='1 ± 0.1', measured='1.25', holds=False)
    """
    return Claim(
        text,
        f"{expected:.5g} ± {within:.2g}",
        f"{measured:.5g}",
        abs(measured - expected) <= within,
    )


def zero(text: str, measured: float, within: float = 1e-10) -> Claim:
    """A claim that the largest difference between two sides of an identity is 0 up to rounding.

    >>> zero("both are the same", 3e-16).holds
    True
    """
    measured_text = f"{measured:.1e}" if clean(measured) else f"below {ROUNDING:.0e}"
    return Claim(text, f"0 (below {within:.0e})", measured_text, measured <= within)


def clean(difference: float) -> float:
    """Round a difference to eight digits, and to 0 below ROUNDING.

    The digits beyond depend on the machine; without them two runs give the same report.

    >>> clean(2.2e-16), clean(1 / 3)
    (0.0, 0.33333333)
    """
    return 0.0 if abs(difference) < ROUNDING else float(f"{difference:.8g}")


def cell(entry: object) -> str:
    """Format an entry of a table: integers with thousands separators, floats to four digits.

    >>> [cell(entry) for entry in (4096, 0.123456, True, "signs", None)]
    ['4,096', '0.1235', 'yes', 'signs', '-']
    """
    match entry:
        case None:
            return "-"
        case bool():
            return "yes" if entry else "no"
        case int():
            return f"{entry:,}"
        case float():
            return f"{entry:.4g}"
    return str(entry)


def figure(width: float = 11.0, height: float = 4.2) -> Figure:
    """An empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


# ---------------------------------------------------------------------------------------- progress

Watcher = Callable[[str, int, int], None]
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Inside this context, `progress(what, done, total)` calls `watcher` with its arguments."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def progress(what: str, done: int, total: int) -> None:
    """Report progress to the current watcher; without one, do nothing."""
    if (watcher := _watcher.get()) is not None:
        watcher(what, done, total)


S = TypeVar("S", bound=Settings)


def settings(model: type[S], overrides: Sequence[str] = ()) -> S:
    """The default settings with overrides such as `["width=16", "laws=[\"signs\"]"]`.

    One error lists every invalid override.

    >>> settings(Settings, ["seed=3"])
    Settings(seed=3)
    """
    values: dict[str, Any] = {}
    for override in overrides:
        field, equals, text = (part.strip() for part in override.partition("="))
        if not equals or not field:
            raise InputError(
                "an override has the form field=value", where="--set", got=f'"{override}"'
            )
        values[field] = read_value(text)
    try:
        # TOML has lists where the settings have tuples; an empty value means the default.
        return model.model_validate(
            {field: _as_tuple(value) for field, value in values.items() if value is not None}
        )
    except ValidationError as error:
        problems = dict.fromkeys(
            _problem(model, item, values) for item in error.errors(include_url=False)
        )
    if len(problems) == 1:
        raise InputError(*problems)
    raise InputError(f"--set: {len(problems)} things to fix", details=problems)


def _as_tuple(value: Any) -> Any:
    """Lists, also nested ones, as tuples."""
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value


def _problem(model: type[Settings], item: Any, values: dict[str, Any]) -> str:
    """An error of pydantic in one sentence: field, problem, value received, values allowed."""
    if not item["loc"]:  # raised by the model validator, whose message is complete
        return f"--set: {item['ctx']['error']}"
    field = str(item["loc"][0])
    hint = None
    match item["type"]:
        case "extra_forbidden":
            what = "no such field"
            hint = did_you_mean(field, model.model_fields)
        case "value_error":
            what = str(item["ctx"]["error"])
        case _:
            what = f"must be {allowed(model.model_json_schema()['properties'][field])}"
    return str(InputError(what, where=f"--set: {field}", got=shown(values[field]), hint=hint))
