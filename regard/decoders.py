"""Decoders: a Memory and the tokens so far -> scores of the next token.

The law, tested for every one of them: `forward(tokens, memory)` equals T times `step`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import InputError
from regard.frontends import Embedding
from regard.layers import native
from regard.layers.attention import Additive, Dot, General, linear, normal, part
from regard.layers.blocks import DecoderBlock, Dropout, FusedStep
from regard.layers.loss import cross_entropy
from regard.layers.positions import Positions, no_bias, rotary_phases
from regard.layers.recurrent import Recurrent
from regard.values import KVCache, Memory, State, Step

SCORES = {"dot": Dot, "general": General, "additive": Additive}


class Output(nn.Module):
    """logits = W h + b, where W may be the embedding's own matrix."""

    def __init__(self, *, embedding: Embedding, tied: bool):
        super().__init__()
        vocabulary, width = embedding.weight.shape
        self.weight = (
            embedding.table.weight
            if tied
            else nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return nn.functional.linear(hidden, self.weight, self.bias)


class Decoder(nn.Module, ABC):
    vocabulary: int  # what it scores, marks included
    output: Output | LabelOutput

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """What to carry before the first token."""

    @abstractmethod
    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        """Read one token; the state that was given stays valid."""

    @abstractmethod
    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        """The hidden states of all places at once, which `output` turns into logits."""

    @abstractmethod
    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Of N of those states, summed: the loss with label smoothing, and plain nats."""

    @final
    def forward(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T V"]:
        return self.output(self.states(tokens, memory))


class AutoregressiveDecoder(Decoder):
    """A decoder of text: it reads its own tokens, and scores every one of the vocabulary at
    every place."""

    embedding: Embedding
    output: Output

    @final
    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        return cross_entropy(
            hidden, self.output.weight, self.output.bias, targets, smoothing=smoothing
        )


class RecurrentDecoder(AutoregressiveDecoder):
    """LSTM or GRU over the tokens; at each place its state h looks at the memory (Luong et al.
    2015, section 3.1):

        h_t = CELL(h_{t-1}, e[w_t]);  a_t = softmax(score(h_t, M));  c_t = a_t M;  g_t = tanh(W [c_t; h_t])

    With input feeding the cell also reads g_{t-1}. Without it nothing in the recurrence depends on
    attention, so all places run in one fused call. Without attention g_t = tanh(W h_t), and the
    memory speaks through the start only: the encoder's top states, through a learned bridge.

    With `attention_order="before_cell"` it looks before the cell moves, from the state it comes
    from, and the cell reads what it saw (Bahdanau et al. 2015, appendix A.2.2, without their
    maxout):

        a_t = softmax(score(h_{t-1}, M));  c_t = a_t M;  h_t = CELL(h_{t-1}, c_t, e[w_t]);  g_t = W h_t
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
        attention_order: str = "after_cell",
        input_feeding: bool = False,
        dropout: float = 0.0,
        tied: bool = True,
    ):
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.parts = 2 if cell == "lstm" else 1
        self.before = attention_order == "before_cell"
        if self.before and (attention == "none" or input_feeding):
            raise InputError(
                "a cell that looks first needs an attention, and feeds its own input",
                where="attention_order",
                got=f"attention {attention}, input_feeding {input_feeding}",
            )
        self.layers, self.width, self.feeding = layers, width, input_feeding
        self.bridge = nn.Linear(summary_width, self.parts * layers * width)
        more = width if input_feeding else memory_width if self.before else 0
        self.rnn = Recurrent(
            cell=cell, inputs=width + more, width=width, layers=layers, dropout=dropout
        )
        self.score = (
            None
            if attention == "none"
            else SCORES[attention](width=width, memory_width=memory_width)
        )
        if self.before:
            self.attention_output = nn.Linear(width, width, bias=False)
        else:
            self.attention_output = nn.Linear(width + (memory_width if self.score else 0), width)
        self.dropout = Dropout(dropout)
        self.output = Output(embedding=self.embedding, tied=tied)

    def start(self, memory: Memory) -> State:
        cells = (
            self.bridge(memory.summary).tanh().unflatten(-1, (self.parts, self.layers, self.width))
        )
        carried = tuple(cells.permute(1, 2, 0, 3).contiguous().unbind(0))  # (N, B, D) each
        if self.feeding:
            carried = (*carried, carried[0].new_zeros(1, *carried[0].shape[1:]))
        looked_at = () if self.score is None else (self.score.keys(memory.states), memory.states)
        return State(
            position=torch.zeros(len(memory.mask), dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=tuple(part[None, :, None] for part in looked_at),
            recurrent=carried,
        )

    def look(self, h: Float[Tensor, "B T D"], state: State) -> tuple[Tensor, Tensor | None]:
        """g and the weights (B, T, S) of a run of places."""
        if self.score is None:
            return self.dropout(self.attention_output(h).tanh()), None
        context, weights = self.attend(h, state)
        return self.dropout(self.attention_output(torch.cat([context, h], dim=-1)).tanh()), weights

    def attend(self, h: Float[Tensor, "B T D"], state: State) -> tuple[Tensor, Tensor]:
        """What h sees in the memory (B, T, E), and the weights (B, T, S)."""
        assert self.score is not None
        keys, values = (part[0, :, 0] for part in state.memory)
        weights = self.score(h, keys).masked_fill(~state.mask[:, None], -torch.inf).softmax(-1)
        return weights @ values, weights

    def advance(self, x: Float[Tensor, "B D"], state: State) -> tuple[Tensor, State, Tensor | None]:
        """One place further: g (B, D), the next state and the weights (B, S)."""
        cells, fed = state.recurrent[: self.parts], state.recurrent[self.parts :]
        if self.before:
            context, weights = self.attend(cells[0][-1][:, None], state)
            h, cells = self.rnn.step(torch.cat([x, context[:, 0]], dim=-1), cells)
            g = self.dropout(self.attention_output(h[:, None]))
        else:
            h, cells = self.rnn.step(torch.cat([x, fed[0][0]], dim=-1) if fed else x, cells)
            g, weights = self.look(h[:, None], state)
        after = replace(
            state,
            recurrent=(*cells, g.transpose(0, 1)) if fed else cells,
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return g[:, 0], after, None if weights is None else weights[:, 0]

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        g, after, weights = self.advance(self.dropout(self.embedding(token)), state)
        return Step(self.output(g), after, None if weights is None else weights[:, None])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        state, x = self.start(memory), self.dropout(self.embedding(tokens))
        if not self.feeding and not self.before:
            return self.look(self.rnn(x, state.recurrent), state)[0]
        places = []
        for place in x.unbind(1):
            g, state, _ = self.advance(place, state)
            places.append(g)
        return torch.stack(places, dim=1)


class TransformerDecoder(AutoregressiveDecoder):
    """Blocks of causal self-attention, attention to the memory and feed-forward.

    The State holds a key/value cache; with the kernel "maclaurin", sums of a size that does not
    grow.
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
        ffn_width: int,
        positions: Positions,
        norm: str = "pre",
        activation: str = "relu",
        dropout: float = 0.0,
        kernel: str = "softmax",
        terms: int = 3,
        key_bias: bool = True,
        tied: bool = True,
    ):
        super().__init__()
        no_bias(kernel, positions)
        self.vocabulary = vocabulary
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.positions, self.dropout, self.linear = (
            positions,
            Dropout(dropout),
            kernel == "maclaurin",
        )
        self.heads, self.head_width = heads, head_width or width // heads
        blocks = nn.ModuleList(
            DecoderBlock(
                width=width,
                memory_width=memory_width,
                heads=heads,
                head_width=head_width,
                ffn_width=ffn_width,
                norm=norm,
                activation=activation,
                dropout=dropout,
                kernel=kernel,
                terms=terms,
                key_bias=key_bias,
            )
            for _ in range(layers)
        )
        self.blocks = cast(list[DecoderBlock], blocks)
        self.final_norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.output = Output(embedding=self.embedding, tied=tied)
        self.fused_step = None
        if key_bias and not self.linear and not positions.uses_bias:
            self.fused_step = FusedStep(
                self.blocks, self.final_norm, self.output, vocabulary=vocabulary
            )

    def start(self, memory: Memory) -> State:
        rows, two_a_layer = len(memory.mask), 2 * len(self.blocks)
        nowhere = torch.zeros(rows, dtype=torch.long, device=memory.mask.device)
        if self.linear:
            read = [
                part(block, "cross_attention").start(memory.states, memory.mask)
                for block in self.blocks
            ]
            seen = [
                part(block, "self_attention").start(rows, memory.states) for block in self.blocks
            ]
            return State(
                nowhere, memory.mask, memory=(torch.stack(read),), recurrent=(torch.stack(seen),)
            )
        return State(
            position=nowhere,
            mask=memory.mask,
            memory=(
                torch.cat(
                    [block.cross_attention.keys_values(memory.states) for block in self.blocks]
                ).contiguous(),
            ),
            kv_cache=KVCache(
                memory.states.new_zeros(two_a_layer, rows, self.heads, 0, self.head_width)
            ),
        )

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        if self.linear:
            return self._linear_step(token, state)
        assert state.kv_cache is not None
        past, last, positions = (
            state.kv_cache.grown(state.max_position),
            state.max_position,
            part(self, "positions"),
        )
        x = positions.add(
            part(self, "embedding").step(token), last if state.aligned else state.position
        )
        if self.fused_step is not None and native.steps(x):
            rotation = (
                rotary_phases(state.position, self.head_width).to(torch.complex64)
                if positions.uses_rotation
                else None
            )
            logits, looked = self.fused_step.step(
                x, past.slab, state.position, state.memory[0], state.mask, rotation
            )
        else:
            x, looked = self._step(x, state, past.slab.narrow(-2, 0, last + 1))
            logits = self._scores(x)
        return Step(
            logits,
            replace(state, kv_cache=past, position=state.position + 1, max_position=last + 1),
            looked,
        )

    def _step(
        self, x: Float[Tensor, "B D"], state: State, slots: Float[Tensor, "N B H C K"]
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H S"]]:
        """The blocks, and where the top one looked, which is what is told."""
        mask = None if bool(state.mask.all()) else state.mask[:, None, None]  # (B, 1, 1, S)
        at = place = state.max_position
        attn_mask, rotation, weights = None, None, None
        if not state.aligned:
            at, place = state.position, state.position[:, None]
            attn_mask = (torch.arange(slots.shape[3], device=x.device) <= place)[
                :, None, None
            ]  # (B, 1, 1, C)
        positions = part(self, "positions")
        x = x[0] if state.size == 1 else x
        if positions.uses_rotation:
            rotation = positions.rotation(place)
        if positions.uses_bias:
            bias = positions.bias(
                place, torch.arange(slots.shape[3], device=x.device)
            )  # (H, 1, C) or (B, H, 1, C)
            attn_mask = (
                bias[None] if attn_mask is None else torch.where(attn_mask, bias, -torch.inf)
            )
        parts = list(
            zip(part(self, "blocks"), slots.split(2), state.memory[0].split(2), strict=True)
        )
        for n, (block, own, read) in enumerate(parts, 1):
            x, weights = block.step(
                x, own, at, attn_mask, rotation, read, mask, weights=n == len(parts)
            )
        assert weights is not None
        return x, weights[:, :, 0]

    def _linear_step(self, token: Int[Tensor, " B"], state: State) -> Step:
        at, place = (
            (state.max_position,) * 2
            if state.aligned
            else (state.position, state.position[:, None])
        )
        positions, sums = part(self, "positions"), []
        x, rotation = (
            positions.add(part(self, "embedding").step(token), at),
            positions.rotation(place),
        )
        for block, seen, read in zip(
            part(self, "blocks"), state.recurrent[0], state.memory[0], strict=True
        ):
            x, seen = block.linear_step(x, seen, rotation, read)
            sums.append(seen)
        after = replace(
            state,
            recurrent=(torch.stack(sums),),
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return Step(self._scores(x), after)

    def _scores(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "B V"]:
        """The logits of one place."""
        hidden = x if isinstance(self.final_norm, nn.Identity) else normal(x, self.final_norm)
        return linear(hidden, part(self, "output")).view(-1, self.output.bias.shape[0])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.positions.add(self.embedding(tokens), places))
        rotation, bias = self.positions.rotation(places), self.positions.bias(places, places)
        if bias is not None:
            bias = torch.where(masks.causal(len(places), places.device), bias, -torch.inf)[
                None
            ]  # (1, H, T, T)
        for block in self.blocks:
            x = block(
                x,
                block.cross_attention.keys_values(memory.states),
                memory.mask,
                rotation=rotation,
                bias=bias,
            )
        return self.final_norm(x)


class RecurrentCrossAttentionDecoder(AutoregressiveDecoder):
    """LSTM or GRU over the tokens, started from zero, then one Transformer block that reads the
    memory:

    h = RNN(norm(e[w]));  x = h + attend(norm(h), M);  x = x + ffn(norm(x));  logits = W norm(x) + b
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int,
        layers: int,
        memory_width: int,
        heads: int,
        ffn_width: int,
        cell: str = "lstm",
        activation: str = "gelu",
        dropout: float = 0.0,
        key_bias: bool = True,
        tied: bool = True,
    ):
        super().__init__()
        self.vocabulary, self.layers, self.width, self.parts = (
            vocabulary,
            layers,
            width,
            2 if cell == "lstm" else 1,
        )
        self.embedding, self.input_norm = (
            Embedding(vocabulary=vocabulary, width=width),
            nn.LayerNorm(width),
        )
        self.rnn = Recurrent(cell=cell, inputs=width, width=width, layers=layers, dropout=dropout)
        self.block = DecoderBlock(
            width=width,
            memory_width=memory_width,
            heads=heads,
            head_width=None,
            ffn_width=ffn_width,
            norm="pre",
            activation=activation,
            dropout=dropout,
            key_bias=key_bias,
            looks_back=False,
        )
        self.final_norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)
        self.output = Output(embedding=self.embedding, tied=tied)

    def start(self, memory: Memory) -> State:
        rows = len(memory.mask)
        return State(
            position=torch.zeros(rows, dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=(self.block.cross_attention.keys_values(memory.states),),
            recurrent=tuple(
                memory.states.new_zeros(self.layers, rows, self.width) for _ in range(self.parts)
            ),
        )

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        h, cells = self.rnn.step(
            self.dropout(self.input_norm(self.embedding(token))), state.recurrent
        )
        x, weights = self.block.read_step(
            h, state.memory[0], state.mask[:, None, None], weights=True
        )
        assert weights is not None
        after = replace(
            state, recurrent=cells, position=state.position + 1, max_position=state.max_position + 1
        )
        return Step(self.output(self.final_norm(x)), after, weights[:, :, 0])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        h = self.rnn(self.dropout(self.input_norm(self.embedding(tokens))))
        return self.final_norm(
            self.block.read(h, self.block.cross_attention.keys_values(memory.states), memory.mask)
        )


class LabelOutput(nn.Module):
    """Labels are scored once, then comes the end mark. The last number of `hidden` is 0 at the
    first place and 1 after it; marks have no weights, so a label's row is its token less the
    marks. Where labels are words, their rows may be those of an embedding, whose marks are
    passed over."""

    scores: nn.Linear
    marks: int

    def __init__(self, *, inputs: int, labels: int, marks: int, end: int):
        super().__init__()
        self.scores, self.marks, self.end, self.first = nn.Linear(inputs, labels), marks, end, 0

    def share(self, embedding: Embedding) -> None:
        """From now on labels have the vectors of this embedding."""
        self.scores, self.first = (
            nn.Linear(embedding.weight.shape[1], embedding.weight.shape[0]),
            self.marks,
        )
        self.scores.weight = embedding.table.weight
        nn.init.zeros_(self.scores.bias)

    @property
    def weight(self) -> Float[Tensor, "V D"]:
        return self.scores.weight[self.first :]

    @property
    def bias(self) -> Float[Tensor, " V"]:
        return self.scores.bias[self.first :]

    def forward(self, hidden: Float[Tensor, "*rows D1"]) -> Float[Tensor, "*rows V"]:
        over = hidden[..., -1:] > 0
        labels = nn.functional.linear(hidden[..., :-1], self.weight, self.bias).masked_fill(
            over, -torch.inf
        )
        marks = torch.full(
            (*labels.shape[:-1], self.marks), -torch.inf, dtype=labels.dtype, device=labels.device
        )
        marks[..., self.end] = torch.where(over[..., 0], 0.0, -torch.inf)
        return torch.cat([marks, labels], dim=-1)


class ClassifierDecoder(Decoder):
    """A label is an answer of length one: whatever it is given to read, the first step scores the
    labels and every later one is sure of the end.

        z = summary  (or z = a M with a = softmax(q K M), q learned);  h = act(W_n … act(W_1 z));  scores = W h + b

    With `vectors` each label w has a vector e of that width, and scores[w] = e[w] . W h + b[w].
    `vocabulary` counts the `marks` before the labels, among them `end`.
    """

    output: LabelOutput

    def __init__(
        self,
        *,
        vocabulary: int,
        memory_width: int,
        summary_width: int,
        marks: int,
        end: int,
        pooling: str = "summary",
        hidden: Sequence[int] = (),
        dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        vectors: int | None = None,
    ):
        super().__init__()
        self.vocabulary, self.attends = vocabulary, pooling == "attention"
        inputs = memory_width if self.attends else summary_width
        if self.attends:
            self.query = nn.Parameter(torch.randn(memory_width) * memory_width**-0.5)
            self.keys = nn.Linear(memory_width, memory_width, bias=False)
        sizes = [inputs, *hidden]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.dropout, self.between = Dropout(dropout), Dropout(hidden_dropout)
        self.projection = None if vectors is None else nn.Linear(sizes[-1], vectors, bias=False)
        self.output = LabelOutput(
            inputs=vectors or sizes[-1], labels=vocabulary - marks, marks=marks, end=end
        )

    def read(self, memory: Memory) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B S"] | None]:
        """h, and where the query looked."""
        z, weights = memory.summary, None
        if self.attends:
            scores = (
                self.keys(memory.states) @ self.query * memory.states.shape[-1] ** -0.5
            )  # (B, S)
            weights = scores.masked_fill(~memory.mask, -torch.inf).softmax(-1)
            z = (weights[:, None] @ memory.states)[:, 0]
        h = self.dropout(z)
        for n, layer in enumerate(self.layers):
            h = layer(h if n == 0 else self.between(h)).relu()
        return h if self.projection is None else self.projection(h), weights

    def start(self, memory: Memory) -> State:
        h, weights = self.read(memory)
        return State(
            position=torch.zeros(len(memory.mask), dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=() if weights is None else (weights[None, :, None, :, None],),
            recurrent=(h[None],),
        )

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        h = state.recurrent[0][0]
        logits = self.output(torch.cat([h, (state.position > 0)[:, None].to(h.dtype)], dim=-1))
        after = replace(state, position=state.position + 1, max_position=state.max_position + 1)
        return Step(logits, after, state.memory[0][0, ..., 0] if state.memory else None)

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        h, _ = self.read(memory)
        over = torch.arange(tokens.shape[1], device=h.device).clamp(max=1).to(h.dtype)
        return torch.cat(
            [h[:, None].expand(-1, len(over), -1), over.expand(len(h), -1)[..., None]], dim=-1
        )

    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Of the labels: what comes after them is certain."""
        first = (hidden[:, -1] == 0).nonzero()[:, 0]
        labels = targets[first] - self.output.marks
        return cross_entropy(
            hidden[first, :-1], self.output.weight, self.output.bias, labels, smoothing=smoothing
        )
