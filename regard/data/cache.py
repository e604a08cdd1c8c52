"""The cache of prepared corpora: a folder for each, named by a fingerprint of its inputs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import random
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from regard import disk, tokenizers
from regard.data.corpus import (
    COLUMNS,
    DIALOGUE,
    FREQUENCY,
    SPLITS,
    TOKENS,
    Corpus,
    Form,
    Split,
    read_frequency,
)
from regard.data.encode import TALLY, TOKENIZER, write_corpus
from regard.data.lines import Tally
from regard.data.preparation import FitTokenizer, Preparation, Read, Readers
from regard.data.rules import Rules
from regard.data.sums import BLOCK, Sums, block_sum
from regard.data.work_files import dump_json
from regard.data.workers import WorkerEnded, worker_count
from regard.errors import DataError, NoRoomError, WriteError

FORMAT = 3
MANIFEST = "manifest.json"
CHECKED = "checked.json"  # when the files were last checked as a whole
CHECKED_BYTES = 1 << 28  # of a corpus, that are checked whenever it is opened
LOCK = "lock"
REMEMBERED = 1 << 26  # bytes of a file, from which on its SHA-256 is remembered

_DRAFT = re.compile(r"\.[0-9a-f]{32}-[a-z0-9_]{4,8}")  # as `_work_folder` names it

LOG = logging.getLogger("regard")


def prepare(
    read: Read | Sequence[Readers],
    *,
    key: dict[str, Any],
    fit: FitTokenizer | None,
    folder: Path,
    rules: Rules,
    read_valid: Read | None = None,
    read_test: Read | None = None,
    form: Form = TOKENS,
    labels: bool = False,
    dialogues: bool = False,
    workers: int | None = None,
    data: Snapshot | None = None,
) -> Corpus:
    """The corpus of the examples that `read` yields, or that the readers of a mixture yield, from
    the cache in `folder` if it was prepared before. `key` describes `read` and `fit`: the
    fingerprint of the content, and the settings of both. `data` are the files that are read, and
    must not change meanwhile. `workers` is the number of processes; not
    given, `worker_count`. The other arguments are those of `Preparation`."""
    separate: dict[str, Read] = {}
    if read_valid is not None:
        separate["valid"] = read_valid
        rules = replace(rules, valid=0.0)
    if read_test is not None:
        separate["test"] = read_test
        rules = replace(rules, test=0.0)

    readers = (Readers(read, separate),) if callable(read) else tuple(read)
    preparation = Preparation(readers, fit, rules, form, labels, dialogues)
    name = _name(key, preparation)
    final = Path(folder) / name[:32]
    _ensure(final, name, preparation, workers or worker_count(), data)
    return _open(final, name, preparation)


def _name(key: dict[str, Any], preparation: Preparation) -> str:
    """The fingerprint of everything a corpus is prepared from."""
    inputs = {
        "format": FORMAT,
        "key": key,
        "rules": preparation.rules.to_json(),
        "own": [split for readers in preparation.readers for split in readers.separate],
    }
    if any(readers.separate for readers in preparation.readers):
        inputs["apart"] = True  # an earlier version did not leave their prompts out of training
    if preparation.form != TOKENS or preparation.labels:
        inputs["form"] = [*preparation.form.to_json(), preparation.labels]
    if preparation.dialogues:
        inputs["dialogues"] = True
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _open(final: Path, name: str, preparation: Preparation) -> Corpus:
    tally = Tally.from_json(json.loads((final / TALLY).read_text("utf-8")))
    train, valid, test = (
        Split.open(final, split, preparation.form, dialogues=preparation.dialogues)
        for split in SPLITS
    )
    return Corpus(
        train,
        valid,
        test,
        tokenizer=tokenizers.read(final / TOKENIZER),
        tally=tally,
        frequency=read_frequency(final),
        fingerprint=name,
    )


def _ensure(
    final: Path, name: str, preparation: Preparation, workers: int, data: Snapshot | None
) -> None:
    """Prepare a corpus unless it is in the cache and undamaged."""
    damage = fault(final, name, dialogues=preparation.dialogues)
    if damage is None:
        return
    if final.exists():
        LOG.warning("%s: this cached corpus is not trusted (%s) and made anew", final, damage)
    try:
        _publish(final, name, preparation, workers, data)
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        raise _refused(final, problem) from None
    damage = fault(final, name, dialogues=preparation.dialogues)
    if damage is not None:
        raise DataError(
            "the prepared corpus was changed while it was written",
            where=final,
            got=damage,
            hint="try again",
        )


def _files(dialogues: bool) -> set[str]:
    """The files of a corpus, without its manifest."""
    columns = [*COLUMNS, DIALOGUE] if dialogues else [*COLUMNS]
    files = {TOKENIZER, TALLY, FREQUENCY}
    for split in SPLITS:
        for column in columns:
            files |= {f"{split}-{column}.values", f"{split}-{column}.ends"}
    return files


def fault(final: Path, name: str, *, dialogues: bool) -> str | None:
    """Why the folder is not the corpus that was written into it, or None if it is."""
    try:
        manifest = json.loads((final / MANIFEST).read_text("utf-8"))
        if manifest["fingerprint"] != name:
            return "it is of another corpus"
        files = _files(dialogues)
        if manifest["files"].keys() == files - {FREQUENCY}:
            return "an earlier version prepared it, without the frequencies of tokens"
        if manifest["files"].keys() != files:
            return "its manifest lists other files"
        return _damage(final, manifest["files"], manifest.get("blocks", {}))
    except FileNotFoundError as problem:
        return f"{Path(problem.filename).name} is missing"
    except OSError as problem:
        return problem.strerror or "it cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "its manifest cannot be read"


def _damage(final: Path, files: dict[str, str], blocks: dict[str, list[str]]) -> str | None:
    """Which file is not what was written, or None.

    A small corpus is read from end to end whenever it is opened, and compared with its SHA-256. So
    is a large one, if a file was written, moved or copied since it was last read like that: its
    size, number or a date differs. Else a part of its blocks is read, others each time, so that
    damage to the disk is found sooner or later.
    """
    stamps = {file: _stamp(final / file) for file in files}
    total = sum(stamp[0] for stamp in stamps.values())
    is_known = total > CHECKED_BYTES and _read_stamps(final) == stamps
    if not is_known:
        for file, digest in files.items():
            if disk.digest(final / file) != digest:
                return f"{file} is not what was written"
        if total > CHECKED_BYTES:
            _write_stamps(final, stamps)
        return None

    large = [(file, i) for file, digests in blocks.items() for i in range(len(digests))]
    for file in files.keys() - blocks.keys():
        if disk.digest(final / file) != files[file]:
            return f"{file} is not what was written"
    for file, i in random.sample(large, min(len(large), CHECKED_BYTES // BLOCK)):
        if block_sum(final / file, i) != blocks[file][i]:
            return f"{file} is not what was written"
    return None


def _stamp(file: Path) -> list[int]:
    """What changes when a file is written, moved or copied."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read_stamps(final: Path) -> Any:
    try:
        return json.loads((final / CHECKED).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _write_stamps(final: Path, stamps: dict[str, list[int]]) -> None:
    with contextlib.suppress(OSError, WriteError):  # it may be somebody else's cache
        disk.write_file(final / CHECKED, lambda path: dump_json(path, stamps))


def _publish(
    final: Path, name: str, preparation: Preparation, workers: int, data: Snapshot | None
) -> None:
    """Write a folder inside another one, then rename it: it is there as a whole or not at all."""
    final.parent.mkdir(parents=True, exist_ok=True)
    disk.remove_old_folders(final.parent, _DRAFT, lock=LOCK)
    with _work_folder(final) as work:
        if final.exists() and fault(final, name, dialogues=preparation.dialogues) is None:
            return  # made by another process, for which this one has waited
        draft = work / "corpus"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            sums = write_corpus(preparation, work, draft, workers)
            if data is not None:
                data.check()
            _write_manifest(draft, name, sums)
            if final.exists() and fault(final, name, dialogues=preparation.dialogues) is not None:
                shutil.rmtree(final)  # damaged since it was written
            draft.rename(final)
        except OSError as problem:
            if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return  # another process was faster
            entries = [*work.iterdir(), *draft.iterdir()]
            written = sum(file.stat().st_size for file in entries if file.is_file())
            shutil.rmtree(work, ignore_errors=True)  # so that it does not count as used space
            raise _refused(final, problem, written) from None


def _write_manifest(draft: Path, name: str, sums: dict[str, Sums]) -> None:
    digests = {file: own.whole for file, own in sums.items()}
    for file in draft.iterdir():
        if file.name not in digests:
            digests[file.name] = disk.digest(file)
    blocks = {file: own.blocks for file, own in sums.items() if len(own.blocks) > 1}
    manifest = {"fingerprint": name, "files": digests, **({"blocks": blocks} if blocks else {})}
    dump_json(draft / MANIFEST, manifest)


@contextlib.contextmanager
def _work_folder(final: Path) -> Iterator[Path]:
    """The folder in which a corpus is prepared. If this process is stopped, what it has done is
    kept there for the next one. A process that comes while another is at work waits for it."""
    work = final.with_name(f".{final.name}-work")
    own = (os.getpid(), work)
    if own in _at_work:  # two corpora of one process
        with tempfile.TemporaryDirectory(
            prefix=f".{final.name}-", dir=final.parent, ignore_cleanup_errors=True
        ) as private:
            yield Path(private)
        return
    with _locked(work, final) as lock:
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {socket.gethostname()}")
        lock.flush()
        _at_work.add(own)
        try:
            yield work
        except (KeyboardInterrupt, WorkerEnded):
            if not any(work.glob("*.examples")):
                shutil.rmtree(work, ignore_errors=True)
            raise
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        else:
            shutil.rmtree(work, ignore_errors=True)
        finally:
            _at_work.discard(own)


_at_work: set[tuple[int, Path]] = set()  # the process and the folder; a fork has its own pid


def _locked(work: Path, final: Path) -> TextIO:
    """The lock of a folder, which this process now has. Whoever had it before may have removed the
    folder, and the file that others waited for: then it is made anew."""
    while True:
        work.mkdir(exist_ok=True)
        try:
            lock = (work / LOCK).open("a+")
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read().strip()
            LOG.warning("%s: process %s prepares this corpus; waiting for it", final, owner)
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(lock.fileno()), (work / LOCK).stat()):
                return lock
        lock.close()


def _refused(final: Path, problem: OSError, written: int = 0) -> Exception:
    """The error to report after so many bytes were written; one that names a file is about that
    file."""
    refusal = disk.refusal(
        final, problem, hint="REGARD_CACHE names another folder for prepared corpora"
    )
    if isinstance(refusal, NoRoomError):
        return refusal.needing(written, at_least=True)
    return problem if refusal is None or problem.filename is not None else refusal


class Snapshot:
    """Files, and a fingerprint of what is in them now."""

    def __init__(self, paths: Iterable[Path | str]):
        self._paths = [Path(path) for path in paths]
        self._stamps = self._stamps_now()  # before they are read: they may change meanwhile
        self.fingerprint = fingerprint(self._paths)

    def check(self) -> None:
        """Raise an error if there is something else in them by now."""
        stamps = self._stamps_now()
        if stamps == self._stamps or fingerprint(self._paths) == self.fingerprint:
            return
        files = [file for file in {**self._stamps, **stamps} if self._differs(file, stamps)]
        raise DataError(
            "the data changed while it was prepared",
            where=files[0],
            hint="wait until nothing writes there any more, and try again",
        )

    def _differs(self, file: Path, stamps: dict[Path, list[int]]) -> bool:
        return self._stamps.get(file) != stamps.get(file)

    def _stamps_now(self) -> dict[Path, list[int]]:
        stamps = {}
        for file in _files_of(self._paths):
            with contextlib.suppress(OSError):  # it cannot be read either, which is an error
                stamps[file] = _stamp(file)
        return stamps


def fingerprint(paths: Iterable[Path | str]) -> str:
    """The SHA-256 of the contents of files, in this order; a folder stands for the files in it."""
    total = hashlib.sha256()
    for file in _files_of(paths):
        try:
            total.update(_digest(file))
        except OSError as problem:
            raise DataError("cannot be read", where=file, got=problem.strerror) from None
    return total.hexdigest()


def _files_of(paths: Iterable[Path | str]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(inner for inner in path.rglob("*") if inner.is_file())
        else:
            yield path


def _digest(file: Path) -> bytes:
    """The SHA-256 of a file. That of a large one is remembered in the cache, until its size, number
    or a date is another."""
    stamp = _stamp(file)
    if stamp[0] < REMEMBERED:
        return bytes.fromhex(disk.digest(file))
    place = hashlib.sha256(os.fsencode(file.absolute())).hexdigest()[:32]
    memory = disk.cache_folder() / "digests" / f"{place}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        remembered = json.loads(memory.read_text("utf-8"))
        if remembered["stamp"] == stamp:
            return bytes.fromhex(remembered["sha256"])
    began = time.time_ns()
    digest = disk.digest(file)
    # A file that was written just now may be written again without another date.
    is_old = began - max(stamp[1:3]) > 2_000_000_000
    if is_old and _stamp(file) == stamp:
        with contextlib.suppress(OSError, WriteError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            record = {"stamp": stamp, "sha256": digest}
            disk.write_file(memory, lambda path: dump_json(path, record))
    return bytes.fromhex(digest)
