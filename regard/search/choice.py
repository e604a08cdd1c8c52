"""The choice of a token from its scores, and whether it is a near tie.

The same input has slightly different logits alone and in a batch: the order of sums, and so the
last bits, depend on the number of rows. A choice is a near tie if such a difference could change
it. The functions here return the tokens, and for each row whether its choice is a near tie. The
engine decides near ties by logits that do not depend on the batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.device import widest_float
from regard.search.options import Options
from regard.search.processors import MIN_PLAUSIBLE_RATIO, NEVER, nucleus, top_k, top_p

# Scores that differ by less are tied. Logits of single precision differ by a fifth of this at most
# between a batch and a row alone: bench/batch_rounding.py measures it.
TIE_TOLERANCE = 2.0**-14

# Above this, a change of the scores by the tolerance changes probabilities by more than its share.
LARGE_TOLERANCE = 0.1


def score_tolerance(options: Options) -> float:
    """The difference below which two scores are tied after the processors, which multiply the
    differences that rounding makes."""
    mmi_weight = options.mmi_weight if options.mmi_steps else 0.0
    return TIE_TOLERANCE * options.repetition_penalty * (1 + mmi_weight)


def rank_tolerance(options: Options, length: int) -> float:
    """The difference below which the ranks of two answers of this length are tied."""
    return TIE_TOLERANCE * (1 + options.mmi_weight) * max(1.0, length**-options.length_penalty)


def likeliest(scores: Float[Tensor, "B V"], block: int = 128) -> Int[Tensor, " B"]:
    """argmax over the vocabulary. With many rows the maximum of each block is found first: torch's
    amax is five times as fast as its argmax."""
    rows, size = scores.shape
    blocks = size // block
    if rows < 8 or blocks < 2:
        return scores.argmax(-1)
    blocked = scores[:, : blocks * block].unflatten(1, (blocks, block))
    best, which = blocked.amax(-1).max(-1)
    row = torch.arange(rows, device=scores.device)
    place = which * block + blocked[row, which].argmax(-1)
    if blocks * block == size:
        return place
    rest, after = scores[:, blocks * block :].max(-1)
    return torch.where(rest > best, after + blocks * block, place)


def greedy(
    scores: Float[Tensor, "B V"], tolerance: float = TIE_TOLERANCE
) -> tuple[Int[Tensor, " B"], list[bool] | None]:
    """The likeliest token of each row, and whether that is a near tie (None: in no row)."""
    if scores.shape[1] == 1:
        return scores.argmax(-1), None
    if scores.shape[0] < 8:
        best, tokens = scores.topk(2)
        return tokens[:, 0], [first - second < tolerance for first, second in best.tolist()]
    best, second, token = _two_best(scores)
    return token, (best - second < tolerance).tolist()


def _two_best(
    scores: Float[Tensor, "B V"], block: int = 128
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"], Int[Tensor, " B"]]:
    """The largest and the second largest score of each row, and the token of the largest: of each
    block of the vocabulary the maximum, then the best block alone."""
    rows, size = scores.shape
    blocks = size // block
    if blocks < 2:
        values, tokens = scores.topk(2)
        return values[:, 0], values[:, 1], tokens[:, 0]
    blocked = scores[:, : blocks * block].unflatten(1, (blocks, block))
    maxima = blocked.amax(-1)
    best, which = maxima.max(-1)
    row = torch.arange(rows, device=scores.device)
    inside = blocked[row, which]  # a copy
    place = inside.argmax(-1)
    inside[row, place] = NEVER
    maxima[row, which] = NEVER
    second = torch.maximum(inside.amax(-1), maxima.amax(-1))
    token = which * block + place
    if blocks * block == size:
        return best, second, token

    rest = scores[:, blocks * block :].clone()
    rest_best, after = rest.max(-1)
    rest[row, after] = NEVER
    rest_second = rest.amax(-1)
    is_rest = rest_best > best
    token = torch.where(is_rest, after + blocks * block, token)
    second = torch.where(
        is_rest, torch.maximum(best, rest_second), torch.maximum(second, rest_best)
    )
    return torch.maximum(best, rest_best), second, token


def draw(
    scores: Float[Tensor, "B V"], uniform: Float[Tensor, " B"], options: Options
) -> tuple[Int[Tensor, " B"], list[bool]]:
    """Sample a token for each row, by inverting the cumulative distribution at the row's uniform
    number in [0, 1). Also returns whether each draw is a near tie."""
    near_tie = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    tolerance = score_tolerance(options) / options.temperature
    if options.temperature != 1:
        scores = scores / options.temperature
    if options.top_k and options.top_k < scores.shape[1]:
        best = scores.topk(options.top_k + 1).values
        near_tie |= best[:, -2] - best[:, -1] < tolerance
        scores = top_k(scores, options.top_k)
    if options.top_p < 1:
        near_tie |= _nucleus_near_tie(scores, options.top_p, tolerance)
        scores = top_p(scores, options.top_p)

    if tolerance > LARGE_TOLERANCE and scores.shape[1] > 1:
        # A low temperature: rounding may change the likeliest token, which has all of the mass.
        best = scores.topk(2).values
        near_tie |= best[:, 0] - best[:, 1] < 2 * tolerance

    # In double precision, so that rounding cannot select a banned token at the end.
    wide = widest_float(scores.device)
    mass = scores.softmax(-1).cumsum(-1, dtype=wide)
    total = mass[:, -1:]
    target = uniform[:, None].to(wide) * total
    token = torch.searchsorted(mass, target, right=True).clamp(max=scores.shape[1] - 1)
    upper = mass.gather(1, token)
    lower = torch.where(token > 0, mass.gather(1, (token - 1).clamp(min=0)), -1.0)
    distance = torch.minimum(target - lower, upper - target) / total
    near_tie |= distance[:, 0] < _probability_tolerance(scores, tolerance)
    return token[:, 0], near_tie.tolist()


def _nucleus_near_tie(
    scores: Float[Tensor, "B V"], p: float, tolerance: float
) -> Bool[Tensor, " B"]:
    """Whether rounding could change which tokens are in the nucleus: the mass before a token is
    near p, or the last token inside and the first outside are nearly as likely."""
    token, before = nucleus(scores, p)
    if before.shape[1] == 1:
        return torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    distance = (before[:, 1:] - p).abs().amin(-1)
    likely = scores.gather(1, token)
    first_outside = (before < p).sum(-1, keepdim=True).clamp(1, before.shape[1] - 1)
    inside = likely.gather(1, first_outside - 1)
    outside = likely.gather(1, first_outside)
    swapped = (inside - outside < tolerance)[:, 0]
    return swapped | (distance < _probability_tolerance(scores, tolerance))


def _probability_tolerance(scores: Float[Tensor, "B V"], tolerance: float) -> Float[Tensor, " B"]:
    """How much the cumulative probabilities may change if the scores change by `tolerance`; they
    hardly do if one token has nearly all of the probability."""
    rest = 1 - scores.softmax(-1).amax(-1)
    return (tolerance * rest / 8).clamp(min=1e-7)


def mmi_near_tie(scores: Float[Tensor, "B V"]) -> Bool[Tensor, " B"]:
    """Whether rounding could change which tokens are plausible in `processors.mmi`."""
    bound = scores.amax(-1, keepdim=True) + math.log(MIN_PLAUSIBLE_RATIO)
    return ((scores - bound).abs() < TIE_TOLERANCE).any(-1)


def uniforms(seeds: Sequence[int], candidates: int, steps: int) -> Float[Tensor, "R T"]:
    """All random numbers of a search, `candidates` rows for each seed. Those of a row depend on its
    own seed alone, not on the rest of the batch, and those of the first candidate do not depend on
    the number of candidates."""
    generator = torch.Generator("cpu")  # the same numbers whatever device the model is on
    rows = []
    for seed in seeds:
        generator.manual_seed(seed)
        rows.append(torch.rand(candidates, steps, generator=generator, device="cpu"))
    return torch.cat(rows)


def seeds_of(options: Options, inputs: Sequence[bytes]) -> list[int] | None:
    """A seed for each input, from `options.seed` and the input itself: the same input has the same
    draws in any row of any batch. None if nothing is drawn.

    >>> first, second, again = seeds_of(Options(do_sample=True, seed=7), [b"hi", b"hello", b"hi"])
    >>> first == again, first == second
    (True, False)
    """
    if not options.do_sample:
        return None
    start = f"{root_seed(options)}:".encode()
    digests = [hashlib.blake2b(start + content, digest_size=8).digest() for content in inputs]
    # the seed of a generator has 63 bits
    return [int.from_bytes(digest, "little") >> 1 for digest in digests]


def root_seed(options: Options) -> int:
    """`options.seed`, or a new seed if it is None. That comes from the system, not from torch's
    global generator, so that a search does not change the random numbers of training."""
    return torch.Generator("cpu").seed() if options.seed is None else options.seed
