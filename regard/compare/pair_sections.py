"""The section of a pair: where the two differ, by bucket and by example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from regard.compare.attention import shown_examples
from regard.compare.record import Comparison, Example, Pair
from regard.compare.score_sections import interval, plain_cell
from regard.compare.verdict import LOG_SCALE, count, difference_scale, score_name
from regard.pages.charts import interval_chart
from regard.pages.shell import Entry, Section, Table, Turns

BUCKETS = (
    "The same difference on subsets of the items. These intervals are not adjusted for the number "
    "of subsets: one that stands out proves nothing."
)
EXAMPLES = (
    "The examples on which the two differ most, by the mean over seeds. The answers are those of "
    "each contender’s first seed."
)


def pair_sections(comparison: Comparison, pair: Pair, *, is_collapsed: bool) -> Iterator[Section]:
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
        "frequency": "how many training answers have the rarest word",
        "label": "label",
    }
    charts = []
    for kind in dict.fromkeys(bucket.kind for bucket in pair.buckets):
        rows = [
            interval(
                f"{bucket.name} ({bucket.items:,})",
                bucket.difference,
                difference_scale(comparison.score),
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
        scores.append(plain_cell(score, value))
    link = Entry("side by side", link=example.attention) if example.attention else None
    return (Turns(example.prompt), " / ".join(example.references[:3]), *answers, *scores, link)
