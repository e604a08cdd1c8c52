"""Laws of training answers that are candidates of a search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regard.errors import InputError
from regard.model import Model
from regard.search import Engine, Hypothesis, Options, Outputs
from regard.search.requests import RetrievedAnswer
from regard.tasks.task import text_targets
from tests.laws.test_engine import (
    KINDS,
    MARKS,
    RETRIEVAL,
    Noisy,
    answers,
    nothing,
    single_precision,
    source,
)

SAMPLED = Options(max_new_tokens=8, do_sample=True, candidates=3)


def best(
    model: Model | Noisy, seed: int, options: Options, outputs: Outputs | None = None
) -> list[Hypothesis]:
    """The hypotheses for an input."""
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL)
    request = engine.submit(*source(seed), options, outputs=outputs or Outputs())
    engine.run()
    return request.result()


def retrieved_for(seed: int, options: Options) -> list[RetrievedAnswer]:
    raw, _ = source(seed)
    return RETRIEVAL.nearest(
        raw[0].numpy(), options.retrieved, shortest=0, longest=options.max_new_tokens - 1
    )


def log_p(model: Model, raw: torch.Tensor, tokens: tuple[int, ...]) -> float:
    """The log-probability of an answer by one pass over all of it (teacher forcing)."""
    with torch.inference_mode():
        memory = model.encode(raw, torch.ones_like(raw, dtype=torch.bool))
        return -float(model.nats(memory, *text_targets([np.array(tokens, np.int64)])))


# So that every training answer comes before what the model writes itself.
CERTAIN = {"retrieved": 4, "retrieval_weight": 1000.0}


@pytest.mark.parametrize(("encoder", "decoder"), KINDS)
def test_a_retrieved_answer_has_its_own_log_probability_and_weights(
    encoder: str, decoder: str
) -> None:
    model = single_precision(encoder, decoder)
    options = Options(max_new_tokens=8, do_sample=True, candidates=4, **CERTAIN)
    outputs = Outputs(alternatives=3)
    for seed in range(3):
        raw, _ = source(seed)
        expected = retrieved_for(seed, options)
        hypotheses = best(model, seed, options, outputs)
        assert {each.tokens for each in hypotheses} == {each.tokens for each in expected}
        for hypothesis in hypotheses:
            assert hypothesis.retrieved and hypothesis.finish == "stop"
            steps = len(hypothesis.tokens) + 1
            assert hypothesis.score == pytest.approx(log_p(model, raw, hypothesis.tokens), rel=1e-4)
            assert math.fsum(hypothesis.logprobs) == pytest.approx(hypothesis.score)
            assert len(hypothesis.logprobs) == len(hypothesis.alternatives or ()) == steps
            if hypothesis.weights is not None:
                assert hypothesis.weights.shape[0] == steps
                sums = hypothesis.weights.sum(-1)
                torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("mmi_weight", [0.0, 0.7])
def test_the_rank_is_by_the_formula(mmi_weight: float) -> None:
    model = single_precision(*KINDS[0])
    options = SAMPLED.replaced(
        retrieved=5, retrieval_weight=0.6, mmi_weight=mmi_weight, mmi_steps=0, length_penalty=0.8
    )
    for seed in range(5):
        raw, _ = source(seed)
        similarity = {each.tokens: each.similarity for each in retrieved_for(seed, options)}
        for hypothesis in best(model, seed, options):
            value = log_p(model, raw, hypothesis.tokens)
            value -= mmi_weight * log_p(model, nothing()[0], hypothesis.tokens)
            value /= (len(hypothesis.tokens) + 1) ** 0.8
            value += 0.6 * similarity.get(hypothesis.tokens, 0.0)
            if hypothesis.finish == "stop":
                assert hypothesis.rank == pytest.approx(value, rel=1e-4)
            assert hypothesis.retrieved == (hypothesis.tokens in similarity)


@pytest.mark.parametrize("options", [Options(max_new_tokens=8), SAMPLED])
def test_without_retrieved_an_index_changes_nothing(options: Options) -> None:
    model = single_precision(*KINDS[0])
    for seed in range(4):
        engine = Engine(model, MARKS)
        request = engine.submit(*source(seed), options)
        engine.run()
        assert best(model, seed, options) == request.result()
        # nor do training answers that are not similar enough
        none = options.replaced(retrieved=5, min_similarity=1.5)
        tokens = [each.tokens for each in request.result()]
        assert [each.tokens for each in best(model, seed, none)] == tokens


def test_samples_are_drawn_as_without_retrieved_answers() -> None:
    """So that adding training answers can only replace an answer by one that ranks higher."""
    model = single_precision(*KINDS[0])
    for seed in range(6):
        plain = best(model, seed, SAMPLED)
        mixed = best(model, seed, SAMPLED.replaced(retrieved=4))
        own = {each.tokens for each in mixed if not each.retrieved}
        assert own <= {each.tokens for each in plain}
        assert mixed[0].rank >= plain[0].rank - 1e-6


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[6]])
@pytest.mark.parametrize("mmi_steps", [0, 2])
def test_an_answer_alone_is_the_answer_in_a_batch(kind: tuple[str, str], mmi_steps: int) -> None:
    """Near ties included: the logits of this model are equal for many tokens."""
    model = Noisy(single_precision(*kind))
    options = SAMPLED.replaced(
        retrieved=4, retrieval_weight=0.3, mmi_weight=0.5, mmi_steps=mmi_steps
    )
    engine = Engine(model, MARKS, empty_prompt=nothing, retriever=RETRIEVAL, max_rows=200)
    requests = [engine.submit(*source(seed), options) for seed in range(11)]
    engine.run()
    for seed, request in enumerate(requests):
        alone = best(model, seed, options)
        assert answers(request) == [each.tokens for each in alone]
        assert [each.retrieved for each in request.result()] == [each.retrieved for each in alone]


def test_with_a_prefix_nothing_is_retrieved() -> None:
    engine = Engine(single_precision(*KINDS[0]), MARKS, retriever=RETRIEVAL)
    request = engine.submit(*source(1), Options(max_new_tokens=8, **CERTAIN), prefix=(5, 6))
    engine.run()
    (answer,) = request.result()
    assert answer.tokens[:2] == (5, 6) and not answer.retrieved


def test_retrieved_answers_stream_when_the_best_is_known() -> None:
    model = single_precision(*KINDS[0])
    options = Options(max_new_tokens=8, **CERTAIN)
    engine = Engine(model, MARKS, retriever=RETRIEVAL)
    request = engine.submit(*source(2), options, outputs=Outputs(stream=True))
    streamed = [token.token for token in engine.stream(request)]
    assert tuple(streamed[: len(request.result()[0].tokens)]) == request.result()[0].tokens
    assert request.result()[0].retrieved


def test_an_engine_without_training_answers_says_so() -> None:
    engine = Engine(single_precision(*KINDS[0]), MARKS, empty_prompt=nothing)
    with pytest.raises(InputError, match="retrieved needs the training answers") as problem:
        engine.submit(*source(1), Options(retrieved=7))
    assert "got retrieved = 7" in str(problem.value)
    assert "regard train --resume RUN" in str(problem.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retrieved": -1}, "retrieved must be"),
        ({"retrieved": 1025}, "retrieved must be"),
        ({"retrieved": 2.5}, "retrieved must be"),
        ({"retrieval_weight": -0.1}, "retrieval_weight must be"),
        ({"min_similarity": "high"}, "min_similarity must be"),
        ({"retrieved": 3, "num_beams": 2}, "retrieved above 0 needs num_beams = 1"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Options(**changes)
