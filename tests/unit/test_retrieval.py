"""Training answers that are retrieved: BM25, which answers come, and the file in a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import BundleError
from regard.retrieval import EARLIER_WEIGHT, K1, B, Retrieval
from regard.tokenizers import END, OTHER_TURN, SELF_TURN, UNKNOWN
from regard.weights import write_tensors
from tests.retrieving import as_array, random_rows, split_of, tokenizer_of

SIZE = 31
WORDS = 6  # the first token that is a word


def histories(count: int, seed: int) -> list[list[int]]:
    """Histories of one to three turns."""
    turns = random_rows(3 * count, 11, WORDS, SIZE, seed)
    rows = []
    for i in range(count):
        last = [OTHER_TURN, *turns[3 * i]]
        before = [SELF_TURN, *turns[3 * i + 1]]
        first = [OTHER_TURN, *turns[3 * i + 2]]
        rows.append([last, before + last, first + before + last][i % 3])
    return rows


def bm25(query: list[int], document: list[int], documents: list[list[int]]) -> float:
    """BM25 by its definition, one token at a time."""
    mean = sum(map(len, documents)) / len(documents)
    total = 0.0
    for token in set(query):
        frequency = sum(token in other for other in documents)
        idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
        count = document.count(token)
        norm = 1 - B + B * len(document) / mean
        total += idf * count * (K1 + 1) / (count + K1 * norm)
    return total


def turns_of(row: list[int]) -> tuple[list[int], list[int]]:
    start = max(i for i, token in enumerate(row) if token in (OTHER_TURN, SELF_TURN))
    words = [[token for token in part if token >= WORDS] for part in (row[start:], row[:start])]
    return words[0], words[1]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return histories(37, seed=3)


@pytest.fixture(scope="module")
def answers() -> list[list[int]]:
    return random_rows(37, 7, WORDS, SIZE, seed=4)


@pytest.fixture(scope="module")
def retrieval(prompts: list[list[int]], answers: list[list[int]]) -> Retrieval:
    return Retrieval.of(split_of(prompts, answers), tokenizer_of(SIZE, turns=True))


def test_scores_are_those_of_a_triple_loop(prompts: list[list[int]], retrieval: Retrieval) -> None:
    lasts, earliers = zip(*map(turns_of, prompts), strict=True)
    for query in histories(5, seed=8):
        last, earlier = turns_of(query)
        expected = [
            bm25(last, a, list(lasts)) + EARLIER_WEIGHT * bm25(earlier, b, list(earliers))
            for a, b in zip(lasts, earliers, strict=True)
        ]
        scores = retrieval.scores(as_array([*query, END]))
        np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_the_own_prompt_comes_first_with_a_similarity_of_one(
    prompts: list[list[int]], answers: list[list[int]], retrieval: Retrieval
) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        best, second = retrieval.nearest(as_array(prompt), 2, shortest=0, longest=99)
        assert best.tokens == tuple(answer)
        assert best.similarity == pytest.approx(1, rel=1e-6)
        assert second.similarity <= best.similarity


def test_answers_are_distinct_of_the_asked_length_and_in_order(retrieval: Retrieval) -> None:
    for query in histories(5, seed=9):
        found = retrieval.nearest(as_array(query), 11, shortest=2, longest=5)
        similarities = [answer.similarity for answer in found]
        assert similarities == sorted(similarities, reverse=True)
        assert len({answer.tokens for answer in found}) == len(found) > 0
        assert all(2 <= len(answer.tokens) <= 5 for answer in found)
        # fewer are the first of more
        few = retrieval.nearest(as_array(query), 3, shortest=2, longest=5)
        assert few == found[:3]


def test_an_answer_that_is_given_often_comes_once_and_the_first_of_equals_wins() -> None:
    prompts = [[7, 8], [7, 8], [7, 8], [7, 9], [7, 8]]
    answers = [[6, 6], [5], [6, 6], [10], [12, 13]]
    retrieval = Retrieval.of(split_of(prompts, answers), tokenizer_of(SIZE))
    found = retrieval.nearest(as_array([7, 8, END]), 4, shortest=0, longest=9)
    assert [answer.tokens for answer in found] == [(6, 6), (5,), (12, 13), (10,)]


def test_prompts_without_a_word_in_common_are_not_retrieved() -> None:
    retrieval = Retrieval.of(split_of([[7], [8]], [[5], [6]]), tokenizer_of(SIZE))
    assert retrieval.nearest(as_array([9, UNKNOWN, END]), 3, shortest=0, longest=9) == []
    assert retrieval.nearest(as_array([END]), 3, shortest=0, longest=9) == []


def test_answers_with_unknown_words_are_left_out() -> None:
    prompts = [[7], [7, 8], [7, 8, 9]]
    answers = [[UNKNOWN, 5], [6], [5, UNKNOWN]]
    retrieval = Retrieval.of(split_of(prompts, answers), tokenizer_of(SIZE))
    (only,) = retrieval.nearest(as_array([7, 8, 9]), 5, shortest=0, longest=9)
    assert only.tokens == (6,)


def test_saved_and_read_it_finds_the_same(retrieval: Retrieval, tmp_path: Path) -> None:
    file = tmp_path / "retrieval.safetensors"
    write_tensors(file, retrieval.tensors())
    again = Retrieval.read(file, tokenizer_of(SIZE, turns=True))
    for query in histories(5, seed=11):
        kept = retrieval.nearest(as_array(query), 7, shortest=0, longest=9)
        assert again.nearest(as_array(query), 7, shortest=0, longest=9) == kept


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("answers", lambda values: values + SIZE),
        ("ends", lambda values: values + 1),
        ("last_turn.examples", lambda values: values + 37),
        ("earlier_turns.ends", lambda values: values[:-1]),
        ("last_turn.scores", lambda values: values[:-1]),
        ("answers", lambda values: values.float()),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    retrieval: Retrieval, tmp_path: Path, name: str, change: Callable[[Tensor], Tensor]
) -> None:
    file = tmp_path / "retrieval.safetensors"
    content = retrieval.tensors()
    write_tensors(file, content | {name: change(content[name])})
    with pytest.raises(BundleError, match="not those of this run"):
        Retrieval.read(file, tokenizer_of(SIZE, turns=True))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "retrieval.safetensors"
    write_tensors(file, {"weight": torch.zeros(3)})
    with pytest.raises(BundleError, match="not the training answers of a run"):
        Retrieval.read(file, tokenizer_of(SIZE))
