"""What a path of data stands for: a file, a folder, a pattern of files, or standard input."""

from __future__ import annotations

import atexit
import glob
import os
import re
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

from regard import disk
from regard.errors import DataError

STDIN = "-"
PACKED = (".gz", ".zst", ".zstd")  # suffixes of compressed files

# How compressed files and Parquet begin: a stream has no name to tell it.
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"PAR1": ".parquet"}
_SPOOL = re.compile(r"\.stdin-\d+")


def files_at(path: Path | str) -> list[Path]:
    """The files of a path: itself, those a pattern such as "part-*.jsonl" matches, in the order of
    their names, or a copy of standard input ("-"). Empty if there are none."""
    if is_stdin(path):
        return [_spooled()]
    if Path(path).is_file():
        return [Path(path)]
    if not is_pattern(path):
        return []
    matches = map(Path, glob.glob(str(path), recursive=True))
    return sorted(match for match in matches if match.is_file())


def is_stdin(path: Path | str) -> bool:
    return str(path) == STDIN


def is_pattern(path: Path | str) -> bool:
    """Whether a path stands for several files. A file that has such a name is itself."""
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def exists(path: Path | str) -> bool:
    """Whether there is a file or folder, or a file that a pattern matches; or it is standard
    input."""
    return is_stdin(path) or Path(path).exists() or bool(files_at(path))


def is_file(path: Path | str) -> bool:
    """Whether a path stands for a file, or for several."""
    return is_stdin(path) or Path(path).is_file() or bool(files_at(path))


def plain_name(path: Path | str) -> str:
    """The name of a file in lower case, without the suffix of its compression.

    >>> plain_name("a/Part-*.JSONL.gz"), plain_name("b.tsv.zst")
    ('part-*.jsonl', 'b.tsv')
    """
    name = Path(path).name.lower()
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    return name


# -- standard input---------------------------------------------------------------------------------


_copies: dict[int, Path] = {}  # of this process: that of standard input


def _spooled() -> Path:
    """A copy of standard input, which can be read more than once. It is in the folder of the cache,
    and removed when the process ends."""
    if os.getpid() in _copies:
        return _copies[os.getpid()]
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise DataError(
            "standard input is a terminal, not data",
            where=STDIN,
            hint="send it a file: zcat pairs.tsv.gz | regard … --data -",
        )
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if "RANK" in os.environ and restarts != "0":  # the next process would read what is left of it
        raise DataError(
            "standard input can be read once, and torchrun may start the processes again",
            where=STDIN,
            got=f"--max-restarts {restarts}",
            hint="put the data in a file, or leave --max-restarts out",
        )
    folder = disk.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    disk.remove_old_folders(folder, _SPOOL)
    spool = folder / f".stdin-{os.getpid()}"
    shutil.rmtree(spool, ignore_errors=True)  # of an earlier process with this number
    spool.mkdir()
    atexit.register(_remove, spool, os.getpid())
    try:
        copy = _copied(sys.stdin.buffer, spool)
    except OSError as problem:
        shutil.rmtree(spool, ignore_errors=True)
        refusal = disk.refusal(
            spool, problem, hint="REGARD_CACHE names another folder for copies of standard input"
        )
        raise (refusal or problem) from None
    _copies[os.getpid()] = copy
    return copy


def _copied(stream: BinaryIO, folder: Path) -> Path:
    head = stream.read(4)
    suffix = next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), "")
    copy = folder / f"stdin{suffix}"
    with copy.open("wb") as file:
        file.write(head)
        shutil.copyfileobj(stream, file, 1 << 20)
    if not head:
        raise DataError(
            "standard input is empty",
            where=STDIN,
            hint="send it a file: zcat pairs.tsv.gz | regard … --data -",
        )
    return copy


def _remove(spool: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        shutil.rmtree(spool, ignore_errors=True)
