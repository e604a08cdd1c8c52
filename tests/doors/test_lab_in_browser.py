"""Pages of the lab in a browser. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard import lab
from regard.lab import experiment, orthogonal
from regard.lab.experiment import Claim, Report, Table
from regard.lab.page import report_page
from regard.pages.shell import Page
from tests.doors.conftest import PHONE, WIDE, Open
from tests.unit.test_lab import Words, stub_page

pytestmark = pytest.mark.timeout(600)  # a busy machine starts a browser slowly

FITS = "document.documentElement.scrollWidth <= innerWidth"
SIZES = """[...document.querySelectorAll("math")].map((math) => {
  const { width, height } = math.getBoundingClientRect();
  return Math.min(width, height);
})"""
SCROLLS = """[...document.querySelectorAll(".formula .scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth).length"""
LIGHTNESS = "(node) => getComputedStyle(node).%s.match(/[\\d.]+/g).slice(0, 3).map(Number)"


@pytest.fixture
def open_page(visit: Open, tmp_path: Path) -> Open:
    """Opens a page of the lab from disk."""

    def opened(page: Page, **options: Any) -> Any:
        return visit(page.save(tmp_path / "page.html"), **options)

    return opened


def page_of(name: str) -> Page:
    """The page of an experiment with a report that takes no time."""
    module = lab.load(name)
    sheet = experiment.figure(11, 4)
    left, right = sheet.subplots(1, 2)
    left.plot([1, 2], [3, 4])
    right.imshow([[1, 2], [3, 4]])
    claims = (Claim("x_n^2 is small", "0", "1e-12", True), Claim("1 is 2", "2", "1", False))
    wide = tuple(f"column {number}" for number in range(12))
    table = Table("numbers", wide, (tuple(range(12)),))
    return report_page(name, module, module.Settings(), Report(claims, (table,), sheet))


@pytest.mark.parametrize("name", lab.names())
def test_formulas_are_typeset_and_fit_a_phone(open_page: Open, name: str):
    tab = open_page(page_of(name), size=PHONE)
    sizes = tab.evaluate(SIZES)
    assert len(sizes) >= sum(map(len, lab.load(name).FORMULAS)) and min(sizes) > 5
    assert tab.evaluate(FITS)
    assert tab.evaluate(SCROLLS) == 0
    assert tab.evaluate("document.querySelector('math').namespaceURI").endswith("MathML")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_a_real_report(open_page: Open, size: dict[str, int], theme: str):
    report = orthogonal.run(orthogonal.Settings())
    page = report_page("orthogonal", orthogonal, orthogonal.Settings(), report)
    tab = open_page(page, size=size, theme=theme)
    assert tab.evaluate(FITS)
    assert tab.inner_text("h1") == "orthogonal"
    assert tab.locator("#claims td.good").all_inner_texts() == ["✓ holds"] * 6
    panels = [panel.is_visible() for panel in tab.locator(".panel").all()]
    assert panels == [size is PHONE] * 2
    for panel in tab.locator(".panel").all() if size is PHONE else [tab.locator(".drawing svg")]:
        box = panel.first.bounding_box()
        assert 250 < box["width"] <= size["width"]
    # A drawing has dark lines, so its paper is white; the rest follows the theme.
    paper = tab.eval_on_selector(".drawing", LIGHTNESS % "backgroundColor")
    assert paper == [255, 255, 255]
    ink = tab.eval_on_selector(".formula math", LIGHTNESS % "color")
    assert (sum(ink) > 380) == (theme == "dark")


def test_a_wide_table_scrolls_in_its_own_box(open_page: Open):
    tab = open_page(page_of("heads"), size=PHONE)
    table = tab.locator("section:has(h2:text('numbers')) .scroll")
    assert table.evaluate("(box) => box.scrollWidth > box.clientWidth") and tab.evaluate(FITS)


def test_verdicts_differ_in_words_and_colours(open_page: Open):
    tab = open_page(page_of("heads"))
    assert tab.inner_text("#claims td.bad") == "✗ does not hold"
    assert tab.inner_text("#claims td.good") == "✓ holds"
    good, bad = (
        tab.eval_on_selector(f"td.{name}", LIGHTNESS % "color") for name in ("good", "bad")
    )
    assert good != bad
    assert tab.inner_text("#claims tbody tr >> nth=0 >> td >> nth=1") == "xn2 is small"
    assert tab.locator("#claims sub").count() == 1


def test_settings_are_text(open_page: Open):
    evil = "</pre></script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    tab = open_page(stub_page(Words(word=evil), evil))
    assert tab.evaluate("window.broken") is None
    assert tab.inner_text("#settings tbody tr:last-child td:nth-child(2)") == evil
    assert tab.locator("img").count() == 0
    assert evil in tab.inner_text("#notes") and "<script>" in tab.inner_text("#command")
