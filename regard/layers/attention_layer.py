"""The interface of attention layers: what a Transformer block calls, whatever the kernel.

    start(…)           -> state                    before the first token
    forward(x, …)      -> y, weights               all positions at once
    step(x, state, …)  -> y, state, weights        one position of each row

The laws: T calls of `step` equal one `forward`; the state passed in stays valid; weights are None
unless `need_weights`, sum to 1, and are 0 at masked and later positions. The weights returned are
those that made y. A kernel that never computes weights (`form = "quadratic"`) returns those that
would make the same y, and in a step only if the state was started with `keep_keys`.
docs/add-an-attention.md shows how to add a kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.layers.positions import Positions
from regard.values import AttentionState, WeightsForm

# The mask of one query a row: booleans (True: may be attended to), or numbers added to the scores.
ScoreMask = Bool[Tensor, "_ _ 1 _"] | Float[Tensor, "_ _ 1 _"]
Rotation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class StepPosition:
    """The position of the token that a step reads, in each row. It is the same in all layers, and
    computes what they share once, when one of them asks."""

    position: Int[Tensor, " B"]
    max_position: int  # the largest of them, or more
    aligned: bool  # whether all rows are at `max_position`
    positions: Positions

    @property
    def index(self) -> Int[Tensor, " B"] | int:
        """One number for all rows where they are aligned, else one for each row."""
        return self.max_position if self.aligned else self.position

    @cached_property
    def rotation(self) -> Rotation | None:
        """The rotation of queries and keys; None: no rotation."""
        place = self.position[:1] if self.aligned else self.position[:, None]
        return self.positions.rotation(place)

    @cached_property
    def score_mask(self) -> ScoreMask | None:
        """What is added to the scores of the keys 0..max_position, or which of them each row may
        attend to; None: nothing, all."""
        if self.aligned and not self.positions.uses_bias:
            return None
        keys = torch.arange(self.max_position + 1, device=self.position.device)
        mask = None if self.aligned else (keys <= self.position[:, None])[:, None, None]
        bias = self.positions.bias(self._place, keys)  # (H, 1, C) or (B, H, 1, C)
        if bias is None:
            return mask  # (B, 1, 1, C)
        return bias[None] if mask is None else torch.where(mask, bias, -torch.inf)

    @property
    def _place(self) -> Int[Tensor, "B 1"] | int:
        return self.max_position if self.aligned else self.position[:, None]


class SelfAttention(nn.Module, ABC):
    """The interface of attention of a sequence to itself."""

    form: WeightsForm = "softmax"  # of the weights

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B T"] | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "_ H T T"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T T"] | None]:
        """All positions at once. `mask` is True at the keys that may be attended to; with `causal`
        no position attends to later ones. `rotation` is applied to queries and keys. `bias` is
        added to the scores and contains the masks as -inf: it is the same in all layers, so it is
        computed once outside of them."""

    @abstractmethod
    def start(self, rows: int, like: Tensor, *, keep_keys: bool = False) -> AttentionState:
        """The state of `rows` rows before the first position, on the device and with the dtype of
        `like`. With `keep_keys` it has all that steps need to return weights."""

    @abstractmethod
    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        at: StepPosition,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 _"] | None]:
        """`forward` with `causal` for one position of each row, and the next state."""


class CrossAttention(nn.Module, ABC):
    """The interface of attention of the target to the memory."""

    form: WeightsForm = "softmax"  # of the weights

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S E"],
        *,
        mask: Bool[Tensor, "B S"],
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"] | None]:
        """All positions at once. `mask` is True at the places that may be attended to."""

    @abstractmethod
    def start(
        self,
        memory: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B S"],
        *,
        keep_keys: bool = False,
    ) -> AttentionState:
        """What every step needs of the memory, computed once. With `keep_keys` it has all that
        steps need to return weights."""

    @abstractmethod
    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        *,
        mask: Bool[Tensor, "B S"] | None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 S"] | None]:
        """`forward` for one position of each row, and the state. `mask` is None if nothing is
        masked."""
