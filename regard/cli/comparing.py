"""What `regard compare` shows: one bar over the plan, then verdicts, scores, costs and examples."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import disk
from regard.cli import streams
from regard.cli.plan_bar import PlanBar, connected, console_for
from regard.cli.progress import clock
from regard.cli.waiting import Waiting
from regard.errors import InputError, TrainingError, printable, turn_lines

if TYPE_CHECKING:
    from rich.console import Console

    from regard.compare.plan import Plan
    from regard.compare.record import Comparison, Pair

RECORD, PICTURE, PAGE = "comparison.json", "comparison.png", "comparison.html"
SHOWN_PAIRS = 3  # pairs whose buckets and examples are printed
SHOWN_EXAMPLES = 3  # of each pair; the record has more


def run_comparison(
    plan: Plan,
    out: Path | None,
    device: str,
    as_json: bool,
    *,
    words: Sequence[str] = (),
    ray: str | None = None,
) -> None:
    """Carry out a plan, or continue it, and show the result. `words` are those of the command that
    asked for it, `ray` is the address of a cluster."""
    with Waiting("loading"):
        from regard.compare import plan as plans
        from regard.compare.analysis import compare
        from regard.compare.attention import write_attention
        from regard.compare.cells import Cells
        from regard.device import resolve
        from regard.fleet import Fleet
        from regard.train import Stopped

    plans.check(plan)
    fleet = None if ray is None else Fleet(ray, device=device)
    if fleet is None:
        resolve(device)
    elif not plan.trained:
        raise InputError("finished runs are not trained again", where="--ray", hint="leave it out")
    else:
        fleet.check()
    with Waiting("reading data"):
        corpora = plans.corpora_of(plan)
        notes = plans.check_data(plan, corpora)
        split = plans.deciding_split(plan, corpora)
        same = plans.same_for_all(plan, corpora, split)
        plan = plans.resolved(plan, corpora)
    folder = out or plans.default_folder(plan)
    plans.claim(plan, folder)
    _claim_record(folder)
    console = console_for(as_json)
    console.print(_heading(plan, folder), soft_wrap=True, markup=False)

    bar = PlanBar(console, 1)
    cells = Cells(plan, folder, split, make_reporter=bar.reporter, device=device, fleet=fleet)
    command = shlex.join(["regard", "compare", *words, "--out", str(folder)])
    was_stopped = True
    try:
        with connected(fleet), bar:
            cells.go(bar.update)
        was_stopped = False
    except Stopped as stop:
        raise stop.of_many("comparison") from None
    finally:  # also after Ctrl-C: what is known is shown
        snapshot = cells.snapshot()
        if any(cell.is_over for cell in snapshot):
            tuning = {each.name: cells.tuning(each) for each in plan.contenders}
            with Waiting("comparing"):
                comparison = compare(
                    plan, snapshot, split, tuning=tuning, notes=notes, same=same, command=command
                )
            if not was_stopped:  # somebody who presses Ctrl-C does not want to wait for pages
                here = device if fleet is None else "auto"
                with Waiting("drawing attention"):
                    comparison = write_attention(comparison, plan, snapshot, folder, device=here)
            _show(comparison, folder, console, as_json)
    if all(cell.state == "failed" for cell in snapshot):
        raise TrainingError("all runs of this comparison failed", where=folder, got=snapshot[0].why)


def _claim_record(folder: Path) -> None:
    """Refuse a person's own file of the name of ours, before anything is trained."""
    record = folder / RECORD
    if not record.exists():
        return
    content = disk.read_json(record) if record.is_file() else None
    if not isinstance(content, dict) or not {"format", "pairs"} <= content.keys():
        raise InputError(
            "something that regard did not write is there already",
            where=record,
            hint="move it, or choose another --out",
        )
    for name in (PICTURE, PAGE):
        if (folder / name).exists():
            disk.claim_output(folder / name)


def _heading(plan: Plan, folder: Path) -> str:
    runs = len(plan.trained) * len(plan.seeds)
    names = ", ".join(contender.name for contender in plan.contenders)
    lines = [f"contenders {printable(names)}", f"folder    {printable(folder)}"]
    if runs:
        trials = len(plan.trained) * plan.trials
        tuning = f", after {trials} tuning runs" if trials else ""
        seeds = ", ".join(map(str, plan.seeds))
        lines.append(f"runs      {runs} of {plan.budget}, seeds {seeds}{tuning}")
        if plan.budget.is_timed:
            total = (runs + trials) * plan.budget.amount * 60
            lines.append(f"          about {clock(total)} and the evaluations, if none is done yet")
    return "\n".join(lines)


def _show(comparison: Comparison, folder: Path, console: Console, as_json: bool) -> None:
    from regard.compare.draw import draw
    from regard.compare.page import comparison_page

    content = comparison.to_json()
    disk.write_json(folder / RECORD, content)
    page = picture = None
    try:
        picture = str(draw(comparison, folder / PICTURE))
        page = str(comparison_page(comparison).save(folder / PAGE))
    except InputError as problem:  # a person's own file has this name
        streams.tell(f"not written: {problem}")
    if as_json:
        files = {"folder": str(folder), "picture": picture, "page": page}
        print(json.dumps(files | content, ensure_ascii=False))
        return
    lines = report(comparison)
    lines.append("")
    lines.append(f"record    {folder / RECORD}")
    if picture:
        lines.append(f"picture   {picture}")
    if page:
        lines.append(f"page      {page}")
    text = "\n".join(printable(line) for line in lines)
    console.print("\n" + text, soft_wrap=True, markup=False)


# -- the report ------------------------------------------------------------------------------------


def report(comparison: Comparison) -> list[str]:
    """The comparison as lines of text: verdicts first."""
    lines = _verdict_lines(comparison)
    if comparison.advice:
        lines.append(comparison.advice)
    lines += ["", *_score_table(comparison), "", *_cost_table(comparison)]
    lines += _tuning_lines(comparison)
    for pair in comparison.pairs[:SHOWN_PAIRS]:
        lines += _bucket_table(comparison, pair)
        lines += _example_lines(pair, is_chat=comparison.task == "chat")
    if comparison.notes:
        lines += ["", *(f"note: {note}" for note in comparison.notes)]
    return lines


def _verdict_lines(comparison: Comparison) -> list[str]:
    """The verdicts; under one that is undecided or contradicted, what other scores say."""
    from regard.compare.other_scores import NOT_ADJUSTED, other_scores

    lines = []
    for pair in comparison.pairs:
        lines.append(f"{pair.verdict}.")
        others = other_scores(comparison.score, pair)
        if others:
            lines.append(f"  {others}")
    if any(line.startswith("  ") for line in lines):
        lines.append(f"  {NOT_ADJUSTED}")
    return lines


def _score_table(comparison: Comparison) -> list[str]:
    """A row for each score, the verdict's first: mean over seeds and 95 % interval."""
    contenders = comparison.contenders
    known = {name: None for contender in contenders for name in contender.scores}
    names = [comparison.score, *(name for name in known if name != comparison.score)]
    plain = dict.fromkeys(name for contender in contenders for name in contender.numbers)
    others = list(comparison.baselines)
    rows = [["mean over seeds", *(contender.name for contender in contenders), *others]]
    for name in names:
        row = [name]
        for contender in contenders:
            score = contender.scores.get(name)
            row.append("-" if score is None else _interval(score.score, score.low, score.high))
        row += [_number(comparison.baselines[other].get(name)) for other in others]
        rows.append(row)
    for name in plain:
        numbers = [_number(contender.numbers.get(name)) for contender in contenders]
        rows.append([name, *numbers, *([""] * len(others))])
    for contender in contenders:
        values = [
            _number(result.scores.get(comparison.score)) if result.state == "done" else result.state
            for result in contender.seeds
        ]
        seeds = ", ".join(str(result.seed) for result in contender.seeds)
        line = f"{contender.name}: {comparison.score} of seeds {seeds}: {', '.join(values)}"
        steps = [result.kept_step for result in contender.seeds]
        if any(steps):
            known = ", ".join("-" if step is None else f"{step:,}" for step in steps)
            line += f"; weights of steps {known}"
        rows.append([line])
    return _table(rows)


def _cost_table(comparison: Comparison) -> list[str]:
    from regard.compare.cost_text import COST_TEXTS

    rows = [
        ["costs", *(contender.name for contender in comparison.contenders)],
    ]
    for name, text in COST_TEXTS.items():
        values = [getattr(contender.costs, name) for contender in comparison.contenders]
        if any(value is not None for value in values):
            cells = ["-" if value is None else text(value) for value in values]
            rows.append([name.replace("_", " "), *cells])
    front = ["yes" if contender.is_on_front else "no" for contender in comparison.contenders]
    rows.append(["on the Pareto front", *front])
    return _table(rows)


def _tuning_lines(comparison: Comparison) -> list[str]:
    lines = []
    for contender in comparison.contenders:
        if contender.tuning is not None:
            values = ", ".join(f"{key}={value}" for key, value in contender.tuning.values.items())
            trials = f"{contender.tuning.trials} trials"
            lines.append(f"{contender.name}: {values} by validation, {trials}")
    return ["", *lines] if lines else []


def _bucket_table(comparison: Comparison, pair: Pair) -> list[str]:
    if not pair.buckets:
        return []
    title = f"{pair.first} - {pair.second}, {comparison.score}"
    rows = [[title, "items", "difference", "95 %"]]
    for bucket in pair.buckets:
        found = bucket.difference
        bounds = "" if found.low is None else f"{_number(found.low)} to {_number(found.high)}"
        name = f"{bucket.kind} {bucket.name}"
        rows.append([name, f"{bucket.items:,}", _number(found.score), bounds])
    return ["", *_table(rows)]


def _example_lines(pair: Pair, *, is_chat: bool) -> list[str]:
    """Examples in turn: one on which the first is better, one on which the second is."""
    better = [example for example in pair.examples if example.difference > 0]
    worse = [example for example in pair.examples if example.difference < 0]
    chosen = [*better[: SHOWN_EXAMPLES - 1], *worse[: SHOWN_EXAMPLES - 1]]
    if not chosen:
        return []
    wide = max(len(pair.first), len(pair.second), len("reference")) + 2
    lines = ["", f"where {pair.first} and {pair.second} differ most (answers of their first seeds)"]
    for example in chosen:
        prompt = turn_lines(example.prompt) if is_chat else [example.prompt]
        lines += [f"  {line}" for line in prompt]
        for name, answer in zip((pair.first, pair.second), example.answers, strict=True):
            lines.append(f"    {name:<{wide}}{answer}")
        lines += [f"    {'reference':<{wide}}{text}" for text in example.references[:2]]
    commands = next((example.commands for example in chosen if example.commands), [])
    lines += [f"  its attention: {command}" for command in commands]
    return lines


def _table(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Columns of the width they need; a row of one cell is a line."""
    widths = [0] * max(map(len, rows))
    for row in rows:
        if len(row) > 1:
            lengths = map(len, _full(row, widths))
            widths = [max(pair) for pair in zip(widths, lengths, strict=True)]
    lines = []
    for row in rows:
        if len(row) == 1:
            lines.append(row[0])
            continue
        first, *others = zip(_full(row, widths), widths, strict=True)
        cells = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _full(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [*row, *([""] * (len(widths) - len(row)))]


def _interval(value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return _number(value)
    return f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
