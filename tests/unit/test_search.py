"""Search against brute force, against running each row alone, and against the processors of
`transformers`."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from regard.errors import InputError
from regard.search import (
    Hypothesis,
    Options,
    Outputs,
    SpecialTokens,
    choice,
    processors,
    reranking,
    search,
    stream,
)
from regard.search.batch import Batch
from regard.search.beam import BeamSearch
from regard.search.choice import likeliest
from regard.search.hypotheses import Candidate
from regard.search.requests import EncodedInput, Request
from regard.values import Capture, KVCache, Memory, State, Step

theirs: Any = logits_process  # Any: it asks for LongTensor, which no tensor is
START, END, PAD = 0, 1, 2
MARKS = SpecialTokens(start=START, end=END, never=(START, PAD))
WORDS = (3, 4, 5)
Tokens = tuple[int, ...]
V, H, K = 6, 2, 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only lose time by being shared out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Table:
    """A decoder of random tables. The next token depends on the last one, on those before (a
    decaying sum in `recurrent`, the first token in `kv_cache`) and on the memory it reads, so that
    any misplaced row shows."""

    def __init__(self, seed: int = 0, scale: float = 2.0, end: float = 0.0, vocabulary: int = V):
        draw = torch.Generator().manual_seed(seed)
        self.last, self.sum, self.first = scale * torch.randn(
            3, vocabulary, vocabulary, generator=draw
        )
        self.last[:, END] += end
        self.query = torch.randn(vocabulary, H, K, generator=draw)
        self.read = scale * torch.randn(K, vocabulary, generator=draw)
        self.sizes: list[int] = []  # rows of each step
        self.memories: list[torch.Tensor] = []

    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        size, vocabulary = memory.mask.shape[0], self.last.shape[0]
        return State(
            position=torch.zeros(size, dtype=torch.long),
            mask=memory.mask,
            memory=(memory.states[None, :, None],),
            recurrent=(torch.zeros(1, size, vocabulary),),
            kv_cache=KVCache(torch.zeros(1, size, 1, 1, vocabulary)),
        )

    def step(self, token: torch.Tensor, state: State, *, capture: Capture = "none") -> Step:
        self.sizes.append(state.size)
        self.memories.append(state.memory[0])
        hot = torch.nn.functional.one_hot(token, self.last.shape[0]).float()
        carried = 0.5 * state.recurrent[0] + hot
        assert state.kv_cache is not None
        past = state.kv_cache.with_room_at(state.max_position)
        rows = torch.arange(len(token))
        past.tensor[0, rows, 0, state.position] = hot
        states = state.memory[0][0, :, 0]  # (B, S, K)
        match = torch.einsum("bhk,bsk->bhs", self.query[token], states)
        weights = match.masked_fill(~state.mask[:, None], -math.inf).softmax(-1)
        context = torch.einsum("bhs,bsk->bk", weights, states)
        first = past.tensor[0, rows, 0, state.position.clamp(max=1)]
        logits = self.last[token] + carried[0] @ self.sum + first @ self.first + context @ self.read
        after = replace(
            state,
            position=state.position + 1,
            recurrent=(carried,),
            kv_cache=past,
            max_position=state.max_position + 1,
            aligned=state.aligned,
        )
        return Step(logits=logits, state=after, weights=weights)


def memories(rows: int, places: int = 3, seed: int = 0) -> Memory:
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, places, K, generator=draw)
    lengths = torch.randint(1, places + 1, (rows,), generator=draw)
    mask = torch.arange(places) < lengths[:, None]
    return Memory(states=states, mask=mask, summary=states[:, 0])


PRIOR = memories(1, places=7, seed=99)  # longer than the others: joining must widen them


def row(memory: Memory, i: int) -> Memory:
    return memory.rows(torch.tensor([i]))


def logits_after(decoder: Table, memory: Memory, tokens: Tokens) -> torch.Tensor:
    state = decoder.start(memory)
    for token in (START, *tokens):
        step = decoder.step(torch.tensor([token]), state)
        state = step.state
    return step.logits[0]


def naive(
    decoder: Table,
    memory: Memory,
    limit: int,
    choose: Callable[[torch.Tensor, Tokens], torch.Tensor],
) -> Tokens:
    """The answer to one row when each token is the best after `choose(logits without the
    never-marks, so far)`."""
    state, tokens = decoder.start(memory), ()
    while len(tokens) < limit:
        step = decoder.step(torch.tensor([tokens[-1] if tokens else START]), state)
        state, logits = step.state, step.logits[0].clone()
        logits[[START, PAD]] = -math.inf
        chosen = int(choose(logits, tokens).argmax())
        if chosen == END:
            break
        tokens = (*tokens, chosen)
    return tokens


def log_probabilities(
    decoder: Table, memory: Memory, answers: list[Tokens], limit: int
) -> list[float]:
    """Of each answer to one row and, where it fits, its end mark."""
    read = torch.tensor([(START, *a, *[END] * (limit - len(a))) for a in answers])
    state, total = (
        decoder.start(memory.rows(torch.zeros(len(answers), dtype=torch.long))),
        torch.zeros(len(answers)),
    )
    lengths = torch.tensor([length(a, limit) for a in answers])
    for t in range(limit):
        step = decoder.step(read[:, t], state)
        gain = step.logits.log_softmax(-1).gather(1, read[:, t + 1, None])[:, 0]
        state, total = step.state, total + gain * (t < lengths)
    return total.tolist()


def length(tokens: Tokens, limit: int) -> int:
    return min(len(tokens) + 1, limit)


def everything(limit: int) -> list[Tokens]:
    return [words for n in range(limit + 1) for words in itertools.product(WORDS, repeat=n)]


def same(a: list[Hypothesis], b: list[Hypothesis], tolerance: float = 1e-4) -> None:
    assert [f.tokens for f in a] == [f.tokens for f in b]
    for x, y in zip(a, b, strict=True):
        assert x.score == pytest.approx(y.score, abs=tolerance)
        assert x.rank == pytest.approx(y.rank, abs=tolerance)
        assert (x.weights is None) == (y.weights is None)
        if x.weights is not None:
            torch.testing.assert_close(x.weights, y.weights)


# --- greedy and beam-------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.1, 0.5, 1.0]),
    end=st.sampled_from([-1.0, 0.0, 2.0]),
    penalty=st.sampled_from([-0.7, 0.0, 0.6, 1.0, 1.7]),
)
def test_a_wide_beam_finds_the_exact_n_best(
    seed: int, scale: float, end: float, penalty: float
) -> None:
    limit, best = 4, 3
    decoder, memory = Table(seed, scale, end), memories(2, seed=seed)
    options = Options(num_beams=108, candidates=best, length_penalty=penalty, max_new_tokens=limit)
    for i, found in enumerate(search(decoder, memory, MARKS, options)):
        answers = everything(limit)
        scores = dict(
            zip(answers, log_probabilities(decoder, row(memory, i), answers, limit), strict=True)
        )
        ranks = sorted(
            ((s / length(w, limit) ** penalty, w) for w, s in scores.items()), reverse=True
        )[:best]
        assert [f.rank for f in found] == pytest.approx([rank for rank, _ in ranks], abs=1e-4)
        for f in found:  # ranks may tie within rounding, so tokens are checked through their scores
            assert f.score == pytest.approx(scores[f.tokens], abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_never_waits_for_what_cannot_win(seed: int) -> None:
    """The same best answer as a beam that goes on to the end, in fewer steps."""
    decoder, memory = Table(seed, 0.5, end=9.0), memories(3, seed=seed)
    options = Options(num_beams=4, max_new_tokens=50, length_penalty=0.0)
    found = search(decoder, memory, MARKS, options)
    assert len(decoder.sizes) < 10
    for i in range(3):
        alone = Table(seed, 0.5, end=9.0)
        same(search(alone, row(memory, i), MARKS, options)[0], found[i])


def chain(probabilities: dict[int, dict[int, float]]) -> Table:
    """A decoder that knows only the last token: probability of the next, for the tokens that
    have one."""
    decoder = Table()
    for table in (decoder.sum, decoder.first, decoder.read):
        table.zero_()
    decoder.last.fill_(-30.0)
    for last, following in probabilities.items():
        for token, probability in following.items():
            decoder.last[last, token] = math.log(probability)
    return decoder


@pytest.mark.parametrize(
    ("penalty", "start", "best"),
    [
        (
            1.0,
            {END: 0.5, 3: 0.05, 4: 0.45},
            (3,) * 10,
        ),  # a poor beginning, then ten sure tokens to share it
        (
            -1.0,
            {END: 0.1, 4: 0.8, 3: 0.1},
            (4,),
        ),  # length makes things worse: what ends next is what is in reach
    ],
)
def test_a_beam_waits_for_what_can_still_win(
    penalty: float, start: dict[int, float], best: Tokens
) -> None:
    decoder = chain({START: start, 3: {3: 1.0}, 4: {END: 0.9, 5: 0.1}, 5: {END: 0.5, 5: 0.5}})
    options = Options(num_beams=3, length_penalty=penalty, max_new_tokens=10 if penalty > 0 else 60)
    ((found,),) = search(decoder, memories(1), MARKS, options)
    assert found.tokens == best


def beam_of_one(decoder: Table, memory: Memory, options: Options) -> list[Candidate]:
    """The answers of the beam's own code with a width of one: `num_beams=1` takes the greedy
    path."""
    batch = Batch(decoder, MARKS, detect_ties=False)
    tracks = []
    for i in range(len(memory.mask)):
        request = Request(
            EncodedInput(row(memory, i)),
            options,
            MARKS,
            Outputs(weights=False),
            seed=None,
        )
        tracks.append(BeamSearch(request))
    with torch.inference_mode():
        batch.join(decoder.start(memory), tracks)
        while batch.tracks:
            for track in batch.step():
                track.end()
            batch.compact()
    return [track.candidates[0] for track in tracks]


@pytest.mark.parametrize(
    "extra", [{}, {"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 3}]
)
def test_beam_of_one_is_greedy(extra: dict) -> None:
    decoder, memory = Table(5, 0.5), memories(13)
    options = Options(max_new_tokens=11, **extra)
    beams = beam_of_one(decoder, memory, options)
    greedy = search(decoder, memory, MARKS, options)
    assert [d.tokens for d in beams] == [found.tokens for (found,) in greedy]
    assert [d.score for d in beams] == pytest.approx([found.score for (found,) in greedy], abs=1e-4)


def test_greedy_takes_the_likeliest_token_and_scores_it_by_the_model() -> None:
    decoder, memory = Table(5, end=1.0), memories(11)
    for i, (found,) in enumerate(search(decoder, memory, MARKS, Options(max_new_tokens=9))):
        assert found.tokens == naive(decoder, row(memory, i), 9, lambda logits, _: logits)
        (score,) = log_probabilities(decoder, row(memory, i), [found.tokens], 9)
        assert found.score == pytest.approx(score, abs=1e-4)
        assert found.rank == pytest.approx(score / length(found.tokens, 9), abs=1e-4)


def test_early_stopping_stops_at_as_many_ends_as_beams() -> None:
    patient, hasty = Table(1, 0.3, end=1.0), Table(1, 0.3, end=1.0)
    options = Options(num_beams=3, max_new_tokens=40, length_penalty=2.0)
    search(patient, memories(1), MARKS, options)
    search(hasty, memories(1), MARKS, options.replaced(early_stopping=True))
    assert len(hasty.sizes) < len(patient.sizes)


MANY = [
    pytest.param(Options(max_new_tokens=17), id="greedy"),
    pytest.param(
        Options(max_new_tokens=17, repetition_penalty=1.3, no_repeat_ngram_size=2),
        id="greedy-looking-back",
    ),
    pytest.param(Options(max_new_tokens=17, num_beams=3, candidates=2), id="beam"),
    pytest.param(
        Options(max_new_tokens=17, num_beams=3, length_penalty=0.0, no_repeat_ngram_size=2),
        id="beam-ngram",
    ),
    pytest.param(
        Options(max_new_tokens=17, do_sample=True, candidates=5, top_p=0.9), id="sampling"
    ),
    pytest.param(Options(max_new_tokens=17, mmi_weight=0.6, mmi_steps=3), id="greedy-anti-prior"),
    pytest.param(
        Options(max_new_tokens=17, num_beams=3, mmi_weight=0.6, mmi_steps=3, idf_weight=0.5),
        id="beam-all",
    ),
    pytest.param(
        Options(max_new_tokens=17, do_sample=True, candidates=5, mmi_weight=0.6, idf_weight=0.5),
        id="sampling-all",
    ),
]
IDF = torch.tensor([0.0, 0.0, 0.0, 1.0, 3.0, 7.0])


@pytest.mark.parametrize("options", MANY)
def test_company_changes_nothing(options: Options) -> None:
    """Rows that end leave, the rest move up; each answer is what its source gets alone."""
    memory, seeds = memories(19, places=5), list(range(100, 119))
    decoder = Table(5, 0.5)
    together = search(decoder, memory, MARKS, options, prior=PRIOR, idf=IDF, seeds=seeds)
    for i, found in enumerate(together):
        alone = search(
            decoder,
            row(memory, i),
            MARKS,
            options,
            prior=PRIOR,
            idf=IDF,
            seeds=seeds[i : i + 1],
        )
        same(found, alone[0])
    assert len({f.tokens for found in together for f in found}) > 3  # or the test shows nothing


@pytest.mark.parametrize("options", MANY)
def test_weights_belong_to_their_tokens(options: Options) -> None:
    decoder, memory = Table(5, 0.5), memories(7, places=5)
    results = search(decoder, memory, MARKS, options, prior=PRIOR, idf=IDF, seeds=range(7))
    for i, found in enumerate(results):
        for f in found:
            places = int(memory.mask[i].sum())
            assert f.weights is not None
            assert f.weights.shape == (len(f.logprobs), H, places)
            assert len(f.logprobs) == len(f.tokens) + (f.finish == "stop")
            assert sum(f.logprobs) == pytest.approx(f.score, abs=1e-4)
            state = decoder.start(row(memory, i))
            for token, weights in zip((START, *f.tokens), f.weights, strict=False):
                step = decoder.step(torch.tensor([token]), state)
                assert step.weights is not None
                torch.testing.assert_close(step.weights[0, :, :places], weights)
                state = step.state


@pytest.mark.parametrize("options", MANY)
def test_ranks_fall_and_answers_differ(options: Options) -> None:
    results = search(
        Table(5, 0.5), memories(7), MARKS, options, prior=PRIOR, idf=IDF, seeds=range(7)
    )
    for found in results:
        assert 1 <= len(found) <= options.candidates
        assert [f.rank for f in found] == sorted((f.rank for f in found), reverse=True)
        assert len({f.tokens for f in found}) == len(found)
        assert not {t for f in found for t in f.tokens} & {START, END, PAD}


@pytest.mark.parametrize("options", MANY)
def test_a_stream_is_the_search(options: Options) -> None:
    decoder, memory = Table(5, 0.5), memories(7, places=5)
    for i in range(7):
        one = row(memory, i)
        more: dict[str, Any] = {"prior": PRIOR, "idf": IDF, "seeds": [i]}
        best = search(decoder, one, MARKS, options, **more)[0][0]
        streamed = list(stream(decoder, one, MARKS, options, **more))
        assert tuple(step.token for step in streamed) == best.tokens
        assert [step.logprob for step in streamed] == list(best.logprobs[: len(streamed)])
        assert best.weights is not None
        for step, expected in zip(streamed, best.weights, strict=False):
            torch.testing.assert_close(step.weights, expected)


def test_a_stream_does_not_run_ahead() -> None:
    decoder = Table(2, end=-99.0)
    tokens = stream(decoder, memories(1), MARKS, Options())
    assert decoder.sizes == []
    next(tokens)
    next(tokens)
    assert len(decoder.sizes) == 2
    assert not torch.is_inference_mode_enabled()  # the mode is the generator's, not its consumer's


def test_rows_that_ended_leave_an_eighth_at_a_time() -> None:
    decoder = Table(5, 0.5)
    search(decoder, memories(64), MARKS, Options(max_new_tokens=30))
    sizes = decoder.sizes
    assert sizes[-1] < sizes[0] == 64
    assert all(8 * (a - b) >= a for a, b in itertools.pairwise(sizes) if a != b)


def test_a_beam_moves_the_memory_only_when_a_source_leaves() -> None:
    decoder = Table(5, 0.5)
    search(decoder, memories(9), MARKS, Options(num_beams=4, max_new_tokens=30, length_penalty=0.0))
    pairs = list(itertools.pairwise(decoder.memories))
    assert all((a is b) == (a.shape == b.shape) for a, b in pairs)
    assert {a is b for a, b in pairs} == {True, False}


def test_no_rows_no_answers_and_an_empty_answer_is_its_end_token() -> None:
    assert search(Table(), memories(0), MARKS, Options()) == []
    ((found,),) = search(Table(end=99.0), memories(1), MARKS, Options())
    assert (
        found.tokens == ()
        and found.weights is not None
        and found.weights.shape[:2] == (1, H)
        and found.score == pytest.approx(0, abs=1e-4)
    )
    ((found,),) = search(Table(), memories(1), MARKS, Options(), outputs=Outputs(weights=False))
    assert found.weights is None


# --- processors------------------------------------------------------------------------------------


def random_logits(
    rows: int = 7, vocabulary: int = 11, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 3, (rows, 13), generator=draw)  # few words, so that they repeat
    return 3 * torch.randn(rows, vocabulary, generator=draw), tokens


@pytest.mark.parametrize("penalty", [1.0, 1.3, 4.0])
def test_repetition_penalty(penalty: float) -> None:
    logits, tokens = random_logits()
    got = processors.repetition_penalty(logits, tokens, penalty)
    naive = logits.clone()
    for r, seen in enumerate(tokens.tolist()):
        for token in set(seen):
            naive[r, token] = (
                naive[r, token] / penalty if naive[r, token] > 0 else naive[r, token] * penalty
            )
    torch.testing.assert_close(got, naive)
    torch.testing.assert_close(
        got, theirs.RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits.clone())
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 13, 14])
def test_no_repeat_ngram(size: int) -> None:
    logits, tokens = random_logits(23)
    got = processors.no_repeat_ngram(logits, tokens, size)
    naive = logits.clone()
    for r, said in enumerate(tokens.tolist()):
        grams = {tuple(said[i : i + size]) for i in range(len(said) - size + 1)}
        for token in range(logits.shape[1]):
            if (*said[len(said) - size + 1 :], token) in grams:
                naive[r, token] = -math.inf
    torch.testing.assert_close(got, naive)
    torch.testing.assert_close(
        got, theirs.NoRepeatNGramLogitsProcessor(size)(tokens, logits.clone())
    )


def test_a_row_with_nothing_left_may_repeat() -> None:
    logits = torch.tensor([[-math.inf, 1.0, 2.0], [-math.inf, 1.0, 2.0]])
    got = processors.no_repeat_ngram(logits, torch.tensor([[1, 2], [1, 1]]), 1)
    assert got.tolist() == [[-math.inf, 1.0, 2.0], [-math.inf, -math.inf, 2.0]]


@pytest.mark.parametrize("k", [1, 3, 11, 50])
def test_top_k(k: int) -> None:
    logits, tokens = random_logits()
    got = processors.top_k(logits, k)
    assert (got > -math.inf).sum(-1).tolist() == [min(k, 11)] * 7
    torch.testing.assert_close(got, theirs.TopKLogitsWarper(k)(tokens, logits.clone()))


@pytest.mark.parametrize(
    "vocabulary", [11, 701]
)  # the second needs more than the head of the vocabulary
@pytest.mark.parametrize("p", [1e-9, 0.3, 0.8, 0.95])
def test_top_p(p: float, vocabulary: int) -> None:
    logits, tokens = random_logits(vocabulary=vocabulary)
    got = processors.top_p(logits, p)
    for r, probability in enumerate(logits.softmax(-1).tolist()):
        kept, mass = set(), 0.0
        for token in sorted(range(vocabulary), key=lambda t: -probability[t]):
            if kept and mass >= p:
                break
            kept.add(token)
            mass += probability[token]
        assert {t for t in range(vocabulary) if got[r, t] > -math.inf} == kept
    torch.testing.assert_close(got, theirs.TopPLogitsWarper(p)(tokens, logits.clone()))


@pytest.mark.parametrize(
    "extra",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 1, "min_new_tokens": 2},
        {"min_new_tokens": 6},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 4},
    ],
)
def test_greedy_with_processors_is_that_of_transformers(extra: dict) -> None:
    decoder, memory, limit = Table(5, 0.5), memories(17), 12
    plain = search(decoder, memory, MARKS, Options(max_new_tokens=limit))
    results = search(decoder, memory, MARKS, Options(max_new_tokens=limit, **extra))
    processors = theirs.LogitsProcessorList()
    if "repetition_penalty" in extra:
        processors.append(theirs.RepetitionPenaltyLogitsProcessor(extra["repetition_penalty"]))
    if "no_repeat_ngram_size" in extra:
        processors.append(theirs.NoRepeatNGramLogitsProcessor(extra["no_repeat_ngram_size"]))
    if "min_new_tokens" in extra:
        processors.append(
            theirs.MinNewTokensLengthLogitsProcessor(
                0, extra["min_new_tokens"], torch.tensor([END])
            )
        )

    def choose(logits: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        return processors(torch.tensor([tokens], dtype=torch.long), logits[None])[0]

    for i, (found,) in enumerate(results):
        assert found.tokens == naive(decoder, row(memory, i), limit, choose)
    assert [f.tokens for (f,) in results] != [f.tokens for (f,) in plain]


# --- sampling--------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.7}])
def test_draws_follow_the_distribution(extra: dict) -> None:
    count, decoder = 1500, Table(5, 0.2)
    memory = memories(1)
    options = Options(do_sample=True, max_new_tokens=1, seed=7, **extra)
    crowd = memory.rows(torch.zeros(count, dtype=torch.long))
    counted = Counter(found.tokens for (found,) in search(decoder, crowd, MARKS, options))
    scores = logits_after(decoder, memory, ())[None] / options.temperature
    scores[:, [START, PAD]] = -math.inf
    if options.top_k:
        scores = theirs.TopKLogitsWarper(options.top_k)(None, scores)
    if options.top_p < 1:
        scores = theirs.TopPLogitsWarper(options.top_p)(None, scores)
    expected = {
        () if t == END else (t,): p * count
        for t, p in enumerate(scores[0].softmax(-1).tolist())
        if p
    }
    assert set(counted) <= set(expected) and len(expected) > 1
    chi_square = sum((counted[t] - e) ** 2 / e for t, e in expected.items())
    assert chi_square < 16.3  # three degrees of freedom at most: exceeded once in a thousand


def test_no_number_draws_a_banned_token() -> None:
    scores = torch.tensor([[-math.inf, 1.0, 2.0, -math.inf]]).expand(2, 4)
    extremes = torch.tensor([0.0, 1 - 2**-24])
    assert choice.draw(scores, extremes, Options(do_sample=True))[0].tolist() == [1, 2]


def test_the_same_seed_gives_the_same_answers_and_none_gives_new_ones() -> None:
    decoder, memory = Table(6, 0.3, end=-3.0), memories(5)
    options = Options(do_sample=True, candidates=4, seed=7, max_new_tokens=7)
    assert search(decoder, memory, MARKS, options) == search(decoder, memory, MARKS, options)
    before = torch.random.get_rng_state()
    for seed in (8, None):
        assert search(decoder, memory, MARKS, options) != search(
            decoder, memory, MARKS, options.replaced(seed=seed)
        )
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_source_with_its_own_seed_draws_the_same_in_any_batch() -> None:
    decoder, memory, seeds = Table(6, 0.3, end=1.0), memories(13), list(range(13))
    options = Options(do_sample=True, candidates=3, max_new_tokens=20)
    straight = search(decoder, memory, MARKS, options, seeds=seeds)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))[:8]
    shuffled = search(decoder, memory.rows(order), MARKS, options, seeds=[seeds[i] for i in order])
    for i, found in zip(order.tolist(), shuffled, strict=True):
        same(found, straight[i])


def test_a_wider_choice_contains_the_narrower() -> None:
    few, many = choice.uniforms([3, 4], 2, 11), choice.uniforms([3, 4], 5, 11)
    assert torch.equal(few.view(2, 2, 11), many.view(2, 5, 11)[:, :2])


# --- re-ranking against bland replies--------------------------------------------------------------


def test_the_anti_prior_lowers_what_the_prior_likes() -> None:
    logits, prior = torch.tensor([[2.0, 1.9, 1.8, -5.0]]), torch.tensor([[9.0, 0.0, 0.0, -99.0]])
    got = processors.mmi(logits, prior, 0.5)[0]
    assert got.argmax() == 1  # 0 is what one says anyway; 3 would be news, but is not plausible
    assert got[3] == -math.inf
    torch.testing.assert_close(got[:3], logits[0, :3] - 0.5 * prior.log_softmax(-1)[0, :3])


def test_greedy_with_an_anti_prior_is_the_formula_for_the_first_steps_only() -> None:
    decoder, memory, strength, steps, limit = Table(5, 0.5), memories(17), 0.8, 3, 8
    options = Options(mmi_weight=strength, mmi_steps=steps, max_new_tokens=limit)
    results = search(decoder, memory, MARKS, options, prior=PRIOR)

    def choose(scores: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        if len(tokens) >= steps:
            return scores
        implausible = scores.exp() < 0.1 * scores.exp().max()
        anyway = logits_after(decoder, PRIOR, tokens).log_softmax(-1)
        return (scores.log_softmax(-1) - strength * anyway).masked_fill(implausible, -math.inf)

    for i, (found,) in enumerate(results):
        assert found.tokens == naive(decoder, row(memory, i), limit, choose)
        (score,) = log_probabilities(decoder, row(memory, i), [found.tokens], limit)
        assert found.score == pytest.approx(score, abs=1e-4)
    assert results != search(decoder, memory, MARKS, Options(max_new_tokens=limit))


def test_a_beam_does_not_stop_while_the_anti_prior_may_still_lift_it() -> None:
    """The chain answers everything alike, so at strength 2 the value of a token is -log p, and
    the longer one gains."""
    decoder = chain(
        {START: {END: 0.5, 3: 0.5}, 3: {END: 0.5, 4: 0.5}, 4: {END: 0.12, 5: 0.88}, 5: {END: 1.0}}
    )
    options = Options(num_beams=2, mmi_weight=2.0, mmi_steps=4, max_new_tokens=5)
    ((found,),) = search(decoder, memories(1), MARKS, options, prior=PRIOR)
    assert found.tokens == (3, 4)
    assert found.rank == pytest.approx(-math.log(0.5 * 0.5 * 0.12) / 3, abs=1e-4)


@pytest.mark.parametrize(
    "how", [{"do_sample": True, "candidates": 9}, {"num_beams": 9, "candidates": 9}]
)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_candidates_are_ranked_by_the_formula(how: dict, penalty: float) -> None:
    decoder, memory, limit = Table(5, 0.3), memories(5), 6
    options = Options(
        mmi_weight=0.4,
        mmi_steps=2,
        idf_weight=0.3,
        length_penalty=penalty,
        max_new_tokens=limit,
        seed=1,
        **how,
    )
    for i, found in enumerate(search(decoder, memory, MARKS, options, prior=PRIOR, idf=IDF)):
        assert len(found) > 2
        answers = [f.tokens for f in found]
        asked = log_probabilities(decoder, row(memory, i), answers, limit)
        anyway = log_probabilities(decoder, PRIOR, answers, limit)
        for f, given_source, given_nothing in zip(found, asked, anyway, strict=True):
            words = set(f.tokens)
            idf = sum(float(IDF[w]) for w in words) / len(words) if words else 0
            rank = (given_source - 0.4 * given_nothing) / length(
                f.tokens, limit
            ) ** penalty + 0.3 * idf
            assert f.score == pytest.approx(given_source, abs=1e-4)
            assert f.rank == pytest.approx(rank, abs=1e-4)


def test_answers_far_less_likely_than_the_likeliest_come_last_whatever_their_rank() -> None:
    decoder, memory = Table(5, 0.3), memories(5)
    options = Options(num_beams=9, candidates=9, idf_weight=100.0, max_new_tokens=3)
    lagging = 0
    for found in search(decoder, memory, MARKS, options, idf=IDF):
        mean = [f.score / (len(f.tokens) + (len(f.tokens) < 3)) for f in found]
        near = [m >= max(mean) - reranking.MAX_LAG_NATS for m in mean]
        assert near == sorted(near, reverse=True)
        lagging += near.count(False)
    assert lagging > 0


def test_idf_prefers_rare_words_and_a_narrow_request_still_ranks_the_whole_beam(
    monkeypatch,
) -> None:
    monkeypatch.setattr(reranking, "MAX_LAG_NATS", math.inf)
    decoder, memory = Table(5, 0.3), memories(5)
    options = Options(num_beams=9, candidates=9, idf_weight=100.0, max_new_tokens=3)
    everyone = search(decoder, memory, MARKS, options, idf=IDF)
    best = search(decoder, memory, MARKS, options.replaced(candidates=1), idf=IDF)
    for all_found, (first,) in zip(everyone, best, strict=True):
        rare = [
            sum(float(IDF[w]) for w in set(f.tokens)) / max(1, len(set(f.tokens)))
            for f in all_found
        ]
        assert rare == sorted(rare, reverse=True)
        assert first == all_found[0]


# --- errors----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_beams": 0}, "num_beams must be a whole number >= 1 and <= 1,024; got 0"),
        ({"num_beams": True}, "num_beams must be a whole number >= 1 and <= 1,024; got true"),
        ({"num_beams": "4"}, 'num_beams must be a whole number >= 1 and <= 1,024; got "4"'),
        ({"length_penalty": math.nan}, "length_penalty must be a number >= -5 and <= 5; got NaN"),
        (
            {"temperature": 0.0},
            (
                "temperature must be a number >= 1e-06 and <= 1,000,000.0; got 0.0; "
                "do_sample = false takes the likeliest token"
            ),
        ),
        ({"top_k": -1}, "top_k must be a whole number >= 0; got -1"),
        ({"top_p": 1.5}, "top_p must be a number > 0 and <= 1; got 1.5"),
        (
            {"max_new_tokens": 0},
            "max_new_tokens must be a whole number >= 1 and <= 1,048,576; got 0",
        ),
        (
            {"min_new_tokens": 65},
            (
                "min_new_tokens must not be above max_new_tokens; "
                "got min_new_tokens = 65, max_new_tokens = 64"
            ),
        ),
        ({"mmi_weight": -1.0}, "mmi_weight must be a number >= 0 and <= 1,000; got -1.0"),
        (
            {"do_sample": True, "num_beams": 3},
            "do_sample = true needs num_beams = 1; got num_beams = 3",
        ),
        (
            {"candidates": 4, "num_beams": 3},
            (
                "candidates above 1 need do_sample = true or as many num_beams; "
                "got candidates = 4, num_beams = 3"
            ),
        ),
        ({"beams": 3}, 'no such option; got beams; did you mean "num_beams"?'),
    ],
)
def test_wrong_options_are_named(wrong: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        Options(**wrong)
    assert str(error.value) == f"search: {message}"


@pytest.mark.parametrize("name", ["cls", "self", "args"])
def test_an_option_may_have_the_name_of_a_parameter(name: str) -> None:
    """Names come from outside, too: a server gets them as JSON."""
    with pytest.raises(InputError, match=f"search: no such option; got {name}; "):
        Options(**{name: 1})


def test_what_the_options_need_must_be_there() -> None:
    decoder, memory = Table(), memories(2)
    with pytest.raises(
        InputError, match="mmi_weight needs as prior the memory of one empty prompt; got none"
    ):
        search(decoder, memory, MARKS, Options(mmi_weight=0.5))
    with pytest.raises(InputError, match="the memory of one empty prompt; got 2 rows"):
        search(decoder, memory, MARKS, Options(mmi_weight=0.5), prior=memory)
    with pytest.raises(InputError, match="idf_weight needs the idf of each token"):
        search(decoder, memory, MARKS, Options(num_beams=2, idf_weight=0.5))
    with pytest.raises(InputError, match="seeds must be one a row of the memory, 2; got 1"):
        search(decoder, memory, MARKS, Options(do_sample=True), seeds=[1])
    with pytest.raises(InputError, match="a stream reads one source at a time; got 2 rows"):
        stream(decoder, memory, MARKS, Options())


@pytest.mark.parametrize("rows", [1, 7, 8, 31])
@pytest.mark.parametrize("size", [3, 128, 256, 257, 1009])
def test_likeliest_is_argmax(rows: int, size: int):
    """Few rows and many take different ways; so do ends of a vocabulary that do not fill a
    block. Ties: the first."""
    scores = torch.randint(
        0, 50, (rows, size), generator=torch.Generator().manual_seed(size)
    ).float()
    scores[:, 0] = -torch.inf
    assert torch.equal(likeliest(scores), scores.argmax(-1))
    scores[0, -1] = 99
    assert likeliest(scores)[0] == size - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 1e-40),
        ("temperature", 1e300),
        ("length_penalty", 1e308),
        ("length_penalty", -400.0),
        ("repetition_penalty", 1e308),
        ("mmi_weight", 1e308),
        ("idf_weight", 1e308),
        *(
            (name, value)
            for name in ("temperature", "length_penalty", "top_p")
            for value in (math.nan, math.inf)
        ),
    ],
)
def test_options_beyond_what_floats_can_hold_are_refused(name: str, value: float):
    with pytest.raises(InputError, match=f"^search: {name} must be "):
        Options(**{name: value})  # pyright: ignore[reportArgumentType]  # of any name


def test_draws_are_made_beforehand_and_so_have_a_limit():
    with pytest.raises(
        InputError,
        match="candidates times max_new_tokens must be at most 1,048,576; got 1,024 times",
    ):
        Options(do_sample=True, candidates=1024, max_new_tokens=1 << 20)


@pytest.mark.parametrize(
    "name", ["temperature", "length_penalty", "repetition_penalty", "idf_weight", "mmi_weight"]
)
def test_every_allowed_value_gives_answers_with_finite_ranks(name: str):
    bounds = {
        "temperature": (1e-6, 1e6),
        "length_penalty": (-5.0, 5.0),
        "repetition_penalty": (1.0, 1000.0),
    }
    decoder, memory = Table(seed=3), memories(2, seed=5)
    for value in bounds.get(name, (0.0, 1000.0)):
        for how in (
            {"do_sample": True, "candidates": 3, "seed": 1},
            {"num_beams": 3, "candidates": 3},
        ):
            given: dict[str, Any] = {name: value, **how}
            options = Options(**given, max_new_tokens=7)
            for row in search(decoder, memory, MARKS, options, prior=PRIOR, idf=torch.rand(V)):
                assert row and all(
                    math.isfinite(one.rank) and math.isfinite(one.score) for one in row
                )
                assert all(set(one.tokens) <= set(WORDS) for one in row)


def test_the_smallest_nucleus_is_the_likeliest_token():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    for p in (1e-300, 1e-46, 1e-9):
        assert processors.top_p(logits, p).isfinite().tolist() == [[False, True, False]]


@pytest.mark.parametrize("rows", [1, 7, 8, 31])
@pytest.mark.parametrize("size", [3, 128, 256, 257, 1009])
def test_a_near_tie_is_that_of_the_two_best(rows: int, size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    scores = 9 * torch.rand(rows, size, generator=draw)
    scores[[0, -1], 0] = 20.0  # near ties, across blocks and in the rest
    scores[[0, -1], -1] = torch.tensor([20.00001, 19.99999])
    before = scores.clone()
    token, near_tie = choice.greedy(scores)
    values = scores.topk(2).values
    assert torch.equal(scores, before) and torch.equal(token, scores.argmax(-1))
    assert near_tie == (values[:, 0] - values[:, 1] < choice.TIE_TOLERANCE).tolist()
    assert near_tie is not None and near_tie[0] and near_tie[-1]
