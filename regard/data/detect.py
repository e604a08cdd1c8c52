"""Which reader a path is for."""

from __future__ import annotations

from pathlib import Path

from regard.data import captions, labelled, pictures, readers, sound
from regard.errors import DataError


def kind(path: Path | str, task: str) -> str:
    """The kind of data, as a recipe names it, that a file or folder is for this task."""
    path = Path(path)
    if task == "chat":
        return readers.detect(path)
    if task == "speech":
        return sound.detect(path)
    if not path.exists():
        raise DataError("no such file or folder", where=path)
    if task == "blank":
        return "text"
    if task == "translate":
        if path.is_dir():
            raise DataError(
                "not a file of pairs",
                where=path,
                hint="for two files use --set data.kind=parallel and data.target_path",
            )
        return "pairs"
    if task == "caption":
        if found := captions.detect(path):
            return found
        raise DataError(
            "not pictures with sentences",
            where=path,
            hint="Flickr8k's folder, COCO's captions JSON, or a table with columns path and text",
        )
    if path.is_file():
        return "medmnist" if path.suffix == ".npz" else "labelled"
    if any(file.suffix.lower() in pictures.SUFFIXES for file in path.glob("*/**/*")):
        return "pictures"
    labelled.labelled_files(path)  # refuses what is neither
    return "labelled"
