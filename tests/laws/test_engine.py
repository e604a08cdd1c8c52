"""Laws of the engine: whatever joins, leaves or fails, a request gets the answer it gets alone."""

from __future__ import annotations

import gc
import math
import random
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from regard.decoders import Output
from regard.errors import BundleError, InputError
from regard.model import Model
from regard.search import Engine, Options, Outputs, Request, SpecialTokens, StreamedToken
from regard.search import engine as engine_module
from regard.search.batch import Batch
from regard.search.requests import EncodedInput
from regard.search.tracks import Track
from regard.values import AttentionWeights, Capture, Memory, State, Step
from tests.laws.variants import VOCABULARY, build
from tests.retrieving import random_retrieval

MARKS = SpecialTokens(start=1, end=2, never=(0, 1, 3))
KINDS = [
    ("recurrent-lstm-2-concatenate", "recurrent-lstm-general"),
    ("recurrent-gru-1-sum", "recurrent-gru-none"),
    ("recurrent-lstm-2-sum", "recurrent-lstm-general-before"),
    ("recurrent-gru-2-concatenate", "recurrent-gru-dot-feeding"),
    ("convolution-relu-2-3", "recurrent-cross-attention-lstm"),
    ("transformer-pre-sinusoidal", "transformer-pre-sinusoidal"),
    ("transformer-post-rotary", "transformer-pre-rotary"),
    ("transformer-pre-alibi", "transformer-post-alibi"),
    ("transformer-post-relative", "transformer-pre-relative"),
    ("transformer-pre-learned", "transformer-post-learned"),
    ("transformer-pre-maclaurin", "transformer-post-maclaurin-5"),
]
OPTIONS = [
    Options(max_new_tokens=11),
    Options(max_new_tokens=5),
    Options(max_new_tokens=13, repetition_penalty=1.3, no_repeat_ngram_size=2),
    Options(max_new_tokens=9, min_new_tokens=4),
    Options(max_new_tokens=11, do_sample=True),
    Options(max_new_tokens=7, do_sample=True, candidates=3, temperature=0.7, top_k=5, top_p=0.9),
    Options(max_new_tokens=11, num_beams=3),
    Options(max_new_tokens=7, num_beams=2, candidates=2, length_penalty=0.0, early_stopping=True),
    Options(max_new_tokens=7, mmi_weight=0.5, mmi_steps=3),
    Options(max_new_tokens=9, num_beams=3, mmi_weight=0.4, idf_weight=0.3, mmi_steps=2),
    Options(max_new_tokens=9, do_sample=True, candidates=3, mmi_weight=0.4),
    Options(max_new_tokens=7, retrieved=2),
    Options(max_new_tokens=6, do_sample=True, candidates=2, retrieved=3, retrieval_weight=0.5),
]
RETRIEVAL = random_retrieval(VOCABULARY)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only lose time by being shared out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def single_precision(encoder: str, decoder: str) -> Model:
    """A model in which rounding differs with the number of rows. Its weights are such that inputs
    have different answers of different lengths."""
    model = build(encoder, decoder).float().eval()
    draw = torch.Generator().manual_seed(5)
    output = model.decoder.output
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
        assert isinstance(output, Output)
        output.weight = torch.nn.Parameter(0.7 * torch.randn(output.weight.shape, generator=draw))
        output.bias[MARKS.end] -= 0.5
        model.idf.copy_(torch.rand(VOCABULARY, generator=draw))
    return model


def nothing() -> tuple[Tensor, Tensor]:
    return torch.tensor([[2]]), torch.ones(1, 1, dtype=torch.bool)


def source(seed: int) -> tuple[Tensor, Tensor]:
    """A sentence of random length."""
    draw = random.Random(seed)
    tokens = [draw.randrange(4, VOCABULARY) for _ in range(draw.randrange(1, 17))]
    return torch.tensor([[*tokens, 2]]), torch.ones(1, len(tokens) + 1, dtype=torch.bool)


def answers(request: Request) -> list[tuple[int, ...]]:
    return [hypothesis.tokens for hypothesis in request.result()]


class Alone:
    """The answers that each request gets in an engine of its own."""

    def __init__(self, model: Model | Noisy):
        self.model = model
        self.known: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def __call__(self, seed: int, option: int) -> list[tuple[int, ...]]:
        key = (seed, option)
        if key not in self.known:
            engine = Engine(self.model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
            request = engine.submit(*source(seed), OPTIONS[option])
            engine.run()
            self.known[key] = answers(request)
        return self.known[key]


def run_schedule(model: Model, alone: Alone, seed: int) -> None:
    """Requests of random inputs and options arrive at random steps, some are cancelled, and the
    batch has a random limit of rows."""
    draw = random.Random(seed)
    engine = Engine(
        model,
        MARKS,
        empty_prompt=nothing,
        retriever=RETRIEVAL,
        max_rows=draw.randrange(2, 24),
        max_joining=3,
    )
    arrivals = sorted(draw.randrange(25) for _ in range(draw.randrange(2, 9)))
    requests: list[tuple[Request, int, int]] = []
    doomed: dict[int, list[Request]] = {}
    step = 0
    while arrivals or engine.busy:
        while arrivals and arrivals[0] <= step:
            arrivals.pop(0)
            # Few inputs, so that the answers they get alone are known soon.
            key = (draw.randrange(12), draw.randrange(len(OPTIONS)))
            request = engine.submit(*source(key[0]), OPTIONS[key[1]])
            requests.append((request, *key))
            if draw.random() < 0.2:
                doomed.setdefault(step + draw.randrange(8), []).append(request)
        for request in doomed.pop(step, []):
            engine.cancel(request)
        engine.step()
        step += 1

    for request, *key in requests:
        assert request.done
        if not request.cancelled:
            assert answers(request) == alone(*key)
    assert_empty(engine)


def assert_empty(engine: Engine) -> None:
    batch = engine._batch
    assert not engine.busy and engine.rows == 0
    assert batch.state is None and not batch.tracks and not batch.places
    assert not batch._records and not engine._alone and not engine._waiting


def schedules(encoder: str, decoder: str, seeds: range) -> None:
    model = single_precision(encoder, decoder)
    alone = Alone(model)
    for seed in seeds:
        run_schedule(model, alone, seed)


@pytest.mark.parametrize(("encoder", "decoder"), KINDS)
def test_a_request_gets_what_it_gets_alone(encoder: str, decoder: str) -> None:
    schedules(encoder, decoder, range(2))


@pytest.mark.long
@pytest.mark.parametrize(("encoder", "decoder"), KINDS)
def test_a_request_gets_what_it_gets_alone_over_300_schedules(encoder: str, decoder: str) -> None:
    schedules(encoder, decoder, range(100, 128))  # for each of the kinds: 308


class Noisy:
    """A model whose logits differ with the rows of the batch, twenty times as much as rounding in
    single precision makes them differ, and which has many close choices."""

    noise = 1e-5

    def __init__(self, model: Model):
        self.model = model
        self.idf = model.idf
        self.decoder = self

    def encode(self, raw: Tensor, mask: Tensor, *, capture: Capture = "none") -> Memory:
        return self.model.encode(raw, mask)

    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        return self.model.decoder.start(memory)

    def step(self, token: Tensor, state: State, *, capture: Capture = "none") -> Step:
        step = self.model.decoder.step(token, state)
        # Rounded to a coarse grid, so that equal logits are common.
        logits = (step.logits * 8).round() / 8
        draw = torch.Generator().manual_seed(1000 * state.size + state.max_position)
        noise = self.noise * (2 * torch.rand(logits.shape, generator=draw) - 1)
        return Step(logits + noise, step.state, step.weights)


@pytest.mark.parametrize("option", range(len(OPTIONS)))
def test_rounding_does_not_change_an_answer(option: int) -> None:
    model = Noisy(single_precision(*KINDS[5]))
    engine = Engine(
        model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL, max_rows=200, max_joining=200
    )
    requests = [engine.submit(*source(seed), OPTIONS[option]) for seed in range(23)]
    engine.run()
    alone = Alone(model)
    assert [answers(request) for request in requests] == [alone(s, option) for s in range(23)]


def test_without_the_check_rounding_does_change_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above tests something."""
    batch = engine_module.Batch
    monkeypatch.setattr(
        engine_module,
        "Batch",
        lambda decoder, marks, detect_ties: batch(decoder, marks, detect_ties=False),
    )
    model = Noisy(single_precision(*KINDS[5]))
    engine = Engine(
        model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL, max_rows=200, max_joining=200
    )
    requests = [engine.submit(*source(seed), OPTIONS[0]) for seed in range(23)]
    engine.run()
    alone = Alone(model)
    assert [answers(request) for request in requests] != [alone(s, 0) for s in range(23)]


class Failing(Noisy):
    """A model that cannot read some inputs, and whose decoder fails after some tokens."""

    def encode(self, raw: Tensor, mask: Tensor, *, capture: Capture = "none") -> Memory:
        if (raw == 7).any():
            raise InputError("seven cannot be read")
        return self.model.encode(raw, mask)

    def step(self, token: Tensor, state: State, *, capture: Capture = "none") -> Step:
        if (token == 16).any():
            raise RuntimeError("sixteen cannot be continued")
        return self.model.decoder.step(token, state)


@pytest.mark.parametrize("option", [0, 4, 6])
def test_a_failing_request_fails_alone(option: int) -> None:
    model = Failing(single_precision(*KINDS[0]))
    engine = Engine(
        model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL, max_rows=40, max_joining=40
    )
    requests = [engine.submit(*source(seed), OPTIONS[option]) for seed in range(20)]
    engine.run()
    assert_empty(engine)
    outcomes = set()
    for seed, request in enumerate(requests):
        own = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
        alone = own.submit(*source(seed), OPTIONS[option])
        own.run()
        assert type(request.error) is type(alone.error)
        outcomes.add(type(request.error))
        if alone.error is None:
            assert answers(request) == answers(alone)
        else:
            with pytest.raises(type(alone.error)):
                request.result()
    assert outcomes == {type(None), InputError, RuntimeError}


def test_a_callback_that_fails_ends_its_own_request_only() -> None:
    def fail(token: StreamedToken) -> None:
        raise ValueError("no")

    model = single_precision(*KINDS[0])
    engine = Engine(model, MARKS)
    failing = engine.submit(*source(1), OPTIONS[3], outputs=Outputs(on_token=fail))
    other = engine.submit(*source(2), OPTIONS[3])
    engine.run()
    assert isinstance(failing.error, ValueError) and other.error is None
    assert answers(other) == Alone(model)(2, 3)
    assert_empty(engine)


def test_a_cancelled_request_leaves_before_the_next_step() -> None:
    model = single_precision(*KINDS[5])
    engine = Engine(model, MARKS)
    options = Options(max_new_tokens=50, min_new_tokens=50)
    requests = [engine.submit(*source(seed), options) for seed in range(8)]
    engine.step()
    assert engine.rows == 8
    for request in requests[:4]:
        engine.cancel(request)
    waiting = engine.submit(*source(9), options)
    engine.cancel(waiting)
    engine.step()
    assert engine.rows == 4
    engine.run()
    assert [len(request.hypotheses) for request in requests] == [0] * 4 + [1] * 4
    assert waiting.cancelled and not waiting.hypotheses


@pytest.mark.parametrize("noisy", [False, True], ids=["exact", "near ties"])
@pytest.mark.parametrize("max_rows", [7, 11])
def test_all_batches_together_keep_to_the_rows(
    noisy: bool, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of beams, samples, retrieved answers, MMI and its re-ranking, and those of requests that
    are searched again alone: before each step of a batch, all are counted."""
    model = single_precision(*KINDS[5])
    engine = Engine(
        Noisy(model) if noisy else model,
        MARKS,
        empty_prompt=nothing,
        retriever=RETRIEVAL,
        max_rows=max_rows,
    )
    rows: list[int] = []
    step = Batch.step

    def counted(batch: Batch) -> list[Track]:
        rows.append(engine.rows)
        return step(batch)

    monkeypatch.setattr(Batch, "step", counted)
    for seed in range(39):
        engine.submit(*source(seed), OPTIONS[seed % len(OPTIONS)])
    engine.run()
    assert_empty(engine)
    assert max_rows - 1 <= max(rows) <= max_rows


@pytest.mark.parametrize(("encoder", "decoder"), [KINDS[0], KINDS[5], KINDS[10]])
def test_room_does_not_grow_with_the_age_of_the_batch(encoder: str, decoder: str) -> None:
    """The batch is never empty for 150 steps; no answer has more than 7 tokens."""
    model = single_precision(encoder, decoder)
    engine = Engine(model, MARKS, max_rows=6)
    options = Options(max_new_tokens=7, min_new_tokens=3)
    capacity = 0
    for seed in range(150):
        if len(engine._waiting) < 3:
            engine.submit(*source(seed), options)
        engine.step()
        state = engine._batch.state
        assert state is not None or seed == 0
        if state is not None:
            assert state.max_position <= 14 and state.mask.shape[1] <= 17
            if state.kv_cache is not None:
                capacity = max(capacity, state.kv_cache.tensor.shape[-2])
        assert len(engine._batch._records) <= 14
    assert capacity <= 32


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_nothing_is_left_in_memory() -> None:
    model = single_precision(*KINDS[5])
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)

    def run() -> None:
        requests = [engine.submit(*source(s), OPTIONS[s % len(OPTIONS)]) for s in range(12)]
        engine.step()
        engine.cancel(requests[0])
        engine.run()

    run()
    before = tensors()
    run()
    assert tensors() <= before


def test_two_engines_in_two_threads() -> None:
    model = single_precision(*KINDS[5])
    alone = Alone(model)
    wanted = [alone(seed, seed % len(OPTIONS)) for seed in range(12)]
    results: dict[int, list[list[tuple[int, ...]]]] = {}

    def work(number: int) -> None:
        engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL, max_rows=8)
        requests = [engine.submit(*source(s), OPTIONS[s % len(OPTIONS)]) for s in range(12)]
        engine.run()
        results[number] = [answers(request) for request in requests]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: wanted, 1: wanted}
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("option", range(len(OPTIONS)))
def test_streamed_tokens_are_those_of_the_answer(option: int) -> None:
    model = single_precision(*KINDS[1])
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    called: list[StreamedToken] = []
    first = engine.submit(*source(1), OPTIONS[option], outputs=Outputs(stream=True))
    second = engine.submit(*source(2), OPTIONS[option], outputs=Outputs(on_token=called.append))
    streamed = list(engine.stream(first))
    engine.run()
    for tokens, request in ((streamed, first), (called, second)):
        best = request.result()[0]
        assert tuple(token.token for token in tokens) == best.tokens
        assert [token.logprob for token in tokens] == list(best.logprobs[: len(tokens)])


@pytest.mark.parametrize("option", range(len(OPTIONS)))
def test_alternatives_are_the_likeliest_tokens_of_each_step(option: int) -> None:
    model = single_precision(*KINDS[5])
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    request = engine.submit(*source(5), OPTIONS[option], outputs=Outputs(alternatives=4))
    engine.submit(*source(6), OPTIONS[0], outputs=Outputs(alternatives=2))
    engine.run()
    for hypothesis in request.result():
        assert hypothesis.alternatives is not None
        assert len(hypothesis.alternatives) == len(hypothesis.logprobs)
        memory = model.encode(*source(5))
        inputs = torch.tensor([[MARKS.start, *hypothesis.tokens]])
        probabilities = model.decoder(inputs, memory)[0].softmax(-1)
        for step, alternatives in enumerate(hypothesis.alternatives):
            assert len(alternatives) == 4
            expected = probabilities[step].topk(4)
            assert [token for token, _ in alternatives] == expected.indices.tolist()
            got = [probability for _, probability in alternatives]
            assert got == pytest.approx(expected.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("option", [6, 9])
@pytest.mark.parametrize(("encoder", "decoder"), KINDS)
@torch.no_grad()
def test_captured_attention_is_that_of_a_forward_pass_over_the_answer(
    encoder: str, decoder: str, option: int
) -> None:
    model = single_precision(encoder, decoder)
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    engine.submit(*source(3), OPTIONS[0])
    request = engine.submit(*source(5), OPTIONS[option], outputs=Outputs(capture="all"))
    plain = engine.submit(*source(5), OPTIONS[option])
    engine.run()
    assert answers(request) == answers(plain)
    assert plain.result()[0].attention is None

    best = request.result()[0]
    assert best.attention is not None
    steps = len(best.logprobs)
    memory = model.encode(*source(5), capture="all")
    assert_same_weights(best.attention.encoder, memory.attention)
    inputs = torch.tensor([[MARKS.start, *best.tokens]])[:, :steps]
    _, attention = model.decoder.forward_with_attention(inputs, memory)
    assert_same_weights(best.attention.decoder, [x for x in attention if x.kind == "self"])
    assert_same_weights(best.attention.cross, [x for x in attention if x.kind == "cross"])
    if best.weights is not None:
        last = best.attention.cross[-1].weights[0].transpose(0, 1)
        torch.testing.assert_close(last, best.weights, atol=1e-5, rtol=0)


def assert_same_weights(own: Sequence[AttentionWeights], other: Sequence[AttentionWeights]) -> None:
    assert [x.layer for x in own] == [x.layer for x in other]
    for a, b in zip(own, other, strict=True):
        assert a.form == b.form and a.kind == b.kind
        torch.testing.assert_close(a.weights, b.weights, atol=1e-5, rtol=0)


def test_a_request_has_one_input() -> None:
    engine = Engine(single_precision(*KINDS[0]), MARKS)
    raw, mask = source(1)
    with pytest.raises(InputError, match="a request has one input; got 2 rows"):
        engine.submit(raw.repeat(2, 1), mask.repeat(2, 1), Options())
    with pytest.raises(InputError, match="mmi_weight needs as prior"):
        engine.submit(raw, mask, Options(mmi_weight=0.5))


@pytest.mark.parametrize("options", [OPTIONS[6], OPTIONS[5]])
def test_a_callback_that_fails_at_the_end_is_the_error_of_its_own_request(options: Options) -> None:
    def fail(token: StreamedToken) -> None:
        raise ValueError("no")

    model = single_precision(*KINDS[5])
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    failing = engine.submit(*source(0), options, outputs=Outputs(on_token=fail))
    others = [engine.submit(*source(seed), OPTIONS[0]) for seed in (2, 3)]
    engine.run()
    assert isinstance(failing.error, ValueError)
    assert [answers(request) for request in others] == [Alone(model)(seed, 0) for seed in (2, 3)]


def test_rows_that_have_ended_do_not_walk_off_the_learned_positions() -> None:
    model = single_precision("transformer-pre-learned", "transformer-post-learned")  # 53 positions
    engine = Engine(model, MARKS)
    short = engine.submit(
        *source(1), Options(max_new_tokens=100, do_sample=True, temperature=3.0, seed=1)
    )
    for _ in range(4):
        engine.step()
    long = engine.submit(*source(3), Options(max_new_tokens=52, min_new_tokens=52, num_beams=10))
    engine.run()
    assert short.done and long.error is None and len(long.result()[0].tokens) == 52


@pytest.mark.parametrize("options", [{"top_p": 0.5}, {"top_p": 0.3, "temperature": 2.0}])
def test_equal_tokens_at_the_edge_of_the_nucleus(options: dict) -> None:
    """Twins have equal logits, so rounding decides which of them is in the nucleus."""
    model = single_precision(*KINDS[5])
    output = model.decoder.output
    with torch.no_grad():
        for token in range(4, 13):
            output.weight[token + 10] = output.weight[token]
            output.bias[token + 10] = output.bias[token]
    chosen = Options(max_new_tokens=30, do_sample=True, **options)
    engine = Engine(model, MARKS, max_rows=64, max_joining=64)
    requests = [engine.submit(*source(seed), chosen) for seed in range(24)]
    engine.run()
    for seed, request in enumerate(requests):
        own = Engine(model, MARKS)
        alone = own.submit(*source(seed), chosen)
        own.run()
        assert answers(request) == answers(alone)


AMPLIFIED = [
    Options(max_new_tokens=11, mmi_weight=50.0, mmi_steps=20),
    Options(max_new_tokens=11, repetition_penalty=100.0),
    Options(max_new_tokens=11, do_sample=True, temperature=1e-6),
    Options(max_new_tokens=9, num_beams=4, mmi_weight=50.0, mmi_steps=20),
]


@pytest.mark.parametrize("options", AMPLIFIED)
def test_rounding_that_options_amplify_does_not_change_an_answer(options: Options) -> None:
    model = Noisy(single_precision(*KINDS[5]))
    engine = Engine(
        model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL, max_rows=200, max_joining=200
    )
    requests = [engine.submit(*source(seed), options) for seed in range(13)]
    engine.run()
    for seed, request in enumerate(requests):
        own = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
        alone = own.submit(*source(seed), options)
        own.run()
        assert answers(request) == answers(alone)


@pytest.mark.parametrize("moment", [2, 4])
def test_an_interrupted_engine_goes_on(moment: int) -> None:
    calls = 0

    def interrupt(token: StreamedToken) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            raise KeyboardInterrupt

    model = single_precision(*KINDS[5])
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    beams = engine.submit(*source(2), OPTIONS[6])
    plain = engine.submit(*source(2), OPTIONS[0])
    streamed = engine.submit(*source(1), OPTIONS[0], outputs=Outputs(on_token=interrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.run()
    alone = Alone(model)
    assert answers(beams) == alone(2, 6) and answers(plain) == alone(2, 0)
    assert answers(streamed) == alone(1, 0)


def test_the_score_of_a_long_beam_is_the_sum_of_its_logprobs() -> None:
    model = single_precision(*KINDS[0])
    engine = Engine(model, MARKS)
    options = Options(max_new_tokens=200, min_new_tokens=200, num_beams=2)
    request = engine.submit(*source(1), options)
    engine.run()
    best = request.result()[0]
    assert best.score == pytest.approx(math.fsum(best.logprobs), abs=1e-9)


@pytest.mark.parametrize("rows", [0, -1])
def test_an_engine_has_rows(rows: int) -> None:
    with pytest.raises(InputError, match="max_rows: must be a whole number >= 1; got"):
        Engine(single_precision(*KINDS[0]), MARKS, max_rows=rows)


def test_what_cannot_be_answered_is_said() -> None:
    model = single_precision(*KINDS[0])
    engine = Engine(model, MARKS)
    raw, mask = source(1)
    with pytest.raises(InputError, match="the input is empty"):
        engine.submit(raw, torch.zeros_like(mask), Options())
    with pytest.raises(InputError, match="alternatives: must be a whole number >= 0; got -1"):
        Outputs(alternatives=-1)
    with torch.no_grad():
        model.decoder.output.bias[7] = torch.nan
    for options in (Options(), Options(num_beams=3), Options(do_sample=True)):
        request = engine.submit(raw, mask, options)
        engine.run()
        with pytest.raises(BundleError, match="no answer: the model's logits are not numbers"):
            request.result()
    assert_empty(engine)


class BrokenAfter(Noisy):
    """A model whose logits are not numbers from the third token on."""

    noise = 0.0

    def __init__(self, model: Model, value: float):
        super().__init__(model)
        self.value = value

    def step(self, token: Tensor, state: State, *, capture: Capture = "none") -> Step:
        step = super().step(token, state)
        if state.max_position > 2:
            step.logits[:, 16] = self.value
        return step


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("options", [Options(), Options(num_beams=3), Options(do_sample=True)])
def test_a_model_that_breaks_in_the_middle_is_blamed(options: Options, value: float) -> None:
    engine = Engine(BrokenAfter(single_precision(*KINDS[0]), value), MARKS)
    request = engine.submit(*source(1), options.replaced(min_new_tokens=5, max_new_tokens=8))
    engine.run()
    with pytest.raises(BundleError, match="no answer: the model's logits are not numbers"):
        request.result()
    assert_empty(engine)


class Interrupted(Noisy):
    """A model that raises once, when it encodes, or at a step after some requests are alone."""

    def __init__(self, model: Model, error: BaseException, *, encoding: bool = False):
        super().__init__(model)
        self.error: BaseException | None = error
        self.encoding = encoding
        self.armed = False

    def encode(self, raw: Tensor, mask: Tensor, *, capture: Capture = "none") -> Memory:
        if self.encoding:
            self._raise_once()
        return super().encode(raw, mask)

    def step(self, token: Tensor, state: State, *, capture: Capture = "none") -> Step:
        if self.armed and state.size > 1:  # the batch of several requests
            self._raise_once()
        return super().step(token, state)

    def _raise_once(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


def test_an_interrupt_while_inputs_are_encoded_loses_no_request() -> None:
    plain = Noisy(single_precision(*KINDS[5]))
    model = Interrupted(plain.model, KeyboardInterrupt(), encoding=True)
    engine = Engine(model, MARKS)
    requests = [engine.submit(*source(seed), OPTIONS[0]) for seed in range(5)]
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.run()
    alone = Alone(plain)
    assert [answers(request) for request in requests] == [alone(seed, 0) for seed in range(5)]


@pytest.mark.parametrize("error", [RuntimeError("once"), KeyboardInterrupt()])
def test_a_request_is_searched_once_after_an_error_in_the_batch(error: BaseException) -> None:
    """Requests with near ties are alone by then, and have left rows in the batch."""
    plain = Noisy(single_precision(*KINDS[5]))
    model = Interrupted(plain.model, error)
    engine = Engine(model, MARKS, max_rows=64, max_joining=64)
    options = OPTIONS[0]
    requests = [engine.submit(*source(seed), options) for seed in range(23)]
    while not engine._alone or not any(not track.active for track in engine._batch.tracks):
        engine.step()
    model.armed = True
    try:
        engine.step()
    except KeyboardInterrupt:
        engine.step()
    batches = [engine._batch, *engine._alone]
    searched = [track.request for batch in batches for track in batch.tracks if track.active]
    assert len(searched) == len(set(searched)) > 0
    engine.run()
    alone = Alone(plain)
    assert [answers(request) for request in requests] == [alone(seed, 0) for seed in range(23)]


UNBEAMED = [0, 2, 3, 4, 5, 8, 10]  # of OPTIONS: those with one beam


@pytest.mark.parametrize("option", UNBEAMED)
@pytest.mark.parametrize(("encoder", "decoder"), KINDS)
@torch.no_grad()
def test_an_answer_goes_on_from_its_prefix(encoder: str, decoder: str, option: int) -> None:
    """Given the first tokens of its own answer, greedy search repeats the answer. Given other
    tokens, the answer begins with them, and their log-probabilities are the model's."""
    model = single_precision(encoder, decoder)
    options = OPTIONS[option]
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    other = (7, 5, 4)
    plain = engine.submit(*source(3), options)
    engine.submit(*source(4), options)  # of another request beside them
    forced = engine.submit(*source(3), options, prefix=other, outputs=Outputs(alternatives=2))
    engine.run()
    hypotheses = forced.result()
    memory = model.encode(*source(3))
    for hypothesis in hypotheses:
        assert hypothesis.tokens[: len(other)] == other
        inputs = torch.tensor([[MARKS.start, *hypothesis.tokens]])
        logprobs = model.decoder(inputs, memory)[0].log_softmax(-1)
        expected = [float(logprobs[t, token]) for t, token in enumerate(other)]
        assert list(hypothesis.logprobs[:3]) == pytest.approx(expected, abs=1e-4)

    if not options.do_sample:
        own = plain.result()[0].tokens
        again = engine.submit(*source(3), options, prefix=own[: len(own) // 2])
        engine.run()
        assert again.result()[0].tokens == own


def test_prefixes_that_no_answer_can_have() -> None:
    engine = Engine(single_precision(*KINDS[0]), MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    for prefix, options, what in (
        ((5,), OPTIONS[6], "num_beams"),
        ((5,) * 11, OPTIONS[0], "shorter"),
        ((MARKS.end,), OPTIONS[0], "no answer"),
    ):
        with pytest.raises(InputError, match=what):
            engine.submit(*source(1), options, prefix=prefix)
    assert not engine.busy


@pytest.mark.parametrize("option", range(len(OPTIONS)))
def test_streamed_tokens_have_the_alternatives_of_the_answer(option: int) -> None:
    engine = Engine(single_precision(*KINDS[5]), MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    outputs = Outputs(alternatives=3, stream=True)
    request = engine.submit(*source(5), OPTIONS[option], outputs=outputs)
    tokens = list(engine.stream(request))
    best = request.result()[0]
    assert best.alternatives is not None
    assert [token.alternatives for token in tokens] == list(best.alternatives[: len(tokens)])


def test_long_inputs_join_a_running_batch_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many join as can be encoded within SLICE, by what encoding took before. Those that wait
    get the same answers."""
    model = single_precision(*KINDS[1])
    alone = Alone(model)
    clock = iter(range(10_000))
    monkeypatch.setattr(engine_module.time, "perf_counter", lambda: next(clock) * 0.02)
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    first = engine.submit(*source(1), OPTIONS[0])
    engine.step()
    assert engine._encoding_seconds == pytest.approx(0.02 / source(1)[0].numel())
    requests = [engine.submit(*source(seed), OPTIONS[0]) for seed in range(8)]
    joined = []
    while engine.busy:
        before = len(engine._waiting)
        was_running = engine.rows > 0
        engine.step()
        if was_running and before > len(engine._waiting):
            joined.append(before - len(engine._waiting))
    assert joined and max(joined) < 8
    for seed, request in enumerate(requests):
        assert answers(request) == alone(seed, 0)
    assert answers(first) == alone(1, 0)


class Recorded:
    """A model that records the order of its calls: the rows of each `encode`, "step" for a step."""

    def __init__(self, model: Model):
        self.model = model
        self.decoder = self
        self.idf = model.idf
        self.calls: list[int | str] = []

    def encode(self, raw: Tensor, mask: Tensor, *, capture: Capture = "none") -> Memory:
        self.calls.append(len(raw))
        return self.model.encode(raw, mask)

    def start(self, memory: Memory, *, capture: Capture = "none") -> State:
        return self.model.decoder.start(memory)

    def step(self, token: Tensor, state: State, *, capture: Capture = "none") -> Step:
        self.calls.append("step")
        return self.model.decoder.step(token, state)


@pytest.mark.parametrize("max_rows", [64, 3], ids=["all join at once", "three at a time"])
def test_copies_of_an_input_are_encoded_once(max_rows: int) -> None:
    """Each copy gets the answer that it gets alone with its seed."""
    model = single_precision(*KINDS[5])
    options = OPTIONS[4]
    seeds = range(8)
    alone = []
    for seed in seeds:
        engine = Engine(model, MARKS)
        request = engine.submit(*source(3), options, seed=seed)
        engine.run()
        alone.append(answers(request))
    assert len({tuple(answer) for answer in alone}) > 1

    recorded = Recorded(model)
    engine = Engine(recorded, MARKS, max_rows=max_rows)
    other = engine.submit(*source(1), OPTIONS[0])
    copies = engine.submit_copies(*source(3), options, seeds=list(seeds))
    engine.run()
    assert [answers(copy) for copy in copies] == alone
    assert answers(other) == Alone(model)(1, 0)
    assert sum(rows for rows in recorded.calls if isinstance(rows, int)) == 2


def test_copies_draw_as_single_requests_do() -> None:
    """Without seeds, a copy is the same request again."""
    model = single_precision(*KINDS[0])
    engine = Engine(model, MARKS)
    single = engine.submit(*source(5), OPTIONS[4])
    copies = engine.submit_copies(*source(5), OPTIONS[4], seeds=[None, None])
    engine.run()
    assert answers(copies[0]) == answers(copies[1]) == answers(single)


def test_a_first_token_does_not_wait_for_others_to_end() -> None:
    """A request that comes while others run has its first token a few steps later, and streams that
    run have a step after every encoding."""
    recorded = Recorded(single_precision(*KINDS[5]))
    engine = Engine(recorded, MARKS)
    long = Options(max_new_tokens=400, min_new_tokens=400)
    outputs = Outputs(weights=False, stream=True)
    running = [engine.submit(*source(seed), long, outputs=outputs) for seed in range(5)]
    for _ in range(3):
        engine.step()
    for seed in range(5, 20):
        recorded.calls.clear()
        before = [request.token_count for request in running]
        late = engine.submit(*source(seed), long, outputs=outputs)
        steps = 0
        while not late.token_count:
            engine.step()
            steps += 1
        assert steps <= engine_module.PATIENCE + 1
        for request, count in zip(running, before, strict=True):
            assert request.token_count - count == steps
        encodings = [place for place, call in enumerate(recorded.calls) if call != "step"]
        assert all(recorded.calls[place + 1] == "step" for place in encodings)
        running.append(late)
    assert not any(request.done for request in running)


ONE_ROW = Options(max_new_tokens=40, min_new_tokens=40)
WIDE = Options(max_new_tokens=5, do_sample=True, candidates=7)


def test_cancelled_requests_leave_the_queue_at_once() -> None:
    """Also behind others, while the batch is full: who comes and goes must not fill the memory."""
    model = single_precision(*KINDS[0])
    engine = Engine(model, MARKS, max_rows=2)
    running = [engine.submit(*source(seed), ONE_ROW) for seed in range(2)]
    first = engine.submit(*source(2), OPTIONS[0])
    engine.step()
    for _ in range(5):
        for request in [engine.submit(*source(3), OPTIONS[0]) for _ in range(100)]:
            engine.cancel(request)
        last = engine.submit(*source(4), OPTIONS[0])
        engine.step()
        assert list(engine._waiting) == [first, last]
        engine.cancel(last)
    engine.run()
    assert answers(first) == Alone(model)(2, 0)
    assert all(request.result() for request in running)


def test_submitting_while_others_cancel_loses_no_request() -> None:
    engine = Engine(single_precision(*KINDS[0]), MARKS, max_rows=4)
    requests: list[Request] = []

    def submit() -> None:
        for seed in range(300):
            requests.append(engine.submit(*source(seed % 7), Options(max_new_tokens=2)))
            engine.cancel(engine.submit(*source(seed % 7), OPTIONS[0]))

    thread = threading.Thread(target=submit)
    thread.start()
    while thread.is_alive() or engine.busy:
        engine.step()
    assert len(requests) == 300 and all(request.result() for request in requests)


def joined(engine: Engine, requests: Sequence[Request], max_steps: int = 1000) -> list[int]:
    """Step until all requests have begun, and return the order in which they did."""
    order: list[int] = []
    for _ in range(max_steps):
        engine.step()
        for number, request in enumerate(requests):
            if request.has_begun and number not in order:
                order.append(number)
        if len(order) == len(requests):
            return order
    raise AssertionError(f"only these have begun: {order}")


def test_a_request_of_one_row_does_not_wait_for_one_of_many() -> None:
    """It passes, if there is room for it; and others come in their turn."""
    engine = Engine(single_precision(*KINDS[0]), MARKS, max_rows=8)
    engine.submit(*source(0), ONE_ROW)
    engine.submit(*source(1), ONE_ROW)
    engine.step()
    wide = engine.submit(*source(2), WIDE)
    narrow = [engine.submit(*source(3), Options(max_new_tokens=3)) for _ in range(3)]
    assert joined(engine, [wide, *narrow]) == [1, 2, 3, 0]


def test_a_request_of_many_rows_is_passed_a_bounded_number_of_times() -> None:
    """However many requests of one row come, and however they keep the batch busy."""
    engine = Engine(single_precision(*KINDS[0]), MARKS, max_rows=8)
    long = engine.submit(*source(0), Options(max_new_tokens=400, min_new_tokens=400))
    short = Options(max_new_tokens=3, min_new_tokens=3)
    too_wide = Options(max_new_tokens=5, do_sample=True, candidates=9)  # it runs alone
    for options in (WIDE, too_wide):
        before = engine.submit(*source(2), short)
        while not before.has_begun:
            engine.step()
        wide = engine.submit(*source(1), options)
        later: list[Request] = []
        while not wide.has_begun:
            later += [engine.submit(*source(2), short) for _ in range(4)]
            engine.step()
            if options is too_wide and sum(other.has_begun for other in later) == 16:
                engine.cancel(long)
        assert sum(other.has_begun for other in later) == engine_module.MAX_PASSES
        for other in later:
            engine.cancel(other)


def test_after_an_error_in_the_batch_inputs_are_encoded_again_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = single_precision(*KINDS[5])

    class FailsOnce(Recorded):
        armed = False

        def step(self, token: Tensor, state: State, *, capture: Capture = "none") -> Step:
            if self.armed:
                self.armed = False
                raise RuntimeError("once")
            return super().step(token, state)

    model = FailsOnce(plain)
    engine = Engine(model, MARKS)
    requests = [engine.submit(*source(seed), OPTIONS[0]) for seed in range(20)]
    engine.step()
    clock = iter(range(100_000))
    monkeypatch.setattr(engine_module.time, "perf_counter", lambda: next(clock) * 0.02)
    model.armed = True
    model.calls.clear()
    engine.run()
    encodings = [0]
    for call in model.calls:
        if call == "step":
            encodings.append(0)
        else:
            encodings[-1] += 1
    assert sum(encodings) >= 20
    assert max(encodings) <= 4  # 0.05 seconds, or 4 steps of 0.02 each
    alone = Alone(plain)
    assert [answers(request) for request in requests] == [alone(seed, 0) for seed in range(20)]


def test_until_encoding_is_measured_one_request_joins_a_running_batch() -> None:
    """That of the first one was encoded before, which measures nothing."""
    recorded = Recorded(single_precision(*KINDS[5]))
    engine = Engine(recorded, MARKS, max_rows=16)
    encoded = EncodedInput(recorded.model.encode(*source(0)))
    engine.submit_input(encoded, ONE_ROW, seed=None, outputs=Outputs())
    engine.step()
    for seed in range(5):
        engine.submit(*source(seed), ONE_ROW)
    engine.run()
    encodings = [rows for rows in recorded.calls if isinstance(rows, int)]
    assert encodings[0] == 1 and sum(encodings) == 5


def test_encoding_an_input_that_several_requests_share_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(single_precision(*KINDS[1]), MARKS)
    clock = iter(range(10_000))
    monkeypatch.setattr(engine_module.time, "perf_counter", lambda: next(clock) * 0.02)
    engine.submit_copies(*source(3), OPTIONS[4], seeds=[0, 1])
    engine.step()
    assert engine._encoding_seconds == pytest.approx(0.02 / source(3)[0].numel())


@pytest.mark.parametrize("has_neighbour", [False, True])
def test_a_request_that_is_cancelled_while_it_is_encoded_leaves_before_the_next_step(
    has_neighbour: bool,
) -> None:
    class Cancels(Recorded):
        request: Request | None = None

        def encode(self, raw: Tensor, mask: Tensor, *, capture: Capture = "none") -> Memory:
            if self.request is not None:
                engine.cancel(self.request)
            return super().encode(raw, mask)

    model = single_precision(*KINDS[5])
    cancels = Cancels(model)
    engine = Engine(cancels, MARKS, max_rows=8)
    neighbour = engine.submit(*source(1), OPTIONS[0]) if has_neighbour else None
    engine.step()
    cancels.request = engine.submit(*source(2), ONE_ROW)
    engine.step()
    assert engine.rows == 1 + has_neighbour
    engine.step()
    assert engine.rows == has_neighbour and engine.busy == has_neighbour
    engine.run()
    if neighbour is not None:
        assert answers(neighbour) == Alone(model)(1, 0)
