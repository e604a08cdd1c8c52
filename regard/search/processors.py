"""Logits processors: each takes the logits of a step and returns those to choose the token from.

logits -> banned tokens, min_new_tokens -> repetition_penalty -> no_repeat_ngram -> mmi
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

NEVER = -math.inf
# MMI chooses among tokens with at least this share of the best one's probability.
MIN_PLAUSIBLE_RATIO = 0.1


def banned(tokens: Sequence[int], like: Float[Tensor, "*B V"]) -> Float[Tensor, " V"] | None:
    """A bias for the logits that excludes `tokens`; None if there are none."""
    if not tokens:
        return None
    bias = like.new_zeros(like.shape[-1])
    bias[list(tokens)] = NEVER
    return bias


def repetition_penalty(
    logits: Float[Tensor, "B V"], tokens: Int[Tensor, "B T"], penalty: float
) -> Float[Tensor, "B V"]:
    """Divide the logits of previous tokens by the penalty, or multiply them if negative (Keskar
    et al. 2019, "CTRL")."""
    previous = logits.gather(1, tokens)
    penalised = torch.where(previous < 0, previous * penalty, previous / penalty)
    return logits.scatter(1, tokens, penalised)


def no_repeat_ngram(
    logits: Float[Tensor, "B V"], tokens: Int[Tensor, "B T"], size: int
) -> Float[Tensor, "B V"]:
    """Exclude tokens that would complete an n-gram of `size` tokens that is there already. A row
    in which this excludes every token keeps all of them."""
    if tokens.shape[1] < size:
        return logits
    grams = tokens.unfold(1, size, 1)  # (B, T-size+1, size)
    suffix = tokens[:, None, tokens.shape[1] - size + 1 :]
    row, place = (grams[..., :-1] == suffix).all(-1).nonzero(as_tuple=True)
    allowed = logits.clone()
    allowed[row, grams[row, place, -1]] = NEVER
    return torch.where((allowed == NEVER).all(-1, keepdim=True), logits, allowed)


def mmi(
    logits: Float[Tensor, "B V"],
    prior: Float[Tensor, "B V"],
    strength: float,
    plausible: float = MIN_PLAUSIBLE_RATIO,
) -> Float[Tensor, "B V"]:
    """logits - strength * log p(t|nothing), among tokens with p(t|S) >= plausible * max p.
    Without that bound the token that the language model finds least likely would win."""
    enough = logits >= logits.amax(-1, keepdim=True) + math.log(plausible)
    return (logits - strength * prior.log_softmax(-1)).masked_fill(~enough, NEVER)


def top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Exclude all but the k largest logits and those equal to them."""
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, NEVER)


def top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Exclude all but the nucleus: the fewest of the likeliest tokens that reach probability p, at
    least one (Holtzman et al. 2020)."""
    token, before = nucleus(logits, p)
    outside = before >= p  # the likelier ones reach p already
    outside[:, 0] = False  # a p near 0 may be 0 in single precision
    likely = logits.gather(1, token).masked_fill(outside, NEVER)
    return torch.full_like(logits, NEVER).scatter(1, token, likely)


def nucleus(
    logits: Float[Tensor, "B V"], p: float
) -> tuple[Int[Tensor, "B N"], Float[Tensor, "B N"]]:
    """The likeliest tokens, as many as reach probability p in every row, and the probability of
    those before each."""
    probability = logits.softmax(-1)
    # Sorting the whole vocabulary costs more than a decoder step, and the likeliest 64 tokens
    # nearly always suffice.
    count = 64
    while True:
        mass, token = probability.topk(min(count, logits.shape[1]))
        reached = mass.cumsum(-1)
        if count >= logits.shape[1] or bool((reached[:, -1] >= p).all()):
            return token, reached - mass
        count *= 8
