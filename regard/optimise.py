"""AdamW or plain SGD, its learning rate over time, and the share of a budget that is used up."""

from __future__ import annotations

import math

import torch

from regard.model import Model
from regard.recipe import Train


def optimiser(model: Model, how: Train) -> torch.optim.Optimizer:
    """AdamW or SGD over groups of parameters; `peak` is the highest learning rate of a group.

    Weight decay applies to matrices, and to vectors if `decay_biases_and_norms`. The decoder may
    have a learning rate of its own.
    """
    vector_decay = how.weight_decay if how.decay_biases_and_norms else 0.0
    rates = {
        "frontend": how.learning_rate,
        "encoder": how.learning_rate,
        "decoder": how.decoder_learning_rate,
    }
    groups = []
    for part, rate in rates.items():
        own = [p for name, p in model.named_parameters() if name.startswith(f"{part}.")]
        matrices = [p for p in own if p.ndim > 1]
        vectors = [p for p in own if p.ndim < 2]
        for parameters, decay in ((matrices, how.weight_decay), (vectors, vector_decay)):
            if parameters:
                groups.append(
                    {"params": parameters, "lr": rate, "peak": rate, "weight_decay": decay}
                )
    if how.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=how.learning_rate)
    return torch.optim.AdamW(groups, betas=how.betas, fused=True)


def factor(how: Train, step: int, done: float, epochs: float = 0.0) -> float:
    """What the peak rate is multiplied by at `step` (from 0), when `done` (0 to 1) of the budget is
    used up after so many `epochs`, of which the last may be under way.

    >>> how = Train(steps=100, warmup_steps=4, schedule="inverse-sqrt")
    >>> [factor(how, step, step / 100) for step in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    >>> how = Train(epochs=5, warmup_steps=2, final_learning_rate_share=0.0, schedule="epochs")
    >>> [factor(how, 0, epoch / 5, epoch) for epoch in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]

    With 2 steps an epoch, 10 steps are 5 epochs:

    >>> how = Train(steps=10, warmup_steps=2, final_learning_rate_share=0.0, schedule="epochs")
    >>> [factor(how, step, step / 10, step / 2) for step in range(10)]
    [0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 0.5, 0.5, 0.0, 0.0]
    """
    final = how.final_learning_rate_share
    if how.schedule == "epochs":
        epoch = int(epochs)
        falling = (epoch - how.warmup_steps) / max(
            1, _expected_epochs(how, done, epochs) - how.warmup_steps - 1
        )
        height = epoch / how.warmup_steps if epoch < how.warmup_steps else max(0.0, 1 - falling)
        return final + (1 - final) * height
    warm = min(1.0, (step + 1) / how.warmup_steps) if how.warmup_steps else 1.0
    match how.schedule:
        case "inverse-sqrt":
            return warm * math.sqrt(max(how.warmup_steps, 1) / max(step + 1, how.warmup_steps, 1))
        case "cosine":
            return warm * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)
        case "linear":
            return warm * (final + (1 - final) * (1 - done))
        case "constant":
            return warm


def _expected_epochs(how: Train, done: float, epochs: float) -> int:
    """The epochs a run will begin. Under a budget of something else they are estimated from its
    pace so far."""
    if how.epochs is not None:
        return how.epochs
    if not done:
        return 1
    rounding = 1e-6  # 2.0000000001 epochs are two
    return math.ceil(epochs / done - rounding)


def used_up(how: Train, *, step: int, epochs: float, tokens: int, minutes: float) -> float:
    """The share of the budget that is used up, by whichever limit is nearest.

    >>> used_up(Train(steps=100, minutes=2), step=50, epochs=1.5, tokens=9000, minutes=1.5)
    0.75
    """
    used = ((step, how.steps), (epochs, how.epochs), (tokens, how.tokens), (minutes, how.minutes))
    return min(1.0, max(amount / limit for amount, limit in used if limit))
