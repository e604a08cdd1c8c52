"""What the terminal shows of training: the facts, a progress bar or plain lines, validations."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.cli.waiting import Waiting
from regard.errors import printable, turns_in_line
from regard.train.report import SilentReporter

if TYPE_CHECKING:
    from rich.console import Console

    from regard.checkpoint import Progress
    from regard.train import Facts

DECODER_SIZES = (
    "layers",
    "width",
    "attention",
    "heads",
    "head_width",
    "ffn_width",
    "reads",
    "hidden",
)
QUIET_SECONDS = 10  # between two lines when there is no terminal


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _left(progress: Progress, done: float) -> str:
    return clock(progress.seconds / done * (1 - done)) if done > 0.01 else "-:--"


class _Shown(SilentReporter):
    """What a bar and plain lines have in common."""

    def __init__(self, console: Console):
        self.console = console
        self.reading = Waiting("reading data")
        self.scores_are_finite = True  # those of the last validation

    def began(self, facts: Facts) -> None:
        from regard.build import columns_taken

        super().began(facts)
        self.reading.end()
        recipe = facts.recipe
        columns = columns_taken(recipe.data)
        counts = ", ".join(f"{count:,} {name}" for name, count in facts.examples.items())
        self.console.print(
            f"data      {printable(facts.data)}\n"
            f"{f'          {printable(columns)}{chr(10)}' if columns else ''}"
            f"          {counts}; "
            f"vocabulary {facts.vocabulary:,} ({recipe.tokenizer.kind})\n"
            f"encoder   {_sizes(recipe.encoder, ('layers', 'width'))}\n"
            f"decoder   {_sizes(recipe.decoder, DECODER_SIZES)}\n"
            f"parameters {sum(facts.parameters.values()):,} "
            f"({', '.join(f'{name} {count:,}' for name, count in facts.parameters.items())})",
            soft_wrap=True,
            markup=False,
        )
        if facts.device != "cpu" or recipe.train.precision != "float32":
            self.console.print(f"device    {facts.device}, {recipe.train.precision}")
        if facts.resumed_at:
            self.noted(f"resuming at step {facts.resumed_at:,}")

    def validated(self, record: dict[str, Any], samples: Sequence[tuple[str, str]]) -> None:
        from regard.plot import JUDGED_ON
        from regard.train.report import main_scores

        numbers = {name: value for name, value in record.items() if isinstance(value, float)}
        self.scores_are_finite = all(map(math.isfinite, numbers.values()))
        main = main_scores(record)
        scores = ", ".join(f"{name} {value:.4g}" for name, value in main.items())
        self.console.print(
            f"step {record['step']:,}: {JUDGED_ON[record['kind']]} {scores}"
            f"{'  (best so far)' if record['best'] else ''}",
            soft_wrap=True,
            markup=False,
        )
        is_chat = self.facts.recipe.task == "chat"
        shown = turns_in_line if is_chat else printable  # a line break in a file's name is none
        for prompt, answer in samples:
            self.console.print(
                f"    {shown(prompt)}  ->  {printable(answer)}",
                soft_wrap=True,
                markup=False,
            )

    def noted(self, message: str) -> None:
        self.reading.end()
        self.console.print(printable(message), soft_wrap=True, markup=False)


class Lines(_Shown):
    """Plain lines, now and then."""

    def __enter__(self) -> Lines:
        self.last = time.monotonic()
        self.reading.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.reading.end()

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        if time.monotonic() - self.last >= QUIET_SECONDS:
            self.last = time.monotonic()
            self.console.print(
                f"step {progress.step:,}  {done:4.0%}  {_facts(loss, speed)}  "
                f"left {_left(progress, done)}",
                soft_wrap=True,
                markup=False,
            )
            sys.stdout.flush()


class Bar(_Shown):
    """A progress bar with loss, perplexity, speed and the time left."""

    def __enter__(self) -> Bar:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Live

        self.live = Live(
            TextColumn("step {task.fields[step]:,}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[facts]}  left {task.fields[left]}"),
            console=self.console,
        )
        self.bar = self.live.add_task("", total=1.0, step=0, facts="", left="-:--")
        self.reading.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.reading.end()
        if self.live.live.is_started:
            self.live.stop()

    def began(self, facts: Facts) -> None:
        super().began(facts)
        self.live.start()  # not before: there is nothing to show while the data is read

    def stepped(self, progress: Progress, loss: float, speed: float, done: float) -> None:
        self.live.update(
            self.bar,
            completed=done,
            step=progress.step,
            facts=_facts(loss, speed),
            left=_left(progress, done),
        )


def _facts(loss: float, speed: float) -> str:
    facts = []
    if not math.isnan(loss):
        facts += [f"loss {loss:.3f}", f"perplexity {math.exp(min(loss, 20)):.1f}"]
    if not math.isnan(speed):
        facts.append(f"{speed:,.0f} tokens/s")
    return "  ".join(facts)


def _sizes(section: Any, names: Sequence[str]) -> str:
    """The kind of a section, and those of the named sizes it has."""
    sizes = [section.kind]
    for name in names:
        value = getattr(section, name, ())
        if value != ():
            sizes.append(f"{value} layers" if name == "layers" else f"{name} {value}")
    return ", ".join(sizes)
