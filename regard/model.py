"""The model: a frontend, an encoder and a decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.decoders import Decoder
from regard.encoders import Encoder
from regard.frontends import Frontend
from regard.layers import checks
from regard.layers.loss import contrastive_loss, ctc_loss, earlier_tokens, unlikelihood_loss
from regard.values import Capture, Memory

TEMPERATURE = 0.2  # of the contrastive loss, in nats per token


class OtherAnswers(NamedTuple):
    """Answers to other inputs, for the contrastive loss.

    rows                  (N,): the row of the batch that each answer is compared with
    tokens, targets, real (N, T): as in `Model.loss`
    """

    rows: Int[Tensor, " N"]
    tokens: Int[Tensor, "N T"]
    targets: Int[Tensor, "N T"]
    real: Bool[Tensor, "N T"]

    def to(self, device: torch.device) -> OtherAnswers:
        """The answers on a device."""
        return OtherAnswers(*(tensor.to(device) for tensor in self))


class Model(nn.Module):
    """decoder(tokens, encoder(frontend(raw)))

    `idf` (V,) is the inverse document frequency of each token in the answers. It is stored with the
    weights for re-ranking candidates, and is not used in `forward`.
    """

    def __init__(self, *, frontend: Frontend, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.frontend = frontend
        self.encoder = encoder
        self.decoder = decoder
        self.idf: Tensor
        self.register_buffer("idf", torch.zeros(decoder.vocabulary))

    def encode(
        self,
        raw: Shaped[Tensor, "B ..."],
        mask: Bool[Tensor, "B S"],
        *,
        capture: Capture = "none",
    ) -> Memory:
        """The memory of a raw input, where `mask` is True at real positions. `capture="all"` keeps
        the encoder's attention weights in `Memory.attention`."""
        checks.one_of("capture", capture, Capture)
        return self.encoder(self.frontend(raw, mask), capture=capture)

    def forward(
        self, raw: Shaped[Tensor, "B ..."], mask: Bool[Tensor, "B S"], tokens: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        return self.decoder(tokens, self.encode(raw, mask))

    def loss(
        self,
        raw: Shaped[Tensor, "R ..."],
        mask: Bool[Tensor, "R S"],
        tokens: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        real: Bool[Tensor, "B T"],
        rows: Int[Tensor, " B"] | None = None,
        *,
        smoothing: float = 0.0,
        ctc_weight: float = 0.0,
        others: OtherAnswers | None = None,
        contrastive_weight: float = 0.0,
        unlikelihood_weight: float = 0.0,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The loss with label smoothing, and the negative log-likelihood in nats, both summed over
        the targets in `real`.

        `rows[b]` is the row of `raw` that the targets of row b belong to. Where several targets
        share one input, it is then encoded once.

        `ctc_weight` is the weight of a CTC loss on the memory: its positions, through the decoder's
        own output layer, predict the targets in order (Kim et al. 2017), which helps attention find
        its alignment early in training.

        `contrastive_weight` is the weight of a contrastive loss: given an input, its own answer
        should have a higher log-likelihood per token than that in `others`. It counts once for each
        target, as the mean over `others`.

        `unlikelihood_weight` is the weight of an unlikelihood loss: at each position the tokens of
        the answer before it, except the target, should be improbable (Welleck et al. 2020).
        """
        memory = self.encode(raw, mask)
        if rows is not None:
            memory = memory.rows(rows)
        positions = real.flatten().nonzero()[:, 0]
        hidden, _ = self.decoder.hidden_states(tokens, memory)
        real_hidden = hidden.flatten(0, 1).index_select(0, positions)
        loss, nats = self.decoder.loss(
            real_hidden, targets.flatten()[positions], smoothing=smoothing
        )
        if others is not None:
            compared = others.rows
            other_hidden, _ = self.decoder.hidden_states(others.tokens, memory.rows(compared))
            contrast = contrastive_loss(
                self._nats_per_token(hidden[compared], targets[compared], real[compared]),
                self._nats_per_token(other_hidden, others.targets, others.real),
                temperature=TEMPERATURE,
            )
            loss = loss + contrastive_weight * len(positions) * contrast
        if unlikelihood_weight:
            row, column = real.nonzero(as_tuple=True)
            repeated = unlikelihood_loss(
                self.decoder.output(real_hidden).to(self.idf.dtype),  # also under autocast
                targets[row],
                earlier_tokens(targets, real)[row, column],
            )
            loss = loss + unlikelihood_weight * repeated
        if ctc_weight:
            ctc = ctc_loss(self.decoder.output(memory.states), memory.mask, targets, real)
            loss = (1 - ctc_weight) * loss + ctc_weight * ctc
        return loss, nats

    def _nats_per_token(
        self,
        hidden: Float[Tensor, "B T D"],
        targets: Int[Tensor, "B T"],
        real: Bool[Tensor, "B T"],
    ) -> Float[Tensor, " B"]:
        """The negative log-likelihood of each row's targets, divided by their number, with
        gradients."""
        row, column = real.nonzero(as_tuple=True)
        logits = self.decoder.output(hidden[row, column]).to(self.idf.dtype)  # also under autocast
        nats = cross_entropy(logits, targets[row, column], reduction="none")
        return nats.new_zeros(len(real)).index_add(0, row, nats) / real.sum(1)

    def nats(
        self,
        memory: Memory,
        tokens: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        real: Bool[Tensor, "B T"],
    ) -> Float[Tensor, " B"]:
        """The negative log-likelihood of each row's targets in `real`, for evaluation."""
        positions = real.flatten().nonzero()[:, 0]
        hidden, _ = self.decoder.hidden_states(tokens, memory)
        hidden = hidden.flatten(0, 1).index_select(0, positions)
        of_tokens = hidden.new_zeros(real.numel())
        of_tokens[positions] = self.decoder.nats(hidden, targets.flatten()[positions])
        return of_tokens.view(real.shape).sum(1)

    @property
    def device(self) -> torch.device:
        """Where its weights are, and its inputs have to be."""
        return self.idf.device

    @property
    def parameter_count(self) -> int:
        """The number of weights."""
        return sum(parameter.numel() for parameter in self.parameters())
