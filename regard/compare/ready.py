"""Plans as TOML files: ready-made ones in plans/, and a user's own.

summary = "…"                     one sentence
seeds = 3                         or a list of seeds
score = "accuracy"                of the verdict; optional
set = ["data.valid=0.1"]          changes of all contenders
test_set = ["data.max_source=120"]   changes of the data for the evaluation only
tune = ["train.learning_rate=1e-3,1e-2"]
match = "parameters"
notes = ["…"]                     printed with the result

[budget]
minutes = 1                       or tokens, steps, epochs, multiplications

[contenders.LSTM]
recipe = "chat-attention"
set = ["encoder.cell=lstm"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from regard.compare.plan import MOST_SEEDS, TUNING_SEED, Budget, Contender, Plan, axes_of
from regard.errors import InputError, did_you_mean
from regard.fields import LARGEST, Section, Text
from regard.runs import new

FOLDER = "plans"
LARGEST_FILE = 1 << 20


class ContenderSection(Section):
    recipe: Text
    set: list[Text] = []


class PlanFile(Section):
    """The contents of a plan's file."""

    summary: Text
    contenders: Annotated[dict[str, ContenderSection], Field(min_length=2)]
    budget: dict[
        Literal["minutes", "tokens", "steps", "epochs", "multiplications"],
        Annotated[float, Field(gt=0, le=1e18, strict=False)],
    ] = {}
    seeds: (
        Annotated[int, Field(ge=1, le=MOST_SEEDS)]
        | Annotated[list[Annotated[int, Field(ge=0, lt=TUNING_SEED)]], Field(min_length=1)]
    ) = 3
    score: Text | None = None
    set: list[Text] = []
    test_set: list[Text] = []
    tune: list[Text] = []
    match: Literal["parameters"] | None = None
    limit: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    notes: list[Text] = []


@dataclass(frozen=True)
class ReadyPlan:
    """A plan by name, before data and options are known."""

    name: str
    content: PlanFile

    def plan(self, *, data: Path | None = None, changes: Sequence[str] = ()) -> Plan:
        """The plan, on the recipes' own data or on a user's."""
        content = self.content
        contenders = []
        for name, section in content.contenders.items():
            own = [*content.set, *section.set, *changes]
            contenders.append(Contender(name, new(section.recipe, data=data, changes=own)))
        seeds = content.seeds
        budget = Budget("minutes", 5.0)
        for kind, amount in content.budget.items():
            budget = Budget(kind, amount)
        return Plan(
            contenders=tuple(contenders),
            seeds=tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds),
            budget=budget,
            tune=axes_of(content.tune),
            match=content.match,
            test_set=tuple(content.test_set),
            limit=content.limit,
            score=content.score,
            title=self.name,
            question=content.summary,
            notes=tuple(content.notes),
        )


def names() -> list[str]:
    """The ready-made plans."""
    return sorted(
        file.name.removesuffix(".toml")
        for file in files("regard.compare").joinpath(FOLDER).iterdir()
        if file.name.endswith(".toml")
    )


def load(name: str) -> ReadyPlan:
    """A ready-made plan, or the plan in a .toml file."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            text = path.read_bytes()[:LARGEST_FILE].decode()
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or "not UTF-8"
            raise InputError(f"a plan that cannot be read: {why}", where=name) from None
        return ReadyPlan(path.stem, _read(text, name))
    if name not in names():
        hint = f"{did_you_mean(name, names())}; --plan list shows them, and a .toml file is one too"
        raise InputError("no such plan", where="--plan", got=f'"{name}"', hint=hint)
    text = files("regard.compare").joinpath(FOLDER, f"{name}.toml").read_text("utf-8")
    return ReadyPlan(name, _read(text, name))


def _read(text: str, where: str) -> PlanFile:
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise InputError(f"not TOML: {problem}", where=where) from None
    try:
        plan = PlanFile.model_validate(content)
    except ValidationError as problem:
        error = problem.errors()[0]
        field = ".".join(str(part) for part in error["loc"])
        raise InputError(
            f"{field}: {error['msg'].lower()}", where=where, hint="docs/compare.md has an example"
        ) from None
    if len(plan.budget) > 1:
        raise InputError(
            "one budget, not several", where=where, got=", ".join(plan.budget), hint="keep one"
        )
    return plan
