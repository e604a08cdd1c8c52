"""regard attend: a page that shows where an answer attended."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.devices import Device
from regard.cli.inference import inference_threads
from regard.cli.paths import filled_path
from regard.cli.searching import Changes, Greedy, Seed, options
from regard.cli.waiting import Waiting
from regard.errors import InputError, printable

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.pages.attend import Subject

DEFAULT = Path("attend.html")


def attend(
    run: Annotated[
        Path,
        typer.Argument(parser=filled_path, metavar="RUN", help="A run's folder, or a checkpoint."),
    ],
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
            parser=filled_path, metavar="FILE.png", help="Draw one map as PNG, without a browser."
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path, metavar="FILE.svg", help="Draw one map as SVG, without a browser."
        ),
    ] = None,
    effect: Annotated[
        bool,
        typer.Option(
            "--effect",
            help="Also hide each place, one at a time, and show how much less likely each token "
            "of the answer becomes. Always done for a model without attention.",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="RUN",
            help="Another run or checkpoint, asked the same; shown side by side.",
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
        typer.Option(min=0, help="The head that they draw. Default: the mean of all."),
    ] = None,
    alternatives: Annotated[
        int,
        typer.Option(min=0, max=100, metavar="K", help="Show the K likeliest tokens at each step."),
    ] = 5,
    history: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TURN",
            help="A turn before the input, for a chat; repeat it for each turn, oldest first.",
        ),
    ] = None,
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Write a page that shows where each token of an answer attended, by layer and head.

    \b
    The page is one HTML file without network: text, the spectrogram of a sound
    (play it) or a picture (point at a word), the likeliest tokens at each step,
    the beam, and numbers of each head. Weights are those of the pass that made
    the answer. --effect shows what the answer depends on beside them.

    \b
    regard attend runs/demo "Are you a robot?"
    regard attend runs/translate-alignment "ninety-one" --effect --out page.html
    regard attend runs/demo "Do you eat?" "Do you like music?" --set num_beams=4
    regard attend runs/demo "Hello" --against runs/demo/checkpoints/step-000400
    regard attend runs/caption-attention dog.jpg --png dog-attention.png
    regard attend runs/speech-attention hello.wav --svg hello.svg --layer 0
    """
    _check_inputs(inputs, against, history)
    chosen = _layer_numbers(layers)
    if out is None and png is None and svg is None:
        out = DEFAULT
    files = [path for path in (out, png, svg) if path is not None]
    command = _command(
        run,
        inputs,
        effect=effect,
        against=against,
        history=history,
        changes=changes,
        greedy=greedy,
        seed=seed,
    )
    _check_files(out, png, svg)

    from regard.disk import claim_output

    for path in files:
        claim_output(path)
    with Waiting(f"loading {run}") as loading, inference_threads(1):
        from regard.bundle import load

        bundles = [load(run, device=device)]
        if against is not None:
            bundles.append(load(against, device=device))
        loading.end()
        subjects = []
        runs = [run] if against is None else [run, against]
        for place, bundle in zip(runs, bundles, strict=True):
            for text in inputs:
                name = _name(bundle, text)
                if against is not None:
                    name = f"{place}: {name}"
                with Waiting("answering"):
                    subject = _subject(
                        bundle,
                        text,
                        history,
                        name,
                        alternatives,
                        effect,
                        changes,
                        greedy,
                        seed,
                        f"{command} --effect",
                    )
                print(f"{printable(name)}  ->  {printable(subject.answer.text)}")
                subjects.append(subject)
        sys.stdout.flush()
        with Waiting("drawing"):
            _write(subjects, bundles[0], run, chosen, out, png, svg, layer, head, command)
    for path in files:
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
    if history and len(inputs) > 1:
        raise InputError("a history is of one input", where="--history", got="2 inputs")


def _check_files(out: Path | None, png: Path | None, svg: Path | None) -> None:
    for option, path, endings in (
        ("--out", out, (".html", ".htm")),
        ("--png", png, (".png",)),
        ("--svg", svg, (".svg",)),
    ):
        if path is not None and path.suffix.lower() not in endings:
            raise InputError(
                f"the file must end in {endings[0]}", where=option, got=printable(path)
            )


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


def _subject(
    bundle: Bundle,
    text: str,
    history: list[str] | None,
    name: str,
    alternatives: int,
    effect: bool,
    changes: list[str] | None,
    greedy: bool,
    seed: int | None,
    effect_hint: str,
) -> Subject:
    from regard.pages.attend import ask

    value: Any = text
    if history:
        if bundle.recipe.task != "chat":
            raise InputError(
                "a history is for chats", where="--history", got=f"a model for {bundle.recipe.task}"
            )
        value = [*history, text]
    return ask(
        bundle,
        value,
        options(bundle, changes, greedy, seed),
        name=name,
        alternatives=alternatives,
        effect=effect,
        effect_hint=effect_hint,
    )


def _name(bundle: Bundle, text: str) -> str:
    """An input as the page names it: of a file, the name without its folders."""
    return text if bundle.recipe.source.kind == "tokens" else Path(text).name


def _command(
    run: Path,
    inputs: list[str],
    *,
    effect: bool,
    against: Path | None,
    history: list[str] | None,
    changes: list[str] | None,
    greedy: bool,
    seed: int | None,
) -> str:
    """The command that makes the page again, as text of the page."""
    words = ["regard", "attend", str(run), *inputs]
    if against is not None:
        words += ["--against", str(against)]
    for name, values in (("--history", history), ("--set", changes)):
        for value in values or ():
            words += [name, value]
    if greedy:
        words.append("--greedy")
    if seed is not None:
        words += ["--seed", str(seed)]
    if effect:
        words.append("--effect")
    return shlex.join(words)


def _write(
    subjects: list[Subject],
    bundle: Bundle,
    run: Path,
    layers: list[int] | None,
    out: Path | None,
    png: Path | None,
    svg: Path | None,
    layer: int | None,
    head: int | None,
    command: str,
) -> None:
    from regard.pages.attend import attention_page, subject_view

    if out is not None:
        facts = (("run", str(run)), ("task", bundle.recipe.task))
        attention_page(
            subjects, lead=bundle.recipe.summary, facts=facts, layers=layers, command=command
        ).save(out)
    if png is None and svg is None:
        return
    from regard.pages.figure import attention_figure, write_figure

    view, arrays = subject_view(subjects[0], layers)
    title = f"{subjects[0].name} → {subjects[0].answer.text}"
    figure = attention_figure(view, arrays, title=title, layer=layer, head=head)
    for path in (png, svg):
        if path is not None:
            write_figure(path, figure)
