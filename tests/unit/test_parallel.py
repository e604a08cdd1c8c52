"""Two files that go line by line, and the synthetic pairs."""

import gzip
from pathlib import Path

import pytest

from regard.data.examples import Example
from regard.data.lines import Tally
from regard.data.parallel import read_parallel
from regard.data.spelled import english, english_date, german, german_date, read_spelled
from regard.errors import DataError

SHARED = Path(__file__).parents[2] / "../shared/data"


def both(folder: Path, source: str | bytes, target: str | bytes) -> list[Example]:
    paths = []
    for name, text in (("a.en", source), ("a.de", target)):
        path = folder / (f"{name}.gz" if isinstance(text, bytes) else name)
        path.write_bytes(gzip.compress(text) if isinstance(text, bytes) else text.encode())
        paths.append(path)
    return list(read_parallel(*paths, tally=Tally()))


def test_lines_go_together_gzipped_or_not(tmp_path):
    wanted = [Example("one dog", "ein Hund"), Example("two", "zwei")]
    assert both(tmp_path, "one dog\ntwo\n", "ein  Hund\r\nzwei") == wanted
    assert both(tmp_path, b"one dog\ntwo\n", "ein Hund\nzwei\n") == wanted


def test_an_empty_side_is_skipped_without_losing_the_place(tmp_path):
    assert both(tmp_path, "one\n\nthree\n", "eins\nzwei\ndrei\n") == [
        Example("one", "eins"),
        Example("three", "drei"),
    ]


@pytest.mark.parametrize(
    ("source", "target", "said"), [("a\nb\nc\n", "a\nb\n", "3 and 2"), ("a\n", "a\nb\n", "1 and 2")]
)
def test_files_of_different_length_are_refused(tmp_path, source, target, said):
    with pytest.raises(
        DataError, match=rf"a\.en and .*a\.de: the files do not go line by line; got {said} lines"
    ):
        both(tmp_path, source, target)


def test_a_line_too_long_to_read_would_shift_the_rest(tmp_path):
    with pytest.raises(DataError, match="a line is too long to be a sentence"):
        both(tmp_path, "a\n" + "b" * (1 << 21) + "\nc\n", "a\nb\nc\n")


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.en: no such file"):
        read_parallel(tmp_path / "nothing.en", tmp_path / "nothing.de", tally=Tally())
    with pytest.raises(DataError, match="no usable examples in .*a.en"):
        both(tmp_path, "", "")


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
def test_multi30k():
    tally = Tally()
    folder = SHARED / "multi30k"
    examples = list(read_parallel(folder / "val.en.gz", folder / "val.de.gz", tally=tally))
    assert len(examples) == tally.used == 1014
    assert examples[0] == Example(
        "A group of men are loading cotton onto a truck", examples[0].target
    )


def test_the_made_set_is_the_same_for_the_same_seed():
    def made(seed, count=500):
        return list(read_spelled(count=count, seed=seed, tally=Tally()))

    assert made(1) == made(1) and made(1) != made(2)
    assert made(1, 200) == made(1)[:200]
    assert len({example.source for example in made(3)}) == 500


def test_numbers_are_said_one_way_only():
    """Different numbers are different words, in both languages, and no number has a gap."""
    numbers = [*range(2500), *range(2500, 1_000_000, 997)]
    for say in (english, german):
        assert len({say(number) for number in numbers}) == len(numbers)
        assert all(
            "  " not in say(number) and say(number).strip() == say(number) for number in numbers
        )


@pytest.mark.parametrize(
    ("number", "in_english", "in_german"),
    [
        (1, "one", "eins"),
        (21, "twenty-one", "einundzwanzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred and one", "einhunderteins"),
        (1000, "one thousand", "eintausend"),
        (16_017, "sixteen thousand and seventeen", "sechzehntausendsiebzehn"),
        (
            999_999,
            "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
        ),
    ],
)
def test_numbers(number, in_english, in_german):
    assert (english(number), german(number)) == (in_english, in_german)


def test_dates():
    assert english_date(31, 12, 1900) == "the thirty-first of December nineteen hundred"
    assert english_date(20, 3, 1605) == "the twentieth of March sixteen oh five"
    assert english_date(30, 6, 2017) == "the thirtieth of June twenty seventeen"
    assert german_date(30, 6, 2017) == "der 30. Juni zweitausendsiebzehn"
    assert german_date(31, 12, 1900) == "der 31. Dezember neunzehnhundert"
    dates = [
        (day, month, year)
        for day in range(1, 29)
        for month in range(1, 13)
        for year in range(1500, 2100, 37)
    ]
    for say in (english_date, german_date):
        assert len({say(*date) for date in dates}) == len(dates)
