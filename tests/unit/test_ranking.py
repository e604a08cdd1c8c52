"""Ranking the true answer among others: which others compete, and that the scores are those of the
model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax

from regard import build, recipe
from regard.data.corpus import Corpus, Split
from regard.decoders import RecurrentDecoder
from regard.ranking import CANDIDATES, candidate_sets, rank_answers, rank_of_first
from regard.tasks.task import Task
from regard.tokenizers import END, START
from tests.tiny import PAIRS, Silent, memorised, pairs_file

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven"]
ANIMALS = ["cat", "dog", "horse", "goat", "mole", "duck"]
VARIANTS = [
    "chat-attention",
    "chat-lstm",
    "chat-additive",
    "chat-transformer",
    "chat-maclaurin",
    "translate-convolution",
    "translate-attention",
]


def wide_file(folder: Path) -> Path:
    """42 pairs whose replies are of different length."""
    lines = [
        f"Where is the {animal} of {number} ?\tThe {' '.join(NUMBERS[: i + 1])} {animal} .\n"
        for i, number in enumerate(NUMBERS)
        for animal in ANIMALS
    ]
    path = folder / "wide.tsv"
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("ranked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        return build.corpus(recipe.load("chat-gru", settings(wide_file(folder))))


def settings(path: Path, *more: str) -> list[str]:
    small = ("train.steps=1", "encoder.width=24", "tokenizer.kind=words", "tokenizer.min_count=1")
    return memorised(path, *small, *more)


def untrained(name: str, corpus: Corpus, *more: str):
    if name in ("chat-maclaurin", "chat-transformer"):
        more = ("encoder.heads=2", "decoder.heads=2", *more)
    chosen = recipe.load(name, settings(Path("x"), "source.prompt_dropout=0.1", *more))
    torch.manual_seed(3)
    model = build.model(chosen, vocabulary=corpus.tokenizer.size).eval()
    return model, build.task(chosen, corpus.tokenizer)


def log_likelihood(model, task: Task, part: Split, prompt: int | None, answer: int) -> float:
    """log p of an answer and its end token, one position at a time."""
    raw, mask = task.nothing() if prompt is None else task.sources([part.source[prompt]])
    tokens = [START, *part.target[answer].tolist()]
    logits = model(raw, mask, torch.tensor([tokens]))[0]
    total = 0.0
    for scores, token in zip(logits, [*tokens[1:], END], strict=True):
        total += float(log_softmax(scores, 0)[token])
    return total


def rank(scores: list[float]) -> int:
    return 1 + sum(other >= scores[0] for other in scores[1:])


@torch.no_grad()
@pytest.mark.parametrize("name", VARIANTS)
def test_ranks_are_those_of_one_forward_pass_for_each_candidate(name: str, corpus: Corpus):
    model, task = untrained(name, corpus)
    part = corpus.train
    ranking = rank_answers(model, task, part, at_most=5, batch_tokens=200)
    assert ranking.pmi_ranks is not None
    sets = candidate_sets(part, at_most=5)
    assert sets.shape == (5, CANDIDATES) and (ranking.examples == sets[:, 0]).all()
    for members, by_likelihood, by_pmi in zip(sets, ranking.ranks, ranking.pmi_ranks, strict=True):
        given = [log_likelihood(model, task, part, members[0], i) for i in members]
        prior = [log_likelihood(model, task, part, None, i) for i in members]
        lengths = [len(part.target[i]) + 1 for i in members]
        assert by_likelihood == rank([score / n for score, n in zip(given, lengths, strict=True)])
        assert by_pmi == rank([a - b for a, b in zip(given, prior, strict=True)])
    expected = {"hits_at_1", "mrr", "pmi_hits_at_1", "pmi_mrr"}
    assert ranking.statistics.keys() == expected
    assert ranking.statistics["mrr"].value == pytest.approx(np.mean(1 / ranking.ranks))


def test_an_input_that_is_ignored_gives_chance(corpus: Corpus):
    model, task = untrained("chat-lstm", corpus)
    with torch.no_grad():
        assert isinstance(model.decoder, RecurrentDecoder)
        model.decoder.bridge.weight.zero_()  # all that this decoder reads of the memory
    ranking = rank_answers(model, task, corpus.train, candidates=5)
    scores = {name: statistic.value for name, statistic in ranking.statistics.items()}
    assert len(ranking.ranks) == 42
    assert 0 < scores["hits_at_1"] < 0.45  # chance is 0.2
    assert scores["pmi_hits_at_1"] < 0.45


def test_equal_scores_are_lost():
    assert rank_of_first(np.zeros((3, 20))).tolist() == [20] * 3
    assert rank_of_first(np.full((1, 20), np.nan)).tolist() == [20]


@torch.no_grad()
def test_a_constant_model_has_no_hit(corpus: Corpus):
    model, task = untrained("chat-lstm", corpus)
    model.decoder.output.weight.zero_()
    model.decoder.output.bias.zero_()
    ranking = rank_answers(model, task, corpus.train)
    assert ranking.statistics["pmi_hits_at_1"].value == 0


def test_pairs_that_are_known_by_heart_are_always_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from regard.bundle import load
    from regard.train import train

    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = ("train.steps=150", "source.prompt_dropout=0.1")
    chosen = recipe.load("chat-attention", memorised(pairs_file(tmp_path), *changes))
    train(chosen, tmp_path / "run", reporter=Silent())
    bot = load(tmp_path / "run")
    part = build.corpus(bot.recipe, bot.tokenizer).train
    ranking = rank_answers(bot.model, bot.task, part, candidates=len(PAIRS))
    assert {name: score.value for name, score in ranking.statistics.items()} == {
        "hits_at_1": 1,
        "mrr": 1,
        "pmi_hits_at_1": 1,
        "pmi_mrr": 1,
    }


def test_validations_of_chat_log_ranks_and_scores_of_greedy_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from regard.bundle import load
    from regard.train import train

    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    sampled = ("search.do_sample=true", "search.temperature=5.0", "search.top_p=1.0")
    changes = settings(wide_file(tmp_path), "source.prompt_dropout=0.1", *sampled)
    reporter = Silent()
    train(recipe.load("chat-attention", changes), tmp_path / "run", reporter=reporter)
    bot = load(tmp_path / "run")
    part = build.corpus(bot.recipe, bot.tokenizer).train
    ranking = rank_answers(bot.model, bot.task, part, at_most=64)
    for name, statistic in ranking.statistics.items():
        assert reporter.record[name] == pytest.approx(statistic.value)
    greedy = bot.evaluate(split="train", limit=100, greedy=True)
    for name in ("mean_length", "chrf", "distinct_2", "prompt_copy_share"):
        assert reporter.record[name] == pytest.approx(greedy.scores[name])
    sampled_length = bot.evaluate(split="train", limit=100).scores["mean_length"]
    assert sampled_length != pytest.approx(greedy.scores["mean_length"])


def test_without_prompt_dropout_there_is_no_pmi(corpus: Corpus):
    model, task = untrained("chat-lstm", corpus, "source.prompt_dropout=0.0")
    assert rank_answers(model, task, corpus.train, at_most=3).pmi_ranks is None


def test_others_have_another_text_prompt_and_dialogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "same.tsv"
    lines = ["a\tYes .\n", "b\tyes .\n", "a\tNo .\n", "c\tno .\n", "d\tWell .\n", "e\tWhy ?\n"]
    path.write_text("".join(lines), "utf-8")
    part = build.corpus(recipe.load("chat-gru", settings(path))).train
    assert len(part) == 6

    def others(candidates: int, part: Split = part) -> set[int]:
        sets = candidate_sets(part, candidates=candidates)
        return set(sets[sets[:, 0] == 0].ravel().tolist()) - {0}

    assert others(4) == {3, 4, 5}  # not 1, the same words, nor 2, the same prompt
    assert others(5) == set()
    apart = replace(part, dialogues=np.array([0, 1, 2, 3, 0, 4]))
    assert others(3, apart) == {3, 5} and others(4, apart) == set()


def test_sets_follow_from_the_seed_and_the_example(corpus: Corpus):
    part = corpus.train
    few, all_of_them = candidate_sets(part, at_most=7), candidate_sets(part)
    assert few.shape == (7, CANDIDATES) and len(all_of_them) == 42
    assert few.tolist() == [members for members in all_of_them.tolist() if members[0] % 6 == 0]
    pooled = candidate_sets(part, at_most=7, candidates=2)  # drawn from 20 of the 42
    assert set(pooled.ravel().tolist()) <= {i * 42 // 20 for i in range(20)} | set(few[:, 0])
    assert few.tolist() != candidate_sets(part, at_most=7, seed=2).tolist()
    assert all(len(set(members)) == CANDIDATES for members in all_of_them.tolist())
    assert len(candidate_sets(part, candidates=43)) == 0
