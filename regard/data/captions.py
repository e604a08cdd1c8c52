"""Pictures with sentences: Flickr8k, COCO's JSON, and any table of files and sentences.

A picture may have several sentences. They come one after the other with the same Item, which the
cache then keeps once, and which training reads once for all of them. Pictures lie in a folder or in
a zip, which is never unpacked: members are looked up by their names and read one at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np

from regard.data.examples import Example, Item
from regard.data.lines import EMPTY, Tally, clean_text, read_lines
from regard.data.pairs import read_pairs
from regard.data.pictures import LARGEST_FILE, SUFFIXES, content_of, decoded
from regard.data.reading import checked, tidy
from regard.data.roles import CAPTIONED, Column
from regard.errors import DataError, InputError

MOST_MEMBERS = 1_000_000  # of a zip
LARGEST_JSON = 1 << 30  # bytes; COCO's captions have 90 MB
FOLDERS = (
    "images",
    "flicker8k_dataset",
    "flickr8k_dataset",
    "flickr8k_images",
)  # one L, one R: so it was published
TOKENS = "Flickr8k.token.txt"
LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "valid": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}

Told = Iterable[tuple[str, list[str]]]  # names of pictures, with the sentences of each


# -- where pictures lie-----------------------------------------------------------------------------


class Album:
    """Pictures by their names, in a folder or a zip."""

    def __init__(self, path: Path | str, *, anywhere: bool = False):
        """`anywhere`: names may lead out of the folder, because the user wrote them."""
        self.path, self.anywhere = Path(path), anywhere
        self.zip: zipfile.ZipFile | None = None
        self.members: dict[str, zipfile.ZipInfo] = {}
        if self.path.is_file():
            self._open()
        elif not self.path.is_dir():
            raise DataError("no such folder or zip of pictures", where=self.path)

    def _open(self) -> None:
        try:
            self.zip = zipfile.ZipFile(self.path)
            weakref.finalize(self, self.zip.close)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as problem:
            raise DataError(
                "not a whole zip of pictures", where=self.path, got=str(problem)[:120]
            ) from None
        members = self.zip.infolist()
        if len(members) > MOST_MEMBERS:
            raise DataError("too many members", where=self.path, got=f"{len(members):,}")
        for member in members:
            if Path(member.filename).suffix.lower() in SUFFIXES and not member.filename.startswith(
                "__MACOSX"
            ):
                self.members.setdefault(member.filename, member)
                self.members.setdefault(member.filename.rpartition("/")[2], member)

    def content(self, name: str) -> bytes:
        return self._file(name) if self.zip is None else self._member(self.zip, name)

    def _file(self, name: str) -> bytes:
        inside = Path(name)
        if not self.anywhere and (inside.is_absolute() or ".." in inside.parts):
            raise InputError("a picture outside its folder", where=name)
        return content_of(self.path / inside)

    def _member(self, archive: zipfile.ZipFile, name: str) -> bytes:
        member = self.members.get(name)
        if member is None:
            raise InputError("no such picture", where=f"{self.path}/{name}")
        if member.file_size > LARGEST_FILE:
            raise InputError(
                "the picture's file is too large", where=name, got=f"{member.file_size:,} bytes"
            )
        try:
            with archive.open(member) as opened:  # it ends where the member says it does
                return opened.read(LARGEST_FILE)
        except Exception as problem:  # damaged in one of a dozen ways, or encrypted
            raise InputError(
                "cannot be read from its zip", where=name, got=str(problem)[:80]
            ) from None


class Fitted:
    """Pictures of an album, fitted to one size. A corpus is read two or three times while it is
    made, so they are kept, in a file without a name; what cannot be read is remembered too."""

    def __init__(
        self,
        album: Callable[[], Album],
        *,
        size: tuple[int, int],
        channels_in: int,
        crop: bool = False,
    ):
        self.open, self.size, self.channels_in, self.crop = album, size, channels_in, crop
        self.album: Album | None = None
        self.kept: dict[str, tuple[int, bytes] | InputError] = {}
        self.file: IO[bytes] | None = None

    def __call__(self, name: str) -> Item:
        if name not in self.kept:
            self.kept[name] = self._fit(name)
        found = self.kept[name]
        if isinstance(found, InputError):
            raise found
        assert self.file is not None
        shape = (*self.size, self.channels_in)
        self.file.seek(found[0])
        values = np.frombuffer(self.file.read(int(np.prod(shape))), np.uint8).reshape(shape)
        return Item(name, values, found[1])

    def _fit(self, name: str) -> tuple[int, bytes] | InputError:
        self.album = self.album or self.open()
        try:
            content = self.album.content(name)
            values = decoded(
                content, size=self.size, channels_in=self.channels_in, where=name, crop=self.crop
            )
        except InputError as problem:
            return problem
        if self.file is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as this
            weakref.finalize(self, self.file.close)
        place = self.file.seek(0, 2)
        self.file.write(values.tobytes())
        return place, hashlib.sha256(
            content
        ).digest()  # what stands for the content, which may be large


def _examples(told: Told, fitted: Fitted, tally: Tally) -> Iterator[Example]:
    for name, sentences in told:
        try:
            item = fitted(name)
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
    found = [path / TOKENS, *sorted(path.glob(f"*/{TOKENS}"))]
    if not (found := [file for file in found if file.is_file()]):
        raise DataError(f"not Flickr8k: no {TOKENS}", where=path)
    return found[0]


def flickr8k_images(path: Path | str, images: str | None = None) -> Path:
    """The folder or zip of its pictures: as it is usually called, near the sentences."""
    if images is not None:
        return Path(images)
    home = flickr8k_tokens(path).parent
    for folder in (home, home.parent):
        for inner in sorted(folder.iterdir()):
            name = inner.name.lower()
            if (inner.is_dir() and name in FOLDERS) or (
                name.endswith(".zip") and name[:-4] in FOLDERS
            ):
                return inner
    raise DataError(
        "no pictures beside the sentences",
        where=home,
        hint="name their folder or zip with data.images",
    )


def flickr8k_list(path: Path | str, part: str) -> Path | None:
    """The list of the pictures of a part, if it is there."""
    home = flickr8k_tokens(path).parent
    return next(
        (file for folder in (home, home.parent) if (file := folder / LISTS[part]).is_file()), None
    )


def flickr8k_files(path: Path | str, images: str | None = None) -> list[Path]:
    lists = (flickr8k_list(path, part) for part in LISTS)
    return [flickr8k_tokens(path), *(file for file in lists if file), flickr8k_images(path, images)]


def read_flickr8k(
    path: Path | str, *, part: str | None, fitted: Fitted, tally: Tally, limit: float = 0.5
) -> Iterator[Example]:
    """Lines `picture.jpg#2 TAB sentence`. `part` keeps the pictures of its list; None: all of
    them."""
    tokens = flickr8k_tokens(path)
    names = None if part is None else flickr8k_list(path, part)
    kept = None if names is None else frozenset(line.strip() for line in read_lines(names, Tally()))
    return checked(
        _examples(_flickr8k(tokens, kept, tally), fitted, tally), path, tally, limit=limit
    )


def _flickr8k(tokens: Path, kept: Set[str] | None, tally: Tally) -> Told:
    def lines() -> Iterator[tuple[str, str]]:
        for line in read_lines(tokens, tally):
            found = re.fullmatch(r"([^#\t]+)#\d+\t(.*)", line)
            if found is None:
                tally.skip("not a picture, a number and a sentence")
            elif kept is None or found[1] in kept:
                yield found[1], tidy(found[2])

    return _grouped(lines())


def _grouped(lines: Iterable[tuple[str, str]]) -> Told:
    return (
        (name, [sentence for _, sentence in run])
        for name, run in groupby(lines, key=lambda line: line[0])
    )


# -- COCO-------------------------------------------------------------------------------------------


def coco_images(path: Path | str, images: str | None = None) -> Path:
    """The folder or zip of the pictures: of captions_train2017.json it is train2017, beside it
    or one level up."""
    if images is not None:
        return Path(images)
    path = Path(path)
    name = path.stem.removeprefix("captions_")
    for folder in (path.parent, path.parent.parent):
        for inner in (
            folder / name,
            folder / f"{name}.zip",
            folder / "images",
            folder / "images.zip",
        ):
            if inner.exists():
                return inner
    raise DataError(
        "no pictures beside the sentences",
        where=path,
        hint="name their folder or zip with data.images",
    )


def read_coco(
    path: Path | str, *, fitted: Fitted, tally: Tally, limit: float = 0.5
) -> Iterator[Example]:
    """COCO's captions: {"images": [{"id", "file_name"}], "annotations": [{"image_id",
    "caption"}]}."""
    path = Path(path)
    return checked(_examples(_coco(path, tally), fitted, tally), path, tally, limit=limit)


def _coco(path: Path, tally: Tally) -> Told:
    """Sentences come in any order, so all are held: about 200 MB for the 600,000 of COCO."""
    whole = coco_json(path)
    names: dict[Any, str] = {}
    for image in whole["images"]:
        match image:
            case {"id": int() | str() as key, "file_name": str() as name}:
                names[key] = name
            case _:
                tally.skip("missing field")
    told: dict[str, list[str]] = {name: [] for name in names.values()}
    for row in whole["annotations"]:
        match row:
            case {"image_id": int() | str() as key, "caption": str() as sentence}:
                if key in names:
                    told[names[key]].append(tidy(clean_text(sentence, tally)))
                else:
                    tally.skip("dangling id")
            case _:
                tally.skip("missing field")
    return told.items()


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
    fitted: Fitted,
    path_column: Column = None,
    text_column: Column = None,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """A picture's file and a sentence a line: CSV, TSV or JSON lines. Lines of one picture stand
    together."""
    lines = Tally()
    told = _table(Path(path), path_column, text_column, lines)

    def examples() -> Iterator[Example]:
        yield from _examples(told, fitted, tally)
        tally.skipped += lines.skipped
        tally.replaced += lines.replaced

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
    named = (path.parent / name for name, _ in _table(path, path_column, text_column, Tally()))
    return [
        path,
        *(file for file in dict.fromkeys(named) if os.path.isfile(file)),
    ]  # False of a name that is too long


def _table(path: Path, path_column: Column, text_column: Column, tally: Tally) -> Told:
    columns = {"source_column": path_column, "target_column": text_column}
    pairs = read_pairs(path, **columns, tally=tally, limit=1.0, roles=CAPTIONED)
    return _grouped((str(pair.source), pair.target) for pair in pairs)
