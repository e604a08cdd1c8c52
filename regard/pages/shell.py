"""The shell of every page: header, sections, tables and data, as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard import disk
from regard.errors import printable, turn_lines
from regard.pages.formulas import Formula, Maths, typeset

NOTEBOOK_HEIGHT = 760  # pixels of a page in a notebook
LONGEST = 200  # characters of a text that has to fit into a cell


@dataclass(frozen=True)
class Verdict:
    """A cell of a table that says in words whether something is as it should be."""

    good: bool
    text: str

    def __str__(self) -> str:
        return f"{'✓' if self.good else '✗'} {self.text}"


@dataclass(frozen=True)
class Entry:
    """A cell of a table with a text of its own: a number that is written in another way, or a link
    to a file beside the page."""

    text: str
    value: float | None = None
    link: str = ""


class Turns(str):
    """A cell of a table with a line for each turn of a history."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """A table that a person can sort by each column. Numbers are aligned right; None is a dash.

    digits  of a number that is not whole
    wraps   cells hold sentences: they wrap, and on a phone each row becomes a block of lines
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    caption: str = ""
    digits: int = 3
    wraps: bool = False

    @property
    def is_number(self) -> list[bool]:
        """For each column, whether it holds numbers only."""
        return [
            all(_is_number(row[i]) or row[i] is None for row in self.rows)
            for i in range(len(self.columns))
        ]


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading: paragraphs, tables, drawings, and what the script draws.

    paragraphs    texts, and formulas where the text needs them
    widget        the name of a drawing of page.js, which fills this section; "" for none
    figures       SVG elements that regard drew itself
    links         names and addresses of files beside the page
    is_collapsed  whether only its title is seen until it is opened
    is_verdict    whether its paragraphs are large: what a reader has to know first
    """

    title: str
    id: str = ""
    paragraphs: tuple[str | Formula, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[str, ...] = ()
    widget: str = ""
    code: str = ""
    links: tuple[tuple[str, str], ...] = ()
    is_collapsed: bool = False
    is_verdict: bool = False

    @property
    def text(self) -> str:
        """Its paragraphs as plain text."""
        lines = [
            part.plain or part.latex if isinstance(part, Formula) else part
            for part in self.paragraphs
        ]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Page:
    """A page: one HTML file. A notebook shows it in a frame.

    >>> page = regard.show(answer)  # doctest: +SKIP
    >>> page.save("attention.html")  # doctest: +SKIP
    """

    title: str
    sections: tuple[Section, ...]
    kind: str = ""  # what it shows, beside the wordmark: "attend", "compare", …
    lead: str = ""  # a sentence below the title
    facts: tuple[tuple[str, str], ...] = ()  # names and values below it
    data: Mapping[str, Any] = field(default_factory=dict)  # what page.js draws
    arrays: Mapping[str, str] = field(default_factory=dict)  # texts of `regard.pages.arrays`
    refresh: int = 0  # seconds after which an open page is loaded again; 0: never

    @property
    def html(self) -> str:
        """The whole file."""
        return render(self)

    def save(self, path: Path | str) -> Path:
        """Write the page. A file that regard did not write is not overwritten."""
        path = Path(path)
        disk.write_output(path, lambda file: file.write(self.html.encode("utf-8")))
        return path

    def __repr__(self) -> str:
        return f"Page({self.title!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame, so that styles and scripts stay apart."""
        return (
            f'<iframe title="{html.escape(self.title)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{NOTEBOOK_HEIGHT}px;border:0" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )


def render(page: Page) -> str:
    """The HTML of a page."""
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return _template().render(
        page=page,
        made_by=disk.MADE_BY,
        style=_file("page.css"),
        script=script,
        script_hash=digest,
        data=json_text(page.data),
        arrays=page.arrays,
    )


def json_text(data: Any) -> str:
    """Data as JSON that may stand inside an HTML element: nothing in it can end the element.

    >>> print(json_text({"token": "</script>"}))
    {"token": "\\u003c/script\\u003e"}
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(", ", ": "))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _file(name: str) -> str:
    return (files("regard.pages") / name).read_text("utf-8")


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = cell
    environment.filters["plain"] = printable
    environment.filters["printable"] = shown
    environment.filters["typeset"] = typeset
    environment.tests["formula"] = lambda value: isinstance(value, Formula)
    environment.tests["verdict"] = lambda value: isinstance(value, Verdict)
    environment.tests["turns"] = lambda value: isinstance(value, Turns)
    environment.filters["sort_value"] = _sort_value
    environment.filters["link"] = lambda value: value.link if isinstance(value, Entry) else ""
    return environment.from_string(_file("page.html"))


def cut(text: str, most: int = LONGEST) -> str:
    """A text of at most so many characters.

    >>> cut("a dog sits", 6), cut("a dog", 6)
    ('a dog…', 'a dog')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shown(value: object) -> str:
    """A text as a page shows it."""
    return typeset(value) if isinstance(value, Maths) else printable(value)


def cell(value: object, digits: int = 3) -> str:
    """A value as a cell of a table shows it.

    >>> cell(0.123456), cell(1200), cell(None), cell("a\\nb")
    ('0.123', '1,200', '–', 'a\\\\nb')
    """
    if value is None:
        return "–"
    if isinstance(value, Entry):
        return printable(value.text)
    if isinstance(value, Turns):
        return "\n".join(turn_lines(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
    return shown(value)


def _sort_value(value: object) -> object:
    """The number by which a cell is sorted; the empty text is last."""
    number = value.value if isinstance(value, Entry) else value
    return "" if number is None else number


def _is_number(value: object) -> bool:
    if isinstance(value, Entry):
        return value.value is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def names(values: Sequence[object]) -> list[str]:
    """Names as a page shows them: without control characters, and never empty.

    >>> names([" a", "", "\\x1b"])
    ['a', '·', '\\\\x1b']
    """
    return [printable(str(value).strip()) or "·" for value in values]
