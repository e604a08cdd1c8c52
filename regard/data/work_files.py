"""JSON files in the folder of work and in a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """What a file has in it; None if it is not there, or not whole."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, content: Any) -> None:
    """Write a file under a temporary name, then rename it."""
    draft = path.with_name(f"{path.name}.new")
    dump_json(draft, content)
    draft.replace(path)


def dump_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
