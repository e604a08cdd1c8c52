"""The five values that cross a boundary: Source, Memory, State, Step, Answer.

One alphabet of sizes, used in every signature of the package:

    B rows of a batch      S places of the source    T places of the target   D width of the model
    H heads                K width of one head       V vocabulary             M features of a kernel
    N layers (or twice as many, where each holds two tensors)                 C slots of a cache, C >= T
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Source:
    """What a frontend makes of the raw input. A place is a token, a frame of sound or a patch of
    a picture."""

    features: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"]
    grid: tuple[int, int] | None = None
    asked: Int[Tensor, " B"] | None = (
        None  # the place of each row that is asked about, where one is
    )


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves for the decoder to read."""

    states: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"]
    summary: Float[Tensor, "B E"]
    grid: tuple[int, int] | None = None

    def rows(self, index: Int[Tensor, " R"]) -> Memory:
        """Pick, repeat or re-order the batch."""
        return replace(
            self, states=self.states[index], mask=self.mask[index], summary=self.summary[index]
        )


class KVCache:
    """Keys and values of the tokens read so far, in slabs (N, B, H, C, K) that grow by doubling.

    It behaves as a value although it writes in place. Whoever holds an older KVCache sees only the
    slots below its own position; only the newest holder may write the next slot, and anyone else
    who tries copies the slab first.
    """

    __slots__ = ("_stamp", "_writer", "slab")

    def __init__(self, slab: Float[Tensor, "N B H C K"]):
        self.slab = slab
        self._writer = [0]  # shared by all holders of this slab: the stamp of the newest
        self._stamp = 0

    def grown(self, longest: int) -> KVCache:
        """This KVCache with a free slot at `max_position`, owned by the caller, who may now
        write `slab[..., longest, :]`."""
        capacity = self.slab.shape[-2]
        if longest >= capacity:
            return KVCache(_pad(self.slab, max(32, 2 * capacity, longest + 1), -2))
        if self._stamp != self._writer[0]:
            return KVCache(self.slab.clone())
        heir = KVCache.__new__(KVCache)
        self._writer[0] += 1
        heir.slab, heir._writer, heir._stamp = self.slab, self._writer, self._writer[0]
        return heir

    def rows(self, index: Int[Tensor, " R"]) -> KVCache:
        return KVCache(self.slab.index_select(1, index))

    def join(self, other: KVCache) -> KVCache:
        return KVCache(_stack(self.slab, other.slab))


@dataclass(frozen=True)
class State:
    """What a decoder carries from step to step.

    What memory, recurrent and kv_cache hold has its row (the B axis) second, behind the layer, so
    that `rows` and `join` need not know what they move. Rows may be at different steps and over
    memories of different length.
    """

    position: Int[Tensor, " B"]  # tokens each row has read
    mask: Bool[Tensor, "B S"]  # places of the memory each row may look at
    memory: tuple[
        Float[Tensor, "_ B _ _ _"], ...
    ] = ()  # the memory's projected keys and values, or sums of them
    recurrent: tuple[Float[Tensor, "_ B ..."], ...] = ()  # cells, or the sums of linear attention
    kv_cache: KVCache | None = None  # a key/value cache
    max_position: int = 0  # no row's position is above it
    aligned: bool = True  # all rows are at position `max_position`

    @property
    def size(self) -> int:
        return self.position.shape[0]

    def rows(self, index: Int[Tensor, " R"], *, memory_unchanged: bool = False) -> State:
        """Pick, repeat or re-order the batch. `memory_unchanged` promises that every row still
        reads the memory that stood in its place before (a beam re-ordered within its own
        source), so the memory need not move."""
        return replace(
            self,
            position=self.position[index],
            mask=self.mask if memory_unchanged else self.mask[index],
            memory=self.memory
            if memory_unchanged
            else tuple(m.index_select(1, index) for m in self.memory),
            recurrent=tuple(c.index_select(1, index) for c in self.recurrent),
            kv_cache=None if self.kv_cache is None else self.kv_cache.rows(index),
        )

    def join(self, other: State) -> State:
        """The rows of `self`, then those of `other`."""
        wide = max(self.mask.shape[1], other.mask.shape[1])
        return State(
            position=torch.cat([self.position, other.position]),
            mask=torch.cat([_pad(self.mask, wide, -1), _pad(other.mask, wide, -1)]),
            memory=tuple(_stack(a, b) for a, b in zip(self.memory, other.memory, strict=True)),
            recurrent=tuple(
                torch.cat([a, b], dim=1)
                for a, b in zip(self.recurrent, other.recurrent, strict=True)
            ),
            kv_cache=None
            if self.kv_cache is None or other.kv_cache is None
            else self.kv_cache.join(other.kv_cache),
            max_position=max(self.max_position, other.max_position),
            aligned=self.aligned and other.aligned and self.max_position == other.max_position,
        )


@dataclass(frozen=True)
class Step:
    """One token further: scores of the next token, what to carry on, and where the decoder
    looked (None: it cannot)."""

    logits: Float[Tensor, "B V"]
    state: State
    weights: Float[Tensor, "B H S"] | None = None


@dataclass(frozen=True)
class Answer:
    """A finished answer; for each of its tokens, the weights over the memory that produced it.

    tokens   numbers of the tokens, without start and end mark
    text     what they say
    score    the log-probability of the answer by the model, end mark included
    weights  (T, H, S), or None for a model without attention: how much token t of the answer attended to place s of
             the source, in head h of the decoder's last layer. Each weights[t, h] adds up to 1. The places of a text
             are its tokens, then the end mark; of a picture its grid, row by row; of a sound stretches of equal length.
             An encoder that shortens its input leaves one place for every few of them.
    >>> answer = bot.ask("Are you a robot?")  # doctest: +SKIP
    >>> answer.weights.shape  # doctest: +SKIP
    torch.Size([4, 1, 5])
    >>> bot.task.place_names("Are you a robot?")  # doctest: +SKIP
    ['are', 'you', 'a', 'robot', '(end)']
    """

    tokens: tuple[int, ...]
    text: str
    score: float
    weights: Float[Tensor, "T H S"] | None = field(default=None, compare=False)


def _pad(tensor: Tensor, size: int, axis: int) -> Tensor:
    """Zeros (False) appended along `axis` up to `size`."""
    missing = size - tensor.shape[axis]
    if missing == 0:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=axis)


def _stack(a: Tensor, b: Tensor) -> Tensor:
    """Rows of a, then rows of b, the shorter one padded along the axis of places."""
    size = max(a.shape[-2], b.shape[-2])
    return torch.cat([_pad(a, size, -2), _pad(b, size, -2)], dim=1)
