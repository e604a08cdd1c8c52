"""The five values passed between the parts of a model: Source, Memory, State, Step, Answer.

The letters of all shapes in this package:

    B rows of a batch     S positions of the source   T positions of the target   D model width
    H heads               K width of one head         V vocabulary                M kernel features
    N layers, or twice the layers where keys and values are stacked
    C capacity of a key/value cache, C >= T

A position (or place) is a token of a text, a frame of a sound, or a point or patch of a picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InputError
from regard.notebook import answer_html

# Which weights a pass returns: none, those over the memory, or those of all attention layers.
Capture = Literal["none", "cross", "all"]
AttentionKind = Literal["self", "cross"]
WeightsForm = Literal["softmax", "quadratic"]


@dataclass(frozen=True)
class Source:
    """The output of a frontend: one feature vector for each position of the raw input."""

    features: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"]  # False at padding
    grid: tuple[int, int] | None = None  # height and width, if the positions lie on a grid
    blank_position: Int[Tensor, " B"] | None = None  # the position to fill in, in the blank task


@dataclass(frozen=True, repr=False)
class AttentionWeights:
    """The attention weights of one layer in a forward pass or a step.

    kind      "self" or "cross": attention to the positions of the sequence, or to the memory
    layer     the number of the layer, from 0
    weights   (B, H, T, S), T = 1 in a step: each weights[b, h, t] sums to 1
    form      "softmax": the weights that were used; "quadratic": those of linear attention, which
              computes the same output from sums and uses no weights
    """

    kind: AttentionKind
    layer: int
    weights: Float[Tensor, "B H T S"]
    form: WeightsForm = "softmax"

    def __repr__(self) -> str:
        shape = tuple(self.weights.shape)
        return f"AttentionWeights({self.kind}, layer {self.layer}, {shape}, {self.form})"

    def rows(self, index: Int[Tensor, " R"]) -> AttentionWeights:
        """The rows `index` of the batch."""
        return replace(self, weights=self.weights[index])

    def cpu(self) -> AttentionWeights:
        """The same on the CPU."""
        return replace(self, weights=self.weights.cpu())

    def first_steps(self, count: int) -> AttentionWeights:
        """Those of the first `count` of the T steps; to the positions of these, if kind is
        "self"."""
        weights = self.weights[:, :, :count]
        return replace(self, weights=weights[..., :count] if self.kind == "self" else weights)


@dataclass(frozen=True)
class CapturedAttention:
    """The attention weights of every layer that made one answer, by the part of the model.

    encoder   self-attention, (1, H, S, S) a layer; of a recurrent encoder there is none
    decoder   self-attention, (1, H, T, T) a layer, 0 at later steps
    cross     attention to the memory, (1, H, T, S) a layer
    """

    encoder: tuple[AttentionWeights, ...] = ()
    decoder: tuple[AttentionWeights, ...] = ()
    cross: tuple[AttentionWeights, ...] = ()

    def cpu(self) -> CapturedAttention:
        """The same on the CPU."""
        return CapturedAttention(
            encoder=tuple(layer.cpu() for layer in self.encoder),
            decoder=tuple(layer.cpu() for layer in self.decoder),
            cross=tuple(layer.cpu() for layer in self.cross),
        )

    def first_steps(self, count: int) -> CapturedAttention:
        """The same for the first `count` steps of the answer."""
        return replace(
            self,
            decoder=tuple(layer.first_steps(count) for layer in self.decoder),
            cross=tuple(layer.first_steps(count) for layer in self.cross),
        )


@dataclass(frozen=True)
class Memory:
    """The output of an encoder, which the decoder attends to."""

    states: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"]  # False at padding
    summary: Float[Tensor, "B E"]  # one vector for the whole source
    grid: tuple[int, int] | None = None
    attention: tuple[AttentionWeights, ...] = ()  # of the encoder's layers, if captured

    def rows(self, index: Int[Tensor, " R"]) -> Memory:
        """The rows `index` of the batch: a selection, repetition or permutation."""
        return replace(
            self,
            states=self.states[index],
            mask=self.mask[index],
            summary=self.summary[index],
            attention=tuple(layer.rows(index) for layer in self.attention),
        )


class KVCache:
    """Keys and values of the tokens read so far, in a tensor (N, B, H, C, K) whose capacity C
    doubles when it is full. N is 2 in one layer: keys, then values.

    It can be used as an immutable value although it is written in place. Several KVCaches share
    one tensor; each is valid up to the position of the State that holds it. Only the newest may
    write the next position: an older one copies the tensor first.
    """

    __slots__ = ("_newest_version", "_version", "tensor")

    def __init__(self, tensor: Float[Tensor, "N B H C K"]):
        self.tensor = tensor
        self._version = 0
        self._newest_version = [0]  # a list, because all KVCaches of this tensor share it

    def with_room_at(self, position: int) -> KVCache:
        """A KVCache with the same contents, in which the caller may write
        `tensor[..., position, :]`."""
        capacity = self.tensor.shape[-2]
        if position >= capacity:
            return KVCache(_pad(self.tensor, max(32, 2 * capacity, position + 1), -2))
        if self._version != self._newest_version[0]:
            return KVCache(self.tensor.clone())

        self._newest_version[0] += 1
        newest = KVCache(self.tensor)
        newest._newest_version = self._newest_version
        newest._version = self._newest_version[0]
        return newest

    def append(
        self,
        k: Float[Tensor, "B H 1 K"],
        v: Float[Tensor, "B H 1 K"],
        position: Int[Tensor, " B"] | int,
        max_position: int,
    ) -> KVCache:
        """A KVCache of one layer with a key and a value written at `position`: one number for all
        rows, or one for each row, none beyond `max_position`."""
        cache = self.with_room_at(max_position)
        keys, values = cache.tensor.unbind(0)
        if isinstance(position, int):
            keys.narrow(2, position, 1).copy_(k)
            values.narrow(2, position, 1).copy_(v)
        else:
            row = torch.arange(len(position), device=position.device)
            keys[row, :, position] = k[:, :, 0].to(keys.dtype)
            values[row, :, position] = v[:, :, 0].to(keys.dtype)
        return cache

    def first(self, positions: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first positions of one layer, (B, H, positions, K) each."""
        keys, values = self.tensor.narrow(-2, 0, positions).unbind(0)
        return keys, values

    def layer(self, number: int) -> KVCache:
        """The KVCache of one of several layers, which shares their tensor."""
        return KVCache(self.tensor.narrow(0, 2 * number, 2))

    def rows(self, index: Int[Tensor, " R"]) -> KVCache:
        """The rows `index` of the batch, copied."""
        return KVCache(self.tensor.index_select(1, index))

    def join(self, other: KVCache) -> KVCache:
        """The rows of `self`, then those of `other`."""
        return KVCache(_join_rows(self.tensor, other.tensor))

    def trim(self, max_position: int) -> KVCache:
        """A KVCache of the first `max_position` positions, whose capacity is at most the next
        power of two (and 32)."""
        capacity = max(32, 1 << (max_position - 1).bit_length()) if max_position else 32
        if self.tensor.shape[-2] <= capacity:
            return self
        return KVCache(self.tensor.narrow(-2, 0, capacity).contiguous())


@dataclass(frozen=True)
class AttentionState:
    """What one attention layer carries from step to step. The layer decides which fields it uses.

    cache   keys and values of each position: of the tokens read so far in self-attention, of the
            memory in cross-attention
    fixed   tensors (B, …) whose size is fixed, whatever the number of positions: the sums of linear
            attention, or the last keys and values in a sliding window
    """

    cache: KVCache | None = None
    fixed: tuple[Float[Tensor, "B ..."], ...] = ()

    @property
    def keys_values(self) -> KVCache:
        """`cache`, for a layer that always has one."""
        assert self.cache is not None
        return self.cache

    @staticmethod
    def stack(states: Sequence[AttentionState]) -> AttentionState:
        """The states of all layers in one: the cache (2 N, B, H, C, K) and `fixed`, each
        (N, B, …)."""
        caches = [state.cache.tensor for state in states if state.cache is not None]
        cache = KVCache(torch.cat(caches).contiguous()) if caches else None
        return AttentionState(cache, AttentionState.stack_fixed(states))

    @staticmethod
    def stack_fixed(states: Sequence[AttentionState]) -> tuple[Tensor, ...]:
        """The tensors `fixed` of all layers, each (N, B, …)."""
        by_tensor = zip(*(state.fixed for state in states), strict=True)
        return tuple(torch.stack(layers) for layers in by_tensor)

    def layer(self, number: int) -> AttentionState:
        """The state of one layer, from the result of `stack`."""
        return AttentionState(
            None if self.cache is None else self.cache.layer(number),
            tuple(tensor[number] for tensor in self.fixed),
        )


@dataclass(frozen=True)
class State:
    """What a decoder carries from step to step.

    Its tensors come from the memory or from the tokens read so far. Each has one entry for every
    position, or a fixed size:

    |                 | one entry a position | fixed size    |
    |-----------------|----------------------|---------------|
    | from the memory | `memory`             | `memory_sums` |
    | from the tokens | `kv_cache`           | `recurrent`   |

    All have the layer as their first axis and the row (B) as their second, so `rows`, `join` and
    `trim` need not know what they contain. Rows may be at different positions and have memories of
    different lengths.
    """

    position: Int[Tensor, " B"]  # the number of tokens each row has read
    mask: Bool[Tensor, "B S"]  # the positions of the memory each row may attend to
    memory: tuple[Float[Tensor, "_ B _ S _"], ...] = ()  # projected keys and values
    memory_sums: tuple[Float[Tensor, "_ B ..."], ...] = ()  # sums of linear attention
    recurrent: tuple[Float[Tensor, "_ B ..."], ...] = ()  # cells, or sums of linear attention
    kv_cache: KVCache | None = None
    max_position: int = 0  # an upper bound of `position`
    aligned: bool = True  # whether all rows are at `max_position`

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.position.shape[0]

    def rows(self, index: Int[Tensor, " R"], *, memory_unchanged: bool = False) -> State:
        """The rows `index` of the batch: a selection, repetition or permutation.

        `memory_unchanged` promises that each row keeps the memory it had (as in a beam that is
        re-ordered within one source), so the memory is not copied.
        """
        if memory_unchanged:
            mask = self.mask
            memory = self.memory
            memory_sums = self.memory_sums
        else:
            mask = self.mask[index]
            memory = _select_rows(self.memory, index)
            memory_sums = _select_rows(self.memory_sums, index)
        return replace(
            self,
            position=self.position[index],
            mask=mask,
            memory=memory,
            memory_sums=memory_sums,
            recurrent=_select_rows(self.recurrent, index),
            kv_cache=None if self.kv_cache is None else self.kv_cache.rows(index),
        )

    def join(self, other: State) -> State:
        """The rows of `self`, then those of `other`."""
        length = max(self.mask.shape[1], other.mask.shape[1])
        mask = torch.cat([_pad(self.mask, length, -1), _pad(other.mask, length, -1)])
        memory = tuple(_join_rows(a, b) for a, b in zip(self.memory, other.memory, strict=True))
        if self.kv_cache is None or other.kv_cache is None:
            kv_cache = None
        else:
            kv_cache = self.kv_cache.join(other.kv_cache)
        return State(
            position=torch.cat([self.position, other.position]),
            mask=mask,
            memory=memory,
            memory_sums=_concatenate_rows(self.memory_sums, other.memory_sums),
            recurrent=_concatenate_rows(self.recurrent, other.recurrent),
            kv_cache=kv_cache,
            max_position=max(self.max_position, other.max_position),
            aligned=self.aligned and other.aligned and self.max_position == other.max_position,
        )

    def trim(self, max_position: int, places: int) -> State:
        """The same rows with less capacity. `max_position` is a new upper bound of `position`, to
        which the key/value cache shrinks; the memory is cut to its first `places` positions.

        `join` and `step` only ever enlarge both. If rows leave between steps, as in a server, the
        caller trims the positions that only these rows needed. Tensors of fixed size stay as they
        are.
        """
        self._check_trim(max_position, places)
        mask = self.mask
        memory = self.memory
        if places < mask.shape[1]:
            mask = mask[:, :places].contiguous()
            memory = tuple(tensor.narrow(-2, 0, places).contiguous() for tensor in memory)
        return replace(
            self,
            mask=mask,
            memory=memory,
            kv_cache=None if self.kv_cache is None else self.kv_cache.trim(max_position),
            max_position=max_position,
            aligned=bool((self.position == max_position).all()),
        )

    def _check_trim(self, max_position: int, places: int) -> None:
        """Raises an InputError if `trim` would cut off something that a row needs."""
        furthest = int(self.position.max()) if self.size else 0
        if max_position < furthest:
            raise InputError(
                "a row is further than that",
                where="max_position",
                got=max_position,
                hint=f"at least {furthest}, the largest position",
            )
        attended = self.mask.any(0).nonzero()
        needed = int(attended[-1]) + 1 if len(attended) else 0
        if not needed <= places <= self.mask.shape[1]:
            raise InputError(
                "not between the places that rows attend to and those there are",
                where="places",
                got=places,
                hint=f"at least {needed} and at most {self.mask.shape[1]}",
            )


@dataclass(frozen=True)
class Step:
    """The result of one decoder step. `weights` are those of the last layer over the memory; None
    for a decoder without attention, or whose attention computes no weights."""

    logits: Float[Tensor, "B V"]  # of the next token
    state: State  # the next state
    weights: Float[Tensor, "B H S"] | None = None  # over the memory
    attention: tuple[AttentionWeights, ...] = ()  # of every layer, if captured


class Alternative(NamedTuple):
    """A token that might have come at a step of an answer."""

    token: int
    text: str  # what it would append to the answer; "(end)", "(unknown)", … for special tokens
    probability: float


END_NAME = "(end)"  # of the end token, where a person reads it; it adds no text to an answer


@dataclass(frozen=True, repr=False)
class Answer:
    """An answer: its text, its tokens, and for each step of the decoder how it came about.

    A step chooses a token. The last step of a text with finish "stop" chooses the end token, which
    is not in `tokens`. So `tokens` and `pieces` have an entry for each token; `logprobs`, `weights`
    and `alternatives` have one for each of the T steps: T = len(tokens) + 1 if a text has finish
    "stop", and T = len(tokens) if it has "length". A label is one token and one step, T = 1: no end
    token is predicted after it.

    tokens        the token ids, without start and end token
    text          the text: all pieces together
    pieces        the text that each token adds, spaces included. A token that ends inside a
                  character has an empty piece; the token that completes it has the character
    score         the log-probability of the answer under the model: the sum of `logprobs`
    rank          the number by which the search ranks several answers, larger is better: score /
                  T ** length_penalty, with the repetition penalty, MMI and IDF if the options have
                  them (see `regard.search.reranking`); None if nothing was searched
    logprobs      the log-probability of the token at each step
    finish        why the answer ended: "stop", by its end token, or "length", at max_new_tokens
    retrieved     whether it is a training answer that the search retrieved (`search.retrieved`)
    weights       (T, H, S), or None for a model without attention: how much each step attended
                  to each place of the source, in each head of the decoder's last layer. Each
                  weights[t, h] sums to 1
    place_names   a name for each of the S places: the tokens of a text and its end token, the
                  intervals of a sound, the rows and columns of a picture. An encoder that shortens
                  its input has fewer places, with longer names
    grid          height and width, if the places lie on a grid, row by row
    alternatives  with `ask(alternatives=k)`: for each step the k likeliest tokens, or labels
    attention     with `ask(capture=...)`: the weights of every layer

    >>> answer = bot.ask("Are you a robot?")  # doctest: +SKIP
    >>> answer.pieces, answer.finish  # doctest: +SKIP
    (('Yes', ' I', ' am', '.'), 'stop')
    >>> answer.step_names  # doctest: +SKIP
    ('Yes', ' I', ' am', '.', '(end)')
    >>> answer.place_names  # doctest: +SKIP
    ('are', 'you', 'a', 'robot', '(end)')
    >>> answer.weights.shape  # 5 steps, 1 head, 5 places  # doctest: +SKIP
    torch.Size([5, 1, 5])
    """

    tokens: tuple[int, ...]
    text: str
    score: float
    pieces: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = field(default=(), compare=False)
    finish: Literal["stop", "length"] = "stop"
    weights: Float[Tensor, "T H S"] | None = field(default=None, compare=False)
    place_names: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None
    alternatives: tuple[tuple[Alternative, ...], ...] | None = field(default=None, compare=False)
    attention: Any = field(default=None, compare=False)
    rank: float | None = field(default=None, compare=False)
    retrieved: bool = False

    @property
    def step_names(self) -> tuple[str, ...]:
        """The piece of each step, and "(end)" for the step that chose the end token."""
        has_end = len(self.logprobs) > len(self.tokens)
        return (*self.pieces, END_NAME) if has_end else self.pieces

    def to_json(self, *, weights: bool = False) -> dict[str, Any]:
        """The answer as JSON can hold it; with `weights`, also what it attended to."""
        data: dict[str, Any] = {
            "text": self.text,
            "score": _finite(self.score),
            "finish": self.finish,
            "retrieved": self.retrieved,
            "tokens": list(self.tokens),
            "pieces": list(self.pieces),
            "logprobs": [_finite(logprob) for logprob in self.logprobs],
        }
        if self.alternatives is not None:
            data["alternatives"] = [
                [alternative._asdict() for alternative in step] for step in self.alternatives
            ]
        if weights:
            data["place_names"] = list(self.place_names)
            data["grid"] = None if self.grid is None else list(self.grid)
            data["weights"] = None if self.weights is None else self.weights.tolist()
        return data

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, {self._summary})"

    @property
    def _summary(self) -> str:
        tokens = "1 token" if len(self.tokens) == 1 else f"{len(self.tokens)} tokens"
        return f"score {self.score:.4g}, {tokens}, {self.finish}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        weights = None if self.weights is None else self.weights.float().mean(1).tolist()
        return answer_html(
            self.text,
            summary=self._summary,
            steps=self.step_names,
            places=self.place_names,
            weights=weights,
            grid=self.grid,
        )


@dataclass(frozen=True)
class Piece:
    """A part of an answer that is being streamed. The pieces add up to the Answer: their texts to
    its text, their tokens to its tokens, their `logprobs` and `weights` to those of its steps.

    Tokens that end inside a character come together with the one that completes it. The last
    piece of an answer that ended by itself has no text: it holds the step of the end token.

    >>> print(Piece(" am", (17,), (-0.1,)), end="")
     am
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = field(default=(), compare=False)
    weights: Float[Tensor, "T H S"] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.text


def _finite(number: float) -> float | None:
    """A number as JSON can hold it, which has no infinities."""
    return number if math.isfinite(number) else None


def _pad(tensor: Tensor, size: int, axis: int) -> Tensor:
    """`tensor` with zeros (False) appended along `axis` up to `size`."""
    missing = size - tensor.shape[axis]
    if missing == 0:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=axis)


def _select_rows(tensors: tuple[Tensor, ...], index: Int[Tensor, " R"]) -> tuple[Tensor, ...]:
    return tuple(tensor.index_select(1, index) for tensor in tensors)


def _concatenate_rows(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(pair, dim=1) for pair in zip(a, b, strict=True))


def _join_rows(a: Tensor, b: Tensor) -> Tensor:
    """The rows of a, then those of b; the shorter one is padded along the axis of positions."""
    size = max(a.shape[-2], b.shape[-2])
    return torch.cat([_pad(a, size, -2), _pad(b, size, -2)], dim=1)
