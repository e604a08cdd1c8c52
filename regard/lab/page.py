"""Writes reports to disk: the figure as PNG and SVG, the whole report as one HTML file."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from regard.disk import MADE_BY, write_output
from regard.lab import claim_of
from regard.lab.experiment import Claim, Report, Settings, Table
from regard.pages import shell
from regard.pages.formulas import Formula, Maths
from regard.pages.shell import Page, Section, Verdict

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 72  # of an inch; the unit of matplotlib's SVG
MARGIN = 3.0  # points around a panel


def draw(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg; return their paths."""
    png_path = folder / f"{name}.png"
    svg_path = folder / f"{name}.svg"
    _fix_layout(figure)
    metadata = {"Software": MADE_BY}
    write_output(
        png_path, lambda file: figure.savefig(file, format="png", dpi=144, metadata=metadata)
    )
    write_output(svg_path, lambda file: file.write(svg(figure).encode()))
    return [png_path, svg_path]


def svg(figure: Figure) -> str:
    """The figure as SVG; the same figure gives the same text."""
    import matplotlib

    _fix_layout(figure)
    buffer = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "regard"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": MADE_BY})
    return buffer.getvalue()


def _fix_layout(figure: Figure) -> None:
    """Run the constrained layout once, because each run would move the axes a little."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def report_page(name: str, experiment: ModuleType, settings: Settings, report: Report) -> Page:
    """The report as a page."""
    holding = sum(claim.holds for claim in report.claims)
    sections = (
        Section("Claims", id="claims", tables=(_verdicts(report.claims),)),
        Section("Figure", id="figure", figures=(_drawing(report.figure, name),)),
        Section("Formulas", id="formulas", paragraphs=_explanation(experiment)),
        *(_section(table) for table in report.tables),
        *([Section("Notes", id="notes", paragraphs=report.notes)] if report.notes else []),
        Section("Settings", id="settings", tables=(_settings_table(settings),)),
        Section("Command", id="command", code=_command(name, settings)),
    )
    return Page(
        title=name,
        kind="lab",
        lead=Maths(claim_of(experiment.__doc__)),
        facts=(("result", f"{holding} of {len(report.claims)} claims hold"),),
        sections=sections,
    )


def _verdicts(claims: Sequence[Claim]) -> shell.Table:
    rows = [
        (
            Verdict(claim.holds, "holds" if claim.holds else "does not hold"),
            Maths(claim.text),
            Maths(claim.expected),
            Maths(claim.measured),
        )
        for claim in claims
    ]
    return shell.Table(("verdict", "claim", "expected", "measured"), tuple(rows), wraps=True)


def _section(table: Table) -> Section:
    columns = tuple(map(Maths, table.columns))
    rows = tuple(tuple(map(_typeset, row)) for row in table.rows)
    return Section(Maths(table.title), tables=(shell.Table(columns, rows, digits=4),))


def _typeset(entry: object) -> object:
    return Maths(entry) if isinstance(entry, str) else entry


def _settings_table(settings: Settings) -> shell.Table:
    columns = ("field", "value", "meaning")
    rows = [(field, value, Maths(sentence)) for field, value, sentence in described(settings)]
    return shell.Table(columns, tuple(rows), wraps=True)


def _command(name: str, settings: Settings) -> str:
    """The command that makes the same page again."""
    overrides = [
        f"--set={field}={value}"
        for field, value, _ in described(settings)
        if field in settings.model_fields_set
    ]
    return shlex.join(["regard", "lab", name, *overrides, "--html"])


# ---------------------------------------------------------------------------------- the explanation


def _explanation(experiment: ModuleType) -> tuple[str | Formula, ...]:
    """The docstring below the claim, with its formulas typeset.

    A group of FORMULAS stands for each block of formulas in the docstring.
    """
    groups = iter(experiment.FORMULAS)
    parts: list[str | Formula] = []
    for block in blocks(experiment.__doc__ or ""):
        if is_formula(block):
            parts += next(groups)
        else:
            parts.append(Maths(" ".join(block.split())))
    return tuple(parts)


def blocks(docstring: str) -> list[str]:
    """The paragraphs of a docstring below its claim.

    >>> blocks("A claim.\\n\\nWith a letter:\\n\\n    a = b\\n    c = d\\n\\nAnd so on.")
    ['With a letter:', '    a = b\\n    c = d', 'And so on.']
    """
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return paragraphs[1:]


def is_formula(block: str) -> bool:
    """Whether a paragraph of a docstring is a block of formulas, which is indented."""
    return block.startswith(" ")


# -------------------------------------------------------------------------------------- the drawing


@dataclass(frozen=True)
class Box:
    """A rectangle of a figure, in the units of its SVG; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def __or__(self, other: Box) -> Box:
        return Box(
            min(self.left, other.left),
            min(self.top, other.top),
            max(self.right, other.right),
            max(self.bottom, other.bottom),
        )


def _drawing(figure: Figure, title: str) -> str:
    """The figure as an element of a page: whole on a wide screen, panel below panel on a phone."""
    whole = _inline(svg(figure), title)
    boxes = panels(figure)
    if len(boxes) == 1:
        return f'<div class="drawing wide">{whole}</div>'
    views = "".join(
        f'<svg class="panel" aria-hidden="true" viewBox="{box.left:.1f} {box.top:.1f} '
        f'{box.right - box.left:.1f} {box.bottom - box.top:.1f}"><use href="#figure_1"/></svg>'
        for box in boxes
    )
    return f'<div class="drawing stacked">{whole}{views}</div>'


def panels(figure: Figure) -> list[Box]:
    """What is shown apart where the whole figure is too wide to be read.

    A panel is a part of the figure, or its title, or axes with their colour bars.
    """
    _fix_layout(figure)
    figure.draw_without_rendering()  # texts remember the sizes of the last drawing, an SVG's too
    if figure.subfigs:
        return [_box(figure, part) for part in figure.subfigs]
    boxes = [_box(figure, part) for part in figure.axes if not _is_colour_bar(part)]
    for bar in filter(_is_colour_bar, figure.axes):
        nearest = _left_of(_box(figure, bar), boxes)
        boxes[nearest] |= _box(figure, bar)
    titles = [_box(figure, text) for text in figure.texts]
    return [*titles, *boxes]


def _is_colour_bar(axes: Axes) -> bool:
    return axes.get_label() == "<colorbar>"


def _left_of(bar: Box, boxes: list[Box]) -> int:
    """The nearest box to the left of a colour bar, in the same row."""
    row = [
        number
        for number, box in enumerate(boxes)
        if box.top < bar.bottom and bar.top < box.bottom and box.left < bar.left
    ]
    return max(row, key=lambda number: boxes[number].right)


def _box(figure: Figure, part: Artist) -> Box:
    """The rectangle that a part of a figure draws on, with its title, labels and legend."""
    extent = part.get_tightbbox()
    assert extent is not None  # it is for parts that are invisible
    scale = POINTS / figure.dpi
    height = figure.bbox.height
    return Box(
        extent.x0 * scale - MARGIN,
        (height - extent.y1) * scale - MARGIN,
        extent.x1 * scale + MARGIN,
        (height - extent.y0) * scale + MARGIN,
    )


def described(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value and description of every setting."""
    fields = type(settings).model_fields
    return [
        (name, typed(getattr(settings, name)), " ".join((field.description or "").split()))
        for name, field in fields.items()
    ]


def typed(value: object) -> str:
    """A value as it may be typed after `--set field=`.

    >>> typed("signs"), typed(("signs", "normal")), typed((1, 4)), typed(True)
    ('signs', '["signs", "normal"]', '[1, 4]', 'true')
    """
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _inline(svg_text: str, title: str) -> str:
    """An SVG file as an HTML element, without XML declaration, metadata and namespaces."""
    element = svg_text[svg_text.index("<svg") :]
    before, _, rest = element.partition("<metadata>")
    _, closed, after = rest.partition("</metadata>")
    if closed:
        element = before + after
    element = re.sub(r"(?<!\s)\s+xmlns(:\w+)?=\"[^\"]*\"", "", element)
    element = element.replace('<style type="text/css">*{', "<style>.drawing *{")
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
