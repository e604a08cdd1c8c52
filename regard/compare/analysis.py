"""From cells to a comparison: scores, differences, buckets, examples, curves and costs."""

from __future__ import annotations

import statistics as plain_statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard import metrics
from regard.compare.advice import advice
from regard.compare.cells import Cell
from regard.compare.items import Item
from regard.compare.pairs import pairs_of
from regard.compare.plan import Plan, default_score
from regard.compare.record import Comparison, ContenderResult, Costs, Curve, SeedResult, Tuning
from regard.compare.scored import Scored, score_contenders
from regard.compare.statistics import estimate, finite
from regard.compare.verdict import bounds, count, number_text, score_name
from regard.errors import InputError, did_you_mean
from regard.plot import JUDGED_ON, read_log
from regard.recipe import differences
from regard.sweep import Outcome

UNITS = {
    "chat": "prompt",
    "translate": "sentence",
    "classify": "example",
    "speech": "recording",
    "caption": "picture",
    "blank": "sentence",
}
BUSY = 0.1  # share of the time waited for a processor that is worth a note


def compare(
    plan: Plan,
    cells: Sequence[Cell],
    split: str,
    *,
    tuning: Mapping[str, Outcome | None] | None = None,
    notes: Sequence[str] = (),
    same: Mapping[str, str] | None = None,
    command: str = "",
) -> Comparison:
    """What the cells of a plan show, as far as they are over. `same` is what all contenders have in
    common, `command` makes the comparison again."""
    items, scored = score_contenders(plan, cells)
    left_out, more_notes = _incomparable(scored)
    names = _score_names(scored, left_out)
    score = _headline(plan, names, left_out)
    clusters = np.array([item.cluster for item in items], np.int64)
    seeds = {
        each.contender.name: {name: each.seeds(name, clusters) for name in names}
        for each in scored
        if each.done
    }

    costs = {each.contender.name: _costs(each.cells) for each in scored}
    front = _front(score, {name: own[score].score for name, own in seeds.items() if own}, costs)
    first = plan.contenders[0].recipe
    contenders = []
    for each in scored:
        name = each.contender.name
        recipe = each.contender.recipe
        own = seeds.get(name, {})
        result = ContenderResult(
            name=name,
            summary=recipe.summary,
            changes=differences(first, recipe),
            scores={key: estimate(values, bounds=bounds(key)) for key, values in own.items()},
            numbers={key: _mean(values) for key, values in each.numbers.items()},
            costs=costs[name],
            seeds=_seed_results(each, names),
            curves=[_curve(cell) for cell in each.cells if cell.state == "done"],
            tuning=_tuning((tuning or {}).get(name), each.cells),
            is_on_front=name in front,
        )
        contenders.append(result)
    unit = _unit(first.task, clusters)
    pairs = pairs_of(scored, seeds, items, clusters, score, unit)
    return Comparison(
        title=plan.title,
        task=first.task,
        score=score,
        better=metrics.better(score),
        split=split,
        unit=unit,
        items=len(set(clusters.tolist())),
        answered=sum(bool(item.answers) for item in items),
        budget=str(plan.budget) if plan.trained else "",
        trials=plan.trials,
        contenders=contenders,
        pairs=pairs,
        baselines=next((cell.baselines for cell in cells if cell.baselines), {}),
        notes=[*notes, *more_notes, *_notes(plan, scored, split, items)],
        is_complete=all(cell.is_over for cell in cells),
        question=plan.question,
        advice=advice(contenders, pairs, score),
        same=dict(same or {}),
        command=command,
    )


# -- scores ----------------------------------------------------------------------------------------


def _incomparable(scored: Sequence[Scored]) -> tuple[list[str], list[str]]:
    """Scores that mean something else for each tokenizer, and why."""
    done = [cell for each in scored for cell in each.done]
    if len({cell.tokenizer for cell in done}) < 2:
        return [], []
    if any(cell.has_unknown_words for cell in done):
        note = "the tokenizers differ, and one cannot write all words: perplexity is left out"
        return ["perplexity", "word_perplexity"], [note]
    note = "the tokenizers differ: perplexity is per word (word_perplexity), not per token"
    return ["perplexity"], [note]


def _score_names(scored: Sequence[Scored], left_out: Sequence[str]) -> list[str]:
    """The scores that all runs have."""
    done = [each for each in scored if each.done]
    if not done:
        return []
    return [
        name
        for name in done[0].scores
        if name not in left_out
        and all(len(each.scores.get(name, [])) == len(each.done) for each in done)
    ]


def _headline(plan: Plan, names: Sequence[str], left_out: Sequence[str]) -> str:
    """The score of the verdict."""
    default = default_score(plan)
    if not names:
        return plan.score or default
    if plan.score is not None and plan.score not in names:
        why = "cannot be compared here" if plan.score in left_out else "no such score"
        hint = did_you_mean(plan.score, names)
        raise InputError(why, where="--score", got=plan.score, hint=hint)
    if plan.score is None and default not in names:
        return next((name for name in names if metrics.better(name)), names[0])
    return plan.score or default


def _seed_results(scored: Scored, names: Sequence[str]) -> list[SeedResult]:
    results = []
    place = 0
    for cell in scored.cells:
        scores: dict[str, float | None] = {}
        if cell.state == "done":
            for name in names:
                scores[name] = finite(scored.scores[name][place].statistic.value)
            place += 1
        kept, best = _weights(cell)
        results.append(
            SeedResult(
                cell.seed,
                cell.run,
                cell.state,
                cell.why,
                scores,
                kept_step=None if kept is None else kept["step"],
                best_step=None if best is None else best["step"],
            )
        )
    return results


def _weights(cell: Cell) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The validation of the weights that a run kept, and its best one."""
    kept = best = None
    for line in _validations(cell) if cell.state == "done" else ():
        kept = line if line.get("kept") is True else kept
        best = line if line.get("best") is True else best
    return kept, best


# -- costs and curves ------------------------------------------------------------------------------


def _costs(cells: Sequence[Cell]) -> Costs:
    done = [cell for cell in cells if cell.state == "done"]
    work = next((cell.work for cell in done if cell.work), None)
    seconds = _mean([cell.seconds for cell in done])
    tokens = _mean([float(cell.tokens) for cell in done])
    return Costs(
        parameters=work.parameters if work else None,
        multiplications=_mean([cell.steps * cell.work.step for cell in done if cell.work]),
        forward=work.forward if work else None,
        depth=work.depth if work else None,
        training_memory=work.memory if work else None,
        steps=_mean([float(cell.steps) for cell in done]),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds if tokens and seconds else None,
        peak_memory=_mean([float(m) for cell in done if (m := cell.measured.memory) is not None]),
        waited=max((w for cell in done if (w := cell.measured.waited) is not None), default=None),
    )


def _mean(values: Sequence[float]) -> float | None:
    return plain_statistics.fmean(values) if values else None


def _front(score: str, means: Mapping[str, float], costs: Mapping[str, Costs]) -> set[str]:
    """The contenders that no other one beats: better for as many multiplications, or as good for
    fewer (the Pareto front)."""
    sign = -1 if metrics.better(score) == "lower" else 1
    points = {}
    for name, mean in means.items():
        cost = costs[name].multiplications
        if cost is not None:
            points[name] = (sign * mean, -cost)
    front = set()
    for name, point in points.items():
        beaten = any(
            other != point and all(a >= b for a, b in zip(other, point, strict=True))
            for other in points.values()
        )
        if not beaten:
            front.add(name)
    return front


def _curve(cell: Cell) -> Curve:
    """The validations of a run, as it logged them."""
    lines = _validations(cell)
    names = dict.fromkeys(
        name
        for line in lines
        for name, value in line.items()
        if isinstance(value, float) and name != "seconds"
    )
    step = cell.work.step if cell.work else None
    return Curve(
        seed=cell.seed,
        steps=[line["step"] for line in lines],
        seconds=[float(line.get("seconds", 0.0)) for line in lines],
        multiplications=[None if step is None else line["step"] * step for line in lines],
        scores={name: [finite(line.get(name)) for line in lines] for name in names},
    )


def _validations(cell: Cell) -> list[dict[str, Any]]:
    """The lines of a run's log that have scores."""
    run = Path(cell.run)
    logged = read_log(run) if (run / "metrics.jsonl").is_file() else []
    return [line for line in logged if line["kind"] in JUDGED_ON]


def _tuning(outcome: Outcome | None, cells: Sequence[Cell]) -> Tuning | None:
    if outcome is None:
        return None
    trials = [
        {"values": trial.values, "state": trial.state, outcome.score: trial.score}
        for trial in outcome.trials
    ]
    values = next((cell.values for cell in cells if cell.values), {})
    return Tuning(len(outcome.trials), values, trials)


# -- notes -----------------------------------------------------------------------------------------


def _unit(task: str, clusters: np.ndarray) -> str:
    if len(set(clusters.tolist())) < len(clusters):
        return "dialogue" if task == "chat" else "group"
    return UNITS[task]


def _worse_weights(scored: Sequence[Scored]) -> Iterator[str]:
    """The contenders whose last weights are scored although better ones were not kept."""
    for each in scored:
        worse = []
        for cell in each.done:
            kept, best = _weights(cell)
            if kept is None or best is None:
                continue
            score = best.get("score")
            if not isinstance(score, str) or score not in best or score not in kept:
                continue
            if metrics.is_better(score, best[score], kept[score]):
                worse.append((cell, kept, best, score))
        if not worse:
            continue
        cell, kept, best, score = worse[0]
        again = "" if each.contender.new is None else "; --set train.keep=best scores the best ones"
        name = each.contender.name
        of_runs = f"{len(worse)} of {count(len(each.done), 'run')} of {name}"
        part = JUDGED_ON[kept["kind"]]
        yield (
            f"the last weights are scored in {of_runs}, although the {part} score was better "
            f"before: {score_name(score)} {number_text(score, kept[score], 4)} at step "
            f"{kept['step']:,}, {number_text(score, best[score], 4)} at step {best['step']:,} "
            f"(seed {cell.seed}){again}"
        )


def _notes(plan: Plan, scored: Sequence[Scored], split: str, items: Sequence[Item]) -> list[str]:
    """What a reader has to know beside the numbers."""
    notes = [*_worse_weights(scored), *plan.notes]
    if split == "valid":
        chose = "weights and tuned values" if plan.tune else "weights"
        notes.append(
            f"there is no test part: these are validation examples, which also chose the {chose}"
        )
    most = max((len(cell.items) for each in scored for cell in each.done), default=0)
    if most > len(items):
        notes.append(f"only {len(items):,} of {most:,} test items are common to all contenders")
    if plan.tune:
        trials = count(plan.trials, "tuning trial")
        fields = ", ".join(str(axis) for axis in plan.tune)
        notes.append(f"{trials} for each contender ({fields}), with a seed of its own")
    if any(each.contender.runs for each in scored):
        notes.append("finished runs have the budgets they were trained with")
    for each in scored:
        waited = _costs(each.cells).waited
        if waited is not None and waited > BUSY and plan.budget.is_timed:
            notes.append(
                f"a run of {each.contender.name} waited {waited:.0%} of its time for a processor "
                "that others used: budgets of minutes were not equal; --tokens are"
            )
    return notes
