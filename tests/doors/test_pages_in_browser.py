"""Pages in a browser: Debian's chromium, driven by Playwright. Skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.pages.attend import ask, attention_page
from regard.pages.shell import Page
from regard.search import Options
from regard.values import CapturedAttention
from tests.unit.test_answers import LETTERS, PICTURE, SOUND, WORDS, untrained
from tests.unit.test_pages import EVIL, softmax

pytestmark = pytest.mark.timeout(600)  # a busy machine starts a browser slowly

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WIDE = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
SHORT = Options(min_new_tokens=4, max_new_tokens=4)
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page from disk. At the end, nothing was requested and no error was reported."""
    contexts: list[Any] = []
    requests: list[str] = []
    problems: list[str] = []

    def opened(page: Page, *, size=WIDE, theme="light", link="", **options: Any) -> Any:
        context = browser.new_context(viewport=size, color_scheme=theme, **options)
        context.set_default_timeout(120_000)
        contexts.append(context)
        tab = context.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text))
        path = page.save(tmp_path / f"page-{len(contexts)}.html")
        tab.goto(f"file://{path}{link}")
        tab.wait_for_selector("html[data-ready=yes]")
        until(tab, "document.querySelector('.legend canvas') !== null")
        return tab

    yield opened
    for context in contexts:
        context.close()
    others = [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    assert not others and not problems
    assert sum(url.startswith("file:") for url in requests) == len(contexts)


def until(tab: Any, expression: str) -> None:
    """Wait until an expression is true. Playwright's own way needs `eval`, which the
    Content-Security-Policy of a page forbids."""
    for _ in range(1200):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(100)
    raise AssertionError(f"never true: {expression[:200]}")


def tensor_page(tokens: int = 5, layers: int = 3, heads: int = 4) -> Page:
    weights = softmax((layers, heads, tokens, tokens))
    return regard.show_weights(weights, [f"t{i}" for i in range(tokens)])


def model_page(name: str, *, beams: int = 1, effect: bool = True) -> Page:
    recipe, tokenizer, value = {
        "text": ("chat-transformer", WORDS, "one two three"),
        "rnn": ("chat-attention", WORDS, "one two three"),
        "linear": ("chat-maclaurin", WORDS, "one two three"),
        "sound": ("speech-attention", LETTERS, SOUND),
        "picture": ("caption-attention", WORDS, PICTURE),
        "no attention": ("chat-lstm", WORDS, "one two three"),
    }[name]
    options = Options(max_new_tokens=4, num_beams=beams)
    subject = ask(untrained(recipe, tokenizer), value, options, name=name, effect=effect)
    return attention_page([subject])


def centre(tab: Any, row: int, column: int, map_number: int = 0) -> tuple[float, float]:
    """Where a cell of a map is in the window."""
    node = tab.locator(".heat").nth(map_number)
    node.scroll_into_view_if_needed()
    left, top, x, y = map(float, node.get_attribute("data-geometry").split())
    box = node.locator("canvas").bounding_box()
    return box["x"] + left + (column + 0.5) * x, box["y"] + top + (row + 0.5) * y


@pytest.mark.parametrize("name", ["text", "rnn", "linear", "sound", "picture", "no attention"])
def test_every_kind_of_model(open_page: Open, name: str):
    page = model_page(name)
    tab = open_page(page)
    view = page.data["views"][0]
    assert name in tab.inner_text("h1")
    assert tab.locator(".chip.step").count() == len(view["names"]["steps"])
    assert tab.locator(".bars").count() >= 2  # alternatives; weights and effects
    titles = [part["title"] for part in view["parts"]]
    shown = tab.locator(".controls .segments").first.locator("button").all_inner_texts()
    assert shown == titles or len(titles) == 1
    text = tab.inner_text("main")
    if name == "no attention":
        assert "has no attention" in text and tab.locator("#heads").count() == 0
    else:
        assert "Weight beside effect" in text and "Rank correlation" in text
    if name == "linear":
        assert "quadratic form" in tab.inner_text(".view h3 >> nth=2")
    if name == "sound":
        assert tab.locator("button.play").is_enabled()
    if name == "picture":
        assert tab.locator(".words button").count() == len(view["names"]["steps"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("tokens", [5, 500])
def test_sizes_and_themes(open_page: Open, theme: str, size: dict[str, int], tokens: int):
    tab = open_page(tensor_page(tokens, layers=2, heads=2), size=size, theme=theme)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) > 380
    assert light == (theme == "light")
    assert tab.locator("canvas").count() < 20  # a canvas, not an element for each cell
    assert tab.evaluate("document.querySelectorAll('*').length") < 400 + 3 * tokens
    tab.click("#theme")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != background


def test_pointing_shows_the_exact_number(open_page: Open):
    weights = softmax((1, 1, 5, 5))
    tab = open_page(regard.show_weights(weights, list("abcde")))
    for row, column in ((0, 0), (3, 1), (4, 4)):
        tab.mouse.move(*centre(tab, row, column))
        exact = float(np.float16(weights[0, 0, row, column]))
        shown = tab.inner_text(".tip")
        assert shown.startswith(f"{'abcde'[row]} → {'abcde'[column]}")
        number = float(shown.rpartition("weight ")[2].replace("\u2212", "-"))
        assert number == pytest.approx(exact, abs=5e-5, rel=0.06)


def test_a_click_selects_and_the_link_keeps_it(open_page: Open):
    page = tensor_page()
    tab = open_page(page)
    tab.mouse.click(*centre(tab, 2, 3))
    tab.click(".segments[aria-label=Head] button[data-value='1']")
    tab.click(".segments[aria-label=Layer] button[data-value='0']")
    address = tab.evaluate("location.hash")
    assert "token=2" in address and "place=3" in address
    assert "layer=0" in address and "head=1" in address
    again = open_page(page, link="#layer=1&head=3&token=4")
    assert again.get_attribute(".segments[aria-label=Layer] [data-value='1']", "aria-checked") == (
        "true"
    )
    assert again.get_attribute(".segments[aria-label=Head] [data-value='3']", "aria-checked") == (
        "true"
    )
    assert again.inner_text(".cell dd >> nth=0") == "t4"
    broken = open_page(page, link="#layer=99&head=x&token=-1&part=nothing")
    assert broken.inner_text(".cell dd >> nth=0") == "t0"


def test_keys_move_the_selected_cell_and_it_is_announced(open_page: Open):
    weights = softmax((2, 2, 5, 5))
    tab = open_page(regard.show_weights(weights, list("abcde")))
    tab.focus(".heat")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "End", "ArrowLeft"):
        tab.keyboard.press(key)
    until(tab, "document.getElementById('announce').textContent.includes('“c” attends to “d”')")
    assert "layer 1, mean of the heads" in tab.inner_text("#announce")
    tab.keyboard.press("]")
    until(tab, "document.getElementById('announce').textContent.includes('head 0')")
    tab.keyboard.press("}")
    until(tab, "document.getElementById('announce').textContent.includes('layer 0')")
    assert tab.evaluate("location.hash") == "#part=weights&layer=0&head=0&token=2&place=3"


def test_tab_reaches_every_control(open_page: Open):
    tab = open_page(tensor_page())
    reached = set()
    for _ in range(20):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.className || document.activeElement.role"))
    assert {"radio", "heat", "chip place"} <= reached


def test_tokens_are_text(open_page: Open):
    evil = [*EVIL, "<img src=x onerror='window.broken=1'>", "<script>window.broken=1</script>"]
    weights = softmax((len(evil), len(evil)))
    title = "<script>window.broken=1</script>"
    tab = open_page(regard.show_weights(weights, evil, title=title))
    assert tab.evaluate("window.broken") is None
    assert tab.inner_text("h1") == title
    assert tab.locator(".chip.place").all_inner_texts()[:2] == EVIL[:2]
    tab.mouse.move(*centre(tab, 7, 6))
    assert evil[7] in tab.inner_text(".tip") and tab.locator(".tip img").count() == 0
    assert tab.evaluate("window.broken") is None


def test_views_are_saved(open_page: Open, tmp_path: Path):
    tab = open_page(tensor_page(), accept_downloads=True)
    with tab.expect_download() as svg:
        tab.click("#save-svg")
    path = tmp_path / "view.svg"
    svg.value.save_as(path)
    text = path.read_text("utf-8")
    assert text.startswith("<svg") and text.count("<rect") == 1 + 25 and ">t4</text>" in text
    with tab.expect_download() as png:
        tab.click("#save-png")
    path = tmp_path / "view.png"
    png.value.save_as(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_heads_are_sorted_and_chosen(open_page: Open):
    tab = open_page(tensor_page(7))
    tab.click("#heads th button:text('entropy')")
    column = tab.locator("#heads tbody tr td:nth-child(4)").evaluate_all(
        "cells => cells.map((cell) => Number(cell.dataset.value))"
    )
    assert column == sorted(column, reverse=True) and len(column) == 12
    tab.click("#heads th button:text('entropy')")
    row = tab.locator("#heads tbody tr").first
    key = row.get_attribute("data-key").split()
    row.click()
    assert f"layer={key[1]}&head={key[2]}" in tab.evaluate("location.hash")
    assert "chosen" in row.get_attribute("class")


def test_a_word_that_is_pointed_at_lights_the_picture(open_page: Open):
    bundle = untrained("caption-attention", WORDS)
    subject = ask(bundle, PICTURE, SHORT, name="picture")
    (cross,) = subject.answer.attention.cross
    sharp = torch.tensor(softmax(tuple(cross.weights.shape))).float()
    attention = CapturedAttention(cross=(replace(cross, weights=sharp),))
    answer = replace(subject.answer, attention=attention)
    tab = open_page(attention_page([replace(subject, answer=answer)]))
    picture = "document.querySelector('.picture canvas').toDataURL()"
    tab.wait_for_timeout(200)
    before = tab.evaluate(picture)
    tab.hover(".chip.step >> nth=2")
    until(tab, f"{picture} !== {before!r}")
    tab.mouse.move(1, 1)
    until(tab, f"{picture} === {before!r}")


def test_the_sound_is_played_and_the_cursor_follows(open_page: Open):
    tab = open_page(model_page("sound"))
    canvas = "document.querySelector('.heat canvas').toDataURL()"
    before = tab.evaluate(canvas)
    tab.click("button.play")
    until(tab, "/ of /.test(document.querySelector('.player output').textContent)")
    until(tab, f"{canvas} !== {before!r}")


def test_a_page_without_effects_says_how_to_get_them(open_page: Open):
    bundle = untrained("chat-attention", WORDS)
    subject = ask(bundle, "one two", SHORT, name="one two", effect_hint="regard attend … --effect")
    tab = open_page(attention_page([subject]))
    tab.click("button.ask-effect")
    assert "regard attend … --effect" in tab.inner_text(".side")


def test_the_beam_is_a_tree(open_page: Open):
    page = model_page("text", beams=3)
    tab = open_page(page)
    nodes = page.data["views"][0]["beam"]["nodes"]
    assert tab.locator("#beam path").count() == len(nodes)
    assert tab.locator("#beam path.best").count() == len(page.data["views"][0]["names"]["steps"])


def test_two_answers_have_a_difference(open_page: Open):
    bundle = untrained("chat-transformer", WORDS)
    four = Options(min_new_tokens=4, max_new_tokens=4)
    subjects = [ask(bundle, text, four, name=text) for text in ("one two", "two one")]
    tab = open_page(attention_page(subjects))
    assert tab.locator(".view").count() == 2
    until(tab, "document.querySelector('.difference .heat').dataset.geometry")
    tab.mouse.move(*centre(tab, 0, 0, 2))
    shown = tab.inner_text(".tip")
    assert "one | two" in shown.lower() and "difference" in shown


def test_a_notebook_shows_the_page_in_a_frame(browser: Any):
    tab = browser.new_page()
    tab.set_content(f"<h1>notebook</h1>{tensor_page()._repr_html_()}")
    frame = tab.frame_locator("iframe")
    frame.locator("html[data-ready=yes]").wait_for(timeout=120_000)
    assert frame.locator(".chip").count() == 5
    tab.close()


def test_a_large_page_opens_fast(open_page: Open):
    tab = open_page(tensor_page(500, layers=8, heads=8))
    # A second on an idle machine; the bound is for one that is busy.
    assert float(tab.get_attribute("html", "data-drawn-after")) < 10_000
