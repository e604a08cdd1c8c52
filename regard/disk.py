"""Files that are either whole or not there, and folders that know what they should hold."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

from regard.errors import (
    BundleError,
    BusyError,
    InputError,
    NoRoomError,
    OtherFormatError,
    WriteError,
)

MANIFEST = "manifest.json"
FORMAT = 3
LOCK = ".regard-lock"
INTACT = "what was saved before is intact"
OLD = 24 * 60 * 60  # seconds after which a temporary folder belongs to no process any more
MADE_BY = "made by regard"  # in the metadata of every picture and page that we write
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_MARK = b"tEXtSoftware\0" + MADE_BY.encode()
_MARKS = (  # how a file of ours begins, and the metadata that its first bytes contain
    (_PNG_SIGNATURE, _PNG_MARK),
    (b"<?xml", f"<dc:title>{MADE_BY}</dc:title>".encode()),
    (b"<!DOCTYPE html>", f'<meta name="generator" content="{MADE_BY}">'.encode()),
)

_SHA256 = re.compile("[0-9a-f]{64}")

# Only names of this form are ever cleaned up, so that nobody's own files are: the file or folder
# they are for, the process that wrote them, and which half of a save they are.
_DRAFT = re.compile(r"\.(?P<name>.+)\.\d+\.regard-(?P<half>new|old)")


def cache_folder() -> Path:
    """The folder of all that can be made again: $REGARD_CACHE, or regard in the user's cache
    folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard")


def draft_of(path: Path, half: str = "new") -> Path:
    """Where a file or folder is written (`new`), or kept (`old`), until a save has ended."""
    return path.with_name(f".{path.name}.{os.getpid()}.regard-{half}")


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the file, sync, rename over it, sync the folder: a crash at any moment leaves
    the old or the new."""
    with room_for(path):
        if (
            path.exists() and not path.is_file()
        ):  # a device or a pipe, which the rename would remove
            what = "a folder" if path.is_dir() else "not a regular file"
            raise WriteError(f"cannot be written: {what}")
        draft = draft_of(path)
        try:
            write(draft)
            sync(draft)
            os.replace(draft, path)
            sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)


# What the manifest of a run lists before its first validation.
_CREATED = frozenset({"recipe.json", "tokenizer.json"})


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


def write_output(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A picture or page where a person wants it; a file that we did not write stays as it is."""
    claim_output(path)
    write_buffered(path, write)


def claim_output(path: Path) -> None:
    """Refuse to overwrite a file that is not a picture or page of ours."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4096)
        if any(head.startswith(start) and mark in head for start, mark in _MARKS):
            return
    if path.exists() or path.is_symlink():  # also a link whose target is missing
        raise InputError(
            "something that regard did not write is there already",
            where=path,
            hint="choose another name",
        )


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def write_folder(
    path: Path, write: Callable[[Path], object], sums: Mapping[str, str] | None = None
) -> None:
    """A new folder with a manifest of its files; it has its name only once everything in it is on
    the disk. `sums` is for files that other processes write: their SHA-256, known when `write` has
    returned. Of all others it is computed here.

    A folder cannot be renamed over another, so there is a moment between two renames at which only
    the halves exist; `recover` puts that right after a kill.
    """
    draft = draft_of(path)
    old = draft_of(path, "old")
    with room_for(path):
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            write(draft)
            names = sorted(file.name for file in draft.iterdir())
            known = sums or {}
            files = {name: [known.get(name) or digest(draft / name)] for name in names}
            write_json(draft / MANIFEST, {"format": FORMAT, "files": files})
            for name in names:
                sync(draft / name)
            sync(draft)
            if path.exists():
                os.replace(path, old)
            os.replace(draft, path)
            sync(path.parent)
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            if path.exists():  # otherwise the old folder is all there is, and `recover` restores it
                shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder that `write_folder` made. It loses its name first: half of one is never
    taken for a whole."""
    draft = draft_of(path)
    os.replace(path, draft)
    shutil.rmtree(draft, ignore_errors=True)


def remove_old_folders(folder: Path, name: re.Pattern[str], *, lock: str | None = None) -> None:
    """Remove the temporary folders of processes that were killed: those with such a name to which
    nothing was written for a day, and whose file `lock` no process has locked."""
    for inner in folder.iterdir():
        if not name.fullmatch(inner.name) or inner.is_symlink() or not inner.is_dir():
            continue
        with contextlib.suppress(OSError):
            latest = max(entry.lstat().st_mtime for entry in (inner, *inner.iterdir()))
            if time.time() - latest > OLD and not (lock and _is_locked(inner / lock)):
                shutil.rmtree(inner, ignore_errors=True)


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with lock_file(path) as lock:
        return lock is None


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
    """File names and the SHA-256 sums each may have (two, while one file is being replaced by
    another)."""
    content = read_json(folder / MANIFEST)
    match content:
        case {"format": int(version)} if version > FORMAT:
            raise OtherFormatError(
                "written by a newer regard",
                where=folder,
                got=f"format {version}",
                hint="upgrade regard to read it",
            )
        case {"format": int(version)} if 0 < version < FORMAT:
            raise OtherFormatError(
                "written by an earlier regard, whose weights had other names",
                where=folder,
                got=f"format {version}",
                hint="train it again",
            )
        case {"format": int(version), "files": dict(files)} if version == FORMAT:
            if all(_is_name(name) and _are_sums(sums) for name, sums in files.items()):
                return files
    raise BundleError("damaged: not a manifest", where=folder / MANIFEST)


def _is_name(name: str) -> bool:
    """Whether it is the name of a file in the folder itself."""
    return name not in ("", "..") and Path(name).name == name


def _are_sums(sums: Any) -> bool:
    return isinstance(sums, list) and all(
        isinstance(each, str) and _SHA256.fullmatch(each) for each in sums
    )


def verify(folder: Path, *needed: str) -> None:
    """Every file of the manifest, and every file that is needed, is there and is what was
    written."""
    _verify(folder, lambda listed: {*listed, *needed})


def verify_files(folder: Path, *names: str) -> None:
    """These files are there and are what was written; others may be damaged."""
    _verify(folder, lambda _: names)


def verify_folder(folder: Path) -> None:
    """The files of the manifest are there, are what was written, and nothing else is beside
    them. Hidden files do not count: a file manager leaves its own."""
    verify(folder)
    if extra := extra_files(folder):
        raise BundleError("damaged: a file that was not saved with it", where=extra[0])


def extra_files(folder: Path) -> list[Path]:
    """Visible files and folders that the manifest does not list."""
    names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    return [folder / name for name in sorted(names - {MANIFEST, *manifest(folder)})]


def _verify(folder: Path, chosen: Callable[[Iterable[str]], Iterable[str]]) -> None:
    listed = manifest(folder)
    names = sorted(chosen(listed))
    try:
        for name in names:
            if name not in listed and (folder / name).is_file():
                raise BundleError(f"damaged: it does not list {name}", where=folder / MANIFEST)
        for name in names:
            file = folder / name
            if not file.is_file():
                raise BundleError("a file is missing", where=file)
            if digest(file) not in listed.get(name, []):
                raise BundleError("damaged: its contents are not what was saved", where=file)
    except BundleError:
        if manifest(folder) == listed:
            raise
        _verify(folder, chosen)  # a writer was faster than we were reading


def put(folder: Path, name: str, write: Callable[[Path], object]) -> None:
    """Replace one file of a folder with a manifest. Until the new file is there the manifest
    allows the old one too, so a reader finds a whole folder at every moment, and after a crash
    at any."""
    listed = manifest(folder)

    def announced(draft: Path) -> None:
        write(draft)
        sums = [*listed.get(name, []), digest(draft)]
        write_json(folder / MANIFEST, {"format": FORMAT, "files": listed | {name: sums}})

    write_file(folder / name, announced)
    write_json(
        folder / MANIFEST, {"format": FORMAT, "files": listed | {name: [digest(folder / name)]}}
    )


def recover(folder: Path) -> None:
    """Finish, undo or remove the saves in this folder that a kill cut short. Only for the holder of
    its lock.

    Where a folder is missing, the new one takes its name if all of it is there, and the old one
    otherwise.
    """
    halves: dict[str, list[tuple[str, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        name = _DRAFT.fullmatch(path.name)
        if name and not path.is_symlink():  # we make no links: that one is somebody's own
            halves.setdefault(name["name"], []).append((name["half"], path))

    for name, paths in halves.items():
        target = folder / name
        folders = [
            (half, path) for half, path in sorted(paths) if path.is_dir()
        ]  # "new" sorts before "old"
        if folders and not target.exists():
            whole = [path for _, path in folders if _is_whole(path)]
            old = [path for half, path in folders if half == "old"]
            if chosen := whole or old:
                os.replace(chosen[0], target)
                sync(folder)
        for _, path in paths:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                missing_ok=True
            )


def _is_whole(folder: Path) -> bool:
    try:
        verify_folder(folder)
    except BundleError:
        return False
    return True


def claim(folder: Path, mark: str, what: str) -> None:
    """Refuse to write into a folder with somebody's own files.

    It must be new, be empty, or have our file `mark`. If the mark is a manifest, the folder must
    be a run that was only just created: other folders of ours have manifests too.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError("a file has this name", where=folder, hint="choose another --out")
    if (folder / mark).exists():
        if mark == MANIFEST and (others := sorted(manifest(folder).keys() - _CREATED)):
            raise InputError(
                f"this folder holds something else than a {what}",
                where=folder,
                got=", ".join(others[:3]) + (", …" if len(others) > 3 else ""),
                hint="choose a new folder for --out",
            )
        return
    names = sorted(entry.name for entry in folder.iterdir())
    others = [name for name in names if name != LOCK and not _DRAFT.fullmatch(name)]
    if others:
        raise InputError(
            f"this folder is not empty and holds no {what}",
            where=folder,
            got=", ".join(others[:3]) + (", …" if len(others) > 3 else ""),
            hint="choose a new folder for --out",
        )


def append_line(path: Path, line: str) -> None:
    content = f"{line}\n".encode()
    with needs(len(content)), room_for(path), path.open("ab") as file:
        file.write(content)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a log. What is not UTF-8 is replaced. A line that is not JSON (a kill cut it
    short, for example) or has a number that is not finite is skipped."""
    records = []
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line, parse_constant=_finite, parse_float=_finite)
            if isinstance(record, dict):
                records.append(record)
    return records


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer a folder; the second is told who the first is."""
    with lock_file(folder / LOCK) as file:
        if file is None:
            owner = (folder / LOCK).read_text(errors="replace").strip()
            raise BusyError(
                "another process is training in this folder",
                where=folder,
                got=f"pid {owner or 'unknown'}",
                hint="wait for it, or choose another --out",
            )
        with room_for(folder / LOCK):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is writing in this folder. Nothing is changed, and nobody has to wait."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or it cannot be read
        return False
    return False


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool = False) -> Iterator[TextIO | None]:
    """The lock of a file, as the open file; None if another process has it, unless we `wait` for
    it. The lock goes with its process, however that ends."""
    with path.open("a") as file:
        is_ours = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if wait:
                raise
            is_ours = False
        yield file if is_ours else None


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """What the system refuses while `path` is written becomes an error that names it, and none
    of its drafts."""
    try:
        yield
    except Exception as problem:
        refused = (
            problem.at(path)
            if isinstance(problem, WriteError)
            else refusal(path, problem, hint=INTACT)
        )
        if refused is None:
            raise
        raise refused from None


@contextlib.contextmanager
def needs(count: int) -> Iterator[None]:
    """If there is no room for what is written inside, the error says that it needs so many
    bytes."""
    try:
        yield
    except NoRoomError as problem:
        raise problem.needing(count) from None


def refusal(path: Path, problem: Exception, hint: str | None = None) -> WriteError | None:
    """What to tell of an error that came while `path` was written; None: it did not come from
    the system."""
    code = _system_code(problem)
    if code is None:
        return None
    if code in (errno.ENOSPC, errno.EDQUOT):
        what = (
            "no space left on the disk"
            if code == errno.ENOSPC
            else "your quota of the disk is used up"
        )
        return NoRoomError(
            what, where=path, free=shutil.disk_usage(_existing(path)).free, hint=hint
        )
    if code == errno.EFBIG:
        hint = "ulimit -f shows the largest file that is allowed here"
    elif code != errno.EIO:
        hint = None  # nothing was begun
    return WriteError(f"cannot be written: {os.strerror(code)}", where=path, hint=hint)


def _system_code(problem: Exception) -> int | None:
    """The system's number of an error. safetensors wraps it: "I/O error: File too large (os
    error 27)"."""
    if isinstance(problem, OSError):
        return problem.errno
    wrapped = re.search(r"\(os error (\d+)\)", str(problem))
    return int(wrapped[1]) if wrapped else None


def _existing(path: Path) -> Path:
    return next((place for place in (path, *path.parents) if place.exists()), Path())


def flush(file: IO[Any]) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
