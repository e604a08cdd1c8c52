"""The page of a comparison in a browser: sizes, themes, links, and no request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.compare.page import comparison_page
from tests.doors.conftest import PHONE, WIDE, Open
from tests.unit.test_compare_page import comparison
from tests.unit.test_pages import softmax

pytestmark = pytest.mark.timeout(600)  # a busy machine starts a browser slowly

RIGHTS = (0.5, 0.7, 0.55, 0.62)


@pytest.fixture
def open_comparison(visit: Open, tmp_path: Path) -> Open:
    """Opens the page of a comparison from disk, beside the attention page that it links to."""

    def opened(count: int, *, size=WIDE, theme="light", **changes: Any) -> Any:
        path = tmp_path / "comparison.html"
        comparison_page(comparison(RIGHTS[:count], **changes)).save(path)
        (tmp_path / "attention").mkdir(exist_ok=True)
        weights = np.asarray(softmax((2, 3, 5, 5)))
        attention = regard.show_weights(weights, list("abcde"), title="three")
        attention.save(tmp_path / "attention" / "1-a-b-2.html")
        return visit(path, size=size, theme=theme)

    return opened


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_sizes_and_themes(open_comparison: Open, size: dict[str, int], theme: str, count: int):
    tab = open_comparison(count, size=size, theme=theme)
    for details in tab.locator("details > summary").all():
        details.click()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) > 380
    assert light == (theme == "light")
    first = tab.locator("main section").first
    content = comparison(RIGHTS[:count])
    assert content.advice in first.inner_text()
    assert all(pair.verdict in first.inner_text() for pair in content.pairs)
    # the advice is seen without scrolling, in large letters
    advice = first.locator("p").first
    box = advice.bounding_box()
    assert box["y"] + box["height"] <= size["height"]
    large, plain = (
        float(node.evaluate("node => parseFloat(getComputedStyle(node).fontSize)"))
        for node in (advice, tab.locator("#scores p").first)
    )
    assert large >= 1.2 * plain


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_no_text_of_a_chart_is_cut(open_comparison: Open, size: dict[str, int]):
    """Every text lies inside its drawing, also with long names."""
    names = ("a rather long name", "chat-transformer-deep", "GRU", "linear")
    tab = open_comparison(4, size=size, names=names)
    outside = tab.evaluate(
        """[...document.querySelectorAll('svg.chart')].flatMap((chart) => {
          const frame = chart.getBoundingClientRect();
          return [...chart.querySelectorAll('text')].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1);
          }).map((text) => text.textContent);
        })"""
    )
    assert outside == []


def test_the_attention_of_both_is_one_click_away(open_comparison: Open):
    tab = open_comparison(2)
    tab.click("text=side by side")
    tab.wait_for_selector("html[data-ready=yes]")
    assert tab.inner_text("h1") == "three" and tab.locator(".heat").count() >= 1


def test_costs_are_sorted_by_their_numbers(open_comparison: Open):
    tab = open_comparison(4)
    tab.click("#costs th button:text('multiplications of training')")
    names = tab.locator("#costs tbody tr td:first-child").all_inner_texts()
    assert names == ["linear attention", "Transformer", "GRU", "LSTM"]


def test_names_are_text(open_comparison: Open):
    evil = "<img src=x onerror='window.broken=1'><script>window.broken=1</script>"
    tab = open_comparison(2, names=(evil, "GRU"), question=evil)
    assert tab.inner_text("h1") == evil and tab.locator("main img").count() == 0
    assert tab.evaluate("window.broken") is None


def test_a_page_of_a_phone_shows_examples_as_cards(open_comparison: Open):
    tab = open_comparison(2, size=PHONE)
    cell = tab.locator("table.wraps td[data-label='right answer']").first
    assert cell.inner_text() == "uno dos"
    label = "node => getComputedStyle(node, '::before').content"
    assert cell.evaluate(label).strip('" ') == "right answer"
