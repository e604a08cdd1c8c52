"""Pairs of contenders: verdicts, differences by bucket, and the examples on which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from shlex import join

import numpy as np

from regard import metrics
from regard.compare.items import Item
from regard.compare.record import Bucket, Example, Pair
from regard.compare.scored import Scored
from regard.compare.statistics import Difference, SeedScores, adjusted, difference, finite
from regard.compare.verdict import LOG_SCALE, verdict
from regard.tasks.conversation import as_options

EXAMPLES = 5  # for each contender of a pair
FEWEST = 5  # items of a bucket
MOST_LABELS = 20


def pairs_of(
    scored: Sequence[Scored],
    seeds: Mapping[str, Mapping[str, SeedScores]],
    items: Sequence[Item],
    clusters: np.ndarray,
    score: str,
    unit: str,
) -> list[Pair]:
    """Every pair of contenders, with p-values that are adjusted for the number of pairs."""
    sides = list(combinations(scored, 2))
    differences = []
    for a, b in sides:
        first = seeds.get(a.contender.name, {})
        second = seeds.get(b.contender.name, {})
        differences.append(_differences(first, second, score))
    rates = adjusted([own[score].p_value if score in own else None for own in differences])
    pairs = []
    for (a, b), own, rate in zip(sides, differences, rates, strict=True):
        about = verdict(score, a.side, b.side, own.get(score), rate, unit=unit)
        has_both = score in own
        pairs.append(
            Pair(
                first=a.contender.name,
                second=b.contender.name,
                verdict=about.sentence,
                outcome=about.outcome,
                adjusted_p_value=rate,
                differences=own,
                buckets=_buckets(a, b, items, clusters, score) if has_both else [],
                examples=_examples(a, b, items, score) if has_both else [],
            )
        )
    return pairs


def _differences(
    first: Mapping[str, SeedScores], second: Mapping[str, SeedScores], score: str
) -> dict[str, Difference]:
    """The difference in each score that both contenders have."""
    return {
        name: difference(first[name], second[name], test_items=name == score)
        for name in first
        if name in second
    }


def _buckets(
    a: Scored, b: Scored, items: Sequence[Item], clusters: np.ndarray, score: str
) -> list[Bucket]:
    """The difference on short and long inputs, on rare and frequent words, and for each label."""
    buckets = []
    answered = np.zeros(len(items), bool)
    answered[a.scores[score][0].index] = True
    for kind, groups in _groups(a, items).items():
        for name, mask in groups.items():
            mask = mask & answered
            if mask.sum() < FEWEST:
                continue
            first, second = (each.seeds(score, clusters, mask) for each in (a, b))
            own = difference(first, second, test_items=False)
            buckets.append(Bucket(kind, name, int(mask.sum()), own))
    return buckets


def _groups(scored: Scored, items: Sequence[Item]) -> dict[str, dict[str, np.ndarray]]:
    """Which items are in each bucket of each kind."""
    groups = {}
    lengths = np.array([item.length for item in items], np.int64)
    longest = max((cell.longest for cell in scored.done), default=0)
    if (lengths > longest).any():
        groups["length"] = {
            f"up to {longest}, as in training": lengths <= longest,
            **_thirds(lengths, lengths > longest),
        }
    elif lengths.min() < lengths.max():
        groups["length"] = _thirds(lengths)
    rarest = [item.rarest for item in items if item.rarest is not None]
    if len(rarest) == len(items):
        counts = np.array(rarest, np.int64)
        if counts.min() < counts.max():
            groups["frequency"] = _thirds(counts)
    if scored.task is not None and not scored.task.answers_are_text:
        right = np.array([item.references[0] for item in items])
        labels = sorted(set(right.tolist()))
        if len(labels) <= MOST_LABELS:
            groups["label"] = {label: right == label for label in labels}
    return groups


def _thirds(values: np.ndarray, among: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Items in three groups of like size, named by their lowest and highest value.

    >>> {name: int(mask.sum()) for name, mask in _thirds(np.arange(9)).items()}
    {'0 to 2': 3, '3 to 5': 3, '6 to 8': 3}
    """
    among = np.ones(len(values), bool) if among is None else among
    edges = np.quantile(values[among], [1 / 3, 2 / 3])
    group = np.searchsorted(edges, values, side="left")
    groups = {}
    for number in range(3):
        mask = among & (group == number)
        if mask.any():
            low, high = values[mask].min(), values[mask].max()
            groups[f"{low:,}" if low == high else f"{low:,} to {high:,}"] = mask
    return groups


def _examples(a: Scored, b: Scored, items: Sequence[Item], score: str) -> list[Example]:
    """The items on which the means of all seeds differ most, in both directions."""
    sign = -1 if metrics.better(score) == "lower" else 1
    index = a.scores[score][0].index
    means = []
    for each in (a, b):
        values = np.mean([own.of_items for own in each.scores[score]], axis=0)
        means.append(np.log(values) if score in LOG_SCALE else values)
    gains = sign * np.nan_to_num(means[0] - means[1], nan=0.0, posinf=1e9, neginf=-1e9)
    order: list[int] = np.argsort(-gains, kind="stable").tolist()
    answered = [place for place in order if items[int(index[place])].answers]
    order = answered or order  # an example without answers shows little
    best = [place for place in order[:EXAMPLES] if gains[place] > 0]
    worst = [place for place in order[::-1][:EXAMPLES] if gains[place] < 0]
    answers = [{item.key: item for item in each.done[0].items} for each in (a, b)]
    runs = [each.done[0].run for each in (a, b)]
    reads_text = a.contender.recipe.source.kind == "tokens"
    reads_history = a.task is not None and a.task.source.reads_history

    examples = []
    for place in [*best, *worst]:
        item = items[int(index[place])]
        texts = [own[item.key].answers[:1] for own in answers]
        examples.append(
            Example(
                prompt=item.prompt,
                references=list(item.references),
                answers=[text[0] if text else "" for text in texts],
                scores=[finite(float(mean[place])) for mean in means],
                difference=float(gains[place]),
                commands=_commands(runs, item.prompt, reads_history) if reads_text else [],
            )
        )
    return examples


def _commands(runs: Sequence[str], prompt: str, reads_history: bool) -> list[str]:
    """The command that shows the attention of both runs."""
    first, second = runs
    options = ["--against", second]
    if reads_history:
        before, prompt = as_options(prompt)
        options += before
    dashes = ["--"] if prompt.startswith("-") else []  # or it would be taken for an option
    return [join(["regard", "attend", *options, *dashes, first, prompt])]
