"""Public data sets from where they live into the cache: shown, downloaded, verified, unpacked, and
only then there.

A download goes to a part file and is resumed where it stopped, by Ctrl-C, by a broken line or by
`kill -9`. Its size and sum are checked before anything opens it. A data set's folder gets its name
when everything in it is on the disk, so whoever finds the folder finds all of it.
"""

from __future__ import annotations

import contextlib
import fcntl
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
CHUNK = 1 << 18
TIMEOUT = 30  # seconds without a byte
TRIES = 4  # in a row that brought nothing
PAUSE = 1.0  # seconds before the second try; doubled for each further one

Progress = Callable[
    [str, int, int | None], None
]  # name of the file, bytes so far, bytes in all where known


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
    keep: tuple[
        str, ...
    ] = ()  # patterns of what is taken out of the archive; none: it is no archive
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
        what="Flickr8k: five English captions for each of 8,092 pictures, and the usual parts; not the pictures",
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
        what="Multi30k: 29,000 captions in Czech, German, English and French, with val and test 2016",
        licence="for research and teaching, not for trade; cite Elliott et al. 2016",
        downloads=tuple(
            Download(name, f"{_MULTI30K}/{name}", size=size, sum=f"sha256:{sha256}")
            for name, (size, sha256) in _MULTI30K_FILES.items()
        ),
        needs=tuple(_MULTI30K_FILES),
    ),
)
SETS = {one.name: one for one in _ALL}


def choose(name: str, *, url: str | None = None, sha256: str | None = None) -> DataSet:
    """A data set by name, with another address or another sum if they are given."""
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


def cache_folder() -> Path:
    """The same folder as `build.cache_folder`, which data may not see."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard") / "data"


# -- from there to here-----------------------------------------------------------------------------


def folder_of(chosen: DataSet, out: Path | None = None) -> Path:
    return Path(os.path.abspath(out or cache_folder() / chosen.name))


def fetch(chosen: DataSet, folder: Path, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Bring a data set into `folder`, unless it is there; what was fetched, as its record says."""
    if not folder.name:
        raise InputError("not a folder to fetch into", where="--out", got=folder)
    there = _there(chosen.name, folder)
    if there is not None:
        return there
    parts = folder.with_name(f".{folder.name}.regard-part")
    parts.mkdir(parents=True, exist_ok=True)
    with _alone(parts), _room(chosen, parts):
        there = _there(chosen.name, folder)
        if there is not None:  # somebody was faster
            return there
        _check_room(chosen, parts)
        got = [_obtain(download, parts, progress) for download in chosen.downloads]
        record = _publish(folder, parts, chosen, got)
        shutil.rmtree(parts, ignore_errors=True)
    return _told(record, folder, already=False)


def _there(name: str, folder: Path) -> dict[str, Any] | None:
    """The record of a data set that is there and whole; None if nothing is there, or not all
    that once was."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        record = json.loads((folder / RECORD).read_bytes())
        known, listed = record["name"], dict(record["listed"])
    except (OSError, ValueError, LookupError, TypeError):
        known = None
    if known != name:  # somebody's own, which we do not touch
        raise InputError(
            "something else is there already", where=folder, hint="choose another --out"
        )
    found = _listed(folder)
    if listed.items() <= found.items():
        return _told(record, folder, already=True)
    if own := sorted(found.keys() - listed.keys()):
        hint = "move them away and fetch again, or choose another --out"
        raise DataError(
            "files of it are missing or damaged, and others are beside them",
            where=folder,
            got=own[0],
            hint=hint,
        )
    return None


def _told(record: dict[str, Any], folder: Path, *, already: bool) -> dict[str, Any]:
    """The record without its thousands of names."""
    kept = {key: value for key, value in record.items() if key != "listed"}
    return kept | {"folder": str(folder), "already": already}


def _listed(folder: Path) -> dict[str, int]:
    """The files of a data set, with their sizes."""
    files = (file for file in folder.rglob("*") if file.is_file() and file != folder / RECORD)
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


def _publish(
    folder: Path, parts: Path, chosen: DataSet, got: list[dict[str, Any]]
) -> dict[str, Any]:
    """The folder under a draft name, then under its own; the one it replaces is known to be
    ours, and damaged."""
    draft = folder.with_name(f".{folder.name}.regard-new")
    old = folder.with_name(f".{folder.name}.regard-old")
    for left in (draft, old):  # of a fetch that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        draft.mkdir()
        for download in chosen.downloads:
            file = parts / download.name
            if not chosen.keep:
                os.replace(file, draft / download.name)
                continue
            limits = {"size": chosen.size * 2, "members": chosen.members * 2}
            unpack(file, draft, keep=chosen.keep, inside=chosen.inside, **limits)
        for needed in chosen.needs:
            if not (draft / needed).is_file():
                raise DataError(f"not this data set: no {needed} in it", where=chosen.address)
        listed = _listed(draft)
        record = {
            "name": chosen.name,
            "what": chosen.what,
            "licence": chosen.licence,
            "downloads": got,
            "files": len(listed),
            "bytes": sum(listed.values()),
            "listed": listed,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        disk.write_json(draft / RECORD, record)
        for place in draft.rglob("*"):
            if place.is_dir():
                _sync(place)
        if folder.exists():
            os.replace(folder, old)
        os.replace(draft, folder)
        _sync(folder.parent)
        return record
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _alone(parts: Path) -> Iterator[None]:
    """One process a data set; the lock goes with its process, however that ends."""
    with (parts / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(
                "another process is fetching it", where=parts, hint="wait for it"
            ) from None
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
            os.fsync(file.fileno())
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
