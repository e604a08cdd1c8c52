"""A budget, and what else was asked about the same model: what fits, counts, a plot, scaling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.budget import fits, of, plot, quantities
from regard.budget.closed_form.layers import Lengths
from regard.budget.closed_form.parts import Budget
from regard.budget.closed_form.supported import NoClosedForm
from regard.budget.scaling import LATENCY, Scaling
from regard.budget.subject import NamedModel, Subject
from regard.errors import InputError, printable
from regard.recipe import Recipe


@dataclass(frozen=True)
class Questions:
    """What is asked beside the budget."""

    memory: str | None = None  # what fits, as in 8GB
    fit: str | None = None  # the largest width, as in parameters=5M
    count: bool = False  # what is counted by running the model
    plot: Path | None = None  # where a plot of cost against length goes
    formulas: bool = False  # the formula of every figure
    scaling: Network | None = None  # how training scales over machines


@dataclass(frozen=True)
class Network:
    """Machines and what joins them, as it was typed. Without `flops` the rate is measured."""

    machines: int
    bandwidth: str
    latency: str | None = None
    flops: str | None = None


@dataclass(frozen=True)
class WidthFit:
    """The largest width with at most a number of parameters, and the command that trains it."""

    width: int
    command: str


@dataclass(frozen=True)
class MemoryFit:
    """What fits in a memory: for each use the largest batch and length."""

    memory: str  # as it was given
    bytes: int
    at: Lengths
    fits: dict[str, list[fits.Fit]]


@dataclass(frozen=True)
class Plot:
    """A plot of cost against length, and the length from which the Maclaurin series costs less."""

    file: Path
    terms: int
    crossover: int | None


@dataclass(frozen=True)
class Report:
    """The budget of a model, and the answers to the questions."""

    budget: Budget
    width: WidthFit | None = None
    memory: MemoryFit | None = None
    counts: dict[str, int] | None = None
    plot: Plot | None = None
    scaling: Scaling | None = None

    def to_json(self) -> dict[str, Any]:
        json = self.budget.to_json()
        if self.width is not None:
            json["fit"] = {"width": self.width.width}
        if self.memory is not None:
            json["fits"] = {
                use: {fit.what: fit.largest for fit in fits_of_use}
                for use, fits_of_use in self.memory.fits.items()
            }
            if "training" not in self.budget.memory:
                json["weights_fit"] = self.budget.memory["weights"] <= self.memory.bytes
        if self.counts is not None:
            json["counted"] = self.counts
        if self.plot is not None:
            json |= {"plot": str(self.plot.file), "crossover": self.plot.crossover}
        if self.scaling is not None:
            json["scaling"] = self.scaling.to_json()
        return json


@dataclass(frozen=True)
class CountReport:
    """The counts of a model that has no closed form, and the reason."""

    title: str
    reason: str
    parameters: int
    counts: dict[str, int]  # multiplications

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "parameters": self.parameters,
            "multiplications": self.counts,
            "flops": {name: 2 * count for name, count in self.counts.items()},
            "memory": {},
            "depth": {},
            "parts": [],
            "notes": [self.reason],
        }


def report(subject: Subject, at: Lengths, ask: Questions) -> Report | CountReport:
    """The budget of a model at a batch size and lengths, and what else is asked. A model without
    closed form is counted, if nothing but counts is asked."""
    memory = None if ask.memory is None else fits.amount(ask.memory, fits.BYTES, "--memory")
    width = None
    try:
        if ask.fit is not None:
            subject, width = _fit_width(subject, at, ask.fit)
        budget = subject.budget(at)
    except NoClosedForm as reason:
        if ask != Questions(count=True):
            raise
        counts = subject.count(at)
        parameters = counts.pop("parameters")
        return CountReport(subject.name, reason.what, parameters, counts)

    in_memory = None
    if ask.memory is not None and memory is not None:
        in_memory = MemoryFit(ask.memory, memory, at, fits.in_memory(subject.budget, at, memory))
    return Report(
        budget,
        width,
        in_memory,
        counts=subject.count(at) if ask.count else None,
        plot=None if ask.plot is None else _write_plot(subject, budget, ask.plot),
        scaling=None if ask.scaling is None else _scaling(subject, budget, at, ask.scaling),
    )


def _scaling(subject: Subject, budget: Budget, at: Lengths, network: Network) -> Scaling:
    """The estimate, with a rate that is given or measured."""
    bandwidth = quantities.bandwidth(network.bandwidth)
    latency = LATENCY if network.latency is None else quantities.latency(network.latency)
    estimate = Scaling(budget, network.machines, bandwidth, latency, flops=1.0)
    if network.flops is not None:
        return replace(estimate, flops=quantities.flops(network.flops))
    step = subject.time_of_step(at)
    rate = budget.flops["training"] / step.gradients
    return replace(estimate, flops=rate, update=step.update, is_measured=True)


def _fit_width(subject: Subject, at: Lengths, target: str) -> tuple[NamedModel, WidthFit]:
    """The recipe with the largest width that `target`, parameters=5M for example, allows."""
    model = subject.as_recipe()

    def make(recipe: Recipe) -> Budget:
        return of(recipe, at, vocabulary=model.vocabulary, labels=model.labels, title=model.name)

    width, overrides = fits.width(model.name, model.all_changes, make, target)
    changes = (*model.changes, *overrides)
    command = f"regard train {model.name} " + " ".join(f"--set {change}" for change in changes)
    return replace(model, changes=changes), WidthFit(width, command)


def _write_plot(subject: Subject, budget: Budget, file: Path) -> Plot:
    """Plot cost against length: with softmax, and with the Maclaurin series if it attends."""
    if file.suffix not in (".png", ".svg"):
        raise InputError("must end in .png or .svg", where="--plot", got=file)
    if not file.parent.is_dir():
        raise InputError("no such folder", where="--plot", got=file.parent)
    if fits.fixed(subject.budget):
        raise InputError(
            "its lengths are fixed: there is nothing to plot against",
            where="--plot",
            got=budget.title,
        )

    terms = subject.terms or 3
    softmax = subject.cost_by_length(lambda stack: replace(stack, kernel="softmax"))
    series = None
    if subject.attends:
        series = subject.cost_by_length(
            lambda stack: replace(
                stack, kernel="maclaurin", terms=terms, form="features", positions="none"
            )
        )
    crossover = plot.draw(file, printable(budget.title), softmax, series, terms=terms)
    return Plot(file, terms, crossover)
