"""Formulas: LaTeX to MathML, which browsers typeset without a script; and x_n^2 within a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from regard.errors import printable

if TYPE_CHECKING:
    from markupsafe import Markup

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
    "lspace",
    "mathvariant",
    "maxsize",
    "minsize",
    "movablelimits",
    "rowspacing",
    "rspace",
    "scriptlevel",
    "separator",
    "stretchy",
    "width",
}
ACCENTS = {"~", "^", "¯", "˙", "→"}
NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
BREAK = re.compile(r"(?<=\\quad) +| *\\allowbreak +")
LEFT_AND_RIGHT = re.compile(r"\\[{}]|[{}]")

# Within a text: `code`, or a letter (also dW, sum, theta, … or a bracket) with indices and powers.
# Longer words before an underscore are names, such as head_width.
MARKED = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|(?P<base>(?<![\w.])(?:d?[A-Za-zθφσ]~?|sum|theta|sigma|logits|\d+)|[)\]|'])"
    r"(?P<marks>(?:[_^](?:\{[^{}]*\}|\([^()]*\)|[A-Za-z0-9]+))+)"
)
MARK = re.compile(r"([_^])(?:\{([^{}]*)\}|(\([^()]*\))|([A-Za-z0-9]+))")
SYMBOLS = (
    (re.compile(r"([A-Za-z])~"), "\\1\u0303"),
    (re.compile(r"\bsqrt\((\w+)\)"), r"√\1"),
    (re.compile(r"\bsqrt(?=\()"), "√"),
    (re.compile(r"\btheta\b"), "θ"),
    (re.compile(r"\bsigma\b"), "σ"),
    (re.compile(r"\bphi\b"), "φ"),
    (re.compile(r"\byhat\b"), "ŷ"),
    (re.compile(r" kron "), " ⊗ "),
    (re.compile(r"(?<=[\d\w]) x (?=[\dA-Z])"), " × "),
    (re.compile(r"!="), "≠"),
    (re.compile(r">="), "≥"),
    (re.compile(r"<="), "≤"),
    (re.compile(r"->"), "→"),
    (re.compile(r"(?<= )-(?= )"), "−"),
)


@dataclass(frozen=True)
class Formula:
    r"""A formula on a line of its own.

    latex    what is typeset; on a narrow screen a line may end after `\quad` and at `\allowbreak`
    caption  what it says, in a few words
    plain    the same formula as text, for readers that know no MathML
    """

    latex: str
    caption: str = ""
    plain: str = ""

    @property
    def parts(self) -> list[str]:
        """The `math` elements between which a line may break. Browsers do not break within one."""
        return [mathml(part) for part in BREAK.split(self.latex)]


class FormulaError(ValueError):
    """A formula of this package that cannot be typeset: a mistake of its programmer."""


@cache
def mathml(latex: str, *, display: bool = True) -> str:
    """A formula as a `math` element: on a line of its own, or within a line of text.

    It holds nothing but MathML, and its LaTeX as an alternative text.

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
    root.set("alttext", latex)
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
    are operators, bars have no space either, and accents lie close."""
    text = element.text or ""
    is_name = len(text) > 1 and text.isalpha()
    if element.tag == "mo" and (is_name or text == "⊤"):
        element.tag = "mi"
    if element.tag == "mi" and text in {"⌈", "⌉", "⌊", "⌋", "|", "‖"}:
        element.tag = "mo"
        element.set("stretchy", "false")
    if element.tag == "mo" and text in {"|", "‖"}:
        element.set("lspace", "0")
        element.set("rspace", "0")
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


# ------------------------------------------------------------------------------------ within a text


class Maths(str):
    """A text with the notation of a docstring, x_n^2 and sqrt(K), which a page typesets."""

    __slots__ = ()


def typeset(text: str) -> Markup:
    """A text as HTML, with indices, powers and symbols; everything else is text.

    >>> print(typeset("x_n^2 <= sqrt(K), see `head_width`"))
    x<sub>n</sub><sup>2</sup> ≤ √K, see <code>head_width</code>
    """
    from markupsafe import Markup

    parts: list[Markup] = []
    end = 0
    for match in MARKED.finditer(text):
        parts.append(_symbols(text[end : match.start()]))
        parts.append(_marked(match))
        end = match.end()
    parts.append(_symbols(text[end:]))
    return Markup().join(parts)


def _marked(match: re.Match[str]) -> Markup:
    """Code, or a letter with its indices and powers."""
    from markupsafe import Markup, escape

    if match["code"]:
        return Markup("<code>{}</code>").format(printable(match["code"]))
    base = match["base"]
    parts = [escape("∑") if base == "sum" else _symbols(base)]
    for sign, braced, bracketed, word in MARK.findall(match["marks"]):
        element = Markup("<sub>{}</sub>") if sign == "_" else Markup("<sup>{}</sup>")
        mark = braced or word or _without_brackets(bracketed)
        parts.append(element.format(_symbols(mark)))
    return Markup().join(parts)


def _without_brackets(mark: str) -> str:
    """W^(h) keeps its brackets, because it is no power; 2^(-8h/H) needs none."""
    return mark if len(mark) == 3 else mark[1:-1]


def _symbols(text: str) -> Markup:
    from markupsafe import escape

    for pattern, symbol in SYMBOLS:
        text = pattern.sub(symbol, text)
    return escape(printable(text))
