"""A model whose weights, gradients and optimiser state are spread over ranks, each having a part of
the rows of every tensor: fully sharded data parallelism (Zhao et al. 2023, FSDP2 of torch).

A rank gathers the weights of a Transformer block when it computes the block, and drops them after
it. What is in no such block (embeddings, recurrent and convolution layers) is gathered for a whole
step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from regard import checkpoint
from regard.checkpoint import AVERAGE, OPTIMISER, WEIGHTS, Content, Progress
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.model import Model
from regard.optimise import optimiser
from regard.recipe import Train
from regard.train.learner import Learner, Loss
from regard.train.ranks import Ranks
from regard.weights import OpenedTensors, check_names, check_shape, tensors


class Sharded(Learner):
    """Each rank has a part of every parameter, of its average and of its optimiser state; buffers
    are whole. Each rank writes the part that it has.

    `make` builds the model: the leader needs a whole one for each validation.
    """

    def __init__(
        self,
        make: Callable[[], Model],
        how: Train,
        device: torch.device,
        ranks: Ranks,
    ):
        self._make = make
        self._device = device
        self._ranks = ranks
        self.model = make()
        self.loss = _shard(Loss(self.model, how, device), device, ranks.world)
        # Of the shards, which are other parameters than those before.
        self.optimiser = optimiser(self.model, how)
        self._average: dict[str, DTensor] | None = None
        if how.ema_decay:
            self._average = {
                name: cast(DTensor, weight.clone()) for name, weight in self._weights().items()
            }

    def begin(self) -> None:
        pass

    def accumulating(self) -> contextlib.AbstractContextManager[None]:
        # Gradients are exchanged after each batch: otherwise each rank would keep whole ones.
        return contextlib.nullcontext()

    def clip_gradients(self, max_norm: float) -> float:
        gradients = [
            parameter.grad.to_local()
            for parameter in self.model.parameters()
            if isinstance(parameter.grad, DTensor)
        ]
        own_norm = float(nn.utils.get_total_norm(gradients, foreach=True))
        (squares,) = self._ranks.sum(own_norm**2)
        norm = math.sqrt(squares)
        if max_norm and norm > max_norm:
            torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        if self._average is not None:
            averages = [average.to_local() for average in self._average.values()]
            weights = [weight.to_local() for weight in self._weights().values()]
            torch._foreach_lerp_(averages, weights, 1 - decay)

    @torch.no_grad()
    def judged(self) -> Model | None:
        model = self._make().to(self._device) if self._ranks.is_leader else None
        whole = {} if model is None else tensors(model)
        averages: dict[str, Tensor] = {} if self._average is None else {**self._average}
        for name, tensor in (tensors(self.model) | averages).items():
            # All ranks gather it. One tensor at a time, so that none of them has all.
            gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if model is not None:
                whole[name].copy_(gathered)
        return model

    def set_idf(self, idf: Tensor) -> None:
        self.model.idf.copy_(idf)

    # -- checkpoints -----------------------------------------------------------------------------

    def save(self, run: Path, progress: Progress) -> None:
        ranks = self._ranks
        target = checkpoint.folder_of(run, progress.step)
        sums: dict[str, str] = {}

        def write_shards(new_folder: Path | None) -> None:
            """Each rank writes its files into the folder that the leader has made."""
            draft = Path(ranks.lead(lambda: str(new_folder)))
            content = self._own_content()
            own = checkpoint.write_shard(draft, target, content, ranks.rank, ranks.world)
            for of_rank in ranks.gather(own):
                sums.update(of_rank)

        if ranks.is_leader:
            checkpoint.save_folder(run, progress, write_shards, sums)
        else:
            write_shards(None)
        ranks.lead(lambda: None)  # nobody goes on before it is whole

    def _own_content(self) -> Content:
        """The tensors that this rank saves: its shards, and if it is the leader what is whole."""
        content: dict[str, dict[str, Tensor]] = {WEIGHTS: tensors(self.model)}
        if self._average is not None:
            content[AVERAGE] = tensors(self.model) | self._average
        content[OPTIMISER] = checkpoint.optimiser_tensors(self.model, self.optimiser)
        return {name: self._own_tensors(part) for name, part in content.items()}

    def _own_tensors(self, whole: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {}
        for name, tensor in whole.items():
            if isinstance(tensor, DTensor):
                own[name] = tensor.to_local().contiguous()
            elif self._ranks.is_leader:
                own[name] = tensor
        return own

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        files = checkpoint.tensor_files(folder, WEIGHTS)
        with files.opened() as saved:
            check_names(tensors(self.model).keys(), saved.names, files)
            for name, tensor in tensors(self.model).items():
                check_shape(name, tensor.shape, saved.shape(name), files)
                self._fill(tensor, saved, name)
        if self._average is not None:
            # Without saved averages, averaging was not on yet: the mean begins with the weights.
            with checkpoint.judged_weights(folder).opened() as saved:
                for name, tensor in self._average.items():
                    self._fill(tensor, saved, name)
        with checkpoint.tensor_files(folder, OPTIMISER).opened() as saved:
            self._load_optimiser(saved)

    def _load_optimiser(self, saved: OpenedTensors) -> None:
        parameters = dict(self.model.named_parameters())
        for name in saved.names:
            owner, key = name.rsplit("/", 1)
            parameter = parameters[owner]
            if saved.shape(name) == ():  # the number of steps
                state = saved.whole(name).to(self._device)
            else:
                state = torch.zeros_like(parameter)
                self._fill(state, saved, name)
            self.optimiser.state[parameter][key] = state

    def _fill(self, tensor: Tensor, saved: OpenedTensors, name: str) -> None:
        """Give a tensor its saved values; of a shard, those of its rows."""
        if not isinstance(tensor, DTensor):
            tensor.copy_(saved.whole(name))
            return
        local = tensor.to_local()
        if not len(local):
            return
        start = self._ranks.rank * math.ceil(len(tensor) / self._ranks.world)
        local.copy_(saved.rows(name, start, start + len(local)))

    def _weights(self) -> dict[str, DTensor]:
        named = tensors(self.model).items()
        return {name: tensor for name, tensor in named if isinstance(tensor, DTensor)}


def _shard(module: Loss, device: torch.device, world: int) -> nn.Module:
    """Spread the parameters of a module over all ranks. It is built on the CPU, and a GPU never has
    more of it than its shards and one block."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (world,))
    for layers in module.modules():
        if not isinstance(layers, nn.ModuleList):
            continue
        for layer in layers:
            if isinstance(layer, EncoderBlock | DecoderBlock):
                fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module
