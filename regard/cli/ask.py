"""regard ask: answer each input."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import streams
from regard.cli.attention_map import attention_text
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
    from regard.search import Options
    from regard.values import Answer

ROWS = 64  # inputs answered together


def ask(
    run: Run,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT", help="Sentences, or files of pictures or sounds. Default: stdin."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            help="A file of inputs, one per line; for a chat also conversations in JSON: "
            '{"turns": […]}, {"messages": […]} or a list of turns. Prints JSON lines.',
        ),
    ] = None,
    history: History = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, with scores and tokens.")
    ] = False,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Print JSON lines, with the attention weights of each token."
        ),
    ] = False,
    alternatives: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            metavar="K",
            help="Print JSON lines, with the K likeliest tokens at each step.",
        ),
    ] = 0,
    best: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            metavar="N",
            help="The N best answers of a beam search, ranked by log p / length^length_penalty; "
            "mmi_weight and idf_weight add to it. Labels: by probability.",
        ),
    ] = None,
    attend: Annotated[
        bool,
        typer.Option("--attend", help="Print below each answer where each of its tokens attended."),
    ] = False,
    maps: Annotated[
        Path | None,
        typer.Option(
            parser=filled_path,
            metavar="FILE.png",
            help="Draw the picture and, for each word, its attention weights, to this file.",
        ),
    ] = None,
    changes: Changes = None,
    greedy: Greedy = False,
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Print the answers of a trained model to sentences, pictures or sounds.

    \b
    An input is a sentence, a sentence with ___ for a missing word, or the file
    of a picture or sound, depending on the model's task.
    The section "search" of the model's recipe decides how answers are found
    (beam search or sampling; greedy search by default). --set, --best and
    --greedy change it.

    \b
    regard ask runs/demo "What are you?" "Tell me a joke"
    regard ask runs/demo "How are you?" --history "Hi!" --history "Hello."
    regard ask runs/demo --file prompts.txt > answers.jsonl
    regard ask runs/image-pool seven.png
    regard ask runs/speech-attention hello.wav
    regard ask runs/caption-attention dog.jpg --best 3 --maps maps.png
    regard ask runs/blank-rnn "the ___ is on the table"
    echo "Do you like music?" | regard ask runs/demo --json
    regard ask runs/demo "Are you a robot?" --weights --alternatives 3
    regard ask runs/translate-alignment "ninety-one" --attend
    """
    if inputs and file:
        raise InputError("give inputs or --file, not both")
    if not inputs and not file and streams.typed().isatty():
        raise InputError("nothing to ask", hint='type a sentence: regard ask RUN "Hello"')
    check_one_input(
        history,
        len(inputs or ()),
        hint='for several conversations use --file, with {"turns": […]} in each line',
    )
    if file is not None and not file.is_file():
        raise InputError("no such file", where=file)
    if greedy and best is not None and best > 1:
        raise InputError(
            "a greedy search has one answer",
            where="--greedy",
            got=f"--best {best}",
            hint="leave one of them out",
        )

    from regard.disk import claim_output

    if maps is not None:
        _check_maps(maps, inputs)
        claim_output(maps)
    with Waiting(f"loading {run}") as loading, inference_threads(len(inputs) if inputs else None):
        from regard.bundle import load

        bundle = load(run, device=device)
        loading.end()
        if maps is not None:
            _check_has_maps(bundle)
        if attend and not bundle.attends():
            raise InputError("this model has no attention", where="--attend", got=printable(run))
        how = options(bundle, changes, greedy, seed, best=best)
        check_reads_history(bundle, history)
        _note_file_names(bundle, inputs or [])
        form = _Form(
            as_json=as_json or weights or alternatives > 0 or file is not None,
            weights=weights,
            alternatives=alternatives,
            are_labels=not bundle.task.answers_are_text,
            attend=attend,
        )
        if inputs:
            prompts = [_Prompt.of(text, history) for text in inputs]
        else:
            prompts = map(_read_line if bundle.recipe.task == "chat" else _Prompt.of, _lines(file))
        _ask(bundle, how, prompts, form, best=best, maps=maps, is_alone=len(inputs or ()) == 1)


@dataclass(frozen=True)
class _Prompt:
    """An input: its text as it is printed, what the model reads, and the turns before it."""

    text: str
    model_input: Any
    history: list[Any] | None = None

    @classmethod
    def of(cls, text: str, history: list[str] | None = None) -> _Prompt:
        return cls(text, with_history(text, history), history or None)


def _read_line(line: str) -> _Prompt:
    """A line of a file, which may be a conversation in JSON."""
    from regard.data.dialogues import turns_in
    from regard.data.messages import content_text

    if not line.startswith(("{", "[")):
        return _Prompt.of(line)
    try:
        turns = turns_in(json.loads(line))
    except (ValueError, RecursionError):
        turns = None
    if turns is None:
        return _Prompt.of(line)
    *history, last = turns or [None]
    text = last if isinstance(last, str) else None
    if isinstance(last, dict):
        text = content_text(last.get("content"))
    return _Prompt(line if text is None else text, turns, history)


@dataclass(frozen=True)
class _Form:
    """How answers are printed."""

    as_json: bool
    weights: bool
    alternatives: int
    are_labels: bool
    attend: bool


def _check_maps(maps: Path, inputs: list[str] | None) -> None:
    if maps.suffix.lower() != ".png":
        raise InputError(
            "the file of the maps must end in .png", where="--maps", got=printable(maps)
        )
    if len(inputs or ()) != 1:
        raise InputError(
            "maps are drawn of one picture", where="--maps", got=f"{len(inputs or ())} inputs"
        )


def _check_has_maps(bundle: Bundle) -> None:
    if bundle.model.frontend.grid is None:
        raise InputError("maps are of pictures, and this model reads none", where="--maps")
    if not bundle.attends():
        raise InputError("no maps: this model does not attend", where="--maps")


def _note_file_names(bundle: Bundle, inputs: list[str]) -> None:
    """Note on stderr which inputs are files, if the model reads text."""
    if bundle.recipe.source.kind != "tokens":
        return
    for prompt in inputs:
        if os.path.isfile(prompt):
            streams.tell(
                f"{printable(prompt)}: this model reads text; it was given the name of a file"
            )


def _ask(
    bundle: Bundle,
    how: Options,
    prompts: Iterable[_Prompt],
    form: _Form,
    *,
    best: int | None,
    maps: Path | None,
    is_alone: bool,
) -> None:
    """Print the answers to prompts; the error of one that `is_alone` is raised."""
    count = 0
    refused = 0
    for chunk in _chunks(prompts):
        with Waiting(f"answering {len(chunk)}" if len(chunk) > 1 else "answering"):
            results = _answers(bundle, chunk, how, form.alternatives)

        for prompt, result in zip(chunk, results, strict=True):
            count += 1
            if isinstance(result, InputError):
                refused += 1
                if is_alone:
                    raise result
                _print_refusal(prompt.text, result, form.as_json)
                continue
            answers = result[: best or (len(result) if form.are_labels else 1)]
            if form.as_json:
                print(json.dumps(_record(prompt, answers, form), ensure_ascii=False))
            elif form.are_labels:
                print(_label_line(prompt.text, answers))
            else:
                print(_text_lines(prompt.text, answers, how))
            if form.attend and not form.as_json:
                row = bundle.task.read_one(prompt.model_input)
                print(attention_text(bundle, row, answers[0]) + "\n")
            if maps is not None:
                _draw(bundle, prompt.text, answers[0], maps)
        sys.stdout.flush()
    if refused:
        raise InputError(
            "not all inputs have an answer", got=f"{refused:,} of {count:,} that cannot be read"
        )


def _answers(
    bundle: Bundle, prompts: list[_Prompt], how: Options, alternatives: int
) -> list[list[Answer] | InputError]:
    """For each prompt its answers, best first, or the error if it cannot be read."""
    rows = []
    problems = {}
    for i, prompt in enumerate(prompts):
        try:
            rows.append(bundle.task.read_one(prompt.model_input))
        except InputError as problem:
            problems[i] = problem
    answers = iter(bundle.answer_rows(rows, how, alternatives=alternatives))
    return [problems[i] if i in problems else next(answers) for i in range(len(prompts))]


def _print_refusal(prompt: str, problem: InputError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"input": prompt, "error": str(problem)}, ensure_ascii=False))
        return
    name = f'"{printable(prompt[:40])}": ' if problem.where is None else ""
    streams.tell(f"{name}{problem}")


def _record(prompt: _Prompt, answers: list[Answer], form: _Form) -> dict[str, Any]:
    """The answers to a prompt as JSON."""
    fields = answers[0].to_json(weights=form.weights)
    del fields["text"]
    record: dict[str, Any] = {"input": prompt.text}
    if prompt.history is not None:
        record["history"] = prompt.history
    record |= {**_scored(answers[0], form), **fields}
    if len(answers) > 1:
        record["best"] = [_ranked(answer, form) for answer in answers]
    return record


def _ranked(answer: Answer, form: _Form) -> dict[str, Any]:
    record = _scored(answer, form)
    return record if form.are_labels else record | {"rank": answer.rank}


def _scored(answer: Answer, form: _Form) -> dict[str, Any]:
    record: dict[str, Any] = {"answer": answer.text, "score": answer.score}
    if form.are_labels:
        record["probability"] = math.exp(answer.score)
    return record


def _label_line(prompt: str, answers: list[Answer]) -> str:
    if len(answers) == 1:
        return f"{printable(prompt)}  ->  {printable(answers[0].text)}"
    labels = [f"{printable(answer.text)} {math.exp(answer.score):.1%}" for answer in answers]
    return f"{printable(prompt)}  ->  {', '.join(labels)}"


def _text_lines(prompt: str, answers: list[Answer], how: Options) -> str:
    lines = [f"{printable(prompt)}  ->  {printable(answers[0].text)}"]
    if len(answers) > 1:
        lines.append(f"        rank     log p  answer ({_ranking(how)})")
        lines += [
            f"    {answer.rank:8.3f}  {answer.score:8.3f}  {printable(answer.text)}"
            for answer in answers
        ]
    return "\n".join(lines)


def _ranking(how: Options) -> str:
    """What answers are ranked by, as a formula. Its length is in tokens, end token included.

    >>> from regard.search import Options
    >>> _ranking(Options())
    'rank = log p / length, larger is better'
    >>> _ranking(Options(length_penalty=0.6, mmi_weight=0.5)).partition(", ")[0]
    'rank = (log p - 0.5 log p without the prompt) / length^0.6'
    >>> _ranking(Options(idf_weight=0.1))
    'rank = log p / length + 0.1 mean idf, larger is better, implausible answers last'
    >>> _ranking(Options(repetition_penalty=1.5))
    'rank = log p after repetition_penalty / length, larger is better'
    """
    formula = "log p" if how.repetition_penalty == 1 else "log p after repetition_penalty"
    if how.mmi_weight:
        formula = f"(log p - {how.mmi_weight:g} log p without the prompt)"
    if how.length_penalty:
        power = "" if how.length_penalty == 1 else f"^{how.length_penalty:g}"
        formula += f" / length{power}"
    if how.idf_weight:
        formula += f" + {how.idf_weight:g} mean idf"
    if how.retrieved and how.retrieval_weight:
        formula += f" + {how.retrieval_weight:g} similarity of the prompts"
    last = ", implausible answers last" if how.re_ranks else ""
    return f"rank = {formula}, larger is better{last}"


def _draw(bundle: Bundle, prompt: str, answer: Answer, path: Path) -> None:
    if not answer.tokens:
        raise InputError("no maps: the answer is empty", where="--maps")
    from regard.maps import draw

    draw(path, bundle.task.read_one(prompt), answer)
    print(f"maps in {printable(path)}", file=sys.stderr)


def _lines(file: Path | None) -> Iterator[str]:
    """The lines of the file or of stdin that are not blank."""
    if file is None:
        yield from (line.strip() for line in streams.typed() if line.strip())
        return
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        yield from (line.strip() for line in lines if line.strip())


def _chunks(prompts: Iterable[_Prompt]) -> Iterator[list[_Prompt]]:
    prompts = iter(prompts)
    while chunk := list(islice(prompts, ROWS)):
        yield chunk
