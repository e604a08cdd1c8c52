"""How alike two sequences are: the three similarities of the speech coursework, and what textbooks
mean by their names.

With a and b the lengths and I the size of the multiset intersection (each token as often as both
have it):

    jaccard              I / (a + b - I)                 over multisets
    cosine               I / sqrt(a b)                   Ochiai's coefficient over multisets
    damerau_levenshtein  1 - OSA / max(a, b)             OSA: optimal string alignment distance

The first two ignore order: a shuffled answer scores 1, and a fixed string with the right histogram
scores high. So damerau_levenshtein <= cosine and jaccard <= cosine always, and neither says much
without an error rate beside it. The coursework counted the start and the stop mark as tokens: add
them to compare with it.

Sequences are strings (of characters), lists or tuples of anything hashable; tokens are the same
when they are equal. Two empty sequences are alike (1), an empty one and another are not (0).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

from regard.errors import InputError
from regard.metrics.text import paired

Tokens = Sequence[Hashable]


def similarities(a: Tokens, b: Tokens) -> dict[str, float]:
    """Jaccard, cosine and Damerau-Levenshtein similarity, as at the top of this file.

    >>> {name: round(value, 4) for name, value in similarities("aaab", "ab").items()}
    {'jaccard': 0.5, 'cosine': 0.7071, 'damerau_levenshtein': 0.5}
    """
    from rapidfuzz.distance import OSA

    a, b = _comparable(a, b, "similarities")
    if not a or not b:
        return dict.fromkeys(("jaccard", "cosine", "damerau_levenshtein"), float(len(a) == len(b)))
    shared = (Counter(a) & Counter(b)).total()
    longest = max(len(a), len(b))
    return {
        "jaccard": shared / (len(a) + len(b) - shared),
        "cosine": shared / math.sqrt(len(a) * len(b)),
        "damerau_levenshtein": (longest - OSA.distance(a, b)) / longest,
    }


def mean_similarities(
    answers: Sequence[Tokens], references: Sequence[Sequence[Tokens]]
) -> dict[str, float]:
    """The mean of each of the `similarities` over all answers; of several references the best, for
    each of the three.

    >>> mean_similarities(["ab", "cd"], [["ba"], ["xy", "cd"]])
    {'jaccard': 1.0, 'cosine': 1.0, 'damerau_levenshtein': 0.75}
    """
    best = best_similarities(answers, references)
    return {name: sum(values) / len(values) for name, values in best.items()}


def best_similarities(
    answers: Sequence[Tokens], references: Sequence[Sequence[Tokens]]
) -> dict[str, list[float]]:
    """Each of the `similarities` of each answer; of several references the best."""
    rows = [
        [similarities(answer, reference) for reference in group]
        for answer, group in paired(answers, references, "mean_similarities")
    ]
    return {name: [max(scores[name] for scores in row) for row in rows] for name in rows[0][0]}


def set_jaccard(a: Tokens, b: Tokens) -> float:
    """Jaccard's index of the textbooks: shared tokens / all tokens, however often each occurs.

    >>> set_jaccard("aaab", "ab")
    1.0
    """
    a, b = _comparable(a, b, "set_jaccard")
    return len(set(a) & set(b)) / len(set(a) | set(b)) if a or b else 1.0


def count_cosine(a: Tokens, b: Tokens) -> float:
    """The cosine of the textbooks, between the two vectors of counts: their lengths do not matter,
    only directions.

    >>> round(count_cosine("aaab", "ab"), 4), count_cosine("aabb", "ab")
    (0.8944, 1.0)
    """
    a, b = _comparable(a, b, "count_cosine")
    if not a or not b:
        return float(len(a) == len(b))
    left, right = Counter(a), Counter(b)
    product = sum(count * right[token] for token, count in left.items())
    squares = math.prod(sum(count * count for count in side.values()) for side in (left, right))
    return product / math.sqrt(squares)


def unrestricted_damerau_levenshtein(a: Tokens, b: Tokens) -> float:
    """1 - distance / max(a, b) with the true Damerau-Levenshtein distance, which may edit between
    two swapped tokens.

    >>> restricted = similarities("ca", "abc")["damerau_levenshtein"]
    >>> unrestricted_damerau_levenshtein("ca", "abc") > restricted
    True
    """
    from rapidfuzz.distance import DamerauLevenshtein

    a, b = _comparable(a, b, "unrestricted_damerau_levenshtein")
    longest = max(len(a), len(b))
    return (longest - DamerauLevenshtein.distance(a, b)) / longest if longest else 1.0


def _comparable(a: Tokens, b: Tokens, where: str) -> tuple[Tokens, Tokens]:
    """Both as strings, or with their tokens numbered: rapidfuzz takes 97 for "a", and -1.0 for
    -2.0 (equal hashes)."""
    for side in (a, b):
        if not isinstance(side, Sequence):  # the elements of a tensor are never equal as keys
            hint = "give strings, lists or tuples; .tolist() makes a list of an array"
            raise InputError("needs two sequences", where=where, got=type(side).__name__, hint=hint)
    if isinstance(a, str) and isinstance(b, str):
        return a, b
    numbers: dict[Hashable, int] = {}
    try:
        first, second = (
            [numbers.setdefault(token, len(numbers)) for token in side] for side in (a, b)
        )
    except TypeError as problem:
        raise InputError("every token must be hashable", where=where, got=str(problem)) from None
    return first, second
