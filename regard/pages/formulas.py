"""Formulas: LaTeX to MathML, which browsers typeset without a script."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from xml.etree import ElementTree

# What latex2mathml may write: elements of MathML Core, and attributes that hold no address and no
# code. Each element stands with its number of children; None means any number.
CHILDREN = {
    "math": None,
    "mi": 0,
    "mn": 0,
    "mo": 0,
    "mtext": 0,
    "mspace": 0,
    "mrow": None,
    "mstyle": None,
    "mpadded": None,
    "msqrt": None,
    "mroot": 2,
    "mfrac": 2,
    "msub": 2,
    "msup": 2,
    "msubsup": 3,
    "munder": 2,
    "mover": 2,
    "munderover": 3,
    "mtable": None,
    "mtr": None,
    "mtd": None,
}
ATTRIBUTES = {
    "accent",
    "columnalign",
    "columnspacing",
    "display",
    "displaystyle",
    "fence",
    "form",
    "largeop",
    "linethickness",
    "mathvariant",
    "maxsize",
    "minsize",
    "movablelimits",
    "rowspacing",
    "scriptlevel",
    "separator",
    "stretchy",
    "width",
}
ACCENTS = {"~", "^", "¯", "˙", "→"}
NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
LEFT_AND_RIGHT = re.compile(r"\\[{}]|[{}]")


@dataclass(frozen=True)
class Formula:
    """A formula on a line of its own.

    latex    what is typeset
    caption  what it says, in a few words
    plain    the same formula as text, for readers that know no MathML; without it, the LaTeX
    """

    latex: str
    caption: str = ""
    plain: str = ""

    @property
    def mathml(self) -> str:
        return mathml(self.latex, plain=self.plain)


class FormulaError(ValueError):
    """A formula of this package that cannot be typeset: a mistake of its programmer."""


@cache
def mathml(latex: str, *, display: bool = True, plain: str = "") -> str:
    """A formula as a `math` element: on a line of its own, or within a line of text.

    >>> mathml("2", display=False)
    '<math display="inline" alttext="2"><mrow><mn>2</mn></mrow></math>'
    """
    from latex2mathml.converter import convert

    _check_braces(latex)
    try:
        text = convert(latex, display="block" if display else "inline")
        root = ElementTree.fromstring(text)  # noqa: S314 (what our own formulas became)
    except Exception as error:  # latex2mathml has no common class of errors
        problem = str(error) or type(error).__name__
        raise FormulaError(f"cannot be read: {problem}; got {latex}") from error
    _clean(root, latex)
    root.set("alttext", plain or latex)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, latex: str) -> None:
    """Check an element and those in it, and correct what latex2mathml writes for browsers' sake."""
    tag = element.tag.removeprefix(NAMESPACE)
    element.tag = tag  # within HTML, MathML needs no namespace
    if tag not in CHILDREN:
        raise FormulaError(f"not an element of MathML: {tag}; got {latex}")
    if CHILDREN[tag] not in (None, len(element)):
        raise FormulaError(f"{tag} has {len(element)} parts; got {latex}")
    if unknown := set(element.attrib) - ATTRIBUTES:
        raise FormulaError(f"not allowed: {', '.join(sorted(unknown))}; got {latex}")
    if "\\" in (element.text or ""):
        raise FormulaError(f"no such command: {element.text}; got {latex}")

    for child in element:
        _clean(child, latex)
    _correct(element)


def _correct(element: ElementTree.Element) -> None:
    """Names and the sign of a transpose are identifiers, which have no space around them, brackets
    are operators, and accents lie close."""
    text = element.text or ""
    is_name = len(text) > 1 and text.isalpha()
    if element.tag == "mo" and (is_name or text == "⊤"):
        element.tag = "mi"
    if element.tag == "mi" and text in {"⌈", "⌉", "⌊", "⌋", "|", "‖"}:
        element.tag = "mo"
        element.set("stretchy", "false")
    if element.tag == "mover" and (element[1].text or "") in ACCENTS:
        element.set("accent", "true")


def _check_braces(latex: str) -> None:
    """latex2mathml accepts braces without a partner."""
    depth = 0
    for match in LEFT_AND_RIGHT.finditer(latex):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth < 0:
            break
    if depth:
        raise FormulaError(f"a brace has no partner; got {latex}")
