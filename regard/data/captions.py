"""Pictures with captions: Flickr8k, COCO's JSON, and any table of files and captions.

A picture may have several captions. They come one after the other with the same Item, which the
cache then stores once, and which training reads once for all of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import groupby
from pathlib import Path
from typing import Any

from regard.data.album import ResizedPictures
from regard.data.examples import Example
from regard.data.lines import EMPTY, Tally, clean_text, read_lines
from regard.data.pairs import read_pairs
from regard.data.reading import checked, tidy
from regard.data.roles import CAPTIONED, Column
from regard.errors import DataError, InputError

LARGEST_JSON = 1 << 30  # bytes; COCO's captions have 90 MB
FOLDERS = ("images", "flicker8k_dataset", "flickr8k_dataset", "flickr8k_images")  # as published
TOKENS = "Flickr8k.token.txt"
LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "valid": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}

Captions = Iterable[tuple[str, list[str]]]  # names of pictures, with the captions of each


def _examples(captions: Captions, pictures: ResizedPictures, tally: Tally) -> Iterator[Example]:
    for name, sentences in captions:
        try:
            item = pictures(name)
        except InputError as problem:
            tally.skipped[problem.what] += len(sentences)
            continue
        for sentence in sentences:
            if sentence:
                tally.used += 1
                yield Example(item, sentence)
            else:
                tally.skip(EMPTY)


# -- Flickr8k---------------------------------------------------------------------------------------


def flickr8k_tokens(path: Path | str) -> Path:
    """The file of sentences: the path itself, or in that folder, or one level below."""
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError("no such file or folder", where=path)
    for file in (path / TOKENS, *sorted(path.glob(f"*/{TOKENS}"))):
        if file.is_file():
            return file
    raise DataError(f"not Flickr8k: no {TOKENS}", where=path)


def flickr8k_images(path: Path | str, images: str | None = None) -> Path:
    """The folder or zip of its pictures: as it is usually called, near the sentences."""
    if images is not None:
        return Path(images)
    home = flickr8k_tokens(path).parent
    for folder in (home, home.parent):
        for inner in sorted(folder.iterdir()):
            name = inner.name.lower()
            is_folder = inner.is_dir() and name in FOLDERS
            is_zip = name.endswith(".zip") and name.removesuffix(".zip") in FOLDERS
            if is_folder or is_zip:
                return inner
    raise DataError(
        "no pictures beside the sentences",
        where=home,
        hint="name their folder or zip with data.images",
    )


def flickr8k_list(path: Path | str, part: str) -> Path | None:
    """The list of the pictures of a part, if it is there."""
    home = flickr8k_tokens(path).parent
    for folder in (home, home.parent):
        if (folder / LISTS[part]).is_file():
            return folder / LISTS[part]
    return None


def flickr8k_files(path: Path | str, images: str | None = None) -> list[Path]:
    """The files that `read_flickr8k` reads: captions, lists, and the folder or zip of pictures."""
    files = [flickr8k_tokens(path)]
    for part in LISTS:
        names = flickr8k_list(path, part)
        if names is not None:
            files.append(names)
    return [*files, flickr8k_images(path, images)]


def read_flickr8k(
    path: Path | str,
    *,
    part: str | None,
    pictures: ResizedPictures,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """Lines `picture.jpg#2 TAB caption`. `part` keeps the pictures of its list; None: all of
    them."""
    file = None if part is None else flickr8k_list(path, part)
    names = None
    if file is not None:
        names = frozenset(line.strip() for line in read_lines(file, Tally()))
    captions = _grouped(_flickr8k(flickr8k_tokens(path), names, tally))
    return checked(_examples(captions, pictures, tally), path, tally, limit=limit)


def _flickr8k(tokens: Path, names: Set[str] | None, tally: Tally) -> Iterator[tuple[str, str]]:
    """Pictures and captions, line by line; only those of `names`."""
    for line in read_lines(tokens, tally):
        match = re.fullmatch(r"([^#\t]+)#\d+\t(.*)", line)
        if match is None:
            tally.skip("not a picture, a number and a sentence")
        elif names is None or match[1] in names:
            yield match[1], tidy(match[2])


def _grouped(lines: Iterable[tuple[str, str]]) -> Captions:
    for name, group in groupby(lines, key=lambda line: line[0]):
        yield name, [sentence for _, sentence in group]


# -- COCO-------------------------------------------------------------------------------------------


def coco_images(path: Path | str, images: str | None = None) -> Path:
    """The folder or zip of the pictures: of captions_train2017.json it is train2017, beside it
    or one level up."""
    if images is not None:
        return Path(images)
    path = Path(path)
    name = path.stem.removeprefix("captions_")
    for folder in (path.parent, path.parent.parent):
        for inner in (name, f"{name}.zip", "images", "images.zip"):
            if (folder / inner).exists():
                return folder / inner
    raise DataError(
        "no pictures beside the sentences",
        where=path,
        hint="name their folder or zip with data.images",
    )


def read_coco(
    path: Path | str, *, pictures: ResizedPictures, tally: Tally, limit: float = 0.5
) -> Iterator[Example]:
    """COCO's captions: {"images": [{"id", "file_name"}], "annotations": [{"image_id",
    "caption"}]}."""
    path = Path(path)
    return checked(_examples(_coco(path, tally), pictures, tally), path, tally, limit=limit)


def _coco(path: Path, tally: Tally) -> Captions:
    """Sentences come in any order, so all are held: about 200 MB for the 600,000 of COCO."""
    whole = coco_json(path)
    names: dict[Any, str] = {}
    for image in whole["images"]:
        match image:
            case {"id": int() | str() as key, "file_name": str() as name}:
                names[key] = name
            case _:
                tally.skip("missing field")
    captions: dict[str, list[str]] = {name: [] for name in names.values()}
    for row in whole["annotations"]:
        match row:
            case {"image_id": int() | str() as key, "caption": str() as sentence}:
                if key in names:
                    captions[names[key]].append(tidy(clean_text(sentence, tally)))
                else:
                    tally.skip("dangling id")
            case _:
                tally.skip("missing field")
    return captions.items()


def coco_json(path: Path) -> Mapping[str, list[Any]]:
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise DataError(
                "too large for COCO's captions", where=path, got=f"{path.stat().st_size:,} bytes"
            )
        whole = json.loads(path.read_bytes())
    except OSError as problem:
        raise DataError("cannot be read", where=path, got=problem.strerror) from None
    except (ValueError, RecursionError) as problem:
        raise DataError("not JSON", where=path, got=str(problem)[:80]) from None
    match whole:
        case {"images": list(), "annotations": list()}:
            return whole
    raise DataError('not COCO\'s captions: "images" and "annotations" must be lists', where=path)


# -- a table----------------------------------------------------------------------------------------


def read_captioned(
    path: Path | str,
    *,
    pictures: ResizedPictures,
    path_column: Column = None,
    text_column: Column = None,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """A picture's file and a sentence a line: CSV, TSV or JSON lines. Lines of one picture stand
    together."""
    rows = Tally()
    captions = _table(Path(path), path_column, text_column, rows)

    def examples() -> Iterator[Example]:
        yield from _examples(captions, pictures, tally)
        tally.skipped += rows.skipped
        tally.replaced += rows.replaced

    return checked(examples(), path, tally, limit=limit)


def captioned_files(
    path: Path | str,
    images: str | None = None,
    *,
    path_column: Column = None,
    text_column: Column = None,
) -> list[Path]:
    """The table, and its pictures: a folder or zip of their own, or the files that it names."""
    path = Path(path)
    if images is not None:
        return [path, Path(images)]
    files = [path]
    for name, _ in _table(path, path_column, text_column, Tally()):
        file = path.parent / name
        if os.path.isfile(file):  # False of a name that is too long, where Path raises
            files.append(file)
    return list(dict.fromkeys(files))


def _table(path: Path, path_column: Column, text_column: Column, tally: Tally) -> Captions:
    columns = {"source_column": path_column, "target_column": text_column}
    pairs = read_pairs(path, **columns, tally=tally, limit=1.0, roles=CAPTIONED)
    return _grouped((str(pair.source), pair.target) for pair in pairs)
