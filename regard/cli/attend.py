"""regard attend: a page that shows where an answer attended."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.devices import Device
from regard.cli.inference import inference_threads
from regard.cli.paths import filled_path
from regard.cli.prompts import (
    History,
    Run,
    check_one_input,
    check_reads_history,
    with_history,
)
from regard.cli.searching import Changes, Greedy, Seed, options
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.pages.attend import Subject

DEFAULT = Path("attend.html")


def attend(
    run: Run,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT [OTHER]",
            help="A sentence, or the file of a picture or sound; two are shown side by side.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="FILE.html",
            help="Write the page here. Default: attend.html.",
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path, metavar="FILE.png", help="Draw the map as PNG, without a browser."
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path, metavar="FILE.svg", help="Draw the map as SVG, without a browser."
        ),
    ] = None,
    effect: Annotated[
        bool | None,
        typer.Option(
            "--effect/--no-effect",
            help="Hide each place, one at a time, and show beside its weight how much less likely "
            "each token of the answer becomes. Default: where it is quick, which is up to 20,000 "
            "tokens x places, and always for a model without attention.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="RUN",
            help="Another run or checkpoint, given the same input; shown side by side.",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="N,N-N", help="The layers of the page, from 0. Default: all that fit."
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(min=0, help="The layer that --png and --svg draw. Default: the last one."),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(min=0, help="The head that --png and --svg draw. Default: the mean of all."),
    ] = None,
    alternatives: Annotated[
        int,
        typer.Option(min=0, max=100, metavar="K", help="Show the K likeliest tokens at each step."),
    ] = 5,
    history: History = None,
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Write a page that shows where each token of an answer attended, by layer and head.

    \b
    The page is one HTML file that needs no network: text, the spectrogram of a
    sound (play it) or a picture (point at a word), the likeliest tokens at each
    step, the beam, and statistics of each head. The weights are those of the
    pass that produced the answer. Beside them are effects: how much less likely
    the answer becomes when a place of the input is hidden.

    \b
    regard attend runs/demo "Are you a robot?"
    regard attend runs/translate-alignment "ninety-one" --out page.html
    regard attend runs/demo "Do you eat?" "Do you like music?" --set num_beams=4
    regard attend runs/demo "Hello" --against runs/demo/checkpoints/step-000400
    regard attend runs/caption-attention dog.jpg --png dog-attention.png
    regard attend runs/speech-attention hello.wav --svg hello.svg --layer 0
    """
    _check_inputs(inputs, against, history)
    drawing = _Drawing(out, png, svg, _layer_numbers(layers), layer, head)
    drawing.claim()
    question = _Question(inputs, history, effect, alternatives, changes, greedy, seed)
    command = question.command(run, against)
    with Waiting(f"loading {run}") as loading, inference_threads(1):
        from regard.bundle import load

        runs = [run] if against is None else [run, against]
        bundles = [load(path, device=device) for path in runs]
        loading.end()
        subjects = []
        for path, bundle in zip(runs, bundles, strict=True):
            prefix = "" if against is None else f"{path}: "
            for subject in question.ask(bundle, prefix, command):
                print(f"{printable(subject.name)}  ->  {printable(subject.answer.text)}")
                subjects.append(subject)
        sys.stdout.flush()
        with Waiting("drawing"):
            drawing.write(subjects, bundles[0], run, command)
    for path in drawing.files:
        print(f"wrote {printable(path)}", file=sys.stderr)


def _check_inputs(inputs: list[str], against: Path | None, history: list[str] | None) -> None:
    if len(inputs) > 2:
        raise InputError(
            "a page has one input, or two side by side",
            where="attend",
            got=f"{len(inputs)} inputs",
            hint="put a sentence in quotes",
        )
    if against is not None and len(inputs) > 1:
        raise InputError(
            "compare two inputs or two models, not both", where="--against", got="2 inputs"
        )
    check_one_input(history, len(inputs))


def _layer_numbers(layers: str | None) -> list[int] | None:
    """The numbers of a list of layers.

    >>> _layer_numbers("0,2-4")
    [0, 2, 3, 4]
    """
    if layers is None:
        return None
    numbers: list[int] = []
    for piece in layers.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", piece)
        if match is None:
            raise InputError(
                "not a list of layers", where="--layers", got=layers, hint="as in 0,2-4"
            )
        first = int(match[1])
        numbers += range(first, int(match[2] or first) + 1)
    return numbers


@dataclass(frozen=True)
class _Question:
    """What is asked, and how: the options that decide the answers of a page."""

    inputs: list[str]
    history: list[str] | None
    effect: bool | None
    alternatives: int
    changes: list[str] | None
    greedy: bool
    seed: int | None

    def ask(self, bundle: Bundle, prefix: str, command: str) -> Iterator[Subject]:
        """The answer to each input, under its name with a prefix."""
        from regard.pages.attend import ask

        check_reads_history(bundle, self.history)
        how = options(bundle, self.changes, self.greedy, self.seed)
        for text in self.inputs:
            value = with_history(text, self.history)
            with Waiting("answering"):
                subject = ask(
                    bundle,
                    value,
                    how,
                    name=f"{prefix}{_name(bundle, value)}",
                    alternatives=self.alternatives,
                    effect=self.effect,
                    effect_command=f"{command.removesuffix(' --no-effect')} --effect",
                )
            yield subject

    def command(self, run: Path, against: Path | None) -> str:
        """The command that makes the page again, as text of the page."""
        words = ["regard", "attend", str(run), *self.inputs]
        if against is not None:
            words += ["--against", str(against)]
        for name, values in (("--history", self.history), ("--set", self.changes)):
            for value in values or ():
                words += [name, value]
        if self.greedy:
            words.append("--greedy")
        if self.seed is not None:
            words += ["--seed", str(self.seed)]
        if self.effect is not None:
            words.append("--effect" if self.effect else "--no-effect")
        return shlex.join(words)


def _name(bundle: Bundle, value: Any) -> str:
    """An input as the page names it: of a file, the name without its folders."""
    from regard.pages.attend import name_of

    return name_of(bundle, value) if bundle.recipe.source.kind == "tokens" else Path(value).name


@dataclass(frozen=True)
class _Drawing:
    """The files to write, and what is drawn in them."""

    out: Path | None
    png: Path | None
    svg: Path | None
    layers: list[int] | None
    layer: int | None
    head: int | None

    @property
    def page(self) -> Path | None:
        """The file of the page; without any file, its default."""
        return DEFAULT if self.out is self.png is self.svg is None else self.out

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.page, self.png, self.svg) if path is not None]

    def claim(self) -> None:
        """Refuse files with another ending, and those that regard did not write."""
        from regard.disk import claim_output

        for option, path, endings in (
            ("--out", self.out, (".html", ".htm")),
            ("--png", self.png, (".png",)),
            ("--svg", self.svg, (".svg",)),
        ):
            if path is not None and path.suffix.lower() not in endings:
                raise InputError(
                    f"the file must end in {endings[0]}", where=option, got=printable(path)
                )
        for path in self.files:
            claim_output(path)

    def write(self, subjects: list[Subject], bundle: Bundle, run: Path, command: str) -> None:
        from regard.pages.attend import attention_page

        if self.page is not None:
            attention_page(
                subjects,
                lead=bundle.recipe.summary,
                facts=(("run", str(run)), ("task", bundle.recipe.task)),
                layers=self.layers,
                command=command,
            ).save(self.page)
        if self.png is not None or self.svg is not None:
            self._write_figures(subjects)

    def _write_figures(self, subjects: list[Subject]) -> None:
        from regard.pages.attend import subject_view
        from regard.pages.figure import attention_figure, write_figure

        views = [subject_view(subject, self.layers) for subject in subjects]
        titles = [f"{subject.name} → {subject.answer.text}" for subject in subjects]
        figure = attention_figure(views, titles=titles, layer=self.layer, head=self.head)
        for path in (self.png, self.svg):
            if path is not None:
                write_figure(path, figure)
