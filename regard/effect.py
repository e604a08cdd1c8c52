"""The effect of each place of a source on an answer: how much less likely the answer's tokens are
when the decoder cannot attend to the place.

Attention weights say where a decoder attends, effects what its answer depends on. The two can
differ (Jain & Wallace 2019; Wiegreffe & Pinter 2019).

    effects        hides a place from attention; the encoder has read it
    input_effects  hides a place of the input from the whole model
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from regard.decoders import Decoder
from regard.errors import InputError
from regard.model import Model
from regard.values import Memory

TOKENS = 256  # of a batch, each row of which has another place hidden


@torch.inference_mode()
def effects(
    decoder: Decoder,
    memory: Memory,
    tokens: Int[Tensor, " T"],
    targets: Int[Tensor, " T"],
    before_pass: Callable[[], None] = lambda: None,
) -> Float[Tensor, "T S"]:
    """log p(targets[t] | memory) - log p(targets[t] | memory without place s), for every position t
    and place s, in nats.

    `memory` has one row, `tokens` are those the decoder reads and `targets` those it should
    answer. A hidden place is masked: no attention layer of the decoder reads it. The encoder has
    read it, and so has the memory's summary, so the effect is that of attention alone. It is
    positive where the place makes the target likelier, and 0 at places that are masked anyway and
    for a decoder without attention.

    `before_pass` is called before each pass of the decoder; what it raises ends the measurement.
    """
    if len(memory.mask) != 1:
        raise InputError(
            "effects are those of one answer",
            where="memory",
            got=f"{len(memory.mask)} rows",
            hint="pick one with memory.rows",
        )
    places = memory.mask[0].nonzero()[:, 0]
    log_p = _log_probabilities(decoder, memory, tokens, targets)[0]  # (T,)
    result = log_p.new_zeros(len(tokens), memory.mask.shape[1])
    if len(places) < 2:  # a decoder cannot attend to nothing
        return result
    for chunk in places.split(max(1, TOKENS // max(1, len(tokens)))):
        before_pass()
        masks = memory.mask.repeat(len(chunk), 1)
        masks[torch.arange(len(chunk), device=chunk.device), chunk] = False
        masked = replace(memory.rows(torch.zeros_like(chunk)), mask=masks)
        log_p_without = _log_probabilities(decoder, masked, tokens, targets)  # (places, T)
        result[:, chunk] = (log_p - log_p_without).T
    return result


@torch.inference_mode()
def input_effects(
    model: Model,
    raw: Shaped[Tensor, "1 ..."],
    mask: Bool[Tensor, "1 S"],
    hidden: Iterable[tuple[Shaped[Tensor, "P ..."], Bool[Tensor, "P R"]]],
    tokens: Int[Tensor, " T"],
    targets: Int[Tensor, " T"],
) -> Float[Tensor, "T P"]:
    """log p(targets[t] | input) - log p(targets[t] | input with place p hidden), in nats.

    `hidden` are batches of the input with one place hidden in each row. Unlike `effects` this is
    the effect of the place by any way through the model, so it is defined without attention.
    """
    log_p = _log_probabilities(model.decoder, model.encode(raw, mask), tokens, targets)  # (1, T)
    falls = []
    for hidden_raw, hidden_mask in hidden:
        memory = model.encode(hidden_raw, hidden_mask)
        falls.append(log_p - _log_probabilities(model.decoder, memory, tokens, targets))
    return torch.cat(falls).T


def _log_probabilities(
    decoder: Decoder, memory: Memory, tokens: Int[Tensor, " T"], targets: Int[Tensor, " T"]
) -> Float[Tensor, "B T"]:
    """log p(targets[t]) of each row of the memory."""
    rows = len(memory.mask)
    logits = decoder(tokens.expand(rows, -1), memory)
    index = targets.expand(rows, -1)[..., None]
    return logits.log_softmax(-1).gather(-1, index)[..., 0]
