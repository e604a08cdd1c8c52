"""Reports in a browser. Skipped where there is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import recipe
from regard.pages.shell import Page, Section
from regard.train import train
from tests.doors.conftest import PHONE, WIDE, Open
from tests.tiny import (
    Silent,
    captions_table,
    labelled_file,
    memorised,
    memorised_captions,
    memorised_sounds,
    pairs_file,
    sounds_table,
)

pytestmark = pytest.mark.timeout(600)  # a busy machine starts a browser slowly
KINDS = ("chat-attention", "caption-attention", "speech-attention", "sentiment-cnn")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each kind of input, and one of a run under way."""
    files = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        changes = {
            "chat-attention": lambda folder=folder: memorised(pairs_file(folder)),
            "caption-attention": lambda folder=folder: memorised_captions(captions_table(folder)),
            "speech-attention": lambda folder=folder: memorised_sounds(sounds_table(folder)),
            "sentiment-cnn": lambda folder=folder: memorised(
                labelled_file(folder), "tokenizer.min_count=1"
            ),
        }[kind]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REGARD_CACHE", str(folder / "cache"))
            own = recipe.load(kind, [*changes, "train.steps=3", "data.valid=0.4"])
            train(own, folder / "run", reporter=Silent())
            files[kind] = regard.report(folder / "run").save(folder / "page.html")
            files[f"{kind}, draft"] = folder / "run" / "report.html"
    return files


@pytest.mark.parametrize(
    ("size", "theme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide and light", "phone and dark"]
)
@pytest.mark.parametrize("name", [*KINDS, "chat-attention, draft"])
def test_a_report_fits_asks_for_nothing_and_says_what_to_type(
    visit: Open,
    files: dict[str, Path],
    name: str,
    size: dict[str, int],
    theme: str,
):
    tab = visit(files[name], size=size, theme=theme)
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    shades = [int(number) for number in re.findall(r"\d+", paper)]
    assert min(shades) > 200 if theme == "light" else max(shades) < 60
    width = size["width"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert "regard ask" in tab.inner_text("#next")
    assert tab.locator("#curves svg").count() >= 2
    assert tab.locator("#tools button").count() >= 1  # the script has run
    tab.locator("#budget th button").first.click()
    assert tab.locator("#budget th").first.get_attribute("aria-sort") == "ascending"
    details = tab.locator("#fields pre")
    assert not details.is_visible()
    tab.click("#fields summary")
    assert details.is_visible() and "[encoder]" in details.inner_text()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    if not name.endswith("draft"):
        pictures = tab.locator("#attention svg")
        assert pictures.count() >= 2
        assert all(box["width"] > 40 for box in map(_box, pictures.all()))
    if name == "sentiment-cnn":
        assert "certain" in tab.inner_text("main")
    if name == "speech-attention":
        assert tab.locator("#samples audio").count() >= 2
    if name == "caption-attention":
        loaded = "[...document.images].every((image) => image.naturalWidth > 0)"
        assert tab.locator("#samples img").count() >= 2 and tab.evaluate(loaded)


def _box(picture: Any) -> dict[str, float]:
    return picture.bounding_box()


def test_the_page_of_a_run_under_way_follows_its_file_and_keeps_the_reader_there(
    browser: Any, tmp_path: Path
):
    path = tmp_path / "page.html"

    def save(text: str, refresh: int) -> None:
        long = Section("Long", id="long", paragraphs=(f"{text} paragraph",) * 99)
        fields = Section("Fields", id="fields", code="[encoder]", is_collapsed=True)
        other = Section("Other", id="other", code="[decoder]", is_collapsed=True)
        Page("a run", (long, fields, other), refresh=refresh).save(path)

    def open_pages() -> list[bool]:
        return [tab.locator(f"#{name} pre").is_visible() for name in ("fields", "other")]

    save("first", 30)
    tab = browser.new_page()
    tab.clock.install()
    tab.goto(f"file://{path}#main")  # a browser's own refresh does nothing where there is a #
    tab.click("#fields summary")
    tab.evaluate("scrollTo(0, 700)")
    save("second", 30)
    tab.clock.run_for(29_000)
    assert "first paragraph" in tab.inner_text("#long")
    tab.evaluate("getSelection().selectAllChildren(document.querySelector('#fields pre'))")
    tab.clock.run_for(30_000)
    assert "first paragraph" in tab.inner_text("#long")  # while somebody copies something
    tab.evaluate("getSelection().removeAllRanges()")
    tab.clock.run_for(30_000)
    tab.get_by_text("second paragraph").first.wait_for()
    assert open_pages() == [True, False] and tab.evaluate("scrollY") == 700
    save("third", 0)
    tab.clock.run_for(31_000)
    tab.get_by_text("third paragraph").first.wait_for()
    assert open_pages() == [True, False]
    save("fourth", 0)  # the run has ended: nothing is loaded again
    tab.clock.run_for(90_000)
    assert "third paragraph" in tab.inner_text("#long")
    tab.close()
