"""Files that are either whole or not there, and folders that know what they should hold."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import BundleError, BusyError, NoRoomError, WriteError

MANIFEST = "manifest.json"
FORMAT = 1
INTACT = "what was saved before is intact"


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the file, sync, rename over it, sync the folder: a crash at any moment leaves the old or the new."""
    with _room_for(path):
        if path.exists() and not path.is_file():  # a device or a pipe, which the rename would remove
            what = "a folder" if path.is_dir() else "not a regular file"
            raise WriteError(f"cannot be written: {what}")
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            write(draft)
            _sync(draft)
            os.replace(draft, path)
            _sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    with needs(len(content)):
        write_file(path, lambda draft: draft.write_bytes(content))


def write_buffered(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """For what draws into a file: its size is known before anything is on the disk."""
    buffer = BytesIO()
    write(buffer)
    write_bytes(path, buffer.getvalue())


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """A new folder with a manifest of its files; it has its name only once everything in it is on the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with _room_for(path):
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            write(draft)
            names = sorted(file.name for file in draft.iterdir())
            write_json(draft / MANIFEST, {"format": FORMAT, "files": {name: [digest(draft / name)] for name in names}})
            for name in names:
                _sync(draft / name)
            _sync(draft)
            if path.exists():  # a folder cannot be renamed over another
                os.replace(path, path.with_name(f".{path.name}.old.{os.getpid()}"))
            os.replace(draft, path)
            _sync(path.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(path.with_name(f".{path.name}.old.{os.getpid()}"), ignore_errors=True)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BundleError("a file is missing", where=path) from None
    except OSError as problem:
        raise BundleError(problem.strerror or "cannot be read", where=path) from None
    except (ValueError, RecursionError):
        raise BundleError("damaged: not JSON", where=path) from None


def manifest(folder: Path) -> dict[str, list[str]]:
    """File names and the SHA-256 sums each may have (two, while one file is being replaced by another)."""
    content = read_json(folder / MANIFEST)
    match content:
        case {"format": int(version)} if version > FORMAT:
            raise BundleError(
                "written by a newer regard", where=folder, got=f"format {version}", hint="upgrade regard to read it"
            )
        case {"format": int(), "files": dict(files)}:
            return files
    raise BundleError("damaged: not a manifest", where=folder / MANIFEST)


def verify(folder: Path, *needed: str) -> None:
    """Every file of the manifest, and every file that is needed, is there and is what was written."""
    listed = manifest(folder)
    try:
        for name in sorted({*listed, *needed}):
            file = folder / name
            if Path(name).name != name or not file.is_file():
                raise BundleError("a file is missing", where=file)
            if digest(file) not in listed.get(name, []):
                raise BundleError("damaged: its contents are not what was saved", where=file)
    except BundleError:
        if manifest(folder) == listed:
            raise
        verify(folder, *needed)  # a writer was faster than we were reading


def put(folder: Path, name: str, write: Callable[[Path], object]) -> None:
    """Replace one file of a folder with a manifest. Until the new file is there the manifest allows the old one too, so
    a reader finds a whole folder at every moment, and after a crash at any."""
    listed = manifest(folder)

    def announced(draft: Path) -> None:
        write(draft)
        sums = [*listed.get(name, []), digest(draft)]
        write_json(folder / MANIFEST, {"format": FORMAT, "files": listed | {name: sums}})

    write_file(folder / name, announced)
    write_json(folder / MANIFEST, {"format": FORMAT, "files": listed | {name: [digest(folder / name)]}})


def sweep(folder: Path) -> None:
    """Remove the drafts of saves that did not end. Only for who holds the lock."""
    for draft in folder.glob(".*.[0-9]*"):
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


def append_line(path: Path, line: str) -> None:
    content = f"{line}\n".encode()
    with needs(len(content)), _room_for(path), path.open("ab") as file:
        file.write(content)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer a folder; the second is told who the first is. The lock goes with its process, however that ends."""
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise BusyError(
                "another process is training in this folder",
                where=folder,
                got=f"pid {file.read().strip() or 'unknown'}",
                hint="wait for it, or choose another --out",
            ) from None
        with _room_for(folder / ".lock"):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


@contextlib.contextmanager
def _room_for(path: Path) -> Iterator[None]:
    """What the system refuses while `path` is written becomes an error that names it, and none of its drafts."""
    try:
        yield
    except Exception as problem:
        refused = problem.at(path) if isinstance(problem, WriteError) else refusal(path, problem, hint=INTACT)
        if refused is None:
            raise
        raise refused from None


@contextlib.contextmanager
def needs(count: int) -> Iterator[None]:
    """If there is no room for what is written inside, the error says that it needs so many bytes."""
    try:
        yield
    except NoRoomError as problem:
        raise problem.needing(count) from None


def refusal(path: Path, problem: Exception, hint: str | None = None) -> WriteError | None:
    """What to tell of an error that came while `path` was written; None: it did not come from the system."""
    code = _system_code(problem)
    if code is None:
        return None
    if code in (errno.ENOSPC, errno.EDQUOT):
        what = "no space left on the disk" if code == errno.ENOSPC else "your quota of the disk is used up"
        return NoRoomError(what, where=path, free=shutil.disk_usage(_existing(path)).free, hint=hint)
    if code == errno.EFBIG:
        hint = "ulimit -f shows the largest file that is allowed here"
    elif code != errno.EIO:
        hint = None  # nothing was begun
    return WriteError(f"cannot be written: {os.strerror(code)}", where=path, hint=hint)


def _system_code(problem: Exception) -> int | None:
    """The system's number of an error. safetensors wraps it: "I/O error: File too large (os error 27)"."""
    if isinstance(problem, OSError):
        return problem.errno
    wrapped = re.search(r"\(os error (\d+)\)", str(problem))
    return int(wrapped[1]) if wrapped else None


def _existing(path: Path) -> Path:
    return next((place for place in (path, *path.parents) if place.exists()), Path())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
