"""Download public data sets, verify them and unpack them.

A download goes to a part file and is resumed where it stopped, by Ctrl-C, by a broken connection or
by `kill -9`. Its size and checksum are verified before anything opens it. Everything is prepared in
a hidden folder inside the data set's own folder (so both are on one disk) and then moved to its
place, the record `fetched.json` last: a folder with a record is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from regard import disk
from regard.data.unpack import unpack
from regard.errors import DataError, InputError, NoRoomError, did_you_mean

RECORD = "fetched.json"
PARTS = ".regard-part"  # the folder, in that of the data set, for what is not complete yet
DRAFT = "unpacked"
LOCK = ".lock"
CHUNK = 1 << 18
TIMEOUT = 30  # seconds without a byte
TRIES = 4  # in a row that brought nothing
PAUSE = 1.0  # seconds before the second try; doubled for each further one

# Name of the file, bytes so far, bytes in all where known.
Progress = Callable[[str, int, int | None], None]


# -- what there is----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Download:
    """One file to download."""

    name: str  # here, whatever it is called there
    address: str
    size: int  # bytes
    exact: bool = True  # or is the size a guess?
    sum: str | None = None  # "sha256:…" or "md5:…", where its maker or several who had it say so

    @property
    def most(self) -> int:
        """Bytes after which it cannot be the right file any more."""
        return self.size if self.exact else 2 * self.size


@dataclass(frozen=True)
class DataSet:
    name: str
    what: str
    licence: str
    downloads: tuple[Download, ...]
    needs: tuple[str, ...]  # files without which it is not this data set
    keep: tuple[str, ...] = ()  # patterns of the archive's files to keep; none: it is no archive
    inside: str = ""  # the folder in the archive
    size: int = 0  # unpacked, in bytes
    members: int = 0  # of the archive
    wants: str = ""  # what it cannot be used without, and does not bring

    @property
    def bytes(self) -> int:
        return sum(download.size for download in self.downloads)

    @property
    def address(self) -> str:
        """Of the file, or of the folder that holds the files."""
        first = self.downloads[0].address
        return first if len(self.downloads) == 1 else first.rsplit("/", 1)[0] + "/"


# Commit of github.com/multi30k/dataset whose files these are; size and SHA-256 are of the files in
# it.
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/2cc0f2d7c615b60e07e2d51bb5edc004444d7e0e/data/task1/raw"
_MULTI30K_FILES = {
    "train.cs.gz": (593827, "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077"),
    "train.de.gz": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.en.gz": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.fr.gz": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    "val.cs.gz": (22096, "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc"),
    "val.de.gz": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.en.gz": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.fr.gz": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
    "test_2016_flickr.cs.gz": (
        22572,
        "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1",
    ),
    "test_2016_flickr.de.gz": (
        22890,
        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    ),
    "test_2016_flickr.en.gz": (
        21077,
        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    ),
    "test_2016_flickr.fr.gz": (
        22310,
        "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    ),
}

_ALL = (
    DataSet(
        name="cornell",
        what="Cornell Movie-Dialogs Corpus: 220,579 exchanges of film characters, English",
        licence="none stated; cite Danescu-Niculescu-Mizil and Lee 2011",
        downloads=(
            Download(
                "cornell_movie_dialogs_corpus.zip",
                "https://www.cs.cornell.edu/~cristian/data/cornell_movie_dialogs_corpus.zip",
                size=9_916_637,
                sum="sha256:3bde8a571f615201bc2d2453e22878090719638592f774720eddec739de8c900",
            ),
        ),
        inside="cornell movie-dialogs corpus",
        keep=("*.txt",),
        needs=("movie_lines.txt", "movie_conversations.txt"),
        size=45_000_000,
        members=50,
    ),
    DataSet(
        name="ljspeech",
        what="LJ Speech 1.1: 13,100 clips of one voice, 24 hours, English, with transcripts",
        licence="public domain",
        downloads=(
            Download(
                "LJSpeech-1.1.tar.bz2",
                "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2",
                size=2_748_572_632,
                sum="sha256:be1a30453f28eb8dd26af4101ae40cbf2c50413b1bb21936cbcdc6fae3de8aa5",
            ),
        ),
        inside="LJSpeech-1.1",
        keep=("README", "metadata.csv", "wavs/*.wav"),
        needs=("metadata.csv", "wavs/LJ001-0001.wav"),
        size=3_801_111_440,
        members=13_200,
    ),
    DataSet(
        name="octmnist",
        what="OCTMNIST of MedMNIST: 109,309 retinal scans, 28 x 28 grey, 4 classes",
        licence="CC BY 4.0; cite Yang et al. 2023",
        downloads=(
            Download(
                "octmnist.npz",
                "https://zenodo.org/records/10519652/files/octmnist.npz?download=1",
                size=55_000_000,
                exact=False,
                sum="md5:c68d92d5b585d8d81f7112f81e2d0842",
            ),
        ),
        needs=("octmnist.npz",),
    ),
    DataSet(
        name="flickr8k-captions",
        what="Flickr8k: five English captions for each of 8,092 pictures, and the usual parts; "
        "not the pictures",
        licence="for research, not for trade; cite Hodosh, Young and Hockenmaier 2013",
        downloads=(
            Download(
                "Flickr8k_text.zip",
                "https://github.com/jbrownlee/Datasets/releases/download/Flickr8k/Flickr8k_text.zip",
                size=2_300_000,
                exact=False,
                sum="md5:bf6c1abcb8e4a833b7f922104de18627",
            ),
        ),
        keep=("*.txt",),
        needs=("Flickr8k.token.txt", "Flickr_8k.trainImages.txt", "Flickr_8k.devImages.txt"),
        size=10_200_000,
        members=50,
        wants="its pictures: a folder Images, or Images.zip, beside the sentences",
    ),
    DataSet(
        name="multi30k",
        what="Multi30k: 29,000 captions in Czech, German, English and French, "
        "with val and test 2016",
        licence="for research and teaching, not for trade; cite Elliott et al. 2016",
        downloads=tuple(
            Download(name, f"{_MULTI30K}/{name}", size=size, sum=f"sha256:{sha256}")
            for name, (size, sha256) in _MULTI30K_FILES.items()
        ),
        needs=tuple(_MULTI30K_FILES),
    ),
)
SETS = {data_set.name: data_set for data_set in _ALL}


# Known data sets that are not for fetching, and where they are.
ELSEWHERE = {
    "fsdd": "https://github.com/Jakobovski/free-spoken-digit-dataset (its folder recordings)",
    "coco": "https://cocodataset.org",
    "flickr8k": 'where its pictures are (its captions: "regard data fetch flickr8k-captions")',
}


def choose(name: str, *, url: str | None = None, sha256: str | None = None) -> DataSet:
    """A data set by name, with another address or another sum if they are given."""
    if name in ELSEWHERE:
        raise InputError(
            "cannot be fetched by regard",
            where=name,
            hint=f"get it from {ELSEWHERE[name]} and give its folder with --data",
        )
    if name not in SETS:
        raise InputError("no such data set", got=f'"{name}"', hint=did_you_mean(name, SETS))
    found = SETS[name]
    if url is not None:
        if not re.fullmatch(r"https?://[!-.0-~][!-~]*", url):
            raise InputError(
                "not an address", where="--url", got=url, hint="it begins with https:// or http://"
            )
        if url.endswith("/"):
            moved = tuple(replace(one, address=url + one.name) for one in found.downloads)
        elif len(found.downloads) > 1:
            hint = "give the address of the folder that holds them, ending with /"
            raise InputError(
                f"{name} is {len(found.downloads)} files", where="--url", got=url, hint=hint
            )
        else:
            moved = tuple(replace(one, address=url) for one in found.downloads)
        found = replace(found, downloads=moved)
    if sha256 is not None:
        if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
            raise InputError("a SHA-256 is 64 digits of 0-9 and a-f", where="--sha256", got=sha256)
        if len(found.downloads) > 1:
            raise InputError(
                f"{name} is {len(found.downloads)} files, each with its own sum", where="--sha256"
            )
        # Whoever gives a sum wants another file than the one we know the size of.
        other = tuple(
            replace(one, sum=f"sha256:{sha256.lower()}", exact=False) for one in found.downloads
        )
        found = replace(found, downloads=other)
    return found


# -- from there to here-----------------------------------------------------------------------------


def folder_of(chosen: DataSet, out: Path | None = None) -> Path:
    return Path(os.path.abspath(out or disk.cache_folder() / "data" / chosen.name))


def fetch(
    chosen: DataSet,
    folder: Path,
    progress: Progress = lambda *_: None,
    *,
    again: bool = False,
) -> dict[str, Any]:
    """Download a data set into `folder`, unless it is there, and return its record.

    Files that the record lists and that are missing or changed are replaced only with `again`.
    Nothing else in the folder is ever replaced or removed.
    """
    if not folder.name:
        raise InputError("not a folder to fetch into", where="--out", got=folder)
    record = _there(chosen, folder, again=again)
    if record is not None:
        return _summary(record, folder, already=True)

    is_new = not folder.exists()
    parts = folder / PARTS
    parts.mkdir(parents=True, exist_ok=True)
    try:
        with _alone(parts), _room(chosen, parts):
            record = _there(chosen, folder, again=again)
            if record is not None:  # another process was faster
                return _summary(record, folder, already=True)
            if not _is_planned(chosen, folder):
                shutil.rmtree(parts / DRAFT, ignore_errors=True)  # of a fetch that was killed
                _check_room(chosen, parts)
                downloads = [_obtain(download, parts, progress) for download in chosen.downloads]
                _prepare(folder, chosen, downloads)
            record = _publish(chosen, folder, again=again)
            _remove_parts(chosen, parts)
        return _summary(record, folder, already=False)
    finally:
        _remove_empty(parts)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # succeeds only if it is empty


def _there(chosen: DataSet, folder: Path, *, again: bool) -> dict[str, Any] | None:
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
    if record is None or record["name"] != chosen.name:
        raise InputError(
            "something else is there already", where=folder, hint="choose another --out"
        )
    damage = _damage(folder, record["listed"])
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
    above = [folder.joinpath(*file.relative_to(folder).parts[:depth]) for depth in _depths(name)]
    return file.is_file() and not any(place.is_symlink() for place in above)


def _depths(name: str) -> range:
    return range(1, len(name.split("/")) + 1)


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


def _prepare(folder: Path, chosen: DataSet, downloads: list[dict[str, Any]]) -> None:
    """Unpack everything into a draft and write the record of it, both in the folder of parts."""
    parts = folder / PARTS
    draft = parts / DRAFT
    (parts / RECORD).unlink(missing_ok=True)
    draft.mkdir()
    try:
        for download in chosen.downloads:
            if chosen.keep:
                limits = {"size": chosen.size * 2, "members": chosen.members * 2}
                archive = parts / download.name
                unpack(archive, draft, keep=chosen.keep, inside=chosen.inside, **limits)

        for needed in chosen.needs:
            if not (draft if chosen.keep else parts).joinpath(needed).is_file():
                raise DataError(f"not this data set: no {needed} in it", where=chosen.address)
        if not chosen.keep:
            for download in chosen.downloads:
                os.replace(parts / download.name, draft / download.name)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise

    listed = _listed(draft)
    record = {
        "name": chosen.name,
        "what": chosen.what,
        "licence": chosen.licence,
        "downloads": downloads,
        "files": len(listed),
        "bytes": sum(file["bytes"] for file in listed.values()),
        "listed": listed,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    disk.write_json(parts / RECORD, record)


def _is_planned(chosen: DataSet, folder: Path) -> bool:
    """Whether everything is unpacked already, by a fetch that was stopped while it moved files."""
    plan = _read_record(folder / PARTS / RECORD)
    if plan is None or plan["name"] != chosen.name:
        return False
    for download, came in zip(chosen.downloads, plan["downloads"], strict=True):
        kind, _, expected = (download.sum or "").partition(":")
        if kind == "sha256" and came["sha256"] != expected:
            return False
    draft = folder / PARTS / DRAFT
    return all(
        (draft / name).is_file() or (_is_own(folder, name) and _is_same(folder / name, expected))
        for name, expected in plan["listed"].items()
    )


def _publish(chosen: DataSet, folder: Path, *, again: bool) -> dict[str, Any]:
    """Move the files of the draft into the folder, the record last. An entry that is there and that
    no record of ours lists is never replaced: everything is checked before anything is moved."""
    draft = folder / PARTS / DRAFT
    plan = _read_record(folder / PARTS / RECORD)
    before = _read_record(folder / RECORD)
    assert plan is not None
    ours = before["listed"].keys() if again and before and before["name"] == chosen.name else ()

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
    for depth in _depths(name)[:-1]:
        place = folder.joinpath(*name.split("/")[:depth])
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


def _remove_parts(chosen: DataSet, parts: Path) -> None:
    """Remove what a fetch wrote into its folder of parts, and nothing else."""
    shutil.rmtree(parts / DRAFT, ignore_errors=True)
    for download in chosen.downloads:
        part = parts / f"{download.name}.part"
        for file in (parts / download.name, part, _note(part)):
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
        yield


@contextlib.contextmanager
def _room(chosen: DataSet, parts: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        refused = disk.refusal(parts.parent, problem)
        if isinstance(refused, NoRoomError):
            _no_room(parts, f"{refused.free:,} bytes free, {_needed(chosen, parts):,} needed")
        if refused is None or problem.filename is not None:
            raise
        raise refused from None


def _needed(chosen: DataSet, parts: Path) -> int:
    """Bytes still to come: downloads that are not here, and what is unpacked of all."""
    here = sum(file.stat().st_size for file in parts.iterdir())
    return chosen.bytes + chosen.size - here


def _check_room(chosen: DataSet, parts: Path) -> None:
    needed, free = _needed(chosen, parts), shutil.disk_usage(parts).free
    if free < needed:
        _no_room(parts, f"{free:,} bytes free, {needed:,} needed")


def _no_room(parts: Path, got: str) -> NoReturn:
    hint = "free some and run it again (what has come is kept), or choose another --out"
    raise DataError("no space left on the disk", where=parts.parent, got=got, hint=hint) from None


# -- one file---------------------------------------------------------------------------------------


class _Cut(Exception):
    """The line broke, or the server is busy: worth another try."""


def _obtain(download: Download, parts: Path, progress: Progress) -> dict[str, Any]:
    """The whole file under its own name in `parts`, downloaded and verified; what is known of
    it."""
    whole, part = parts / download.name, parts / f"{download.name}.part"
    if not whole.exists() and not _complete(download, part):
        _download(download, part, progress)
    file = whole if whole.exists() else part
    try:
        sha256 = _verified(download, file)
    except DataError:
        file.unlink()
        raise
    os.replace(file, whole)
    _note(part).unlink(missing_ok=True)
    checked = download.sum.partition(":")[0] if download.sum else None
    return {
        "address": download.address,
        "bytes": whole.stat().st_size,
        "sha256": sha256,
        "checked": checked,
    }


def _complete(download: Download, part: Path) -> bool:
    """Whether nothing is missing but the check: somebody was stopped just before it."""
    total = download.size if download.exact else _noted(part).get("total")
    return part.exists() and _size(part) == total


def _verified(download: Download, file: Path) -> str:
    """Its SHA-256, if it is the right file."""
    size = file.stat().st_size
    if download.exact and size != download.size:
        raise DataError(
            "not the right file",
            where=download.address,
            got=f"{size:,} bytes, not {download.size:,}",
        )
    sums = {"sha256": disk.digest(file)}
    if download.sum is not None:
        kind, _, expected = download.sum.partition(":")
        if kind == "md5":
            with file.open("rb") as opened:
                sums["md5"] = hashlib.file_digest(
                    opened, lambda: hashlib.md5(usedforsecurity=False)
                ).hexdigest()
        if sums[kind] != expected:
            with file.open("rb") as opened:
                page = re.match(rb"\s*<(!doctype|html|\?xml)", opened.read(200), re.IGNORECASE)
            raise DataError(
                "a web page, not the file" if page else "not the right file",
                where=download.address,
                got=f"{kind} {sums[kind]}, not {expected}",
                hint="it was thrown away; try again, or another address with --url",
            )
    return sums["sha256"]


def _download(download: Download, part: Path, progress: Progress) -> None:
    """Everything into the part file, in as many tries as it takes while they bring something."""
    failed, most = 0, _size(part)
    while True:
        try:
            return _try(download, part, progress)
        except _Cut as problem:
            failed = 0 if _size(part) > most else failed + 1
            most = max(most, _size(part))
            if failed == TRIES:
                raise DataError(
                    "the download stopped",
                    where=download.address,
                    got=f"{problem}, after {_size(part):,} bytes",
                    hint="run it again to go on from there",
                ) from None
            time.sleep(PAUSE * 2 ** (failed - 1) if failed else 0)


def _try(download: Download, part: Path, progress: Progress) -> None:
    start, validator = _resumable(download, part)
    headers = {"User-Agent": f"regard/{version('regard')}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-"} | ({"If-Range": validator} if validator else {})
    with contextlib.closing(_open(download, headers, part)) as response:
        start, total = _offered(download, response, start, part)
        if not start:
            seen = {
                "address": download.address,
                "validator": _validator(response.headers),
                "total": total,
            }
            disk.write_json(_note(part), seen)
        with part.open("r+b" if start else "wb", buffering=0) as file:
            file.seek(start)
            at = start
            progress(download.name, at, total)
            while at != total and (chunk := _read(response)):
                at += len(chunk)
                if at > (total or download.most):
                    file.truncate(0)
                    raise DataError(
                        "more bytes than the file has", where=download.address, got=f"{at:,}"
                    )
                file.write(chunk)
                progress(download.name, at, total)
            disk.flush(file)
    if total is not None and at < total:
        raise _Cut(f"the connection ended early, {at:,} of {total:,} bytes")


def _resumable(download: Download, part: Path) -> tuple[int, str | None]:
    """Where to go on, and what tells the server which file we mean. Without that, only a known
    sum makes it safe."""
    seen = _noted(part)
    validator = seen.get("validator") if seen.get("address") == download.address else None
    return (_size(part), validator) if validator or download.sum else (0, None)


def _offered(download: Download, response: Any, asked: int, part: Path) -> tuple[int, int | None]:
    """Where the response starts, and the size of the whole file if it says so."""
    if response.headers.get_content_type() == "text/html":
        hint = "open it in a browser to see what it says, or give another address with --url"
        raise DataError("a web page, not the file", where=download.address, hint=hint)
    start, total = 0, response.headers.get("Content-Length")
    if response.status == http.client.PARTIAL_CONTENT:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if span is None or int(span[1]) != asked:
            part.unlink(
                missing_ok=True
            )  # this server does not know how to go on: from the start, then
            raise _Cut("another part than was asked for")
        start, total = asked, None if span[2] == "*" else span[2]
    if total is None or not total.isdecimal():
        return start, download.size if download.exact else None
    size = int(total)
    if size > download.most or (download.exact and size < download.size):
        expected = f"not {download.size:,}" if download.exact else f"more than {download.most:,}"
        hint = "it may have been moved or replaced; give another address with --url"
        raise DataError(
            "not the right file",
            where=download.address,
            got=f"{size:,} bytes, {expected}",
            hint=hint,
        )
    return start, size


def _read(response: Any) -> bytes:
    try:
        return response.read1(CHUNK)  # what is there: a slow line should not keep it from the disk
    except (OSError, http.client.HTTPException) as problem:
        raise _Cut(str(problem) or type(problem).__name__) from None


BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
GONE = frozenset({404, 410})


def _open(download: Download, headers: dict[str, str], part: Path) -> Any:
    try:
        request = urllib.request.Request(download.address, headers=headers)  # noqa: S310, `choose` lets only http(s) in
        return urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT)
    except (http.client.InvalidURL, ValueError) as problem:
        raise InputError("not an address", where=download.address, got=str(problem)) from None
    except urllib.error.HTTPError as answer:
        with answer:
            if answer.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in headers:
                part.unlink(missing_ok=True)  # longer than the file: not a part of it
                raise _Cut("the file has changed") from None
            got = f"HTTP {answer.code}"
        if answer.code in BUSY:
            raise _Cut(got) from None
        if answer.code in GONE:
            what = "no such file there"
        elif answer.code < 400:
            what = "sent on in circles, or to an address that is not safe"
        else:
            what = "the server does not give it"
        raise DataError(
            what, where=download.address, got=got, hint="give another address with --url"
        ) from None
    except urllib.error.URLError as problem:
        reason = problem.reason
        if isinstance(reason, ssl.SSLCertVerificationError):
            got = reason.verify_message
            raise DataError(
                "its certificate cannot be trusted", where=download.address, got=got
            ) from None
        if isinstance(reason, socket.gaierror | ConnectionRefusedError):
            raise DataError(
                "cannot be reached",
                where=download.address,
                got=reason.strerror or str(reason),
                hint="is there a connection? a mirror can be given with --url",
            ) from None
        raise _Cut(str(reason)) from None
    except (OSError, http.client.HTTPException) as problem:
        raise _Cut(str(problem) or type(problem).__name__) from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Only to the web, and never from a safe line to an open one."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme != "https" and (scheme != "http" or req.full_url.startswith("https:")):
            fp.close()
            raise DataError(
                "sent on to an address that is not safe", where=req.full_url, got=newurl
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _validator(headers: Any) -> str | None:
    """What changes when the file does; a weak ETag does not promise that."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _noted(part: Path) -> dict[str, Any]:
    try:
        seen = json.loads(_note(part).read_bytes())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
