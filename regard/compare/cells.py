"""Cells: each contender with each seed, trained and evaluated once, whoever does it.

A cell is a run in runs/NAME/seed=N, trained as a trial of a sweep, and a file
cells/NAME,seed=N.json with its answers and costs. A cell that another process works on is left to
it. Processes go round until no cell is left, so that one takes over what a killed one leaves.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from regard import build, bundle, checkpoint, disk
from regard.build import TASKS
from regard.compare.cost import Measured, Work, measuring, work_of
from regard.compare.items import Item, has_unknown_words, items_from_json, observe, text_key
from regard.compare.plan import TUNING_SEED, Contender, Plan, own_recipe
from regard.data.corpus import Corpus, Split
from regard.errors import BundleError, BusyError, DivergedError, RegardError, TrainingError
from regard.fleet import Fleet, Task
from regard.recipe import Recipe
from regard.sweep import ENDED, Outcome, Trial, Trials, folder_name, forward_message, points
from regard.tokenizers import dumps
from regard.train import Reporter, Stopped, rehearse

T = TypeVar("T")

PAUSE = 1.0  # seconds until cells of other processes are looked at again
CELLS, RUNS, TUNING = "cells", "runs", "tune"
EVALUATED = 1  # format of the file of a cell

# The reporter of a run, by the name of the contender and the values of the trial.
MakeReporter = Callable[[str], AbstractContextManager[Reporter]]


@dataclass(frozen=True)
class Cell:
    """A contender with one seed.

    state      "done", "failed" (a result too), "waiting", or "elsewhere": another process has it
    why        the reason of a failure
    values     the tuned values
    weights    the SHA-256 of the weights that were evaluated
    train_data, tokenizer
               SHA-256 of the training texts and of the tokenizer
    has_unknown_words
               whether the tokenizer cannot write all test answers
    longest    the length of the longest training input
    items      the answers to the test items
    baselines  scores of answers that do not depend on the input
    """

    contender: str
    seed: int
    run: str
    state: str = "waiting"
    why: str = ""
    values: dict[str, str] = field(default_factory=dict)
    weights: str = ""
    train_data: str = ""
    tokenizer: str = ""
    has_unknown_words: bool = False
    longest: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    work: Work | None = None
    measured: Measured = field(default_factory=Measured)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    items: tuple[Item, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.contender},seed={self.seed}"

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")

    def to_json(self) -> dict[str, Any]:
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return content | {
            "format": EVALUATED,
            "work": None if self.work is None else asdict(self.work),
            "measured": asdict(self.measured),
            "items": [item.to_json() for item in self.items],
        }

    @classmethod
    def from_json(cls, content: Any, where: Path) -> Cell:
        try:
            fields = dict(content)
            if fields.pop("format") != EVALUATED:
                raise ValueError
            items = items_from_json(fields.pop("items"), where)
            work = fields.pop("work")
            measured = Measured(**fields.pop("measured"))
            return cls(
                **fields,
                work=None if work is None else Work(**work),
                measured=measured,
                items=tuple(items),
            )
        except (TypeError, KeyError, ValueError, AttributeError):
            raise BundleError("damaged, or of another version: not a cell", where=where) from None


class Cells:
    """The cells of a plan in a folder. With a fleet its machines train and evaluate them."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        split: str,
        *,
        make_reporter: MakeReporter,
        device: str = "auto",
        fleet: Fleet | None = None,
    ):
        self.plan = plan
        self.folder = folder
        self.split = split
        self.make_reporter = make_reporter
        self.device = device
        self.fleet = fleet
        recipe = plan.contenders[0].recipe
        self.score = recipe.train.score or TASKS[recipe.task].best
        self._over: dict[str, Cell] = {}
        self.failed_trials: dict[str, Trial] = {}
        self._is_warm = False

    # -- what is known --

    def snapshot(self) -> list[Cell]:
        """All cells, with what every process has reached."""
        return [self._read(contender, seed) for contender, seed in self._pairs()]

    def _pairs(self) -> list[tuple[Contender, int]]:
        """Seed by seed, so that a plan that is stopped early has something of all contenders."""
        pairs = []
        for seed in self.plan.seeds:
            pairs += [(contender, seed) for contender in self.plan.trained]
        for contender in self.plan.contenders:
            pairs += [(contender, own_recipe(run).seed) for run in contender.runs]
        return pairs

    def _read(self, contender: Contender, seed: int) -> Cell:
        """A cell with what is stored of it."""
        cell = Cell(contender.name, seed, str(self._run(contender, seed)))
        if cell.name in self._over:
            return self._over[cell.name]
        file = self._file(cell)
        if file.exists():
            with contextlib.suppress(BundleError):  # damaged: it is made again
                stored = replace(Cell.from_json(disk.read_json(file), file), run=cell.run)
                if stored.weights == _weights(Path(cell.run)):
                    cell = stored
        if contender.new is not None and not cell.is_over:
            trial = self._trials(contender, {}).trial({"seed": str(seed)})
            if trial.state == "failed":
                cell = replace(cell, state="failed", why=trial.why)
        if cell.is_over:
            self._over[cell.name] = cell
        return cell

    def _run(self, contender: Contender, seed: int) -> Path:
        for run in contender.runs:
            if own_recipe(run).seed == seed:
                return run
        return Path(self._trials(contender, {}).trial({"seed": str(seed)}).run)

    def _file(self, cell: Cell) -> Path:
        return self.folder / CELLS / f"{folder_name(cell.name)}.json"

    # -- what is left --

    def go(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> list[Cell]:
        """Train and evaluate what is left, by this process or others. `on_progress` is
        called after each part with the number that is over and the total."""
        (self.folder / CELLS).mkdir(exist_ok=True)
        parts = [
            (contender, point)
            for point in (points(self.plan.tune) if self.plan.tune else [])
            for contender in self.plan.trained
        ]
        pairs = self._pairs()
        total = len(parts) + len(pairs)
        with self._alone_if_timed():
            while True:
                done = 0
                tuning = [partial(self._tune, contender, point) for contender, point in parts]
                for trial in self._each(tuning):
                    done += trial.state in ENDED
                    on_progress(done, total)
                cells = [partial(self._cell, contender, seed) for contender, seed in pairs]
                for cell in self._each(cells):
                    done += cell.is_over
                    on_progress(done, total)
                if done == total:
                    return self.snapshot()
                time.sleep(PAUSE)

    def _each(self, calls: Sequence[Callable[[], T]]) -> Iterator[T]:
        """One after the other, or on a fleet several at once, in the order in which they end."""
        if self.fleet is None:
            return (call() for call in calls)
        return self.fleet.together(calls)

    @contextlib.contextmanager
    def _alone_if_timed(self) -> Iterator[None]:
        """Two processes that train at once on one machine take each other's time."""
        if not self._is_timed or self.fleet is not None:  # tasks do it on their machines
            yield
            return
        with disk.lock_file(self.folder / f".timed-{folder_name(socket.gethostname())}") as file:
            if file is None:
                raise BusyError(
                    "another process of this machine works on this plan, whose budget is time",
                    where=self.folder,
                    hint="wait for it, or share a plan with --tokens or --multiplications",
                )
            yield

    @property
    def _is_timed(self) -> bool:
        return self.plan.budget.is_timed and bool(self.plan.trained)

    # -- tuning --

    def _trials(self, contender: Contender, values: dict[str, str]) -> Trials:
        """The runs of a contender with tuned values."""
        return self._sweep(
            contender, RUNS, [f"{key}={value}" for key, value in values.items()], "seed"
        )

    def _sweep(self, contender: Contender, place: str, changes: Sequence[str], what: str) -> Trials:
        run = contender.new
        assert run is not None

        def make(more: Sequence[str]) -> Recipe:
            return run.recipe([*changes, *more])

        def make_reporter(trial: Trial) -> AbstractContextManager[Reporter]:
            values = trial.name.removeprefix("seed=")
            return self.make_reporter(f"{contender.name}, {what} {values}")

        folder = self.folder / place / folder_name(contender.name)
        return Trials(
            make,
            folder,
            self.score,
            make_reporter,
            self.device,
            self.fleet,
            alone=self._is_timed,
        )

    def tuning(self, contender: Contender) -> Outcome | None:
        """The tuning trials of a contender; None if nothing is tuned."""
        if not self.plan.tune or contender.new is None:
            return None
        trials = self._tuning_trials(contender)
        return Outcome(self.score, [trials.trial(point) for point in points(self.plan.tune)])

    def _tuning_trials(self, contender: Contender) -> Trials:
        return self._sweep(contender, TUNING, [f"seed={TUNING_SEED}"], "tuning")

    def _tune(self, contender: Contender, point: dict[str, str]) -> Trial:
        trials = self._tuning_trials(contender)
        trial = trials.trial(point)
        key = f"{contender.name},{trial.name}"
        if trial.state in ENDED or key in self.failed_trials:
            return self.failed_trials.get(key, trial)
        trial = trials.go(trial)
        if trial.state == "failed":
            self.failed_trials[key] = trial
        return trial

    def tuned(self, contender: Contender) -> dict[str, str] | None:
        """The values with the best validation score, or those of the first trial if none has one;
        None while trials are under way."""
        outcome = self.tuning(contender)
        if outcome is None:
            return {}
        for trial in outcome.trials:
            key = f"{contender.name},{trial.name}"
            if trial.state not in ENDED and key not in self.failed_trials:
                return None
        best = outcome.best
        return dict((outcome.trials[0] if best is None else best).values)

    # -- one cell --

    def _cell(self, contender: Contender, seed: int) -> Cell:
        """Train and evaluate a cell, unless that is done or another process does it."""
        cell = self._read(contender, seed)
        if cell.is_over:
            return cell
        values = {} if contender.new is None else self.tuned(contender)
        if values is None:
            return cell
        cell = replace(cell, values=values)
        if self.fleet is not None and contender.new is not None:
            return self._make_remotely(self.fleet, contender, cell)
        return self.make(contender, cell)

    def make(self, contender: Contender, cell: Cell) -> Cell:
        """Train and evaluate a cell with its values."""
        if contender.new is not None:
            cell = self._train(contender, cell)
            if cell.state != "waiting":
                return cell
        with disk.lock_file(self._file(cell).with_suffix(".lock")) as file:
            if file is None:
                return replace(cell, state="elsewhere")
            stored = self._read(contender, cell.seed)  # somebody else may have been faster
            if stored.is_over:
                return stored
            cell = self._evaluate(cell)
            disk.write_json(self._file(cell), cell.to_json())
        return cell

    def _make_remotely(self, fleet: Fleet, contender: Contender, cell: Cell) -> Cell:
        """The same by a machine of a fleet. Its file is read afterwards like that of any other
        process."""
        assert contender.new is not None
        changes = [f"{key}={value}" for key, value in cell.values.items()]
        recipe = contender.new.recipe([*changes, f"seed={cell.seed}"])
        task = Task(
            "regard.compare.remote:make_cell",
            {
                "contender": contender.name,
                "recipe": recipe.to_json(),
                "seed": cell.seed,
                "values": cell.values,
                "budget": [self.plan.budget.kind, self.plan.budget.amount],
                "split": self.split,
                "test_set": list(self.plan.test_set),
                "limit": self.plan.limit,
                "device": self.device,
            },
            folder=self.folder,
            threads=recipe.train.threads,
            alone=self._is_timed,
            name=cell.name,
        )
        with self.make_reporter(f"{contender.name}, seed {cell.seed}") as reporter:
            try:
                state, why = fleet.run(task, partial(forward_message, reporter, None))
            except TrainingError as problem:  # its machines died again and again
                state, why = "failed", str(problem)
        stored = self._read(contender, cell.seed)
        if state == "failed" and not stored.is_over:  # the next command tries it again
            stored = self._over[cell.name] = replace(cell, state=state, why=why)
        return stored

    def _train(self, contender: Contender, cell: Cell) -> Cell:
        """The cell when its run has ended: its state is still "waiting", to be evaluated, or
        "failed"."""
        trials = self._trials(contender, cell.values)
        before = trials.trial({"seed": str(cell.seed)})
        if before.state not in ENDED:
            self._warm_up(contender, cell)
        with measuring(self.device) as measured:
            trial = trials.go(before)
        if before.state not in ENDED:
            cell = replace(cell, measured=measured())
        if trial.state == "done":
            return cell
        cell = replace(cell, state=trial.state, why=trial.why)
        if cell.state == "failed":  # if nothing is stored, the next command tries it again
            self._over[cell.name] = cell
        return cell

    def _warm_up(self, contender: Contender, cell: Cell) -> None:
        """What the first training of a process loads and allocates once is no cost of its model."""
        if self._is_warm or contender.new is None:
            return
        self._is_warm = True
        changes = [f"{key}={value}" for key, value in cell.values.items()]
        recipe = contender.new.recipe(changes)
        try:
            rehearse(recipe, build.corpus(recipe), self.device)
        except Stopped:
            raise
        except RegardError:
            pass  # the training itself will say what is wrong

    def _evaluate(self, cell: Cell) -> Cell:
        """Untimed: the answers of a run that is trained."""
        run = Path(cell.run)
        try:
            bot = bundle.load(run, device=self.device)
            corpus = build.corpus(bot.recipe, bot.tokenizer)
            part = deciding_part(bot, corpus, self.plan, self.split)
            items = observe(bot, part, corpus.train, at_most=self.plan.limit)
        except DivergedError as problem:
            return replace(cell, state="failed", why=str(problem), weights=_weights(run))
        progress = checkpoint.recorded(run)
        return replace(
            cell,
            state="done",
            weights=_weights(run),
            train_data=text_key(corpus.train),
            tokenizer=_digest(dumps(bot.tokenizer)),
            has_unknown_words=has_unknown_words(part),
            longest=int(bot.task.lengths(corpus.train)[0].max()),
            steps=0 if progress is None else progress.step,
            tokens=0 if progress is None else progress.tokens,
            seconds=0.0 if progress is None else progress.seconds,
            work=work_of(bot.recipe, corpus),
            baselines=bot.task.baselines([list(item.references) for item in items]),
            items=tuple(items),
        )


def deciding_part(bot: bundle.Bundle, corpus: Corpus, plan: Plan, split: str) -> Split:
    """The examples on which a run is compared, with the plan's changes of the data."""
    if plan.test_set:
        corpus = build.with_tokenizer(bot.recipe.override(plan.test_set), bot.tokenizer)
    return getattr(corpus, split)


def _weights(run: Path) -> str:
    """The SHA-256 of the weights of a run, as its manifest has it; empty if there are none."""
    try:
        return disk.manifest(run).get(bundle.WEIGHTS, [""])[-1]
    except RegardError:
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
