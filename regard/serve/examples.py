"""Examples of a run's own data, to try a model with: texts, or files of pictures or sounds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from regard import disk
from regard.errors import RegardError
from regard.runs import EXAMPLES

MOST = 6
TYPES = {".png": "image/png", ".wav": "audio/wav"}


def texts(run: Path) -> list[str]:
    """Inputs of validation data, as the last validation has recorded them."""
    samples: list[Any] = []
    with contextlib.suppress(RegardError, OSError):
        for line in disk.read_json_lines(run / "metrics.jsonl"):
            samples = line.get("samples") or samples
    inputs = [sample[0] for sample in samples if isinstance(sample, list) and sample]
    return [text for text in inputs if isinstance(text, str)][:MOST]


def files(run: Path) -> list[str]:
    """The names of files, which training has written."""
    paths: list[Path] = []
    with contextlib.suppress(OSError):
        paths = sorted((run / EXAMPLES).iterdir())
    return [file.name for file in paths if file.suffix in TYPES and file.is_file()][:MOST]


def read(run: Path, name: str) -> tuple[bytes, str]:
    """The content of one of these files, and its type."""
    file = run / EXAMPLES / name
    return file.read_bytes(), TYPES[file.suffix]
