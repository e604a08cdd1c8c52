"""Formulas: every one of the package is typeset, and none can bring anything but MathML."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import chain
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import lab
from regard.pages.formulas import ATTRIBUTES, CHILDREN, Formula, FormulaError, mathml, typeset
from regard.pages.shell import Page, Section

ALL = [
    pytest.param(formula.latex, id=f"{name}-{number}")
    for name in lab.names()
    for number, formula in enumerate(chain(*lab.load(name).FORMULAS))
]


class Tags(HTMLParser):
    """The elements of a text as a browser finds them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("latex", ALL)
@pytest.mark.parametrize("display", [True, False])
def test_every_formula_of_the_package(latex: str, display: bool):
    for part in Formula(latex).parts:
        assert part.startswith("<math") and "xmlns" not in part and "http" not in part
    for part in latex.split(r"\allowbreak"):
        root = ElementTree.fromstring(mathml(part, display=display))
        assert root.get("display") == ("block" if display else "inline")
        assert root.get("alttext") == part
        for element in root.iter():
            assert element.tag in CHILDREN
            assert set(element.attrib) <= ATTRIBUTES | {"alttext"}
            assert "\\" not in (element.text or "")
        leaves = [element for element in root.iter() if not len(element) and element.text]
        assert leaves


def test_letters_operators_and_names():
    assert "<msubsup><mi>W</mi><mi>h</mi><mi>v</mi></msubsup>" in mathml("W_h^v")
    assert "<mi>softmax</mi>" in mathml(r"\operatorname{softmax}(x)")
    assert "<mi>⊤</mi>" in mathml(r"A^\top")
    assert '<mover accent="true"><mi>y</mi><mo' in mathml(r"\hat y")
    assert "<mo>&lt;</mo>" in mathml("a < b")
    assert mathml("|a|").count('lspace="0" rspace="0">|</mo>') == 2


@pytest.mark.parametrize(
    ("latex", "problem"),
    [
        (r"\softmax(x)", r"no such command: \\softmax"),
        (r"\frac{a}", "mfrac has 1 parts"),
        ("{a", "a brace has no partner"),
        ("a}", "a brace has no partner"),
        ("}a{", "a brace has no partner"),
        ("x_", "cannot be read"),
        ("a_b_c", "cannot be read"),
        ("", "cannot be read"),
        (r"\begin{aligned} a &= b \end{aligned}", "cannot be read"),
        (r"\href{https://example.org}{a}", "not allowed: href|has 1 parts"),
        (r"\href{javascript:alert(1)}{a}", "not allowed: href|has 1 parts"),
        (r"\class{a}{b}", "not allowed: class|no such command"),
        (r"\text{<script>}", "cannot be read"),
        (r"\text{<script></script>}", "mtext has 1 parts"),
    ],
)
def test_what_cannot_be_typeset_is_an_error(latex: str, problem: str):
    with pytest.raises(FormulaError, match=problem) as error:
        mathml(latex)
    assert str(error.value).endswith(f"got {latex}")


def test_braces_may_be_shown():
    assert "{" in mathml(r"\{a\}")


def test_a_formula_breaks_only_where_it_may():
    formula = Formula(r"a = b, \quad c = d \allowbreak = e")
    assert len(formula.parts) == 3
    assert [part.count("<mo>=</mo>") for part in formula.parts] == [1, 1, 1]
    assert len(Formula(r"a \qquad b").parts) == 1


def test_a_page_shows_formulas_between_its_texts():
    formula = Formula("a_n", "a <b> of x_n^2", plain='a "n"')
    section = Section("s", paragraphs=("before it", formula, "after it"))
    written = Page("title", (section,)).html
    assert written.index("before it") < written.index("<math") < written.index("after it")
    assert "a &lt;b&gt; of x<sub>n</sub><sup>2</sup>" in written
    assert 'role="math" aria-label="a &#34;n&#34;"' in written
    assert "x<sub>" not in Page("x_n", (Section("x_n", paragraphs=("x_n^2",)),)).html


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_nn", "a<sub>nn</sub>"),
        ("W_h^o and W^(h)", "W<sub>h</sub><sup>o</sup> and W<sup>(h)</sup>"),
        ("10000^(-2j/D)", "10000<sup>-2j/D</sup>"),
        ("sum_{m != n} x_m", "∑<sub>m ≠ n</sub> x<sub>m</sub>"),
        ("|x|_4^4, (a.b)^2", "|x|<sub>4</sub><sup>4</sup>, (a.b)<sup>2</sup>"),
        ("dc~ = 1 - c~^2", "dc\u0303 = 1 − c\u0303<sup>2</sup>"),
        ("da_next", "da<sub>next</sub>"),
        ("sqrt(K), sqrt(N (N - 1))", "√K, √(N (N − 1))"),
        ("head_width and regard.lab.x_y", "head_width and regard.lab.x_y"),
        ("`check_gradients`", "<code>check_gradients</code>"),
        ("5e-2, below 1e-10", "5e-2, below 1e-10"),
    ],
)
def test_notation_within_a_text(text: str, expected: str):
    assert typeset(text) == expected


@given(st.text("ab_^{}()`<>&\"' x~|-\x1b\n"))
def test_no_text_becomes_markup(text: str):
    found = Tags(str(typeset(text)))
    assert set(found.tags) <= {"sub", "sup", "code"}
    assert not set(found.text) & {"\x1b", "\n"}
