"""`regard data fetch` against a server of our own: what arrives, what is resumed, and what is
refused."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import random
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import build, cli, recipe
from regard.data import fetch
from regard.data.dailydialog import dailydialog_files
from regard.data.download import TRIES
from regard.data.public import Download, PublicDataSet
from regard.data.unpack import unpack
from regard.errors import DataError

# -- a server that can be told to misbehave---------------------------------------------------------


@dataclass
class Site:
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # does it know how to go on in the middle?
    wrong: bool = False  # does it go on somewhere else?
    length: bool = True  # does it say how long a file is?
    tagged: bool = True  # does it say when a file has changed?
    kind: str = "application/octet-stream"
    cuts: list[int] = field(default_factory=list)  # bytes after which the next responses end
    wall: int | None = None  # place in the file that no response gets beyond
    stall: int | None = None  # bytes after which a response waits for ever
    codes: list[int] = field(default_factory=list)  # what the next requests are answered with
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str | None, str | None]] = field(
        default_factory=list
    )  # path, Range, If-Range
    ended: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def at(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def ranges_asked(self) -> list[str | None]:
        return [asked for _, asked, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        path, asked, known = (
            self.path.lstrip("/").split("?")[0],
            self.headers["Range"],
            self.headers["If-Range"],
        )
        site.asked.append((path, asked, known))
        if path in site.moved:
            self.send_response(302)
            self.send_header("Location", site.moved[path])
            self.end_headers()
            return
        code = site.codes.pop(0) if site.codes else 200 if path in site.files else 404
        if code != 200:
            self.send_error(code)
            return
        body, tag = site.files[path], f'"{hashlib.md5(site.files[path]).hexdigest()}"'
        start = 0
        if asked and site.ranges and known in (None, tag):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start + site.wrong}-{len(body) - 1}/{len(body)}"
            )
        if site.length:
            self.send_header("Content-Length", str(len(body) - start))
        if site.tagged:
            self.send_header("ETag", tag)
        self.send_header("Content-Type", site.kind)
        self.end_headers()
        end = start + site.cuts.pop(0) if site.cuts else len(body)
        end = min(end, site.wall if site.wall is not None else end)
        if site.stall is not None:
            self.wfile.write(body[start : start + site.stall])
            self.wfile.flush()
            site.ended.wait(60)
            return
        self.wfile.write(body[start:end])

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Somebody hung up."""


@pytest.fixture
def site() -> Iterator[Site]:
    server = Server(("127.0.0.1", 0), Handler)
    server.site = Site(port=server.server_address[1])  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.site  # type: ignore[attr-defined]
    server.site.ended.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("regard.data.download.PAUSE", 0)
    return tmp_path / "cache" / "data"


# -- what it serves---------------------------------------------------------------------------------

INSIDE = "cornell movie-dialogs corpus/"
LINES = (
    b"L2 +++$+++ u0 +++$+++ m0 +++$+++ A +++$+++ Hi there.\n"
    b"L1 +++$+++ u1 +++$+++ m0 +++$+++ B +++$+++ Hello!\n"
)
TALKS = b"u0 +++$+++ u1 +++$+++ m0 +++$+++ ['L1', 'L2']\n"
GOOD = {f"{INSIDE}movie_lines.txt": LINES, f"{INSIDE}movie_conversations.txt": TALKS}
NOISE = random.Random(7).randbytes(300_000)  # that does not pack
JUNK = {
    f"{INSIDE}.DS_Store": b"x",
    "__MACOSX/._movie_lines.txt": b"y",
    f"{INSIDE}chameleons.pdf": NOISE,
}


def zipped(members: dict[str, bytes] | None = None, *odd: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (GOOD | JUNK if members is None else members).items():
            archive.writestr(name, content)
        for info, content in odd:
            archive.writestr(info, content)
    return buffer.getvalue()


def tarred(
    *odd: tarfile.TarInfo, members: dict[str, bytes] | None = None, kind: str = "w:bz2", **how
) -> bytes:
    clips = {
        "metadata.csv": b"LJ001-0001|One.|One.\n",
        "wavs/LJ001-0001.wav": NOISE[:1000],
        "README": b"read me",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=kind, **how) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("LJSpeech-1.1/wavs")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in (clips | (members or {})).items():
            info = tarfile.TarInfo(f"LJSpeech-1.1/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in odd:
            archive.addfile(info, io.BytesIO(bytes(info.size)) if info.size else None)
    return buffer.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def words(name: str, site: Site, content: bytes, *more: str, file: str = "it") -> list[str]:
    """A command that fetches this content; it is what is expected, unless `more` says otherwise."""
    site.files[file] = content
    return ["data", "fetch", name, "--url", site.at(file), "--sha256", sha256(content), *more]


def refused(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    """The one line of a command that must fail."""
    code = cli.main([*given])
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("regard: ") and error.count("\n") == 1 and "Traceback" not in error
    return error


def clean(cache: Path) -> bool:
    """No data set, no draft: at most downloads that can be resumed."""
    folders = list(cache.iterdir()) if cache.exists() else []
    parts = [folder / ".regard-part" for folder in folders]
    is_alone = all(list(part.parent.iterdir()) == [part] for part in parts)
    return is_alone and not any((part / "unpacked").exists() for part in parts)


# -- the ordinary way-------------------------------------------------------------------------------


def test_fetches_shows_and_is_there(site: Site, cache: Path, capsys):
    given = words("cornell", site, zipped())
    assert cli.main(given) == 0
    told = capsys.readouterr().out
    before, _, after = told.partition("fetched in")
    assert site.at("it") in before and "9.9 MB" in before and "Danescu-Niculescu-Mizil" in before
    assert sha256(site.files["it"]) in before and str(cache / "cornell") in before
    assert "2 files" in after and f"regard data inspect {cache / 'cornell'}" in after
    assert {file.name for file in (cache / "cornell").iterdir()} == {
        "movie_lines.txt",
        "movie_conversations.txt",
        "fetched.json",
    }
    assert [place.name for place in cache.iterdir()] == ["cornell"]  # no parts, no drafts
    record = json.loads((cache / "cornell" / "fetched.json").read_text())
    assert (
        record["files"] == 2
        and record["bytes"] == len(LINES + TALKS)
        and "2011" in record["licence"]
    )
    assert record["downloads"][0]["sha256"] == sha256(site.files["it"])
    assert record["downloads"][0]["checked"] == "sha256"

    assert cli.main(["data", "inspect", str(cache / "cornell")]) == 0
    assert "1 usable example" in capsys.readouterr().out
    assert cli.main(given) == 0
    assert "it is there already: 2 files" in capsys.readouterr().out
    assert len(site.asked) == 1


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_keeps_its_folders(site: Site, cache: Path, capsys, layout: int):
    clips = {
        f"wavs/{'a' * 90}{size}.wav": NOISE[:size]
        for size in (0, 1, 511, 512, 513, 65_536, 65_537, 131_072)
    }
    assert (
        cli.main(
            words(
                "ljspeech", site, tarred(members={**clips, "junk": b"x"}, format=layout), "--json"
            )
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == 3 + len(clips) and found["already"] is False and "listed" not in found
    assert {name: (Path(found["folder"]) / name).read_bytes() for name in clips} == clips
    assert not (cache / "ljspeech" / "junk").exists()


def test_what_is_no_archive_is_kept_as_it_is(site: Site, cache: Path):
    given = words("octmnist", site, NOISE, file="another-name")
    given[4] += "?download=1"
    assert cli.main(given) == 0
    assert (cache / "octmnist" / "octmnist.npz").read_bytes() == NOISE


DAILY = "ijcnlp_dailydialog/"
SPLITS = ("train", "validation", "test")


def dialogues(split: str) -> bytes:
    """Four dialogues of a split, as they are published."""
    lines = [f"This is {split} {n} . __eou__ I don ' t know {n} . __eou__" for n in range(4)]
    return "".join(f"{line}\n" for line in lines).encode()


WHOLE = b"".join(map(dialogues, SPLITS))


def of_split(split: str, *odd: tuple[zipfile.ZipInfo, bytes], **more: bytes) -> bytes:
    """The archive of a split, which is in the archive of the corpus."""
    members = {
        f"{split}/dialogues_{split}.txt": dialogues(split),
        f"{split}/dialogues_act_{split}.txt": b"1 2\n",
    }
    return zipped(members | {f"{split}/{name}": content for name, content in more.items()}, *odd)


def daily(**changed: bytes | None) -> bytes:
    """DailyDialog as published: archives in an archive. `changed` are other contents for some of
    them; None leaves one out."""
    members: dict[str, bytes | None] = {f"{split}.zip": of_split(split) for split in SPLITS}
    members |= {"dialogues_text.txt": WHOLE, "dialogues_topic.txt": b"1\n", "readme.txt": b"read"}
    members |= {f"{split}.zip": content for split, content in changed.items()}
    return zipped({DAILY + name: content for name, content in members.items() if content})


def test_the_splits_in_the_archive_of_dailydialog_are_used(site: Site, cache: Path, capsys):
    assert cli.main(words("dailydialog", site, daily())) == 0
    assert "5 files" in capsys.readouterr().out
    home = cache / "dailydialog"
    files = {file.relative_to(home).as_posix() for file in home.rglob("*") if file.is_file()}
    splits = {f"{split}/dialogues_{split}.txt" for split in SPLITS}
    assert files == splits | {"dialogues_text.txt", "readme.txt", "fetched.json"}
    assert (home / "test" / "dialogues_test.txt").read_bytes() == dialogues("test")

    assert cli.main(["data", "inspect", str(home)]) == 0
    assert "test = test/dialogues_test.txt" in capsys.readouterr().out
    changes = [f'data.path="{home}"', "tokenizer.kind=words"]
    corpus = build.corpus(recipe.load("chat-dialogue", changes))
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [4, 4, 4]


def test_a_corpus_of_an_earlier_version_gets_its_splits(site: Site, cache: Path, capsys):
    earlier = replace(
        fetch.SETS["dailydialog"],
        keep=("dialogues_text.txt", "readme.txt"),
        needs=("dialogues_text.txt",),
        archives=(),
    )
    command, home = words("dailydialog", site, daily()), cache / "dailydialog"
    address = replace(
        earlier.downloads[0], address=command[4], sum=f"sha256:{command[-1]}", exact=False
    )
    fetch.fetch(replace(earlier, downloads=(address,)), home)
    assert not (home / "train").exists()
    assert dailydialog_files(home) == {"train": home / "dialogues_text.txt"}

    assert cli.main(command) == 0
    assert "5 files" in capsys.readouterr().out and len(site.asked) == 2
    assert set(dailydialog_files(home)) == {"train", "valid", "test"}
    assert cli.main(command) == 0
    assert "it is there already: 5 files" in capsys.readouterr().out and len(site.asked) == 2


def test_out_is_the_folder(site: Site, tmp_path: Path, cache: Path, capsys):
    out = tmp_path / "deep" / "here"
    given = words("cornell", site, zipped(), "--out", str(out))
    assert cli.main(given) == 0
    assert (out / "movie_lines.txt").read_bytes() == LINES and not cache.exists()
    assert [place.name for place in out.parent.iterdir()] == ["here"]
    capsys.readouterr()
    assert "something else is there already" in refused(
        capsys, *words("octmnist", site, NOISE, "--out", str(out), file="other")
    )
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.txt").write_text("mine")
    given[-1] = str(own)
    assert f"{own}: something else is there already; choose another --out" in refused(
        capsys, *given
    )
    assert (own / "thesis.txt").read_text() == "mine" and len(site.asked) == 1
    given[-1] = str(own / "thesis.txt")
    assert "something else is there already" in refused(capsys, *given)


def test_a_lost_or_edited_file_is_named_and_fetched_with_again(site: Site, cache: Path, capsys):
    command, home = words("cornell", site, zipped()), cache / "cornell"
    assert cli.main(command) == 0
    edited = LINES.swapcase()
    (home / "movie_lines.txt").write_bytes(edited)  # of the same size
    (home / "movie_conversations.txt").unlink()
    error = refused(capsys, *command)
    assert f"{home}: files of it are not as they were fetched; " in error
    assert "got movie_conversations.txt (missing), movie_lines.txt (changed); --again" in error
    assert (home / "movie_lines.txt").read_bytes() == edited and len(site.asked) == 1
    assert not (home / ".regard-part").exists()

    (home / "mine.txt").write_text("mine")
    (home / "movie_titles.txt").write_text("also mine")  # in the archive's folder, but not listed
    assert cli.main([*command, "--again"]) == 0
    assert (home / "movie_lines.txt").read_bytes() == LINES
    assert (home / "movie_conversations.txt").read_bytes() == TALKS
    assert (home / "mine.txt").read_text() == "mine"
    assert (home / "movie_titles.txt").read_text() == "also mine"
    assert [place.name for place in cache.iterdir()] == ["cornell"] and len(site.asked) == 2
    capsys.readouterr()
    assert cli.main(command) == 0
    assert "it is there already: 2 files" in capsys.readouterr().out


def test_what_somebody_put_beside_it_is_never_lost(site: Site, cache: Path, capsys):
    command, home = words("cornell", site, zipped()), cache / "cornell"
    assert cli.main(command) == 0
    (home / "Images").mkdir()
    (home / "Images" / "mine.jpg").write_bytes(NOISE)
    (home / "empty").mkdir()
    assert cli.main(command) == 0
    assert "it is there already: 2 files" in capsys.readouterr().out and len(site.asked) == 1
    (home / "movie_lines.txt").unlink()
    assert cli.main([*command, "--again"]) == 0
    assert (home / "Images" / "mine.jpg").read_bytes() == NOISE and (home / "empty").is_dir()


def test_a_link_in_place_of_a_file_is_somebodys_own(
    site: Site, cache: Path, tmp_path: Path, capsys
):
    command, home = words("cornell", site, zipped()), cache / "cornell"
    assert cli.main(command) == 0
    capsys.readouterr()
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (home / "movie_lines.txt").unlink()
    (home / "movie_lines.txt").symlink_to(mine)
    assert "movie_lines.txt (a link or a folder" in refused(capsys, *command)
    error = refused(capsys, *command, "--again")
    assert "movie_lines.txt: something that regard did not fetch" in error
    assert (home / "movie_lines.txt").is_symlink() and mine.read_text() == "mine"


def test_files_put_there_during_the_download_stay(site: Site, tmp_path: Path, capsys, monkeypatch):
    out = tmp_path / "d1"
    command = words("cornell", site, zipped(), "--out", str(out))
    obtain = fetch.download_file

    def meanwhile(*arguments):
        (out / "thesis.txt").write_text("mine")
        (out / "movie_lines.txt").write_text("mine too")
        return obtain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "download_file", meanwhile)
        error = refused(capsys, *command)
    assert f"{out}/movie_lines.txt: something that regard did not fetch" in error
    assert (out / "thesis.txt").read_text() == "mine"
    assert (out / "movie_lines.txt").read_text() == "mine too"
    assert not (out / "movie_conversations.txt").exists()

    (out / "movie_lines.txt").rename(tmp_path / "kept.txt")
    assert cli.main(command) == 0 and len(site.asked) == 1
    assert (out / "thesis.txt").read_text() == "mine"
    assert (out / "movie_lines.txt").read_bytes() == LINES
    assert not (out / ".regard-part").exists()


def test_out_may_be_a_link_or_here_or_in_a_folder_that_cannot_be_written(
    site: Site, tmp_path: Path, monkeypatch
):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    command = words("cornell", site, zipped(), "--out")
    assert cli.main([*command, str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "movie_lines.txt").read_bytes() == LINES

    mount = tmp_path / "above" / "mount"
    mount.mkdir(parents=True)
    inode = mount.stat().st_ino
    mount.parent.chmod(0o555)
    try:
        assert cli.main([*command, str(mount)]) == 0
    finally:
        mount.parent.chmod(0o755)
    assert mount.stat().st_ino == inode and (mount / "movie_lines.txt").read_bytes() == LINES

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main([*command, "."]) == 0
    assert (tmp_path / "here" / "movie_lines.txt").read_bytes() == LINES


def test_a_fetch_killed_while_it_moves_files_goes_on(site: Site, cache: Path, monkeypatch):
    for name, content in (("cornell", zipped()), ("octmnist", NOISE)):
        command = words(name, site, content, file=name)
        with monkeypatch.context() as patch:

            def killed(*_):
                raise SystemExit(137)

            patch.setattr(fetch.disk, "write_json", _but_last(fetch.disk.write_json, killed))
            with pytest.raises(SystemExit):
                fetch.fetch(
                    fetch.choose(name, url=site.at(name), sha256=sha256(content)), cache / name
                )
        assert not (cache / name / "fetched.json").exists()
        asked = len(site.asked)
        assert cli.main(command) == 0 and len(site.asked) == asked
        assert not (cache / name / ".regard-part").exists()
    assert (cache / "cornell" / "movie_lines.txt").read_bytes() == LINES


def _but_last(write, killed):
    """Write every file but the record in the folder of the data set itself."""

    def chosen(path: Path, content):
        is_record = path.name == fetch.RECORD and path.parent.name != fetch.PARTS
        return killed() if is_record else write(path, content)

    return chosen


@pytest.fixture
def several(site: Site, monkeypatch) -> dict[str, bytes]:
    """A set of three files: one with a SHA-256, one with an MD5, one of which nothing is known."""
    contents = {f"{name}.gz": gzip.compress(name.encode() * 50) for name in ("one", "two", "three")}
    site.files |= {f"sets/{name}": content for name, content in contents.items()}
    sums = {
        "one.gz": "sha256:" + sha256(contents["one.gz"]),
        "two.gz": "md5:" + hashlib.md5(contents["two.gz"]).hexdigest(),
    }
    downloads = tuple(
        Download(
            name,
            site.at(f"sets/{name}"),
            size=len(content),
            exact=name != "three.gz",
            sum=sums.get(name),
        )
        for name, content in contents.items()
    )
    tiny = PublicDataSet("tiny", "three files", "none", downloads, needs=tuple(contents))
    monkeypatch.setitem(fetch.SETS, "tiny", tiny)
    return contents


def test_several_files_and_an_unknown_sum(
    site: Site, cache: Path, several: dict[str, bytes], capsys
):
    assert cli.main(["data", "fetch", "tiny"]) == 0
    told = capsys.readouterr().out
    assert (
        "3 files" in told and "known for each" not in told and "known for 2 of the 3 files" in told
    )
    assert f"was not known beforehand; this file has sha256 {sha256(several['three.gz'])}" in told
    assert {name: (cache / "tiny" / name).read_bytes() for name in several} == several
    record = json.loads((cache / "tiny" / "fetched.json").read_text())
    assert [one["checked"] for one in record["downloads"]] == ["sha256", "md5", None]


def test_files_that_have_come_are_not_asked_for_again(
    site: Site, cache: Path, several: dict[str, bytes], capsys
):
    site.files["sets/two.gz"] = b"?" * len(several["two.gz"])
    assert "sets/two.gz: not the right file; got md5" in refused(capsys, "data", "fetch", "tiny")
    assert clean(cache)
    site.files["sets/two.gz"] = several["two.gz"]
    assert cli.main(["data", "fetch", "tiny"]) == 0
    assert [path for path, _, _ in site.asked] == [
        "sets/one.gz",
        "sets/two.gz",
        "sets/two.gz",
        "sets/three.gz",
    ]


def test_a_mirror_of_several_files_is_a_folder(site: Site, several: dict[str, bytes], capsys):
    site.files |= {f"mirror/{name}": content for name, content in several.items()}
    assert "tiny is 3 files; got http" in refused(
        capsys, "data", "fetch", "tiny", "--url", site.at("mirror")
    )
    assert "each with its own sum" in refused(capsys, "data", "fetch", "tiny", "--sha256", "0" * 64)
    assert cli.main(["data", "fetch", "tiny", "--url", site.at("mirror/")]) == 0
    assert [path for path, _, _ in site.asked] == [f"mirror/{name}" for name in several]


def test_list(capsys):
    assert cli.main(["data", "fetch", "--list"]) == 0
    told = capsys.readouterr().out
    assert all(f"\n{name}: " in f"\n{told}" for name in fetch.SETS)
    assert (
        "about 55.0 MB" in told
        and "2.7 GB" in told
        and "CC BY 4.0" in told
        and "public domain" in told
    )
    assert cli.main(["data", "fetch", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == {
        "cornell",
        "dailydialog",
        "ljspeech",
        "octmnist",
        "flickr8k-captions",
        "multi30k",
    }
    assert rows[3]["sums"] == ["md5:c68d92d5b585d8d81f7112f81e2d0842"]


def test_every_set_is_described_in_full():
    for name, one in fetch.SETS.items():
        assert one.name == name and one.what and one.licence and one.needs
        assert bool(one.keep) == bool(one.size) == bool(one.members)
        for download in one.downloads:
            assert "/" not in download.name
            if not download.address.startswith("https://"):  # then only the sum tells a forgery
                assert download.address.startswith("http://") and "sha256:" in str(download.sum)
            assert re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", download.sum or "")
        # what `--url FOLDER/` and the saved name rest on
        assert {download.name for download in one.downloads} >= (
            {*one.needs} if not one.keep else set()
        )


def test_the_sums_of_multi30k_are_those_of_its_files(shared_data: Path):
    known = {download.name: download for download in fetch.SETS["multi30k"].downloads}
    for file in (shared_data / "multi30k").glob("*.gz"):
        content = file.read_bytes()
        assert known[file.name].sum == f"sha256:{sha256(content)}" and known[file.name].size == len(
            content
        )


# -- broken lines-----------------------------------------------------------------------------------


def test_a_broken_line_is_taken_up_again(site: Site, cache: Path):
    site.cuts = [100_000, 0, 50_000]
    assert cli.main(words("cornell", site, zipped())) == 0
    assert site.ranges_asked() == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert all(known for _, asked, known in site.asked if asked)  # it says which file it means
    assert (cache / "cornell" / "movie_lines.txt").read_bytes() == LINES


def test_a_server_that_never_gets_further_is_given_up_and_resumed_another_day(
    site: Site, cache: Path, capsys
):
    site.wall = 123_456
    given = words("cornell", site, zipped())
    error = refused(capsys, *given)
    assert (
        f"{site.at('it')}: the download stopped; got the connection ended early, 123,456 of"
        in error
    )
    assert "run it again to go on from there" in error and len(site.asked) == 1 + TRIES
    part = cache / "cornell" / ".regard-part" / "cornell_movie_dialogs_corpus.zip.part"
    assert part.stat().st_size == 123_456 and clean(cache)
    site.wall, site.asked = None, []
    assert cli.main(given) == 0
    assert site.ranges_asked() == ["bytes=123456-"]


def test_a_server_that_cannot_go_on_starts_over(site: Site, cache: Path):
    site.ranges, site.cuts = False, [100_000]
    assert cli.main(words("cornell", site, zipped())) == 0
    assert len(site.asked) == 2
    assert (cache / "cornell" / "movie_lines.txt").read_bytes() == LINES


def test_a_server_that_goes_on_wrongly_is_given_up(site: Site, capsys):
    site.cuts, site.wrong = [100_000] * 50, True
    assert "the download stopped" in refused(capsys, *words("cornell", site, zipped()))
    assert len(site.asked) <= 3 * TRIES


def test_a_file_that_changed_in_between_starts_over(site: Site, cache: Path, capsys):
    site.wall = 1000
    refused(capsys, *words("cornell", site, zipped(GOOD | {"a": NOISE})))
    site.wall = None
    assert cli.main(words("cornell", site, zipped())) == 0  # its ETag is another one
    assert site.ranges_asked()[-1] == "bytes=1000-" and (cache / "cornell").exists()


def test_another_mirror_goes_on_where_the_first_ended(site: Site):
    site.wall = 100_000
    given = words("cornell", site, zipped())
    assert cli.main(given) == 2
    site.wall, site.asked = None, []
    site.files["mirror.zip"] = site.files["it"]
    given[4] = site.at("mirror.zip")
    assert cli.main(given) == 0
    assert site.asked == [("mirror.zip", "bytes=100000-", None)]


def test_without_sum_and_tag_nothing_is_gone_on_with(site: Site, cache: Path, monkeypatch):
    """A part of one file and a part of another would look like a whole one."""
    content, site.tagged, site.wall = zipped(), False, 1000
    site.files["it"] = content
    blind = replace(
        fetch.SETS["cornell"].downloads[0],
        address=site.at("it"),
        size=len(content),
        exact=False,
        sum=None,
    )
    monkeypatch.setitem(fetch.SETS, "cornell", replace(fetch.SETS["cornell"], downloads=(blind,)))
    assert cli.main(["data", "fetch", "cornell"]) == 2
    site.wall = None
    assert cli.main(["data", "fetch", "cornell"]) == 0
    assert set(site.ranges_asked()) == {None}


def test_stopped_between_the_last_byte_and_the_check(site: Site, cache: Path, monkeypatch):
    content = zipped()
    site.files["it"] = content
    known = replace(fetch.SETS["cornell"].downloads[0], address=site.at("it"), size=len(content))
    known = replace(known, sum=f"sha256:{sha256(content)}")
    monkeypatch.setitem(fetch.SETS, "cornell", replace(fetch.SETS["cornell"], downloads=(known,)))
    (cache / "cornell" / ".regard-part").mkdir(parents=True)
    (cache / "cornell" / ".regard-part" / f"{known.name}.part").write_bytes(content)
    assert cli.main(["data", "fetch", "cornell"]) == 0 and site.asked == []


def test_a_part_that_is_longer_than_the_file_is_thrown_away(site: Site, cache: Path):
    given = words("cornell", site, zipped())
    (cache / "cornell" / ".regard-part").mkdir(parents=True)
    (cache / "cornell" / ".regard-part" / "cornell_movie_dialogs_corpus.zip.part").write_bytes(
        bytes(400_000)
    )
    assert cli.main(given) == 0
    assert site.ranges_asked() == ["bytes=400000-", None]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_is_stopped_it_goes_on(site: Site, cache: Path, sent: signal.Signals):
    site.stall = 100_000
    given = [sys.executable, "-m", "regard", *words("cornell", site, zipped())]
    part = cache / "cornell" / ".regard-part" / "cornell_movie_dialogs_corpus.zip.part"
    pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    heeds = partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # also where the tests run in the background
    with subprocess.Popen(given, **pipes, preexec_fn=heeds) as running:
        until = time.monotonic() + 90
        while not (part.exists() and part.stat().st_size >= 100_000):
            assert time.monotonic() < until and running.poll() is None
            time.sleep(0.02)
        running.send_signal(sent)
        _, error = running.communicate(timeout=60)
    if sent == signal.SIGINT:
        assert running.returncode == 130
        assert (
            error == "regard: what has come is kept; the same command goes on from there\n"
            "regard: stopped\n"
        )
    kept = part.stat().st_size
    assert kept >= 100_000 and clean(cache)
    site.stall, site.asked = None, []
    assert cli.main(given[3:]) == 0
    assert site.ranges_asked() == [f"bytes={kept}-"]


def test_a_busy_server_is_asked_again(site: Site):
    site.codes = [503, 429, 200]
    assert cli.main(words("cornell", site, zipped())) == 0
    assert len(site.asked) == 3


def test_without_a_length_the_end_is_the_end(site: Site, cache: Path, capsys):
    site.length = False
    given = words("cornell", site, zipped())
    assert cli.main(given) == 0
    site.wall = 1000
    assert "not the right file; got sha256" in refused(
        capsys, *given, "--out", str(cache / "again")
    )


# -- what is not the file---------------------------------------------------------------------------


def test_a_wrong_sum(site: Site, cache: Path, capsys):
    given = words("cornell", site, zipped())
    given[-1] = "0" * 64
    error = refused(capsys, *given)
    assert (
        f"{site.at('it')}: not the right file; got sha256 {sha256(site.files['it'])}, "
        f"not {'0' * 64}; " in error
    )
    assert "it was thrown away" in error and clean(cache)
    assert {file.name for file in (cache / "cornell" / ".regard-part").iterdir()} <= {".lock"} | {
        "cornell_movie_dialogs_corpus.zip.part.json"
    }


def test_the_known_size_is_known_before_the_first_byte(site: Site, cache: Path, capsys):
    site.files["it"] = zipped()
    error = refused(capsys, "data", "fetch", "cornell", "--url", site.at("it"))
    assert re.search(
        r"not the right file; got [\d,]+ bytes, not 9,916,637; it may have been moved", error
    )
    assert not list((cache / "cornell" / ".regard-part").glob("*.zip*"))
    site.files["big"] = bytes(5_000_000)
    error = refused(capsys, "data", "fetch", "flickr8k-captions", "--url", site.at("big"))
    assert "got 5,000,000 bytes, more than 4,600,000" in error


def test_a_file_without_end_is_not_followed(site: Site, cache: Path, capsys):
    site.length, site.files["it"] = False, bytes(5_000_000)
    error = refused(capsys, "data", "fetch", "flickr8k-captions", "--url", site.at("it"))
    assert "more bytes than the file has" in error
    assert (
        sum(
            file.stat().st_size for file in (cache / "flickr8k-captions" / ".regard-part").iterdir()
        )
        < 1000
    )


def test_a_web_page_is_not_an_archive(site: Site, cache: Path, capsys):
    page = b"\n<!DOCTYPE html><title>Log in first</title>"
    given = words("cornell", site, page)
    given[-1] = "0" * 64
    assert "a web page, not the file; got sha256" in refused(capsys, *given)
    site.kind = "text/html; charset=utf-8"
    assert "a web page, not the file; open it in a browser" in refused(capsys, *given)
    assert clean(cache)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (404, "no such file there; got HTTP 404; give another address with --url"),
        (410, "no such file there; got HTTP 410"),
        (403, "the server does not give it; got HTTP 403"),
        (503, "the download stopped; got HTTP 503, after 0 bytes; run it again"),
    ],
)
def test_refusals_of_the_server(site: Site, cache: Path, capsys, code: int, said: str):
    site.codes = [code] * 9
    assert f"{site.at('it')}: {said}" in refused(capsys, *words("cornell", site, zipped()))
    assert clean(cache) and len(site.asked) == (TRIES if code == 503 else 1)


def test_nobody_there(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/it"
    error = refused(capsys, "data", "fetch", "cornell", "--url", address)
    assert f"{address}: cannot be reached; got " in error and "is there a connection?" in error
    error = refused(capsys, "data", "fetch", "cornell", "--url", "http://nowhere.invalid/it")
    assert "http://nowhere.invalid/it: cannot be reached; got " in error


def test_redirections(site: Site, tmp_path: Path, capsys):
    given = words("cornell", site, zipped())
    site.moved = {"old": "/it"}
    site.cuts = [1000]
    given[4] = site.at("old")
    assert cli.main(given) == 0
    assert site.ranges_asked() == [
        None,
        None,
        "bytes=1000-",
        "bytes=1000-",
    ]  # the way there knows of it too
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/it", site.at("old")):
        site.moved = {"old": target}
        error = refused(capsys, *given, "--out", str(tmp_path / "elsewhere"))
        assert "an address that is not safe; got " in error


# -- archives made to do harm-----------------------------------------------------------------------


def odd(name: str = "movie_titles.txt", mode: int = 0, **more) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name if name.startswith(("/", "..", "C:", "\\")) else INSIDE + name)
    info.external_attr = mode << 16
    for key, value in more.items():
        setattr(info, key, value)
    return info


def encrypted() -> bytes:
    content = bytearray(zipped(GOOD))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + place] |= 1
    return bytes(content)


def entry(name: str, kind: bytes = tarfile.REGTYPE, **more) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info


def sparse() -> bytes:
    """A file of 100 terabytes, all of it a hole."""
    headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": "100000000000000",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2", format=tarfile.PAX_FORMAT) as archive:
        info = entry("LJSpeech-1.1/wavs/a.wav", size=512, pax_headers=headers)
        archive.addfile(info, io.BytesIO(b"0\n".ljust(512, b"\0")))  # the map of what is not a hole
    return buffer.getvalue()


DEEP = "LJSpeech-1.1/wavs/b.wav"
HOSTILE = {
    "absolute": (
        "cornell",
        lambda: zipped(GOOD, (odd("/tmp/owned.txt"), b"x")),
        "an absolute path: '/tmp/owned.txt'",
    ),
    "above": (
        "cornell",
        lambda: zipped(GOOD, (odd("../../owned.txt"), b"x")),
        "a path that leaves the folder",
    ),
    "above inside": (
        "cornell",
        lambda: zipped(GOOD | {f"{INSIDE}../../owned.txt": b"x"}),
        "that leaves the folder",
    ),
    "backslash": (
        "cornell",
        lambda: zipped(GOOD, (odd("..\\owned.txt"), b"x")),
        "a path that leaves the folder",
    ),
    "drive": ("cornell", lambda: zipped(GOOD, (odd("C:owned.txt"), b"x")), "an absolute path"),
    "link": (
        "cornell",
        lambda: zipped(GOOD, (odd(mode=stat.S_IFLNK | 0o777), b"/etc/passwd")),
        "a link: '",
    ),
    "device": ("cornell", lambda: zipped(GOOD, (odd(mode=stat.S_IFCHR), b"")), "a device: '"),
    "encrypted": ("cornell", encrypted, "an encrypted file: '"),
    "rare": (
        "cornell",
        lambda: zipped(GOOD, (odd(compress_type=zipfile.ZIP_LZMA), b"x")),
        "packed in a rare way: '",
    ),
    "many": (
        "cornell",
        lambda: zipped(GOOD | {f"{i}": b"" for i in range(101)}),
        "more than 100 members",
    ),
    "control": (
        "cornell",
        lambda: zipped(GOOD | {f"{INSIDE}a\x1b[2J.txt": b""}),
        r"should have: 'cornell",
    ),
    "long": (
        "cornell",
        lambda: zipped(GOOD | {f"{INSIDE}{'a' * 250}.txt": b""}),
        "a name no file should have",
    ),
    "bomb": (
        "cornell",
        lambda: zipped(GOOD | {f"{INSIDE}a.txt": bytes(100_000_000)}),
        "more bytes than",
    ),
    "ratio": (
        "cornell",
        lambda: zipped(GOOD | {f"{INSIDE}a.txt": bytes(5_000_000)}),
        "more bytes than",
    ),
    "incomplete": (
        "cornell",
        lambda: zipped({f"{INSIDE}movie_lines.txt": LINES}),
        "no movie_conversations.txt in it",
    ),
    "elsewhere": (
        "cornell",
        lambda: zipped({"movie_lines.txt": LINES}),
        "not this data set: no movie_lines.txt in it",
    ),
    "no zip": (
        "cornell",
        lambda: NOISE,
        "damaged, or not an archive of its kind; got File is not a zip file",
    ),
    "cut zip": ("cornell", lambda: zipped()[:-500], "damaged, or not an archive"),
    "bad crc": (
        "cornell",
        lambda: zipped(GOOD).replace(zipped(GOOD)[60:64], b"\0\0\0\0", 1),
        "damaged, or not",
    ),
    "nested absolute": (
        "dailydialog",
        lambda: daily(test=of_split("test", (odd("/tmp/owned.txt"), b"x"))),
        "test.zip in ijcnlp_dailydialog.zip: not unpacked, because it holds an absolute path",
    ),
    "nested above": (
        "dailydialog",
        lambda: daily(train=of_split("train", (odd("../../owned.txt"), b"x"))),
        "train.zip in ijcnlp_dailydialog.zip: not unpacked, because it holds a path that leaves",
    ),
    "nested above inside": (
        "dailydialog",
        lambda: daily(train=of_split("train", **{"../../owned.txt": b"x"})),
        "a path that leaves the folder",
    ),
    "nested link": (
        "dailydialog",
        lambda: daily(train=of_split("train", (odd(mode=stat.S_IFLNK | 0o777), b"/etc/passwd"))),
        "a link: '",
    ),
    "nested device": (
        "dailydialog",
        lambda: daily(train=of_split("train", (odd(mode=stat.S_IFCHR), b""))),
        "a device: '",
    ),
    "nested twice": (
        "dailydialog",
        lambda: daily(train=of_split("train", **{"./dialogues_train.txt": b"x"})),
        "two files of one name: 'dialogues_train.txt'",
    ),
    "nested over another": (
        "dailydialog",
        lambda: daily(train=of_split("train", **{"../test/dialogues_test.txt": b"x"})),
        "a path that leaves the folder",
    ),
    "nested of another split": (
        "dailydialog",
        lambda: daily(validation=zipped({"train/dialogues_train.txt": b"x"})),
        "two files of one name: 'dialogues_train.txt'",
    ),
    "nested bomb": (
        "dailydialog",
        lambda: daily(train=zipped({"train/dialogues_train.txt": bytes(100_000_000)})),
        "train.zip in ijcnlp_dailydialog.zip: not unpacked, because it holds more bytes than",
    ),
    "nested bomb in parts": (
        "dailydialog",
        lambda: daily(**{s: zipped({f"{s}/dialogues_{s}.txt": bytes(700_000)}) for s in SPLITS}),
        "more bytes than the data set has",
    ),
    "nested bomb twice packed": (
        "dailydialog",
        lambda: daily(train=zipped({"train.zip": zipped({"a": bytes(100_000_000)})})),
        "no train/dialogues_train.txt in it",
    ),
    "nested many": (
        "dailydialog",
        lambda: daily(**{s: of_split(s, **{f"{i}": b"" for i in range(40)}) for s in SPLITS}),
        "more than 100 members",
    ),
    "nested is no archive": (
        "dailydialog",
        lambda: daily(train=NOISE),
        "train.zip in ijcnlp_dailydialog.zip: damaged, or not an archive of its kind",
    ),
    "nested cut": (
        "dailydialog",
        lambda: daily(test=of_split("test")[:-30]),
        "test.zip in ijcnlp_dailydialog.zip: damaged, or not an archive",
    ),
    "nested missing": (
        "dailydialog",
        lambda: daily(test=None),
        "not this data set: no test/dialogues_test.txt in it",
    ),
    "tar absolute": (
        "ljspeech",
        lambda: tarred(entry("/tmp/owned", size=1)),
        "an absolute path: '/tmp/owned'",
    ),
    "tar above": (
        "ljspeech",
        lambda: tarred(entry("LJSpeech-1.1/../../x", size=1)),
        "a path that leaves",
    ),
    "tar link": (
        "ljspeech",
        lambda: tarred(entry(DEEP, tarfile.SYMTYPE, linkname="/etc")),
        "a link: 'LJSp",
    ),
    "tar hard": (
        "ljspeech",
        lambda: tarred(entry("x", tarfile.LNKTYPE, linkname="/etc/passwd")),
        "a link: 'x'",
    ),
    "tar device": (
        "ljspeech",
        lambda: tarred(entry("x", tarfile.CHRTYPE, devmajor=1, devminor=5)),
        "a device: 'x'",
    ),
    "tar pipe": ("ljspeech", lambda: tarred(entry("x", tarfile.FIFOTYPE)), "a device: 'x'"),
    "tar holes": ("ljspeech", sparse, "a file with holes"),
    "tar twice": (
        "ljspeech",
        lambda: tarred(entry("./LJSpeech-1.1/README", size=1)),
        "two files of one name: 'README'",
    ),
    "tar bomb": (
        "ljspeech",
        lambda: tarred(entry(DEEP, size=50_000_000)),
        "more bytes than the data set has",
    ),
    "tar aside": (
        "ljspeech",
        lambda: tarred(entry("aside", size=80_000_000)),
        "more bytes than the data set has",
    ),
    "tar header": (
        "ljspeech",
        lambda: tarred(
            entry("x", pax_headers={"comment": "x" * 200_000}), format=tarfile.PAX_FORMAT
        ),
        "a header without end",
    ),
    "tar cut": (
        "ljspeech",
        lambda: tarred(members={"wavs/c.wav": NOISE})[:-1000],
        "damaged, or not an archive",
    ),
    "tar gzip": ("ljspeech", lambda: tarred(kind="w:gz"), "damaged, or not an archive of its kind"),
    "no tar": ("ljspeech", lambda: NOISE, "damaged, or not an archive of its kind"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused(kind: str, site: Site, tmp_path: Path, cache: Path, capsys):
    name, make, said = HOSTILE[kind]
    before = {place for place in tmp_path.rglob("*") if cache not in place.parents}
    error = refused(capsys, *words(name, site, make()))
    assert said in error and len(error) < 300 and error[:-1].isprintable()
    assert clean(cache)
    assert {place for place in tmp_path.rglob("*") if cache not in place.parents} - before <= {
        cache.parent,
        cache,
    }
    assert not Path("/tmp/owned").exists() and not Path("/tmp/owned.txt").exists()


def test_the_good_archives_of_these_tests_are_good(site: Site):
    assert cli.main(words("cornell", site, zipped(GOOD))) == 0
    assert cli.main(words("ljspeech", site, tarred())) == 0
    assert cli.main(words("dailydialog", site, daily())) == 0


ARCHIVES = {
    "it.zip": zipped(GOOD | {f"{INSIDE}b.txt": NOISE[:3000]}),
    "it.tar.bz2": tarred(),
    "it.tar.gz": tarred(kind="w:gz"),
    "outer.zip": zipped({"train.zip": of_split("train"), "test.zip": of_split("test")}),
}


@pytest.mark.parametrize("name", ARCHIVES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_ends_in_one_error(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(ARCHIVES[name])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    archive, into = folder / name, folder / "into"
    archive.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    into.mkdir()
    said = name
    try:
        unpack(
            archive,
            into,
            keep=("*.txt", "*/*.txt", "*/wavs/*"),
            archives=("*.zip",),
            size=100_000,
            members=20,
        )
    except DataError as problem:
        said = str(problem)
    assert re.match(rf"(.* in )?{re.escape(name)}", said)  # maybe an archive in it
    assert "\n" not in said
    assert {place.name for place in folder.iterdir()} == {name, "into"}
    assert sum(file.stat().st_size for file in into.rglob("*") if file.is_file()) <= 100_000


# -- the disk, and two at once----------------------------------------------------------------------


def test_no_room_is_known_before_the_first_byte(site: Site, monkeypatch, capsys):
    given = words("cornell", site, zipped())
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    assert "no space left on the disk; got 10 bytes free, 54,916,637 needed" in refused(
        capsys, *given
    )
    assert site.asked == []


def test_a_disk_that_fills_up_keeps_what_has_come(site: Site, cache: Path, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    given = words("cornell", site, zipped())
    with monkeypatch.context() as patch:
        patch.setattr(fetch, "unpack", full)
        error = refused(capsys, *given)
    assert (
        f"{cache / 'cornell'}: no space left on the disk; got " in error
        and "what has come is kept" in error
    )
    assert re.search(r"bytes free, [\d,]+ needed", error)
    assert clean(cache)
    assert cli.main(given) == 0 and len(site.asked) == 1


def test_a_limit_on_the_size_of_files_is_named(site: Site, cache: Path, capsys):
    given = words("cornell", site, zipped())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        error = refused(capsys, *given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"{cache}" in error and "cannot be written: File too large" in error
    assert cli.main(given) == 0


def test_a_second_process_is_told_to_wait(site: Site, cache: Path, capsys):
    lock = cache / "cornell" / ".regard-part" / ".lock"
    lock.parent.mkdir(parents=True)
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for _ in range(2):  # the first one leaves the lock where it is
            error = refused(capsys, *words("cornell", site, zipped()))
            assert "another process is fetching it; wait for it" in error
            assert lock.exists()


def test_drafts_of_the_killed_are_swept(site: Site, cache: Path):
    parts = cache / "cornell" / ".regard-part"
    (parts / "unpacked").mkdir(parents=True)
    (parts / ".lock").touch()
    (parts / "unpacked" / "movie_lines.txt").write_text("half")
    assert cli.main(words("cornell", site, zipped())) == 0
    assert [place.name for place in cache.iterdir()] == ["cornell"]


def test_a_plan_of_other_downloads_is_not_gone_on_with(tmp_path: Path):
    """As a version of regard may have left it that fetched the same files in other archives."""
    cornell = fetch.SETS["cornell"]
    plan = {"name": "cornell", "listed": dict.fromkeys(cornell.needs, 1), "downloads": []}
    parts = tmp_path / fetch.PARTS
    parts.mkdir()
    (parts / fetch.RECORD).write_text(json.dumps(plan))
    assert not fetch._is_planned(cornell, tmp_path)


# -- mistakes---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [],
            "no data set named; regard data fetch NAME; known: cornell, dailydialog, multi30k",
        ),
        (["fsdd"], "fsdd: cannot be fetched by regard; get it from https://github.com/"),
        (["cornel"], 'no such data set; got "cornel"; did you mean "cornell"?'),
        (
            ["cornell", "--url", "/home/me/cornell.zip"],
            "--url: not an address; got /home/me/cornell.zip; it begins with",
        ),
        (
            ["cornell", "--url", "file:///etc/passwd"],
            "--url: not an address; got file:///etc/passwd",
        ),
        (["cornell", "--url", "http:///it"], "not an address"),
        (["cornell", "--url", "http://a b/"], "not an address"),
        (["cornell", "--url", "http://host:port/"], "not an address"),
        (["cornell", "--url", "http://..../"], "not an address"),
        (["cornell", "--url", "http://[::1/it"], "not an address"),
        (
            ["cornell", "--sha256", "abc"],
            "--sha256: a SHA-256 is 64 digits of 0-9 and a-f; got abc",
        ),
        (["cornell", "--out", "/"], "--out: not a folder to fetch into; got /"),
    ],
)
def test_mistakes(given: list[str], said: str, capsys):
    assert said in refused(capsys, "data", "fetch", *given)
