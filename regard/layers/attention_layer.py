"""The interface of attention layers, which Transformer blocks call. A kernel (softmax attention,
linear attention) implements it by two classes, for self-attention and for cross-attention.

    start(…)           -> state                    before the first token
    forward(x, …)      -> y, weights               all positions at once
    step(x, state, …)  -> y, state, weights        one position of each row

The laws that tests check: T calls of `step` equal one `forward`; the state passed in stays valid;
weights are None unless `need_weights`, sum to 1, and are 0 at masked and later positions. The
weights returned are those from which y was computed. A kernel that computes y without weights
(`form = "quadratic"`) returns those that would give the same y, and in a step only if the state was
started with `keep_keys`. docs/add-an-attention.md shows how to add a kernel.
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
# Rotary position embedding, applied to queries and keys.
Rotation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class StepPosition:
    """The position of the token that a step reads, in each row, with the rotation and the mask that
    follow from it. All layers of a step share one, so that these are computed only once."""

    position: Int[Tensor, " B"]
    max_position: int  # an upper bound of `position`
    aligned: bool  # whether all rows are at `max_position`
    positions: Positions  # the position embedding of the decoder

    @property
    def index(self) -> Int[Tensor, " B"] | int:
        """The position: one number if the rows are aligned, else a tensor."""
        return self.max_position if self.aligned else self.position

    @cached_property
    def rotation(self) -> Rotation | None:
        """The rotation of queries and keys; None: no rotation."""
        place = self.position[:1] if self.aligned else self.position[:, None]
        return self.positions.rotation(place)

    @cached_property
    def score_mask(self) -> ScoreMask | None:
        """The mask over the keys 0..max_position: a bias that is added to their scores, or booleans
        that are True where a row may attend; None: no bias, and every row may attend to all."""
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
    """The interface of self-attention layers."""

    form: WeightsForm = "softmax"  # of the weights it returns: see `AttentionWeights.form`

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
        """All positions at once.

        mask      True at the keys that may be attended to
        causal    no position attends to later ones
        rotation  is applied to queries and keys
        bias      is added to the scores. It already contains the masks, as -inf: the sum is the
                  same in all layers, so the caller computes it once
        """

    @abstractmethod
    def start(self, rows: int, like: Tensor, *, keep_keys: bool = False) -> AttentionState:
        """The state of `rows` rows before the first position, on the device and with the dtype of
        `like`. With `keep_keys` it holds what `step` needs to return weights."""

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
    """The interface of cross-attention layers: the target attends to the memory."""

    form: WeightsForm = "softmax"  # of the weights it returns: see `AttentionWeights.form`

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S E"],
        *,
        mask: Bool[Tensor, "B S"],
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"] | None]:
        """All positions at once. `mask` is True at the positions of the memory that may be
        attended to."""

    @abstractmethod
    def start(
        self,
        memory: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B S"],
        *,
        keep_keys: bool = False,
    ) -> AttentionState:
        """The state: what every step needs of the memory, such as its keys and values. With
        `keep_keys` it holds what `step` needs to return weights."""

    @abstractmethod
    def step(
        self,
        x: Float[Tensor, "B D"],
        state: AttentionState,
        *,
        mask: Bool[Tensor, "B S"] | None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B D"], AttentionState, Float[Tensor, "B H 1 S"] | None]:
        """`forward` for one position of each row. The state is returned unchanged. `mask` is None
        if nothing is masked."""
