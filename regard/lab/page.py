"""Writes reports to disk: the figure as PNG and SVG, the whole report as one HTML file."""

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
from regard.lab.experiment import Claim, Report, Settings, Table, cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
pre, code { font: 14px/1.45 ui-monospace, monospace }
pre { background: #f5f5f2; padding: 1rem; overflow-x: auto }
div { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.2rem .3rem 0;
  border-bottom: 1px solid #ddd }
td.number, th.number { text-align: right } svg { width: 100%; height: auto }
.holds { color: #00664a; font-weight: 600 } .fails { color: #a33a00; font-weight: 600 }
"""


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


def html(name: str, docstring: str, settings: Settings, report: Report) -> str:
    """The report as a self-contained page: no external scripts, fonts or images."""
    formula = docstring.partition("\n\n")[2]
    claim = claim_of(docstring)
    overrides = [
        f"--set={field}={value}"
        for field, value, _ in described(settings)
        if field in settings.model_fields_set
    ]
    command = shlex.join(["regard", "lab", name, *overrides, "--html"])
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{MADE_BY}">',
        f"<title>{escape(name)}: {escape(claim)}</title>",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(name)}</h1><p>{escape(claim)}</p>",
        "<h2>Claims</h2><div><table>",
        "<tr><th>verdict</th><th>claim</th><th>expected</th><th>measured</th></tr>",
        *map(_claim_row, report.claims),
        "</table></div>",
        f"<h2>Figure</h2>{_inline(svg(report.figure), claim)}",
        *map(_table, report.tables),
        *(f"<p>{escape(note)}</p>" for note in report.notes),
        f"<h2>Formula</h2><pre>{escape(formula.strip(chr(10)))}</pre>",
        _table(Table("Settings", ("field", "value", ""), tuple(described(settings)))),
        f"<h2>Command</h2><pre>{escape(command)}</pre></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _claim_row(claim: Claim) -> str:
    """A claim as a row of the page's first table."""
    if claim.holds:
        verdict = '<td class="holds">holds</td>'
    else:
        verdict = '<td class="fails">does not hold</td>'
    texts = (claim.text, claim.expected, claim.measured)
    return f"<tr>{verdict}{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"


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
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _table(table: Table) -> str:
    """A table as HTML; columns of numbers are aligned right."""
    is_number = [
        all(isinstance(row[column], int | float | None) for row in table.rows)
        for column in range(len(table.columns))
    ]

    def line(tag: str, entries: tuple[object, ...]) -> str:
        cells = []
        for entry, number in zip(entries, is_number, strict=True):
            start = f'<{tag} class="number">' if number else f"<{tag}>"
            cells.append(f"{start}{escape(cell(entry))}</{tag}>")
        return f"<tr>{''.join(cells)}</tr>"

    head = line("th", table.columns)
    body = "\n".join(line("td", row) for row in table.rows)
    return f"<h2>{escape(table.title)}</h2><div><table>{head}\n{body}</table></div>"
