"""A report as text: a table of the parts, lines about the whole model, formulas."""

from __future__ import annotations

from collections.abc import Callable

from regard.budget.closed_form.parts import Budget, Part, columns
from regard.budget.closed_form.symbols import Formula
from regard.budget.fits import LARGEST, STEP, Fit
from regard.budget.report import CountReport, MemoryFit, Plot, Report
from regard.budget.scaling import ASSUMPTIONS, Scaling

DEFINITIONS = """\
multiplications  those inside matrix products, convolutions, attention and recurrent cells;
                 positions hidden by a causal mask count, elementwise operations do not
FLOPs            2 x multiplications: one multiplication and one addition each
forward          a forward pass over B rows of S source and T target positions, no padding
training         forward pass, loss and backward pass of the same batch
prefill          all work for one row before its first token: encoder, keys and values
decode step      one token of one row, at position t = T
State            what one row keeps between decode steps: key/value cache, recurrent state
depth            longest chain of dependent operations; a sum of n takes log n = ceil(log2 n)
memory           4 bytes per number; activations are what the backward pass needs;
                 peak training memory is the most that weights, gradients, optimiser state
                 and activations take at any moment of a training step"""
NAMES = {  # fields of a Part -> what is printed
    "start": "prefill",
    "token": "decode step",
    "growth": "decode step, per earlier token",
    "token_depth": "depth of a decode step",
    "saved": "bytes of activations",
    "work": "bytes of working memory, training",
    "room": "bytes of working memory, inference",
    "state": "bytes of State",
    "state_growth": "bytes of State per token",
}


def text(report: Report | CountReport) -> list[str]:
    """The lines of a report."""
    if isinstance(report, CountReport):
        return _count_table(report)

    lines = table(report.budget)
    if report.width is not None:
        width = report.width
        lines.append(f"fits            width {width.width:,}, in steps of {STEP}: {width.command}")
    if report.memory is not None:
        lines += _memory_lines(report.budget, report.memory)
    if report.counts is not None:
        lines += _count_lines(report.budget, report.counts)
    if report.plot is not None:
        lines.append(_plot_line(report.plot))
    if report.scaling is not None:
        lines += _scaling_lines(report.scaling)
    return lines


def table(budget: Budget) -> list[str]:
    """Sizes, a row for each part, totals, and the lines about the whole model."""
    work = ["parameters", "forward", "training"]
    if budget.sum("token").value:
        work.append("token")
    if budget.depth:
        work.append("depth")
    with_memory = bool(budget.memory.get("activations"))
    length = budget.size("T") or budget.size("L")

    def row(name: str, value_of: Callable[[str], int]) -> list[str]:
        cells = [_count(value_of(column)) for column in work]
        if with_memory:
            state = value_of("state") + length * value_of("state_growth")
            cells += [_size(size) if size else "-" for size in (value_of("saved"), state)]
        return [name, *cells]

    def part_row(part: Part) -> list[str]:
        return row(part.name, lambda column: getattr(part, column).value)

    memory_header = ["activations", "State"] if with_memory else []
    header = ["", *(NAMES.get(column, column) for column in work), *memory_header]
    total = row("total", lambda column: budget.sum(column).value)
    flops = ["FLOPs"]
    for column in work:
        is_work = column in ("forward", "training", "token")
        flops.append(f"{2 * budget.sum(column).value:,}" if is_work else "")
    flops += [""] * len(memory_header)

    rows = [header, *(part_row(part) for part in budget.parts if columns(part)), total, flops]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_aligned(row, widths) for row in rows]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    sizes = ", ".join(f"{size.name} = {size.value:,} ({size.meaning})" for size in budget.sizes)
    return [
        budget.title,
        sizes,
        "",
        *lines[:-2],
        rule,
        *lines[-2:],
        "",
        *_whole(budget),
        *(f"note            {note}" for note in budget.notes),
        *_shapes(budget),
    ]


def _aligned(row: list[str], widths: list[int]) -> str:
    """The first cell to the left, the others to the right."""
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def _whole(budget: Budget) -> list[str]:
    """The lines about the whole model, below the table."""
    work = budget.multiplications
    depth = budget.depth
    memory = budget.memory
    lines: list[str] = []

    if work["start"]:
        lines.append(f"prefill         {work['start']:,} multiplications per row")
    if work["token"]:
        growth = "the same at every position"
        if work["growth"]:
            growth = f"{work['growth']:,} more for each earlier token"
        lines.append(
            f"decode step     {work['token']:,} multiplications at this position, {growth}"
        )
    if depth:
        step = f", a decode step {depth['token']:,}" if depth["token"] else ""
        lines.append(f"depth           forward pass {depth['forward']:,} sequential steps{step}")
    if memory.get("state"):
        growth = "constant"
        if memory["state_token"]:
            growth = f"{_size(memory['state_token'])} more per token"
        lines.append(f"State           {_size(memory['state'])} per row at this position, {growth}")
    if "training" in memory:
        lines.append(f"training        {_size(memory['training'])} peak; {_memory_parts(memory)}")
        lines.append(f"inference       {_size(memory['inference'])} peak of a forward pass")
    else:
        lines.append(f"memory          {_memory_parts(memory)}")
    return lines


def _memory_parts(memory: dict[str, int]) -> str:
    names = ("weights", "gradients", "optimiser", "activations")
    return ", ".join(f"{name} {_size(memory[name])}" for name in names if name in memory)


def _shapes(budget: Budget) -> list[str]:
    if not budget.shapes:
        return []
    widest = max(len(name) for name, _ in budget.shapes)
    lines = ["", "shapes"]
    for name, shape in budget.shapes:
        letters = " x ".join(getattr(axis, "name", str(axis)) for axis in shape)
        numbers = " x ".join(f"{getattr(axis, 'value', axis):,}" for axis in shape)
        lines.append(f"  {name:<{widest}}  {letters:<14}  {numbers}")
    return lines


def _count(count: int) -> str:
    return f"{count:,}" if count else "-"


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"


def _memory_lines(budget: Budget, memory: MemoryFit) -> list[str]:
    """What fits in a memory. Of a Hugging Face config the activations are not known, so only its
    weights and its key/value cache are compared with the memory."""
    is_known = "training" in budget.memory
    lines = [f"in {memory.memory.strip()} fit"]
    if not is_known:
        weights = budget.memory["weights"]
        verdict = "yes" if weights <= memory.bytes else "no"
        lines.append(f"  weights       {verdict}, {_size(weights)}")

    settings = {"batch": "at these lengths", "length": f"at batch {memory.at.B.value:,}"}
    for use, fits_of_use in memory.fits.items():
        phrases = [_fit_phrase(fit, settings[fit.what]) for fit in fits_of_use]
        lines.append(f"  {use:<12}  " + ", or ".join(phrases))

    if not is_known:
        least = sum(budget.memory[name] for name in ("weights", "gradients", "optimiser"))
        verdict = (
            "depends on the activations, which are not known for a "
            f"config.json: {_size(least)} without them"
        )
        if least > memory.bytes:
            verdict = f"no: {_size(least)} without activations"
        lines.append(f"  training      {verdict}")
    return lines


def _fit_phrase(fit: Fit, setting: str) -> str:
    if fit.largest is None:
        return f"no {fit.what}"
    if fit.largest >= LARGEST:
        return f"a {fit.what} of {LARGEST:,} or more {setting}"
    limit = " (its positions end there)" if fit.limit else ""
    return f"a {fit.what} of {fit.largest:,}{limit} {setting}"


def _count_lines(budget: Budget, counts: dict[str, int]) -> list[str]:
    """Each count beside its formula's value."""
    closed = {"parameters": budget.parameters} | budget.multiplications
    lines = ["", f"{'counted by running':<24}{'count':>20}  {'formula':>20}"]
    for name, count in counts.items():
        difference = count - closed[name]
        verdict = f"differs by {difference:+,}" if difference else "equal"
        label = NAMES.get(name, name)
        lines.append(f"  {label:<22}{count:>20,}  {closed[name]:>20,}  {verdict}")
    return lines


def _count_table(report: CountReport) -> list[str]:
    """The counts of a model that has no closed form."""
    lines = [
        f"{report.title}: {report.reason}",
        "",
        f"{'counted by running':<24}{'multiplications':>20}  {'FLOPs':>20}",
    ]
    for name, count in report.counts.items():
        lines.append(f"  {NAMES.get(name, name):<22}{count:>20,}  {2 * count:>20,}")
    return [*lines, f"parameters{report.parameters:>34,}"]


def _plot_line(plot: Plot) -> str:
    line = f"wrote {plot.file}"
    if plot.crossover:
        line += (
            f"; {plot.terms} Maclaurin terms need fewer multiplications "
            f"from length {plot.crossover:,} on"
        )
    return line


def _scaling_lines(scaling: Scaling) -> list[str]:
    """A row for 1, 2, 4, … machines, and what it is computed from."""
    header = ["machines", "computation", "communication", "step", "speed-up", "efficiency"]
    rows = [header]
    for row in scaling.rows():
        ends = (row.worst, row.best)
        speed_ups = [f"{row.speed_up(end):.2f}" for end in ends]
        shares = [f"{row.efficiency(end):.0%}" for end in ends]
        rows.append(
            [
                f"{row.machines:,}",
                _time(row.computation),
                _time(row.communication),
                _range([_time(end) for end in ends]),
                _range(speed_ups),
                _range(shares),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sent = 2 * (scaling.machines - 1) * scaling.gradients / scaling.machines
    share = f"with {scaling.machines:,} machines each sends {_size(round(sent))} a step"
    buckets = "1 bucket" if scaling.buckets == 1 else f"{scaling.buckets:,} buckets"
    how = "measured on this machine" if scaling.is_measured else "as given"
    rate = f"{scaling.flops / 1e9:,.4g} GFLOPs a second of each machine, {how}"
    link = f"{scaling.bandwidth * 8 / 1e9:,.4g} Gb a second, {scaling.latency * 1e6:,.4g} us"
    lines = [
        "",
        "scaling over machines, worst case (no overlap) to best case (overlap)",
        *(_aligned(row, widths) for row in rows),
        "",
        f"gradients       {_size(scaling.gradients)} in {buckets}; {share}",
        f"rate            {rate}",
        f"links           {link} of latency",
    ]
    if scaling.update:
        took = f"{_time(scaling.update)} a step, all of it on every machine, measured"
        lines.append(f"update          {took}")
    if scaling.half_batch is not None:
        lines.append(
            f"half            communication is half of a step at a batch of "
            f"{scaling.half_batch:,} (B = {scaling.budget.size('B'):,} here), without overlap"
        )
    if scaling.budget.size("B") < scaling.machines:
        lines.append(
            "note            there are fewer rows than machines, so some have nothing to do"
        )
    return [*lines, *(f"assumption      {text}" for text in ASSUMPTIONS)]


def _range(texts: list[str]) -> str:
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _time(seconds: float) -> str:
    """
    >>> _time(0.0), _time(0.00432), _time(2.5), _time(3e-5)
    ('-', '4.32 ms', '2.5 s', '30 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e6:,.3g} us" if seconds else "-"


def scaling_formula_lines(scaling: Scaling) -> list[str]:
    """The times of a step with all machines: symbols, numbers, value."""
    sizes = f"N = {scaling.machines:,}, G = 4 P, K buckets, W bytes a second, a seconds of latency"
    if scaling.update:
        sizes += ", U seconds of the update"
    lines = [f"scaling  ({sizes}, R multiplications a second, F forward, M training)"]
    for name, each in scaling.formulas().items():
        lines += [
            f"  {name}: {each.symbols}",
            f"    = {each.numbers}",
            f"    = {_time(each.value)}",
        ]
    return lines


def formula_lines(budget: Budget) -> list[str]:
    """Every figure of the table: symbols, numbers, value."""
    lines: list[str] = []
    for part in budget.parts:
        own_sizes = [size for size in part.sizes if size not in budget.sizes]
        sizes = ", ".join(f"{size.name} = {size.value:,}" for size in own_sizes)
        lines.append(f"{part.name}  ({sizes})" if sizes else part.name)
        for name, formula in columns(part).items():
            lines += _formula(NAMES.get(name, name), formula)

    lines.append("memory, in bytes")
    for name, formula in budget.bytes.items():
        lines += _formula("state per token" if name == "state_token" else name, formula)
    return lines


def _formula(name: str, formula: Formula) -> list[str]:
    if formula.symbols == formula.numbers:
        return [f"  {name}: {formula.value:,}"]
    return [f"  {name}: {formula.symbols}", f"    = {formula.numbers}", f"    = {formula.value:,}"]
