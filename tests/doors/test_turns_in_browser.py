"""The turns of a conversation on pages of attention; in a browser where there is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import bundle, cli
from regard.bundle import Bundle
from regard.pages.attend import ask, attention_page, name_of
from regard.pages.shell import Page
from regard.search import Options
from regard.tokenizers import Words
from tests.doors.conftest import PHONE, WIDE, Open
from tests.unit.test_answers import untrained

pytestmark = pytest.mark.timeout(600)  # a busy machine starts a browser slowly

TURNS = ["I like chess.", "Good.", "What do I like?"]
READ = ["I like chess", "Good", "What do I like"]  # without marks, as this recipe reads it
GREEDY = Options(min_new_tokens=4, max_new_tokens=4)


def bot_of(turns: int = 3, *, name: str = "chat-attention") -> Bundle:
    tokenizer = Words.fit(TURNS, min_count=1, turns=turns > 1)
    kind = ["data.kind=dialogues", "data.path=-", f"data.turns={turns}"]
    return untrained(name, tokenizer, *kind, "encoder.width=12")


def page_of(value: Any, *, turns: int = 3, **how: Any) -> Page:
    bot = bot_of(turns)
    return attention_page([ask(bot, value, GREEDY, name=name_of(bot, value), **how)])


@pytest.fixture
def open_page(visit: Open, tmp_path: Path) -> Open:
    def opened(page: Page, **options: Any) -> Any:
        path = page.save(tmp_path / f"page-{len(list(tmp_path.glob('page-*')))}.html")
        return visit(path, ready="html[data-ready=yes]", **options)

    return opened


def rows(tab: Any) -> list[tuple[str, list[float]]]:
    """The turns of the panel and their numbers: of the selected token, and of the answer."""
    labels = tab.locator(".turns .label").all_inner_texts()
    values = tab.locator(".turns .value").all_inner_texts()
    numbers = [[float(number) for number in value.split(" · ")] for value in values]
    return list(zip(labels, numbers, strict=True))


# -- the record of a page, without a browser--------------------------------------------------------


def test_every_place_is_in_one_turn():
    (view,) = page_of(TURNS).data["views"]
    turns = view["turns"]
    assert [turn["name"] for turn in turns] == ["1 (other)", "2 (self)", "3 (other)", "(end)"]
    assert [turn["text"] for turn in turns] == [*READ, ""]
    places = [place for turn in turns for place in turn["places"]]
    assert places == list(range(len(view["names"]["places"])))
    first = [view["names"]["places"][turn["places"][0]] for turn in turns]
    assert first == ["(other)", "(self)", "(other)", "(end)"]


def test_a_model_of_single_turns_has_no_panel():
    (view,) = page_of(TURNS, turns=1).data["views"]
    assert view["turns"] == []


@pytest.mark.parametrize(
    ("turns", "value", "name"),
    [
        (3, TURNS, "I like chess. / Good. / What do I like?"),
        (3, ["older", *TURNS], "I like chess. / Good. / What do I like?"),  # it reads three turns
        (2, TURNS, "Good. / What do I like?"),
        (1, TURNS, "What do I like?"),
        (3, ["What do I like?"], "What do I like?"),
        (3, "What do I like?", "What do I like?"),
        (3, ["word " * 20, "Good.", "And I?"], "… / Good. / And I?"),
        (3, ["I like", " ", "chess."], "I like / chess."),
        (3, [{"role": "user", "content": "I like"}, {"role": "user", "content": "chess."}], None),
    ],
)
def test_a_conversation_is_named_by_the_turns_that_were_read(turns: int, value: Any, name: str):
    assert name_of(bot_of(turns), value) == (name or "I like / chess.")


def test_show_names_the_conversation():
    bot = bot_of()
    page = regard.show(bot.ask([TURNS], GREEDY)[0], bot, TURNS)
    assert page.title.startswith("I like chess. / Good. / What do I like? → ")
    assert len(page.data["views"][0]["turns"]) == 4


def test_regard_attend_names_the_history(tmp_path: Path, monkeypatch, capsys):
    bot = bot_of()
    monkeypatch.setattr(bundle, "load", lambda *_, **__: bot)
    (tmp_path / "run").mkdir()
    out = tmp_path / "page.html"
    words = ["attend", str(tmp_path / "run"), TURNS[-1], "--greedy", "--out", str(out)]
    assert cli.main([*words, "--history", TURNS[0], "--history", TURNS[1]]) == 0
    assert capsys.readouterr().out.startswith("I like chess. / Good. / What do I like?  ->  ")
    title = re.search("<title>(.*?)</title>", out.read_text("utf-8"), re.S)
    assert title and "I like chess. / Good. / What do I like? → " in title[1]


# -- in a browser-----------------------------------------------------------------------------------


def test_the_weights_of_the_turns_are_sums_of_those_of_their_places(open_page: Open):
    page = page_of(TURNS)
    tab = open_page(page, size=WIDE)
    assert tab.inner_text("h1").startswith("I like chess. / Good. / What do I like? → ")
    assert tab.locator(".turns .said").all_inner_texts() == READ
    bot = bot_of()
    (answer,) = bot.ask([TURNS], GREEDY)
    assert answer.weights is not None
    weights = answer.weights.mean(1).numpy()
    (view,) = page.data["views"]
    for token in (0, 2):
        tab.locator(".chip.step").nth(token).click()
        shown = rows(tab)
        assert [name for name, _ in shown] == ["1 (other)", "2 (self)", "3 (other)", "(end)"]
        for (_, (own, whole)), turn in zip(shown, view["turns"], strict=True):
            assert own == pytest.approx(weights[token, turn["places"]].sum(), abs=0.006)
            assert whole == pytest.approx(weights[:, turn["places"]].sum(1).mean(), abs=0.006)
        assert sum(numbers[0] for _, numbers in shown) == pytest.approx(1, abs=0.03)
        assert sum(numbers[1] for _, numbers in shown) == pytest.approx(1, abs=0.03)
    assert "this token" in tab.inner_text("main") and "whole answer" in tab.inner_text("main")


def test_a_page_without_turns_has_no_panel(open_page: Open):
    for page in (page_of(TURNS, turns=1), page_of(TURNS[-1], turns=1)):
        tab = open_page(page)
        assert tab.locator(".turns").count() == 0
        assert "Weight by turn" not in tab.inner_text("main")


def test_a_turn_that_tries_to_be_markup_is_text(open_page: Open):
    evil = "<img src=x onerror=document.title='owned'>" * 6
    bot = bot_of(3)
    value = [evil, "</script>", "What do I like?"]
    page = attention_page([ask(bot, value, GREEDY, name=name_of(bot, value))])
    page.data["views"][0]["turns"][0]["text"] = evil  # the tokenizer does not know its words
    tab = open_page(page, size=PHONE)
    assert tab.locator(".turns .said").first.inner_text() == evil
    assert tab.locator("main img").count() == 0 and "owned" not in tab.title()
    width = tab.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
