"""Sections of a report that need no model: curves, data, recipe, budget, environment, commands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import join, quote
from typing import Any

import numpy as np

from regard.budget.closed_form.parts import Budget, columns
from regard.build import columns_taken
from regard.bundle import recipe_budget
from regard.data.corpus import Corpus, Split
from regard.errors import RegardError
from regard.fields import shown
from regard.pages.charts import Series, line_chart
from regard.pages.run_record import RunRecord, base_name, interval_of
from regard.pages.shell import Section, Table, Turns, cut
from regard.pages.small_maps import Card, cards
from regard.plot import JUDGED_ON, score_panels
from regard.recipe import Captions, Pictures, Recipe, load
from regard.recipe.marked import leaves
from regard.sessions import Session
from regard.tasks.conversation import as_options
from regard.tokenizers import Tokenizer

POINTS = 200  # of a line: more cannot be told apart
EXAMPLES = 3  # of each split of the data
LENGTH = 64  # tokens of a source and of an answer of the budget, if the model takes so many
BATCH = 32
BANDS = 2  # lines of a chart: the intervals of more would cover each other
SPLITS = {"train": "training", "valid": "validation", "test": "test"}


# -- curves --


def curves(record: RunRecord) -> Section:
    """Loss, learning rate and scores over the steps."""
    figures = [_loss_chart(record), _rate_chart(record), *_score_charts(record)]
    figures = [figure for figure in figures if figure]
    text = "A circle marks the weights that were kept."
    if not figures:
        text = "Nothing is logged yet; the first line comes after some 20 steps."
    elif record.kept is None:
        text = "No weights are kept yet."
    if any('class="band"' in figure for figure in figures):
        text += " A band is the 95 % interval of each score."
    changes = [line for line in record.lines if line["kind"] == "changed"]
    notes = [
        f"The run continued with changes from step {line['step']:,}: "
        + ", ".join(str(change) for change in line.get("changes", []))
        for line in changes
    ]
    return Section("Curves", id="curves", paragraphs=(text, *notes), figures=tuple(figures))


def _loss_chart(record: RunRecord) -> str:
    points = [
        (line["step"], line["loss"])
        for line in record.lines
        if line["kind"] == "train" and "loss" in line
    ]
    series = [_series("training", _thinned(points), 7)] if points else []
    for number, (kind, name) in enumerate(JUDGED_ON.items()):
        judged = [
            line for line in record.validations if line["kind"] == kind and "perplexity" in line
        ]
        losses = [(line["step"], math.log(line["perplexity"])) for line in judged]
        if losses:
            line = _series(name, losses, number, record)
            bounds = [interval_of(line, "perplexity") for line in judged]
            series.append(_with_band(line, [_logarithms(interval) for interval in bounds]))
    return line_chart(series, x_label="step", y_label="loss (nats per token)", title="Loss")


def _rate_chart(record: RunRecord) -> str:
    points = [
        (line["step"], line["rate"])
        for line in record.lines
        if line["kind"] == "train" and isinstance(line.get("rate"), float)
    ]
    most = max((rate for _, rate in points), default=0.0)
    if most <= 0:
        return ""
    power = math.floor(math.log10(most))
    scaled = [(step, rate / 10**power) for step, rate in points]
    series = [_series("learning rate", _thinned(scaled), 0)]
    label = f"learning rate, in 1e{power}" if power else "learning rate"
    return line_chart(series, x_label="step", y_label=label, title="Learning rate")


def _score_charts(record: RunRecord) -> Iterator[str]:
    for title, names in score_panels(record.validations).items():
        series = []
        for name in names:
            judged = [line for line in record.validations if isinstance(line.get(name), float)]
            points = [(line["step"], line[name]) for line in judged]
            line = _series(name, points, None, record)
            if len(names) <= BANDS:
                line = _with_band(line, [interval_of(line, name) for line in judged])
            series.append(line)
        label = names[0] if len(names) == 1 else title
        yield line_chart(series, x_label="step", y_label=label, title=label)


def _series(
    name: str,
    points: Sequence[tuple[float, float]],
    style: int | None,
    record: RunRecord | None = None,
) -> Series:
    """A line; of a `record`, with a circle at the weights that were kept."""
    kept = None if record is None else record.kept
    marks = [] if kept is None else [i for i, (x, _) in enumerate(points) if x == kept["step"]]
    return Series(name, [x for x, _ in points], [y for _, y in points], marks=marks, style=style)


def _with_band(line: Series, intervals: Sequence[tuple[float, float] | None]) -> Series:
    """The line with a band, if all of its points have an interval."""
    bounds = [interval for interval in intervals if interval is not None]
    if not bounds or len(bounds) < len(intervals):
        return line
    low, high = zip(*bounds, strict=True)
    return replace(line, low=low, high=high)


def _logarithms(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    if interval is None or interval[0] <= 0:
        return None
    return math.log(interval[0]), math.log(interval[1])


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS points, each the mean of neighbours."""
    if len(points) <= POINTS:
        return list(points)
    groups = np.array_split(np.array(points, np.float64), POINTS)
    return [(float(x), float(y)) for x, y in (group.mean(0) for group in groups)]


# -- data --


def data(recipe: Recipe, corpus: Corpus) -> Section:
    """The sizes of the parts, examples of each, and what was skipped. The id "data" is taken: it is
    that of the data of every page."""
    tally = corpus.tally
    parts = {name: getattr(corpus, name) for name in SPLITS}
    sizes = tuple((SPLITS[name], len(part)) for name, part in parts.items())
    tables = [Table(("part", "examples"), sizes)]
    skipped = [(reason, count) for reason, count in sorted(tally.skipped.items()) if count]
    if tally.duplicates:
        skipped.append(("duplicates", tally.duplicates))
    if tally.replaced:
        skipped.append(("characters replaced", tally.replaced))
    if skipped:
        tables.append(Table(("left out or changed", "number"), tuple(skipped)))
    figures: list[str] = []
    if isinstance(recipe.data, Pictures | Captions):
        figures = [cards([card for name in parts for card in _pictures(SPLITS[name], parts[name])])]
    else:
        rows = [row for name, part in parts.items() for row in _examples(SPLITS[name], part)]
        target = "label" if recipe.task == "classify" else "answer"
        tables.append(Table(("part", "input", target), tuple(rows), "Examples", wraps=True))

    paragraphs = [f"Data of kind “{recipe.data.kind}”{_place(recipe)}. {tally.summary()}."]
    taken = columns_taken(recipe.data)
    if taken:
        paragraphs.append(f"{taken[0].upper()}{taken[1:]}.")
    return Section(
        "Data",
        id="examples",
        paragraphs=tuple(paragraphs),
        tables=tuple(tables),
        figures=tuple(figures),
    )


def no_data(recipe: Recipe, problem: RegardError) -> Section:
    """What is said if the data cannot be read any more."""
    paragraphs = (
        f"Data of kind “{recipe.data.kind}”{_place(recipe)}.",
        f"It cannot be read now: {problem}",
    )
    return Section("Data", id="examples", paragraphs=paragraphs)


def _place(recipe: Recipe) -> str:
    paths = [str(path) for path in recipe.data.paths().values()]
    return f", {', '.join(paths)}" if paths else ", built in"


def _examples(name: str, part: Split) -> Iterator[tuple[str, str, str]]:
    for i in _spread(part):
        example = part.texts(i)
        yield name, Turns(cut(str(example.source))), cut(example.target)


def _pictures(name: str, part: Split) -> Iterator[Card]:
    for i in _spread(part):
        yield Card(((name, cut(part.texts(i).target)),), picture=np.asarray(part.source[i]))


def _spread(part: Split) -> list[int]:
    """The numbers of a few examples, spread over the part."""
    count = min(EXAMPLES, len(part))
    return np.linspace(0, len(part) - 1, count).astype(int).tolist() if count else []


# -- recipe --


def differences(recipe: Recipe, history: Sequence[Session]) -> Section:
    """The fields that differ from the recipe that this one was made from."""
    name = base_name(recipe, history)
    if name is None:
        text = "It is not based on a shipped recipe; all fields are below."
        return Section("Recipe", id="recipe", paragraphs=(text,))
    before = dict(leaves(load(name).to_json()))
    now = dict(leaves(recipe.to_json()))
    rows = tuple(
        (key, _value(before.get(key)), _value(now.get(key)))
        for key in before | now
        if key not in ("summary", "extends") and before.get(key) != now.get(key)
    )
    if not rows:
        text = f"The shipped recipe {name}, without changes."
        return Section("Recipe", id="recipe", paragraphs=(text,))
    table = Table(("field", name, "this run"), rows, wraps=True)
    text = f"The shipped recipe {name} with these changes:"
    return Section("Recipe", id="recipe", paragraphs=(text,), tables=(table,))


def whole_recipe(recipe: Recipe) -> Section:
    """Every field, as TOML."""
    return Section("All fields of the recipe", id="fields", code=toml(recipe), is_collapsed=True)


def toml(recipe: Recipe) -> str:
    """A recipe as TOML, from which the same run can be trained."""
    content = recipe.to_json()
    content.pop("extends", None)  # all of its fields are here
    lines = [
        f"{key} = {_value(value, most=None)}"
        for key, value in content.items()
        if not isinstance(value, dict) and value is not None
    ]
    for section, fields in content.items():
        if not isinstance(fields, dict):
            continue
        lines += ["", f"[{section}]"]
        lines += [
            f"{key} = {_value(value, most=None)}"
            for key, value in fields.items()
            if value is not None
        ]
    return "\n".join(lines)


def _value(value: Any, most: int | None = 80) -> str | None:
    """A value as TOML has it."""
    if value is None:
        return None
    if most is not None:
        return shown(value)
    if isinstance(value, dict):
        pairs = [f"{key} = {_value(v, None)}" for key, v in value.items() if v is not None]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(str(_value(item, None)) for item in value)}]"
    import json

    return json.dumps(value, ensure_ascii=False)


# -- budget --


def budget_of(recipe: Recipe, tokenizer: Tokenizer) -> Budget | RegardError:
    """The budget of a run by closed forms, or why there is none."""
    source = min(LENGTH, getattr(recipe.data, "max_source", LENGTH) or LENGTH)
    target = min(LENGTH, getattr(recipe.data, "max_target", LENGTH) or LENGTH)
    try:
        return recipe_budget(
            recipe, tokenizer, batch=BATCH, source_length=source, target_length=target
        )
    except RegardError as problem:
        return problem


def budget(costs: Budget | RegardError) -> Section:
    """Parameters and multiplications of each part, memory and depth of the whole model."""
    if isinstance(costs, RegardError):
        return Section("Budget", id="budget", paragraphs=(f"Not known: {costs}",))
    sizes = ", ".join(f"{size.name} = {size.value:,} ({size.meaning})" for size in costs.sizes)
    rows = []
    for part in costs.parts:
        if columns(part):
            numbers = (part.parameters, part.forward, part.training, part.token, part.depth)
            rows.append((part.name, *(number.value for number in numbers)))
    totals = [costs.sum(name).value for name in ("parameters", "forward", "training", "token")]
    rows.append(("total", *totals, costs.depth.get("forward")))
    names = ("part", "parameters", "forward pass", "training step", "one more token", "depth")
    memory = tuple((name.replace("_", " "), size_text(n)) for name, n in costs.memory.items() if n)
    text = (
        f"For {sizes}. Passes, steps and tokens are counted in multiplications. Depth is the "
        "longest chain of dependent operations."
    )
    paragraphs = (text, *costs.notes)
    tables = (Table(names, tuple(rows)), Table(("memory", "size"), memory))
    return Section("Budget", id="budget", paragraphs=paragraphs, tables=tables)


def size_text(count: int) -> str:
    """A number of bytes.

    >>> size_text(2_500_000)
    '2.5 MB'
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"


# -- environment --


def environment(record: RunRecord) -> Section:
    """Where and when it was trained, by which command."""
    if not record.sessions:
        text = "It was trained by a version of regard that did not record this."
        return Section("Environment", id="environment", paragraphs=(text,))
    tables = [_session_table(record)]
    rows = (
        ("regard", [session.regard for session in record.sessions]),
        ("torch", [session.torch for session in record.sessions]),
        ("Python", [session.python for session in record.sessions]),
        ("system", [session.system for session in record.sessions]),
        ("processor", [session.processor for session in record.sessions]),
        ("device", [session.device for session in record.sessions]),
        ("threads", [str(session.threads) for session in record.sessions]),
        ("seed", [str(record.recipe.seed)]),
    )
    distinct = tuple((name, ", ".join(dict.fromkeys(values))) for name, values in rows)
    tables.append(Table(("", "value"), distinct, wraps=True))
    return Section("Environment", id="environment", tables=tuple(tables))


def _session_table(record: RunRecord) -> Table:
    rows = []
    for number, session in enumerate(record.sessions, 1):
        is_last = number == len(record.sessions)
        state = record.state if is_last and record.state else session.state
        if not is_last and state == "under way":
            state = "stopped"  # killed: another session came after it
        rows.append(
            (
                session.began.replace("T", " ").removesuffix("+00:00"),
                session.first_step,
                state,
                session.command or "(called from Python)",
            )
        )
    return Table(("began (UTC)", "at step", "state", "command"), tuple(rows), wraps=True)


# -- what to type next --


def commands(record: RunRecord, prompt: str | None) -> Section:
    """Commands to go on with; `prompt` is an input to try."""
    run = quote(str(record.run))
    recipe = record.recipe
    value = _input(recipe, prompt)
    lines = []
    if recipe.task == "chat":
        lines.append((f"regard chat {run}", "talk to it"))
    lines += [
        (f"regard ask {run} {value}", "ask it"),
        (attend_command(record, prompt), "see what it attends to"),
        (f"regard evaluate {run}", "score it with the search options of its recipe"),
        (f"regard compare {run} OTHER_RUN", "is another run better?"),
        (f"regard train --resume {run} --steps {max(2, 2 * record.step)}", "train it longer"),
        (f"regard report {run}", "make this page again"),
    ]
    if record.state == "stopped":
        lines.insert(0, (f"regard train --resume {run}", "continue where it stopped"))
    width = min(96, max(len(command) for command, _ in lines))
    code = "\n".join(f"{command:<{width}}  # {purpose}" for command, purpose in lines)
    return Section("What to type next", id="next", code=code)


def attend_command(record: RunRecord, prompt: str | None) -> str:
    """The command that shows what an answer attends to."""
    return f"regard attend {quote(str(record.run))} {_input(record.recipe, prompt)}"


def _input(recipe: Recipe, prompt: str | None) -> str:
    """An input as the words of a command, which are its last ones."""
    kinds = {"tokens": '"..."', "sound": "SOUND.wav"}
    if recipe.source.kind != "tokens" or not prompt:
        return kinds.get(recipe.source.kind, "PICTURE.png")
    options: list[str] = []
    if recipe.data.history > 1:
        options, prompt = as_options(prompt)
    dashes = ["--"] if prompt.startswith("-") else []  # or it would be taken for an option
    return join([*options, *dashes, prompt])
