"""How fast this machine trains a model: the seconds of a step, by making some."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn

from regard.budget.closed_form.layers import Lengths
from regard.budget.modules import training_batch
from regard.model import Model
from regard.resources import allocations

SECONDS = 3.0  # of the measurement, about
FEWEST = 3  # steps that are timed


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step.

    gradients   the forward and the backward pass: several machines share this work
    update      clipping, Adam, averaged weights: every machine does all of it
    """

    gradients: float
    update: float

    @property
    def whole(self) -> float:
        return self.gradients + self.update


def time_of_step(
    model: Model, at: Lengths, *, target: int, ctc_weight: float = 0.0, averages: bool = False
) -> StepTime:
    """The median times of training steps with an update by Adam, after one that is not timed."""
    batch = training_batch(model, at.B.value, at.S.value, target)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)
    weights: list[torch.Tensor] = [*model.parameters()]
    averaged: list[torch.Tensor] = [*copy.deepcopy(model).parameters()] if averages else []
    model.train()
    model.frontend.eval()  # its tempo perturbation would draw other lengths
    times: list[StepTime] = []
    end = time.perf_counter() + SECONDS
    with allocations():
        while len(times) < FEWEST + 1 or time.perf_counter() < end:
            start = time.perf_counter()
            loss, _ = model.loss(*batch, ctc_weight=ctc_weight)
            optimiser.zero_grad()
            loss.backward()
            middle = time.perf_counter()
            nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimiser.step()
            if averages:
                with torch.no_grad():
                    torch._foreach_lerp_(averaged, weights, 0.01)
            times.append(StepTime(middle - start, time.perf_counter() - middle))
    return StepTime(
        gradients=statistics.median(each.gradients for each in times[1:]),
        update=statistics.median(each.update for each in times[1:]),
    )
