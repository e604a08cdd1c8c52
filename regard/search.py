"""Search: from a memory to answers, over nothing but a decoder's `start` and `step`.

Greedy and sampling walk one row an answer; beam search walks `num_beams` rows a source. Each step
goes

    logits ─ never, min_new_tokens ─ repetition_penalty ─ no_repeat_ngram ─ mmi ─► scores ─ choose ─► token

and when several answers to a source are left, they are ranked by

    rank = (log p(T|S) - mmi_weight · log p(T|nothing)) / length^length_penalty + idf_weight · mean idf of distinct tokens

The anti-prior is the cure for bland replies: what is likely whatever was asked says little (Li et
al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models": MMI-antiLM,
over the first tokens). So that it cannot turn into nonsense it chooses among plausible tokens only
(Li et al. 2023, "Contrastive Decoding").

Lengths count the end mark, so an empty answer has length 1. Scores are the model's own
log-probabilities, end mark included, whatever the options did to the choice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.errors import InputError
from regard.values import Memory, State, Step

NEVER = -math.inf
LAGGING = (
    1.0  # nats a token an answer may be less likely than the likeliest and still win by re-ranking
)
FEW = 8  # rows whose step is faster on one thread
MOST_DRAWS = 1 << 20  # of one prompt; they are drawn before the first token
# the anti-prior chooses among tokens with at least this share of the best one's probability
PLAUSIBLE = 0.1


@runtime_checkable
class Decoder(Protocol):
    """All that search knows of a decoder."""

    def start(self, memory: Memory) -> State: ...

    def step(self, token: Int[Tensor, " B"], state: State) -> Step: ...


@dataclass(frozen=True)
class Options:
    """How to search. Off by default: a plain `Options()` is greedy.

    >>> Options(num_beams=4, candidates=2).do_sample
    False
    """

    num_beams: int = 1  # hypotheses kept for each source; 1 is greedy
    length_penalty: float = 1.0  # answers are ranked by score / length ** length_penalty
    early_stopping: bool = (
        False  # True: stop at num_beams ended hypotheses, even if one under way might beat them
    )
    do_sample: bool = False  # draw tokens instead of taking the likeliest
    temperature: float = 1.0  # logits are divided by it before a draw
    top_k: int = 0  # draw from the k likeliest tokens only; 0 is off
    top_p: float = (
        1.0  # draw from the likeliest tokens that together have this probability; 1 is off
    )
    no_repeat_ngram_size: int = 0  # no n tokens in a row may come twice in an answer; 0 is off
    repetition_penalty: float = 1.0  # above 1, tokens already in the answer become less likely
    max_new_tokens: int = 64  # the end mark counts
    min_new_tokens: int = 0  # no end mark before this many
    candidates: int = 1  # answers to look for: draws when sampling, n-best of a beam
    mmi_weight: float = 0.0  # how much of log p(answer | nothing asked) to subtract
    mmi_steps: int = 5  # the tokens during which the search itself subtracts it
    idf_weight: float = 0.0  # weight of rare words in the ranking
    seed: int | None = None  # of the draws, together with the input; None is new every time

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
        """Whether the next token depends on those already chosen in ways the decoder does not
        know of."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0

    @property
    def re_ranks(self) -> bool:
        return self.mmi_weight > 0 or self.idf_weight > 0


_AT_LEAST_0, _AT_LEAST_1 = (lambda v: v >= 0, "at least 0"), (lambda v: v >= 1, "at least 1")
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
    """The tokens that are not words: what opens and closes an answer, and what may never be in
    one (pad, unknown)."""

    start: int
    end: int
    never: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """An answer, without its special_tokens."""

    tokens: tuple[int, ...]
    score: float  # log-probability by the model, end mark included
    weights: Float[Tensor, "T H S"] | None = field(
        compare=False
    )  # where the decoder looked for each token
    # what it was ranked by; that of a sole answer, which has no rivals, leaves out anti-prior and
    # rarity
    rank: float


# --- processors: logits in, logits out-------------------------------------------------------------


def banned(tokens: Sequence[int], like: Float[Tensor, "*B V"]) -> Float[Tensor, " V"] | None:
    """What to add to logits so that `tokens` never come; None if there are none."""
    if not tokens:
        return None
    bias = like.new_zeros(like.shape[-1])
    bias[list(tokens)] = NEVER
    return bias


def repetition_penalty(
    logits: Float[Tensor, "B V"], tokens: Int[Tensor, "B T"], penalty: float
) -> Float[Tensor, "B V"]:
    """Logits of tokens already there are divided by the penalty, or multiplied where negative
    (Keskar et al. 2019, "CTRL")."""
    seen = logits.gather(1, tokens)
    return logits.scatter(1, tokens, torch.where(seen < 0, seen * penalty, seen / penalty))


def no_repeat_ngram(
    logits: Float[Tensor, "B V"], tokens: Int[Tensor, "B T"], size: int
) -> Float[Tensor, "B V"]:
    """No token that would complete `size` tokens in a row already there. A row that would be
    left with nothing to say keeps its choices: repeating is better than whatever a row of -inf
    makes of an argmax."""
    if tokens.shape[1] < size:
        return logits
    grams = tokens.unfold(1, size, 1)  # (B, T-size+1, size)
    begun = tokens[:, None, tokens.shape[1] - size + 1 :]
    row, place = (grams[..., :-1] == begun).all(-1).nonzero(as_tuple=True)
    free = logits.clone()
    free[row, grams[row, place, -1]] = NEVER
    return torch.where((free == NEVER).all(-1, keepdim=True), logits, free)


def mmi(
    logits: Float[Tensor, "B V"],
    prior: Float[Tensor, "B V"],
    strength: float,
    plausible: float = PLAUSIBLE,
) -> Float[Tensor, "B V"]:
    """logits - strength · log p(t|nothing), among tokens with p(t|S) >= plausible · max p.
    Without that bound the winner is whatever the language model finds most absurd."""
    enough = logits >= logits.amax(-1, keepdim=True) + math.log(plausible)
    return (logits - strength * prior.log_softmax(-1)).masked_fill(~enough, NEVER)


def top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """The k largest, and their equals."""
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, NEVER)


def top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """The nucleus: the fewest of the likeliest tokens that reach probability p, at least one
    (Holtzman et al. 2020)."""
    probability, count = logits.softmax(-1), 64
    # sorting a whole vocabulary costs more than the step that made it, and its head nearly always
    # suffices
    while True:
        mass, token = probability.topk(min(count, logits.shape[1]))
        reached = mass.cumsum(-1)
        if count >= logits.shape[1] or bool((reached[:, -1] >= p).all()):
            break
        count *= 8
    needless = reached - mass >= p  # the likelier ones reach p without it
    needless[:, 0] = False  # nothing is likelier, yet a p near 0 is 0 in single precision
    likely = logits.gather(1, token).masked_fill(needless, NEVER)
    return torch.full_like(logits, NEVER).scatter(1, token, likely)


def likeliest(scores: Float[Tensor, "B V"], block: int = 128) -> Int[Tensor, " B"]:
    """argmax over the vocabulary. With many rows it goes by the largest of each block first,
    since torch finds a maximum without its place five times as fast."""
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
    """One token a row, by inverting the cumulative distribution at the row's own uniform number
    in [0, 1)."""
    if options.temperature != 1:
        scores = scores / options.temperature
    if options.top_k:
        scores = top_k(scores, options.top_k)
    if options.top_p < 1:
        scores = top_p(scores, options.top_p)
    mass = scores.softmax(-1).cumsum(
        -1, dtype=torch.float64
    )  # rounding must not let a banned token through at the end
    return torch.searchsorted(mass, uniform[:, None].double() * mass[:, -1:], right=True)[:, 0]


def uniforms(seeds: Sequence[int], candidates: int, steps: int) -> Float[Tensor, "R T"]:
    """All random numbers of a search, drawn at once. A row's numbers are a function of its own
    seed, so they do not depend on the rest of the batch; the first candidate's do not depend on
    how many more are asked for."""
    generator = torch.Generator()
    return torch.cat(
        [torch.rand(candidates, steps, generator=generator.manual_seed(seed)) for seed in seeds]
    )


def seeds_of(options: Options, inputs: Sequence[bytes]) -> list[int] | None:
    """A seed for each input, made of `options.seed` and the input itself: the same input has the
    same draws in any row of any batch, and another input others. None where nothing is drawn.

    >>> first, second, again = seeds_of(Options(do_sample=True, seed=7), [b"hi", b"hello", b"hi"])
    >>> first == again, first == second
    (True, False)
    """
    if not options.do_sample:
        return None
    start = f"{_root(options)}:".encode()
    digests = [hashlib.blake2b(start + content, digest_size=8).digest() for content in inputs]
    return [
        int.from_bytes(digest, "little") >> 1 for digest in digests
    ]  # a generator's seed has 63 bits


def _root(options: Options) -> int:
    """The seed of a whole search. A fresh one comes from the system, never from the global
    generator: a search must not disturb a training."""
    return torch.Generator().seed() if options.seed is None else options.seed


@contextmanager
def _threads_for(rows: int) -> Iterator[None]:
    """One thread for a few rows: their sums are too small to share, so waking and awaiting a
    second thread a hundred times a step only costs time, the more the busier the machine is."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1 if rows <= FEW else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


# --- the rows under way----------------------------------------------------------------------------


class _Run:
    """The rows a search has under way, `copies` for each row of the memory.

    For the first `mmi_steps` every row has a twin that gives the same answer to an empty prompt;
    the prior_rows are the second half of one batch, so they cost wider steps but not more of them.
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
        self.decoder, self.special_tokens, self.options, self.prior = (
            decoder,
            special_tokens,
            options,
            prior,
        )
        self.places = memory.mask.shape[1]
        self.state = decoder.start(memory)
        if copies > 1:
            every = torch.arange(self.state.size, device=memory.mask.device)
            self.state = self.state.rows(every.repeat_interleave(copies))
        self.size, self.steps = self.state.size, 0
        self.prior_rows = False
        if prior is not None and options.mmi_weight > 0 and options.mmi_steps > 0:
            self.prior_rows = True
            self.state = self.state.join(
                decoder.start(prior).rows(self.state.position.new_zeros(self.size))
            )
        self.bias: tuple[Tensor | None, Tensor | None] | None = (
            None  # made when the size of the vocabulary is known
        )
        self.weights: Tensor | None = None  # of the last step
        self.weight_history: list[
            Tensor
        ] = []  # of every step, if recorded: row r of step t is one place in cat(weight_history)
        self.recorded_rows = 0  # places of the weight_history before the last step
        self.record, self.scored = record, scored

    def opening(self) -> Int[Tensor, " R"]:
        return self.state.position.new_full((self.size,), self.special_tokens.start)

    def advance(
        self, token: Int[Tensor, " R"], so_far: Int[Tensor, "R T"] | None
    ) -> tuple[Tensor, Tensor]:
        """The model's logits (R, V) for the token after this one, and the scores (R, V) to
        choose it by."""
        with _threads_for(self.state.size):
            step = self.decoder.step(
                torch.cat([token, token]) if self.prior_rows else token, self.state
            )
        self.state, logits, prior = (
            step.state,
            step.logits.float(),
            None,
        )  # half precision is not for totals
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
        if prior is not None:  # last, so that what is plausible is judged among what is allowed
            scores = mmi(scores, prior, options.mmi_weight)
        return scores

    def keep(self, index: Int[Tensor, " R"], *, memory_unchanged: bool = False) -> None:
        both = torch.cat([index, index + self.size]) if self.prior_rows else index
        self.state = self.state.rows(both, memory_unchanged=memory_unchanged)
        self.size = index.shape[0]


@dataclass(frozen=True)
class _Candidate:
    """An answer before it is ranked."""

    tokens: tuple[int, ...]
    ended: bool  # by its end mark, not by max_new_tokens
    score: float  # by the model
    value: float  # by the search: the score after the processors
    path: Sequence[int]  # for each token, its place in the weight_history of weights

    @property
    def length(self) -> int:
        return len(self.tokens) + self.ended


def _walk(
    run: _Run, random: Float[Tensor, "R T"] | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Greedy or sampled, step by step: which rows are still in the batch, their next tokens,
    their logits (R, V). A row that has ended may stay in the batch for a while; what comes after
    its end mark means nothing."""
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
        if (
            running < run.size and 8 * (run.size - running) >= run.size
        ):  # an eighth, so that copying stays amortised
            index = alive.nonzero()[:, 0]
            row, token, alive = row[index], token[index], alive[index]
            so_far = None if so_far is None else so_far[index]
            run.keep(index)


def _walked(run: _Run, random: Float[Tensor, "R T"] | None) -> list[_Candidate]:
    """The answer of each row, greedy or sampled."""
    size, end = run.size, run.special_tokens.end
    rows, tokens, gains = [], [], []
    for row, token, logits in _walk(run, random):
        rows.append(row)
        tokens.append(token)
        # Cheaper than gather and logsumexp; at many rows still a tenth of the time, for who does
        # not want it.
        gains.append(
            -cross_entropy(logits, token, reduction="none")
            if run.scored
            else logits.new_full(token.shape, 0)
        )
    row = torch.cat(rows)
    time = torch.cat([torch.full_like(r, t) for t, r in enumerate(rows)])
    place = torch.arange(
        row.shape[0], device=row.device
    )  # this is also the order of the weight_history
    where = place.new_zeros(size, len(rows)).index_put(
        (row, time), place
    )  # rows leave after their end: 0 is not read
    token, gain = torch.cat(tokens)[where].tolist(), torch.cat(gains)[where].tolist()
    candidates = []
    for words, gained, path in zip(token, gain, where.tolist(), strict=True):
        ended = end in words
        count = words.index(end) if ended else len(words)
        score = math.fsum(gained[: count + ended])
        candidates.append(_Candidate(tuple(words[:count]), ended, score, score, path[:count]))
    return candidates


@dataclass
class _Pool:
    """The best answers to one source that a beam has met."""

    size: int
    options: Options
    candidates: list[_Candidate] = field(default_factory=list)  # best first
    met: int = 0

    def add(self, draft: _Candidate) -> None:
        self.met += 1
        self.candidates.append(draft)
        self.candidates.sort(key=self._rank, reverse=True)
        del self.candidates[self.size :]

    def settled(self, reach: float) -> bool:
        """Whether nothing of rank `reach` or below is worth waiting for."""
        if self.options.early_stopping and self.met >= self.options.num_beams:
            return True
        return reach == NEVER or (
            len(self.candidates) == self.size and self._rank(self.candidates[-1]) >= reach
        )

    def _rank(self, draft: _Candidate) -> float:
        return draft.value / draft.length**self.options.length_penalty


def _beams(run: _Run, width: int, size: int) -> list[list[_Candidate]]:
    """The `size` best answers a beam meets for each source.

    At each step the `width` best extensions are kept; those that end are put aside, and the next
    step fills their place. A source leaves as soon as nothing under way can displace an answer of
    its pool.
    """
    options, end, limit = run.options, run.special_tokens.end, run.options.max_new_tokens
    token = run.opening()
    pools = [_Pool(size, options) for _ in range(run.size // width)]
    open_pools = pools  # (N)
    so_far = token[:, None][:, :0]  # (N·W, T)
    path = so_far  # for each token of so_far, its place in the weight_history
    value = torch.full((len(pools), width), NEVER, device=token.device)
    value[:, 0] = 0  # all hypotheses of a source start alike: only the first counts
    score = torch.zeros_like(value)

    for t in range(1, limit + 1):
        logits, scores = run.advance(token, so_far)
        total = logits.logsumexp(-1)
        best, tokens = scores.topk(
            min(width, scores.shape[1])
        )  # (N·W, ≤W): no row can send on more than the width
        extended = (value.flatten() - total)[:, None] + best
        value, place = extended.view(len(open_pools), -1).topk(width)  # (N, W)
        row = (
            torch.arange(0, run.size, width, device=token.device)[:, None] + place // best.shape[1]
        )
        token = tokens[row, place % best.shape[1]]
        score = score.flatten()[row] + logits[row, token] - total[row]
        so_far = torch.cat([so_far[row.flatten()], token.view(-1, 1)], dim=1)
        path = torch.cat([path[row.flatten()], (run.recorded_rows + row).view(-1, 1)], dim=1)

        ended = (token == end) & (value > NEVER)
        closing = value > NEVER if t == limit else ended
        for n, draft in _closed(closing, so_far, path, score, value, end):
            open_pools[n].add(draft)
        value = value.masked_fill(ended, NEVER)
        stay = [
            n for n, reach in enumerate(_reach(run, value, t)) if not open_pools[n].settled(reach)
        ]
        if t == limit or not stay:
            break
        if dropped := len(stay) < len(open_pools):
            open_pools, index = (
                [open_pools[n] for n in stay],
                torch.tensor(stay, device=token.device),
            )
            row, token, value, score = (x[index] for x in (row, token, value, score))
            so_far, path = (x.view(-1, width, t)[index].flatten(0, 1) for x in (so_far, path))
        token = token.flatten()
        run.keep(row.flatten(), memory_unchanged=not dropped)
    return [pool.candidates for pool in pools]


def _reach(run: _Run, value: Float[Tensor, "N W"], length: int) -> list[float]:
    """The best rank that what is under way, `length` tokens long, may still come to, for each
    source.

    Values only fall, and dividing by a power of the length is monotone in the length, so it lies at
    one end of the lengths to come. Only an anti-prior can lift a value; while it lasts, anything is
    in reach.
    """
    best, penalty = value.amax(1), run.options.length_penalty
    if run.prior_rows:
        best = best.masked_fill(best > NEVER, math.inf)
    return torch.maximum(
        best / (length + 1) ** penalty, best / run.options.max_new_tokens**penalty
    ).tolist()


def _closed(
    closing: Tensor, so_far: Tensor, path: Tensor, score: Tensor, value: Tensor, end: int
) -> Iterator[tuple[int, _Candidate]]:
    """Source and draft of each hypothesis (N, W) that is closing."""
    place = closing.flatten().nonzero()[:, 0]
    columns = (
        place // closing.shape[1],
        so_far[place],
        path[place],
        score.flatten()[place],
        value.flatten()[place],
    )
    for n, tokens, steps, s, v in zip(*(column.tolist() for column in columns), strict=True):
        ended = tokens[-1] == end
        count = len(tokens) - ended
        yield n, _Candidate(tuple(tokens[:count]), ended, s, v, steps[:count])


# --- ranking---------------------------------------------------------------------------------------


def _prior_scores(run: _Run, candidates: Sequence[_Candidate]) -> list[float]:
    """log p(T|nothing) of each draft, longest first: the decoder reads them, in one batch, as
    answers to nothing."""
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
    """Equal answers merged, the rest ranked, best first."""
    options = run.options
    distinct = [list({draft.tokens: draft for draft in rivals}.values()) for rivals in candidates]
    contested = {draft.tokens: draft for rivals in distinct if len(rivals) > 1 for draft in rivals}
    bland: dict[tuple[int, ...], float] = {}
    if (
        options.mmi_weight and contested
    ):  # many sources share their bland answers: each is read once
        ordered = sorted(contested.values(), key=lambda draft: -draft.length)
        bland = dict(
            zip((draft.tokens for draft in ordered), _prior_scores(run, ordered), strict=True)
        )
    token_idf = [] if idf is None or not options.idf_weight else idf.tolist()

    def rank(draft: _Candidate, alone: bool) -> float:
        # A beam's value has the anti-prior of the first tokens in it; here that of the whole answer
        # counts instead.
        value, words, rare = (
            draft.score if options.mmi_weight else draft.value,
            set(draft.tokens),
            0.0,
        )
        if bland and not alone:
            value -= options.mmi_weight * bland[draft.tokens]
        if token_idf and words and not alone:
            rare = options.idf_weight * math.fsum(token_idf[word] for word in words) / len(words)
        return value / draft.length**options.length_penalty + rare

    def order(rivals: list[_Candidate]) -> list[tuple[float, _Candidate]]:
        """Best first. Re-ranking chooses among answers that are likely enough: far behind the
        likeliest is nonsense."""
        least = (
            max(d.score / d.length for d in rivals) - LAGGING
            if options.re_ranks and rivals
            else NEVER
        )
        pairs = [(rank(draft, len(rivals) == 1), draft) for draft in rivals]
        pairs.sort(
            key=lambda pair: (pair[1].score / pair[1].length >= least, pair[0]), reverse=True
        )
        return pairs[: options.candidates]

    return [order(rivals) for rivals in distinct]


# --- the doors-------------------------------------------------------------------------------------


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

    prior    the memory of an empty prompt, one row; the anti-prior needs it
    idf      the inverse document frequency of each token; idf_weight needs it
    seeds    one a row, for sampling: `seeds_of` gives an input the same draws in any batch. Without them row r of a
             batch draws from (options.seed, r), since a memory does not say what was read
    weights  False saves the memory of (T, H, S) an answer
    scores   False leaves the score of a sole greedy or sampled answer 0, which saves a look at the whole vocabulary
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
    looked = torch.cat(run.weight_history) if run.weight_history else None

    def found(rank: float, draft: _Candidate) -> Hypothesis:
        path = torch.tensor(draft.path, dtype=torch.long, device=memory.mask.device)
        return Hypothesis(draft.tokens, draft.score, None if looked is None else looked[path], rank)

    return [[found(*pair) for pair in pairs] for pairs in _ranked(run, candidates, idf)]


def stream(
    decoder: Decoder,
    memory: Memory,
    special_tokens: SpecialTokens,
    options: Options,
    *,
    prior: Memory | None = None,
    idf: Float[Tensor, " V"] | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[tuple[int, Float[Tensor, "H S"] | None]]:
    """The answer to a memory of one row, token by token with its weights, the same that `search`
    finds first. Beams and several candidates must see the whole answer before they know its
    first token; these come all at once."""
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
) -> Iterator[tuple[int, Tensor | None]]:
    if options.num_beams > 1 or options.candidates > 1:
        best = search(decoder, memory, special_tokens, options, prior=prior, idf=idf, seeds=seeds)[
            0
        ][0]
        for t, token in enumerate(best.tokens):
            yield token, None if best.weights is None else best.weights[t]
        return
    run = _Run(decoder, memory, special_tokens, options, prior, record=False)
    for _, chosen, _ in _walk(run, _random(options, seeds, memory)):
        token = int(chosen)
        if token == special_tokens.end:
            return
        yield token, None if run.weights is None else run.weights[0]


def _random(options: Options, seeds: Sequence[int] | None, memory: Memory) -> Tensor | None:
    """The uniform numbers (R, T) of a sampled search; None where nothing is drawn."""
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
