"""How fast large pages open: from the start of the request to the first map that is drawn.

    python -m bench.pages
    python -m bench.pages --repeats 3

Chromium opens each page from disk, without a cache, and says when its first map is drawn
(`performance.now`). Each page is opened several times in a new context; the record has all times
and the median.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import regard

RESULTS = Path(__file__).parent / "results" / "pages.json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SIZES = ((8, 8, 500), (1, 2, 2000))  # layers, heads, tokens
WINDOW = {"width": 1360, "height": 900}
MOST = 1000.0  # milliseconds, the median on an idle machine
PATIENCE = 120_000


@contextmanager
def launched() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        raise SystemExit("needs a browser: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


def write_page(layers: int, heads: int, tokens: int, path: Path) -> None:
    """A page of weights whose rows are softmaxes of noise."""
    scores = 3 * np.random.default_rng(7).standard_normal((layers, heads, tokens, tokens))
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True)
    regard.show_weights(weights.astype(np.float32), [f"t{i}" for i in range(tokens)]).save(path)


def opened(browser: Any, path: Path) -> float:
    """Milliseconds until the first map is drawn."""
    context = browser.new_context(viewport=WINDOW)
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    tab.goto(f"file://{path}")
    tab.wait_for_selector("html[data-ready=yes]", state="attached")
    drawn_after = float(tab.get_attribute("html", "data-drawn-after"))
    context.close()
    return drawn_after


def measure(browser: Any, size: tuple[int, int, int], repeats: int, path: Path) -> dict[str, Any]:
    layers, heads, tokens = size
    write_page(layers, heads, tokens, path)
    times = [opened(browser, path) for _ in range(repeats)]
    median = statistics.median(times)
    return {
        "tokens": tokens,
        "layers": layers,
        "heads": heads,
        "bytes": path.stat().st_size,
        "milliseconds": times,
        "median": median,
        "at_most": MOST,
        "holds": median <= MOST,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    with launched() as browser, tempfile.TemporaryDirectory() as folder:
        version = browser.version
        for size in SIZES:
            row = measure(browser, size, arguments.repeats, Path(folder) / "page.html")
            rows.append(row)
            name = f"{row['tokens']:,} x {row['tokens']:,}, {row['layers']} layers"
            print(f"{name:<26}{row['bytes'] / 1e6:6.1f} MB{row['median']:8.0f} ms")
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "chromium": version,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
