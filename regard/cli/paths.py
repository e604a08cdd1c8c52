"""Paths as they are typed."""

from __future__ import annotations

from pathlib import Path

from regard.errors import InputError


def filled_path(text: str) -> Path:
    """The parser of every option and argument that is a path. An empty one would mean this
    folder; it nearly always is a variable of the shell that is not set."""
    if not text:
        raise InputError(
            "a path is empty", hint="is a variable of the shell not set? a dot, . , is this folder"
        )
    return Path(text)
