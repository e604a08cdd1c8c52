"""The page of a comparison: the verdict first, then everything it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from regard.compare.cost_sections import cost_section
from regard.compare.curve_sections import curve_sections
from regard.compare.other_scores import NOT_ADJUSTED, other_scores
from regard.compare.pair_sections import pair_sections
from regard.compare.record import Comparison, ContenderResult, Pair
from regard.compare.score_sections import difference_sections, plain_cell, score_section
from regard.compare.verdict import count, score_name
from regard.pages.shell import Page, Section, Table

OPEN_PAIRS = 1  # pairs whose buckets and examples are seen at once

AGAIN = (
    "The same command continues a comparison that was stopped and repeats nothing that is "
    "finished. comparison.json has all numbers of this page."
)


def comparison_page(comparison: Comparison) -> Page:
    """The page of a comparison, whose numbers are those of its record."""
    sections = [
        _verdict(comparison),
        *_notes(comparison),
        score_section(comparison),
        *difference_sections(comparison),
        cost_section(comparison),
        *curve_sections(comparison),
    ]
    for number, pair in enumerate(comparison.pairs):
        sections += pair_sections(comparison, pair, is_collapsed=number >= OPEN_PAIRS)
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
    sentences = [_pair_verdict(comparison.score, pair) for pair in comparison.pairs]
    if comparison.advice:
        sentences.insert(0, comparison.advice)
    if not comparison.is_complete:
        sentences.insert(0, "Not all runs have finished: this is what is known so far.")
    return Section("", id="verdict", paragraphs=tuple(sentences), is_verdict=True)


def _pair_verdict(score: str, pair: Pair) -> str:
    """The verdict; where it is undecided or contradicted, also what other scores say."""
    sentence = f"{_capital(pair.verdict)}."
    others = other_scores(score, pair)
    return f"{sentence} {others} {NOT_ADJUSTED}" if others else sentence


def _capital(text: str) -> str:
    """A sentence begins with a capital letter, but a name stays as it is."""
    beginnings = ("this run", "these runs")
    return text[0].upper() + text[1:] if text.startswith(beginnings) else text


def _notes(comparison: Comparison) -> Iterator[Section]:
    if comparison.notes:
        notes = tuple(f"{note[0].upper()}{note[1:]}." for note in comparison.notes if note)
        yield Section("Notes", id="notes", paragraphs=notes)


# -- what it rests on --


def _same(comparison: Comparison) -> Section:
    rows = tuple(comparison.same.items()) or (("split of the verdict", comparison.split),)
    table = Table(("", "all contenders"), rows)
    return Section("The same for all contenders", id="same", tables=(table,))


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
            shown = plain_cell(comparison.score, value)
            rows.append(
                (
                    contender.name,
                    result.seed,
                    shown,
                    state,
                    result.kept_step,
                    result.best_step,
                    result.run,
                )
            )
    columns = (
        "contender",
        "seed",
        score_name(comparison.score),
        "state",
        "weights of step",
        "best validation at step",
        "folder",
    )
    failed = sum(contender.failed for contender in comparison.contenders)
    paragraphs = (f"{count(failed, 'run')} failed; a failure is a result, too.",) if failed else ()
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
            f"{count(comparison.trials, 'trial')} for each contender, with a seed that no run has. "
            "The best validation score decided."
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
        "Run it again",
        id="again",
        paragraphs=(AGAIN,),
        code=comparison.command,
        links=(("comparison.json", "comparison.json"), ("comparison.png", "comparison.png")),
    )
