"""The cache of prepared corpora: a folder for each, named by a fingerprint of its inputs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard import disk, tokenizers
from regard.data.corpus import COLUMNS, DIALOGUE, SPLITS, TOKENS, Corpus, Form, Split
from regard.data.encode import TALLY, TOKENIZER, Fit, Preparation, Read, Readers, Rules, write_json
from regard.data.lines import Tally
from regard.errors import DataError, NoRoomError

FORMAT = 3
MANIFEST = "manifest.json"
OLD_DRAFT = 24 * 60 * 60  # seconds after which a draft belongs to no process any more

_DRAFT = re.compile(r"\.[0-9a-f]{32}-[a-z0-9_]{8}")  # as `_publish` names it

LOG = logging.getLogger("regard")


def prepare(
    read: Read | Sequence[Readers],
    *,
    key: dict[str, Any],
    fit: Fit | None,
    folder: Path,
    rules: Rules,
    read_valid: Read | None = None,
    read_test: Read | None = None,
    form: Form = TOKENS,
    labels: bool = False,
    dialogues: bool = False,
) -> Corpus:
    """The corpus of the examples that `read` yields, or that the readers of a mixture yield, from
    the cache in `folder` if it was prepared before. `key` describes `read` and `fit`: the
    fingerprint of the content, and the settings of both. The other arguments are those of
    `Preparation`."""
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
    _ensure(final, name, preparation)
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
    return Corpus(train, valid, test, tokenizers.read(final / TOKENIZER), tally, name)


def _ensure(final: Path, name: str, preparation: Preparation) -> None:
    """Prepare a corpus unless it is in the cache and undamaged.

    Every file is checked against its SHA-256 whenever a corpus is opened. That reads it once from
    end to end, which the first epoch does anyway, and takes about a second a gigabyte.
    """
    fault = _fault(final, name, preparation)
    if fault is None:
        return
    if final.exists():
        LOG.warning("%s: this cached corpus is not trusted (%s) and made anew", final, fault)
    try:
        _publish(final, name, preparation)
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        raise _refused(final, problem) from None
    fault = _fault(final, name, preparation)
    if fault is not None:
        raise DataError(
            "the prepared corpus was changed while it was written",
            where=final,
            got=fault,
            hint="try again",
        )


def _files(preparation: Preparation) -> set[str]:
    """The files of a corpus, without its manifest."""
    columns = [*COLUMNS, DIALOGUE] if preparation.dialogues else [*COLUMNS]
    files = {TOKENIZER, TALLY}
    for split in SPLITS:
        for column in columns:
            files |= {f"{split}-{column}.values", f"{split}-{column}.ends"}
    return files


def _fault(final: Path, name: str, preparation: Preparation) -> str | None:
    """Why the folder is not the corpus that was written into it, or None if it is."""
    try:
        manifest = json.loads((final / MANIFEST).read_text("utf-8"))
        if manifest["fingerprint"] != name:
            return "it is of another corpus"
        if manifest["files"].keys() != _files(preparation):
            return "its manifest lists other files"
        for file, digest in manifest["files"].items():
            if disk.digest(final / file) != digest:
                return f"{file} is not what was written"
    except FileNotFoundError as problem:
        return f"{Path(problem.filename).name} is missing"
    except OSError as problem:
        return problem.strerror or "it cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "its manifest cannot be read"
    return None


def _publish(final: Path, name: str, preparation: Preparation) -> None:
    """Write a folder under a temporary name, then rename it: it is there as a whole or not at
    all."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_old_drafts(final.parent)
    draft = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        preparation.write(draft)
        digests = {file.name: disk.digest(file) for file in draft.iterdir()}
        write_json(draft / MANIFEST, {"fingerprint": name, "files": digests})
        draft.chmod(0o755)  # mkdtemp's is for the owner alone
        if final.exists() and _fault(final, name, preparation) is not None:
            shutil.rmtree(final)  # damaged since it was written
        draft.rename(final)
    except OSError as problem:
        if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return  # another process was faster
        written = sum(file.stat().st_size for file in draft.iterdir())
        shutil.rmtree(draft, ignore_errors=True)  # so that it does not count as used space
        raise _refused(final, problem, written) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _remove_old_drafts(folder: Path) -> None:
    """Remove the drafts of processes that were killed: folders of exactly the names that `_publish`
    gives, to which nothing was written for a day."""
    for draft in folder.iterdir():
        if not _DRAFT.fullmatch(draft.name) or draft.is_symlink() or not draft.is_dir():
            continue
        with contextlib.suppress(OSError):
            entries = [draft, *draft.iterdir()]
            latest = max(entry.lstat().st_mtime for entry in entries)
            if time.time() - latest > OLD_DRAFT:
                shutil.rmtree(draft, ignore_errors=True)


def _refused(final: Path, problem: OSError, written: int = 0) -> Exception:
    """The error to report after so many bytes were written; one that names a file is about that
    file."""
    refusal = disk.refusal(
        final, problem, hint="REGARD_CACHE names another folder for prepared corpora"
    )
    if isinstance(refusal, NoRoomError):
        return refusal.needing(written, at_least=True)
    return problem if refusal is None or problem.filename is not None else refusal


def fingerprint(paths: Iterable[Path | str]) -> str:
    """The SHA-256 of the contents of files, in this order; a folder stands for the files in it."""
    total = hashlib.sha256()
    for path in map(Path, paths):
        files = [path]
        if path.is_dir():
            files = sorted(inner for inner in path.rglob("*") if inner.is_file())
        for file in files:
            try:
                with file.open("rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
            except OSError as problem:
                raise DataError("cannot be read", where=file, got=problem.strerror) from None
    return total.hexdigest()
