"""The page of a comparison: the verdict first, then everything it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from regard.compare.attention import shown_examples
from regard.compare.cost_text import COST_TEXTS
from regard.compare.curves import AXES, logged_scores, mean_curve
from regard.compare.pairs import LOG_SCALE
from regard.compare.record import Comparison, ContenderResult, Example, Pair
from regard.compare.statistics import Estimate
from regard.compare.verdict import SHARES, count, difference_unit, number_text, scale, score_name
from regard.metrics import better
from regard.pages.charts import (
    Interval,
    Point,
    Scale,
    Series,
    interval_chart,
    line_chart,
    point_chart,
)
from regard.pages.shell import Entry, Page, Section, Table

OPEN_PAIRS = 1  # pairs whose buckets and examples are seen at once
OTHER_CURVES = 8  # scores beside that of the verdict whose curves are drawn
WIDE_RANGE = 20.0  # ratio of values from which an axis is logarithmic

INTERVALS = (
    "An interval is about other seeds and other items at once: if the comparison were repeated "
    "with new ones, about 95 % of such intervals would contain the true value. A score is the mean "
    "of all seeds, never the best of them."
)
P_VALUES = (
    "p is the probability of a difference at least this large if both were the same. It is "
    "adjusted for the number of pairs (Benjamini and Hochberg); a difference is called found if it "
    "is below 0.05. "
    "“Could show” is the difference that would be found in 80 % of such comparisons: where it is "
    "larger than what matters to you, “cannot be told apart” says little. The test on items is "
    "about these very runs, whatever other seeds would do."
)
BUCKETS = (
    "The same difference on parts of the items. These intervals are not adjusted for their number: "
    "one bucket that stands out proves nothing."
)
COSTS = (
    "Parameters, multiplications, depth (the longest chain of dependent operations for one "
    "example) and training memory are computed by formulas; steps, tokens a second, seconds and "
    "the peak of memory are measured. A contender is on the Pareto front if no other is as good "
    "for fewer multiplications of training."
)
EXAMPLES = (
    "The examples on which the means of all seeds differ most; the answers are those of the first "
    "seeds."
)
CURVES = (
    "Each line is the mean over seeds of the validation score; its band goes from the lowest seed "
    "to the highest."
)
AGAIN = (
    "The same command goes on with a comparison that was stopped, and repeats nothing that is "
    "finished. comparison.json has all numbers of this page."
)


def comparison_page(comparison: Comparison) -> Page:
    """The page of a comparison, whose numbers are those of its record."""
    sections = [
        _verdict(comparison),
        *_notes(comparison),
        _scores(comparison),
        *_differences(comparison),
        _costs(comparison),
        *_curves(comparison),
    ]
    for number, pair in enumerate(comparison.pairs):
        sections += _pair(comparison, pair, is_collapsed=number >= OPEN_PAIRS)
    sections += [_same(comparison), _contenders(comparison), _runs(comparison)]
    sections += _tuning(comparison)
    sections.append(_again(comparison))
    return Page(
        title=comparison.question or _title(comparison),
        kind="compare",
        facts=tuple(_facts(comparison)),
        sections=tuple(section for section in sections if section is not None),
    )


def _title(comparison: Comparison) -> str:
    *names, last = (contender.name for contender in comparison.contenders)
    return f"{', '.join(names)} or {last}?"


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    direction = f", {comparison.better} is better" if comparison.better else ""
    yield "score", f"{score_name(comparison.score)}{direction}"
    scores = [contender.scores.get(comparison.score) for contender in comparison.contenders]
    items = next((own.items for own in scores if own is not None), comparison.items)
    yield "on", f"{count(items, comparison.unit)} ({comparison.split})"
    done = [contender.done for contender in comparison.contenders]
    fewest, most = min(done), max(done)
    yield "seeds", str(most) if fewest == most else f"{fewest} to {most}"
    if comparison.budget:
        yield "budget of each run", comparison.budget


# -- verdict and notes --


def _verdict(comparison: Comparison) -> Section:
    sentences = [f"{_capital(pair.verdict)}." for pair in comparison.pairs]
    if comparison.advice:
        sentences.insert(0, comparison.advice)
    if not comparison.is_complete:
        sentences.insert(0, "Not all runs are over: this is what is known so far.")
    return Section("", id="verdict", paragraphs=tuple(sentences), is_verdict=True)


def _capital(text: str) -> str:
    """A sentence begins with a capital letter, but a name stays as it is."""
    beginnings = ("this run", "these runs")
    return text[0].upper() + text[1:] if text.startswith(beginnings) else text


def _notes(comparison: Comparison) -> Iterator[Section]:
    if comparison.notes:
        notes = tuple(f"{note[0].upper()}{note[1:]}." for note in comparison.notes if note)
        yield Section("Notes", id="notes", paragraphs=notes)


# -- scores --


def _scores(comparison: Comparison) -> Section:
    chart = _score_chart(comparison)
    return Section(
        "Scores",
        id="scores",
        paragraphs=(INTERVALS, *_baselines(comparison)),
        figures=(chart,) if chart else (),
        tables=(_score_table(comparison),),
    )


def _baselines(comparison: Comparison) -> Iterator[str]:
    if comparison.baselines:
        names = " and ".join(f"“{name}”" for name in comparison.baselines)
        yield f"The scores of {names} are reached without looking at the input."


def _differences(comparison: Comparison) -> Iterator[Section]:
    chart = _difference_chart(comparison)
    if chart:
        yield Section(
            "Differences",
            id="differences",
            paragraphs=(P_VALUES,),
            figures=(chart,),
            tables=(_difference_table(comparison),),
        )


def _score_chart(comparison: Comparison) -> str:
    score = comparison.score
    rows = []
    for contender in comparison.contenders:
        estimate = contender.scores.get(score)
        if estimate is not None:
            rows.append(_interval(contender.name, estimate, scale(score)))
    unit = " (%)" if score in SHARES else ""
    direction = f", {comparison.better} is better" if comparison.better else ""
    label = f"{score_name(score)}{unit} with 95 % interval{direction}"
    return interval_chart(rows, label=label, zero=None)


def _difference_chart(comparison: Comparison) -> str:
    score = comparison.score
    rows = [
        _interval(f"{pair.first} − {pair.second}", pair.differences[score], scale(score))
        for pair in comparison.pairs
        if score in pair.differences
    ]
    return interval_chart(rows, label=_difference_label(comparison))


def _difference_label(comparison: Comparison) -> str:
    side = {"higher": "right", "lower": "left", None: ""}[comparison.better]
    where = f"; {side} of 0: the first is better" if side else ""
    return f"difference, {difference_unit(comparison.score)}{where}"


def _interval(name: str, estimate: Estimate, factor: float, note: str = "") -> Interval:
    low = math.nan if estimate.low is None else estimate.low
    high = math.nan if estimate.high is None else estimate.high
    return Interval(name, factor * estimate.value, factor * low, factor * high, note)


def _score_table(comparison: Comparison) -> Table:
    """A row for each score, the verdict's first: mean over seeds and 95 % interval."""
    contenders = comparison.contenders
    known = dict.fromkeys(name for contender in contenders for name in contender.scores)
    names = [comparison.score, *(name for name in known if name != comparison.score)]
    plain = dict.fromkeys(name for contender in contenders for name in contender.numbers)
    baselines = comparison.baselines
    rows: list[tuple[object, ...]] = []
    for name in names:
        estimates = [contender.scores.get(name) for contender in contenders]
        cells = [None if estimate is None else score_cell(name, estimate) for estimate in estimates]
        others = [_plain_cell(name, own.get(name)) for own in baselines.values()]
        rows.append((_named(name), *cells, *others))
    for name in plain:
        values = [contender.numbers.get(name) for contender in contenders]
        cells = [_plain_cell(name, value) for value in values]
        rows.append((_named(name), *cells, *(None for _ in baselines)))
    columns = ("mean of seeds", *(each.name for each in contenders), *baselines)
    return Table(columns, tuple(rows), "Mean of all seeds (95 % interval)")


def _named(score: str) -> str:
    direction = {"higher": " ↑", "lower": " ↓", None: ""}[better(score)]
    return f"{score_name(score)}{direction}"


def score_cell(score: str, estimate: Estimate) -> Entry:
    """A score with its interval, as the table has it.

    >>> score_cell("accuracy", Estimate(0.65, 0.05, 0.02, 5.0, (3,), 97)).text
    '65.0 % (60.0 to 70.0)'
    """
    value = number_text(score, estimate.value, 4)
    if score in SHARES:
        value += " %"
    bounds = _bounds(score, estimate)
    return Entry(f"{value} ({bounds})" if bounds else value, estimate.value)


def _bounds(score: str, estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{number_text(score, estimate.low, 4)} to {number_text(score, estimate.high, 4)}"


def _plain_cell(score: str, value: float | None) -> Entry | None:
    if value is None:
        return None
    text = number_text(score, value, 4)
    return Entry(f"{text} %" if score in SHARES else text, value)


def _difference_table(comparison: Comparison) -> Table:
    score = comparison.score
    rows: list[tuple[object, ...]] = []
    for pair in comparison.pairs:
        own = pair.differences.get(score)
        if own is None:
            continue
        rows.append(
            (
                f"{pair.first} − {pair.second}",
                Entry(number_text(score, own.value), own.value),
                _bounds(score, own) or None,
                _p_value(own.p_value),
                _p_value(pair.adjusted_p_value),
                None
                if own.smallest is None
                else Entry(number_text(score, own.smallest), own.smallest),
                own.item_test or None,
                _p_value(own.item_p_value),
            )
        )
    columns = (
        "pair",
        "difference",
        "95 %",
        "p",
        "adjusted p",
        "could show",
        "test on items",
        "its p",
    )
    return Table(columns, tuple(rows), f"Differences, {difference_unit(score)}")


def _p_value(value: float | None) -> Entry | None:
    if value is None:
        return None
    return Entry("< 0.001" if value < 0.001 else f"{value:.3f}", value)


# -- costs --


def _costs(comparison: Comparison) -> Section:
    titles = {
        "multiplications": "multiplications of training",
        "forward": "… of one example",
        "depth": "sequential depth",
        "tokens_per_second": "tokens/s",
    }
    known = [
        name
        for name in COST_TEXTS
        if any(getattr(each.costs, name) is not None for each in comparison.contenders)
    ]
    rows = []
    for contender in comparison.contenders:
        cells: list[object] = [contender.name]
        for name in known:
            value = getattr(contender.costs, name)
            cells.append(None if value is None else Entry(COST_TEXTS[name](value), float(value)))
        cells.append(contender.is_on_front)
        rows.append(tuple(cells))
    names = (titles.get(name, name.replace("_", " ")) for name in known)
    table = Table(("contender", *names, "Pareto front"), tuple(rows), "Means over seeds")
    return Section(
        "Costs",
        id="costs",
        paragraphs=(COSTS,),
        figures=tuple(figure for figure in (_cost_chart(comparison),) if figure),
        tables=(table,),
    )


def _cost_chart(comparison: Comparison) -> str:
    score = comparison.score
    points = []
    for number, contender in enumerate(comparison.contenders):
        estimate = contender.scores.get(score)
        cost = contender.costs.multiplications
        value = math.nan if estimate is None else scale(score) * estimate.value
        margin = 0.0 if estimate is None else scale(score) * (estimate.margin or 0.0)
        points.append(
            Point(contender.name, cost or math.nan, value, margin, contender.is_on_front, number)
        )
    direction = f" ({comparison.better} is better)" if comparison.better else ""
    return point_chart(
        points,
        x_label="multiplications of training; dashed: Pareto front",
        y_label=f"{score_name(score)}{', %' if score in SHARES else ''}{direction}",
        title="Cost and quality",
    )


# -- curves --


def _curves(comparison: Comparison) -> Iterator[Section]:
    logged = logged_scores(comparison)
    if not logged:
        return
    figures = [_curve_chart(comparison, axis, logged[0]) for axis in AXES]
    figures = [figure for figure in figures if figure]
    paragraphs = [CURVES]
    if logged[0] != comparison.score:
        paragraphs.append(
            f"{score_name(comparison.score)} was not measured during training, so the curves are "
            f"of {score_name(logged[0])}."
        )
    yield Section("Curves", id="curves", paragraphs=tuple(paragraphs), figures=tuple(figures))
    others = [name for name in logged[1:] if better(name)][:OTHER_CURVES]
    more = [_curve_chart(comparison, "steps", name) for name in others]
    more = [figure for figure in more if figure]
    if more:
        names = ", ".join(map(score_name, others))
        yield Section(
            f"Curves of {names}", id="other-curves", figures=tuple(more), is_collapsed=True
        )


def _curve_chart(comparison: Comparison, axis: str, score: str) -> str:
    factor = scale(score)
    series = []
    for number, contender in enumerate(comparison.contenders):
        curve = mean_curve(contender, axis, score)
        if curve is None:
            continue
        series.append(
            Series(
                contender.name,
                curve.x.tolist(),
                (factor * curve.mean).tolist(),
                (factor * curve.low).tolist(),
                (factor * curve.high).tolist(),
                style=number,
            )
        )
    unit = ", %" if score in SHARES else ""
    return line_chart(
        series,
        x_label=AXES[axis],
        y_label=f"{score_name(score)}{unit} (validation)",
        y_scale=_y_scale(series),
    )


def _y_scale(series: Sequence[Series]) -> Scale:
    values = [value for line in series for value in (*line.low, *line.high)]
    positive = bool(values) and min(values) > 0
    return "log" if positive and max(values) / min(values) > WIDE_RANGE else "linear"


# -- pairs --


def _pair(comparison: Comparison, pair: Pair, *, is_collapsed: bool) -> Iterator[Section]:
    """Differences by bucket, and examples."""
    figures = _bucket_charts(comparison, pair)
    examples = shown_examples(pair, len(comparison.pairs))
    if not figures and not examples:
        return
    paragraphs = []
    if figures:
        paragraphs.append(BUCKETS)
    if examples:
        paragraphs.append(EXAMPLES)
    if pair.attention_note:
        paragraphs.append(f"Attention: {pair.attention_note}.")
    missing = [example for example in examples if not example.attention]
    commands = [command for example in missing for command in example.commands]
    yield Section(
        f"Where {pair.first} and {pair.second} differ",
        paragraphs=tuple(paragraphs),
        figures=tuple(figures),
        tables=tuple(_example_tables(comparison, pair, examples)),
        code="\n".join(commands),
        is_collapsed=is_collapsed,
    )


def _bucket_charts(comparison: Comparison, pair: Pair) -> list[str]:
    titles = {
        "length": "length of the input",
        "frequency": "training answers with the rarest word",
        "label": "label",
    }
    charts = []
    for kind in dict.fromkeys(bucket.kind for bucket in pair.buckets):
        rows = [
            _interval(
                f"{bucket.name} ({bucket.items:,})",
                bucket.difference,
                scale(comparison.score),
                count(bucket.items, "item"),
            )
            for bucket in pair.buckets
            if bucket.kind == kind
        ]
        title = f"{pair.first} − {pair.second} by {titles.get(kind, kind)}"
        label = f"difference by {titles.get(kind, kind)} (items)"
        charts.append(interval_chart(rows, label=label, title=title))
    return [chart for chart in charts if chart]


def _example_tables(
    comparison: Comparison, pair: Pair, examples: Sequence[Example]
) -> Iterator[Table]:
    for name, sign in ((pair.first, 1), (pair.second, -1)):
        own = [example for example in examples if sign * example.difference > 0]
        if not own:
            continue
        shown = score_name(comparison.score)
        columns = (
            "input",
            "right answer",
            pair.first,
            pair.second,
            f"{shown}, {pair.first}",
            f"{shown}, {pair.second}",
            "attention",
        )
        rows = tuple(_example_row(comparison.score, example) for example in own)
        yield Table(columns, rows, f"Where {name} does better", wraps=True)


def _example_row(score: str, example: Example) -> tuple[object, ...]:
    answers = [answer or "(nothing)" for answer in example.answers]
    scores: list[object] = []
    for value in example.scores:
        if value is not None and score in LOG_SCALE:
            value = math.exp(min(value, 700.0))
        scores.append(_plain_cell(score, value))
    link = Entry("side by side", link=example.attention) if example.attention else None
    return (example.prompt, " / ".join(example.references[:3]), *answers, *scores, link)


# -- what it rests on --


def _same(comparison: Comparison) -> Section:
    rows = tuple(comparison.same.items()) or (("part that decides", comparison.split),)
    table = Table(("", "all contenders"), rows)
    return Section("The same for all", id="same", tables=(table,))


def _contenders(comparison: Comparison) -> Section:
    first = comparison.contenders[0].name
    rows = []
    for contender in comparison.contenders:
        changes = "; ".join(contender.changes) or "–"
        rows.append((contender.name, contender.summary, changes))
    table = Table(("contender", "recipe", f"differs from {first} in"), tuple(rows), wraps=True)
    return Section("What differs", id="contenders", tables=(table,))


def _runs(comparison: Comparison) -> Section:
    """Every run, the failed ones too."""
    rows = []
    for contender in comparison.contenders:
        for result in contender.seeds:
            value = result.scores.get(comparison.score)
            state = f"{result.state}: {result.why}" if result.why else result.state
            shown = _plain_cell(comparison.score, value)
            rows.append((contender.name, result.seed, shown, state, result.run))
    columns = ("contender", "seed", score_name(comparison.score), "state", "folder")
    failed = sum(contender.failed for contender in comparison.contenders)
    paragraphs = (f"{count(failed, 'run')} failed, which is a result too.",) if failed else ()
    table = Table(columns, tuple(rows))
    return Section(
        "Runs", id="runs", paragraphs=paragraphs, tables=(table,), is_collapsed=not failed
    )


def _tuning(comparison: Comparison) -> Iterator[Section]:
    rows = []
    for contender in comparison.contenders:
        rows += _tuning_rows(contender)
    if rows:
        paragraph = (
            f"{count(comparison.trials, 'trial')} for each contender, with a seed that no run has; "
            "the validation score chose."
        )
        table = Table(("contender", "values", "validation score", "chosen"), tuple(rows))
        yield Section("Tuning", id="tuning", paragraphs=(paragraph,), tables=(table,))


def _tuning_rows(contender: ContenderResult) -> Iterator[tuple[object, ...]]:
    tuning = contender.tuning
    if tuning is None:
        return
    for trial in tuning.scores:
        values = ", ".join(f"{key}={value}" for key, value in trial["values"].items())
        score = next((v for key, v in trial.items() if key not in ("values", "state")), None)
        number = float(score) if isinstance(score, int | float) else None
        yield contender.name, values, number, trial["values"] == tuning.values


def _again(comparison: Comparison) -> Section:
    return Section(
        "Make it again",
        id="again",
        paragraphs=(AGAIN,),
        code=comparison.command,
        links=(("comparison.json", "comparison.json"), ("comparison.png", "comparison.png")),
    )
