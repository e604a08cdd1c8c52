"""Some files out of an archive that may have been made to do harm.

Nothing here trusts an archive. Members are read one after the other and written by us, never by the
library: only plain files whose place was asked for, each under a new name inside the folder. A
member that could only be there to harm (an absolute path, `..`, a link, a device) condemns the
whole archive, even where nobody asked for it. What comes out is counted as it comes, not as the
archive declares it. A caller unpacks into a draft folder and renames it afterwards.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from regard import disk
from regard.errors import DataError, RegardError

# text packs to a tenth at best; what unfolds to more than this many times its size is a bomb
RATIO = 200
CHUNK = 1 << 16


class _Member(NamedTuple):
    name: str
    plain: bool  # a file with contents, not a folder
    wrong: str | None  # why it is not to be had at all
    open: Callable[[], IO[bytes]]


def unpack(
    archive: Path, into: Path, *, keep: Sequence[str], inside: str = "", size: int, members: int
) -> None:
    """Write the members of a .zip, .tar.gz or .tar.bz2 whose path below `inside` matches a pattern
    of `keep`.

    A pattern matches part by part: "*.txt" is not in a folder, "wavs/*.wav" is in one. `size` and
    `members` are what the archive may come to, in bytes and in number.
    """
    most = min(size, max(RATIO * archive.stat().st_size, 1 << 20))
    read = _zipped if archive.name.endswith(".zip") else _tarred
    seen = written = 0
    try:
        for member in read(archive, most + (members + 4) * 2 * tarfile.BLOCKSIZE):
            seen += 1
            if seen > members:
                _refuse(archive, f"more than {members:,} members")
            if member.wrong:
                _refuse(archive, f"{member.wrong}: {_shown(member.name)}")
            place = _place(archive, member.name, inside, keep)
            if member.plain and place:
                written += _write(member, into.joinpath(*place), archive, most - written)
    except RegardError:
        raise
    except FileExistsError as problem:
        _refuse(archive, f"two files of one name: {_shown(Path(problem.filename).name)}")
    except (
        Exception
    ) as problem:  # zipfile and tarfile fail in a dozen ways on bytes that are no archive
        if isinstance(problem, OSError) and problem.errno not in (
            None,
            errno.EINVAL,
        ):  # a place before the start
            raise  # the disk's fault
        raise DataError(
            "damaged, or not an archive of its kind",
            where=archive.name,
            got=str(problem)[:100] or type(problem).__name__,
        ) from None


def _write(member: _Member, target: Path, archive: Path, most: int) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with member.open() as source, target.open("xb") as file:
        while chunk := source.read(CHUNK):
            written += len(chunk)
            if written > most:
                _refuse(archive, "more bytes than the data set has")
            file.write(chunk)
        disk.flush(file)
    return written


def _place(archive: Path, name: str, inside: str, keep: Sequence[str]) -> list[str] | None:
    """Where a member goes, or None if it was not asked for."""
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".")]
    if not parts:
        return None  # the folder itself
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        _refuse(archive, f"an absolute path: {_shown(name)}")
    if ".." in parts:
        _refuse(archive, f"a path that leaves the folder: {_shown(name)}")
    above = [part for part in inside.split("/") if part]
    if parts[: len(above)] != above:
        return None
    parts = parts[len(above) :]
    if not any(_matches(parts, pattern.split("/")) for pattern in keep):
        return None
    if not name.isprintable() or max(len(part.encode("utf-8", "replace")) for part in parts) > 200:
        _refuse(archive, f"a name no file should have: {_shown(name)}")
    return parts


def _matches(parts: list[str], pattern: list[str]) -> bool:
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _refuse(archive: Path, what: str) -> NoReturn:
    raise DataError(f"not unpacked, because it holds {what}", where=archive.name)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 60 else name[:59] + "…")


# -- zip--------------------------------------------------------------------------------------------


def _zipped(archive: Path, most: int) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            yield _Member(
                info.filename,
                not info.is_dir(),
                _wrong_zip(info),
                lambda info=info: opened.open(info),
            )


def _wrong_zip(info: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where it was not packed on Unix
    if kind == stat.S_IFLNK:
        return "a link"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "a device"
    if info.flag_bits & 0x1:
        return "an encrypted file"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "a file packed in a rare way"
    return None


# -- tar--------------------------------------------------------------------------------------------


def _tarred(archive: Path, most: int) -> Iterator[_Member]:
    unzipped: Any = bz2 if archive.name.endswith(".bz2") else gzip
    with unzipped.open(archive, "rb") as stream:
        forward: Any = _Forward(stream, archive, most)
        with tarfile.open(fileobj=forward, mode="r:") as opened:
            while (info := opened.next()) is not None:
                setattr(opened, "members", [])  # noqa: B010, its types hide it; or it would keep the headers of all
                yield _Member(
                    info.name,
                    info.isfile(),
                    _wrong_tar(info),
                    lambda info=info: _opened(opened, info),
                )


def _opened(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file is not None  # it is a plain file
    return file


def _wrong_tar(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return "a link"
    if info.issparse():  # a petabyte of nothing in a kilobyte
        return "a file with holes"
    return None if info.isfile() or info.isdir() else "a device"


class _Forward:
    """A stream that only goes forward, in small steps, and not for ever: all that reading a tar
    once needs."""

    def __init__(self, stream: IO[bytes], archive: Path, most: int):
        self._stream, self._archive, self._most, self._at = stream, archive, most, 0

    def read(self, size: int) -> bytes:
        if (
            size > CHUNK
        ):  # our own steps are no larger, so tarfile is after a header, and would keep it in memory
            _refuse(self._archive, "a header without end")
        data = self._stream.read(size)
        self._at += len(data)
        if self._at > self._most:
            _refuse(self._archive, "more bytes than the data set has")
        return data

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> int:
        if place < self._at:  # which an honest archive never asks for
            raise tarfile.ReadError("a member that begins before the last one ends")
        while self._at < place and self.read(min(CHUNK, place - self._at)):
            pass
        return self._at
