"""Texts in two languages: two files that go line by line, and a set that the program makes itself.

The made one is English and German: whole numbers and dates, spelled out. German says the ones
before the tens and writes a number as one word, so a translation has to look back and forth and
cannot be a list of words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import Tally, read_lines
from regard.data.readers import checked, tidy, usable
from regard.errors import DataError


def read_parallel(
    source: Path | str, target: Path | str, *, tally: Tally, limit: float = 0.5
) -> Iterator[Example]:
    """Line i of one file is the translation of line i of the other; both may be gzipped. Files
    of different length are refused: from the first missing line on, all would be wrong."""
    paths = [Path(source), Path(target)]
    for path in paths:
        if not path.is_file():
            raise DataError("no such file", where=path)

    def examples() -> Iterator[Example]:
        for pair in zip_longest(*(_whole_lines(path, tally) for path in paths)):
            if None in pair:
                counts = [sum(1 for _ in _whole_lines(path, Tally())) for path in paths]
                raise DataError(
                    "the files do not go line by line",
                    where=f"{paths[0]} and {paths[1]}",
                    got=f"{counts[0]:,} and {counts[1]:,} lines",
                )
            yield from usable(Example(*map(tidy, pair)), tally)

    return checked(examples(), paths[0], tally, limit=limit)


def _whole_lines(path: Path, tally: Tally) -> Iterator[str]:
    """Every line: one that is too long would be skipped, and all after it would have the wrong
    partner."""
    skipped = tally.skipped["line too long"]
    for line in read_lines(path, tally):
        if tally.skipped["line too long"] > skipped:
            raise DataError("a line is too long to be a sentence", where=path)
        yield line


# -- made-------------------------------------------------------------------------------------------

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = [".", ".", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
EINS = [
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
ZEHNER = [
    ".",
    ".",
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
MONATE = [
    "Januar",
    "Februar",
    "März",
    "April",
    "Mai",
    "Juni",
    "Juli",
    "August",
    "September",
    "Oktober",
    "November",
    "Dezember",
]
DAYS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
    "twentieth",
]
LONGEST_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def english(number: int) -> str:
    """
    >>> english(342), english(70_016), english(0)
    ('three hundred and forty-two', 'seventy thousand and sixteen', 'zero')
    """
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = divmod(number, size)
    link = "" if not rest else f" and {english(rest)}" if rest < 100 else f" {english(rest)}"
    return f"{english(head)} {name}{link}"


def german(number: int, *, last: bool = True) -> str:
    """
    >>> german(342), german(71_001), german(0)
    ('dreihundertzweiundvierzig', 'einundsiebzigtausendeins', 'null')
    """
    if number < 20:
        return "eins" if number == 1 and last else EINS[number]
    if number < 100:
        ones, tens = number % 10, ZEHNER[number // 10]
        return f"{EINS[ones]}und{tens}" if ones else tens
    size, name = (1000, "tausend") if number >= 1000 else (100, "hundert")
    head, rest = divmod(number, size)
    return german(head, last=False) + name + (german(rest, last=last) if rest else "")


def english_date(day: int, month: int, year: int) -> str:
    """
    >>> english_date(23, 5, 1984), english_date(1, 1, 2005)
    ('the twenty-third of May nineteen eighty-four', 'the first of January two thousand and five')
    """
    said = (
        DAYS[day - 1]
        if day <= 20
        else "thirtieth"
        if day == 30
        else f"{TENS[day // 10]}-{DAYS[day % 10 - 1]}"
    )
    century, rest = divmod(year, 100)
    if year >= 2000 and year < 2010:
        told = english(year)
    elif rest >= 10:
        told = f"{english(century)} {english(rest)}"
    else:
        told = f"{english(century)} {f'oh {ONES[rest]}' if rest else 'hundred'}"
    return f"the {said} of {MONTHS[month - 1]} {told}"


def german_date(day: int, month: int, year: int) -> str:
    """
    >>> german_date(23, 5, 1984), german_date(1, 1, 2005)
    ('der 23. Mai neunzehnhundertvierundachtzig', 'der 1. Januar zweitausendfünf')
    """
    century, rest = divmod(year, 100)
    told = (
        german(year) if year >= 2000 else f"{german(century)}hundert{german(rest) if rest else ''}"
    )
    return f"der {day}. {MONATE[month - 1]} {told}"


def read_made(*, count: int, seed: int, tally: Tally) -> Iterator[Example]:
    """`count` different pairs, the same for the same seed: three numbers below a million for
    every two dates."""
    draw, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        if draw.random() < 0.6:
            number = int(10 ** draw.uniform(0, 6)) - 1  # as many of one digit as of six
            pair = english(number), german(number)
        else:
            month = draw.randrange(12)
            day, year = draw.randint(1, LONGEST_MONTHS[month]), draw.randint(1500, 2099)
            pair = english_date(day, month + 1, year), german_date(day, month + 1, year)
        if pair[0] not in seen:
            seen.add(pair[0])
            tally.used += 1
            yield Example(*pair)
