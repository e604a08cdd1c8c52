"""Synthetic parallel text: whole numbers and dates in English and German, spelled out.

German says the ones before the tens and writes a number as one word, so a translation has to look
back and forth and cannot be a list of words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from regard.data.examples import Example
from regard.data.lines import Tally

ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
]
TENS = [".", ".", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
EINS = [
    *("null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
    *("zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn"),
    *("achtzehn", "neunzehn"),
]
ZEHNER = [
    *(".", ".", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig"),
    *("achtzig", "neunzig"),
]
MONTHS = [
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
]
MONATE = [
    *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September"),
    *("Oktober", "November", "Dezember"),
]
DAYS = [
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"),
    *("tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth"),
    *("seventeenth", "eighteenth", "nineteenth", "twentieth"),
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
        tens, ones = divmod(number, 10)
        return f"{TENS[tens]}-{ONES[ones]}" if ones else TENS[tens]
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = divmod(number, size)
    if not rest:
        return f"{english(head)} {name}"
    link = " and " if rest < 100 else " "
    return f"{english(head)} {name}{link}{english(rest)}"


def german(number: int, *, last: bool = True) -> str:
    """
    >>> german(342), german(71_001), german(0)
    ('dreihundertzweiundvierzig', 'einundsiebzigtausendeins', 'null')
    """
    if number < 20:
        return "eins" if number == 1 and last else EINS[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{EINS[ones]}und{ZEHNER[tens]}" if ones else ZEHNER[tens]
    size, name = (1000, "tausend") if number >= 1000 else (100, "hundert")
    head, rest = divmod(number, size)
    return german(head, last=False) + name + (german(rest, last=last) if rest else "")


def english_date(day: int, month: int, year: int) -> str:
    """
    >>> english_date(23, 5, 1984), english_date(1, 1, 2005)
    ('the twenty-third of May nineteen eighty-four', 'the first of January two thousand and five')
    """
    return f"the {_english_day(day)} of {MONTHS[month - 1]} {_english_year(year)}"


def _english_day(day: int) -> str:
    if day <= 20:
        return DAYS[day - 1]
    if day == 30:
        return "thirtieth"
    return f"{TENS[day // 10]}-{DAYS[day % 10 - 1]}"


def _english_year(year: int) -> str:
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return english(year)
    if rest >= 10:
        return f"{english(century)} {english(rest)}"
    return f"{english(century)} {f'oh {ONES[rest]}' if rest else 'hundred'}"


def german_date(day: int, month: int, year: int) -> str:
    """
    >>> german_date(23, 5, 1984), german_date(1, 1, 2005)
    ('der 23. Mai neunzehnhundertvierundachtzig', 'der 1. Januar zweitausendfünf')
    """
    return f"der {day}. {MONATE[month - 1]} {_german_year(year)}"


def _german_year(year: int) -> str:
    if year >= 2000:
        return german(year)
    century, rest = divmod(year, 100)
    return f"{german(century)}hundert{german(rest) if rest else ''}"


def read_spelled(*, count: int, seed: int, tally: Tally) -> Iterator[Example]:
    """`count` different pairs, the same for the same seed: three numbers below a million for
    every two dates."""
    draw = random.Random(seed)
    sources: set[str] = set()
    while len(sources) < count:
        example = _drawn(draw)
        if example.source not in sources:
            sources.add(str(example.source))
            tally.used += 1
            yield example


def _drawn(draw: random.Random) -> Example:
    if draw.random() < 0.6:
        number = int(10 ** draw.uniform(0, 6)) - 1  # as many of one digit as of six
        return Example(english(number), german(number))
    month = draw.randrange(12)
    day = draw.randint(1, LONGEST_MONTHS[month])
    year = draw.randint(1500, 2099)
    return Example(english_date(day, month + 1, year), german_date(day, month + 1, year))
