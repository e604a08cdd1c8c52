"""Scores of classification (scikit-learn): accuracy, precision, recall, F1, confusion matrix.

Precision, recall and F1 are macro averages: the mean over classes, so that a rare class counts as
much as a common one. A class that is never answered has precision 0, one without a right answer
has recall 0. The classes are those that occur in answers or references, unless `classes` names
them; give it if the data may miss one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from regard.errors import InputError
from regard.metrics.statistics import Statistic

Labels = Sequence[Hashable]
MOST_CLASSES = 100  # for which counts are resampled


def accuracy(answers: Labels, references: Labels) -> float:
    """Share of right answers.

    >>> accuracy(["cat", "dog", "dog", "cat"], ["cat", "dog", "cat", "cat"])
    0.75
    """
    from sklearn.metrics import accuracy_score

    _, predicted, right = _numbered(answers, references, None, "accuracy")
    return float(accuracy_score(right, predicted))


def precision(answers: Labels, references: Labels, *, classes: Labels | None = None) -> float:
    """Of the answers that name a class, the share that is right; mean over classes.

    >>> precision(["cat", "dog", "dog", "cat"], ["cat", "dog", "cat", "cat"])
    0.75
    """
    return _macro(answers, references, classes, "precision")


def recall(answers: Labels, references: Labels, *, classes: Labels | None = None) -> float:
    """Of the examples of a class, the share that is found; mean over classes.

    >>> round(recall(["cat", "dog", "dog", "cat"], ["cat", "dog", "cat", "cat"]), 4)
    0.8333
    """
    return _macro(answers, references, classes, "recall")


def f1(answers: Labels, references: Labels, *, classes: Labels | None = None) -> float:
    """The harmonic mean of precision and recall of a class; mean over classes.

    >>> round(f1(["cat", "dog", "dog", "cat"], ["cat", "dog", "cat", "cat"]), 4)
    0.7333
    """
    return _macro(answers, references, classes, "f1")


def macro_statistics(
    answers: Labels, references: Labels, *, classes: Labels | None = None
) -> dict[str, Statistic]:
    """Precision, recall and F1, each with an interval; none for more than MOST_CLASSES classes.
    The mean is over classes that occur. With the same `classes`, statistics of other answers have
    the same sums.

    >>> scores = macro_statistics(["cat", "dog", "dog", "cat"], ["cat", "dog", "cat", "cat"])
    >>> {name: round(score.value, 4) for name, score in scores.items()}
    {'precision': 0.75, 'recall': 0.8333, 'f1': 0.7333}
    """
    known, predicted, right = _numbered(answers, references, classes, "macro_statistics")
    if len(known) > MOST_CLASSES:
        return {}
    one_hot = np.eye(len(known))
    of_answers, of_references = one_hot[predicted], one_hot[right]
    rows = np.concatenate([of_answers * of_references, of_answers, of_references], axis=1)

    def macro(ratios: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Statistic:
        def score(sums: np.ndarray) -> float:
            hits, answered, actual = np.split(sums, 3)
            occurs = answered + actual > 0  # a resample may miss a class
            return float(ratios(hits, answered, actual)[occurs].mean())

        return Statistic(rows, score)

    return {
        "precision": macro(lambda hits, answered, actual: hits / np.maximum(answered, 1)),
        "recall": macro(lambda hits, answered, actual: hits / np.maximum(actual, 1)),
        "f1": macro(lambda hits, answered, actual: 2 * hits / np.maximum(answered + actual, 1)),
    }


def per_class(
    answers: Labels, references: Labels, *, classes: Labels | None = None
) -> dict[Hashable, dict[str, float | int]]:
    """Precision, recall and F1 of each class, and how many examples it has.

    >>> per_class(["cat", "dog"], ["cat", "cat"])["cat"]
    {'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666, 'examples': 2}
    """
    return _scores(answers, references, classes, "per_class")


def confusion(
    answers: Labels, references: Labels, *, classes: Labels | None = None
) -> dict[str, list[Any]]:
    """How often the class of a row was answered with the class of a column; both in the order of
    "classes".

    >>> confusion(["cat", "dog", "dog"], ["cat", "dog", "cat"])
    {'classes': ['cat', 'dog'], 'counts': [[1, 1], [0, 1]]}
    """
    from sklearn.metrics import confusion_matrix

    known, predicted, right = _numbered(answers, references, classes, "confusion")
    return {
        "classes": known,
        "counts": confusion_matrix(right, predicted, labels=range(len(known))).tolist(),
    }


def _macro(answers: Labels, references: Labels, classes: Labels | None, name: str) -> float:
    values = [scores[name] for scores in _scores(answers, references, classes, name).values()]
    return sum(values) / len(values)


def _scores(
    answers: Labels, references: Labels, classes: Labels | None, where: str
) -> dict[Hashable, dict[str, float | int]]:
    from sklearn.metrics import precision_recall_fscore_support

    known, predicted, right = _numbered(answers, references, classes, where)
    nothing: Any = 0  # the value of an empty ratio, which scikit-learn's types do not allow
    columns: Any = precision_recall_fscore_support(
        right, predicted, labels=range(len(known)), zero_division=nothing
    )
    return {
        label: {"precision": float(p), "recall": float(r), "f1": float(f), "examples": int(count)}
        for label, p, r, f, count in zip(known, *columns, strict=True)
    }


def _numbered(
    answers: Labels, references: Labels, classes: Labels | None, where: str
) -> tuple[list[Hashable], list[int], list[int]]:
    """The classes, and answers and references as their places among them."""
    if isinstance(answers, str) or isinstance(references, str):
        raise InputError(
            "needs a list of classes", where=where, got="one text", hint="put it in a list"
        )
    if len(answers) != len(references):
        got = f"{len(answers)} answers, {len(references)} references"
        raise InputError("every answer needs one reference", where=where, got=got)
    if not len(answers):
        raise InputError("needs at least one answer", where=where, got="none")
    known = _ordered({*answers, *references}) if classes is None else list(classes)
    place = {label: i for i, label in enumerate(known)}
    if len(place) < len(known):
        raise InputError("a class is named twice", where=where, got=", ".join(map(repr, known)))
    try:
        return known, [place[label] for label in answers], [place[label] for label in references]
    except KeyError as unknown:
        hint = "classes: " + ", ".join(map(repr, known))
        raise InputError(
            "not one of the classes", where=where, got=repr(unknown.args[0]), hint=hint
        ) from None


def _ordered(labels: set[Any]) -> list[Hashable]:
    try:
        return sorted(labels)
    except TypeError:  # of different kinds
        return sorted(labels, key=repr)
