"""The model: a frontend, an encoder and a decoder."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from regard.decoders import Decoder
from regard.encoders import Encoder
from regard.frontends import Frontend
from regard.layers import checks
from regard.layers.loss import ctc_loss
from regard.values import Capture, Memory


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
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The loss with label smoothing, and the negative log-likelihood in nats, both summed over
        the targets in `real`.

        `rows[b]` is the row of `raw` that the targets of row b belong to. Where several targets
        share one input, it is then encoded once.

        `ctc_weight` is the weight of a CTC loss on the memory: its positions, through the decoder's
        own output layer, predict the targets in order (Kim et al. 2017), which helps attention find
        its alignment early in training.
        """
        memory = self.encode(raw, mask)
        if rows is not None:
            memory = memory.rows(rows)
        positions = real.flatten().nonzero()[:, 0]
        hidden, _ = self.decoder.hidden_states(tokens, memory)
        hidden = hidden.flatten(0, 1).index_select(0, positions)
        loss, nats = self.decoder.loss(hidden, targets.flatten()[positions], smoothing=smoothing)
        if ctc_weight:
            ctc = ctc_loss(self.decoder.output(memory.states), memory.mask, targets, real)
            loss = (1 - ctc_weight) * loss + ctc_weight * ctc
        return loss, nats

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
