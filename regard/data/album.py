"""Pictures by name, in a folder or a zip, and their copies in the size a model reads.

A zip is never unpacked: members are looked up by their names and read one at a time.
"""

from __future__ import annotations

import hashlib
import tempfile
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from regard.data.examples import Item
from regard.data.pictures import LARGEST_FILE, content_of, decoded
from regard.data.roles import PICTURES
from regard.errors import DataError, InputError

MOST_MEMBERS = 1_000_000  # of a zip


class Album:
    """Pictures by their names, in a folder or a zip."""

    def __init__(self, path: Path | str, *, anywhere: bool = False):
        """`anywhere`: names may lead out of the folder, because the user wrote them."""
        self.path = Path(path)
        self.anywhere = anywhere
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
            name = member.filename
            if Path(name).suffix.lower() not in PICTURES or name.startswith("__MACOSX"):
                continue
            self.members.setdefault(name, member)
            self.members.setdefault(name.rpartition("/")[2], member)

    def content(self, name: str) -> bytes:
        """The bytes of a picture's file."""
        return self._file(name) if self.zip is None else self._member(self.zip, name)

    def _file(self, name: str) -> bytes:
        file = Path(name)
        if not self.anywhere and (file.is_absolute() or ".." in file.parts):
            raise InputError("a picture outside its folder", where=name)
        return content_of(self.path / file)

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


class _Copy(NamedTuple):
    offset: int  # in the temporary file
    digest: bytes  # of the picture's file, which may be large


class ResizedPictures:
    """The pictures of an album in one size. A corpus is read two or three times while it is
    prepared, so resized copies are kept in a temporary file; the error of a picture that cannot be
    read is kept too."""

    def __init__(
        self,
        album: Callable[[], Album],
        *,
        size: tuple[int, int],
        channels_in: int,
        crop: bool = False,
    ):
        self.size = size
        self.channels_in = channels_in
        self.crop = crop
        self._open_album = album
        self._album: Album | None = None
        self._copies: dict[str, _Copy | InputError] = {}
        self._file: IO[bytes] | None = None

    def __call__(self, name: str) -> Item:
        if name not in self._copies:
            self._copies[name] = self._resize(name)
        copy = self._copies[name]
        if isinstance(copy, InputError):
            raise copy
        assert self._file is not None
        shape = (*self.size, self.channels_in)
        self._file.seek(copy.offset)
        pixels = self._file.read(int(np.prod(shape)))
        return Item(name, np.frombuffer(pixels, np.uint8).reshape(shape), copy.digest)

    def _resize(self, name: str) -> _Copy | InputError:
        if self._album is None:
            self._album = self._open_album()
        try:
            content = self._album.content(name)
            values = decoded(
                content, size=self.size, channels_in=self.channels_in, where=name, crop=self.crop
            )
        except InputError as problem:
            return problem
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as this object
            weakref.finalize(self, self._file.close)
        offset = self._file.seek(0, 2)
        self._file.write(values.tobytes())
        return _Copy(offset, hashlib.sha256(content).digest())
