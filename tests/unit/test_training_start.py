"""A training starts as fast on a large corpus as on a small one: it reads few of its examples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from regard import build, recipe
from regard.data.corpus import COLUMNS, TOKENS, Corpus, Form, Split
from regard.data.lines import Tally
from regard.data.ragged import RaggedArray, RaggedArrayWriter
from regard.evaluate import clusters_of, questions
from regard.tokenizers import Words
from regard.train.validation import READ, SAMPLES, Validation

ROWS = 3 * READ + 5


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often texts of a split are read."""
    count: Counter[str] = Counter()
    for name in ("texts", "source_name"):
        real = getattr(Split, name)

        def counting(split: Split, index: int, name: str = name, real=real):
            count[name] += 1
            return real(split, index)

        monkeypatch.setattr(Split, name, counting)
    return count


def numbered(folder: Path, rows: int, form: Form = TOKENS) -> Split:
    """Examples whose prompts are their numbers, and whose answers are the number mod 7."""
    folder.mkdir()
    texts = {
        "source-text": [f"{i}" for i in range(rows)],
        "target-text": [f"{i % 7}" for i in range(rows)],
    }
    for column, dtype in COLUMNS.items():
        if column == "source":
            dtype = form.dtype
        with RaggedArrayWriter(folder / f"train-{column}", dtype) as writer:
            if column in texts:
                values = np.frombuffer("".join(texts[column]).encode(), np.uint8)
                writer.append(values, np.array([len(text) for text in texts[column]]))
            else:
                writer.append(np.full(rows, 5, dtype), np.ones(rows, np.int64))
    return Split.open(folder, "train", form)


def corpus_of(train: Split, valid: Split) -> Corpus:
    tokenizer = Words.fit(iter(["0 1 2 3 4 5 6"]), size=20, min_count=1)
    frequency = np.zeros(tokenizer.size, np.int64)
    return Corpus(train, valid, valid, tokenizer, Tally(), frequency, "")


@pytest.mark.parametrize("held_out", [False, True])
def test_a_validation_reads_a_bounded_number_of_examples(tmp_path, reads, held_out):
    large = numbered(tmp_path / "large", ROWS)
    few = large.select(np.arange(3 if held_out else 0))
    corpus = corpus_of(few, large) if held_out else corpus_of(large, few)
    chosen = recipe.load("chat-gru")
    task = build.task(chosen, corpus.tokenizer)
    validation = Validation(chosen, task, corpus)
    assert validation.is_held_out == held_out
    assert reads["texts"] <= READ
    assert reads["source_name"] <= 2 * READ  # `texts` reads it too
    numbers = [question.examples[0] for question in validation._questions]
    assert len(numbers) == task.judged and numbers == sorted(numbers)
    assert numbers[0] == 0 and numbers[-1] > 0.98 * ROWS
    assert len(validation._samples) == SAMPLES


def test_a_validation_holds_nothing_as_large_as_the_corpus(tmp_path, monkeypatch):
    """Its scores are of few examples if nothing is held out."""
    large = numbered(tmp_path / "large", ROWS)
    corpus = corpus_of(large, large.select(np.arange(0)))
    chosen = recipe.load("chat-gru", ["encoder.width=8", "search.max_new_tokens=2"])
    task = build.task(chosen, corpus.tokenizer)
    model = build.model(chosen, vocabulary=corpus.tokenizer.size)
    validation = Validation(chosen, task, corpus)
    sizes: list[int] = []
    for kind in (RaggedArray, type(large.target.select(np.arange(1)))):
        real = kind.lengths.fget
        assert real is not None

        def counting(rows: RaggedArray, real=real) -> np.ndarray:
            sizes.append(len(rows))
            return real(rows)

        monkeypatch.setattr(kind, "lengths", property(counting))
    numbers = validation.scores(model.eval(), tmp_path, between=lambda: None).numbers
    assert numbers["perplexity"] > 1
    assert sizes and max(sizes) <= READ


def test_few_inputs_of_many_that_are_no_texts(tmp_path, reads):
    sounds = numbered(tmp_path / "sounds", ROWS, Form(np.int16))
    chosen = questions(
        sounds,
        task=build.task(recipe.load("chat-gru"), corpus_of(sounds, sounds).tokenizer),
        at_most=4,
    )
    assert [question.shown for question in chosen] == [str(i * ROWS // 4) for i in range(4)]
    assert [question.references for question in chosen] == [
        [str(i * ROWS // 4 % 7)] for i in range(4)
    ]
    assert reads["texts"] == 4


def test_rows_are_spread_and_the_others_are_no_references(tmp_path):
    split = numbered(tmp_path / "rows", 101)
    chosen = recipe.load("chat-gru")
    task = build.task(chosen, corpus_of(split, split).tokenizer)
    prompts = questions(split, task, rows=10)
    assert [question.examples for question in prompts] == [[i * 101 // 10] for i in range(10)]
    assert [question.cluster for question in prompts] == [i * 101 // 10 for i in range(10)]
    assert questions(split, task, rows=200) == questions(split, task)


def test_rows_of_selected_rows(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    lengths = np.array([3, 1, 4, 1, 5, 9, 2, 6])
    with RaggedArrayWriter(folder / "rows", np.int32) as writer:
        writer.append(np.arange(lengths.sum()), lengths)

    rows = RaggedArray(folder / "rows", np.int32).select(np.array([7, 2, 5, 0]))
    some = rows.select(np.array([2, 0]))
    assert some.lengths.tolist() == [9, 6]
    assert [len(row) for row in some] == [9, 6]


def test_clusters_of_some_examples(tmp_path):
    split = numbered(tmp_path / "rows", 11)
    index = np.array([2, 7, 5])
    assert clusters_of(split, index).tolist() == clusters_of(split)[index].tolist()
