"""A plan: what is compared, with which seeds, budget and tuning, and whether it can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from regard import build, bundle, disk, metrics, tokenizers
from regard.build import TASKS
from regard.compare import cost
from regard.compare.items import text_key
from regard.data.corpus import Corpus
from regard.errors import BundleError, DataError, InputError, RecipeError, did_you_mean
from regard.recipe import Recipe, differences
from regard.runs import FOLDER, Limits, NewRun, free_folder, new
from regard.sweep import Axis, axis

RECORD = "plan.json"
FORMAT = 1
SPLITS = ("test", "valid")
MOST_SEEDS = 1000
TUNING_SEED = 4_000_000_000  # larger than a seed that --seeds takes, so no cell has it
# A comparison measures steps only, and gives every contender all of its budget.
EQUAL = ("train.clock=steps", "train.patience=0")

BudgetKind = Literal["minutes", "tokens", "steps", "epochs", "multiplications"]


@dataclass(frozen=True)
class Budget:
    """What each run may use; the same for all."""

    kind: BudgetKind
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:,.6g} {self.kind}"

    @property
    def is_timed(self) -> bool:
        return self.kind == "minutes"

    def changes(self, steps: int | None = None) -> list[str]:
        """Overrides of a recipe; `steps` are those that multiplications pay for."""
        amount = self.amount if self.is_timed else int(self.amount)
        limits = {"steps": steps} if self.kind == "multiplications" else {self.kind: amount}
        return [*Limits(**limits).changes, *EQUAL]  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Contender:
    """What is compared: a recipe to train, or finished runs that differ in their seeds only."""

    name: str
    new: NewRun | None = None
    runs: tuple[Path, ...] = ()

    @property
    def recipe(self) -> Recipe:
        """Its recipe, whose seed is not that of its runs."""
        return own_recipe(self.runs[0]) if self.new is None else self.new.recipe()

    def with_changes(self, changes: Sequence[str]) -> Contender:
        assert self.new is not None
        return replace(self, new=replace(self.new, changes=(*self.new.changes, *changes)))


@dataclass(frozen=True)
class Plan:
    """A comparison to be made.

    seeds      of each contender that is trained
    tune       fields whose values are chosen for each contender by its validation score
    match      "parameters": all contenders get the width with which they have as many as the first
    split      the split that decides; None: test, or valid if there is no test split
    test_set   changes of the data for the evaluation only, to test longer inputs for example
    limit      how many items are answered at most
    score      the score of the verdict; None: the task's
    title, question, notes
               of a ready-made plan
    anyway     compare although the training data differ
    """

    contenders: tuple[Contender, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    budget: Budget = Budget("minutes", 5.0)
    tune: tuple[Axis, ...] = ()
    match: Literal["parameters"] | None = None
    split: str | None = None
    test_set: tuple[str, ...] = ()
    limit: int | None = None
    score: str | None = None
    title: str = ""
    question: str = ""
    notes: tuple[str, ...] = ()
    anyway: bool = False

    @property
    def trained(self) -> list[Contender]:
        return [contender for contender in self.contenders if contender.new is not None]

    @property
    def trials(self) -> int:
        """Tuning trials of each contender that is trained."""
        count = 1 if self.tune else 0
        for each in self.tune:
            count *= len(each.values)
        return count

    def to_json(self) -> dict[str, Any]:
        """What makes it another plan; other seeds may join a plan."""
        contenders = {}
        for contender in self.contenders:
            if contender.new is None:
                contenders[contender.name] = {"runs": [str(run) for run in contender.runs]}
            else:
                contenders[contender.name] = {"recipe": contender.recipe.to_json()}
        return {
            "format": FORMAT,
            "contenders": contenders,
            "budget": {self.budget.kind: self.budget.amount} if self.trained else None,
            "tune": [str(each) for each in self.tune],
            "match": self.match,
            "split": self.split,
            "test_set": list(self.test_set),
            "limit": self.limit,
        }


# -- contenders ------------------------------------------------------------------------------------


def own_recipe(run: Path) -> Recipe:
    return Recipe.from_json(disk.read_json(run / bundle.RECIPE), run / bundle.RECIPE)


def contenders_of(
    names: Sequence[str], *, data: Path | None = None, changes: Sequence[str] = ()
) -> tuple[Contender, ...]:
    """Contenders by the names of recipes and the folders of runs. Runs that differ in their seeds
    only are one contender."""
    runs = [Path(name) for name in names if (Path(name) / bundle.RECIPE).is_file()]
    if runs and (data is not None or changes):
        raise InputError(
            "a finished run has its own data and settings",
            where="--set" if changes else "--data",
            got=str(runs[0]),
            hint="give recipes instead, or leave the option out",
        )
    groups: list[list[Path]] = []
    contenders: list[Contender] = []
    for name in names:
        path = Path(name)
        if path in runs:
            if any(path in group for group in groups):
                raise InputError("a run is given twice", got=name)
            _group(path, groups)
        elif path.is_dir():
            raise InputError("not a run folder: it has no recipe.json", where=name)
        else:
            run = new(name, data=data, changes=changes)
            contenders.append(Contender(run.name, run))
    contenders += [Contender(_run_name(group[0]), runs=tuple(group)) for group in groups]
    return named(contenders)


def _group(run: Path, groups: list[list[Path]]) -> None:
    """Put a run to those from which it differs in its seed only."""
    recipe = own_recipe(run)
    for group in groups:
        keys = {line.partition(":")[0] for line in differences(own_recipe(group[0]), recipe)}
        if keys <= {"seed"}:
            if any(own_recipe(other).seed == recipe.seed for other in group):
                raise InputError(
                    "two runs have the same recipe and seed, so they are no two results",
                    got=f"{group[0]} and {run}",
                    hint="leave one of them out",
                )
            group.append(run)
            return
    groups.append([run])


def _run_name(run: Path) -> str:
    """The name of a run's folder, or of the folder of all its seeds.

    >>> _run_name(Path("runs/lstm")), _run_name(Path("runs/lstm/seed=0"))
    ('lstm', 'lstm')
    """
    run = Path(run) if run.name else run.resolve()
    return run.parent.name if run.name.startswith("seed=") and run.parent.name else run.name


def named(contenders: Sequence[Contender]) -> tuple[Contender, ...]:
    """With a name of its own for each."""
    counts: dict[str, int] = {}
    result = []
    for contender in contenders:
        number = counts[contender.name] = counts.get(contender.name, 0) + 1
        name = contender.name if number == 1 else f"{contender.name}-{number}"
        result.append(replace(contender, name=name))
    return tuple(result)


def seeds_of(text: str) -> tuple[int, ...]:
    """A number of seeds, or the seeds themselves.

    >>> seeds_of("3"), seeds_of("0,7")
    ((1, 2, 3), (0, 7))
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise InputError(
            "a number of seeds, or seeds with commas", where="--seeds", got=f'"{text}"',
            hint="as in --seeds 3, or --seeds 0,1,2",
        )  # fmt: skip
    numbers = [int(word) for word in words]
    if len(numbers) > 1:
        if len(set(numbers)) < len(numbers):
            raise InputError("a seed is given twice", where="--seeds", got=text)
        return tuple(numbers)
    if not 1 <= numbers[0] <= MOST_SEEDS:
        raise InputError(
            f"from 1 to {MOST_SEEDS:,} seeds", where="--seeds", got=text,
            hint="a single seed of your choice is --set seed=N with --seeds 1",
        )  # fmt: skip
    return tuple(range(1, numbers[0] + 1))


def axes_of(texts: Sequence[str]) -> tuple[Axis, ...]:
    """The fields to tune. Every contender tries the same values, so a range has no place here."""
    axes = []
    for text in texts:
        tuned = axis(text, "--tune")
        if tuned.is_range:
            raise InputError(
                "a comparison tries the same values for all",
                where="--tune",
                got=text,
                hint=f"list them: --tune {tuned.key}={tuned.low:g},{tuned.high:g}",
            )
        if tuned.key in ("seed", "task", "train.score"):
            raise InputError("cannot be tuned", where="--tune", got=tuned.key)
        if tuned.key in [other.key for other in axes]:
            raise InputError(
                "a field is tuned twice", where="--tune", got=tuned.key, hint="list all its values"
            )
        axes.append(tuned)
    return tuple(axes)


# -- what may be compared --------------------------------------------------------------------------


def check(plan: Plan) -> None:
    """Everything that can be said before data is read."""
    if len(plan.contenders) < 2:
        got = plan.contenders[0].name if plan.contenders else None
        raise InputError(
            "a comparison needs two contenders or more",
            got=got,
            hint="regard compare chat-lstm chat-gru, or --plan list shows ready-made ones",
        )
    tasks = {contender.recipe.task: contender.name for contender in plan.contenders}
    if len(tasks) > 1:
        got = " and ".join(f"{name} ({task})" for task, name in tasks.items())
        raise InputError("models of different tasks cannot be compared", got=got)
    known = metrics.LOWER_IS_BETTER | metrics.HIGHER_IS_BETTER
    if plan.score is not None and plan.score not in known:
        hint = did_you_mean(plan.score, known)
        raise InputError("no score that can be better", where="--score", got=plan.score, hint=hint)
    if not plan.trained and (plan.tune or plan.match):
        option = "--tune" if plan.tune else "--match"
        raise InputError("finished runs stay as they are", where=option, hint="leave it out")
    if plan.match and len(plan.trained) < len(plan.contenders):
        raise InputError("a finished run cannot be matched", where="--match")
    for contender in plan.trained:
        for tuned in plan.tune:
            for value in tuned.values:
                _check_tuned(contender, f"{tuned.key}={value}")


def _check_tuned(contender: Contender, change: str) -> None:
    assert contender.new is not None
    try:
        contender.new.recipe([change])
    except RecipeError as problem:
        raise InputError(str(problem).replace("--set", "--tune"), where=contender.name) from None


def deciding_split(plan: Plan, corpora: Mapping[str, Corpus]) -> str:
    """The split that decides: test, or valid if a contender has no test split."""
    for split in (plan.split,) if plan.split else SPLITS:
        if all(len(getattr(corpus, split)) for corpus in corpora.values()):
            return split
    names = [plan.split] if plan.split else list(SPLITS)
    raise DataError(
        f"no {' or '.join(names)} examples to compare on",
        hint="hold some out with --set data.test=0.1 --set data.valid=0.1",
    )


def check_data(plan: Plan, corpora: Mapping[str, Corpus]) -> list[str]:
    """Refuse contenders that were or would be trained on different data, unless `anyway`; the
    notes about it."""
    first = plan.contenders[0]
    key = text_key(corpora[first.name].train)
    notes = []
    for contender in plan.contenders[1:]:
        if text_key(corpora[contender.name].train) == key:
            continue
        lines = differences(first.recipe, contender.recipe)
        fields = [line for line in lines if line.startswith(("data.", "tokenizer."))]
        got = ", ".join(fields) or "other contents of the same files"
        if not plan.anyway:
            raise DataError(
                "not the same training data",
                where=f"{first.name} and {contender.name}",
                got=got,
                hint="make it the same with --set data.…, or add --anyway to compare all the same",
            )
        notes.append(f"{first.name} and {contender.name} have different training data: {got}")
    return notes


def corpora_of(plan: Plan) -> dict[str, Corpus]:
    """The data of each contender, prepared."""
    corpora = {}
    for contender in plan.contenders:
        tokenizer = None
        if contender.runs:
            tokenizer = tokenizers.read(contender.runs[0] / bundle.TOKENIZER)
        corpora[contender.name] = build.corpus(contender.recipe, tokenizer)
    return corpora


def resolved(plan: Plan, corpora: Mapping[str, Corpus]) -> Plan:
    """The plan with matched widths and with its budget, as changes of the recipes."""
    contenders = list(plan.contenders)
    if plan.match:
        first = contenders[0]
        target = cost.work_of(first.recipe, corpora[first.name]).parameters
        for number, contender in enumerate(contenders[1:], 1):
            assert contender.new is not None
            changes = cost.matched(contender.new, corpora[contender.name].tokenizer, target)
            contenders[number] = contender.with_changes(changes)
    for number, contender in enumerate(contenders):
        if contender.new is None:
            continue
        steps = None
        if plan.budget.kind == "multiplications":
            work = cost.work_of(contender.recipe, corpora[contender.name])
            steps = cost.steps_for(plan.budget.amount, work, contender.name)
        contenders[number] = contender.with_changes(plan.budget.changes(steps))
    return replace(plan, contenders=tuple(contenders))


def default_score(plan: Plan) -> str:
    """The score that is trained for."""
    recipe = plan.contenders[0].recipe
    return recipe.train.score or TASKS[recipe.task].best


def same_for_all(plan: Plan, corpora: Mapping[str, Corpus], split: str) -> dict[str, str]:
    """What all contenders have in common, in words."""
    recipe = plan.contenders[0].recipe
    same = {"task": recipe.task}
    corpus = next(iter(corpora.values()))
    if len({text_key(each.train) for each in corpora.values()}) == 1:
        same["data"] = recipe.data.kind
        sizes = {part: len(getattr(corpus, part)) for part in ("train", "valid", "test")}
        if plan.test_set:
            changed = build.with_tokenizer(recipe.override(plan.test_set), corpus.tokenizer)
            sizes[split] = len(getattr(changed, split))
        same["examples"] = ", ".join(f"{size:,} {part}" for part, size in sizes.items())
    decides = f"{split}, changed by {', '.join(plan.test_set)}" if plan.test_set else split
    same["split of the verdict"] = decides
    if plan.limit:
        same["items that are answered"] = f"at most {plan.limit:,}"
    if len(plan.trained) < len(plan.contenders):
        return same
    same["budget of each run"] = str(plan.budget)
    same["seeds"] = ", ".join(map(str, plan.seeds))
    fields = ", ".join(str(axis) for axis in plan.tune)
    same["tuning trials"] = f"{plan.trials} ({fields})" if plan.tune else "none"
    if plan.match:
        same["matched"] = f"{plan.match}, by the width"
    return same


# -- the folder ------------------------------------------------------------------------------------


def default_folder(plan: Plan) -> Path:
    """runs/A-vs-B, or runs/TITLE of a ready-made plan; or the first of NAME-2, … that is new or
    holds this very plan."""
    names = [contender.name for contender in plan.contenders]
    name = plan.title or "-vs-".join(names[:3]) + ("-…" if len(names) > 3 else "")
    return free_folder(FOLDER / f"compare-{name}", lambda folder: _is_free_for(plan, folder))


def _is_free_for(plan: Plan, folder: Path) -> bool:
    if not folder.exists():
        return True
    if not (folder / RECORD).exists():
        return False
    try:
        same_plan(plan, folder)
    except (InputError, BundleError):
        return False
    return True


def claim(plan: Plan, folder: Path) -> None:
    """Take a folder that is new, empty or holds this plan."""
    disk.claim(folder, RECORD, "comparison")
    folder.mkdir(parents=True, exist_ok=True)
    with disk.lock_file(folder / disk.LOCK, wait=True):
        same_plan(plan, folder)
        if not (folder / RECORD).exists():
            disk.write_json(folder / RECORD, plan.to_json())


def same_plan(plan: Plan, folder: Path) -> None:
    """The folder has no plan yet, or this one."""
    record = folder / RECORD
    if not record.exists():
        return
    content = disk.read_json(record)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BundleError("damaged, or of another version: not a plan", where=record)
    wanted = plan.to_json()
    changed = [key for key in wanted if content.get(key) != wanted[key]]
    if changed:
        raise InputError(
            "this folder holds another comparison",
            where=folder,
            got=f"other {', '.join(changed)}",
            hint="choose another --out",
        )
