"""What learns: a model, its optimiser and the moving average of its weights, held by all ranks
together.

    Replicated      each rank has all of it (DistributedDataParallel)
    Sharded         each rank has a part of every tensor (FSDP2), in sharded.py
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard import checkpoint
from regard.checkpoint import Progress
from regard.model import Model
from regard.optimise import optimiser
from regard.recipe import Train
from regard.train.parts import Part
from regard.train.ranks import Ranks


class Loss(nn.Module):
    """`Model.loss` on the device and in the precision of a run, as a module."""

    def __init__(self, model: Model, how: Train, device: torch.device):
        super().__init__()
        self.model = model
        self.how = how
        self.device = device

    def forward(self, part: Part, contrastive_weight: float) -> tuple[Tensor, Tensor]:
        is_half = self.how.precision == "bfloat16"
        others = part.others
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_half):
            return self.model.loss(
                *part.batch.to(self.device),
                smoothing=self.how.label_smoothing,
                ctc_weight=self.how.ctc_weight,
                others=None if others is None else others.to(self.device),
                contrastive_weight=contrastive_weight,
                unlikelihood_weight=self.how.unlikelihood_weight,
            )


class Learner(ABC):
    """A model under training, its optimiser and its averaged weights. All ranks make the same
    calls, in the same order."""

    model: Model
    optimiser: torch.optim.Optimizer
    loss: nn.Module  # its gradients are the mean over all ranks

    @abstractmethod
    def begin(self) -> None:
        """The first step comes next."""

    @abstractmethod
    def accumulating(self) -> contextlib.AbstractContextManager[None]:
        """More gradients come before the next update."""

    @abstractmethod
    def clip_gradients(self, max_norm: float) -> float:
        """Scale the gradients down to an L2 norm; 0: leave them. The norm before that, which is the
        same on all ranks."""

    @abstractmethod
    def update_average(self, decay: float) -> None:
        """Move the averaged weights, if there are any, towards the weights."""

    @abstractmethod
    def judged(self) -> Model | None:
        """The model with the weights that are validated and kept, the averaged ones if there are
        any. Only the leader gets it."""

    @abstractmethod
    def save(self, run: Path, progress: Progress) -> None:
        """Write a checkpoint."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restore a checkpoint."""

    @abstractmethod
    def set_idf(self, idf: Tensor) -> None:
        """Set the inverse document frequencies that are saved with the weights."""


class Replicated(Learner):
    """Each rank has the whole model. Only the leader has the averaged weights, and reads and writes
    checkpoints."""

    def __init__(self, model: Model, how: Train, device: torch.device, ranks: Ranks):
        self.model = model.to(device)
        self.average = copy.deepcopy(self.model) if how.ema_decay and ranks.is_leader else None
        self.optimiser = optimiser(self.model, how)
        self.loss = Loss(self.model, how, device)
        self._device = device
        self._ranks = ranks

    def begin(self) -> None:
        if self._ranks.world > 1:
            self.loss = _synchronised(self.loss)  # this gives all ranks the leader's weights

    def accumulating(self) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.loss, DistributedDataParallel):
            return self.loss.no_sync()
        return contextlib.nullcontext()

    def clip_gradients(self, max_norm: float) -> float:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm or math.inf, foreach=True)
        return float(norm)

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        if self.average is not None:
            averages: list[Tensor] = [*self.average.parameters()]
            weights: list[Tensor] = [*self.model.parameters()]
            torch._foreach_lerp_(averages, weights, 1 - decay)

    def judged(self) -> Model | None:
        if not self._ranks.is_leader:
            return None
        return self.model if self.average is None else self.average

    def save(self, run: Path, progress: Progress) -> None:
        self._ranks.lead(
            lambda: checkpoint.save(run, self.model, self.average, self.optimiser, progress)
        )

    def load(self, folder: Path) -> None:
        def load_here() -> dict[str, tuple[list[int], str]]:
            checkpoint.load(folder, self.model, self.average, self.optimiser)
            state = checkpoint.optimiser_tensors(self.model, self.optimiser)
            return {
                name: (list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
                for name, tensor in state.items()
            }

        forms = self._ranks.lead(load_here)
        self._copy_optimiser(forms)  # weights are copied when the first step begins

    def _copy_optimiser(self, forms: dict[str, tuple[list[int], str]]) -> None:
        """Give the optimisers of all ranks the state that the leader restored."""
        state = checkpoint.optimiser_tensors(self.model, self.optimiser)
        if not self._ranks.is_leader:
            state = {
                name: torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
                for name, (shape, dtype) in forms.items()
            }
        self._ranks.copy([state[name] for name in forms])
        if not self._ranks.is_leader:
            checkpoint.load_optimiser(self.optimiser, self.model, state)

    def set_idf(self, idf: Tensor) -> None:
        for model in (self.model, self.average):
            if model is not None:
                model.idf.copy_(idf)


def _synchronised(module: nn.Module) -> DistributedDataParallel:
    # With find_unused_parameters, DDP does not arrange its buckets anew after the first step:
    # sums are added up in the same order before and after a resume. It warns if it finds none.
    device = next(module.parameters()).device
    module.register_parameter("unused", nn.Parameter(torch.zeros((), device=device)))
    with warnings.catch_warnings():
        # The name of broadcast_buffers in later versions is not known to earlier ones.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            module,
            broadcast_buffers=False,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
