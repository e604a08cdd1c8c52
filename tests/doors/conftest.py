"""Pages in a browser: Debian's chromium, driven by Playwright. Skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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

Open = Callable[..., Any]


class Tab:
    """A tab that is touched only when its page has drawn what was chosen last."""

    def __init__(self, tab: Any):
        self._tab = tab

    def __getattr__(self, name: str) -> Any:
        if name not in ("goto", "wait_for_selector"):
            self._tab.wait_for_selector("html:not([aria-busy=true])", state="attached")
        return getattr(self._tab, name)


@contextmanager
def launched(*arguments: str) -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=[*ARGUMENTS, *arguments])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Opens a page from disk. At the end, nothing but pages of its folder was requested, and no
    error was reported."""
    contexts: list[Any] = []
    folders: set[str] = set()
    requests: list[str] = []
    problems: list[str] = []

    def visited(
        path: Path, *, size=WIDE, theme="light", link="", ready="#theme", **options: Any
    ) -> Tab:
        context = browser.new_context(viewport=size, color_scheme=theme, **options)
        context.set_default_timeout(120_000)
        contexts.append(context)
        folders.add(f"file://{path.parent}/")
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url.partition("#")[0]))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        tab = Tab(page)
        tab.goto(f"file://{path}{link}")
        tab.wait_for_selector(ready)
        return tab

    yield visited
    for context in contexts:
        context.close()
    assert not problems
    for url in requests:
        page_of_folder = url.startswith(tuple(folders)) and url.endswith(".html")
        assert page_of_folder or url.startswith(("data:", "blob:")), url
