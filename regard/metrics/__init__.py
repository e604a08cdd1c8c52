"""Scores of answers, as pure functions; no torch here, and nothing heavy before it is called.

A score that compares takes (answers, references), in the same order:

    text        references[i] are the right texts for answer i, one or several; the best of them counts
    similarity  the same, for sequences of any tokens; `similarities(a, b)` compares just two
    labels      references[i] is the right class

Shares, rates and similarities lie in 0..1 (an error rate may exceed 1), BLEU and chrF in 0..100.
"""

from regard.metrics.labels import accuracy, confusion, f1, per_class, precision, recall
from regard.metrics.similarity import (
    count_cosine,
    mean_similarities,
    set_jaccard,
    similarities,
    unrestricted_damerau_levenshtein,
)
from regard.metrics.text import (
    bland_share,
    bleu,
    bleus,
    cer,
    chrf,
    distinct,
    exact_share,
    mean_length,
    perplexity,
    repetition,
    unique_share,
    wer,
    words,
)

LOWER_IS_BETTER = frozenset({"perplexity", "cer", "wer"})  # names of scores, as they are logged

__all__ = [
    "LOWER_IS_BETTER",
    "accuracy",
    "bland_share",
    "bleu",
    "bleus",
    "cer",
    "chrf",
    "confusion",
    "count_cosine",
    "distinct",
    "exact_share",
    "f1",
    "mean_length",
    "mean_similarities",
    "per_class",
    "perplexity",
    "precision",
    "recall",
    "repetition",
    "set_jaccard",
    "similarities",
    "unique_share",
    "unrestricted_damerau_levenshtein",
    "wer",
    "words",
]
