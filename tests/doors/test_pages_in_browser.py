"""Pages of attention in a browser. Skipped where there is none."""

from __future__ import annotations

import io
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops

import regard
from regard.pages.arrays import Arrays
from regard.pages.attend import Subject, ask, attention_page
from regard.pages.shell import Page, Section
from regard.pages.views import Part, View, page_data
from regard.search import Options
from regard.values import CapturedAttention
from tests.doors.conftest import PHONE, WIDE, Open
from tests.unit.test_answers import LETTERS, PICTURE, SOUND, WORDS, untrained
from tests.unit.test_pages import EVIL, softmax

pytestmark = pytest.mark.timeout(600)  # a busy machine starts a browser slowly

SHORT = Options(min_new_tokens=4, max_new_tokens=4)


@pytest.fixture
def open_page(visit: Open, tmp_path: Path) -> Open:
    """Opens a page of attention from disk."""

    def opened(page: Page, **options: Any) -> Any:
        path = page.save(tmp_path / f"page-{len(list(tmp_path.glob('page-*')))}.html")
        return visit(path, ready="html[data-ready=yes]", **options)

    return opened


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


KINDS = {
    "text": ("chat-transformer", WORDS, "one two three"),
    "long text": ("chat-transformer", WORDS, "one two three " * 100),
    "rnn": ("chat-attention", WORDS, "one two three"),
    "linear": ("chat-maclaurin", WORDS, "one two three"),
    "sound": ("speech-attention", LETTERS, SOUND),
    "picture": ("caption-attention", WORDS, PICTURE),
    "no attention": ("chat-lstm", WORDS, "one two three"),
}


def model_subject(name: str, options: Options = SHORT, **how: Any) -> Subject:
    recipe, tokenizer, value = KINDS[name]
    changes = ["data.max_source=400"] if name == "long text" else []
    return ask(untrained(recipe, tokenizer, *changes), value, options, name=name, **how)


def model_page(name: str, *, beams: int = 1) -> Page:
    return attention_page([model_subject(name, Options(max_new_tokens=4, num_beams=beams))])


def map_page(*names: tuple[list[str], list[str]]) -> Page:
    """A page of maps whose rows and columns have these names."""
    views = []
    for seed, (rows, columns) in enumerate(names):
        weights = softmax((1, len(rows), len(columns)), seed)
        part = Part("weights", "Weights", "Rows to columns", "steps", "places", ((0, weights),))
        views.append(View(f"view {seed}", {"steps": rows, "places": columns, "read": []}, (part,)))
    data = page_data(views, Arrays())
    section = Section("", widget="attention")
    return Page("maps", (section,), data=data.json, arrays=data.arrays)


def address(tab: Any) -> dict[str, str]:
    """What the address of a page selects."""
    words = tab.evaluate("location.hash").removeprefix("#").split("&")
    return dict(word.split("=") for word in words)


def visible_maps(tab: Any) -> int:
    return tab.locator(".heat").filter(visible=True).count()


def downloaded(tab: Any, kind: str) -> bytes:
    with tab.expect_download() as download:
        tab.click(f"#save-{kind}")
    return Path(download.value.path()).read_bytes()


def centre(tab: Any, row: int, column: int, map_number: int = 0) -> tuple[float, float]:
    """Where a cell of a map is in the window."""
    node = tab.locator(".heat").nth(map_number)
    node.scroll_into_view_if_needed()
    left, top, x, y = map(float, node.get_attribute("data-geometry").split())
    box = node.locator("canvas").bounding_box()
    return box["x"] + left + (column + 0.5) * x, box["y"] + top + (row + 0.5) * y


@pytest.mark.parametrize(
    ("size", "theme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide light", "phone dark"]
)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model(open_page: Open, name: str, size: dict[str, int], theme: str):
    page = model_page(name)
    tab = open_page(page, size=size, theme=theme)
    assert fits(tab) and is_light(tab) == (theme == "light")
    view = page.data["views"][0]
    assert name in tab.inner_text("h1")
    assert tab.locator(".chip.step").count() == len(view["names"]["steps"])
    assert tab.locator(".bars").count() >= 2  # alternatives; weights and effects
    titles = [part["title"] for part in view["parts"] if part["id"] != "effect"]
    shown = tab.locator(".segments[aria-label=Show] button").all_inner_texts()
    assert shown == (titles if len(titles) > 1 else [])
    text = tab.inner_text("main")
    if name == "no attention":
        assert "has no attention" in text and tab.locator("#heads").count() == 0
        assert visible_maps(tab) == 1 and tab.locator("#effects").count() == 0
    else:
        assert "Weight beside effect" in text and "Rank correlation" in text
        assert visible_maps(tab) == 2
    if name == "long text":
        assert tab.locator(".chip.place").count() == len(view["names"]["places"]) == 301
    if name == "linear":
        assert "quadratic form" in tab.inner_text(".maps h3 >> nth=0")
    if name == "sound":
        assert tab.locator("button.play").is_enabled()
    if name == "picture":
        assert tab.locator(".words button").count() == len(view["names"]["steps"])


def fits(tab: Any) -> bool:
    """Whether nothing sticks out of the window on its right side."""
    return tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def is_light(tab: Any) -> bool:
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) > 380


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_page_is_used_with_pointer_keys_and_link(open_page: Open, name: str):
    subject = model_subject(name)
    page = attention_page([subject])
    tab = open_page(page)
    names = page.data["views"][0]["names"]
    if subject.answer.attention.cross:
        last = subject.answer.attention.cross[-1].weights[0].mean(0).numpy()
    else:
        assert subject.effect is not None
        last = subject.effect

    tab.mouse.move(*centre(tab, 1, 2))
    tip = tab.inner_text(".tip")
    assert tip.startswith(names["steps"][1]) and names["places"][2] in tip
    (number,) = re.findall(r"(?:weight|falls by) (\S+?),?(?: |$)", tip)
    assert float(number.replace("\u2212", "-")) == pytest.approx(last[1, 2], abs=2e-4, rel=0.06)

    tab.mouse.click(*centre(tab, 1, 2))
    assert (address(tab)["token"], address(tab)["place"]) == ("1", "2")
    for key in ("ArrowDown", "ArrowLeft"):
        tab.keyboard.press(key)
    row, column = names["steps"][2], names["places"][1]
    until(tab, f"document.getElementById('announce').textContent.includes('“{column}”')")
    assert f"“{row}”" in tab.inner_text("#announce")
    assert tab.inner_text(".cell dd >> nth=0") == row

    again = open_page(page, link=tab.evaluate("location.hash"))
    assert again.inner_text(".cell dd >> nth=0") == row
    assert again.inner_text(".cell dd >> nth=1") == column
    assert address(again) == address(tab)


@pytest.mark.parametrize("name", KINDS)
def test_no_name_of_any_kind_of_page_becomes_markup(open_page: Open, name: str):
    evil = [*EVIL, "<img src=x onerror='window.broken=1'>", "<script>window.broken=1</script>"]
    subject = model_subject(name)
    answer = subject.answer
    places = tuple(evil[i % len(evil)] for i in range(len(answer.place_names)))
    pieces = tuple(evil[-1 - i % 4] for i in range(len(answer.pieces)))
    answer = replace(answer, text=evil[-1], pieces=pieces, place_names=places)
    page = attention_page([replace(subject, name=evil[-2], answer=answer)], lead=evil[-1])
    tab = open_page(page, accept_downloads=True)
    assert evil[-1] in tab.inner_text("h1") and evil[-2] in tab.inner_text("h1")
    tab.mouse.move(*centre(tab, 0, 0))
    assert evil[0] in tab.inner_text(".tip")
    tab.mouse.click(*centre(tab, 0, 1))
    assert evil[1] in tab.inner_text(".cell")
    svg = downloaded(tab, "svg").decode("utf-8")
    assert "<script" not in svg and "&lt;script&gt;" in svg and "<img" not in svg
    assert tab.locator("script:not([type])").count() == 1
    assert tab.evaluate("document.querySelector('img[src=x]')") is None
    assert tab.evaluate("window.broken") is None


@pytest.mark.parametrize("name", ["text", "rnn", "linear", "sound", "picture"])
def test_a_button_shows_effects_beside_weights(open_page: Open, name: str):
    page = model_page(name)
    tab = open_page(page)
    cross, *_, effect = page.data["views"][0]["parts"]
    layer = cross["layers"][-1]
    pictures = tab.locator(".pictures canvas").filter(visible=True)
    pages_pictures = 2 if name == "picture" else 0
    assert tab.get_attribute("#effects", "aria-pressed") == "true"
    assert visible_maps(tab) == 2 and pictures.count() == pages_pictures
    for step in (2, 0):
        tab.click(f".chip.step >> nth={step}")
        numbers = tab.locator(".statement b").all_inner_texts()
        rounded = [f"{layer['correlations'][step]:.2f}", f"{layer['correlation']:.2f}"]
        assert [number.replace("\u2212", "-") for number in numbers] == [
            re.sub(r"^-0\.00$", "0.00", number) for number in rounded
        ]
    assert tab.locator(".cell dt").all_inner_texts()[-1] == "effect (nats)"
    assert effect["about"] in tab.inner_text(".effects h3")

    tab.click("#effects")
    assert visible_maps(tab) == 1 and pictures.count() == pages_pictures // 2
    assert "Largest weights" in tab.inner_text(".side") and "effect" not in tab.inner_text(".side")
    assert address(tab)["effects"] == "off"
    again = open_page(page, link=tab.evaluate("location.hash"))
    assert visible_maps(again) == 1
    again.keyboard.press("e")
    assert visible_maps(again) == 2 and "effects" not in address(again)


def test_effects_follow_the_head(open_page: Open):
    page = model_page("text")
    tab = open_page(page, link="#layer=0&head=1&token=3")
    heads = page.data["views"][0]["parts"][0]["layers"][0]["heads"]
    shown = tab.locator(".statement b").first.inner_text().replace("\u2212", "-")
    assert float(shown) == pytest.approx(heads[1]["correlations"][3], abs=0.0051)
    tab.click(".segments[aria-label=Show] button >> nth=1")
    assert tab.locator("#effects").is_disabled() and visible_maps(tab) == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("tokens", [5, 500])
def test_sizes_and_themes(open_page: Open, theme: str, size: dict[str, int], tokens: int):
    tab = open_page(tensor_page(tokens, layers=2, heads=2), size=size, theme=theme)
    assert fits(tab) and is_light(tab) == (theme == "light")
    assert tab.locator("canvas").count() < 20  # a canvas, not an element for each cell
    assert tab.evaluate("document.querySelectorAll('*').length") < 400 + 3 * tokens
    tab.click("#theme")
    assert is_light(tab) != (theme == "light")


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


def test_small_maps_are_saved_as_rectangles_with_their_numbers(open_page: Open):
    tab = open_page(tensor_page(), accept_downloads=True)
    text = downloaded(tab, "svg").decode("utf-8")
    assert text.startswith("<svg") and "<title>made by regard</title>" in text
    assert len(re.findall(r"<rect [^>]*><title>t\d → t\d: [\d.e-]+</title>", text)) == 25
    assert ">t4</text>" in text and ">Attention weights</text>" in text
    large = open_page(tensor_page(500, 1, 1), accept_downloads=True)
    assert "data:image/png" in downloaded(large, "svg").decode("utf-8")


def two_subjects(name: str) -> list[Subject]:
    """Two answers; those of a text differ in size."""
    first = model_subject(name)
    if name not in ("text", "no attention"):
        return [first, replace(first, name="again")]
    assert first.bundle is not None
    return [first, ask(first.bundle, "one three", SHORT, name="other")]


@pytest.mark.parametrize(
    ("name", "count", "size"),
    [
        ("text", 1, WIDE),
        pytest.param("text", 2, WIDE, marks=pytest.mark.long),
        ("text", 2, PHONE),
        ("sound", 1, WIDE),
        pytest.param("sound", 2, PHONE, marks=pytest.mark.long),
        pytest.param("picture", 1, PHONE, marks=pytest.mark.long),
        ("picture", 2, WIDE),
        ("no attention", 2, WIDE),
    ],
)
def test_what_is_saved_is_what_one_sees(
    open_page: Open, name: str, count: int, size: dict[str, int]
):
    page = attention_page(two_subjects(name)[:count])
    tab = open_page(page, size=size, accept_downloads=True)
    tab.wait_for_timeout(500)
    png = Image.open(io.BytesIO(downloaded(tab, "png"))).convert("RGB")
    svg = downloaded(tab, "svg").decode("utf-8")
    titles = tab.locator(".view h3, .difference h3").filter(visible=True).all_inner_texts()
    words = "".join(re.findall(r">([^<]*)</text>", svg)).replace(" ", "")
    assert all(title.replace(" ", "") in words for title in titles)
    assert ("Difference:secondminusfirst" in words) == (count == 2)
    sizes = re.findall(r"· (\d+) × (\d+)", tab.inner_text(".views"))
    cells = sum(int(rows) * int(columns) for rows, columns in sizes)
    assert len(re.findall(r"<rect [^>]*><title>[^<]* → ", svg)) == cells > 0
    if name == "sound":
        assert words.count("0.60s") or words.count("0.6s")  # the time axis

    tab.mouse.move(1, 1)
    tab.add_style_tag(content=".legend button, .player button { visibility: hidden; }")
    corner = tab.evaluate(
        "scrollTo(0, 0), document.querySelector('.views').getBoundingClientRect()"
    )
    area = {key: corner[key] for key in ("x", "y", "width", "height")}
    tab.wait_for_timeout(200)
    seen = Image.open(io.BytesIO(tab.screenshot(full_page=True, clip=area))).convert("RGB")
    width, height = (int(number) for number in re.findall(r'="(\d+)"', svg)[:2])
    assert png.size == (2 * width, 2 * height)
    top = height - 16 - area["height"]
    corners = (32, 2 * top, 32 + 2 * area["width"], 2 * (top + area["height"]))
    saved = png.crop(corners).resize(seen.size)
    # The edges of letters are drawn a little differently, so means of 8 x 8 pixels are compared.
    distance = np.asarray(ImageChops.difference(saved.reduce(8), seen.reduce(8))).max(-1)
    assert distance.mean() < 6 and (distance > 40).mean() < 0.025


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


def test_a_page_without_effects_says_how_to_get_them(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regard.pages.attend.EFFECT_CELLS", 15)
    subject = model_subject("rnn", effect_command="regard attend … --effect")
    tab = open_page(attention_page([subject]))
    assert "Effect" not in tab.inner_text(".side") and not tab.is_visible("#effect-command")
    tab.click("#effects")
    said = tab.inner_text("#effect-command")
    assert "up to 15 tokens x places. This answer has 4 x 4 = 16." in said
    assert said.endswith("regard attend … --effect")
    tab.click("#effects")
    assert not tab.is_visible("#effect-command")


def test_the_beam_is_a_tree(open_page: Open):
    page = model_page("text", beams=3)
    tab = open_page(page)
    nodes = page.data["views"][0]["beam"]["nodes"]
    assert tab.locator("#beam path").count() == len(nodes)
    assert tab.locator("#beam path.best").count() == len(page.data["views"][0]["names"]["steps"])


def difference_map(tab: Any) -> int:
    """The number of the map of the difference, when it is drawn."""
    until(tab, "document.querySelector('.difference .legend').textContent")
    return tab.locator(".heat").count() - 1


def test_two_answers_have_a_difference(open_page: Open):
    bundle = untrained("chat-transformer", WORDS)
    subjects = [ask(bundle, text, SHORT, name=text) for text in ("one two", "two one")]
    tab = open_page(attention_page(subjects))
    assert tab.locator(".view").count() == 2
    tab.mouse.move(*centre(tab, 0, 0, difference_map(tab)))
    shown = tab.inner_text(".tip")
    assert "one | two" in shown.lower() and "difference" in shown
    assert "aligned" not in tab.inner_text(".difference p")
    assert tab.locator("#heads table").count() == tab.locator("#alternatives table").count() == 2


def test_maps_of_different_sizes_are_compared_by_the_names_of_their_tokens(open_page: Open):
    page = map_page((list("xyz"), list("abcde")), (list("xz"), list("qbdef")))
    tab = open_page(page)
    number = difference_map(tab)
    note = tab.inner_text(".difference p")
    assert "Left out: of the first “y”, “a”, “c”; of the second “q”, “f”." in note
    assert "2 × 3" in tab.inner_text(".difference .legend")
    first, second = softmax((1, 3, 5), 0)[0], softmax((1, 2, 5), 1)[0]
    columns = {"b": (1, 1), "d": (3, 2), "e": (4, 3)}
    for row, (i, j) in enumerate(((0, 0), (2, 1))):
        for column, (name, (k, m)) in enumerate(columns.items()):
            tab.mouse.move(*centre(tab, row, column, number))
            tip = tab.inner_text(".tip").replace("\u2212", "-")
            assert tip.startswith(f"{'xz'[row]} → {name}\n")
            expected = second[j, m] - first[i, k]
            assert float(tip.rpartition(" ")[2]) == pytest.approx(expected, abs=2e-3, rel=0.06)
    tab.mouse.click(*centre(tab, 1, 1, number))  # z → d, in both views
    assert tab.locator(".cell dd").all_inner_texts()[:2] == ["z", "d"]
    assert tab.locator(".cell dd").all_inner_texts()[3:5] == ["z", "d"]
    words = address(tab)
    assert (words["token"], words["place"]) == ("2", "3") and "token2" not in words
    tab.mouse.click(*centre(tab, 0, 0, 2))  # x → q of the second, which the first does not have
    assert tab.locator(".cell dd").all_inner_texts()[:2] == ["x", "d"]
    assert tab.locator(".cell dd").all_inner_texts()[3:5] == ["x", "q"]
    again = open_page(page, link=tab.evaluate("location.hash"))
    assert again.locator(".cell dd").all_inner_texts()[3:5] == ["x", "q"]


def common_length(a: str, b: str) -> int:
    """The length of a longest common subsequence, by its definition."""
    if not a or not b:
        return 0
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for j, y in enumerate(b):
            row.append(before[j] + 1 if x == y else max(before[j + 1], row[j]))
    return row[-1]


@pytest.mark.parametrize("seed", [1, 2])
def test_as_many_tokens_as_possible_are_aligned(open_page: Open, seed: int):
    draw = random.Random(seed)
    rows, columns, others, other_columns = (
        "".join(draw.choices("abc", k=size)) for size in (11, 23, 13, 19)
    )
    tab = open_page(map_page((list(rows), list(columns)), (list(others), list(other_columns))))
    difference_map(tab)
    size = f"{common_length(rows, others)} × {common_length(columns, other_columns)}"
    assert size in tab.inner_text(".difference .legend")


def test_maps_without_a_common_token_have_no_difference(open_page: Open):
    tab = open_page(map_page((list("xy"), list("abc")), (list("xy"), list("de"))))
    until(tab, "document.querySelector('.difference p').textContent")
    assert "the two maps have no tokens in common" in tab.inner_text(".difference p")
    assert not tab.locator(".difference .heat").is_visible()


def test_a_model_without_attention_beside_one_with_it(open_page: Open):
    subjects = [model_subject("rnn"), model_subject("no attention")]
    for pair in (subjects, subjects[::-1]):
        tab = open_page(attention_page(pair))
        assert visible_maps(tab) == 3  # weights, effects; effects
        assert "one of the two has no such map" in tab.inner_text(".difference p")
        assert tab.inner_text(".view >> nth=1 >> .cell").startswith("writes")


def test_a_notebook_shows_the_page_in_a_frame(browser: Any):
    tab = browser.new_page()
    tab.set_content(f"<h1>notebook</h1>{tensor_page()._repr_html_()}")
    frame = tab.frame_locator("iframe")
    frame.locator("html[data-ready=yes]").wait_for(timeout=120_000)
    assert frame.locator(".chip").count() == 5
    for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with tab.expect_download() as download:
            frame.locator(f"#save-{kind}").click()
        assert Path(download.value.path()).read_bytes().startswith(start)
    tab.close()


def test_a_large_page_has_all_its_layers_and_heads(open_page: Open):
    """The time that it takes is measured by `python -m bench.pages`."""
    weights = softmax((8, 8, 500, 500))
    names = [f"t{i}" for i in range(500)]
    tab = open_page(regard.show_weights(weights, names), link="#layer=5&head=6&token=400&place=499")
    assert tab.locator("#heads tbody tr").count() == 64
    assert tab.locator(".cell dd").all_inner_texts()[:2] == ["t400", "t499"]
    number = float(tab.locator(".cell dd").all_inner_texts()[2].replace("\u2212", "-"))
    assert number == pytest.approx(weights[5, 6, 400, 499], abs=5e-5, rel=0.06)


@pytest.mark.parametrize(
    ("size", "theme"),
    [pytest.param(WIDE, "light", marks=pytest.mark.long), (PHONE, "dark")],
    ids=["wide light", "phone dark"],
)
def test_a_page_of_2000_tokens(open_page: Open, size: dict[str, int], theme: str):
    page = tensor_page(2000, layers=1, heads=2)
    tab = open_page(page, size=size, theme=theme)
    assert fits(tab) and is_light(tab) == (theme == "light")
    assert tab.locator(".chip.place").count() == 2000
    tab.mouse.click(*centre(tab, 1000, 1500))  # a pixel has several cells
    row, column = (int(name[1:]) for name in tab.locator(".cell dd").all_inner_texts()[:2])
    assert abs(row - 1000) < 10 and abs(column - 1500) < 10
    for key in ("ArrowDown", "ArrowLeft"):
        tab.keyboard.press(key)
    selected = [f"t{row + 1}", f"t{column - 1}"]
    assert tab.locator(".cell dd").all_inner_texts()[:2] == selected
    assert (address(tab)["token"], address(tab)["place"]) == (str(row + 1), str(column - 1))
    again = open_page(page, size=size, theme=theme, link="#token=1998&place=7&head=1")
    assert again.locator(".cell dd").all_inner_texts()[:2] == ["t1998", "t7"]
    assert fits(again)
