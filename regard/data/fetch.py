"""Download public data sets, verify them and unpack them.

A download goes to a part file and is resumed where it stopped, by Ctrl-C, by a broken connection or
by `kill -9`. Its size and checksum are verified before anything opens it. Everything is prepared in
a hidden folder inside the data set's own folder (so both are on one disk) and then moved to its
place, the record `fetched.json` last: a folder with a record is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from regard import disk
from regard.data.download import Progress, download_file, note_of
from regard.data.kinds import KINDS
from regard.data.public import PublicDataSet
from regard.data.unpack import unpack
from regard.errors import DataError, InputError, NoRoomError, did_you_mean

RECORD = "fetched.json"
PARTS = ".regard-part"  # the folder, in that of the data set, for what is not complete yet
DRAFT = "unpacked"
LOCK = ".lock"

SETS: dict[str, PublicDataSet] = {}
ELSEWHERE: dict[str, str] = {}  # well-known data sets that cannot be fetched, and where they are
for _kind in KINDS.values():
    SETS |= {data_set.name: data_set for data_set in _kind.public}
    if _kind.elsewhere:
        ELSEWHERE[_kind.name] = _kind.elsewhere


def choose(name: str, *, url: str | None = None, sha256: str | None = None) -> PublicDataSet:
    """A data set by name, with another address or another SHA-256 if they are given."""
    if name in ELSEWHERE:
        raise InputError(
            "cannot be fetched by regard",
            where=name,
            hint=f"get it from {ELSEWHERE[name]} and give its folder with --data",
        )
    if name not in SETS:
        raise InputError("no such data set", got=f'"{name}"', hint=did_you_mean(name, SETS))
    data_set = SETS[name]
    if url is not None:
        data_set = _moved(data_set, url)
    if sha256 is not None:
        data_set = _with_sum(data_set, sha256)
    return data_set


def _moved(data_set: PublicDataSet, url: str) -> PublicDataSet:
    """The same files from another address."""
    if not re.fullmatch(r"https?://[!-.0-~][!-~]*", url):
        raise InputError(
            "not an address", where="--url", got=url, hint="it begins with https:// or http://"
        )
    is_folder = url.endswith("/")
    if not is_folder and len(data_set.downloads) > 1:
        raise InputError(
            f"{data_set.name} is {len(data_set.downloads)} files",
            where="--url",
            got=url,
            hint="give the address of the folder that holds them, ending with /",
        )
    downloads = []
    for download in data_set.downloads:
        address = url + download.name if is_folder else url
        downloads.append(replace(download, address=address))
    return replace(data_set, downloads=tuple(downloads))


def _with_sum(data_set: PublicDataSet, sha256: str) -> PublicDataSet:
    """A data set of one file that is to have another SHA-256, and so may have another size."""
    if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise InputError("a SHA-256 is 64 digits of 0-9 and a-f", where="--sha256", got=sha256)
    if len(data_set.downloads) > 1:
        raise InputError(
            f"{data_set.name} is {len(data_set.downloads)} files, each with its own sum",
            where="--sha256",
        )
    digest = f"sha256:{sha256.lower()}"
    downloads = (replace(download, sum=digest, exact=False) for download in data_set.downloads)
    return replace(data_set, downloads=tuple(downloads))


def folder_of(data_set: PublicDataSet, out: Path | None = None) -> Path:
    return Path(os.path.abspath(out or disk.cache_folder() / "data" / data_set.name))


def fetch(
    data_set: PublicDataSet,
    folder: Path,
    progress: Progress = lambda *_: None,
    *,
    again: bool = False,
) -> dict[str, Any]:
    """Download a data set into `folder`, unless it is there, and return its record.

    Files that the record lists and that are missing or changed are replaced only with `again`.
    Nothing else in the folder is ever replaced or removed. Files that an earlier version of regard
    did not fetch are added.
    """
    if not folder.name:
        raise InputError("not a folder to fetch into", where="--out", got=folder)
    record = _there(data_set, folder, again=again)
    if record is not None:
        return _summary(record, folder, already=True)

    is_new = not folder.exists()
    parts = folder / PARTS
    parts.mkdir(parents=True, exist_ok=True)
    try:
        with _alone(parts), _room(data_set, parts):
            record = _there(data_set, folder, again=again)
            if record is not None:  # another process was faster
                return _summary(record, folder, already=True)
            if not _is_planned(data_set, folder):
                shutil.rmtree(parts / DRAFT, ignore_errors=True)  # of a fetch that was killed
                _check_room(data_set, parts)
                records = [
                    download_file(download, parts, progress) for download in data_set.downloads
                ]
                _prepare(folder, data_set, records)
            record = _publish(data_set, folder, again=again)
            _remove_parts(data_set, parts)
        return _summary(record, folder, already=False)
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # succeeds only if it is empty


def _there(data_set: PublicDataSet, folder: Path, *, again: bool) -> dict[str, Any] | None:
    """The record of a data set that is there and whole; None if it is to be fetched."""
    if folder.is_symlink() and not folder.exists():
        raise InputError("a link to nothing", where=folder, hint="choose another --out")
    if not folder.exists():
        return None
    if folder.is_dir() and (folder / PARTS / LOCK).is_file() and not (folder / RECORD).exists():
        return None  # ours since an earlier fetch that was stopped
    if folder.is_dir() and all(entry.name == PARTS for entry in folder.iterdir()):
        return None
    record = _read_record(folder / RECORD)
    if record is None or record["name"] != data_set.name:
        raise InputError(
            "something else is there already", where=folder, hint="choose another --out"
        )
    damage = _damage(folder, record["listed"])
    if not damage and not _is_of_today(data_set, record):
        return None
    if not damage:
        return record
    if again:
        return None
    names = [f"{name} ({fault})" for name, fault in sorted(damage.items())]
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    raise DataError(
        "files of it are not as they were fetched",
        where=folder,
        got=", ".join(names[:3]) + more,
        hint="--again fetches them once more and overwrites these files only",
    )


def _read_record(file: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(file.read_bytes())
        listed = record["listed"].items()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    is_sound = isinstance(record.get("name"), str) and all(_is_inside(name) for name, _ in listed)
    return record if is_sound else None


def _is_of_today(data_set: PublicDataSet, record: dict[str, Any]) -> bool:
    """Whether a record lists all files that are needed; earlier versions fetched fewer."""
    return all(name in record["listed"] for name in data_set.needs)


def _is_inside(name: str) -> bool:
    """Whether a name of a record stays below its folder."""
    return not name.startswith("/") and ".." not in name.split("/")


def _damage(folder: Path, listed: dict[str, Any]) -> dict[str, str]:
    """The listed files that are not what was fetched, each with what is wrong with it."""
    damage: dict[str, str] = {}
    for name, expected in listed.items():
        file = folder / name
        if not os.path.lexists(file):
            damage[name] = "missing"
        elif not _is_own(folder, name):
            damage[name] = "a link or a folder, which regard did not make"
        elif not _is_same(file, expected):
            damage[name] = "changed"
    return damage


def _is_own(folder: Path, name: str) -> bool:
    """Whether a regular file is there, in folders that are no links: we make none."""
    file = folder / name
    return file.is_file() and not any(place.is_symlink() for place in _places(folder, name))


def _places(folder: Path, name: str) -> list[Path]:
    """The folders above a file of the data set, from the outermost, and the file."""
    parts = name.split("/")
    return [folder.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]


def _is_same(file: Path, expected: Any) -> bool:
    if isinstance(expected, int):  # as records were until they held sums
        return file.stat().st_size == expected
    return file.stat().st_size == expected["bytes"] and disk.digest(file) == expected["sha256"]


def _summary(record: dict[str, Any], folder: Path, *, already: bool) -> dict[str, Any]:
    """The record without its thousands of names."""
    facts = {key: value for key, value in record.items() if key != "listed"}
    return facts | {"folder": str(folder), "already": already}


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of a data set, each with its size and sum."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": disk.digest(file),
        }
        for file in files
    }


def _prepare(folder: Path, data_set: PublicDataSet, downloads: list[dict[str, Any]]) -> None:
    """Unpack everything into a draft and write the record of it, both in the folder of parts."""
    parts = folder / PARTS
    draft = parts / DRAFT
    (parts / RECORD).unlink(missing_ok=True)
    draft.mkdir()
    try:
        for download in data_set.downloads:
            if data_set.keep:
                unpack(
                    parts / download.name,
                    draft,
                    keep=data_set.keep,
                    inside=data_set.inside,
                    archives=data_set.archives,
                    size=data_set.size * 2,
                    members=data_set.members * 2,
                )

        for needed in data_set.needs:
            if not (draft if data_set.keep else parts).joinpath(needed).is_file():
                raise DataError(f"not this data set: no {needed} in it", where=data_set.address)
        if not data_set.keep:
            for download in data_set.downloads:
                os.replace(parts / download.name, draft / download.name)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise

    listed = _listed(draft)
    record = {
        "name": data_set.name,
        "what": data_set.what,
        "licence": data_set.licence,
        "downloads": downloads,
        "files": len(listed),
        "bytes": sum(file["bytes"] for file in listed.values()),
        "listed": listed,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    disk.write_json(parts / RECORD, record)


def _is_planned(data_set: PublicDataSet, folder: Path) -> bool:
    """Whether everything is unpacked already, by a fetch that was stopped while it moved files."""
    plan = _read_record(folder / PARTS / RECORD)
    if plan is None or plan["name"] != data_set.name or not _is_of_today(data_set, plan):
        return False
    records = plan.get("downloads", [])
    if len(records) != len(data_set.downloads):  # an earlier version had others
        return False
    for download, record in zip(data_set.downloads, records, strict=True):
        kind, _, expected = (download.sum or "").partition(":")
        if kind == "sha256" and record["sha256"] != expected:
            return False
    draft = folder / PARTS / DRAFT
    return all(
        (draft / name).is_file() or (_is_own(folder, name) and _is_same(folder / name, expected))
        for name, expected in plan["listed"].items()
    )


def _publish(data_set: PublicDataSet, folder: Path, *, again: bool) -> dict[str, Any]:
    """Move the files of the draft into the folder, the record last. An entry that is there and that
    no record of ours lists is never replaced: everything is checked before anything is moved."""
    draft = folder / PARTS / DRAFT
    plan = _read_record(folder / PARTS / RECORD)
    before = _read_record(folder / RECORD)
    assert plan is not None
    ours = before["listed"].keys() if again and before and before["name"] == data_set.name else ()

    to_move: list[str] = []
    for name, expected in plan["listed"].items():
        _check_folders(folder, name)
        target = folder / name
        if not os.path.lexists(target):
            to_move.append(name)
        elif _is_own(folder, name) and _is_same(target, expected):
            continue
        elif name in ours and _is_own(folder, name):
            to_move.append(name)
        else:
            _in_the_way(target)
    if os.path.lexists(folder / RECORD) and before is None:
        _in_the_way(folder / RECORD)

    changed = {folder}
    for name in to_move:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _move(draft / name, target, replace=name in ours)
        changed |= {target.parent, target.parent.parent}
    for place in changed:
        disk.sync(place)
    disk.write_json(folder / RECORD, plan)
    return plan


def _check_folders(folder: Path, name: str) -> None:
    """Refuse to write through a link, or below a file."""
    for place in _places(folder, name)[:-1]:
        if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
            _in_the_way(place)


def _move(source: Path, target: Path, *, replace: bool) -> None:
    """A rename that replaces nothing, unless it is to."""
    if replace:
        os.replace(source, target)
        return
    try:
        os.link(source, target)  # unlike a rename, fails if something is there
    except FileExistsError:
        _in_the_way(target)
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            _in_the_way(target)
        os.replace(source, target)
    else:
        source.unlink()


def _in_the_way(place: Path) -> NoReturn:
    raise DataError(
        "something that regard did not fetch has the name of a file of this data set",
        where=place,
        hint="move it away and run it again (what has come is kept), or choose another --out",
    ) from None


def _remove_parts(data_set: PublicDataSet, parts: Path) -> None:
    """Remove what a fetch wrote into its folder of parts, and nothing else."""
    shutil.rmtree(parts / DRAFT, ignore_errors=True)
    for download in data_set.downloads:
        part = parts / f"{download.name}.part"
        for file in (parts / download.name, part, note_of(part)):
            file.unlink(missing_ok=True)
    (parts / RECORD).unlink(missing_ok=True)


def _remove_empty(parts: Path) -> None:
    """Remove the folder of parts if nothing but its lock is in it."""
    with contextlib.suppress(OSError):
        if [entry.name for entry in parts.iterdir()] == [LOCK]:
            (parts / LOCK).unlink()
        parts.rmdir()


@contextlib.contextmanager
def _alone(parts: Path) -> Iterator[None]:
    """One process a data set; the lock goes with its process, however that ends."""
    with disk.lock_file(parts / LOCK) as file:
        if file is None:
            raise DataError("another process is fetching it", where=parts, hint="wait for it")
        try:
            yield
        finally:
            _remove_empty(parts)  # as long as it is ours: nobody may take another's lock away


@contextlib.contextmanager
def _room(data_set: PublicDataSet, parts: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        refusal = disk.refusal(parts.parent, problem)
        if isinstance(refusal, NoRoomError):
            _no_room(parts, f"{refusal.free:,} bytes free, {_needed(data_set, parts):,} needed")
        if refusal is None or problem.filename is not None:
            raise
        raise refusal from None


def _needed(data_set: PublicDataSet, parts: Path) -> int:
    """Bytes still to come: downloads that are not here, and what is unpacked of all."""
    present = sum(file.stat().st_size for file in parts.iterdir())
    return data_set.bytes + data_set.size - present


def _check_room(data_set: PublicDataSet, parts: Path) -> None:
    needed = _needed(data_set, parts)
    free = shutil.disk_usage(parts).free
    if free < needed:
        _no_room(parts, f"{free:,} bytes free, {needed:,} needed")


def _no_room(parts: Path, got: str) -> NoReturn:
    hint = "free some and run it again (what has come is kept), or choose another --out"
    raise DataError("no space left on the disk", where=parts.parent, got=got, hint=hint) from None
