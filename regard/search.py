"""Search: answers from a memory, by a decoder's `start` and `step` alone.

Greedy search and sampling run one row per answer; beam search runs `num_beams` rows per source.
Each step computes

    logits -> banned tokens, min_new_tokens -> repetition_penalty -> no_repeat_ngram -> mmi -> token

and the answers to a source are ranked by

    rank =   (log p(T|S) - mmi_weight * log p(T|nothing)) / length ** length_penalty
           + idf_weight * mean idf of distinct tokens

MMI makes replies less bland: an answer that is likely whatever was asked is penalised (Li et al.
2016, "A Diversity-Promoting Objective Function for Neural Conversation Models": MMI-antiLM, over
the first tokens). To exclude nonsense, it chooses among plausible tokens only (Li et al. 2023,
"Contrastive Decoding").

Lengths count the end token, so an empty answer has length 1. Scores are the model's own
log-probabilities, end token included, whatever the options did to the choice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.errors import InputError
from regard.values import Memory, State, Step

NEVER = -math.inf
# Nats per token by which an answer may be less likely than the likeliest and still win re-ranking.
LAGGING = 1.0
FEW = 8  # rows whose step is faster on one thread
MOST_DRAWS = 1 << 20  # random numbers for one prompt; all are drawn before the first token
# MMI chooses among tokens with at least this share of the best one's probability.
PLAUSIBLE = 0.1


@runtime_checkable
class Decoder(Protocol):
    """The part of a decoder that search uses."""

    def start(self, memory: Memory) -> State: ...

    def step(self, token: Int[Tensor, " B"], state: State) -> Step: ...


@dataclass(frozen=True)
class Options:
    """Search options. The default `Options()` is greedy search.

    >>> Options(num_beams=4, candidates=2).do_sample
    False
    """

    num_beams: int = 1  # hypotheses kept for each source; 1 is greedy
    length_penalty: float = 1.0  # answers are ranked by score / length ** length_penalty
    # stop at num_beams finished hypotheses, even if an unfinished one might still beat them
    early_stopping: bool = False
    do_sample: bool = False  # draw tokens instead of taking the likeliest
    temperature: float = 1.0  # logits are divided by it before a draw
    top_k: int = 0  # draw from the k likeliest tokens only; 0 is off
    top_p: float = 1.0  # draw from the likeliest tokens with this total probability; 1 is off
    no_repeat_ngram_size: int = 0  # no n tokens in a row may come twice in an answer; 0 is off
    repetition_penalty: float = 1.0  # above 1, tokens already in the answer become less likely
    max_new_tokens: int = 64  # the end token counts
    min_new_tokens: int = 0  # no end token before this many
    candidates: int = 1  # answers to look for: draws when sampling, n-best of a beam
    mmi_weight: float = 0.0  # weight of log p(answer | empty prompt), which is subtracted
    mmi_steps: int = 5  # first tokens for which the search itself subtracts it
    idf_weight: float = 0.0  # weight of rare tokens in the ranking
    seed: int | None = None  # of the draws, together with the input; None: a new one each time

    def __post_init__(self) -> None:
        for name, (allowed, words) in _ALLOWED.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and allowed(value)):
                raise InputError(f"{name} must be {words}", where="search", got=value)
        if self.min_new_tokens > self.max_new_tokens:
            raise InputError(
                f"min_new_tokens must be at most max_new_tokens, {self.max_new_tokens}",
                where="search",
                got=self.min_new_tokens,
            )
        if self.candidates * self.max_new_tokens > MOST_DRAWS:
            raise InputError(
                f"candidates times max_new_tokens must be at most {MOST_DRAWS:,}",
                where="search",
                got=f"{self.candidates:,} times {self.max_new_tokens:,}",
            )
        if self.do_sample and self.num_beams > 1:
            raise InputError(
                "num_beams must be 1 with do_sample", where="search", got=self.num_beams
            )
        if not self.do_sample and self.candidates > self.num_beams:
            raise InputError(
                f"candidates must be at most num_beams, {self.num_beams}, without do_sample",
                where="search",
                got=self.candidates,
                hint="raise num_beams, or set do_sample",
            )

    @property
    def looks_back(self) -> bool:
        """Whether the choice of a token depends on the previous ones beyond the decoder's state."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0

    @property
    def re_ranks(self) -> bool:
        """Whether answers are ranked by more than their likelihood and length."""
        return self.mmi_weight > 0 or self.idf_weight > 0


_AT_LEAST_0 = (lambda v: v >= 0, "at least 0")
_AT_LEAST_1 = (lambda v: v >= 1, "at least 1")
_WEIGHT = (lambda v: 0 <= v <= 1000, "at least 0 and at most 1000")
_ALLOWED: dict[str, tuple[Callable[[float], bool], str]] = {
    "num_beams": _AT_LEAST_1,
    "length_penalty": (lambda v: -5 <= v <= 5, "at least -5 and at most 5"),
    "temperature": (
        lambda v: 1e-6 <= v <= 1e6,
        "from 1e-06 to 1e+06 (do_sample = false takes the likeliest token)",
    ),
    "top_k": _AT_LEAST_0,
    "top_p": (lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "no_repeat_ngram_size": _AT_LEAST_0,
    "repetition_penalty": (lambda v: 1 <= v <= 1000, "at least 1 and at most 1000"),
    "max_new_tokens": _AT_LEAST_1,
    "min_new_tokens": _AT_LEAST_0,
    "candidates": _AT_LEAST_1,
    "mmi_weight": _WEIGHT,
    "mmi_steps": _AT_LEAST_0,
    "idf_weight": _WEIGHT,
}


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that start and end an answer, and those that may never be in one."""

    start: int
    end: int
    never: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """An answer, without its special tokens."""

    tokens: tuple[int, ...]
    score: float  # log-probability by the model, end token included
    # The attention of each token, and of the end token if it ended by it:
    weights: Float[Tensor, "T H S"] | None = field(compare=False)
    rank: float  # what it was ranked by; without MMI and idf if it is the only candidate
    finish: Literal["stop", "length"] = "stop"  # ended by its end token, or by max_new_tokens
    # The model's log-probability of each token, and of the end token if it ended by it:
    logprobs: tuple[float, ...] = field(default=(), compare=False)
    # On request, the likeliest tokens at each of these steps with their probabilities:
    alternatives: tuple[tuple[tuple[int, float], ...], ...] | None = field(
        default=None, compare=False
    )


# A token of a stream, its log-probability and its weights
StreamedToken = tuple[int, float, Tensor | None]


# --- processors: logits in, logits out ---


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
    plausible: float = PLAUSIBLE,
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
    probability = logits.softmax(-1)
    # Sorting the whole vocabulary costs more than a decoder step, and the likeliest 64 tokens
    # nearly always suffice.
    count = 64
    while True:
        mass, token = probability.topk(min(count, logits.shape[1]))
        reached = mass.cumsum(-1)
        if count >= logits.shape[1] or bool((reached[:, -1] >= p).all()):
            break
        count *= 8
    outside = reached - mass >= p  # the likelier ones reach p already
    outside[:, 0] = False  # a p near 0 may be 0 in single precision
    likely = logits.gather(1, token).masked_fill(outside, NEVER)
    return torch.full_like(logits, NEVER).scatter(1, token, likely)


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


def draw(
    scores: Float[Tensor, "B V"], uniform: Float[Tensor, " B"], options: Options
) -> Int[Tensor, " B"]:
    """Sample a token for each row, by inverting the cumulative distribution at the row's uniform
    number in [0, 1)."""
    if options.temperature != 1:
        scores = scores / options.temperature
    if options.top_k:
        scores = top_k(scores, options.top_k)
    if options.top_p < 1:
        scores = top_p(scores, options.top_p)
    # In double precision, so that rounding cannot select a banned token at the end.
    mass = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(mass, uniform[:, None].double() * mass[:, -1:], right=True)[:, 0]


def uniforms(seeds: Sequence[int], candidates: int, steps: int) -> Float[Tensor, "R T"]:
    """All random numbers of a search. Those of a row depend on its own seed alone, not on the rest
    of the batch, and those of the first candidate do not depend on the number of candidates."""
    generator = torch.Generator()
    return torch.cat(
        [torch.rand(candidates, steps, generator=generator.manual_seed(seed)) for seed in seeds]
    )


def seeds_of(options: Options, inputs: Sequence[bytes]) -> list[int] | None:
    """A seed for each input, from `options.seed` and the input itself: the same input has the same
    draws in any row of any batch. None if nothing is drawn.

    >>> first, second, again = seeds_of(Options(do_sample=True, seed=7), [b"hi", b"hello", b"hi"])
    >>> first == again, first == second
    (True, False)
    """
    if not options.do_sample:
        return None
    start = f"{_root(options)}:".encode()
    digests = [hashlib.blake2b(start + content, digest_size=8).digest() for content in inputs]
    # the seed of a generator has 63 bits
    return [int.from_bytes(digest, "little") >> 1 for digest in digests]


def _root(options: Options) -> int:
    """The seed of a whole search. A new one comes from the system, not from torch's global
    generator, so that a search does not change a training."""
    return torch.Generator().seed() if options.seed is None else options.seed


@contextmanager
def _threads_for(rows: int) -> Iterator[None]:
    """Use one thread for a few rows: their sums are too small to share, and waiting for a second
    thread a hundred times a step costs time, especially on a busy machine."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1 if rows <= FEW else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


# --- the decoder's batch ---


class _Run:
    """The batch of a search: `copies` rows for each row of the memory.

    For the first `mmi_steps`, every row has a second one that gives the same answer to an empty
    prompt. These prior rows are the second half of the batch: steps are wider, but not more.
    """

    def __init__(
        self,
        decoder: Decoder,
        memory: Memory,
        special_tokens: SpecialTokens,
        options: Options,
        prior: Memory | None,
        *,
        copies: int = 1,
        record: bool = True,
        scored: bool = True,
    ):
        self.decoder = decoder
        self.special_tokens = special_tokens
        self.options = options
        self.prior = prior
        self.record = record
        self.scored = scored
        self.places = memory.mask.shape[1]
        self.state = decoder.start(memory)
        if copies > 1:
            every = torch.arange(self.state.size, device=memory.mask.device)
            self.state = self.state.rows(every.repeat_interleave(copies))
        self.size = self.state.size
        self.steps = 0
        self.prior_rows = False
        if prior is not None and options.mmi_weight > 0 and options.mmi_steps > 0:
            self.prior_rows = True
            self.state = self.state.join(
                decoder.start(prior).rows(self.state.position.new_zeros(self.size))
            )
        # Without and with the end token; set when the size of the vocabulary is known.
        self.bias: tuple[Tensor | None, Tensor | None] | None = None
        self.weights: Tensor | None = None  # of the last step
        # Of every step, if recorded: row r of step t is one place in cat(weight_history).
        self.weight_history: list[Tensor] = []
        self.recorded_rows = 0  # places of the weight_history before the last step

    def opening(self) -> Int[Tensor, " R"]:
        return self.state.position.new_full((self.size,), self.special_tokens.start)

    def advance(
        self, token: Int[Tensor, " R"], so_far: Int[Tensor, "R T"] | None
    ) -> tuple[Tensor, Tensor]:
        """The model's logits (R, V) for the token after this one, and the scores (R, V) to
        choose it by."""
        if self.prior_rows:
            token = torch.cat([token, token])
        with _threads_for(self.state.size):
            step = self.decoder.step(token, self.state)
        self.state = step.state
        logits = step.logits.float()  # totals need more than half precision
        prior = None
        if self.prior_rows:
            logits, prior = logits[: self.size], logits[self.size :]

        if step.weights is not None:
            self.weights = step.weights[: self.size, :, : self.places]
            if self.record:
                self.recorded_rows += self.weight_history[-1].shape[0] if self.weight_history else 0
                self.weight_history.append(self.weights)

        scores = self._processed(logits, so_far, prior)
        self.steps += 1
        if self.prior_rows and self.steps == self.options.mmi_steps:
            self.prior_rows = False
            self.state = self.state.rows(torch.arange(self.size, device=token.device))
        return logits, scores

    def _processed(self, logits: Tensor, so_far: Tensor | None, prior: Tensor | None) -> Tensor:
        options = self.options
        if self.bias is None:
            never = self.special_tokens.never
            self.bias = banned(never, logits), banned((*never, self.special_tokens.end), logits)
        bias = self.bias[self.steps < options.min_new_tokens]
        scores = logits if bias is None else logits + bias
        if so_far is not None and options.repetition_penalty != 1:
            scores = repetition_penalty(scores, so_far, options.repetition_penalty)
        if so_far is not None and options.no_repeat_ngram_size:
            scores = no_repeat_ngram(scores, so_far, options.no_repeat_ngram_size)
        if prior is not None:  # last: plausible tokens are chosen among the allowed ones
            scores = mmi(scores, prior, options.mmi_weight)
        return scores

    def keep(self, index: Int[Tensor, " R"], *, memory_unchanged: bool = False) -> None:
        """Pick, repeat or re-order the rows."""
        rows = torch.cat([index, index + self.size]) if self.prior_rows else index
        self.state = self.state.rows(rows, memory_unchanged=memory_unchanged)
        self.size = index.shape[0]


@dataclass(frozen=True)
class _Candidate:
    """An answer that is not ranked yet."""

    tokens: tuple[int, ...]
    ended: bool  # by its end token, not by max_new_tokens
    score: float  # by the model
    value: float  # by the search: the score after the processors
    path: Sequence[int]  # for each step, its place in the weight_history
    gains: Sequence[float]  # the log-probability of each step

    @property
    def length(self) -> int:
        return len(self.tokens) + self.ended


def _walk(
    run: _Run, random: Float[Tensor, "R T"] | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Greedy search or sampling: at each step the rows still in the batch, their next tokens and
    their logits (R, V). A row may stay in the batch after its end token; its later tokens are to be
    ignored."""
    options, end = run.options, run.special_tokens.end
    token = run.opening()
    row = torch.arange(run.size, device=token.device)
    alive = torch.ones_like(row, dtype=torch.bool)
    so_far = token[:, None][:, :0] if options.looks_back else None
    for t in range(options.max_new_tokens):
        logits, scores = run.advance(token, so_far)
        token = likeliest(scores) if random is None else draw(scores, random[row, t], options)
        yield row, token, logits
        alive = alive & (token != end)
        running = int(alive.sum())
        if running == 0:
            return
        if so_far is not None:
            so_far = torch.cat([so_far, token[:, None]], dim=1)
        # Finished rows are removed when they are an eighth, so that copying stays amortised.
        if running < run.size and 8 * (run.size - running) >= run.size:
            index = alive.nonzero()[:, 0]
            row = row[index]
            token = token[index]
            alive = alive[index]
            so_far = None if so_far is None else so_far[index]
            run.keep(index)


def _walked(run: _Run, random: Float[Tensor, "R T"] | None) -> list[_Candidate]:
    """The answer of each row, greedy or sampled."""
    size, end = run.size, run.special_tokens.end
    rows = []
    tokens = []
    gains = []  # log-probabilities
    for row, token, logits in _walk(run, random):
        rows.append(row)
        tokens.append(token)
        # Cheaper than gather and logsumexp, but with many rows still a tenth of the time: skipped
        # unless `scores=True`.
        if run.scored:
            gains.append(-cross_entropy(logits, token, reduction="none"))
        else:
            gains.append(logits.new_full(token.shape, 0))
    row = torch.cat(rows)
    time = torch.cat([torch.full_like(r, t) for t, r in enumerate(rows)])
    place = torch.arange(row.shape[0], device=row.device)  # also the order of the weight_history
    # Rows are removed only after their end, so the zeros after it are never read.
    where = place.new_zeros(size, len(rows)).index_put((row, time), place)
    token = torch.cat(tokens)[where].tolist()
    gain = torch.cat(gains)[where].tolist()

    candidates = []
    for words, gained, path in zip(token, gain, where.tolist(), strict=True):
        ended = end in words
        count = words.index(end) if ended else len(words)
        steps = count + ended
        score = math.fsum(gained[:steps])
        candidates.append(
            _Candidate(tuple(words[:count]), ended, score, score, path[:steps], gained[:steps])
        )
    return candidates


@dataclass
class _Pool:
    """The best finished answers to one source in a beam search."""

    size: int
    options: Options
    candidates: list[_Candidate] = field(default_factory=list)  # best first
    finished: int = 0

    def add(self, draft: _Candidate) -> None:
        self.finished += 1
        self.candidates.append(draft)
        self.candidates.sort(key=self._rank, reverse=True)
        del self.candidates[self.size :]

    def settled(self, reach: float) -> bool:
        """Whether no answer of rank `reach` or below can change the pool."""
        if self.options.early_stopping and self.finished >= self.options.num_beams:
            return True
        return reach == NEVER or (
            len(self.candidates) == self.size and self._rank(self.candidates[-1]) >= reach
        )

    def _rank(self, draft: _Candidate) -> float:
        return draft.value / draft.length**self.options.length_penalty


def _beams(run: _Run, width: int, size: int) -> list[list[_Candidate]]:
    """Beam search: the `size` best answers for each source.

    Each step keeps the `width` best extensions. Finished ones go to the pool of their source, and
    the next step fills their place. A source leaves the batch as soon as no unfinished hypothesis
    can displace an answer of its pool.
    """
    options = run.options
    end = run.special_tokens.end
    limit = options.max_new_tokens
    token = run.opening()
    pools = [_Pool(size, options) for _ in range(run.size // width)]
    open_pools = pools  # (N)
    so_far = token[:, None][:, :0]  # (N·W, T)
    path = so_far  # for each token of so_far, its place in the weight_history
    gains = so_far.float()  # and its log-probability
    value = torch.full((len(pools), width), NEVER, device=token.device)
    value[:, 0] = 0  # all hypotheses of a source start alike: only the first counts
    score = torch.zeros_like(value)

    for t in range(1, limit + 1):
        logits, scores = run.advance(token, so_far)
        total = logits.logsumexp(-1)
        # (N·W, ≤W): no more than `width` extensions of a row can be kept
        best, tokens = scores.topk(min(width, scores.shape[1]))
        extended = (value.flatten() - total)[:, None] + best
        value, place = extended.view(len(open_pools), -1).topk(width)  # (N, W)
        first_row = torch.arange(0, run.size, width, device=token.device)
        row = first_row[:, None] + place // best.shape[1]
        token = tokens[row, place % best.shape[1]]
        score = score.flatten()[row] + logits[row, token] - total[row]
        gain = (logits[row, token] - total[row]).view(-1, 1)
        gains = torch.cat([gains[row.flatten()], gain], dim=1)
        so_far = torch.cat([so_far[row.flatten()], token.view(-1, 1)], dim=1)
        path = torch.cat([path[row.flatten()], (run.recorded_rows + row).view(-1, 1)], dim=1)

        ended = (token == end) & (value > NEVER)
        closing = value > NEVER if t == limit else ended
        for n, draft in _closed(closing, so_far, path, gains, score, value, end):
            open_pools[n].add(draft)
        value = value.masked_fill(ended, NEVER)

        reaches = _reach(run, value, t)
        stay = [n for n, reach in enumerate(reaches) if not open_pools[n].settled(reach)]
        if t == limit or not stay:
            break
        dropped = len(stay) < len(open_pools)
        if dropped:
            open_pools = [open_pools[n] for n in stay]
            index = torch.tensor(stay, device=token.device)
            row, token, value, score = (x[index] for x in (row, token, value, score))
            so_far, path, gains = (
                x.view(-1, width, t)[index].flatten(0, 1) for x in (so_far, path, gains)
            )
        token = token.flatten()
        run.keep(row.flatten(), memory_unchanged=not dropped)
    return [pool.candidates for pool in pools]


def _reach(run: _Run, value: Float[Tensor, "N W"], length: int) -> list[float]:
    """For each source, an upper bound of the rank of its unfinished hypotheses, which are `length`
    tokens long.

    Values only fall, and dividing by a power of the length is monotone in the length, so the bound
    is at the shortest or the longest length to come. Only MMI can raise a value; while it is
    subtracted, the bound is infinite.
    """
    best = value.amax(1)
    penalty = run.options.length_penalty
    if run.prior_rows:
        best = best.masked_fill(best > NEVER, math.inf)
    shortest = best / (length + 1) ** penalty
    longest = best / run.options.max_new_tokens**penalty
    return torch.maximum(shortest, longest).tolist()


def _closed(
    closing: Tensor,
    so_far: Tensor,
    path: Tensor,
    gains: Tensor,
    score: Tensor,
    value: Tensor,
    end: int,
) -> Iterator[tuple[int, _Candidate]]:
    """The source and the candidate of each hypothesis (N, W) that is closing."""
    place = closing.flatten().nonzero()[:, 0]
    columns = (
        place // closing.shape[1],
        so_far[place],
        path[place],
        gains[place],
        score.flatten()[place],
        value.flatten()[place],
    )
    for n, tokens, steps, gained, s, v in zip(*(x.tolist() for x in columns), strict=True):
        ended = tokens[-1] == end
        count = len(tokens) - ended
        yield n, _Candidate(tuple(tokens[:count]), ended, s, v, steps, gained)


# --- ranking ---


def _prior_scores(run: _Run, candidates: Sequence[_Candidate]) -> list[float]:
    """log p(T|nothing) of each candidate, computed in one batch. The longest must come first."""
    assert run.prior is not None
    lengths = [draft.length for draft in candidates]
    start, end, longest = run.special_tokens.start, run.special_tokens.end, lengths[0]
    padded = [
        [start, *draft.tokens, *[end] * (longest - len(draft.tokens))] for draft in candidates
    ]
    tokens = torch.tensor(padded, device=run.prior.mask.device)  # (R, T+1)
    every = torch.arange(len(candidates), device=tokens.device)
    state = run.decoder.start(run.prior).rows(torch.zeros_like(every))
    total = torch.zeros_like(every, dtype=torch.float64)
    running = len(candidates)
    for t in range(longest):
        while lengths[running - 1] <= t:
            running -= 1
        if 8 * (state.size - running) >= state.size:
            state = state.rows(every[:running])
        step = run.decoder.step(tokens[: state.size, t], state)
        state, logits = step.state, step.logits[:running].float()
        total[:running] -= cross_entropy(logits, tokens[:running, t + 1], reduction="none")
    return total.tolist()


def _ranked(
    run: _Run, candidates: list[list[_Candidate]], idf: Float[Tensor, " V"] | None
) -> list[list[tuple[float, _Candidate]]]:
    """Candidates without duplicates, with their ranks, best first."""
    options = run.options
    distinct = [list({draft.tokens: draft for draft in rivals}.values()) for rivals in candidates]
    contested = {draft.tokens: draft for rivals in distinct if len(rivals) > 1 for draft in rivals}
    prior_score: dict[tuple[int, ...], float] = {}
    if options.mmi_weight and contested:  # sources may share answers: each is scored once
        ordered = sorted(contested.values(), key=lambda draft: -draft.length)
        for draft, score in zip(ordered, _prior_scores(run, ordered), strict=True):
            prior_score[draft.tokens] = score
    token_idf = [] if idf is None or not options.idf_weight else idf.tolist()

    def rank(draft: _Candidate, alone: bool) -> float:
        # The value of a beam includes MMI for its first tokens; here the whole answer counts.
        value = draft.score if options.mmi_weight else draft.value
        if prior_score and not alone:
            value -= options.mmi_weight * prior_score[draft.tokens]
        rarity = 0.0
        words = set(draft.tokens)
        if token_idf and words and not alone:
            rarity = options.idf_weight * math.fsum(token_idf[word] for word in words) / len(words)
        return value / draft.length**options.length_penalty + rarity

    def order(rivals: list[_Candidate]) -> list[tuple[float, _Candidate]]:
        """Best first. Answers that are much less likely than the likeliest come last."""
        least = NEVER
        if options.re_ranks and rivals:
            least = max(draft.score / draft.length for draft in rivals) - LAGGING
        pairs = [(rank(draft, len(rivals) == 1), draft) for draft in rivals]
        pairs.sort(
            key=lambda pair: (pair[1].score / pair[1].length >= least, pair[0]), reverse=True
        )
        return pairs[: options.candidates]

    return [order(rivals) for rivals in distinct]


# --- search and stream ---


@torch.inference_mode()
def search(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None = None,
    idf: Float[Tensor, " V"] | None = None,
    seeds: Sequence[int] | None = None,
    weights: bool = True,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """For each row of the memory its answers, best first: one, or up to `options.candidates`.

    prior    the memory of an empty prompt, one row; needed for mmi_weight
    idf      the inverse document frequency of each token; needed for idf_weight
    seeds    one per row, for sampling: `seeds_of` gives an input the same draws in any batch.
             By default row r of a batch draws from (options.seed, r)
    weights  False: attention weights are not recorded, which saves (T, H, S) an answer
    scores   False: the score of a single greedy or sampled answer is 0, which saves a pass over
             the vocabulary at each step
    """
    _check(memory, options, prior, idf, seeds)
    size = memory.mask.shape[0]
    if size == 0:
        return []
    copies = options.candidates if options.do_sample else options.num_beams
    run = _Run(
        decoder,
        memory,
        special_tokens,
        options,
        prior,
        copies=copies,
        record=weights,
        scored=scores or copies > 1,
    )
    if options.num_beams > 1:
        candidates = _beams(run, copies, copies if options.re_ranks else options.candidates)
    else:
        walked = _walked(run, _random(options, seeds, memory))
        candidates = [walked[first : first + copies] for first in range(0, len(walked), copies)]
    history = torch.cat(run.weight_history) if run.weight_history else None

    def hypothesis(rank: float, draft: _Candidate) -> Hypothesis:
        own_weights = None
        if history is not None:
            own_weights = history[torch.tensor(draft.path, dtype=torch.long, device=history.device)]
        finish = "stop" if draft.ended else "length"
        return Hypothesis(draft.tokens, draft.score, own_weights, rank, finish, tuple(draft.gains))

    return [[hypothesis(*pair) for pair in pairs] for pairs in _ranked(run, candidates, idf)]


@torch.inference_mode()
def with_alternatives(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    hypothesis: Hypothesis,
    count: int,
) -> Hypothesis:
    """The hypothesis with the `count` likeliest tokens of each of its steps."""
    state = decoder.start(memory)
    steps = []
    for token in (special_tokens.start, *hypothesis.tokens)[: len(hypothesis.logprobs)]:
        step = decoder.step(torch.tensor([token], device=memory.mask.device), state)
        state = step.state
        best = step.logits[0].float().softmax(-1).topk(min(count, step.logits.shape[1]))
        steps.append(tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
    return replace(hypothesis, alternatives=tuple(steps))


def stream(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None = None,
    idf: Float[Tensor, " V"] | None = None,
    seeds: Sequence[int] | None = None,
) -> Generator[StreamedToken, None, Hypothesis]:
    """The best answer to a memory of one row, token by token, and then as a whole. It is the first
    that `search` returns. With beams or several candidates the tokens come all at once, when the
    search has ended."""
    if memory.mask.shape[0] != 1:
        raise InputError(
            "a stream reads one source at a time",
            where="search",
            got=f"{memory.mask.shape[0]} rows",
        )
    _check(memory, options, prior, idf, seeds)
    return _stream(decoder, memory, special_tokens, options, prior, idf, seeds)


@torch.inference_mode()
def _stream(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    prior: Memory | None,
    idf: Tensor | None,
    seeds: Sequence[int] | None,
) -> Generator[StreamedToken, None, Hypothesis]:
    if options.num_beams > 1 or options.candidates > 1:
        answers = search(
            decoder, memory, special_tokens, options, prior=prior, idf=idf, seeds=seeds
        )
        best = answers[0][0]
        for t, token in enumerate(best.tokens):
            yield token, best.logprobs[t], None if best.weights is None else best.weights[t]
        return best

    run = _Run(decoder, memory, special_tokens, options, prior)
    tokens: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()
    for _, chosen, logits in _walk(run, _random(options, seeds, memory)):
        tokens += (int(chosen),)
        gains += (-float(cross_entropy(logits[0], chosen[0])),)
        if tokens[-1] != special_tokens.end:
            yield tokens[-1], gains[-1], None if run.weights is None else run.weights[0]

    ended = tokens[-1:] == (special_tokens.end,)
    history = torch.cat(run.weight_history) if run.weight_history else None
    score = math.fsum(gains)
    rank = score / len(tokens) ** options.length_penalty
    words = tokens[: len(tokens) - ended]
    return Hypothesis(words, score, history, rank, "stop" if ended else "length", gains)


def _random(options: Options, seeds: Sequence[int] | None, memory: Memory) -> Tensor | None:
    """The uniform numbers (R, T) for sampling; None if nothing is drawn."""
    if not options.do_sample:
        return None
    if seeds is None:
        seed = _root(options)
        seeds = [(seed * 0x9E3779B1 + row) % 2**32 for row in range(memory.mask.shape[0])]
    return uniforms(seeds, options.candidates, options.max_new_tokens).to(memory.mask.device)


def _check(
    memory: Memory,
    options: Options,
    prior: Memory | None,
    idf: Tensor | None,
    seeds: Sequence[int] | None,
) -> None:
    if options.mmi_weight and (prior is None or prior.mask.shape[0] != 1):
        got = "none" if prior is None else f"{prior.mask.shape[0]} rows"
        raise InputError(
            "mmi_weight needs as prior the memory of one empty prompt", where="search", got=got
        )
    if options.idf_weight and idf is None:
        raise InputError("idf_weight needs the idf of each token", where="search", got="none")
    if seeds is not None and len(seeds) != memory.mask.shape[0]:
        rows = memory.mask.shape[0]
        raise InputError(
            f"seeds must be one a row of the memory, {rows}", where="search", got=len(seeds)
        )
