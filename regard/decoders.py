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
from regard.frontends import Embedding
from regard.layers import checks, native
from regard.layers.attention import (
    Additive,
    Dot,
    General,
    layer_norm_step,
    linear_step,
    submodule,
)
from regard.layers.blocks import Activation, DecoderBlock, Dropout, FusedStep, Norm
from regard.layers.linear_attention import Kernel
from regard.layers.loss import cross_entropy
from regard.layers.positions import Positions, check_kernel, rotary_phases
from regard.layers.recurrent import Cell, Recurrent
from regard.values import KVCache, Memory, State, Step

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
    def start(self, memory: Memory) -> State:
        """The state before the first token."""

    @abstractmethod
    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        """Reads one token of each row. The state passed in stays valid."""

    @abstractmethod
    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        """The hidden states of all positions at once, the input of `output`."""

    @abstractmethod
    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """For N hidden states and their targets, the summed loss with label smoothing, and the
        summed negative log-likelihood in nats."""

    @final
    def forward(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T V"]:
        """The logits of all positions at once."""
        return self.output(self.states(tokens, memory))


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

    def start(self, memory: Memory) -> State:
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

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        g, next_state, weights = self.advance(self.dropout(self.embedding(token)), state)
        return Step(self.output(g), next_state, None if weights is None else weights[:, None])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        state = self.start(memory)
        x = self.dropout(self.embedding(tokens))
        if not self.input_feeding and not self.attends_first:
            return self.attend_after_cell(self.rnn(x, state.recurrent), state)[0]
        outputs = []
        for embedding in x.unbind(1):
            g, state, _ = self.advance(embedding, state)
            outputs.append(g)
        return torch.stack(outputs, dim=1)


class TransformerDecoder(AutoregressiveDecoder):
    """Blocks of causal self-attention, cross-attention and feed-forward.

    Its State holds a key/value cache, or with the kernel "maclaurin" sums of constant size.
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
        norm: Norm = "pre",
        activation: Activation = "relu",
        dropout: float = 0.0,
        kernel: Kernel = "softmax",
        terms: int = 3,
        key_bias: bool = True,
        tied: bool = True,
    ):
        super().__init__()
        checks.one_of("norm", norm, Norm)
        check_kernel(kernel, positions)
        self.vocabulary = vocabulary
        self.heads = heads
        self.head_width = head_width or width // heads
        self.linear_attention = kernel == "maclaurin"
        self.embedding = Embedding(vocabulary=vocabulary, width=width)
        self.positions = positions
        self.dropout = Dropout(dropout)
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
        if key_bias and not self.linear_attention and not positions.uses_bias:
            self.fused_step = FusedStep(
                self.blocks, self.final_norm, self.output, vocabulary=vocabulary
            )

    def start(self, memory: Memory) -> State:
        rows = len(memory.mask)
        position = torch.zeros(rows, dtype=torch.long, device=memory.mask.device)
        if self.linear_attention:
            memory_sums = [
                submodule(block, "cross_attention").start(memory.states, memory.mask)
                for block in self.blocks
            ]
            sums = [
                submodule(block, "self_attention").start(rows, memory.states)
                for block in self.blocks
            ]
            return State(
                position=position,
                mask=memory.mask,
                memory_sums=(torch.stack(memory_sums),),
                recurrent=(torch.stack(sums),),
            )

        keys_values = [block.cross_attention.keys_values(memory.states) for block in self.blocks]
        empty = memory.states.new_zeros(2 * len(self.blocks), rows, self.heads, 0, self.head_width)
        return State(
            position=position,
            mask=memory.mask,
            memory=(torch.cat(keys_values).contiguous(),),  # (2 N, B, H, S, K)
            kv_cache=KVCache(empty),
        )

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        if self.linear_attention:
            return self._linear_step(token, state)
        assert state.kv_cache is not None
        kv_cache = state.kv_cache.with_room_at(state.max_position)
        positions = submodule(self, "positions")
        place = state.max_position if state.aligned else state.position
        x = positions.add(submodule(self, "embedding").step(token), place)

        if self.fused_step is not None and native.supports_step(x):
            phases = None
            if positions.uses_rotation:
                phases = rotary_phases(state.position, self.head_width).to(torch.complex64)
            logits, weights = self.fused_step.step(
                x, kv_cache.tensor, state.position, state.memory[0], state.mask, phases
            )
        else:
            used = kv_cache.tensor.narrow(-2, 0, state.max_position + 1)
            x, weights = self._blocks_step(x, state, used)
            logits = self._output_step(x)

        next_state = replace(
            state,
            kv_cache=kv_cache,
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return Step(logits, next_state, weights)

    def _blocks_step(
        self, x: Float[Tensor, "B D"], state: State, cache: Float[Tensor, "N B H C K"]
    ) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "B H S"]]:
        """One position through all blocks, and the last block's cross-attention weights."""
        memory_mask = None if bool(state.mask.all()) else state.mask[:, None, None]  # (B, 1, 1, S)
        attn_mask = None
        if state.aligned:
            cache_position = place = state.max_position
        else:
            cache_position = state.position
            place = state.position[:, None]
            cached = torch.arange(cache.shape[3], device=x.device)
            attn_mask = (cached <= place)[:, None, None]  # (B, 1, 1, C)

        positions = submodule(self, "positions")
        rotation = positions.rotation(place) if positions.uses_rotation else None
        if positions.uses_bias:
            cached = torch.arange(cache.shape[3], device=x.device)
            bias = positions.bias(place, cached)  # (H, 1, C) or (B, H, 1, C)
            if attn_mask is None:
                attn_mask = bias[None]
            else:
                attn_mask = torch.where(attn_mask, bias, -torch.inf)

        x = x[0] if state.size == 1 else x  # a single row is a vector, which is faster
        blocks = submodule(self, "blocks")
        caches = cache.split(2)
        memories = state.memory[0].split(2)
        weights = None
        for n, block in enumerate(blocks):
            x, weights = block.step(
                x,
                caches[n],
                cache_position,
                attn_mask,
                rotation,
                memories[n],
                memory_mask,
                need_weights=n == len(blocks) - 1,
            )
        assert weights is not None
        return x, weights[:, :, 0]

    def _linear_step(self, token: Int[Tensor, " B"], state: State) -> Step:
        """`step` with linear attention."""
        positions = submodule(self, "positions")
        embedding = submodule(self, "embedding").step(token)
        if state.aligned:
            x = positions.add(embedding, state.max_position)
            rotation = positions.rotation(state.max_position)
        else:
            x = positions.add(embedding, state.position)
            rotation = positions.rotation(state.position[:, None])

        all_sums = []
        for block, sums, memory_sums in zip(
            submodule(self, "blocks"), state.recurrent[0], state.memory_sums[0], strict=True
        ):
            x, next_sums = block.linear_step(x, sums, rotation, memory_sums)
            all_sums.append(next_sums)
        next_state = replace(
            state,
            recurrent=(torch.stack(all_sums),),
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return Step(self._output_step(x), next_state)

    def _output_step(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "B V"]:
        """The logits of one position: the final norm and the output layer."""
        if not isinstance(self.final_norm, nn.Identity):
            x = layer_norm_step(x, self.final_norm)
        return linear_step(x, submodule(self, "output")).view(-1, self.output.bias.shape[0])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.positions.add(self.embedding(tokens), places))
        rotation = self.positions.rotation(places)
        bias = self.positions.bias(places, places)
        if bias is not None:  # bias and causal mask become one tensor for all layers
            causal_mask = masks.causal(len(places), places.device)
            bias = torch.where(causal_mask, bias, -torch.inf)[None]  # (1, H, T, T)
        for block in self.blocks:
            keys_values = block.cross_attention.keys_values(memory.states)
            x = block(x, keys_values, memory.mask, rotation=rotation, bias=bias)
        return self.final_norm(x)


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
            has_self_attention=False,
        )
        self.final_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.output = Output(embedding=self.embedding, tied=tied)

    def start(self, memory: Memory) -> State:
        rows = len(memory.mask)
        return State(
            position=torch.zeros(rows, dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=(self.block.cross_attention.keys_values(memory.states),),
            recurrent=tuple(
                memory.states.new_zeros(self.layers, rows, self.width)
                for _ in range(self.cell_states)
            ),
        )

    def step(self, token: Int[Tensor, " B"], state: State) -> Step:
        embedding = self.dropout(self.input_norm(self.embedding(token)))
        h, cells = self.rnn.step(embedding, state.recurrent)
        x, weights = self.block.read_step(
            h, state.memory[0], state.mask[:, None, None], need_weights=True
        )
        assert weights is not None
        next_state = replace(
            state, recurrent=cells, position=state.position + 1, max_position=state.max_position + 1
        )
        return Step(self.output(self.final_norm(x)), next_state, weights[:, :, 0])

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        h = self.rnn(self.dropout(self.input_norm(self.embedding(tokens))))
        keys_values = self.block.cross_attention.keys_values(memory.states)
        return self.final_norm(self.block.read(h, keys_values, memory.mask))


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
        ended = (state.position > 0)[:, None].to(h.dtype)
        logits = self.output(torch.cat([h, ended], dim=-1))
        weights = state.memory[0][0, ..., 0] if state.memory else None
        next_state = replace(
            state, position=state.position + 1, max_position=state.max_position + 1
        )
        return Step(logits, next_state, weights)

    def states(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T D"]:
        h, _ = self.read(memory)
        length = tokens.shape[1]
        ended = torch.arange(length, device=h.device).clamp(max=1).to(h.dtype)  # 0, 1, 1, …
        ended = ended.expand(len(h), -1)[..., None]
        return torch.cat([h[:, None].expand(-1, length, -1), ended], dim=-1)

    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The loss of the labels only: the end token after them is certain."""
        first = (hidden[:, -1] == 0).nonzero()[:, 0]
        labels = targets[first] - self.output.marks
        return cross_entropy(
            hidden[first, :-1], self.output.weight, self.output.bias, labels, smoothing=smoothing
        )
