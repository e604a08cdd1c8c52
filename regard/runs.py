"""What to train: the recipe and the folder of a new run, or of one that is resumed.

    new("chat-attention", data=Path("pairs.tsv"), limits=Limits(minutes=2)).job()
    resumed(Path("runs/chat-attention"), limits=Limits(minutes=5))

Nothing here loads torch, so that a mistake is told at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard import disk
from regard.data.detect import recognise
from regard.data.places import exists
from regard.errors import DataError, InputError
from regard.recipe import SECTIONS, Mark, Recipe, data_fields, load, marks_of
from regard.recipe.whole import read_overrides

FOLDER = Path("runs")
RECIPE, TOKENIZER, WEIGHTS = "recipe.json", "tokenizer.json", "model.safetensors"
CHECKPOINTS, EXAMPLES = "checkpoints", "examples"


@dataclass(frozen=True)
class Limits:
    """When training ends: at the first of these. Those given replace all of the recipe:
    `Limits(minutes=2)` means two minutes, not the first of two minutes and the recipe's steps.

    >>> Limits(minutes=2.0).changes, Limits().changes
    (['train.steps=', 'train.epochs=', 'train.tokens=', 'train.minutes=2.0'], [])
    """

    steps: int | None = None
    epochs: int | None = None
    tokens: int | None = None
    minutes: float | None = None

    @property
    def changes(self) -> list[str]:
        """Overrides of a recipe."""
        limits = asdict(self)
        if all(limit is None for limit in limits.values()):
            return []
        for name, limit in limits.items():
            if limit is not None and not 0 < limit < math.inf:
                raise InputError(
                    "a budget must be more than 0", where=f"--{name}", got=f"{limit:g}"
                )
        return [f"train.{name}={'' if limit is None else limit}" for name, limit in limits.items()]


@dataclass(frozen=True)
class Job:
    """A run to train: its recipe, with all changes, and its folder."""

    recipe: Recipe
    run: Path
    resume: bool = False
    anyway: bool = False
    base: str = ""  # the name or path of the recipe, without its changes

    def to_json(self) -> dict[str, Any]:
        """The job as another process reads it."""
        return asdict(self) | {"recipe": self.recipe.to_json(), "run": str(self.run)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Job:
        recipe = Recipe.from_json(fields["recipe"])
        return cls(**fields | {"recipe": recipe, "run": Path(fields["run"])})


@dataclass(frozen=True)
class NewRun:
    """A recipe with changes, to be trained once, or several times with further changes."""

    base: str | Recipe  # the name or path of a recipe, or the recipe itself
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder, unless another one is given."""
        return self.base.task if isinstance(self.base, Recipe) else Path(self.base).stem

    def recipe(self, more: Sequence[str] = ()) -> Recipe:
        """The recipe with its changes and further ones."""
        return _with_changes(self.base, [*self.changes, *more])

    def job(self, out: Path | None = None) -> Job:
        """The run in the folder `out`, or in runs/NAME, or runs/NAME-2, … if that exists."""
        base = self.base if isinstance(self.base, str) else ""
        return Job(self.recipe(), out or free_folder(FOLDER / self.name), base=base)


def new(
    base: str | Path | Recipe,
    *,
    data: Path | None = None,
    changes: Sequence[str] = (),
    limits: Limits | None = None,
) -> NewRun:
    """A new run: a recipe, the user's own `data`, changes as `section.field=value`, limits."""
    if isinstance(base, Path):
        base = str(base)
    limit_changes = limits.changes if limits else []
    if data is not None:
        recipe = _with_changes(base, [])
        name = recipe.task if isinstance(base, Recipe) else base
        changes = _with_data(data, recipe, name, changes)
    run = NewRun(base, (*changes, *limit_changes))
    if missing := _missing(run.recipe()):
        field, path = missing
        hint = "--data PATH says where yours is; regard data fetch gets some"
        if field != "path":
            hint = f"--set data.{field}=PATH says where yours is; regard data fetch gets some"
        raise DataError("no such file or folder", where=path, hint=hint)
    return run


def resumed(
    run: Path,
    *,
    data: Path | None = None,
    changes: Sequence[str] = (),
    limits: Limits | None = None,
    anyway: bool = False,
) -> Job:
    """A run that goes on in its own folder, with its own recipe and changes to it."""
    limit_changes = limits.changes if limits else []
    _check_run(run)
    if data is not None:
        changes = _with_data(data, _own_recipe(run), str(run), changes, resumed=True)
    recipe = _own_recipe(run, [*changes, *limit_changes])
    _check_data(recipe, run)
    return Job(recipe, run, resume=True, anyway=anyway)


def _with_changes(base: str | Recipe, changes: Sequence[str]) -> Recipe:
    return base.override(changes) if isinstance(base, Recipe) else load(base, changes)


def free_folder(
    base: Path, is_free: Callable[[Path], bool] = lambda folder: not folder.exists()
) -> Path:
    """The folder itself, or the first of NAME-2, NAME-3, … that is free: by default, that does not
    exist."""
    folder = base
    number = 1
    while not is_free(folder):
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


# ------------------------------------------------------------------------------------ resumed runs


def _check_run(run: Path) -> None:
    """The folder is that of a run which began."""
    if not run.exists():
        raise InputError("no such run", where=run, hint="a run is a folder, such as runs/NAME")
    if not (run / disk.MANIFEST).exists():
        raise InputError("not a run folder: it has no manifest.json", where=run)
    has_files = disk.manifest(run).keys() & {TOKENIZER, WEIGHTS}
    if not has_files and not (run / CHECKPOINTS).exists():
        raise InputError(
            "this run was stopped before it began",
            where=run,
            hint=f"begin it with: regard train RECIPE --out {run}",
        )


def _own_recipe(run: Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe a run began with, and changes."""
    disk.verify_files(run, RECIPE, TOKENIZER)
    began = Recipe.from_json(disk.read_json(run / RECIPE), run / RECIPE)
    # All values are in place there, also derived ones; yet whoever changes the rate means that of
    # the decoder too.
    derived = []
    if began.train.decoder_learning_rate == began.train.learning_rate:
        derived = ["train.decoder_learning_rate="]
    return began.override([*derived, *changes])


def _check_data(recipe: Recipe, run: Path) -> None:
    """The data of a run that is resumed may have moved, or the command is given elsewhere."""
    missing = _missing(recipe)
    if missing is None:
        return
    field, path = missing
    place = "" if Path(path).is_absolute() else f", looked for in {Path.cwd()}"
    raise DataError(
        f"no such file or folder, which the run {run} was trained on{place}",
        where=path,
        hint=f"{'--data PATH' if field == 'path' else f'--set data.{field}=PATH'} "
        "says where it is now",
    )


def _missing(recipe: Recipe) -> tuple[str, str] | None:
    """The first `path` of the data that does not exist, with its field; a mixture has several."""
    for field, path in recipe.data.paths().items():
        if field.rpartition(".")[2] == "path" and not exists(path):
            return field, path
    return None


# ---------------------------------------------------------------------------------------- own data


def _with_data(
    path: Path, recipe: Recipe, name: str, changes: Sequence[str], *, resumed: bool = False
) -> list[str]:
    """The changes, and those that say where the data is. The recipe's own files of held-out data
    are forgotten."""
    overrides = read_overrides(changes).get("data", {})
    is_section = isinstance(overrides, dict)
    kind = overrides.get("kind") if is_section else None
    if not is_section or kind is not None:  # whoever names the kind has decided
        return [*_nothing_held_out(str(kind), resumed), f"data.path={_toml(str(path))}", *changes]

    values = dict(recipe.data) | overrides
    data_set = recognise(
        path,
        columns={field: value for field, value in values.items() if _is_column(f"data.{field}")},
        recipe=name,
        task=recipe.task,
        source=recipe.source.kind,
        kind=recipe.data.kind if resumed else None,
    )
    own = [f"data.{field}={_toml(value)}" for field, value in data_set.fields.items()]
    others = [change for change in changes if not _names_column(change)]
    return [
        f"data.kind={data_set.kind}",
        *_nothing_held_out(data_set.kind, resumed),
        *own,
        *others,
    ]


def _nothing_held_out(kind: str, resumed: bool) -> list[str]:
    """What makes a recipe forget its own files of held-out data."""
    section = SECTIONS["data"].get(kind)
    if section is None or resumed:
        return []
    return [f"data.{field}=" for field in data_fields(section, Mark.HELD_OUT)]


def _toml(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _is_column(key: str) -> bool:
    return Mark.COLUMN in marks_of(key)


def _names_column(change: str) -> bool:
    """Whether this says which column is meant: what was recognised says it in the words of its
    kind."""
    key, _, value = (part.strip() for part in change.partition("="))
    return key.startswith("data.") and _is_column(key) and value != ""
