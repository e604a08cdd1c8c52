"""A report on disk: the picture as PNG and SVG, and one HTML page that needs nothing but itself."""

from __future__ import annotations

import json
import re
import shlex
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from regard.disk import MADE_BY, write_output
from regard.lab import claim_of
from regard.lab.experiment import Report, Settings, Table, cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
pre, code { font: 14px/1.45 ui-monospace, monospace } pre { background: #f5f5f2; padding: 1rem; overflow-x: auto }
div { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid #ddd }
td.number, th.number { text-align: right } svg { width: 100%; height: auto }
.holds { color: #00664a; font-weight: 600 } .fails { color: #a33a00; font-weight: 600 }
"""


def draw(figure: Figure, folder: Path, name: str) -> list[Path]:
    """NAME.png and NAME.svg."""
    image, vector = folder / f"{name}.png", folder / f"{name}.svg"
    _settle(figure)
    metadata = {"Software": MADE_BY}
    write_output(image, lambda file: figure.savefig(file, format="png", dpi=144, metadata=metadata))
    write_output(vector, lambda file: file.write(svg(figure).encode()))
    return [image, vector]


def svg(figure: Figure) -> str:
    """The picture as SVG, the same text whenever it is drawn."""
    import matplotlib

    _settle(figure)
    written = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "regard"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": MADE_BY})
    return written.getvalue()


def _settle(figure: Figure) -> None:
    """Lay the picture out once and for all: every drawing would do it anew, and move everything
    a little."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def html(name: str, docstring: str, settings: Settings, report: Report) -> str:
    """The whole report as a page: no script, no font and no picture comes from anywhere else."""
    formula = docstring.partition("\n\n")[2]
    claim = claim_of(docstring)
    given = [
        (field, value)
        for field, value, _ in described(settings)
        if field in settings.model_fields_set
    ]
    command = shlex.join(
        ["regard", "lab", name, *(f"--set={field}={value}" for field, value in given), "--html"]
    )
    rows = [
        f'<tr><td class="{"holds" if each.holds else "fails"}">{"holds" if each.holds else "does not hold"}</td>'
        + "".join(f"<td>{escape(text)}</td>" for text in (each.text, each.expected, each.measured))
        + "</tr>"
        for each in report.claims
    ]
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{MADE_BY}">',
        f"<title>{escape(name)}: {escape(claim)}</title>",
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>',
        f"<h1>{escape(name)}</h1><p>{escape(claim)}</p>",
        "<h2>Claims</h2><div><table><tr><th>verdict</th><th>claim</th><th>expected</th><th>measured</th></tr>",
        *rows,
        "</table></div>",
        f"<h2>Picture</h2>{_inline(svg(report.figure), claim)}",
        *map(_table, report.tables),
        *(f"<p>{escape(note)}</p>" for note in report.notes),
        f"<h2>Formula</h2><pre>{escape(formula.strip(chr(10)))}</pre>",
        _table(Table("Settings", ("field", "value", ""), tuple(described(settings)))),
        f"<h2>Again</h2><pre>{escape(command)}</pre></body></html>",
    ]
    return "\n".join(parts) + "\n"


def described(settings: Settings) -> list[tuple[str, str, str]]:
    """Every field, its value and its sentence."""
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
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _inline(drawn: str, title: str) -> str:
    """An SVG file as an element of a page, which needs neither its head nor its name spaces."""
    element = drawn[drawn.index("<svg") :]
    before, _, rest = element.partition("<metadata>")
    _, closed, after = rest.partition("</metadata>")
    if closed:
        element = before + after
    element = re.sub(r"(?<!\s)\s+xmlns(:\w+)?=\"[^\"]*\"", "", element)
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _table(table: Table) -> str:
    number = [
        all(isinstance(row[column], int | float) or row[column] is None for row in table.rows)
        for column in range(len(table.columns))
    ]

    def line(tag: str, cells: tuple[object, ...]) -> str:
        starts = [f'<{tag} class="number">' if right else f"<{tag}>" for right in number]
        filled = [
            f"{start}{escape(cell(entry))}</{tag}>"
            for start, entry in zip(starts, cells, strict=True)
        ]
        return f"<tr>{''.join(filled)}</tr>"

    body = "\n".join(line("td", row) for row in table.rows)
    return f"<h2>{escape(table.title)}</h2><div><table>{line('th', table.columns)}\n{body}</table></div>"
