"""The one model: a frontend, an encoder and a decoder."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from regard.decoders import Decoder
from regard.encoders import Encoder
from regard.frontends import Frontend
from regard.layers.loss import ctc_loss
from regard.values import Memory


class Model(nn.Module):
    """decoder(tokens, encoder(frontend(raw)))

    `idf` (V,) says how seldom each token occurs in an answer; it re-ranks candidates and is no part
    of the sums.
    """

    def __init__(self, *, frontend: Frontend, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.frontend, self.encoder, self.decoder = frontend, encoder, decoder
        self.idf: Tensor
        self.register_buffer("idf", torch.zeros(decoder.vocabulary))

    def read(self, raw: Shaped[Tensor, "B ..."], mask: Bool[Tensor, "B S"]) -> Memory:
        return self.encoder(self.frontend(raw, mask))

    def forward(
        self, raw: Shaped[Tensor, "B ..."], mask: Bool[Tensor, "B S"], tokens: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        return self.decoder(tokens, self.read(raw, mask))

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
        align: float = 0.0,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Summed over the real targets: the loss with label smoothing, and plain nats. `rows` says
        which row of raw each target answers, if several answer the same, which is then read once.

        A share `align` of the loss asks the memory itself: its places, seen through the
        decoder's own output, must say the targets in order (Kim et al. 2017), so that attention
        soon has something to find there."""
        places = real.flatten().nonzero()[:, 0]
        memory = self.read(raw, mask) if rows is None else self.read(raw, mask).rows(rows)
        hidden = self.decoder.states(tokens, memory).flatten(0, 1).index_select(0, places)
        loss, nats = self.decoder.loss(hidden, targets.flatten()[places], smoothing=smoothing)
        if align:
            loss = (1 - align) * loss + align * ctc_loss(
                self.decoder.output(memory.states), memory.mask, targets, real
            )
        return loss, nats

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
