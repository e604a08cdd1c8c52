"""Download one file: resumed where it stopped, and verified."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regard import disk
from regard.data.public import Download
from regard.errors import DataError, InputError

CHUNK = 1 << 18
TIMEOUT = 30  # seconds without a byte
TRIES = 4  # in a row that brought nothing
PAUSE = 1.0  # seconds before the second try; doubled for each further one

# Name of the file, bytes so far, bytes in all where known.
Progress = Callable[[str, int, int | None], None]


class _Cut(Exception):
    """The line broke, or the server is busy: worth another try."""


def download_file(download: Download, parts: Path, progress: Progress) -> dict[str, Any]:
    """Download a file into the folder `parts` under its own name, verify it, and return its
    record."""
    whole = parts / download.name
    part = parts / f"{download.name}.part"
    if not whole.exists() and not _is_complete(download, part):
        _download(download, part, progress)
    file = whole if whole.exists() else part
    try:
        sha256 = _verified(download, file)
    except DataError:
        file.unlink()
        raise
    os.replace(file, whole)
    note_of(part).unlink(missing_ok=True)
    checked = download.sum.partition(":")[0] if download.sum else None
    return {
        "address": download.address,
        "bytes": whole.stat().st_size,
        "sha256": sha256,
        "checked": checked,
    }


def _is_complete(download: Download, part: Path) -> bool:
    """Whether only the verification is missing, because a fetch was stopped just before it."""
    total = download.size if download.exact else _read_note(part).get("total")
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
    failed = 0
    most = _size(part)
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
        headers["Range"] = f"bytes={start}-"
    if start and validator:
        headers["If-Range"] = validator
    with contextlib.closing(_open(download, headers, part)) as response:
        start, total = _offered(download, response, start, part)
        if not start:
            note = {
                "address": download.address,
                "validator": _validator(response.headers),
                "total": total,
            }
            disk.write_json(note_of(part), note)
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
    note = _read_note(part)
    validator = note.get("validator") if note.get("address") == download.address else None
    if validator is None and download.sum is None:
        return 0, None
    return _size(part), validator


def _offered(download: Download, response: Any, asked: int, part: Path) -> tuple[int, int | None]:
    """Where the response starts, and the size of the whole file if it says so."""
    if response.headers.get_content_type() == "text/html":
        hint = "open it in a browser to see what it says, or give another address with --url"
        raise DataError("a web page, not the file", where=download.address, hint=hint)
    start = 0
    total = response.headers.get("Content-Length")
    if response.status == http.client.PARTIAL_CONTENT:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if span is None or int(span[1]) != asked:
            part.unlink(missing_ok=True)  # this server cannot resume: begin again
            raise _Cut("another part than was asked for")
        start = asked
        total = None if span[2] == "*" else span[2]
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


def note_of(part: Path) -> Path:
    """The file beside a part file that says what it is a part of."""
    return part.with_name(f"{part.name}.json")


def _read_note(part: Path) -> dict[str, Any]:
    try:
        note = json.loads(note_of(part).read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
