"""Scores of texts that are functions of sums over examples, each as a `Statistic`.

A function has the name of the function in `regard.metrics.text` whose result is its `value`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from regard.metrics import text
from regard.metrics.statistics import Statistic, mean, ratio, share


def bland_share(texts: Sequence[str]) -> Statistic:
    """Share of texts that say nothing but "I don't know"."""
    return share([text.is_bland(answer) for answer in texts])


def repetition(texts: Sequence[str]) -> Statistic:
    """Share of texts that repeat themselves."""
    return share([text.repeats(answer) for answer in texts])


def mean_length(texts: Sequence[str]) -> Statistic:
    """Words (and marks) per text."""
    return mean([len(text.words(answer)) for answer in texts])


def prompt_copy_share(answers: Sequence[str], prompts: Sequence[str]) -> Statistic:
    """Share of answers that only repeat a part of their prompt: their words, three at least, stand
    in it as one run."""
    pairs = zip(answers, prompts, strict=True)
    return share([text.is_prompt_copy(answer, prompt) for answer, prompt in pairs])


def training_copy_share(answers: Sequence[str], training: Container[str]) -> Statistic:
    """Share of answers that have exactly the words of a training answer (`SpokenTexts`)."""
    return share([answer in training for answer in answers])


def exact_share(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Statistic:
    """Share of answers that are one of their references."""
    pairs = text.paired(answers, references, "exact_share")
    return share([text.is_exact(answer, group) for answer, group in pairs])


def wer(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Statistic:
    """Word error rate."""
    lines, closest = text.nearest(answers, references, "wer", str.split)
    return _error_rate([line.split() for line in lines], [line.split() for line in closest])


def cer(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Statistic:
    """Character error rate."""
    return _error_rate(*text.nearest(answers, references, "cer", str))


def _error_rate(answers: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Statistic:
    from rapidfuzz.distance import Levenshtein

    pairs = zip(references, answers, strict=True)
    errors = [Levenshtein.distance(reference, answer) for reference, answer in pairs]
    return ratio(errors, [len(reference) for reference in references])


def bleus(
    answers: Sequence[str],
    references: Sequence[Sequence[str]],
    orders: Sequence[int] = (1, 2, 3, 4),
) -> dict[str, Statistic]:
    """BLEU-n by its name, as bleu_4, for several n. The n-grams are counted once for all."""
    from sacrebleu.metrics import BLEU

    max_order = max(orders)
    metric = BLEU(max_ngram_order=max_order, force=True)
    rows = _sentence_rows(metric, answers, text.streams(answers, references, "bleu"))

    def score_of(order: int) -> Callable[[np.ndarray], float]:
        def score(sums: np.ndarray) -> float:
            sizes, correct, total = np.split(sums.astype(np.int64), [2, 2 + max_order])
            return metric.compute_bleu(
                correct=correct[:order].tolist(),
                total=total[:order].tolist(),
                sys_len=int(sizes[0]),
                ref_len=int(sizes[1]),
                smooth_method=metric.smooth_method,
                max_ngram_order=order,
            ).score

        return score

    return {f"bleu_{order}": Statistic(rows, score_of(order)) for order in orders}


def bleu(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Statistic:
    """BLEU-4."""
    return bleus(answers, references, orders=[4])["bleu_4"]


def chrf(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Statistic:
    """chrF2."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    rows = _sentence_rows(metric, answers, text.streams(answers, references, "chrf"))
    return Statistic(rows, lambda sums: metric._compute_f_score(sums.tolist()))


def _sentence_rows(metric: Any, answers: Sequence[str], streams: list[Any]) -> np.ndarray:
    """(n, k): the counts of each sentence that sacrebleu adds up for a corpus. It resamples them
    itself, but by example and not by cluster, so they have no public name."""
    return np.array(metric._extract_corpus_statistics(list(answers), streams), np.float64)
