"""What a column of a table holds: texts, labels, ids, numbers, dates, names of files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from regard.data.roles import ID_NAMES, LABEL_LIKE, PICTURES, SOUNDS, Holds

LABELS = 30  # at most so many different short answers, each given often, are labels and not replies
LABEL_WORDS = 3
NESTED = "\0"  # what stands for a list or an object among the cells of a sample

_WHOLE = re.compile(r"[+-]?\d{1,18}")
# Each digit has one way to match: with an optional separator, long cells would take for ever.
_NUMBER = re.compile(r"[+-]?[$€£]? ?\d+(?:[.,' ]\d+)*(?:[eE][+-]?\d+)? ?[%€$£]?")
_UUID = re.compile(
    r"\{?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?"
    r"|(?=[a-fA-F]*\d)[0-9a-fA-F]{8,64}"
)
_CODE = re.compile(
    r"[A-Za-z]{1,12}[-_.:/#]?\d[\w.:/#-]*|(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z\d_-]{6,}"
)
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[ap]\.?m\.?)?"
_MONTH = r"(?:jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zä]{0,6}\.?"
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]\d{1,2}:\d{2}.{0,20})?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}(?: \d{1,2}:\d{2}.{0,9})?"
    rf"|(?i:{_CLOCK})"
    rf"|(?i:(?:[a-z]{{2,9}}\.?,? )?{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?"
    rf"(?:,? {_CLOCK}.{{0,12}})?)"
    rf"|(?i:(?:[a-z]{{2,9}}\.?,? )?\d{{1,2}}(?:st|nd|rd|th|\.)?[ -]{_MONTH}(?:,?[ -]\d{{4}})?"
    rf"(?:,? {_CLOCK}.{{0,12}})?)"
)
_ADDRESS = re.compile(r"(?:https?|ftp|s3)://\S+|www\.\S+|[\w.+-]+@[\w-]+\.[\w.]+")
_COORDINATES = re.compile(r"\(?[+-]?\d{1,3}\.\d+°?\s?[NS]?[,; ]\s?[+-]?\d{1,3}\.\d+°?\s?[EW]?\)?")
_PHONE = re.compile(r"(?=\+|.*[()/-])\+?\(?\d[\d ()/.-]{5,18}\d")
_OBJECT = re.compile(r"\{\s*(?:[\"'].*)?\}|\[\s*(?:[\[{\"'\d-].*)?\]", re.DOTALL)

_SHAPES = {
    "date": _DATE,
    "whole": _WHOLE,
    "uuid": _UUID,
    "phone": _PHONE,
    "number": _NUMBER,
    "coordinates": _COORDINATES,
    "address": _ADDRESS,
    "object": _OBJECT,
}


def shape_of(values: Iterable[str]) -> str | None:
    """What all values are by their letters alone, nearly without exception; None: words.

    >>> [shape_of([value]) for value in ("484e010b37732982", "05:30 pm", "Jan 6 2020", "Who?")]
    ['uuid', 'date', 'date', None]
    >>> shape_of(["+49 30 1234567"]), shape_of(["52.52, 13.40"]), shape_of(['{"a": 1}'])
    ('phone', 'coordinates', 'object')
    """
    values = list(values)
    most = 0.95 * len(values)
    for shape, pattern in _SHAPES.items():
        if sum(pattern.fullmatch(value) is not None for value in values) >= most:
            return shape
    for shape, suffixes in (("picture", PICTURES), ("sound", SOUNDS)):
        count = sum(value[-8:].lower().endswith(tuple(suffixes)) for value in values)
        if count >= 0.8 * len(values):
            return shape
    return None


def content_of(values: Iterable[str], name: str = "") -> Holds:
    """What a column holds.

    >>> content_of("123"), content_of("51424")
    ('id', 'label')
    >>> content_of(["a5", "a7", "b1"]), content_of(["Who?", "Me."])
    ('id', 'text')
    """
    values = list(values)
    if not values:
        return "empty"
    if all(value == NESTED for value in values):
        return "nested"
    shape = shape_of(values)
    if shape == "picture" or shape == "sound" or shape == "date":
        return shape
    if shape in ("uuid", "address", "phone"):
        return "id"
    if shape == "object":
        return "nested"
    if shape == "coordinates":
        return "number"
    different = len(set(values))
    if shape in ("whole", "number"):
        return _numbers(values, name, whole=shape == "whole")
    is_code = sum(_CODE.fullmatch(value) is not None for value in values) >= 0.95 * len(values)
    if is_code and len(values) >= 3 and different == len(values):
        return "id"
    if different == 1 and len(values) >= 5:
        return "constant"
    return "label" if are_labels(values, name) else "text"


def _numbers(values: list[str], name: str, *, whole: bool) -> Holds:
    """Ids are all different and many, in order, or called so. Labels are few, and repeat."""
    different = len(set(values))
    if name.lower() in LABEL_LIKE:
        return "label" if different <= LABELS else "number"
    if whole and different == len(values) > 1:
        numbers = [int(value) for value in values]
        is_running = len(numbers) >= 3 and all(a < b for a, b in pairwise(numbers))
        if is_running or len(values) >= 10 or ID_NAMES.fullmatch(name):
            return "id"
    if ID_NAMES.fullmatch(name) and 2 * different > len(values):
        return "id"
    if whole and len(values) < 20 and all(abs(int(value)) <= 10 for value in values):
        return "label"
    return "label" if different <= LABELS and 2 * different <= len(values) else "number"


def are_labels(answers: Iterable[str], name: str = "") -> bool:
    """Few different ones, none of them long, each given again and again; below a name that says
    so, any that repeat.

    >>> are_labels(["good", "bad"] * 5)
    True
    >>> are_labels(["Yes.", "No.", "Where have you been all the time?", "Yes."])
    False
    """
    answers = list(answers)
    different = set(answers)
    if any(len(answer.split()) > LABEL_WORDS for answer in different):
        return False
    if name.lower() in LABEL_LIKE:
        return len(different) < len(answers)
    return 2 <= len(different) <= min(LABELS, len(answers) / 5)


def may_be_labels(answers: Iterable[str]) -> bool:
    """Whether nothing speaks against labels: short ones, of which, if there are more than a few,
    at most every second is new."""
    answers = list(answers)
    different = set(answers)
    short = all(len(answer.split()) <= LABEL_WORDS for answer in different)
    return short and (len(answers) < 10 or 2 * len(different) <= len(answers))


def median_words(values: Iterable[str]) -> float:
    counts = [len(value.split()) for value in values]
    return median(counts) if counts else 0.0
