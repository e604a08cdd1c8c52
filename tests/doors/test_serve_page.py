"""The page of `regard serve` in a browser, with the real server. Skipped where there is none."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx (extra dev)")

import regard
from regard import recipe
from regard.train import train
from tests.doors.conftest import PHONE, WIDE, Open, launched
from tests.serving import Server, train_runs
from tests.tiny import Silent, labelled_file, memorised, pairs_file, text_file

pytestmark = [
    pytest.mark.timeout(600),  # a busy machine starts a browser slowly
    pytest.mark.skipif(sys.platform != "linux", reason="the server's tests read /proc"),
]
PROMPT = "What is your name?"
REPLY = "I'm Ada, and you?"
SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LONG = {"min_new_tokens": 19_000, "max_new_tokens": 20_000}  # an answer that takes a while
LIMITS = {"max_tokens": 20_000}  # of a server that gives it
FASTEST = "Orthogonal"  # experiment of the lab
KEY = "an-easy-key-that-is-long-enough-for-a-test"
REFUSED = "Content Security Policy|Failed to fetch"  # what a report tries and may not do
MICROPHONE = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """As the browser of other pages, with a microphone that beeps."""
    with launched(*MICROPHONE) as browser:
        yield browser


def train_evil(folder: Path) -> Path:
    """A chatbot whose every reply is a script."""
    pairs = pairs_file(folder)
    prompts = [line.partition("\t")[0] for line in pairs.read_text("utf-8").splitlines()]
    pairs.write_text("".join(f"{prompt}\t{SCRIPT}\n" for prompt in prompts), "utf-8")
    search = ("search.do_sample=false", "search.candidates=1")
    changes = memorised(pairs, "train.steps=100", *search)
    train(recipe.load("chat-attention", changes), folder / "evil", reporter=Silent())
    return folder / "evil"


@pytest.fixture(scope="module")
def runs(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return train_runs(tmp_path_factory.mktemp, evil=train_evil)


@pytest.fixture(scope="module")
def server(runs: dict[str, Path]) -> Iterator[Server]:
    """A server that writes answers as long as anybody wants."""
    server = Server(list(runs.values()), limits=LIMITS)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def desks(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of models that translate, classify and fill in a blank."""
    folder = tmp_path_factory.mktemp("desks")
    data = {
        "translate-attention": (pairs_file(folder), "translation"),
        "sentiment-cnn": (labelled_file(folder), "labels"),
        "blank-rnn": (text_file(folder), "blanks"),
    }
    runs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        for name, (path, run) in data.items():
            changes = memorised(path, "train.steps=120")
            train(recipe.load(name, changes), folder / run, reporter=Silent())
            runs.append(folder / run)
    server = Server(runs)
    yield server
    server.stop()


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Opens the page of a server. At the end, nothing but this server was asked for anything, and
    no error was reported."""
    contexts: list[Any] = []
    servers: set[str] = set()
    requests: list[str] = []
    problems: list[str] = []

    def visited(
        server: Server,
        *,
        size: dict[str, int] = WIDE,
        theme: str = "light",
        storage: dict[str, Any] | None = None,
        ready: str = "html[data-ready=yes]",
        expect: str = "",
    ) -> Any:
        """`storage` is what the browser has kept; `expect` a pattern of errors that are meant."""
        context = browser.new_context(
            viewport=size, color_scheme=theme, permissions=["clipboard-read", "clipboard-write"]
        )
        context.set_default_timeout(60_000)
        contexts.append(context)
        servers.add(server.url)
        page = context.new_page()
        for name, value in (storage or {}).items():
            call = f"localStorage.setItem({json.dumps(name)}, {json.dumps(json.dumps(value))})"
            page.add_init_script(f"if (!localStorage.getItem({json.dumps(name)})) {call};")

        def note(text: str) -> None:
            if not (expect and re.search(expect, text)):
                problems.append(text)

        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: note(str(error)))
        page.on("console", lambda message: note(message.text))
        page.on("dialog", lambda dialog: note(f"a dialog: {dialog.message}"))
        page.goto(f"{server.url}/")
        page.wait_for_selector(ready)
        return page

    yield visited
    for context in contexts:
        context.close()
    assert not problems
    for url in requests:
        assert url.startswith((*(f"{known}/" for known in servers), "data:", "blob:")), url


def choose(tab: Any, model: str) -> None:
    tab.click(f"[data-model={model}]")


def ask(tab: Any, text: str) -> None:
    tab.fill("#prompt", text)
    tab.press("#prompt", "Enter")


def finish(tab: Any, number: int = 1) -> Any:
    """The answer of the exchange with this number, when it is whole."""
    answer = tab.locator(".exchange").nth(number - 1).locator(".answer")
    answer.locator(".answer-tools button").first.wait_for()
    return answer


def until(tab: Any, expression: str) -> None:
    """Wait until an expression is true. Playwright's own way needs `eval`, which the page's policy
    forbids."""
    for _ in range(600):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression[:200]}")


def stored(tab: Any) -> list[dict[str, Any]]:
    """The conversations that the browser has kept."""
    texts = tab.evaluate(
        "Object.entries(localStorage).filter(([name]) => name.startsWith('regard-conversation-'))"
        ".map(([, value]) => value)"
    )
    return [json.loads(text) for text in texts]


def download(tab: Any, click: str) -> str:
    with tab.expect_download() as event:
        tab.click(click)
    return Path(event.value.path()).read_text("utf-8")


def weights_of(tab: Any, selector: str) -> list[tuple[str, float]]:
    """The words that are coloured, and how strongly."""
    return tab.evaluate(
        "(selector) => [...document.querySelectorAll(`${selector} .segment.tinted`)].map("
        "(node) => [node.textContent, Number(node.style.getPropertyValue('--weight'))])",
        selector,
    )


def weights_of_prompt(tab: Any) -> list[tuple[str, float]]:
    return weights_of(tab, ".prompt")


def give(tab: Any, event: str, selector: str, file: Path, kind: str) -> None:
    """Drag a file over a node, drop it there, or paste it."""
    content = base64.b64encode(file.read_bytes()).decode()
    tab.evaluate(
        """([event, selector, content, name, type]) => {
          const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
          const files = new DataTransfer();
          files.items.add(new File([bytes], name, { type }));
          const how = { bubbles: true, cancelable: true };
          document.querySelector(selector).dispatchEvent(event === "paste"
            ? new ClipboardEvent(event, { ...how, clipboardData: files })
            : new DragEvent(event, { ...how, dataTransfer: files }));
        }""",
        [event, selector, content, file.name, kind],
    )


def too_wide(tab: Any) -> list[str]:
    """What is wider than the window and cannot be scrolled to."""
    return tab.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((node) => {
          const box = node.getBoundingClientRect();
          const isShown = box.width > 0 && getComputedStyle(node).visibility === "visible";
          const scrolls = node.closest(".scroll, .heat, .drawer, .hidden, .skip, .toasts, svg");
          return isShown && !scrolls && (box.right > innerWidth + 1 || box.left < -1);
        }).map((node) => `${node.tagName} ${node.className}`)"""
    )


# A first visit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_first_visit_explains_itself(visit: Open, server: Server, size: dict, theme: str):
    tab = visit(server, size=size, theme=theme)
    sentences = re.findall(r"[^.]+\.", tab.inner_text(".welcome .lead"))
    assert len(sentences) == 3 and "attended" in sentences[2]
    examples = tab.locator(".example").all_inner_texts()
    assert examples and set(examples) <= {line for line, _ in pairs()}
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(
        "document.querySelector('#theme').getBoundingClientRect().right < innerWidth"
    )

    tab.click(".example >> nth=0")
    answer = finish(tab)
    assert answer.locator(".answer-text").inner_text() == dict(pairs())[examples[0]]


def pairs() -> list[tuple[str, str]]:
    from tests.tiny import PAIRS

    return PAIRS


# Conversations ------------------------------------------------------------------------------------


def test_an_answer_comes_word_by_word_and_can_be_stopped(visit: Open, server: Server):
    tab = visit(server, storage={"regard-settings-chat": LONG})
    ask(tab, PROMPT)
    tab.wait_for_selector(".answer.live .word")
    until(tab, "document.querySelectorAll('.answer.live .word').length > 5")
    assert weights_of_prompt(tab)  # the prompt is coloured by the word that is being written
    tab.click("button[aria-label=Stop]")
    answer = finish(tab)
    assert answer.locator(".status").inner_text() == "Stopped."
    words = answer.locator(".word").count()
    assert 5 < words < 19_000
    assert tab.locator("button[aria-label=Send]").count() == 1
    for _ in range(100):
        if not server.metric("regard_jobs"):
            break
        tab.wait_for_timeout(100)
    assert server.metric("regard_jobs") == 0  # the server has stopped too

    tab.reload()
    tab.click(".conversation")
    assert finish(tab).locator(".word").count() == words


def test_conversations_are_kept_renamed_deleted_and_brought_back(visit: Open, server: Server):
    tab = visit(server)
    ask(tab, PROMPT)
    finish(tab)
    ask(tab, "Hello!")
    assert finish(tab, 2).locator(".answer-text").inner_text() == "Hi there."
    tab.click("#new-conversation")
    ask(tab, "Goodbye")
    finish(tab)
    titles = tab.locator(".conversation-title").all_inner_texts()
    assert titles == ["Goodbye", PROMPT]

    tab.reload()
    tab.click(f".conversation:has-text('{PROMPT}')")
    assert tab.locator(".prompt-text").all_inner_texts() == [PROMPT, "Hello!"]
    assert tab.locator(".answer-text").all_inner_texts() == [REPLY, "Hi there."]

    row = f"li:has-text('{PROMPT}')"
    tab.hover(row)
    tab.click(f"{row} [aria-haspopup=menu]")
    tab.click("[role=menuitem]:has-text('Rename')")
    tab.fill(".rename", "Names")
    tab.press(".rename", "Enter")
    assert "Names" in tab.locator(".conversation-title").all_inner_texts()

    tab.hover("li:has-text('Names')")
    tab.click("li:has-text('Names') [aria-haspopup=menu]")
    tab.click("[role=menuitem]:has-text('Delete')")
    assert tab.locator(".conversation-title").all_inner_texts() == ["Goodbye"]
    assert len(stored(tab)) == 1
    tab.click(".toast button:has-text('Undo')")
    assert set(tab.locator(".conversation-title").all_inner_texts()) == {"Goodbye", "Names"}
    assert tab.locator(".answer-text").all_inner_texts() == [REPLY, "Hi there."]


def test_export_and_import(visit: Open, server: Server, tmp_path: Path):
    tab = visit(server)
    ask(tab, PROMPT)
    finish(tab)
    tab.hover(".conversation-list li")
    tab.click("[aria-haspopup=menu]")
    text = download(tab, "[role=menuitem]:has-text('Markdown')")
    assert text.startswith(f"# {PROMPT}\n") and f"> {REPLY}\n" in text
    tab.hover(".conversation-list li")
    tab.click("[aria-haspopup=menu]")
    one = json.loads(download(tab, "[role=menuitem]:has-text('JSON')"))
    content = download(tab, "#export-all")
    assert one["conversations"] == json.loads(content)["conversations"]
    file = tmp_path / "conversations.json"
    file.write_text(content, "utf-8")

    other = visit(server)
    other.set_input_files("#import-file", file)
    other.wait_for_selector(".exchange")
    assert other.locator(".answer-text").inner_text() == REPLY
    assert [one["exchanges"] for one in stored(other)] == [one["exchanges"] for one in stored(tab)]

    file.write_text('{"format": "something else"}')
    other.set_input_files("#import-file", file)
    other.wait_for_selector(".toast:has-text('no conversations of this page')")
    assert len(stored(other)) == 1


def test_edit_again_and_copy(visit: Open, server: Server):
    tab = visit(server)
    ask(tab, PROMPT)
    finish(tab)
    ask(tab, "Goodbye")
    finish(tab, 2)
    tab.hover(".exchange >> nth=0")
    tab.click(".exchange >> nth=0 >> [aria-label='Edit and send again']")
    tab.fill(".edit-field", "Hello!")
    tab.press(".edit-field", "Enter")
    until(tab, "document.querySelectorAll('.exchange').length === 1")
    answer = finish(tab)
    assert answer.locator(".answer-text").inner_text() == "Hi there."
    answer.locator("[aria-label='Copy the answer']").click()
    tab.wait_for_selector(".toast:has-text('Copied')")
    assert tab.evaluate("navigator.clipboard.readText()") == "Hi there."

    answer.locator("[aria-label='Another answer']").click()
    tab.wait_for_selector(".versions:has-text('2 / 2')")
    tab.click("[aria-label='The answer before']")
    assert tab.inner_text(".versions") == "1 / 2"
    assert answer.locator(".answer-text").inner_text() == "Hi there."


# Inside an answer ---------------------------------------------------------------------------------


def test_attention_of_a_word_is_that_of_the_api(visit: Open, server: Server):
    tab = visit(server)
    ask(tab, PROMPT)
    answer = finish(tab)
    with server.client() as client:
        body = {"model": "chat", "input": PROMPT, "attention": True}
        truth = client.post("/v1/ask", json=body).json()["answer"]
    assert answer.locator(".word").count() == len(truth["step_names"])

    places = truth["place_names"]
    for step in (0, len(truth["step_names"]) - 1):
        answer.locator(".word").nth(step).hover()
        row = truth["weights"][step]
        full = max(min(0.5, 4 / len(row)), *row)
        words, shares = zip(*weights_of_prompt(tab), strict=True)
        assert [word.strip().lower() for word in words] == [name for name in places[:-1] if name]
        assert shares == pytest.approx(
            [
                weight / full
                for weight, name in zip(row, places, strict=True)
                if name not in ("", "(end)")
            ],
            abs=0.002,
        )

    tab.hover("h2 >> nth=0")
    assert weights_of_prompt(tab) == []
    tab.locator(".prompt .segment").first.hover()  # the other way round
    assert tab.locator(".answer-text .segment.tinted").count() > 0


def test_an_alternative_continues_the_answer(visit: Open, server: Server):
    tab = visit(server)
    ask(tab, PROMPT)
    answer = finish(tab)
    answer.locator(".word").nth(1).click()
    assert tab.locator(".inside .bars .label").count() > 2
    other = tab.locator(".alternative:not(:disabled)").first
    word = other.locator(".label").inner_text()
    first = answer.locator(".word").first.inner_text()
    other.click()
    tab.wait_for_selector(".versions:has-text('2 / 2')")
    words = answer.locator(".word").all_inner_texts()
    assert words[:2] == [first, word]
    assert answer.locator(".answer-text").inner_text() != REPLY
    tab.click("[aria-label='The answer before']")
    assert answer.locator(".answer-text").inner_text() == REPLY


def test_an_alternative_continues_an_answer_that_was_searched_with_beams(
    visit: Open, server: Server
):
    """A search over whole answers cannot go on from a word, so the likeliest words follow. Even
    after the last word that the settings allow there is room for another one."""
    tab = visit(server)
    tab.click("#settings")
    tab.click("[role=radio]:has-text('Looks ahead')")
    tab.locator("#option-max_new_tokens").fill("3")
    tab.click(".dialog [aria-label=Close]")
    bodies: list[dict[str, Any]] = []
    tab.on(
        "request", lambda request: bodies.append(request.post_data_json) if request.post_data else 0
    )
    ask(tab, PROMPT)
    answer = finish(tab)
    assert answer.locator(".word").count() == 3
    answer.locator(".word").nth(2).click()
    assert "looking ahead needs whole answers" in tab.inner_text(".inside .hint")
    tab.locator(".alternative:not(:disabled)").first.click()
    tab.wait_for_selector(".versions:has-text('2 / 2')")
    assert answer.locator(".word").count() == 4
    assert [body["options"].get("num_beams") for body in bodies] == [4, None]
    assert len(bodies[1]["prefix"]) == 3


def test_effects_beside_weights(visit: Open, server: Server):
    tab = visit(server)
    ask(tab, PROMPT)
    answer = finish(tab)
    tab.click(".effects-button")
    tab.wait_for_selector(".inside .key")
    assert tab.locator(".maps canvas").count() == 2  # weights and effects
    assert tab.locator(".inside .pairs .track").count() >= 6
    with server.client() as client:
        body = {"model": "chat", "input": PROMPT, "attention": True, "effect": True}
        truth = client.post("/v1/ask", json=body).json()["answer"]["effects"]
    kept = stored(tab)[0]["exchanges"][0]["replies"][0]["versions"][0]["effects"]
    assert kept == [pytest.approx(row, abs=2e-3) for row in truth]
    assert answer.locator(".answer-text").inner_text() == REPLY


def test_keyboard_and_screen_reader(visit: Open, server: Server):
    tab = visit(server)
    ask(tab, PROMPT)
    answer = finish(tab)
    until(tab, f"document.querySelector('#announce').textContent.includes({REPLY.split()[-1]!r})")
    answer.locator(".word").first.focus()
    assert weights_of_prompt(tab)
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".inside:not([hidden])")
    assert "Looked at" in tab.inner_text("#announce")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.dataset.step") == "1"
    assert tab.locator(".word[aria-pressed=true]").get_attribute("data-step") == "1"
    tab.keyboard.press("Escape")
    assert tab.locator(".inside").is_hidden()

    tab.focus("#tab-talk")
    tab.keyboard.press("ArrowRight")
    assert tab.get_attribute("#tab-budget", "aria-selected") == "true"
    tab.wait_for_selector(".formulas")
    for node in tab.locator(
        "button:visible, input:visible:not([aria-hidden]), select:visible, textarea:visible"
    ).all():
        name = node.evaluate(
            "(node) => node.getAttribute('aria-label') || node.textContent.trim()"
            " || node.labels?.[0]?.textContent"
        )
        assert name


def test_a_chat_says_how_many_turns_it_reads(visit: Open, server: Server):
    """`data.turns` counts the message itself."""
    tab = visit(server)
    notes = tab.evaluate(
        "import(document.baseURI + 'page/chat.js')"
        ".then((module) => [0, 1, 2, 3].map(module.whatIsRead))"
    )
    assert notes == [
        "It reads your message only, not the ones before.",
        "It reads your message only, not the ones before.",
        "It reads your message and the turn before it.",
        "It reads your message and up to 2 turns before it.",
    ]
    assert tab.inner_text(".composer-note") == notes[0]


def test_places_of_a_history_are_found_in_its_turns(visit: Open, server: Server):
    """Names are tokens without spaces, in the tokenizer's case; some are not in the text."""
    tab = visit(server)
    names = [
        "(other)",
        "hi",
        "(self)",
        "well",
        ",",
        "(unknown)",
        "you",
        "(other)",
        "fi",
        "ne",
        "",
        ".",
    ]
    texts = ["Ignored, too old", "Hi", "Well, straße you", "Fine  ."]
    places = tab.evaluate(
        "([names, texts]) => import(document.baseURI + 'page/segmented.js')"
        ".then((module) => module.placesInTexts(names, texts))",
        [names, texts],
    )
    words = [place and texts[place["turn"]][place["start"] : place["end"]] for place in places]
    assert words == [None, "Hi", None, "Well", ",", None, "you", None, "Fi", "ne", None, "."]


def test_two_models_side_by_side(visit: Open, server: Server):
    tab = visit(server)
    choose(tab, "chat")
    tab.select_option("#beside", "evil")
    ask(tab, PROMPT)
    tab.wait_for_selector(".reply >> nth=1 >> .answer-tools button")
    tab.wait_for_selector(".reply >> nth=0 >> .answer-tools button")
    assert tab.locator(".reply-name").all_inner_texts() == ["chat", "evil"]
    assert tab.locator(".answer-text").all_inner_texts() == [REPLY, SCRIPT]
    left, right = (tab.locator(".reply").nth(i).bounding_box() for i in (0, 1))
    assert left["y"] == right["y"] and left["x"] < right["x"]


def asked(server: Server, model: str, text: str) -> dict[str, Any]:
    """The answer of the API that the page should show."""
    body = {"model": model, "input": text, "attention": True, "alternatives": 10}
    with server.client() as client:
        return client.post("/v1/ask", json=body).json()["answer"]


def test_a_translation_beside_its_source(visit: Open, desks: Server):
    tab = visit(desks)
    choose(tab, "translation")
    assert tab.inner_text(".go") == "Translate"
    assert tab.is_disabled(".go")
    assert tab.locator("button:has-text('Clear')").is_hidden()
    tab.fill("#prompt", PROMPT)
    assert tab.locator("button:has-text('Clear')").is_visible()
    tab.click(".go")
    tab.wait_for_selector(".answer-tools button")
    answer = asked(desks, "translation", PROMPT)
    assert tab.inner_text(".answer-text") == answer["text"] == REPLY
    assert tab.locator(".word").count() == len(answer["step_names"])
    source, written = (tab.locator(name).bounding_box() for name in (".pane.source", ".answers"))
    assert source["x"] < written["x"] and source["y"] == written["y"]
    tab.mouse.move(0, 0)
    until(tab, "!document.querySelector('.reading .segment.tinted')")
    for step in (1, len(answer["step_names"]) - 2):  # the places have the colours of its weights
        tab.locator(".word").nth(step).hover()
        until(tab, "document.querySelector('.reading .segment.tinted')")
        tinted = weights_of(tab, ".reading")
        places = zip(answer["weights"][step], answer["place_names"], strict=True)
        in_text = [weight for weight, name in places if name and name != "(end)"]
        assert len(tinted) == len(in_text)
        strongest = max(range(len(tinted)), key=lambda place: tinted[place][1])
        assert in_text[strongest] == max(in_text)
    tab.locator(".reading .segment").first.hover()  # the other way round
    until(tab, "document.querySelector('.answer-text .segment.tinted')")

    tab.click("button:has-text('Edit')")
    tab.fill("#prompt", "Goodbye")
    tab.press("#prompt", "Enter")
    until(tab, "document.querySelector('.answer-text').innerText === 'See you soon!'")
    assert tab.inner_text(".earlier .was") == PROMPT
    assert tab.inner_text(".earlier .became") == REPLY
    tab.click(".earlier-row")
    until(tab, f"document.querySelector('.answer-text').innerText === {json.dumps(REPLY)}")


def candidates(tab: Any) -> list[tuple[str, str]]:
    """The labels or words that are offered, and their share."""
    rows = tab.locator(".candidate")
    return [
        (rows.nth(i).locator(".label").inner_text(), rows.nth(i).locator(".value").inner_text())
        for i in range(rows.count())
    ]


def test_a_label_and_its_rivals(visit: Open, desks: Server):
    tab = visit(desks, size=PHONE)
    tab.click("#open-drawer")
    choose(tab, "labels")
    assert tab.inner_text(".go") == "Classify"
    tab.fill("#prompt", PROMPT)
    tab.click(".go")
    tab.wait_for_selector(".candidate")
    answer = asked(desks, "labels", PROMPT)
    names = [label for label, _ in candidates(tab)]
    assert names == [other["text"] for other in answer["alternatives"][0]]
    assert sorted(names) == ["fact", "joke", "taste"]
    assert tab.inner_text(".candidate.taken .label") == answer["text"] == "fact"


def test_a_word_for_a_blank(visit: Open, desks: Server):
    tab = visit(desks)
    choose(tab, "blanks")
    assert tab.inner_text(".go") == "Fill in"
    tab.fill("#prompt", "Four, I ___.")
    tab.click(".go")
    tab.wait_for_selector(".candidate")
    answer = asked(desks, "blanks", "Four, I ___.")
    assert tab.inner_text(".candidate.taken .label") == answer["text"]
    assert tab.inner_text(".filled") == answer["text"]
    other, _ = candidates(tab)[1]
    tab.hover(".candidate >> nth=1")
    until(tab, f"document.querySelector('.filled').innerText === {json.dumps(other)}")
    tab.hover(".pane.source .pane-foot")
    until(tab, f"document.querySelector('.filled').innerText === {json.dumps(answer['text'])}")


def test_a_phone_has_room_for_everything(visit: Open, server: Server, desks: Server):
    """Nothing is cut off at the side, whatever is open."""

    def pick(tab: Any, model: str) -> None:
        tab.click("#open-drawer")
        choose(tab, model)
        tab.wait_for_selector("#drawer:not(.open)", state="attached")

    tab = visit(server, size=PHONE)
    pick(tab, "chat")
    ask(tab, PROMPT)
    answer = finish(tab)
    answer.locator(".word").nth(1).click()
    answer.locator("button:has-text('Map')").click()
    tab.wait_for_selector(".heat canvas")
    assert too_wide(tab) == []
    tab.click("#settings")
    tab.wait_for_selector(".dialog.settings")
    assert too_wide(tab) == []
    tab.keyboard.press("Escape")
    for tab_name, ready in (
        ("budget", ".formulas"),
        ("runs", ".run .chart"),
        ("lab", ".experiment"),
    ):
        tab.click(f"#tab-{tab_name}")
        tab.wait_for_selector(ready)
        assert too_wide(tab) == [], tab_name
    tab.click("#tab-talk")
    for model in ("captions", "speech"):
        pick(tab, model)
        tab.locator(".example, .example-picture").first.click()
        tab.wait_for_selector(".answer-tools button")
        assert too_wide(tab) == [], model

    tab = visit(desks, size=PHONE)
    for model, text in (("translation", PROMPT), ("labels", PROMPT), ("blanks", "Four, I ___.")):
        pick(tab, model)
        tab.fill("#prompt", text)
        tab.click(".go")
        tab.wait_for_selector(".answer-tools button")
        assert too_wide(tab) == [], model


def test_settings_and_the_recipes_again(visit: Open, server: Server):
    tab = visit(server)
    tab.click("#settings")
    tab.locator("#option-max_new_tokens").fill("2")
    tab.click(".dialog [aria-label=Close]")
    ask(tab, PROMPT)
    answer = finish(tab)
    assert answer.locator(".word").count() == 2
    assert "Cut off" in answer.locator(".status").inner_text()
    tab.click("#settings")
    tab.click(".reset")
    tab.keyboard.press("Escape")
    tab.click("#new-conversation")
    ask(tab, PROMPT)
    assert finish(tab).locator(".answer-text").inner_text() == REPLY


# Pictures and sounds ------------------------------------------------------------------------------


def test_a_picture_that_is_dropped_or_pasted(
    visit: Open, server: Server, runs: dict[str, Path], tmp_path: Path
):
    file = runs["captions"].parent / "0.png"
    pixels = "document.querySelector('.stage').toDataURL()"
    tab = visit(server)
    choose(tab, "captions")
    tab.set_input_files("#picture-file", file)
    tab.wait_for_selector(".stage")
    chosen = tab.evaluate(pixels)
    for event, selector in (("drop", ".pane.source"), ("paste", "body")):
        tab.click("button:has-text('Clear')")
        tab.wait_for_selector(".drop")
        if event == "drop":
            give(tab, "dragover", selector, file, "image/png")
            assert tab.locator(".pane.source.dropping").count() == 1
        give(tab, event, selector, file, "image/png")
        tab.wait_for_selector(".stage")
        assert tab.locator(".dropping").count() == 0
        assert tab.evaluate(pixels) == chosen
    tab.click(".go")
    tab.wait_for_selector(".answer-tools button")
    assert tab.inner_text(".answer-text")

    words = tmp_path / "words.txt"
    words.write_text("hello")
    give(tab, "drop", ".pane.source", words, "text/plain")
    tab.wait_for_selector(".toast:has-text('no picture')")
    assert tab.evaluate(pixels) == chosen


def test_a_picture_from_a_file_and_one_that_is_drawn(
    visit: Open, server: Server, runs: dict[str, Path]
):
    tab = visit(server)
    choose(tab, "captions")
    tab.set_input_files("#picture-file", runs["captions"].parent / "0.png")
    tab.click(".go")
    tab.wait_for_selector(".answer-tools button")
    assert tab.inner_text(".answer-text")
    steps = tab.locator(".word").count()
    assert tab.locator(".thumb").count() == steps > 1
    before = tab.evaluate("document.querySelector('.stage').toDataURL()")
    tab.hover(".word >> nth=0")
    until(tab, f"document.querySelector('.stage').toDataURL() !== {before!r}")

    tab.click("#new-conversation")
    tab.click("[role=radio]:has-text('Draw')")
    assert tab.is_disabled(".go")
    tab.locator(".drawing").click()
    tab.click(".go")
    tab.wait_for_selector(".answer-tools button")
    assert tab.locator(".thumb").count() > 0
    tab.reload()
    tab.click(".conversation >> nth=0")
    tab.wait_for_selector(".thumb")  # the picture is unpacked first
    assert tab.locator(".stage").count() == 1


@pytest.mark.parametrize(("name", "example"), [("captions", "Picture 2"), ("speech", "Sound 2")])
def test_examples_of_pictures_and_sounds_are_answered(
    visit: Open, server: Server, runs: dict[str, Path], name: str, example: str
):
    file = next((runs[name] / "examples").glob("2.*"))
    expected = regard.load(runs[name]).ask(file).text
    tab = visit(server)
    choose(tab, name)
    tab.get_by_role("button", name=example, exact=True).click()
    tab.wait_for_selector(".answer-tools button")
    assert tab.inner_text(".answer-text").strip() == expected


def test_a_sound_from_a_file_and_one_that_is_recorded(
    visit: Open, server: Server, runs: dict[str, Path]
):
    sound = runs["speech"].parent / "sounds" / "0.wav"
    with server.client() as client:
        files = {"file": ("0.wav", sound.read_bytes())}
        data = {"model": "speech"}
        said = client.post("/v1/audio/transcriptions", files=files, data=data).json()["text"]
    tab = visit(server)
    choose(tab, "speech")
    tab.set_input_files("#sound-file", sound)
    tab.wait_for_selector(".wave")
    tab.click(".go")
    tab.wait_for_selector(".answer-tools button")
    assert tab.inner_text(".answer-text").strip() == said.strip()
    before = tab.evaluate("document.querySelector('.wave').toDataURL()")
    tab.locator(".word").first.hover()
    assert tab.evaluate("document.querySelector('.wave').toDataURL()") != before

    tab.click("#new-conversation")
    tab.wait_for_selector(".drop")
    give(tab, "drop", ".pane.source", sound, "audio/wav")
    tab.wait_for_selector(".wave")
    tab.click(".go")
    tab.wait_for_selector(".answer-tools button")
    assert tab.inner_text(".answer-text").strip() == said.strip()

    tab.click("#new-conversation")
    tab.click("#record")
    tab.wait_for_selector(".meter:visible")
    until(tab, "Number(document.querySelector('.meter').getAttribute('aria-valuenow')) > 0")
    tab.wait_for_timeout(700)
    tab.click("#record")
    tab.wait_for_selector(".wave")
    tab.click(".go")
    tab.wait_for_selector(".answer-tools button, .status button")
    assert tab.locator(".answer-tools button").count() > 0


# When something goes wrong ------------------------------------------------------------------------


def test_a_wrong_key(visit: Open, runs: dict[str, Path]):
    server = Server([runs["chat"]], environment={"REGARD_KEY": KEY})
    try:
        tab = visit(server, ready=".key-dialog", expect=f"401|{REFUSED}")
        assert "asks for a key" in tab.inner_text(".key-dialog")
        tab.fill("#key", "wrong")
        tab.press("#key", "Enter")
        tab.wait_for_selector(".key-dialog .wrong")
        tab.fill("#key", KEY)
        tab.press("#key", "Enter")
        tab.wait_for_selector("html[data-ready=yes]")
        ask(tab, PROMPT)
        assert finish(tab).locator(".answer-text").inner_text() == REPLY
        assert KEY not in tab.evaluate("JSON.stringify(localStorage)")
        tab.reload()
        tab.wait_for_selector("html[data-ready=yes]")  # kept for this tab
        assert_report_is_shown_apart(tab, secret=KEY)
    finally:
        server.stop()


def assert_report_is_shown_apart(tab: Any, secret: str = "") -> None:
    """The report is in the page; its script runs, but cannot reach the page, its storage or the
    server."""
    tab.click("#tab-runs")
    tab.locator(".run button", has_text="Report").first.click()
    tab.wait_for_selector(".viewer iframe")
    frame = tab.frame_locator(".viewer iframe")
    frame.locator("h1").first.wait_for()
    handle = tab.query_selector(".viewer iframe").content_frame()
    assert not (secret and secret in handle.url)
    assert handle.evaluate("self.origin") == "null"
    for what in ("parent.document", "sessionStorage", "localStorage"):
        tried = f"try {{ {what}; return 'reached'; }} catch (error) {{ return error.name; }}"
        assert handle.evaluate(f"() => {{ {tried} }}") == "SecurityError"
    assert handle.evaluate("fetch('/health').then(() => 'reached', () => 'refused')") == "refused"
    theme = frame.locator("#theme")  # what it says is up to the report's own script
    before = theme.inner_text()
    theme.click()
    assert theme.inner_text() != before
    with tab.expect_download() as event:
        tab.locator(".viewer button", has_text="Save").click()
    assert "<h1" in Path(event.value.path()).read_text("utf-8")
    tab.locator(".viewer .dialog-head button[aria-label=Close]").click()
    tab.wait_for_selector(".viewer", state="detached")


def test_the_server_goes_and_comes_back(visit: Open, runs: dict[str, Path]):
    patient = Server([runs["chat"]], limits=LIMITS)
    port = str(patient.port)
    settings = {"regard-settings-chat": LONG}
    tab = visit(patient, storage=settings, expect="ERR_|Failed to load")
    ask(tab, PROMPT)
    until(tab, "document.querySelectorAll('.answer.live .word').length > 3")
    patient.kill()
    tab.wait_for_selector("#connection:has-text('does not answer')")
    tab.wait_for_selector(".status:has-text('lost in the middle')")
    words = tab.locator(".word").count()
    assert words > 3  # what was written stays

    tab.evaluate("localStorage.removeItem('regard-settings-chat')")
    ask(tab, "Hello!")
    tab.wait_for_selector(".status:has-text('sent again when it is back')")

    again = Server([runs["chat"]], "--port", port)
    try:
        tab.wait_for_selector("#connection:has-text('is back')")
        assert finish(tab, 2).locator(".answer-text").inner_text() == "Hi there."
        tab.click(".status button:has-text('Try again')")
        until(tab, "document.querySelector('.answer-text').textContent.startsWith(\"I'm Ada\")")
        finish(tab)
    finally:
        again.stop()


def engine_of(server: Server, model: str) -> int:
    """The process of a model's engine."""
    for pid in server.engine_pids():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if model.encode() in words:
            return pid
    raise AssertionError(f"no engine process of {model}")


def test_an_error_in_the_middle_of_an_answer_is_in_the_servers_words(visit: Open, server: Server):
    """The connection is not lost: only the engine is, and it comes back."""
    tab = visit(server, storage={"regard-settings-chat": LONG})
    ask(tab, PROMPT)
    until(tab, "document.querySelectorAll('.answer.live .word').length > 3")
    os.kill(engine_of(server, "chat"), signal.SIGKILL)
    tab.wait_for_selector(".status:has-text('The engine process ended while it answered')")
    assert tab.locator("#connection").is_hidden()
    assert tab.locator(".word").count() > 3  # what was written stays

    with server.client() as client:
        for _ in range(600):
            if client.get("/ready").status_code == 200:
                break
            tab.wait_for_timeout(100)
    tab.evaluate("localStorage.removeItem('regard-settings-chat')")
    tab.click(".status button:has-text('Try again')")
    until(tab, f"document.querySelector('.answer-text').textContent === {json.dumps(REPLY)}")


def test_a_busy_server_is_asked_again(visit: Open, server: Server):
    tab = visit(server, expect="429")
    answers = []

    def busy_once(route: Any) -> None:
        answers.append(route.request.post_data_json["input"])
        if len(answers) > 1:
            route.continue_()
            return
        error = {"error": {"message": "the queue is full", "type": "overloaded"}}
        route.fulfill(status=429, headers={"Retry-After": "2"}, json=error)

    tab.route("**/v1/ask", busy_once)
    ask(tab, PROMPT)
    tab.wait_for_selector(".status:has-text('busy. Trying again in')")
    assert finish(tab).locator(".answer-text").inner_text() == REPLY
    assert answers == [PROMPT, PROMPT]


def test_what_is_too_long_is_said_in_plain_words(visit: Open, server: Server):
    tab = visit(server, expect="400|413")
    ask(tab, "hello " * 20_000)
    tab.wait_for_selector(".status button:has-text('Try again')")
    assert "characters" in tab.inner_text(".status")


def test_a_script_in_an_answer_is_text(visit: Open, server: Server):
    tab = visit(server)
    choose(tab, "evil")
    ask(tab, SCRIPT)
    answer = finish(tab)
    assert answer.locator(".answer-text").inner_text() == SCRIPT
    answer.locator(".word").first.click()
    tab.wait_for_selector(".inside:not([hidden])")
    tab.reload()
    tab.click(".conversation")
    assert tab.locator(".conversation-title").inner_text() == SCRIPT
    assert tab.locator(".prompt-text").inner_text() == SCRIPT
    assert tab.locator("main img, main script, #conversations img").count() == 0


# Other tabs ---------------------------------------------------------------------------------------


def test_budget_runs_and_lab(visit: Open, server: Server):
    tab = visit(server, expect=REFUSED)
    tab.click("#tab-budget")
    tab.wait_for_selector(".formulas")
    moving = (".budget-numbers", ".chart", ".formulas")
    for size in ("length", "width", "layers", "heads"):
        before = [tab.inner_html(part) for part in moving]
        tab.locator(f"#size-{size}").press("ArrowRight")
        for part, old in zip(moving, before, strict=True):
            until(tab, f"document.querySelector('{part}').innerHTML !== {json.dumps(old)}")
    with server.client() as client:
        sizes = {"width": 384, "layers": 6, "heads": 16, "length": 1024}
        truth = client.get("/v1/budget", params=sizes).json()
    millions = f"{truth['softmax']['parameters'] / 1e6:.3g} M"
    assert millions in tab.inner_text(".budget-numbers")

    tab.evaluate("document.querySelector('main').scrollTop = 300")
    tab.click("#tab-runs")
    tab.wait_for_selector(".run .chart")
    assert tab.evaluate("document.querySelector('main').scrollTop") == 0
    assert tab.locator(".run").count() == 4
    assert_report_is_shown_apart(tab)
    tab.click("#tab-lab")
    tab.wait_for_selector(".experiment")
    with server.client() as client:
        assert tab.locator(".experiment").count() == len(client.get("/v1/lab").json())

    formulas = tab.locator(".experiment", has_text="Dense map").locator("sub, sup")
    assert formulas.all_inner_texts() == ["2", "v", "T"]  # of N^2 and W_v^T

    card = tab.locator(".experiment", has_text=FASTEST)
    card.locator("button").click()
    frame = tab.frame_locator(".viewer iframe")
    frame.locator("h1").first.wait_for(timeout=300_000)
    assert frame.locator("svg, canvas, img, table").count() > 0
