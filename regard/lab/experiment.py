"""What an experiment is made of: Settings go into `run`, a Report of claims, tables and one picture
comes out.

class Settings(experiment.Settings): ...        its dials, a sentence under each
def run(settings: Settings) -> Report: ...      the same settings, the same report (times excepted)
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

# Okabe and Ito 2008: told apart by the colour-blind too. Black, then blue, orange, green, purple,
# sky, vermilion.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
BLACK, BLUE, ORANGE, GREEN, PURPLE, SKY, RED = COLOURS

ROUNDING = 1e-12  # of float64, generously


class Settings(BaseModel):
    """The dials every experiment has. The sentence under a field is its documentation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    """Decides every random draw."""


@dataclass(frozen=True)
class Claim:
    """A statement, what it predicts, what was measured, and whether the one is the other."""

    text: str
    expected: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Report:
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]
    figure: Figure  # made without pyplot: no global state, no window
    notes: tuple[str, ...] = ()  # what a reader of the tables should know

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


def near(text: str, *, expected: float, measured: float, within: float) -> Claim:
    """A claim that a number is another, give or take `within`.

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
    """A claim that something is 0 but for rounding: the largest difference of two sides of an
    identity.

    >>> zero("both are the same", 3e-16).holds
    True
    """
    shown = f"{measured:.1e}" if clean(measured) else f"below {ROUNDING:.0e}"
    return Claim(text, f"0 (below {within:.0e})", shown, measured <= within)


def clean(difference: float) -> float:
    """A difference as a report shows it: to eight digits, and 0 where it is only rounding. What is
    left out depends on the machine and its mood, and two runs must not differ.

    >>> clean(2.2e-16), clean(1 / 3)
    (0.0, 0.33333333)
    """
    return 0.0 if abs(difference) < ROUNDING else float(f"{difference:.8g}")


def cell(entry: object) -> str:
    """A table's entry as text: whole numbers in groups of three, others to four digits.

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
    """An empty sheet, sized in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


# -- progress---------------------------------------------------------------------------------------

Watcher = Callable[[str, int, int], None]
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """While this lasts, `watcher(what, done, total)` is called as an experiment gets on."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def progress(what: str, done: int, total: int) -> None:
    """Tell whoever watches this experiment, if anybody does."""
    if (watcher := _watcher.get()) is not None:
        watcher(what, done, total)


S = TypeVar("S", bound=Settings)


def settings(model: type[S], overrides: Sequence[str] = ()) -> S:
    """The settings with some changed, `["width=16", "laws=[\"signs\"]"]`; one error lists all that
    is wrong.

    >>> settings(Settings, ["seed=3"])
    Settings(seed=3)
    """
    given: dict[str, Any] = {}
    for override in overrides:
        field, equals, written = (part.strip() for part in override.partition("="))
        if not equals or not field:
            raise InputError(
                "an override has the form field=value", where="--set", got=f'"{override}"'
            )
        given[field] = read_value(written)
    try:
        # TOML has lists only, settings have tuples; and no value at all means the default
        return model.model_validate({k: _frozen(v) for k, v in given.items() if v is not None})
    except ValidationError as error:
        problems = dict.fromkeys(
            _problem(model, item, given) for item in error.errors(include_url=False)
        )
    if len(problems) == 1:
        raise InputError(*problems)
    raise InputError(f"--set: {len(problems)} things to mend", details=problems)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _problem(model: type[Settings], item: Any, given: dict[str, Any]) -> str:
    """What pydantic found, in a sentence: which field, what is wrong, what was received, what is
    allowed."""
    if not item["loc"]:  # from the settings' own validator, which says it all
        return f"--set: {item['ctx']['error']}"
    field, hint = str(item["loc"][0]), None
    match item["type"]:
        case "extra_forbidden":
            what, hint = "no such field", did_you_mean(field, model.model_fields)
        case "value_error":
            what = str(item["ctx"]["error"])
        case _:
            what = f"must be {allowed(model.model_json_schema()['properties'][field])}"
    return str(InputError(what, where=f"--set: {field}", got=shown(given[field]), hint=hint))
