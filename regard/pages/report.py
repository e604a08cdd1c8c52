"""report.html of a run: what was trained, how good it is, and what to type next.

    page = report("runs/demo")              asks the model: intervals, errors, attention
    Draft(run, recipe, corpus).page(…)      of a run under way, from what is known already

`Draft` is written at every validation, so it must cost little: what does not change is made once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from regard import build, bundle, checkpoint, metrics, sessions
from regard.budget.closed_form.parts import Budget
from regard.bundle import Bundle
from regard.checkpoint import Progress
from regard.data.corpus import Corpus
from regard.errors import InputError, RegardError
from regard.evaluate import Evaluation
from regard.pages import findings, run_sections
from regard.pages.findings import Findings
from regard.pages.run_record import (
    RunRecord,
    chosen_score,
    interval_of,
    read_run,
    record_of,
    scores_of,
)
from regard.pages.shell import Page, Section, Table, Turns, cut
from regard.recipe import Recipe
from regard.sessions import Session
from regard.tasks.sources import PictureSource

FILE = "report.html"
REFRESH = 30  # seconds after which the open page of a run under way is loaded again
LOGGER = logging.getLogger("regard")

KINDS = {
    "chat": "a chatbot",
    "translate": "a translator",
    "classify": "a classifier",
    "speech": "a speech recogniser",
    "caption": "a model that describes pictures",
    "blank": "a model that fills in missing words",
}
HEADLINES = {  # the scores that people ask for first
    "chat": ("perplexity", "hits_at_1"),
    "translate": ("bleu", "exact"),
    "classify": ("accuracy",),
    "speech": ("cer", "wer"),
    "caption": ("bleu_4",),
    "blank": ("accuracy", "perplexity"),
}
TEST_ONCE = (
    "The {count:,} test examples are not scored here. Use them once, at the end: if the model "
    "is changed after its test score was seen, that score is too optimistic. When the model is "
    "final: {command}"
)
FITTED = (
    "No examples are held out, so these are scores on training examples. They show how well the "
    "model memorised them, not how well it answers new inputs, and have no intervals."
)
LATER = (
    "These scores are of a validation during training. Errors worth looking at and attention are "
    "in the page that this command writes: {command}"
)


@dataclass(frozen=True)
class Fixed:
    """What is the same on every page of a run.

    sizes     examples of each split of the data; {} if it cannot be read
    costs     the budget, or why there is none
    sections  data, recipe and budget
    """

    sizes: dict[str, int]
    costs: Budget | RegardError
    sections: tuple[Section, ...]


def _fixed(
    recipe: Recipe,
    history: Sequence[Session],
    costs: Budget | RegardError,
    data: Section,
    sizes: dict[str, int],
) -> Fixed:
    sections = (
        data,
        run_sections.differences(recipe, history),
        run_sections.whole_recipe(recipe),
        run_sections.budget(costs),
    )
    return Fixed(sizes, costs, sections)


def _split_sizes(corpus: Corpus) -> dict[str, int]:
    return {name: len(getattr(corpus, name)) for name in run_sections.SPLITS}


class Draft:
    """The report of a run under way, without asking its model."""

    def __init__(self, run: Path, recipe: Recipe, corpus: Corpus):
        self.run = run
        self.recipe = recipe
        self.corpus = corpus
        history = sessions.read(run)
        costs = run_sections.budget_of(recipe, corpus.tokenizer)
        data = run_sections.data(recipe, corpus)
        self.fixed = _fixed(recipe, history, costs, data, _split_sizes(corpus))

    def page(self, progress: Progress, state: str) -> Page:
        """The page of a run that stands at `progress`."""
        record = record_of(self.run, self.recipe, self.corpus.tokenizer, progress, state)
        return _page(record, self.fixed, None)


def report(
    run: str | os.PathLike[str],
    *,
    test: bool = False,
    limit: int | None = None,
    device: str = "auto",
) -> Page:
    """The report of a run as a page; `page.save(path)` writes it.

    run     the run's folder; the run may be under way
    test    also score the test examples, which should be done once, when a model is final
    limit   answer at most so many inputs of each split; by default as many as a validation does
    device  "auto" (a GPU if there is one), "cpu", "cuda" or "mps"

    >>> regard.report("runs/demo").save("runs/demo/report.html")  # doctest: +SKIP
    """
    if not isinstance(run, str | os.PathLike):
        raise InputError(
            "needs the path of a run's folder",
            where="report",
            got=type(run).__name__,
            hint='as in regard.report("runs/demo")',
        )
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise InputError("must be a whole number >= 1", where="limit", got=limit)
    record = read_run(Path(run))
    model = _model(record, device)
    sizes: dict[str, int] = {}
    results = None
    try:
        corpus = build.corpus(record.recipe, record.tokenizer)
    except RegardError as problem:
        data = run_sections.no_data(record.recipe, problem)
    else:
        data = run_sections.data(record.recipe, corpus)
        sizes = _split_sizes(corpus)
        _warn_of_other_data(record, corpus)
        if test and not len(corpus.test):
            raise InputError(
                "this run has no test examples", where=record.run, hint="leave --test out"
            )
        if model is not None:
            results = findings.find(model, corpus, test=test, limit=limit)
    costs = run_sections.budget_of(record.recipe, record.tokenizer)
    fixed = _fixed(record.recipe, record.sessions, costs, data, sizes)
    return _page(record, fixed, results, model)


def _model(record: RunRecord, device: str) -> Bundle | None:
    """The model of a run; None if it has no weights yet."""
    has_weights = (record.run / bundle.WEIGHTS).exists()
    if not has_weights and checkpoint.newest(record.run) is None:
        return None
    return bundle.load(record.run, device=device)


def _warn_of_other_data(record: RunRecord, corpus: Corpus) -> None:
    trained_on = checkpoint.recorded_data(record.run)
    if trained_on is not None and trained_on != corpus.fingerprint:
        LOGGER.warning(
            "%s: its data is not what it was trained on; the held-out examples may be others, and "
            "some may have been trained on",
            record.run,
        )


# -- the page --


def _page(
    record: RunRecord, fixed: Fixed, results: Findings | None, model: Bundle | None = None
) -> Page:
    sections = [_scores(record, fixed.sizes, results)]
    prompt = record.samples[0][0] if record.samples else None
    if results is not None:
        prompt = results.first_prompt
        sections.append(results.samples)
    elif record.samples:
        sections.append(_last_samples(record))
    sections.append(run_sections.commands(record, prompt))
    sections.append(run_sections.curves(record))
    if results is not None:
        sections += results.errors
        sections += _attention(record, results, model, prompt)
    else:
        sections += _logged_confusions(record)
    sections += [*fixed.sections, run_sections.environment(record)]
    return Page(
        title=f"{record.name}: {KINDS[record.recipe.task]}",
        kind="report",
        lead=_lead(record, fixed.sizes),
        facts=tuple(_facts(record, fixed.costs, results, model)),
        sections=tuple(sections),
        refresh=REFRESH if record.state == "under way" else 0,
    )


def _lead(record: RunRecord, sizes: dict[str, int]) -> str:
    """What was trained, in a sentence, and where it stands."""
    summary = record.recipe.summary or f"A model for the task {record.recipe.task}."
    examples = f" on {sizes['train']:,} examples" if sizes else ""
    steps = f"{record.step:,} steps" if record.step != 1 else "1 step"
    trained = f"Trained{examples} for {steps} in {clock(record.seconds)}."
    kept = record.kept
    if kept is not None:
        trained += f" Its weights are those of step {kept['step']:,}."
    again = f"regard train --resume {quote(str(record.run))}"
    state = {
        "under way": " Training is under way; this page is updated as it goes on.",
        "stopped": f" Training was stopped before its end; continue with: {again}",
    }.get(record.state, "")
    return f"{summary} {trained}{state}"


def _facts(
    record: RunRecord,
    costs: Budget | RegardError,
    results: Findings | None,
    model: Bundle | None,
) -> Iterator[tuple[str, str]]:
    evaluation = None if results is None else results.evaluation
    line = record.kept or (record.validations[-1] if record.validations else None)
    scores = {} if line is None else scores_of(line)
    if evaluation is not None:
        scores = evaluation.scores
    names = dict.fromkeys((*HEADLINES[record.recipe.task], chosen_score(record.recipe, line)))
    for name in names:
        if name not in scores:
            continue
        value = f"{scores[name]:.4g}"
        bounds = None if evaluation is None else evaluation.intervals.get(name)
        if bounds is not None:
            value += f" (95 %: {bounds[0]:.4g} to {bounds[1]:.4g})"
        part = "" if record.is_held_out else " on training examples"
        yield f"{name}{part}", value
    yield "steps", f"{record.step:,}"
    yield "time", clock(record.seconds)
    if model is not None:
        yield "parameters", f"{model.model.parameter_count:,}"
    elif isinstance(costs, Budget):
        yield "parameters", f"{costs.parameters:,}"
    for name in ("encoder", "decoder"):
        yield name, _sizes(getattr(record.recipe, name))
    if record.sessions:
        yield "trained", record.sessions[-1].began.partition("T")[0]


def _sizes(section: object) -> str:
    """The kind of an encoder or decoder, and its sizes."""
    words = [str(getattr(section, "cell", "") or getattr(section, "kind", ""))]
    layers = getattr(section, "layers", None)
    width = getattr(section, "width", None)
    attention = getattr(section, "attention", None)
    if layers:
        words.append(f"{layers} layer{'s' if layers != 1 else ''}")
    if width:
        words.append(f"width {width}")
    if isinstance(attention, str):
        words.append(f"{attention} attention" if attention != "none" else "no attention")
    return ", ".join(words)


def clock(seconds: float) -> str:
    """A time in words.

    >>> clock(5.2), clock(75), clock(4000)
    ('5 s', '1 min 15 s', '1 h 6 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


# -- scores --


def _scores(record: RunRecord, sizes: dict[str, int], results: Findings | None) -> Section:
    paragraphs: list[str] = []
    tables: list[Table] = []
    run = quote(str(record.run))
    evaluation = None if results is None else results.evaluation
    if evaluation is not None:
        assert results is not None
        tables.append(findings.score_table(evaluation, "Validation"))
        paragraphs.append(_how_scored(evaluation, results.is_greedy))
        if results.test is not None:
            tables.append(findings.score_table(results.test, "Test"))
            paragraphs.append(f"The test split has {results.test.examples:,} examples.")
    elif record.validations:
        line = record.kept or record.validations[-1]
        tables.append(_logged_scores(line))
        if not record.is_held_out:
            paragraphs.append(FITTED)
        elif results is None:
            paragraphs.append(LATER.format(command=f"regard report {run}"))
    else:
        paragraphs.append("There are no scores yet: the first validation is still to come.")
    if sizes.get("test") and (results is None or results.test is None):
        command = f"regard report {run} --test"
        paragraphs.append(TEST_ONCE.format(count=sizes["test"], command=command))
    return Section("Scores", id="scores", paragraphs=tuple(paragraphs), tables=tuple(tables))


def _how_scored(evaluation: Evaluation, is_greedy: bool) -> str:
    text = f"On {evaluation.examples:,} validation examples, which it was not trained on"
    if evaluation.prompts < evaluation.examples:
        text += f"; its answers to {evaluation.prompts:,} inputs are scored"
    if is_greedy:
        text += ", by greedy search"
    return (
        f"{text}. If other examples of this kind were drawn, about 95 % of such intervals would "
        "contain the score on all of them. The validation examples also chose the weights, so the "
        "scores may be slightly optimistic."
    )


def _logged_scores(line: dict[str, object]) -> Table:
    rows = []
    for name, value in scores_of(line).items():
        interval = findings.interval_text(interval_of(line, name))
        meaning = findings.MEANINGS.get(name)
        rows.append((name, findings.number_text(value), interval, metrics.better(name), meaning))
    columns = ("score", "value", "95 % interval", "better", "meaning")
    if not any(row[2] for row in rows):  # of a run without held-out examples, or of an older one
        rows = [(*row[:2], *row[3:]) for row in rows]
        columns = (*columns[:2], *columns[3:])
    return Table(columns, tuple(rows), f"Step {line['step']:,}", wraps=True)


def _last_samples(record: RunRecord) -> Section:
    rows = tuple((Turns(cut(prompt)), cut(text)) for prompt, text in record.samples)
    table = Table(("input", "answer"), rows, "Of the last validation", wraps=True)
    return Section("Sample answers", id="samples", tables=(table,))


def _logged_confusions(record: RunRecord) -> list[Section]:
    line = record.kept
    section = None if line is None else findings.confusion(line)
    return [] if section is None else [section]


def _attention(
    record: RunRecord, results: Findings, model: Bundle | None, prompt: str | None
) -> list[Section]:
    command = run_sections.attend_command(record, prompt)
    is_picture = model is not None and isinstance(model.task.source, PictureSource)
    section = findings.attention(results.maps, is_picture, command)
    return [] if section is None else [section]
