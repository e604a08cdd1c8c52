"""How fast this machine trains a model: the seconds of a step, by making some."""

from __future__ import annotations

import statistics
import time

import torch

from regard.budget.closed_form.layers import Lengths
from regard.budget.modules import training_batch
from regard.model import Model
from regard.resources import allocations

SECONDS = 3.0  # of the measurement, about
FEWEST = 3  # steps that are timed


def seconds_of_step(model: Model, at: Lengths, *, target: int, ctc_weight: float = 0.0) -> float:
    """The median time of a training step with an update by Adam, after one that is not timed."""
    batch = training_batch(model, at.B.value, at.S.value, target)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)
    model.train()
    model.frontend.eval()  # its tempo perturbation would draw other lengths
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    with allocations():
        while len(times) < FEWEST + 1 or time.perf_counter() < end:
            start = time.perf_counter()
            loss, _ = model.loss(*batch, ctc_weight=ctc_weight)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
