"""Decoders: a Memory and the tokens so far -> scores of the next token.

The law, tested for every one of them: `forward(tokens, memory)` equals T times `step`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.frontends import Embedding
from regard.layers.attention import Additive, Dot, General, linear, normal, part
from regard.layers.blocks import DecoderBlock, Dropout
from regard.layers.positions import Positions, no_bias
from regard.layers.recurrent import Recurrent
from regard.values import Memory, Past, State, Step

SCORES = {"dot": Dot, "general": General, "additive": Additive}


class Output(nn.Module):
    """logits = W h + b, where W may be the embedding's own matrix."""

    def __init__(self, *, embedding: Embedding, tied: bool):
        super().__init__()
        vocabulary, width = embedding.weight.shape
        self.weight = embedding.table.weight if tied else nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return nn.functional.linear(hidden, self.weight, self.bias)


class Decoder(nn.Module, ABC):
    embedding: Embedding
    output: Output

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """What to carry before the first token."""

    @abstractmethod
    def step(self, token: Int[Tensor, "B"], state: State) -> Step:
        """Read one token; the state that was given stays valid."""

    @abstractmethod
    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        """The hidden states of all places at once, which `output` turns into logits."""

    @final
    def forward(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T V"]:
        return self.output(self.states(tokens, memory))


class RecurrentDecoder(Decoder):
    """LSTM or GRU over the tokens; at each place its state h looks at the memory (Luong et al. 2015, section 3.1):

        h_t = CELL(h_{t-1}, e[w_t]);  a_t = softmax(score(h_t, M));  c_t = a_t M;  g_t = tanh(W [c_t; h_t])

    With input feeding the cell also reads g_{t-1}. Without it nothing in the recurrence depends on attention, so all
    places run in one fused call. Without attention g_t = tanh(W h_t), and the memory speaks through the start only:
    the encoder's top states, through a learned bridge.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int,
        layers: int,
        memory_width: int,
        summary_width: int,
        cell: str = "lstm",
        attention: str = "general",
        input_feeding: bool = False,
        dropout: float = 0.0,
        tied: bool = True,
    ):
        super().__init__()
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.parts = 2 if cell == "lstm" else 1
        self.layers, self.width, self.feeding = layers, width, input_feeding
        self.bridge = nn.Linear(summary_width, self.parts * layers * width)
        self.rnn = Recurrent(
            cell=cell, inputs=width * (2 if input_feeding else 1), width=width, layers=layers, dropout=dropout
        )
        self.score = None if attention == "none" else SCORES[attention](width=width, memory_width=memory_width)
        self.mix = nn.Linear(width + (memory_width if self.score else 0), width)
        self.dropout = Dropout(dropout)
        self.output = Output(embedding=self.embedding, tied=tied)

    def start(self, memory: Memory) -> State:
        cells = self.bridge(memory.summary).tanh().unflatten(-1, (self.parts, self.layers, self.width))
        carried = tuple(cells.permute(1, 2, 0, 3).contiguous().unbind(0))  # (N, B, D) each
        if self.feeding:
            carried = (*carried, carried[0].new_zeros(1, *carried[0].shape[1:]))
        looked_at = () if self.score is None else (self.score.keys(memory.states), memory.states)
        return State(
            position=torch.zeros(len(memory.mask), dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=tuple(part[None, :, None] for part in looked_at),
            carried=carried,
        )

    def look(self, h: Float[Tensor, "B T D"], state: State) -> tuple[Tensor, Tensor | None]:
        """g and the weights (B, T, S) of a run of places."""
        if self.score is None:
            return self.dropout(self.mix(h).tanh()), None
        keys, values = (part[0, :, 0] for part in state.memory)
        weights = self.score(h, keys).masked_fill(~state.mask[:, None], -torch.inf).softmax(-1)
        return self.dropout(self.mix(torch.cat([weights @ values, h], dim=-1)).tanh()), weights

    def advance(self, x: Float[Tensor, "B D"], state: State) -> tuple[Tensor, State, Tensor | None]:
        """One place further: g (B, D), the next state and the weights (B, S)."""
        cells, fed = state.carried[: self.parts], state.carried[self.parts :]
        h, cells = self.rnn.step(torch.cat([x, fed[0][0]], dim=-1) if fed else x, cells)
        g, weights = self.look(h[:, None], state)
        after = replace(
            state,
            carried=(*cells, g.transpose(0, 1)) if fed else cells,
            position=state.position + 1,
            longest=state.longest + 1,
        )
        return g[:, 0], after, None if weights is None else weights[:, 0]

    def step(self, token: Int[Tensor, "B"], state: State) -> Step:
        g, after, weights = self.advance(self.dropout(self.embedding(token)), state)
        return Step(self.output(g), after, None if weights is None else weights[:, None])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        state, x = self.start(memory), self.dropout(self.embedding(tokens))
        if not self.feeding:
            return self.look(self.rnn(x, state.carried), state)[0]
        places = []
        for place in x.unbind(1):
            g, state, _ = self.advance(place, state)
            places.append(g)
        return torch.stack(places, dim=1)


class TransformerDecoder(Decoder):
    """Blocks of causal self-attention, attention to the memory and feed-forward.

    The State holds a key/value cache; with the kernel "maclaurin", sums of a size that does not grow.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int,
        layers: int,
        memory_width: int,
        heads: int,
        head_width: int | None = None,
        inner: int,
        positions: Positions,
        norm: str = "pre",
        activation: str = "relu",
        dropout: float = 0.0,
        kernel: str = "softmax",
        terms: int = 3,
        tied: bool = True,
    ):
        super().__init__()
        no_bias(kernel, positions)
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.positions, self.dropout, self.linear = positions, Dropout(dropout), kernel == "maclaurin"
        self.heads, self.head_width = heads, head_width or width // heads
        blocks = nn.ModuleList(
            DecoderBlock(
                width=width,
                memory_width=memory_width,
                heads=heads,
                head_width=head_width,
                inner=inner,
                norm=norm,
                activation=activation,
                dropout=dropout,
                kernel=kernel,
                terms=terms,
            )
            for _ in range(layers)
        )
        self.blocks = cast(list[DecoderBlock], blocks)
        self.leave = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.output = Output(embedding=self.embedding, tied=tied)

    def start(self, memory: Memory) -> State:
        rows, two_a_layer = len(memory.mask), 2 * len(self.blocks)
        nowhere = torch.zeros(rows, dtype=torch.long, device=memory.mask.device)
        if self.linear:
            read = [part(block, "reading").start(memory.states, memory.mask) for block in self.blocks]
            seen = [part(block, "looking").start(rows, memory.states) for block in self.blocks]
            return State(nowhere, memory.mask, memory=(torch.stack(read),), carried=(torch.stack(seen),))
        return State(
            position=nowhere,
            mask=memory.mask,
            memory=(torch.cat([block.reading.keys_values(memory.states) for block in self.blocks]),),
            past=Past(memory.states.new_zeros(two_a_layer, rows, self.heads, 0, self.head_width)),
        )

    def step(self, token: Int[Tensor, "B"], state: State) -> Step:
        if self.linear:
            return self._linear_step(token, state)
        assert state.past is not None
        past, last = state.past.grown(state.longest), state.longest
        mask = None if bool(state.mask.all()) else state.mask[:, None, None]  # (B, 1, 1, S)
        at, place, onto, turning = last, last, None, None
        if not state.even:
            at, place = state.position, state.position[:, None]
            onto = (torch.arange(last + 1, device=token.device) <= place)[:, None, None]  # (B, 1, 1, C)
        positions = part(self, "positions")
        x, weights = positions.add(part(self, "embedding").step(token), at), None
        x = x[0] if state.size == 1 else x
        if positions.turns:
            turning = positions.turning(place)
        if positions.biases:
            bias = positions.bias(place, torch.arange(last + 1, device=token.device))  # (H, 1, C) or (B, H, 1, C)
            onto = bias[None] if onto is None else torch.where(onto, bias, -torch.inf)
        slots = past.slab.narrow(-2, 0, last + 1).split(2)
        memory = state.memory[0].split(2)
        top = len(slots) - 1  # where the top block looked is what is told
        for n, (block, own, read) in enumerate(zip(part(self, "blocks"), slots, memory, strict=True)):
            x, weights = block.step(x, own, at, onto, turning, read, mask, weights=n == top)
        assert weights is not None
        after = replace(state, past=past, position=state.position + 1, longest=last + 1)
        return Step(self._scores(x), after, weights[:, :, 0])

    def _linear_step(self, token: Int[Tensor, "B"], state: State) -> Step:
        at, place = (state.longest,) * 2 if state.even else (state.position, state.position[:, None])
        positions, sums = part(self, "positions"), []
        x, turning = positions.add(part(self, "embedding").step(token), at), positions.turning(place)
        for block, seen, read in zip(part(self, "blocks"), state.carried[0], state.memory[0], strict=True):
            x, seen = block.linear_step(x, seen, turning, read)
            sums.append(seen)
        after = replace(state, carried=(torch.stack(sums),), position=state.position + 1, longest=state.longest + 1)
        return Step(self._scores(x), after)

    def _scores(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "B V"]:
        """The logits of one place."""
        hidden = x if isinstance(self.leave, nn.Identity) else normal(x, self.leave)
        return linear(hidden, part(self, "output")).view(-1, self.output.bias.shape[0])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.positions.add(self.embedding(tokens), places))
        turning, bias = self.positions.turning(places), self.positions.bias(places, places)
        if bias is not None:
            bias = torch.where(masks.causal(len(places), places.device), bias, -torch.inf)[None]  # (1, H, T, T)
        for block in self.blocks:
            x = block(x, block.reading.keys_values(memory.states), memory.mask, turning=turning, bias=bias)
        return self.leave(x)
