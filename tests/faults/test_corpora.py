"""Corpora that are broken: what cannot be used is skipped and counted, and no file can fill the
memory."""

import gzip
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import lines
from regard.data.cornell import cornell_files, read_cornell
from regard.data.dailydialog import read_dailydialog
from regard.data.detect import recognise
from regard.data.dialogues import read_dialogues
from regard.data.examples import turns_of
from regard.data.inspect import inspect
from regard.data.lines import LINE, Tally
from regard.data.pairs import read_pairs
from regard.errors import DataError


def read(path: Path, content: bytes, **settings):
    path.write_bytes(content)
    tally = Tally()
    return list(read_pairs(path, tally=tally, **settings)), tally


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv", "pairs.jsonl", "pairs.txt", "pairs"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"hello\n", b"prompt\treply\n", b"\xef\xbb\xbf", b"\xff\xfe", b"a\t \n"],
)
def test_nothing_usable(tmp_path, name, content):
    with pytest.raises(DataError, match="no usable examples in .*pairs"):
        read(tmp_path / name, content)


@pytest.mark.parametrize(
    "function", [cornell_files, inspect, lambda path: list(read_pairs(path, tally=Tally()))]
)
def test_missing_file(tmp_path, function):
    with pytest.raises(DataError, match="pairs.tsv: no such file"):
        function(tmp_path / "pairs.tsv")


def test_folders(tmp_path):
    with pytest.raises(DataError, match="not the Cornell corpus.*expected movie_lines.txt"):
        cornell_files(tmp_path)
    with pytest.raises(DataError, match="not a file"):
        list(read_pairs(tmp_path, tally=Tally()))
    with pytest.raises(DataError, match="no such file or folder"):
        list(read_cornell(tmp_path / "no", tally=Tally()))


# -- characters-------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected", "replaced"),
    [
        (b"it\x92s\tcaf\xe9\n", ("it’s", "café"), 2),  # cp1252
        (
            b"caf\xc3\xa9 \x96 ok\tyes\n",
            ("café – ok", "yes"),
            1,
        ),  # one stray byte does not spoil the line
        (
            b"it\xc2\x92s\tyes\n",
            ("it’s", "yes"),
            1,
        ),  # cp1252 that was read as Latin-1 and written as UTF-8
        (b"odd \x81\tyes\n", ("odd \ufffd", "yes"), 1),  # not even cp1252
        (b"n\x00u\x00l\tyes\n", ("nul", "yes"), 2),
        ("\ufeffa\ufeff\tyes".encode(), ("a", "yes"), 1),
        ("a\u2028b\u2029c\x85d\tyes".encode(), ("a b c…d", "yes"), 1),
        ("so\xadft \xad\xad\tyes".encode(), ("soft --", "yes"), 3),
        (b"sur\xed\xa0\x80r\tyes", None, 3),  # a surrogate in UTF-8 is three bytes that do not fit
        ("a\ud800b\tyes".encode("utf-16", "surrogatepass"), ("a\ufffdb", "yes"), 1),
        (
            "a\tyes".encode("utf-16") + b"\x00",
            ("a", "yes\ufffd"),
            1,
        ),  # cut in the middle of a character
    ],
)
def test_odd_characters_are_replaced_and_counted(tmp_path, content, expected, replaced):
    (example,), tally = read(tmp_path / "pairs.tsv", content)
    assert expected in (None, example)
    assert tally.replaced == replaced
    f"{example.source}{example.target}".encode()  # whatever it is, it can be written


def test_lone_surrogates_in_json(tmp_path):
    (example,), tally = read(
        tmp_path / "p.jsonl", rb'{"prompt": "a\ud800b\udc92 \ud83d\ude00", "reply": "b\u0000"}'
    )
    assert example == ("a\ufffdb\ufffd 😀", "b")
    assert tally.replaced == 3


@given(st.binary(max_size=200))
def test_any_bytes_in_any_format(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    for name in ("p.tsv", "p.csv", "p.jsonl", "p", "p.csv.gz", "utterances.jsonl"):
        (folder / name).write_bytes(content)
        reader, message = read_cornell if name.startswith("utterances") else read_pairs, name
        try:
            for example in reader(folder / name, tally=Tally(), limit=1.0):
                assert all(isinstance(side, str) and side.encode() for side in example)
        except DataError as problem:
            message = str(problem)
        assert name in message


@given(st.binary(max_size=200))
def test_any_bytes_as_dialogues(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    for name in ("d.jsonl", "d.txt", "d", "d.txt.gz", "dialogues_train.txt"):
        (folder / name).write_bytes(content)
        for reader in (read_dialogues, read_dailydialog):
            message = name
            try:
                for example in reader(folder / name, tally=Tally(), turns=3, limit=1.0):
                    assert all(isinstance(side, str) and side.encode() for side in example)
                    turns, speakers = turns_of(example)
                    assert len(turns) == len(speakers) <= 3
            except DataError as problem:
                message = str(problem)
            assert name in message


@pytest.mark.parametrize(
    "mark",
    ["5 - ", ". ", "A . ", "' ", '" ', "1,000,", "5 , 000 , ", "s ' ", "a.b", "& quot , ", " "],
)
def test_no_line_of_marks_takes_long(tmp_path, mark):
    line = mark * (LINE // 4 // len(mark))
    (tmp_path / "d.txt").write_text(f"{line} __eou__ {line} __eou__\nHi . __eou__ Yes . __eou__\n")
    started = time.monotonic()
    examples = list(read_dailydialog(tmp_path / "d.txt", tally=Tally()))
    assert examples[-1] == ("Hi.", "Yes.") and time.monotonic() - started < 20


def test_a_text_without_empty_lines_is_not_held_in_memory(tmp_path):
    (tmp_path / "d.txt").write_text("A turn of a dialogue that does not end.\n" * 300_000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_dialogues(tmp_path / "d.txt", tally=Tally(), turns=9))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count > 299_000 and peak < 20e6


@pytest.mark.parametrize("cell", ["9" * 400, "9" * 400 + "x", "1," * 300 + "x", "9 " * 200 + "."])
def test_no_cell_of_digits_takes_long(tmp_path, cell):
    """A pattern with two ways to match a digit would need longer than anybody waits."""
    (tmp_path / "p.tsv").write_text(f"Hello there\tHi, you.\n{cell}\tYes, it is.\n" * 5)
    assert len(list(read_pairs(tmp_path / "p.tsv", tally=Tally()))) == 10


# -- rows-------------------------------------------------------------------------------------------


def test_bad_rows_are_counted_by_reason(tmp_path):
    content = b"a\tb\none field\nx\ty\tz\n\tempty\nempty\t\nc\td\ne\tf\n"
    examples, tally = read(tmp_path / "pairs.tsv", content)
    assert examples == [("a", "b"), ("c", "d"), ("e", "f")]
    assert tally.skipped == {"wrong field count": 2, "empty side": 2}


def test_only_one_column(tmp_path):
    with pytest.raises(DataError, match="only one column"):
        read(tmp_path / "pairs.csv", b"text\na\nb\n", source_column="text")


def test_the_first_row_may_be_the_broken_one(tmp_path):
    examples, tally = read(tmp_path / "pairs.tsv", b"x\ty\tz\n" + b"a\tb\n" * 5)
    assert len(examples) == 5
    assert tally.skipped == {"wrong field count": 1}


def test_bad_json_lines(tmp_path):
    good = b'{"prompt": "a", "reply": "b"}\n'
    deep = b'{"prompt": ' + b"[" * 100_000 + b"\n"
    digits = b'{"prompt": ' + b"9" * 10_000 + b', "reply": "b"}\n'
    rows = [
        b"nonsense\n",
        deep,
        digits,
        b"[1]\n",
        b'{"prompt": "a"}\n',
        b'{"prompt": ["a"], "reply": "b"}\n',
    ]
    examples, tally = read(
        tmp_path / "pairs.jsonl", good * 10 + b"".join(rows) + b'{"prompt": null, "reply": "b"}\n'
    )
    assert len(examples) == 10
    assert tally.skipped == {
        "not JSON": 3,
        "not an object": 1,
        "missing field": 1,
        "field is not text": 1,
        "empty side": 1,
    }


def test_too_many_bad_rows(tmp_path):
    content = b"a\tb\n" * 4 + b"one field\n" * 5 + b"\tempty\n" * 20
    with pytest.raises(DataError, match=r"5 of 9 rows are bad.*wrong field count 5"):
        read(tmp_path / "pairs.tsv", content)
    assert len(read(tmp_path / "pairs.tsv", content, limit=0.9)[0]) == 4
    assert inspect(tmp_path / "pairs.tsv")["skipped"] == {"wrong field count": 5, "empty side": 20}


def test_the_share_is_of_this_file_alone(tmp_path):
    tally = Tally(used=1000)
    (tmp_path / "p.tsv").write_text("a\tb\nx\nx\n")
    with pytest.raises(DataError, match="2 of 3 rows are bad"):
        list(read_pairs(tmp_path / "p.tsv", tally=tally))


def test_an_unclosed_quote_costs_its_own_line(tmp_path):
    rows = "".join(f"a{i},b{i}\n" for i in range(500))
    examples, tally = read(tmp_path / "pairs.csv", ('x,y\nc,"never closed\n' + rows).encode())
    assert len(examples) == 501
    assert tally.skipped == {"unclosed quote": 1}


def test_a_field_over_the_limit_of_csv(tmp_path):
    examples, tally = read(tmp_path / "p.csv", b'a,b\nc,"' + b"d" * 200_000 + b'"\ne,f\n')
    assert examples == [("a", "b"), ("e", "f")]
    assert tally.skipped == {"field too long": 1}


# -- memory-----------------------------------------------------------------------------------------


def peak(function) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("filler", [b"x", b'"', b"["])
@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_a_huge_line_is_not_held(tmp_path, filler, suffix):
    good = (
        b'{"prompt": "a", "reply": "b"}'
        if suffix == "jsonl"
        else b"a\tb"
        if suffix == "tsv"
        else b"a,b"
    )
    path = tmp_path / f"pairs.{suffix}.gz"  # 64 MB of the same byte, in 64 KB
    path.write_bytes(gzip.compress(good + b"\n" + filler * (64 * LINE) + b"\n" + good, 1))
    tally = Tally()
    assert peak(lambda: list(read_pairs(path, tally=tally))) < 24 * LINE
    assert tally.used == 2
    assert tally.skipped == {"line too long": 1}


@pytest.mark.parametrize("at", [-3, -2, -1, 0, 1, 2])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends_around_the_pieces_of_a_file_and_the_limit(tmp_path, monkeypatch, at, end):
    monkeypatch.setattr(lines, "LINE", 1 << 16)
    for size in ((1 << 16) + 4, 1 << 16):  # the end of the second piece read, and the longest line
        long = b"a\t" + b"x" * (size - 2 + at)
        examples, tally = read(tmp_path / "p.tsv", long + end + b"c\td" + end, limit=1.0)
        assert examples[-1] == ("c", "d")
        assert len(examples) + tally.skipped["line too long"] == 2


def test_many_lines_stream(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"how are you\tfine, thanks\n\r" * 50_000)  # and as many empty ones
    tally = Tally()
    assert peak(lambda: sum(1 for _ in read_pairs(path, tally=tally))) < LINE
    assert tally.used == 50_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_a_line_of_a_gigabyte(tmp_path, suffix):
    good = {"tsv": b"a\tb", "csv": b"a,b", "jsonl": b'{"prompt": "a", "reply": "b"}'}[suffix]
    path = tmp_path / f"pairs.{suffix}"
    with path.open("wb") as file:
        file.write(good + b"\n")
        for _ in range(1024):
            file.write(b"x" * LINE)
        file.write(b"\n" + good + b"\n")
    tally = Tally()
    assert peak(lambda: list(read_pairs(path, tally=tally))) < 24 * LINE
    assert tally.used == 2 and tally.skipped == {"line too long": 1}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_million_lines_stream(tmp_path):
    path = tmp_path / "pairs.tsv"
    with path.open("wb") as file:
        for _ in range(1000):
            file.write(b"how are you\tfine, thanks\n" * 10_000)
    tally = Tally()
    assert peak(lambda: sum(1 for _ in read_pairs(path, tally=tally))) < LINE
    assert tally.used == 10_000_000


def bomb(suffix: str, piece: bytes, count: int) -> bytes:
    """`count` times a piece of text in a packed file, which is small and quickly made."""
    if suffix == "gz":
        return gzip.compress(piece) * count
    zstandard = pytest.importorskip("zstandard")
    return zstandard.ZstdCompressor().compress(piece) * count


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("name", ["bomb.tsv", "bomb.csv", "bomb.jsonl", "bomb.txt", "bomb"])
def test_a_bomb_of_zeros_is_refused_after_its_first_bytes(tmp_path, monkeypatch, suffix, name):
    """A gigabyte, of which hardly more than the first piece is unpacked. The work is counted and
    not timed."""
    path = tmp_path / f"{name}.{suffix}"
    path.write_bytes(bomb(suffix, bytes(1 << 22), 256))
    unpacked = 0
    honest = lines.pieces

    def counted(*given):
        nonlocal unpacked
        for piece in honest(*given):
            unpacked += len(piece)
            yield piece

    monkeypatch.setattr(lines, "pieces", counted)
    with pytest.raises(DataError, match=name):
        recognise(path, task="chat")
    assert 0 < unpacked <= 4 << 22


def test_a_cut_gzip_file(tmp_path):
    whole = gzip.compress(b"a\tb\n" * 10_000)
    for content in (whole[: len(whole) // 2], b"a\tb\n", b"<html>not found</html>"):
        with pytest.raises(DataError, match="pairs.tsv.gz: not a whole gzip file"):
            read(tmp_path / "pairs.tsv.gz", content)


# -- Cornell----------------------------------------------------------------------------------------


def cornell(folder: Path, lines: bytes, conversations: bytes):
    (folder / "movie_lines.txt").write_bytes(lines)
    (folder / "movie_conversations.txt").write_bytes(conversations)
    tally = Tally()
    return list(read_cornell(folder, tally=tally)), tally


def line(name: str, text: bytes) -> bytes:
    return name.encode() + b" +++$+++ u0 +++$+++ m0 +++$+++ BIANCA +++$+++ " + text + b"\n"


def test_cornell_bytes(tmp_path):
    lines = line("L1", b"Well \x96 caf\xe9\xad\xad") + line("L2", b"It\x92s \x81")
    examples, tally = cornell(tmp_path, lines, b"u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L1', 'L2']\r\n")
    assert examples == [("Well – café--", "It’s \ufffd")]
    assert tally.replaced == 3  # two soft hyphens and 0x81; the others are what cp1252 says


def test_cornell_broken_lines(tmp_path):
    lines = (
        b"".join(line(f"L{i}", b"text %d" % i) for i in range(8))
        + line("L20", b"a separator +++$+++ inside")
        + line("L21", b"")
        + b"L22 +++$+++ u0 +++$+++ m0 +++$+++ KAT +++$+++\n"  # its last space is gone
        + b"L23 +++$+++ u0\n"
        + line("L1", b"again")
    )
    conversations = (
        b"u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L0', 'L1', 'L2', 'L3', 'L4', 'L5', 'L6', 'L7']\n"
        b"u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L7', 'L20']\n"
        b"u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L7', 'L99']\n"
        b"u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L7', 'L21', 'L22']\n"
        b"u0 +++$+++ m0 +++$+++ ['L1', 'L2']\n"
        b"u0 +++$+++ u2 +++$+++ m0 +++$+++ []\n"
    )
    examples, tally = cornell(tmp_path, lines, conversations)
    assert len(examples) == 7
    assert ("text 0", "text 1") in examples
    assert tally.skipped == {
        "wrong field count": 3,
        "dangling id": 2,
        "line id used twice": 1,
        "empty side": 2,
    }


def test_cornell_without_its_second_file(tmp_path):
    (tmp_path / "movie_lines.txt").write_bytes(line("L1", b"a"))
    with pytest.raises(DataError, match="expected movie_lines.txt and movie_conversations.txt"):
        list(read_cornell(tmp_path / "movie_lines.txt", tally=Tally()))


def test_convokit_broken_lines(tmp_path):
    path = tmp_path / "utterances.jsonl"
    path.write_text(
        "".join(f'{{"id": "{i + 1}", "reply-to": "{i}", "text": "t{i}"}}\n' for i in range(6))
        + '{"id": 7, "text": "number"}\n{"id": "8", "reply-to": "1", "text": ["a"]}\nnonsense\n'
        + '{"id": "9", "reply-to": "6", "text": ""}\n{"id": "1", "text": "again"}\n'
    )
    tally = Tally()
    assert len(list(read_cornell(path, tally=tally))) == 5
    assert tally.skipped == {
        "dangling id": 1,
        "missing field": 2,
        "not JSON": 1,
        "empty side": 1,
        "line id used twice": 1,
    }
