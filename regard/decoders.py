"""Decoders: a Memory (the encoder's output) and the tokens so far -> the logits of the next token.

Every decoder computes all positions at once (`forward`, for training) or one at a time (`start`,
then `step`, for search). The tests check for each decoder that both give the same logits. What a
decoder carries from step to step is a State: see `regard.values`, also for the letters of shapes.
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
from regard.layers.attention import Additive, Dot, General, ScaledDot
from regard.layers.attention_layer import StepPosition
from regard.layers.blocks import DecoderBlock, Dropout
from regard.layers.embedding import Embedding
from regard.layers.fused_step import FastSteps
from regard.layers.kernels import kernel_of
from regard.layers.loss import PIECE, cross_entropy
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

AttentionScore = Literal["none", "dot", "scaled", "general", "additive"]
AttentionOrder = Literal["after_cell", "before_cell"]
Pooling = Literal["summary", "attention"]
SCORES = {"dot": Dot, "scaled": ScaledDot, "general": General, "additive": Additive}


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
        """The state before the first token. `capture` must be that of the steps to come: linear
        attention can compute weights only if its state keeps the keys from the start."""

    @abstractmethod
    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        """Reads one token of each row; returns the logits of the next token and the next state.
        The state passed in stays valid. `capture` says which layers' attention weights are in
        `Step.attention`."""

    @abstractmethod
    def hidden_states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        """The hidden states of all positions at once, which are the input of the output layer,
        and the captured attention weights."""

    @abstractmethod
    def loss(
        self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], *, smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The cross-entropy with label smoothing and the negative log-likelihood in nats, each
        summed over N hidden states and their target tokens."""

    @final
    def nats(self, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """The negative log-likelihood of each target token, for evaluation."""
        nats = hidden.new_empty(len(targets))
        rows = max(1, PIECE // self.vocabulary)
        pieces = zip(hidden.split(rows), targets.split(rows), nats.split(rows), strict=True)
        for h, y, piece in pieces:
            logits = self.output(h)
            piece.copy_(logits.logsumexp(1) - logits.gather(1, y[:, None]).squeeze(1))
        return nats

    @final
    def forward(self, tokens: Int[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T V"]:
        """The logits of all positions at once."""
        hidden, _ = self.hidden_states(tokens, memory)
        return self.output(hidden)

    @final
    def forward_with_attention(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "all"
    ) -> tuple[Float[Tensor, "B T V"], tuple[AttentionWeights, ...]]:
        """`forward`, and the attention weights that made these logits."""
        hidden, attention = self.hidden_states(tokens, memory, capture=capture)
        return self.output(hidden), attention


class AutoregressiveDecoder(Decoder):
    """A decoder that reads the previous tokens and scores the whole vocabulary at every
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
    """The cross-attention weights of a decoder with one attention layer, as AttentionWeights.

    `weights` are (B, H, T, S), or (B, H, S) in a step, or None if the decoder has no attention.
    The result is empty if nothing is captured or there is no attention.
    """
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

    M are the states of the memory, e is the embedding. The initial state is tanh(W_b s), where s
    is the memory's summary and W_b the layer `bridge`. With `attention="none"`, g_t = tanh(W h_t),
    and the initial state is all that the decoder knows of the memory.

    With input feeding the cell also reads g_{t-1}. Without it the recurrence does not depend on
    attention, so one call of the LSTM or GRU computes all positions.

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
            g_0 = recurrent[0].new_zeros(1, *recurrent[0].shape[1:])
            recurrent = (*recurrent, g_0)
        keys_values = ()
        if self.score is not None:
            keys_values = (self.score.keys(memory.states), memory.states)
        return State(
            position=torch.zeros(len(memory.mask), dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=tuple(tensor[None, :, None] for tensor in keys_values),  # (N=1, B, H=1, S, _)
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
        """Computes one position of each row: g (B, D), the next state and the attention weights
        (B, S), None without attention."""
        cells = state.recurrent[: self.cell_states]
        previous_g = state.recurrent[self.cell_states :]  # (g,) with input feeding, else ()
        if self.attends_first:
            h = cells[0][-1]  # the top layer's previous state
            context, weights = self.attend(h[:, None], state)
            h, cells = self.rnn.step(torch.cat([x, context[:, 0]], dim=-1), cells)
            g = self.dropout(self.attention_output(h[:, None]))
        else:
            if previous_g:
                x = torch.cat([x, previous_g[0][0]], dim=-1)
            h, cells = self.rnn.step(x, cells)
            g, weights = self.attend_after_cell(h[:, None], state)
        next_state = replace(
            state,
            recurrent=(*cells, g.transpose(0, 1)) if previous_g else cells,
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        return g[:, 0], next_state, None if weights is None else weights[:, 0]

    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        g, next_state, weights = self.advance(self.dropout(self.embedding(token)), state)
        if weights is not None:
            weights = weights[:, None]  # (B, H, S), H = 1
        return Step(self.output(g), next_state, weights, cross_weights(capture, weights))

    def hidden_states(
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
        """Calls `advance` for each position in turn, for decoders in which a position depends on
        the attention of the one before."""
        all_g = []
        all_weights = []
        for embedding in x.unbind(1):
            g, state, weights = self.advance(embedding, state)
            all_g.append(g)
            if weights is not None:
                all_weights.append(weights)
        weights = torch.stack(all_weights, dim=1) if all_weights else None
        return torch.stack(all_g, dim=1), weights


class TransformerDecoder(AutoregressiveDecoder):
    """Blocks of causal self-attention, cross-attention and feed-forward.

    The kernel of `sizes` (softmax or linear attention) decides what its State holds: a key/value
    cache, or the sums of linear attention, whose size does not grow with the tokens.
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
        self_state = AttentionState.stack(
            [
                block.self_attention.start(rows, like=memory.states, keep_keys=capture == "all")
                for block in self.blocks
            ]
        )
        cross_state = AttentionState.stack(
            [
                block.cross_attention.start(memory.states, memory.mask, keep_keys=capture != "none")
                for block in self.blocks
            ]
        )
        keys_values = ()
        if cross_state.cache is not None:
            keys_values = (cross_state.cache.tensor,)  # (2 N, B, H, S, K)
        return State(
            position=torch.zeros(rows, dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=keys_values,
            memory_sums=cross_state.fixed,
            recurrent=self_state.fixed,
            kv_cache=self_state.cache,
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
        """`step` by the modules, which define it. `fast_steps` computes the same faster, without
        gradients, dropout and captured weights."""
        checks.one_of("capture", capture, Capture)
        at = StepPosition(state.position, state.max_position, state.aligned, self.positions)
        mask = None if bool(state.mask.all()) else state.mask
        self_state, cross_state = self._attention_states(state)
        x = self.dropout(self.positions.add(self.embedding(token), at.index))

        next_self_states: list[AttentionState] = []
        attention: list[AttentionWeights] = []
        weights = None
        for n, block in enumerate(self.blocks):
            x, next_self_state, block_weights = block.step(
                x,
                self_state.layer(n),
                cross_state.layer(n),
                at,
                mask=mask,
                capture=capture,
                need_weights=n == len(self.blocks) - 1,
            )
            next_self_states.append(next_self_state)
            weights = block_weights.cross_attention
            if capture != "none":
                attention += block.captured(n, block_weights)

        next_state = replace(
            state,
            recurrent=AttentionState.stack_fixed(next_self_states),
            kv_cache=self_state.cache,  # the layers wrote into it; older States stay valid
            position=state.position + 1,
            max_position=state.max_position + 1,
        )
        last_weights = None if weights is None else weights[:, :, 0]
        logits = self.output(self.final_norm(x))
        return Step(logits, next_state, last_weights, tuple(attention))

    def _attention_states(self, state: State) -> tuple[AttentionState, AttentionState]:
        """The states of self-attention and of cross-attention, each of all layers. That of
        self-attention has room for the next position."""
        cache = state.kv_cache
        if cache is not None:
            cache = cache.with_room_at(state.max_position)
        self_state = AttentionState(cache, state.recurrent)

        memory = KVCache(state.memory[0]) if state.memory else None
        cross_state = AttentionState(memory, state.memory_sums)
        return self_state, cross_state

    def hidden_states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        checks.one_of("capture", capture, Capture)
        index = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.positions.add(self.embedding(tokens), index))
        rotation = self.positions.rotation(index)
        bias = self.positions.bias(index, index)
        if bias is not None:  # bias and causal mask become one tensor for all layers
            causal_mask = masks.causal(len(index), index.device)
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
        cross_state = self.block.cross_attention.start(memory.states, memory.mask)
        return State(
            position=torch.zeros(rows, dtype=torch.long, device=memory.mask.device),
            mask=memory.mask,
            memory=(cross_state.keys_values.tensor,),  # (2, B, H, S, K)
            recurrent=tuple(
                memory.states.new_zeros(self.layers, rows, self.width)
                for _ in range(self.cell_states)
            ),
        )

    def step(self, token: Int[Tensor, " B"], state: State, *, capture: Capture = "none") -> Step:
        embedding = self.dropout(self.input_norm(self.embedding(token)))
        h, cells = self.rnn.step(embedding, state.recurrent)
        cross_state = AttentionState(KVCache(state.memory[0]))
        x, weights = self.block.cross_attend_step(
            h, cross_state, mask=state.mask, need_weights=True
        )
        assert weights is not None
        next_state = replace(
            state, recurrent=cells, position=state.position + 1, max_position=state.max_position + 1
        )
        weights = weights[:, :, 0]
        logits = self.output(self.final_norm(x))
        return Step(logits, next_state, weights, cross_weights(capture, weights))

    def hidden_states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        checks.one_of("capture", capture, Capture)
        h = self.rnn(self.dropout(self.input_norm(self.embedding(tokens))))
        x, weights = self.block.cross_attend(
            h, memory.states, memory.mask, need_weights=capture != "none"
        )
        return self.final_norm(x), cross_weights(capture, weights)


class LabelOutput(nn.Module):
    """The output layer of a classifier: at the first position the logits of the labels, and at all
    later positions probability 1 for the end token.

    A hidden state has D1 = D + 1 components. The last one is a flag, 0 at the first position and 1
    at later ones.

    The special tokens are the first tokens of the vocabulary, and the labels come after them: token
    num_special_tokens + i is label i, row i of the matrix. `share` is for labels that are words:
    the matrix is then an embedding, whose rows for the special tokens are skipped.
    """

    def __init__(self, *, inputs: int, labels: int, num_special_tokens: int, end: int):
        super().__init__()
        self.projection = nn.Linear(inputs, labels)
        self.num_special_tokens = num_special_tokens
        self.end = end
        self.first_label = 0  # the row of the first label in the matrix

    def share(self, embedding: Embedding) -> None:
        """Uses the matrix of this embedding: the vector of a label is that of its token."""
        self.projection = nn.Linear(embedding.weight.shape[1], embedding.weight.shape[0])
        self.projection.weight = embedding.table.weight
        nn.init.zeros_(self.projection.bias)
        self.first_label = self.num_special_tokens

    @property
    def weight(self) -> Float[Tensor, "labels D"]:
        return self.projection.weight[self.first_label :]

    @property
    def bias(self) -> Float[Tensor, " labels"]:
        return self.projection.bias[self.first_label :]

    def forward(self, hidden: Float[Tensor, "*rows D1"]) -> Float[Tensor, "*rows V"]:
        ended = hidden[..., -1:] > 0  # after the first position
        label_logits = nn.functional.linear(hidden[..., :-1], self.weight, self.bias)
        label_logits = label_logits.masked_fill(ended, -torch.inf)
        special_logits = torch.full(
            (*label_logits.shape[:-1], self.num_special_tokens),
            -torch.inf,
            dtype=label_logits.dtype,
            device=label_logits.device,
        )
        special_logits[..., self.end] = torch.where(ended[..., 0], 0.0, -torch.inf)
        return torch.cat([special_logits, label_logits], dim=-1)


class ClassifierDecoder(Decoder):
    """A classifier, as a decoder whose answer is one token, the label. The first step scores the
    labels and every later step predicts the end token, whatever tokens it reads.

        z = summary,  or with pooling="attention"  z = a M,  a = softmax(q . W_k M / sqrt(E))
        h = relu(W_n … relu(W_1 z));  logits = W h + b

    q is a learned query, E the width of the memory. `hidden` are the widths of the layers 1 to n.
    `vocabulary` counts the labels and, before them, `num_special_tokens` special tokens, of which
    `end` is one. With `vectors`, h is first projected to that width: logits[w] = e[w] . W h + b[w],
    where e[w] is the vector of label w, such as the embedding of a word.
    """

    output: LabelOutput

    def __init__(
        self,
        *,
        vocabulary: int,
        memory_width: int,
        summary_width: int,
        num_special_tokens: int,
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
            inputs=vectors or sizes[-1],
            labels=vocabulary - num_special_tokens,
            num_special_tokens=num_special_tokens,
            end=end,
        )

    def pool(self, memory: Memory) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B S"] | None]:
        """h (B, D), and the weights of attention pooling; None without it."""
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
        h, weights = self.pool(memory)
        # The weights are the same at each step. In the State they take the place of keys and
        # values, (N=1, B, H=1, S, 1).
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

    def hidden_states(
        self, tokens: Int[Tensor, "B T"], memory: Memory, *, capture: Capture = "none"
    ) -> tuple[Float[Tensor, "B T D"], tuple[AttentionWeights, ...]]:
        h, weights = self.pool(memory)
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
        labels = targets[first] - self.output.num_special_tokens
        return cross_entropy(
            hidden[first, :-1], self.output.weight, self.output.bias, labels, smoothing=smoothing
        )
