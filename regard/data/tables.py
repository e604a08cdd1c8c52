"""Tables of text (TSV, CSV, JSON lines): rows, header, what each column holds, which one is meant.

A table says nothing about its columns but their names, if it has any. So a sample of its rows is
looked at: columns of ids, numbers, dates and file names are told from columns of text and of
labels. Where names and contents leave exactly one choice it is taken, and can be shown; everywhere
else the user is asked.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from regard.data.lines import Tally, read_lines
from regard.errors import DataError, did_you_mean

Column = str | int | None
Format = Literal["tsv", "csv", "jsonl"]
Holds = Literal[
    "text", "label", "id", "number", "date", "picture", "sound", "constant", "nested", "empty"
]

QUOTED = 50  # lines that one quoted CSV field may span before we hold its quote to be a mistake
SAMPLE_ROWS = 1000
SAMPLE_CHARACTERS = 1 << 20  # of a sample: rows may be long
DELIMITER_LINES = 20  # that tell the delimiter of a CSV file
MOST_KEYS = 200  # of the objects of a sample
SHOWN_COLUMNS = 12  # in a message
LABELS = 30  # at most so many different short answers, each given often, are labels and not replies
LABEL_WORDS = 3
LONG_TEXT = 40  # words
SENTENCE = 3  # words, at least

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
SOUNDS = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au"})

SUFFIXES: dict[str, Format] = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


# -- roles------------------------------------------------------------------------------------------


class Role(NamedTuple):
    """One side of an example: its word, the field of a recipe that names its column, the names it
    is known by, and what its column may hold."""

    word: str
    field: str
    names: tuple[str, ...]
    holds: frozenset[Holds]


class Roles(NamedTuple):
    source: Role
    target: Role


LABEL_NAMES = ("label", "class", "sentiment")
SOURCE_NAMES = (
    *("prompt", "source", "question", "input", "instruction"),
    *("text", "src", "sentence", "review"),
)
REPLY_NAMES = ("reply", "target", "answer", "output", "response", "completion", "tgt")
TARGET_NAMES = (*REPLY_NAMES, *LABEL_NAMES)
PICTURE_NAMES = ("path", "file", "image", "picture", "filename", "file_name")
CAPTION_NAMES = ("text", "caption", "sentence", "description")
SOUND_NAMES = ("path", "file", "audio", "wav", "sound", "filename", "audio_filepath", "file_name")
TRANSCRIPT_NAMES = ("text", "sentence", "transcript", "transcription", "label", "normalized_text")

# One of each in the first row make it a header: no source here translates into a target there.
FOREIGN_SOURCES = (
    *("frage", "eingabe", "pregunta", "entrada", "pergunta", "domanda", "question", "vraag"),
    "pytanie",
    *("вопрос", "问题", "問題", "質問", "질문", "سؤال", "प्रश्न", "soru"),
)
FOREIGN_TARGETS = (
    *("antwort", "ausgabe", "respuesta", "salida", "resposta", "risposta", "réponse"),
    *("antwoord", "odpowiedź"),
    *("ответ", "答案", "回答", "답변", "جواب", "उत्तर", "cevap"),
)
# Words that say too little to choose a column when they are only a part of its name.
VAGUE = {
    *("text", "sentence", "input", "source", "output", "target", "review"),
    *(*PICTURE_NAMES, *SOUND_NAMES),
}
INSTRUCTION = "instruction"  # with INPUT, a prompt in two columns, as Alpaca has it
INPUT = "input"
LANGUAGES = {
    *("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "polish"),
    *("czech", "russian", "chinese", "japanese", "korean", "arabic", "turkish", "swedish"),
    *("englisch", "deutsch", "französisch", "francais", "français", "anglais", "español"),
    *("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "ru", "zh", "ja", "ko", "ar", "sv"),
}
# What other columns are called: two of them in the first row make it a header.
OTHER_NAMES = {
    *("name", "first_name", "last_name", "firstname", "lastname", "surname", "author", "speaker"),
    *("city", "country", "state", "street", "address", "email", "phone", "company", "user"),
    *("title", "quote", "date", "time", "year", "url", "link", "comment", "notes", "tags"),
    *("gender", "age", "price", "duration", "recorded", "split", "type", "status", "id"),
}
# What columns of labels are called. A table may have several, so such a name alone chooses none.
LABEL_LIKE = {
    *LABEL_NAMES,
    *("category", "intent", "emotion", "topic", "stars", "rating", "score", "grade"),
    *("polarity", "language"),
    *("kategorie", "klasse", "stimmung", "bewertung", "sterne", "note", "thema"),
    *("etiqueta", "categoría", "categoria", "estrellas", "catégorie", "étoiles", "étiquette"),
    "классификация",
    *("оценка", "метка", "标签", "类别", "评分", "ラベル", "별점"),
}
ID_NAMES = re.compile(
    r"(?i:(?:.*[_ .-])?(?:id|ids|uuid|guid|nr|no|num|number|index|idx|key|pk|#|row|zeile))"
    r"|.*[a-z]Id|Unnamed.*"
)

TURNS = {  # what people say in a word, and name no column
    *("hello", "hi", "hey", "bye", "goodbye", "thanks", "thx", "please", "welcome", "sorry"),
    *("help", "start", "stop"),
    *("yes", "yeah", "yep", "no", "nope", "ok", "okay", "sure", "maybe", "what", "why", "who"),
    *("how", "fine", "good"),
    *("hallo", "tschüss", "danke", "bitte", "ja", "nein", "doch", "hola", "adiós", "gracias"),
    *("sí", "salut"),
    *("bonjour", "merci", "oui", "non", "ciao", "grazie", "olá", "obrigado", "привет", "да"),
    *("нет", "你好"),
}

TEXT: frozenset[Holds] = frozenset({"text"})
ANSWER: frozenset[Holds] = frozenset({"text", "label"})

PAIRS = Roles(
    Role("source", "source_column", (*SOURCE_NAMES, *FOREIGN_SOURCES), TEXT),
    Role("target", "target_column", (*TARGET_NAMES, *FOREIGN_TARGETS), ANSWER),
)
LABELLED = Roles(
    Role("text", "text_column", (*SOURCE_NAMES, *FOREIGN_SOURCES), TEXT),
    Role("label", "label_column", (*LABEL_NAMES, *REPLY_NAMES, *FOREIGN_TARGETS), ANSWER),
)
CAPTIONED = Roles(
    Role("path", "path_column", PICTURE_NAMES, frozenset({"picture"})),
    Role("text", "text_column", CAPTION_NAMES, ANSWER),
)
SPOKEN = Roles(
    Role("path", "path_column", SOUND_NAMES, frozenset({"sound"})),
    Role("text", "text_column", TRANSCRIPT_NAMES, ANSWER),
)
KNOWN = {
    *SOURCE_NAMES,
    *TARGET_NAMES,
    *PICTURE_NAMES,
    *CAPTION_NAMES,
    *SOUND_NAMES,
    *TRANSCRIPT_NAMES,
}


class Choice(NamedTuple):
    """The numbers, from 0, of the columns that are source and target; `extra` is a column whose
    text, where there is some, follows the source's."""

    source: int
    target: int
    extra: int | None = None


class UnclearColumns(DataError):
    """It is not plain which columns are meant; `columns` is a guess, as fields of a recipe."""

    def __init__(self, table: Table, roles: Roles, columns: Mapping[str, object]):
        self.roles = roles
        self.columns = dict(columns)
        what = (
            f"it is not plain which column is {roles.source.word} and which is {roles.target.word}"
        )
        contents = table.contents()
        if table.format == "jsonl":
            expected = " and ".join(" or ".join(role.names[:4]) for role in roles)
            contents = f"{contents}; expected: {expected}"
        super().__init__(
            f"{what}; {contents}", where=table.path, hint=f"say which: {settings(columns)}"
        )


def settings(columns: Mapping[str, object]) -> str:
    """
    >>> settings({"source_column": "my text", "target_column": 3})
    "--set 'data.source_column=my text' --set data.target_column=3"
    """
    words = (
        word for field, value in columns.items() for word in ("--set", f"data.{field}={value}")
    )
    return shlex.join(words)


# -- rows-------------------------------------------------------------------------------------------


def format_of(path: Path, first: str) -> Format:
    name = path.name.lower().removesuffix(".gz")
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    if first.lstrip().startswith("{"):
        return "jsonl"
    return "tsv" if "\t" in first else "csv"


def read_rows(path: Path, tally: Tally) -> tuple[Format, Iterator[Any]]:
    """The format of a file, and its rows: lists of cells, or objects."""
    lines = read_lines(path, tally)
    head = list(islice(lines, 1))
    kind = format_of(path, "".join(head))
    if kind == "jsonl":
        objects = (json_object(line, tally) for line in chain(head, lines))
        return kind, (row for row in objects if row is not None)
    if kind == "tsv":
        return kind, (line.split("\t") for line in chain(head, lines) if line)
    head += islice(lines, DELIMITER_LINES - 1)
    return kind, _csv_rows(chain(head, lines), delimiter_of(head), tally)


def json_object(line: str, tally: Tally) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        tally.skip("not JSON")
        return None
    if not isinstance(row, dict):
        tally.skip("not an object")
        return None
    return row


def delimiter_of(lines: Iterable[str]) -> str:
    """The mark that most lines have the same number of times.

    >>> delimiter_of(["Well, yes;no", "a, b, c;d", "e;f, g"]), delimiter_of(["only one column"])
    (';', ',')
    """
    unquoted = [re.sub('"[^"]*"?', "", line) for line in lines if line]

    def agreement(mark: str) -> int:
        counts = Counter(line.count(mark) for line in unquoted if mark in line)
        return max(counts.values(), default=0)

    return max(",;\t|", key=agreement)  # the first of those that agree as well


def _csv_rows(lines: Iterator[str], delimiter: str, tally: Tally) -> Iterator[list[str]]:
    """The rows of a CSV file. A quote that does not close costs its own line only."""
    waiting: deque[str] = deque()  # lines read ahead of the row they belong to
    ran_out = False

    def feed() -> Iterator[str]:
        nonlocal ran_out
        for i in range(QUOTED):
            if i == len(waiting):
                waiting.extend(islice(lines, 1))
            if i == len(waiting):
                break
            yield waiting[i] + "\n"
        ran_out = True  # the csv module asks for another line only while a quote is open

    while waiting or (waiting := deque(islice(lines, 1))):
        if '"' not in waiting[0]:
            row, taken = waiting[0].split(delimiter) if waiting[0] else [], 1
        else:
            ran_out, reader = False, csv.reader(feed(), delimiter=delimiter)
            try:
                row, taken = next(reader), reader.line_num
            except csv.Error:
                row, taken = [], reader.line_num
                tally.skip("field too long")
            if ran_out:
                row, taken = [], 1
                tally.skip("unclosed quote")
        for _ in range(taken):
            waiting.popleft()
        if row:
            yield row


# -- a table----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """What a sample of a table's rows tells."""

    path: Path
    format: Format
    header: bool  # the first row is one; objects have keys instead
    names: tuple[str, ...]  # as they are written; without a header 1, 2, …
    cells: tuple[tuple[str, ...], ...]  # the sample, by column, without empty cells
    holds: tuple[Holds, ...]

    def number(self, column: str | int) -> int:
        """The number, from 0, of a column given by its name or by its number from 1."""
        word = str(column).strip().lower()
        places = (
            [i for i, name in enumerate(self.names) if name.lower() == word]
            if self.has_names
            else []
        )
        if isinstance(column, str) and len(places) > 1:
            raise DataError(
                "two columns have this name",
                where=self.path,
                got=column,
                hint=f"use a number: {' or '.join(str(place + 1) for place in places)}",
            )
        if isinstance(column, str) and places:
            return places[0]
        number = int(word) if word.isdecimal() else 0
        if 1 <= number <= len(self.names):
            return number - 1
        hint = f"no header; use a number from 1 to {len(self.names)}"
        if self.has_names:
            hint = did_you_mean(str(column), self.names) or ""
        raise DataError("no such column", where=self.path, got=column, hint=hint)

    def name(self, number: int) -> str | int:
        """What names a column in a recipe: its name, or its number where that would be read as
        something else."""
        name = self.names[number]
        is_word = re.fullmatch(r"[^\W\d](?:[\w .-]*\w)?", name) and name.lower() not in (
            "true",
            "false",
            "inf",
            "nan",
        )
        is_unique = [other.lower() for other in self.names].count(name.lower()) == 1
        return name if is_word and is_unique and self.has_names else number + 1

    @property
    def has_names(self) -> bool:
        return self.header or self.format == "jsonl"

    @property
    def is_empty(self) -> bool:
        return not any(self.cells)

    @property
    def has_messages(self) -> bool:
        """Whether its objects are conversations, as OpenAI has them: lists called "messages"."""
        if self.format != "jsonl":
            return False
        columns = zip(self.names, self.cells, strict=True)
        return any(name.lower() == "messages" and NESTED in cells for name, cells in columns)

    def described(self, choice: Choice, roles: Roles) -> str:
        """Which column is taken for what, in a line.

        >>> holds = ("id", "text", "text")
        >>> table = Table(Path("a"), "csv", True, ("id", "a", "b"), ((), (), ()), holds)
        >>> table.described(Choice(1, 2), PAIRS)
        'columns: id, a, b; source = a, target = b'
        """
        names = list(self.names[:SHOWN_COLUMNS])
        if len(self.names) > SHOWN_COLUMNS:
            names.append(f"… ({len(self.names)} in all)")
        columns = ", ".join(shown(name) for name in names)
        if not self.has_names:
            columns = f"{len(self.names)}, no header"
        source = str(self.name(choice.source))
        if choice.extra is not None:
            source += f" and {self.name(choice.extra)}"
        target = self.name(choice.target)
        word = "keys" if self.format == "jsonl" else "columns"
        note = f"{word}: {columns}; {roles.source.word} = {source}, {roles.target.word} = {target}"
        unused = [shown(self.names[i]) for i in _left_over(self, choice)]
        if unused:
            note += f"; text not used: {', '.join(unused[:3])}{', …' if len(unused) > 3 else ''}"
        return note

    def contents(self) -> str:
        """Every column with what it holds."""
        columns = [
            f"{shown(name) if self.has_names else number} ({self._content(number - 1)})"
            for number, name in enumerate(self.names[:SHOWN_COLUMNS], 1)
        ]
        if len(self.names) > SHOWN_COLUMNS:
            columns.append(f"… ({len(self.names)} in all)")
        word = "keys" if self.format == "jsonl" else "columns"
        return f"{word}: {', '.join(columns)}"

    def _content(self, number: int) -> str:
        words = {
            "id": "ids",
            "number": "numbers",
            "date": "dates",
            "label": f"{len(set(self.cells[number]))} labels",
            "picture": "files of pictures",
            "sound": "files of sounds",
            "constant": "always the same",
            "nested": "lists or objects",
        }
        if self.holds[number] == "text" and _median_words(self.cells[number]) >= LONG_TEXT:
            return "long text"
        return words.get(self.holds[number], self.holds[number])


def shown(name: str) -> str:
    """The name of a column in a line of a message.

    >>> shown("first\\nsecond"), shown("")
    ('first second', '(no name)')
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    line = line if len(line) <= 40 else f"{line[:39]}…"
    return line or "(no name)"


def look(path: Path, *, asked: Iterable[Column] = ()) -> Table:
    """A table's columns, from a sample of its rows. A first row that has one of the names `asked`
    for is a header."""
    kind, rows = read_rows(path, Tally())
    sample = list(_sample(rows))
    if kind == "jsonl":
        header = False
        names, columns = _by_key(sample)
    else:
        header = _is_header(sample, {column.lower() for column in asked if isinstance(column, str)})
        width = len(sample[0]) if header else _usual_width(sample)
        names = (
            tuple(cell.strip() for cell in sample[0])
            if header
            else tuple(str(i + 1) for i in range(width))
        )
        whole = [row for row in sample[header:] if len(row) == width]
        columns = [[row[i].strip() for row in whole] for i in range(width)]
    filled = tuple(tuple(cell for cell in column if cell) for column in columns)
    holds: tuple[Holds, ...] = tuple(
        content_of(cells, name) for cells, name in zip(filled, names, strict=True)
    )
    return Table(path, kind, header, names, filled, holds)


def _sample(rows: Iterator[Any]) -> Iterator[Any]:
    left = SAMPLE_CHARACTERS
    for row in islice(rows, SAMPLE_ROWS):
        yield row
        left -= (
            sum(map(len, row))
            if isinstance(row, list)
            else sum(len(str(value)) for value in row.values())
        )
        if left < 0:
            break


def _usual_width(rows: list[list[str]]) -> int:
    """That of most rows: the first one may be broken."""
    widths = Counter(len(row) for row in rows if len(row) > 1) or Counter([2])
    return widths.most_common(1)[0][0]


NESTED = "\0"  # what stands for a list or an object among the cells of a sample


def _by_key(objects: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The keys of objects, whose capitals make no difference, and their values."""
    names: dict[str, str] = {}
    columns: dict[str, list[str]] = {}
    for row in objects:
        for key, value in row.items():
            folded = key.lower()
            if folded not in names and len(names) == MOST_KEYS:
                continue
            names.setdefault(folded, key)
            cell = (
                NESTED
                if isinstance(value, list | dict)
                else ""
                if value is None
                else str(value).strip()
            )
            columns.setdefault(folded, []).append(cell)
    return tuple(names.values()), list(columns.values())


# -- headers----------------------------------------------------------------------------------------


def _is_header(rows: list[list[str]], asked: set[str]) -> bool:
    """Whether the first row names the columns: by names that are known or asked for, or because it
    differs from every row below in what a cell can be."""
    if not rows:
        return False
    first = [cell.strip() for cell in rows[0]]
    names = {cell.lower() for cell in first}
    if names & asked or len(names & KNOWN) > 1:
        return True
    if names & {*SOURCE_NAMES, *FOREIGN_SOURCES} and names & {*TARGET_NAMES, *FOREIGN_TARGETS}:
        return True
    below = [[cell.strip() for cell in row] for row in rows[1:] if len(row) == len(first)]
    if below and _has_usual_names(first, below):
        return True
    if not below or (len(first) > 1 and len(first) != _usual_width(rows[1:])):
        return False
    columns = [[row[i] for row in below if row[i]] for i in range(len(first))]
    if any(
        name.lower() in LABEL_LIKE and _repeats(name, column)
        for name, column in zip(first, columns, strict=True)
    ):
        return True
    if not all(_is_name(cell) for cell in first):
        return False
    if any(_differs(cell, column) for cell, column in zip(first, columns, strict=True)):
        return True
    return _stands_out(first, below)


def _has_usual_names(first: list[str], below: list[list[str]]) -> bool:
    """Whether the first row has two usual names of columns, and no such name is below it."""
    names = {name.lower().replace(" ", "_") for name in first}
    usual = sum(name in OTHER_NAMES or name in KNOWN for name in names)
    languages = sum(name in LANGUAGES for name in names)
    if max(usual, languages) < 2:
        return False
    cells = {cell.lower() for row in below for cell in row}
    return not any(name.lower() in cells for name in first if name)


def _repeats(name: str, values: list[str]) -> bool:
    """Whether values repeat, none of them being the name above them."""
    folded = [value.lower() for value in values]
    return name.lower() not in folded and len(set(folded)) < len(folded)


def _is_name(cell: str) -> bool:
    """
    >>> [_is_name(cell) for cell in ("antwort_text", "Customer question", "Who is it?", "547", "")]
    [True, True, False, False, True]
    """
    if not cell:
        return True  # as pandas writes the name of its index
    short = len(cell) <= 50 and len(cell.split()) <= LABEL_WORDS
    return short and any(map(str.isalpha, cell)) and cell[-1] not in '.?!,;:…。？！"'


def _differs(name: str, values: list[str]) -> bool:
    """Whether a cell is of another kind than all below it: a word above numbers, ids, labels, …"""
    if len(values) < 2:
        return False
    shape = _shape(values)
    if shape is not None:
        return _shape([name]) != shape
    if not name or content_of(values, "") != "label":
        return False
    return name.lower() not in {value.lower() for value in values}


def _stands_out(first: list[str], below: list[list[str]]) -> bool:
    """Whether a row of bare names stands above sentences only, none of which is such a row too."""
    if len(first) < 2 or len(below) < 3:
        return False
    if any(all(map(_is_name, row)) for row in below):
        return False
    cells = {cell.lower() for row in below for cell in row}
    if any(name.lower() in cells or name.lower() in TURNS for name in first):
        return False
    bare = all(re.fullmatch(r"[^\W\d][\w.-]*", name) for name in first)
    written_as_code = bare and all(name == name.lower() or "_" in name for name in first)
    return written_as_code or len(below) >= 10


# -- what a column holds----------------------------------------------------------------------------

_WHOLE = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?[$€£]? ?\d{1,3}(?:[.,' ]?\d+)*(?:[.,]\d+)?(?:[eE][+-]?\d+)? ?[%€$£]?")
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


def _shape(values: Iterable[str]) -> str | None:
    """What all values are by their letters alone, nearly without exception; None: words.

    >>> _shape(["484e010b37732982"]), _shape(["05:30 pm"]), _shape(["Jan 6 2020"]), _shape(["Who?"])
    ('uuid', 'date', 'date', None)
    >>> _shape(["+49 30 1234567"]), _shape(["52.52, 13.40"]), _shape(['{"a": 1}'])
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
    shape = _shape(values)
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


def _median_words(values: Iterable[str]) -> float:
    counts = [len(value.split()) for value in values]
    return median(counts) if counts else 0.0


# -- which column is meant--------------------------------------------------------------------------


def choose(table: Table, roles: Roles, source: Column = None, target: Column = None) -> Choice:
    """The columns of source and target: as they were given, by known names, or by what the columns
    hold. What that does not decide is asked."""
    left = None if source is None else table.number(source)
    right = None if target is None else table.number(target)
    if left is not None and left == right:
        raise DataError(
            f"{roles.source.word} and {roles.target.word} are the same column",
            where=table.path,
            got=shown(table.names[left]),
            hint=table.contents(),
        )
    if len(table.names) < 2:
        name = ", ".join(map(shown, table.names)) or None
        raise DataError("only one column", where=table.path, got=name, hint="a pair needs two")
    is_given = left is not None or right is not None
    if not is_given and (choice := _instruction(table, roles) or _languages(table, roles)):
        return choice
    if left is None:
        left = _named(table, roles.source, {right})
    if right is None:
        right = _named(table, roles.target, {left})
    if left is not None and right is not None:
        choice = Choice(left, right)
        if not is_given and _is_doubtful(table, roles, choice):
            raise _unclear(table, roles, None, None)
        return choice
    if left is None and right is None:
        return _by_content(table, roles)
    return _other(table, roles, left, right, is_given=is_given)


def _instruction(table: Table, roles: Roles) -> Choice | None:
    """Alpaca's columns: the prompt is `instruction`, followed by a non-empty `input`."""
    if roles is not PAIRS or not table.has_names:
        return None
    folded = [name.lower() for name in table.names]
    if folded.count(INSTRUCTION) != 1 or folded.count(INPUT) != 1:
        return None
    source, extra = folded.index(INSTRUCTION), folded.index(INPUT)
    target = _named(table, roles.target, {source, extra})
    if target is None or table.holds[source] in ("id", "nested", "empty"):
        return None
    return Choice(source, target, extra)


def _languages(table: Table, roles: Roles) -> Choice | None:
    """Two columns called after languages, in their order, if no others hold text."""
    if roles is not PAIRS or not table.has_names:
        return None
    columns = [i for i, name in enumerate(table.names) if name.lower() in LANGUAGES]
    texts = [i for i, holds in enumerate(table.holds) if holds == "text"]
    if len(columns) != 2 or not set(texts) <= set(columns):
        return None
    usable = {"text", "label", "constant"}
    return Choice(*columns) if all(table.holds[i] in usable for i in columns) else None


def are_languages(table: Table, choice: Choice) -> bool:
    """Whether both columns are called after languages."""
    names = [table.names[i].lower() for i in (choice.source, choice.target)]
    return table.has_names and all(name in LANGUAGES for name in names)


def _named(table: Table, role: Role, taken: set[int | None]) -> int | None:
    """The column whose name is known for a role: the whole name, or else a word of it. Of several,
    those that hold what the role needs."""
    if not table.has_names:
        return None
    folded = [name.lower() for name in table.names]
    free = [i for i in range(len(folded)) if i not in taken]
    exact = [i for name in dict.fromkeys(role.names) for i in free if folded[i] == name]
    if exact:
        fitting = [i for i in exact if table.holds[i] in role.holds]
        chosen = (fitting or exact)[0]
        alike = [i for i in fitting if folded[i] == folded[chosen]]
        return chosen if len(alike) < 2 else None

    words = {name for name in role.names if name not in VAGUE}
    partly = [i for i in free if words & _words_of(table.names[i]) and table.holds[i] in role.holds]
    return partly[0] if len(partly) == 1 else None


def _words_of(name: str) -> set[str]:
    """
    >>> sorted(_words_of("customerQuestion_text"))
    ['customer', 'question', 'text']
    """
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return {word.lower() for word in re.split(r"[\W_]+", spaced) if word}


def _is_doubtful(table: Table, roles: Roles, choice: Choice) -> bool:
    """Whether a column of a known name holds something else than its role needs, while a column of
    text is left over."""
    left_over = _left_over(table, choice)
    if not left_over:
        return False
    if table.holds[choice.source] not in roles.source.holds:
        return True
    target = table.holds[choice.target]
    if target == "label":
        name = table.names[choice.target].lower()
        return name not in LABEL_LIKE and roles is PAIRS
    return target not in roles.target.holds and target != "number"


def _left_over(table: Table, choice: Choice) -> list[int]:
    """The columns of text that are not used."""
    return [i for i, holds in enumerate(table.holds) if holds == "text" and i not in choice]


def _fitting(table: Table, role: Role, taken: int | None = None) -> list[int]:
    return [i for i, holds in enumerate(table.holds) if holds in role.holds and i != taken]


def _other(
    table: Table, roles: Roles, left: int | None, right: int | None, *, is_given: bool
) -> Choice:
    """One side is known; the other is what is left, if that is one column."""
    role = roles.target if right is None else roles.source
    taken = left if right is None else right
    fitting = _fitting(table, role, taken)
    if roles in (SPOKEN, CAPTIONED) and right is None:
        fitting = _sentences(table, fitting)
    if is_given and not fitting:  # whoever names one column may mean another that is no text
        fitting = [
            i
            for i, holds in enumerate(table.holds)
            if holds in ("label", "constant", "text") and i != taken
        ]
    if len(fitting) != 1:
        raise _unclear(table, roles, left, right)
    if table.format == "jsonl" and not is_given and table.holds[fitting[0]] != "label":
        raise _unclear(table, roles, left, right)  # two keys that hold text need not be a pair
    return Choice(fitting[0] if left is None else left, fitting[0] if right is None else right)


def _sentences(table: Table, columns: list[int]) -> list[int]:
    """Of columns that could describe a file, those that do not repeat few values (as the names of
    speakers do), if there are any."""
    varied = [
        i
        for i in columns
        if table.holds[i] == "text" and 2 * len(set(table.cells[i])) > len(table.cells[i])
    ]
    unnamed = [i for i in varied if not _words_of(table.names[i]) & OTHER_NAMES]
    return unnamed or varied or columns


def _by_content(table: Table, roles: Roles) -> Choice:
    sources = _fitting(table, roles.source)
    if roles.source.holds != TEXT:  # files and what is said of them
        targets = _sentences(table, _fitting(table, roles.target))
        if len(sources) == len(targets) == 1:
            return Choice(sources[0], targets[0])
        raise _unclear(table, roles, sources[0] if len(sources) == 1 else None, None)
    labels = [i for i, holds in enumerate(table.holds) if holds == "label"]
    if table.format == "jsonl":  # the order of keys says nothing
        raise _unclear(table, roles, None, None)
    texts = sources if sources else labels
    if table.header and any(_are_names(table.cells[i]) for i in texts) and len(texts) < 3:
        raise _unclear(table, roles, None, None)  # a name is no prompt
    if len(sources) == len(labels) == 1:
        return Choice(sources[0], labels[0])
    if len(sources) == 2 and not labels:
        return Choice(sources[0], sources[1])
    if len(table.names) == 2 and set(table.holds) <= {"text", "label", "constant", "empty"}:
        return Choice(0, 1)
    if len(table.names) == 2 and not table.header and table.holds[0] == table.holds[1]:
        return Choice(0, 1)  # one is no more of an id than the other
    raise _unclear(table, roles, None, None)


def _are_names(values: Iterable[str]) -> bool:
    """Whether nearly all values are bare words, or names: few words, each with a capital.

    >>> _are_names(["Albert Einstein", "Ludwig van Beethoven"]), _are_names(["How are you"])
    (True, False)
    """
    values = list(values)
    names = sum(_is_proper_name(value) for value in values)
    return bool(values) and (names >= 0.8 * len(values) or _median_words(values) <= 1)


def _is_proper_name(value: str) -> bool:
    words = value.split()
    if not 1 <= len(words) <= 4 or value[-1] in "?!,;:…":
        return False
    return words[0][0].isupper() and words[-1][0].isupper()


def _unclear(table: Table, roles: Roles, left: int | None, right: int | None) -> UnclearColumns:
    """The question which columns are meant, with a guess."""
    source = left
    target = right
    if source is None:
        source = _guess(table, roles.source, roles, {target})
    if target is None:
        target = _guess(table, roles.target, roles, {source})
    is_given = left is not None or right is not None
    if not is_given and roles is PAIRS and table.holds[source] == table.holds[target] == "text":
        source, target = _ordered(table, source, target)
    columns = {roles.source.field: table.name(source), roles.target.field: table.name(target)}
    return UnclearColumns(table, roles, columns)


def _guess(table: Table, role: Role, roles: Roles, taken: set[int | None]) -> int:
    """The likeliest column of a role: by what it holds, by its name, by whether it holds sentences;
    of equals the first."""
    other = roles.target if role is roles.source else roles.source

    def rank(i: int) -> tuple[int, int, int, int]:
        holds = table.holds[i]
        is_label = role is LABELLED.target and holds == "label"
        fits = 0 if is_label else 1 if holds == "text" and "text" in role.holds else 2
        if holds in role.holds and "text" not in role.holds:
            fits = 0
        if holds not in role.holds:
            fits = {"label": 3, "constant": 4, "number": 5}.get(holds, 6)
        words = _words_of(table.names[i]) if table.has_names else set()
        words -= VAGUE
        is_named = -1 if words & set(role.names) else 1 if words & set(other.names) else 0
        is_name = int(holds == "text" and _are_names(table.cells[i]))
        is_short = int(_median_words(table.cells[i]) < SENTENCE)
        return fits, is_name, is_named, is_short

    return min((i for i in range(len(table.names)) if i not in taken), key=rank)


def _ordered(table: Table, source: int, target: int) -> tuple[int, int]:
    """Two columns of text, in their order, unless a name says which is which."""
    words = [_words_of(table.names[i]) - VAGUE for i in (source, target)]
    source_names, target_names = set(PAIRS.source.names), set(PAIRS.target.names)
    if words[0] & source_names or words[1] & target_names:
        return source, target
    return min(source, target), max(source, target)


def same_columns(
    path: Path, other: Path, roles: Roles, source: Column, target: Column
) -> tuple[Column, Column]:
    """The columns to read in another table that goes with this one: those of the same names, where
    both have names. A few rows of validation could be taken for something else than the many that
    train."""
    table = look(path, asked=(source, target))
    if table.is_empty or not table.has_names:
        return source, target
    choice = choose(table, roles, source, target)
    names = table.name(choice.source), table.name(choice.target)
    beside = {name.lower() for name in look(other, asked=names).names}
    return names if all(str(name).lower() in beside for name in names) else (source, target)
