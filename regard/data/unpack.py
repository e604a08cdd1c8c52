"""Some files out of an archive that may have been made to do harm.

Nothing here trusts an archive. Members are read one after the other and written by us, never by the
library: only plain files whose place was asked for, each under a new name inside the folder. A
member that could only be there to harm (an absolute path, `..`, a link, a device) condemns the
whole archive, even where nobody asked for it. What comes out is counted as it comes, not as the
archive declares it, and what comes out of archives inside it counts too. A caller unpacks into a
draft folder and renames it afterwards.
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
from dataclasses import dataclass
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
    is_file: bool  # with contents, not a folder
    fault: str | None  # why it condemns the archive
    open: Callable[[], IO[bytes]]


@dataclass
class _Bounds:
    """What may come out of an archive and of those inside it, and what came."""

    bytes: int
    members: int
    written: int = 0
    listed: int = 0


class _Archive(NamedTuple):
    file: Path
    name: str  # in messages
    bounds: _Bounds


def unpack(
    archive: Path,
    into: Path,
    *,
    keep: Sequence[str],
    inside: str = "",
    archives: Sequence[str] = (),
    size: int,
    members: int,
) -> None:
    """Write the members of a .zip, .tar.gz or .tar.bz2 whose path below `inside` matches a pattern
    of `keep`.

    A pattern matches part by part: "*.txt" is not in a folder, "wavs/*.wav" is in one. Members that
    match a pattern of `archives` are unpacked too, by the same patterns, into the same folder, and
    are not kept; archives inside those are not opened. `size` and `members` are what all of them
    together may come to, in bytes and in number.
    """
    bounds = _Bounds(min(size, max(RATIO * archive.stat().st_size, 1 << 20)), members)
    outer = _Archive(archive, archive.name, bounds)
    _unpack(outer, into, [*keep, *archives], inside)
    for nested in _matching(into, archives):
        name = f"{nested.relative_to(into).as_posix()} in {archive.name}"
        _unpack(_Archive(nested, name, bounds), into, keep, "")
        nested.unlink()


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files below a folder whose path matches one of the patterns."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [file for file in files if _match_any(file.relative_to(folder).parts, patterns)]


def _unpack(archive: _Archive, into: Path, keep: Sequence[str], inside: str) -> None:
    """Write the members of one archive that match a pattern of `keep`."""
    bounds = archive.bounds
    read = _zipped if archive.file.name.endswith(".zip") else _tarred
    try:
        for member in read(archive):
            bounds.listed += 1
            if bounds.listed > bounds.members:
                _refuse(archive, f"more than {bounds.members:,} members")
            if member.fault:
                _refuse(archive, f"{member.fault}: {_shown(member.name)}")
            place = _place(archive, member.name, inside, keep)
            if member.is_file and place:
                _write(member, into.joinpath(*place), archive)
    except RegardError:
        raise
    except FileExistsError as problem:
        _refuse(archive, f"two files of one name: {_shown(Path(problem.filename).name)}")
    except OSError as problem:
        if problem.errno not in (None, errno.EINVAL):  # EINVAL: a place before the start
            raise  # the disk's fault
        raise _damaged(archive, problem) from None
    # zipfile and tarfile fail in a dozen ways on bytes that are no archive.
    except Exception as problem:
        raise _damaged(archive, problem) from None


def _damaged(archive: _Archive, problem: Exception) -> DataError:
    return DataError(
        "damaged, or not an archive of its kind",
        where=archive.name,
        got=str(problem)[:100] or type(problem).__name__,
    )


def _write(member: _Member, target: Path, archive: _Archive) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with member.open() as source, target.open("xb") as file:
        while chunk := source.read(CHUNK):
            archive.bounds.written += len(chunk)
            if archive.bounds.written > archive.bounds.bytes:
                _refuse(archive, "more bytes than the data set has")
            file.write(chunk)
        disk.flush(file)


def _place(archive: _Archive, name: str, inside: str, keep: Sequence[str]) -> list[str] | None:
    """The path of a member below the folder, or None if it is not kept."""
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
    if not _match_any(parts, keep):
        return None
    if not name.isprintable() or max(len(part.encode("utf-8", "replace")) for part in parts) > 200:
        _refuse(archive, f"a name no file should have: {_shown(name)}")
    return parts


def _match_any(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(_matches(parts, pattern.split("/")) for pattern in patterns)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _refuse(archive: _Archive, what: str) -> NoReturn:
    raise DataError(f"not unpacked, because it holds {what}", where=archive.name)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 60 else name[:59] + "…")


# -- zip--------------------------------------------------------------------------------------------


def _zipped(archive: _Archive) -> Iterator[_Member]:
    with zipfile.ZipFile(archive.file) as opened:
        for info in opened.infolist():
            yield _Member(
                info.filename,
                not info.is_dir(),
                _fault_of_zip(info),
                lambda info=info: opened.open(info),
            )


def _fault_of_zip(info: zipfile.ZipInfo) -> str | None:
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


def _tarred(archive: _Archive) -> Iterator[_Member]:
    compression: Any = bz2 if archive.file.name.endswith(".bz2") else gzip
    most = archive.bounds.bytes + (archive.bounds.members + 4) * 2 * tarfile.BLOCKSIZE
    with compression.open(archive.file, "rb") as stream:
        forward: Any = _Forward(stream, archive, most)
        with tarfile.open(fileobj=forward, mode="r:") as opened:
            while (info := opened.next()) is not None:
                # Or it would keep all headers; its types hide the attribute.
                setattr(opened, "members", [])  # noqa: B010
                yield _Member(
                    info.name,
                    info.isfile(),
                    _fault_of_tar(info),
                    lambda info=info: _opened(opened, info),
                )


def _opened(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file is not None  # it is a plain file
    return file


def _fault_of_tar(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return "a link"
    if info.issparse():  # a petabyte of nothing in a kilobyte
        return "a file with holes"
    return None if info.isfile() or info.isdir() else "a device"


class _Forward:
    """A stream that only goes forward, in small steps, and not for ever: all that reading a tar
    once needs."""

    def __init__(self, stream: IO[bytes], archive: _Archive, most: int):
        self._stream = stream
        self._archive = archive
        self._most = most
        self._at = 0

    def read(self, size: int) -> bytes:
        # Our own steps are no larger, so tarfile reads a header, and would keep it in memory.
        if size > CHUNK:
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
