"""Decoders: a Memory and the tokens so far -> the logits of the next token.

Every decoder computes all positions at once (`forward`) or one at a time (`start`, then `step`);
the tests check for each of them that both give the same logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import InputError
from regard.layers import checks
from regard.layers.attention import Additive, Dot, General
from regard.layers.attention_layer import StepPosition
from regard.layers.blocks import DecoderBlock, Dropout
from regard.layers.embedding import Embedding
from regard.layers.fused_step import FastSteps
from regard.layers.kernels import kernel_of
from regard.layers.loss import cross_entropy
from regard.layers.positions import Positions, check_kernel
from regard.layers.recurrent import Cell, Recurrent
from regard.layers.sizes import Activation, Norm, TransformerSizes
from regard.values import (
    AttentionState,
    AttentionWeights,
    Capture,
    KVCache,
    Memory,
    State,
    Step,
)

AttentionScore = Literal["none", "dot", "general", "additive"]
AttentionOrder = Literal["after_cell", "before_cell"]
Pooling = Literal["summary", "attention"]
SCORES = {"dot": Dot, "general": General, "additive": Additive}


class Output(nn.Module):
    """The output layer: logits = W h + b. If `tied`, W is the matrix of the embedding."""

    def __init__(self, *, embedding: Embedding, tied: bool):
        super().__init__()
        vocabulary, width = embedding.weight.shape
        if tied:
            self.weight = embedding.table.weight
        else:
            self.weight = nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return nn.functional.linear(hidden, self.weight, self.bias)


class Decoder(nn.Module, ABC):
    """The interface of all decoders."""

    vocabulary: int  # the number of logits, special tokens included
    output: Output | LabelOutput

    @abstractmethod
    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        """The state before the first token. `capture` is that of the steps to come: linear
        attention then keeps keys, from which it can compute weights."""

    @abstractmethod
    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        """Reads one token of each row. The state passed in stays valid. `capture` says which
        layers' weights are in `Step.attention`."""

    @abstractmethod
    def states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        """The hidden states of all positions at once, the input of `output`, and the captured
        attention weights."""

    @abstractmethod
    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """For N hidden states and their targets, the summed loss with label smoothing, and the
        summed negative log-likelihood in nats."""

    @final
    def forward(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T V"]:
        """The logits of all positions at once."""
        hidden, _ = self.states(tokens, memory)
        return self.output(hidden)

    @final
    def forward_with_attention(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "all"
    ) -> tuple[Float[Tensor, "B T V"], tuple[AttentionWeights, ...]]:
        """`forward`, and the attention weights that made these logits."""
        hidden, attention = self.states(tokens, memory, capture=capture)
        return self.output(hidden), attention


class AutoregressiveDecoder(Decoder):
    """A decoder of text: it reads its own tokens and scores the whole vocabulary at every
    position."""

    embedding: Embedding
    output: Output

    @final
    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        return cross_entropy(
            hidden, self.output.weight, self.output.bias, targets, smoothing=smoothing
        )


def cross_weights(capture: Capture, weights: Tensor | None) -> tuple[AttentionWeights, ...]:
    """The captured weights of a decoder with one attention layer, from weights (B, H, T, S), or
    those (B, H, S) of a step. There are none if nothing is captured or there is no attention."""
    if capture == "none":
        return ()
    checks.one_of("capture", capture, Capture)
    if weights is None:
        return ()
    if weights.ndim == 3:
        weights = weights[:, :, None]
    return (AttentionWeights("cross", 0, weights),)


class RecurrentDecoder(AutoregressiveDecoder):
    """LSTM or GRU with attention to the memory after the cell (Luong et al. 2015, section 3.1):

        h_t = CELL(h_{t-1}, e[w_t]);  a_t = softmax(score(h_t, M));  c_t = a_t M
        g_t = tanh(W [c_t; h_t]);     logits = W_o g_t + b

    With input feeding the cell also reads g_{t-1}. Without it the recurrence does not depend on
    attention, so all positions run in one fused call. With `attention="none"`, g_t = tanh(W h_t)
    and the memory only determines the initial state: a learned bridge from its summary.

    With `attention_order="before_cell"` the previous state attends, and the cell reads the context
    (Bahdanau et al. 2015, appendix A.2.2, without their maxout):

        a_t = softmax(score(h_{t-1}, M));  c_t = a_t M;  h_t = CELL(h_{t-1}, c_t, e[w_t])
        g_t = W h_t
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int,
        layers: int,
        memory_width: int,
        summary_width: int,
        cell: Cell = "lstm",
        attention: AttentionScore = "general",
        attention_order: AttentionOrder = "after_cell",
        input_feeding: bool = False,
        dropout: float = 0.0,
        tied: bool = True,
    ):
        super().__init__()
        checks.one_of("cell", cell, Cell)
        checks.one_of("attention", attention, AttentionScore)
        checks.one_of("attention_order", attention_order, AttentionOrder)
        attends_first = attention_order == "before_cell"
        if attends_first and (attention == "none" or input_feeding):
            raise InputError(
                "before_cell needs attention, and excludes input feeding",
                where="attention_order",
                got=f"attention {attention}, input_feeding {input_feeding}",
            )
        self.vocabulary = vocabulary
        self.layers = layers
        self.width = width
        self.input_feeding = input_feeding
        self.attends_first = attends_first
        self.cell_states = 2 if cell == "lstm" else 1  # (h, c) or (h,)

        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.bridge = nn.Linear(summary_width, self.cell_states * layers * width)
        cell_inputs = width
        if input_feeding:
            cell_inputs += width
        elif attends_first:
            cell_inputs += memory_width
        self.rnn = Recurrent(
            cell=cell, inputs=cell_inputs, width=width, layers=layers, dropout=dropout
        )
        self.score = None
        if attention != "none":
            self.score = SCORES[attention](width=width, memory_width=memory_width)
        if attends_first:
            self.attention_output = nn.Linear(width, width, bias=False)
        else:
            context_width = 0 if self.score is None else memory_width
            self.attention_output = nn.Linear(width + context_width, width)
        self.dropout = Dropout(dropout)
        self.output = Output(embedding=self.embedding, tied=tied)

    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        cells = self.bridge(memory.summary).tanh()
        cells = cells.unflatten(-1, (self.cell_states, self.layers, self.width))
        recurrent = tuple(cells.permute(1, 2, 0, 3).contiguous().unbind(0))  # (N, B, D) each
        if self.input_feeding:
            first_output = recurrent[0].new_zeros(1, *recurrent[0].shape[1:])
            recurrent = (*recurrent, first_output)
        keys_values = ()
        if self.score is not None:
            keys_values = (self.score.keys(memory.states), memory.states)
        return State(
            position=torch.zeros(len(memory.mask), dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=tuple(tensor[None, :, None] for tensor in keys_values),  # (1, B, 1, S, _)
            recurrent=recurrent,
        )

    def attend_after_cell(
        self, h: Float[Tensor, "B T D"], state: State
    ) -> tuple[Tensor, Tensor | None]:
        """g = tanh(W [c; h]) (B, T, D) and the attention weights (B, T, S)."""
        if self.score is None:
            return self.dropout(self.attention_output(h).tanh()), None
        context, weights = self.attend(h, state)
        g = self.attention_output(torch.cat([context, h], dim=-1)).tanh()
        return self.dropout(g), weights

    def attend(self, h: Float[Tensor, "B T D"], state: State) -> tuple[Tensor, Tensor]:
        """The context c = softmax(score(h, M)) M (B, T, E) and the attention weights (B, T, S)."""
        assert self.score is not None
        keys, values = (tensor[0, :, 0] for tensor in state.memory)
        scores = self.score(h, keys).masked_fill(~state.mask[:, None], -torch.inf)
        weights = scores.softmax(-1)
        return weights @ values, weights

    def advance(self, x: Float[Tensor, "B D"], state: State) -> tuple[Tensor, State, Tensor | None]:
        """One position: g (B, D), the next state and the attention weights (B, S)."""
        cells = state.recurrent[: self.cell_states]
        previous_output = state.recurrent[self.cell_states :]  # (g,) with input feeding, else ()
        if self.attends_first:
            h = cells[0][-1]  # the top layer's previous state
            context, weights = self.attend(h[:, None], state)
            h, cells = self.rnn.step(torch.cat([x, context[:, 0]], dim=-1), cells)
            g = self.dropout(self.attention_output(h[:, None]))
        else:
            if previous_output:
                x = torch.cat([x, previous_output[0][0]], dim=-1)
            h, cells = self.rnn.step(x, cells)
            g, weights = self.attend_after_cell(h[:, None], state)
        next_state = replace(
            state,
            recurrent=(*cells, g.transpose(0, 1)) if previous_output else cells,
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return g[:, 0], next_state, None if weights is None else weights[:, 0]

    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        g, next_state, weights = self.advance(self.dropout(self.embedding(token)), state)
        if weights is not None:
            weights = weights[:, None]  # (B, H, S), H = 1
        return Step(self.output(g), next_state, weights, cross_weights(capture, weights))

    def states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        state = self.start(memory)
        x = self.dropout(self.embedding(tokens))
        if self.input_feeding or self.attends_first:
            g, weights = self._position_by_position(x, state)
        else:
            g, weights = self.attend_after_cell(self.rnn(x, state.recurrent), state)
        if weights is not None:
            weights = weights[:, None]  # (B, H, T, S), H = 1
        return g, cross_weights(capture, weights)

    def _position_by_position(
        self, x: Float[Tensor, "B T D"], state: State
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T S"] | None]:
        """`advance` over all positions, where each depends on the output of the last."""
        outputs, all_weights = [], []
        for embedding in x.unbind(1):
            g, state, weights = self.advance(embedding, state)
            outputs.append(g)
            if weights is not None:
                all_weights.append(weights)
        return torch.stack(outputs, dim=1), torch.stack(all_weights, 1) if all_weights else None


class TransformerDecoder(AutoregressiveDecoder):
    """Blocks of causal self-attention, cross-attention and feed-forward.

    What its State holds is up to the kernel of `sizes`: a key/value cache, or sums of fixed size.
    """

    def __init__(
        self,
        sizes: TransformerSizes,
        *,
        vocabulary: int,
        memory_width: int,
        positions: Positions,
        tied: bool = True,
    ):
        super().__init__()
        checks.one_of("norm", sizes.norm, Norm)
        check_kernel(kernel_of(sizes), positions)
        self.vocabulary = vocabulary
        self.embedding = Embedding(vocabulary=vocabulary, width=sizes.width)
        self.positions = positions
        self.dropout = Dropout(sizes.dropout)
        blocks = nn.ModuleList(
            DecoderBlock(sizes, memory_width=memory_width) for _ in range(sizes.layers)
        )
        self.blocks = cast(list[DecoderBlock], blocks)
        self.final_norm = nn.LayerNorm(sizes.width) if sizes.norm == "pre" else nn.Identity()
        self.output = Output(embedding=self.embedding, tied=tied)
        self.fast_steps = FastSteps(
            self.embedding, positions, list(self.blocks), self.final_norm, self.output
        )

    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        checks.one_of("capture", capture, Capture)
        rows = len(memory.mask)
        own = AttentionState.stack(
            [
                block.self_attention.start(rows, memory.states, keep_keys=capture == "all")
                for block in self.blocks
            ]
        )
        read = AttentionState.stack(
            [
                block.cross_attention.start(memory.states, memory.mask, keep_keys=capture != "none")
                for block in self.blocks
            ]
        )
        return State(
            position=torch.zeros(rows, dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=() if read.cache is None else (read.cache.tensor,),  # (2 N, B, H, S, K)
            memory_sums=read.fixed,
            recurrent=own.fixed,
            kv_cache=own.cache,
        )

    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        if capture == "none" and not self.training:
            fast_step = self.fast_steps.choose(state)
            if fast_step is not None:
                return fast_step.step(token, state)
        return self.step_by_modules(token, state, capture=capture)

    def step_by_modules(
        self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none"
    ) -> Step:
        """`step` as it is defined."""
        checks.one_of("capture", capture, Capture)
        at = StepPosition(state.position, state.max_position, state.aligned, self.positions)
        mask = None if bool(state.mask.all()) else state.mask
        own, read = self._attention_states(state)
        x = self.dropout(self.positions.add(self.embedding(token), at.index))

        own_layers: list[AttentionState] = []
        attention: list[AttentionWeights] = []
        weights = None
        for n, block in enumerate(self.blocks):
            x, own_layer, block_weights = block.step(
                x,
                own.layer(n),
                read.layer(n),
                at,
                mask=mask,
                capture=capture,
                need_weights=n == len(self.blocks) - 1,
            )
            own_layers.append(own_layer)
            weights = block_weights.cross_attention
            if capture != "none":
                attention += block.captured(n, block_weights)

        next_state = replace(
            state,
            recurrent=AttentionState.stack_fixed(own_layers),
            kv_cache=own.cache,  # written in place by the layers
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        last_weights = None if weights is None else weights[:, :, 0]
        logits = self.output(self.final_norm(x))
        return Step(logits, next_state, last_weights, tuple(attention))

    def _attention_states(self, state: State) -> tuple[AttentionState, AttentionState]:
        """The states of self-attention, with room for the next position, and of cross-attention,
        each of all layers."""
        cache = state.kv_cache
        if cache is not None:
            cache = cache.with_room_at(state.max_position)
        memory = KVCache(state.memory[0]) if state.memory else None
        return AttentionState(cache, state.recurrent), AttentionState(memory, state.memory_sums)

    def states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        checks.one_of("capture", capture, Capture)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.positions.add(self.embedding(tokens), places))
        rotation = self.positions.rotation(places)
        bias = self.positions.bias(places, places)
        if bias is not None:  # bias and causal mask become one tensor for all layers
            causal_mask = masks.causal(len(places), places.device)
            bias = torch.where(causal_mask, bias, -torch.inf)[None]  # (1, H, T, T)
        attention: list[AttentionWeights] = []
        for n, block in enumerate(self.blocks):
            x, weights = block(
                x, memory.states, memory.mask, rotation=rotation, bias=bias, capture=capture
            )
            attention += block.captured(n, weights)
        return self.final_norm(x), tuple(attention)


class RecurrentCrossAttentionDecoder(AutoregressiveDecoder):
    """LSTM or GRU over the tokens, from an initial state of zeros, then one Transformer block of
    cross-attention and feed-forward:

        h = RNN(norm(e[w]));  x = h + attend(norm(h), M);  x = x + ffn(norm(x))
        logits = W norm(x) + b
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
        cell: Cell = "lstm",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        key_bias: bool = True,
        tied: bool = True,
    ):
        super().__init__()
        self.vocabulary = vocabulary
        self.layers = layers
        self.width = width
        self.cell_states = 2 if cell == "lstm" else 1  # (h, c) or (h,)
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.input_norm = nn.LayerNorm(width)
        self.rnn = Recurrent(cell=cell, inputs=width, width=width, layers=layers, dropout=dropout)
        sizes = TransformerSizes(
            layers=1,
            width=width,
            heads=heads,
            ffn_width=ffn_width,
            activation=activation,
            dropout=dropout,
            key_bias=key_bias,
        )
        self.block = DecoderBlock(sizes, memory_width=memory_width, has_self_attention=False)
        self.final_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.output = Output(embedding=self.embedding, tied=tied)

    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        rows = len(memory.mask)
        read = self.block.cross_attention.start(memory.states, memory.mask)
        return State(
            position=torch.zeros(rows, dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=(read.keys_values.tensor,),
            recurrent=tuple(
                memory.states.new_zeros(self.layers, rows, self.width)
                for _ in range(self.cell_states)
            ),
        )

    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        embedding = self.dropout(self.input_norm(self.embedding(token)))
        h, cells = self.rnn.step(embedding, state.recurrent)
        read = AttentionState(KVCache(state.memory[0]))
        x, weights = self.block.read_step(h, read, mask=state.mask, need_weights=True)
        assert weights is not None
        next_state = replace(
            state, recurrent=cells, position=state.position + 1, max_position=state.max_position + 1
        )
        weights = weights[:, :, 0]
        logits = self.output(self.final_norm(x))
        return Step(logits, next_state, weights, cross_weights(capture, weights))

    def states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        checks.one_of("capture", capture, Capture)
        h = self.rnn(self.dropout(self.input_norm(self.embedding(tokens))))
        x, weights = self.block.read(h, memory.states, memory.mask, need_weights=capture != "none")
        return self.final_norm(x), cross_weights(capture, weights)


class LabelOutput(nn.Module):
    """The output layer of a classifier: logits of the labels at the first position, certainty of
    the end token afterwards.

    The last number of `hidden` is 0 at the first position and 1 after it. The `marks` special
    tokens come before the labels and have no weights, so the row of a label is its token less
    `marks`. Where labels are words, the matrix may be shared with an embedding, whose rows for the
    special tokens are skipped.
    """

    scores: nn.Linear
    marks: int

    def __init__(self, *, inputs: int, labels: int, marks: int, end: int):
        super().__init__()
        self.scores = nn.Linear(inputs, labels)
        self.marks = marks
        self.end = end
        self.first_label = 0  # its row in the matrix

    def share(self, embedding: Embedding) -> None:
        """Shares the matrix with this embedding: the vector of a label is that of its token."""
        self.scores = nn.Linear(embedding.weight.shape[1], embedding.weight.shape[0])
        self.scores.weight = embedding.table.weight
        nn.init.zeros_(self.scores.bias)
        self.first_label = self.marks

    @property
    def weight(self) -> Float[Tensor, "V D"]:
        return self.scores.weight[self.first_label :]

    @property
    def bias(self) -> Float[Tensor, " V"]:
        return self.scores.bias[self.first_label :]

    def forward(self, hidden: Float[Tensor, "*rows D1"]) -> Float[Tensor, "*rows V"]:
        ended = hidden[..., -1:] > 0  # after the first position
        labels = nn.functional.linear(hidden[..., :-1], self.weight, self.bias)
        labels = labels.masked_fill(ended, -torch.inf)
        marks = torch.full(
            (*labels.shape[:-1], self.marks), -torch.inf, dtype=labels.dtype, device=labels.device
        )
        marks[..., self.end] = torch.where(ended[..., 0], 0.0, -torch.inf)
        return torch.cat([marks, labels], dim=-1)


class ClassifierDecoder(Decoder):
    """A classifier. A label is an answer of one token: whatever tokens it reads, the first step
    scores the labels, and every later one predicts the end token.

        z = summary,  or with pooling="attention"  z = a M,  a = softmax(q K M),  q learned
        h = relu(W_n … relu(W_1 z));  scores = W h + b

    With `vectors` each label w has a vector e[w] of that width, and scores[w] = e[w] . W h + b[w].
    `vocabulary` includes the `marks` special tokens before the labels, among them `end`.
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
        pooling: Pooling = "summary",
        hidden: Sequence[int] = (),
        dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        vectors: int | None = None,
    ):
        super().__init__()
        self.vocabulary = vocabulary
        self.attention_pooling = checks.one_of("pooling", pooling, Pooling) == "attention"
        inputs = memory_width if self.attention_pooling else summary_width
        if self.attention_pooling:
            self.query = nn.Parameter(torch.randn(memory_width) * memory_width**-0.5)
            self.keys = nn.Linear(memory_width, memory_width, bias=False)
        sizes = [inputs, *hidden]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.dropout = Dropout(dropout)
        self.hidden_dropout = Dropout(hidden_dropout)
        self.projection = None if vectors is None else nn.Linear(sizes[-1], vectors, bias=False)
        self.output = LabelOutput(
            inputs=vectors or sizes[-1], labels=vocabulary - marks, marks=marks, end=end
        )

    def read(self, memory: Memory) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B S"] | None]:
        """h, and the weights of attention pooling."""
        z = memory.summary
        weights = None
        if self.attention_pooling:
            scale = memory.states.shape[-1] ** -0.5
            scores = self.keys(memory.states) @ self.query * scale  # (B, S)
            weights = scores.masked_fill(~memory.mask, -torch.inf).softmax(-1)
            z = (weights[:, None] @ memory.states)[:, 0]
        h = self.dropout(z)
        for n, layer in enumerate(self.layers):
            h = layer(h if n == 0 else self.hidden_dropout(h)).relu()
        if self.projection is not None:
            h = self.projection(h)
        return h, weights

    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        h, weights = self.read(memory)
        return State(
            position=torch.zeros(len(memory.mask), dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=() if weights is None else (weights[None, :, None, :, None],),
            recurrent=(h[None],),
        )

    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        h = state.recurrent[0][0]
        ended = (state.position > 0)[:, None].to(h.dtype)
        logits = self.output(torch.cat([h, ended], dim=-1))
        weights = state.memory[0][0, ..., 0] if state.memory else None
        next_state = replace(
            state, position=state.position + 1, max_position=state.max_position + 1
        )
        return Step(logits, next_state, weights, cross_weights(capture, weights))

    def states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        h, weights = self.read(memory)
        length = tokens.shape[1]
        ended = torch.arange(length, device=h.device).clamp(max=1).to(h.dtype)  # 0, 1, 1, …
        ended = ended.expand(len(h), -1)[..., None]
        hidden = torch.cat([h[:, None].expand(-1, length, -1), ended], dim=-1)
        if weights is not None:
            weights = weights[:, None, None].expand(-1, 1, length, -1)  # (B, H, T, S), H = 1
        return hidden, cross_weights(capture, weights)

    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The loss of the labels only: the end token after them is certain."""
        first = (hidden[:, -1] == 0).nonzero()[:, 0]
        labels = targets[first] - self.output.marks
        return cross_entropy(
            hidden[first, :-1], self.output.weight, self.output.bias, labels, smoothing=smoothing
        )
