"""Scores of answers, as pure functions. Heavy libraries are imported when a score is computed.

A score that compares takes (answers, references), in the same order:

    text        references[i] are one or several right texts for answer i; the best one counts
    similarity  the same, for sequences of any tokens; `similarities(a, b)` compares just two
    labels      references[i] is the right class

`Statistic` is a score that has an interval; `text_statistics` has such scores of texts.

Shares, rates and similarities lie in 0..1 (an error rate may exceed 1), BLEU and chrF in 0..100.
"""

from regard.metrics import text_statistics
from regard.metrics.labels import (
    accuracy,
    confusion,
    f1,
    macro_statistics,
    per_class,
    precision,
    recall,
)
from regard.metrics.similarity import (
    best_similarities,
    count_cosine,
    mean_similarities,
    set_jaccard,
    similarities,
    unrestricted_damerau_levenshtein,
)
from regard.metrics.statistics import Statistic, mean, perplexities, ratio, share
from regard.metrics.text import (
    SpokenTexts,
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

# Names of scores, as they are logged. A mean length is neither: it is good when it is that of the
# references.
LOWER_IS_BETTER = frozenset(
    {
        "perplexity",
        "word_perplexity",
        "cer",
        "wer",
        "bland_share",
        "repetition",
        "prompt_copy_share",
        "training_copy_share",
    }
)
HIGHER_IS_BETTER = frozenset(
    {
        "accuracy",
        "accuracy_at_5",
        "precision",
        "recall",
        "f1",
        "exact",
        "bleu",
        "bleu_1",
        "bleu_2",
        "bleu_3",
        "bleu_4",
        "chrf",
        "distinct_1",
        "distinct_2",
        "unique_share",
        "jaccard",
        "cosine",
        "damerau_levenshtein",
        "hits_at_1",
        "mrr",
        "pmi_hits_at_1",
        "pmi_mrr",
    }
)


def better(name: str) -> str | None:
    """Which values of a score are better; None if neither.

    >>> better("wer"), better("chrf"), better("mean_length")
    ('lower', 'higher', None)
    """
    if name in LOWER_IS_BETTER:
        return "lower"
    return "higher" if name in HIGHER_IS_BETTER else None


def is_better(name: str, value: float, other: float) -> bool:
    """Whether a value of a score is better than another.

    >>> is_better("wer", 0.1, 0.2), is_better("chrf", 0.1, 0.2)
    (True, False)
    """
    return value < other if better(name) == "lower" else value > other


__all__ = [
    "HIGHER_IS_BETTER",
    "LOWER_IS_BETTER",
    "SpokenTexts",
    "Statistic",
    "accuracy",
    "best_similarities",
    "better",
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
    "is_better",
    "macro_statistics",
    "mean",
    "mean_length",
    "mean_similarities",
    "per_class",
    "perplexities",
    "perplexity",
    "precision",
    "ratio",
    "recall",
    "repetition",
    "set_jaccard",
    "share",
    "similarities",
    "text_statistics",
    "unique_share",
    "unrestricted_damerau_levenshtein",
    "wer",
    "words",
]
