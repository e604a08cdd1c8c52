"""Corpora in many shards: any number of processes, a kill in the middle, every way to pack them."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from regard import build, cli, disk
from regard.data import cache, encode, hashes, lines, packed, places, workers
from regard.data.cache import prepare
from regard.data.dialogues import read_dialogues
from regard.data.hashes import HashSet, first_places
from regard.data.inspect import inspect
from regard.data.lines import Tally, block_lines, read_blocks, read_lines
from regard.data.pairs import read_pairs
from regard.data.progress import reporting_to
from regard.data.rules import Rules
from regard.data.sentences import read_text
from regard.data.workers import WorkerEnded, Workers
from regard.errors import DataError, InputError
from regard.runs import new
from regard.tokenizers import BPE, Fit
from tests.tiny import memorised, pairs_file

ROWS = [
    {"prompt": f"Question {i % 307} of the day, please?", "reply": f"Answer {i % 13}, number {i}."}
    for i in range(401)
]
RULES = Rules(valid=0.1, test=0.1, max_source=30, max_target=30)
FITS = {"words": Fit("words", {"min_count": 2}), "bpe": Fit("bpe", {"size": 300})}


@pytest.fixture
def small(monkeypatch):
    """Shards of a few dozen examples, and other processes from the first one on."""
    monkeypatch.setattr(encode, "BLOCK", 2048)
    monkeypatch.setattr(workers, "ALONE", 0)


def json_lines(rows=ROWS) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json_lines() + "broken\n" + json_lines(ROWS[:50]))
    return path


def prepared(read, folder: Path, fit="words", *, count=1, turns=False, **settings):
    chosen = FITS[fit]
    if turns:
        chosen = Fit("words", {"turns": True})
    return prepare(read, key={}, fit=chosen, folder=folder, rules=RULES, workers=count, **settings)


def files_of(folder: Path) -> dict[str, bytes]:
    (final,) = (path for path in folder.iterdir() if path.is_dir())
    return {file.name: file.read_bytes() for file in final.iterdir()}


# -- processes--------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", FITS)
def test_the_number_of_processes_changes_nothing(tmp_path, pairs, small, fit, monkeypatch):
    def read(tally):
        return read_pairs(pairs, tally=tally)

    results = []
    for count in (1, 2, 4):
        corpus = prepared(read, tmp_path / str(count), fit, count=count)
        assert corpus.tally.skipped == {"not JSON": 1} and corpus.tally.duplicates > 0
        results.append(files_of(tmp_path / str(count)))
    assert results[0] == results[1] == results[2]
    monkeypatch.setattr(encode, "BLOCK", 1 << 22)
    prepared(read, tmp_path / "whole", fit)
    assert files_of(tmp_path / "whole") == results[0]  # nor does the size of a shard


def test_rows_of_csv_and_lines_of_text_go_to_the_workers(tmp_path, small, monkeypatch):
    """Quoted cells with line breaks, a quote that does not close, and plain text."""
    table = tmp_path / "pairs.csv"
    cells = [f'"Is {i}, or\n{i + 1}, right?","Yes, ""{i}"" is."\n' for i in range(301)]
    table.write_text("prompt,reply\n" + "".join(cells) + 'x,"never closed\n' + "a,b\n" * 60)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"This is sentence {i}. It has a {i % 7} in it.\n" for i in range(301)))
    readers = {
        "csv": lambda tally: read_pairs(table, tally=tally),
        "text": lambda tally: read_text(text, tally=tally),
    }
    steps = []
    honest = workers.work
    monkeypatch.setattr(
        workers, "work", lambda *task: steps.append(task[0]["step"]) or honest(*task)
    )
    for name, read in readers.items():
        for count in (1, 2):
            corpus = prepared(read, tmp_path / f"{name}-{count}", "bpe", count=count)
        examples = [*map(corpus.train.texts, range(len(corpus.train)))]
        assert len(examples) > 200 and corpus.tally.used > 250
        monkeypatch.setattr(encode, "BLOCK", 1 << 22)
        prepared(read, tmp_path / f"{name}-whole", "bpe")
        monkeypatch.setattr(encode, "BLOCK", 2048)
        whole = files_of(tmp_path / f"{name}-whole")
        assert files_of(tmp_path / f"{name}-1") == files_of(tmp_path / f"{name}-2") == whole
        if name == "csv":
            assert corpus.tally.skipped["unclosed quote"] == 1
            assert ("Is 7, or 8, right?", 'Yes, "7" is.') in examples
    assert steps.count("pack_rows") > 5 and steps.count("pack_lines") > 5


def test_dialogues_with_histories_in_shards(tmp_path, small, monkeypatch):
    talks = tmp_path / "talks.jsonl"
    dialogues = [["Hello.", f"Turn {i}a", "Thank you.", f"Turn {i}c"] for i in range(211)]
    talks.write_text("\n".join(map(json.dumps, dialogues)))

    def read(tally):
        return read_dialogues(talks, tally=tally, turns=3)

    corpus = prepared(read, tmp_path / "shards", count=2, turns=True, dialogues=True)
    assert corpus.tally.skipped["also held out"] > 0
    monkeypatch.setattr(encode, "BLOCK", 1 << 22)
    prepared(read, tmp_path / "whole", turns=True, dialogues=True)
    assert files_of(tmp_path / "shards") == files_of(tmp_path / "whole")


def test_every_step_reports_its_progress(tmp_path, pairs):
    """That of byte-pair encoding takes its texts in a thread of the library."""
    steps = []
    with reporting_to(lambda step, done, total: steps.append(step)):
        prepared(lambda tally: read_pairs(pairs, tally=tally), tmp_path / "cache", "bpe")
    assert list(dict.fromkeys(steps)) == [
        "reading",
        "finding duplicates",
        "fitting the tokenizer",
        "tokenizing",
        "writing",
    ]


def test_few_shards_start_no_process(tmp_path, pairs, monkeypatch):
    def never():
        raise AssertionError("a process was started")

    monkeypatch.setattr(workers, "_started", never)
    prepared(lambda tally: read_pairs(pairs, tally=tally), tmp_path / "cache", count=2)


def test_a_worker_that_is_killed_is_named(tmp_path, pairs, small, monkeypatch):
    started = workers._started

    def doomed():
        process = started()
        process.kill()
        return process

    monkeypatch.setattr(workers, "_started", doomed)
    with pytest.raises(DataError, match=r"pid \d+: a process that prepares the corpus ended"):
        prepared(lambda tally: read_pairs(pairs, tally=tally), tmp_path / "cache", count=2)


def test_a_worker_that_is_killed_while_it_answers_is_named(monkeypatch):
    program = "import sys; sys.stdin.buffer.readline(); print('{\"counts\": [', end='')"
    command = [sys.executable, "-S", "-c", program]

    def doomed():
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(workers, "_started", doomed)
    with (
        Workers(2) as pool,
        pytest.raises(WorkerEnded, match="a process that prepares the corpus ended"),
    ):
        pool._send(({"step": "count"}, b""))


def test_the_end_does_not_wait_for_a_worker_that_is_just_started(monkeypatch):
    """At a Ctrl-C."""
    starting = threading.Event()

    def slow():
        starting.set()
        time.sleep(0.2)
        command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(workers, "_started", slow)
    pool = Workers(2)
    pending = pool._submit(({"step": "count"}, b""))
    starting.wait()
    ending = threading.Thread(target=pool.__exit__, daemon=True)
    ending.start()
    ending.join(timeout=60)
    try:
        assert not ending.is_alive()
    finally:
        for process in pool._processes:
            process.kill()
        ending.join()
    assert isinstance(pending.exception(), WorkerEnded)
    with pytest.raises(CancelledError):
        pool._start()


def test_the_number_of_workers_is_checked(monkeypatch):
    monkeypatch.setenv("REGARD_WORKERS", "many")
    with pytest.raises(InputError, match="REGARD_WORKERS: must be a number from 1 to 1024"):
        workers.worker_count()


# -- kills------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from regard.data import encode, workers
from regard.data.pairs import read_pairs
from regard.data.progress import reporting_to
from tests.unit.test_preparation import prepared

encode.BLOCK = 2048
pairs, folder, step, at = sys.argv[1:]

def die(now, done, total):
    suffix = "tokens" if now == "tokenizing" else "examples"
    count = len(list(Path(folder).glob(f".*-work/*.{suffix}")))
    if now == step and count >= int(at):
        os.kill(os.getpid(), signal.SIGKILL)

with reporting_to(die):
    prepared(lambda tally: read_pairs(Path(pairs), tally=tally), Path(folder))
"""


@pytest.mark.parametrize(("step", "at"), [("reading", 5), ("tokenizing", 4), ("writing", 1)])
def test_a_preparation_that_was_killed_goes_on(tmp_path, pairs, small, monkeypatch, step, at):
    with pairs.open("ab") as file:
        file.write(b" " * (1 << 19) + b"\n")  # pieces are of 64 KB: it is read in several
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", KILLED, str(pairs), str(folder), step, str(at)]
    root = Path(__file__).parents[2]
    died = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
    assert died.returncode == -signal.SIGKILL
    suffix = "examples" if step == "reading" else "tokens"
    (work,) = folder.glob(".*-work")
    there = {file.name for file in work.glob(f"*.{suffix}")}
    assert len(there) >= at

    made_again = []
    honest = workers.work

    def counting(task, payload):
        made_again.append(Path(task.get("out", "")).name)
        return honest(task, payload)

    monkeypatch.setattr(workers, "work", counting)
    prepared(lambda tally: read_pairs(pairs, tally=tally), folder)
    assert not there & set(made_again)
    assert not list(folder.glob(".*"))
    monkeypatch.setattr(workers, "work", honest)
    prepared(lambda tally: read_pairs(pairs, tally=tally), tmp_path / "whole")
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_a_damaged_shard_is_made_again(tmp_path, pairs, small):
    def stop(step, done, total):
        if step == "tokenizing" and done == 5:
            raise KeyboardInterrupt

    def read(tally):
        return read_pairs(pairs, tally=tally)

    with pytest.raises(KeyboardInterrupt), reporting_to(stop):
        prepared(read, tmp_path / "cache")
    (work,) = (tmp_path / "cache").glob(".*-work")
    for name in ("read-0-000001.examples", "read-0-000002.tokens"):
        content = bytearray((work / name).read_bytes())
        content[-20] ^= 4
        (work / name).write_bytes(content)
    prepared(read, tmp_path / "cache")
    prepared(read, tmp_path / "whole")
    assert files_of(tmp_path / "cache") == files_of(tmp_path / "whole")


# -- opening----------------------------------------------------------------------------------------


def test_a_large_corpus_is_read_whole_only_after_it_changed(tmp_path, pairs, monkeypatch):
    def opened():
        digests.clear()
        return prepared(lambda tally: read_pairs(pairs, tally=tally), tmp_path / "cache")

    digests: list[str] = []
    honest = disk.digest
    monkeypatch.setattr(disk, "digest", lambda path: digests.append(path.name) or honest(path))
    monkeypatch.setattr("regard.data.sums.BLOCK", 512)
    monkeypatch.setattr(cache, "BLOCK", 512)
    monkeypatch.setattr(cache, "CHECKED_BYTES", 4096)
    opened()
    opened()
    assert "train-target.values" not in digests and "tokenizer.json" in digests

    (values,) = (tmp_path / "cache").glob("*/train-target.values")
    content = bytearray(values.read_bytes())
    content[-1] ^= 1
    before = values.stat()
    values.write_bytes(content)
    os.utime(values, ns=(before.st_atime_ns, before.st_mtime_ns))  # its other date tells
    opened()
    assert "train-target.values" in digests
    content[-1] ^= 1
    assert values.read_bytes() == content


def test_damage_to_the_disk_is_found_by_blocks(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr("regard.data.sums.BLOCK", 512)
    monkeypatch.setattr(cache, "BLOCK", 512)
    monkeypatch.setattr(cache, "CHECKED_BYTES", 1 << 16)
    prepared(lambda tally: read_pairs(pairs, tally=tally), tmp_path / "cache")
    final = next((tmp_path / "cache").iterdir())
    manifest = json.loads((final / "manifest.json").read_text())
    name = "train-target.values"
    manifest["blocks"][name][1] = "0" * 64  # as if the block were another
    monkeypatch.setattr(cache, "_read_stamps", lambda _: stamps)
    stamps = {file: cache._stamp(final / file) for file in manifest["files"]}
    monkeypatch.setattr(cache, "CHECKED_BYTES", sum(stamp[0] for stamp in stamps.values()) - 1)
    chosen = [(name, 1)]
    monkeypatch.setattr(cache.random, "sample", lambda blocks, count: chosen)
    damage = cache._damage(final, manifest["files"], manifest["blocks"])
    assert damage == f"{name} is not what was written"


def test_the_digest_of_a_large_file_is_remembered_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "REMEMBERED", 1)
    file = tmp_path / "data"
    file.write_text("one")
    monkeypatch.setattr(cache.time, "time_ns", lambda: 1 << 62)
    first = cache.fingerprint([file])
    with monkeypatch.context() as patch:
        patch.setattr(disk, "digest", None)
        assert cache.fingerprint([file]) == first
    file.write_text("two")
    assert cache.fingerprint([file]) != first


# -- packed files-----------------------------------------------------------------------------------


def write_parquet(path: Path, rows=ROWS, **settings) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=150, **settings)


def packed_as(folder: Path, form: str) -> Path:
    text = json_lines().encode()
    if form == "gz":
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(text))
        return folder / "a.jsonl.gz"
    if form == "zst":
        half = len(text) // 2
        frames = zstandard.compress(text[:half]) + zstandard.compress(text[half:])
        (folder / "a.jsonl.zst").write_bytes(frames)
        return folder / "a.jsonl.zst"
    if form == "parquet":
        write_parquet(folder / "a.parquet")
        return folder / "a.parquet"
    if form == "pattern":
        for i in range(3):
            part = json_lines(ROWS[150 * i : 150 * (i + 1)]).encode()
            (folder / f"part-{i}.jsonl.gz").write_bytes(gzip.compress(part))
        return folder / "part-*.jsonl.gz"
    cells = ["\t".join(row.values()) for row in ROWS]
    for i in range(3):
        rows = ["prompt\treply", *cells[150 * i : 150 * (i + 1)]]
        (folder / f"part-{i}.tsv").write_text("\n".join(rows))
    return folder / "part-*.tsv"


@pytest.mark.parametrize("form", ["gz", "zst", "parquet", "pattern", "tables"])
def test_packed_data_goes_through_every_door(tmp_path, monkeypatch, form):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = packed_as(tmp_path, form)
    assert inspect(path)["usable"] == len(ROWS)
    examples = [tuple(row.values()) for row in ROWS]
    assert list(read_pairs(path, tally=Tally())) == examples
    recipe = new("chat-attention", data=path).recipe()  # as train --data
    assert recipe.data.paths() == {"path": str(path)}
    corpus = build.corpus(recipe)
    assert corpus.tally.used == len(ROWS)
    other = build.other(recipe, corpus.tokenizer, path)  # as evaluate --data
    assert len(other.train) == len(ROWS)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_standard_input(tmp_path, pack):
    environment = os.environ | {"REGARD_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-m", "regard", "data", "inspect", "-", "--json"],
        input=pack(json_lines().encode()),
        env=environment,
        capture_output=True,
        check=True,
    )
    assert json.loads(result.stdout)["usable"] == len(ROWS)
    assert not list((tmp_path / "cache").iterdir())


def test_standard_input_that_has_nothing(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "regard", "data", "inspect", "-"],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"REGARD_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and "-: standard input is empty; send it" in result.stderr


def send(monkeypatch, content: bytes) -> None:
    """As the standard input of a new process."""
    monkeypatch.setattr(places, "_copies", {})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_training_and_evaluating_standard_input(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    content = pairs_file(tmp_path).read_bytes()
    changes = [change for change in memorised(tmp_path) if not change.startswith("data.path")]
    sets = [word for change in changes for word in ("--set", change)]
    run = str(tmp_path / "run")
    send(monkeypatch, content)
    words = ["train", "chat-gru", "--data", "-", *sets, "--set", "encoder.width=8"]
    assert cli.main([*words, "--steps", "2", "--out", run]) == 0, capsys.readouterr().err
    send(monkeypatch, content)
    assert cli.main(["train", "--resume", run, "--data", "-", "--steps", "3"]) == 0
    send(monkeypatch, content)
    assert cli.main(["evaluate", run, "--data", "-"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    send(monkeypatch, b"")
    assert cli.main(["train", "--resume", run, "--data", "-", "--steps", "4"]) == 2
    assert "-: standard input is empty" in capsys.readouterr().err


def test_standard_input_is_not_read_by_processes_that_may_be_started_again(monkeypatch, tmp_path):
    """One that is killed while it reads leaves the rest of it to the next one."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    send(monkeypatch, b"One\tTwo\n")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(DataError, match=r"can be read once.*got --max-restarts 3; put the data in"):
        places.files_at("-")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert [file.read_bytes() for file in places.files_at("-")] == [b"One\tTwo\n"]


def test_only_old_copies_of_standard_input_are_removed(tmp_path):
    names = [".stdin-1", ".stdin-2", "stdin-3", ".stdin-x"]
    for name in names:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / ".stdin-2")
    disk.remove_old_folders(tmp_path, places._SPOOL)
    assert {path.name for path in tmp_path.iterdir()} == set(names[1:])


@pytest.mark.parametrize(("form", "what"), [("gz", "gzip"), ("zst", "Zstandard")])
@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_damaged_file_is_named(tmp_path, form, what, damage):
    path = packed_as(tmp_path, form)
    content = path.read_bytes()
    changed = {
        "cut": content[: len(content) - 9],
        "flipped": content[:40] + bytes(b ^ 0x55 for b in content[40:60]) + content[60:],
        "other": b"<html>not found</html>",
    }
    path.write_bytes(changed[damage])
    with pytest.raises(DataError, match=rf"a\.jsonl\.{form}: not a whole {what} file"):
        list(read_pairs(path, tally=Tally()))


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = packed_as(tmp_path, "parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\.parquet: not a whole Parquet file"):
        inspect(path)


def test_parquet_without_the_columns(tmp_path):
    write_parquet(tmp_path / "a.parquet", [{"one": "Some text here.", "n": 1}] * 5)
    with pytest.raises(DataError, match="no such column"):
        list(read_pairs(tmp_path / "a.parquet", source_column="prompt", tally=Tally()))
    with pytest.raises(DataError, match="it is not plain which column is"):
        inspect(tmp_path / "a.parquet")


def test_parquet_of_conversations_and_of_large_groups(tmp_path, monkeypatch):
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yo!"}]
    write_parquet(tmp_path / "a.parquet", [{"messages": messages}] * 5)
    assert inspect(tmp_path / "a.parquet")["kind"] == "dialogues"
    monkeypatch.setattr(packed, "LARGEST_GROUP", 10)
    with pytest.raises(DataError, match="a row group is too large to be read; got .* bytes"):
        list(read_pairs(tmp_path / "a.parquet", tally=Tally()))


@pytest.mark.parametrize(
    ("form", "command"), [("zst", r"regard\[zstd\]"), ("parquet", r"regard\[parquet\]")]
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, form, command):
    path = packed_as(tmp_path, form)

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(packed, "import_module", missing)
    with pytest.raises(DataError, match=rf"is missing, which reads this file; pip .*{command}"):
        inspect(path)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_is_not_held(tmp_path, pack):
    suffix = "gz" if pack is gzip.compress else "zst"
    path = tmp_path / f"pairs.tsv.{suffix}"
    path.write_bytes(pack(b"a\tb\n" + b"x" * (1 << 27) + b"\nc\td\n"))
    for read in (
        lambda tally: sum(1 for _ in read_lines(path, tally)),
        lambda tally: sum(len(block) for block in read_blocks(path, tally, str, 1 << 20)),
    ):
        tally = Tally()
        tracemalloc.start()
        read(tally)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert tally.skipped == {"line too long": 1}
        assert peak < 100e6


def test_files_of_one_table_have_the_same_columns(tmp_path):
    for i, names in enumerate(("prompt\treply", "reply\tprompt")):
        (tmp_path / f"part-{i}.tsv").write_text(f"{names}\nA text.\tAnother.\n")
    with pytest.raises(DataError, match=r"part-1\.tsv: files of one table have different columns"):
        list(read_pairs(tmp_path / "part-*.tsv", tally=Tally()))
    with pytest.raises(DataError, match=r"none-\*\.tsv: no file matches"):
        inspect(tmp_path / "none-*.tsv")


# -- laws-------------------------------------------------------------------------------------------


@given(
    content=st.binary(max_size=200)
    | st.lists(st.sampled_from([b"a", b"\r", b"\n", b"x" * 9])).map(b"".join),
    size=st.integers(1, 40),
)
def test_blocks_have_the_lines_of_a_file(tmp_path_factory, content, size):
    path = tmp_path_factory.mktemp("blocks") / "file"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "LINE", 20)
        patch.setattr(packed, "PIECE", 7)
        whole, parts = Tally(), Tally()
        expected = list(read_lines(path, whole))
        blocks = list(read_blocks(path, parts, lambda place: None, size))
        found = [line for block in blocks for line in block_lines(block, parts)]
    assert found == expected and parts == whole


@given(
    st.lists(st.lists(st.integers(0, 9).map(lambda n: n * (2**64 // 10)), max_size=9), max_size=5)
)
def test_first_places(columns):
    arrays = [np.array(column, np.uint64) for column in columns]
    flat = [value for column in columns for value in column]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "PARTITION", 3)
        patch.setattr(hashes, "BUFFER", 4)
        assert first_places(arrays).tolist() == [flat.index(value) for value in flat]
        assert hashes.distinct(arrays).tolist() == sorted(set(flat))
        known = HashSet()
        assert [known.add(value) for value in flat] == [
            value not in flat[:i] for i, value in enumerate(flat)
        ]
        assert len(known) == len(set(flat))


TOKENIZER = BPE.fit([row[side] for row in ROWS for side in row], size=300)


@given(st.lists(st.text() | st.text("ab 1'.é\t\xa0中\0"), max_size=9))
def test_many_texts_are_encoded_as_each_is(texts):
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.tokenizers.bpe.MANY", 0)
        patch.setattr("regard.tokenizers.word_table.MOST_WORDS", 5)
        assert TOKENIZER.encode_many(texts) == [TOKENIZER.encode(text) for text in texts]


def test_every_space_and_mark_is_encoded_in_many_texts_as_in_one():
    """A word that took a line break or its neighbour's first letter into a token would differ."""
    tokenizer = BPE.fit(["\n\n a\n b'\n ...\n"] * 3, size=300)
    characters = [chr(code) for code in (*range(0x3100), 0xFEFF, 0x1F600)]
    texts = [text for c in characters for text in (c, f"a{c}", f"a {c}b", f"{c} {c}")]
    assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]


# -- size-------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_large_corpus_in_little_memory(tmp_path):
    """The size is REGARD_LONG_PAIRS; 10 million pairs are about 1.3 GB, and take minutes."""
    from bench.preparation import check_resume, generate, run

    count = int(os.environ.get("REGARD_LONG_PAIRS", "1000000"))
    corpus = tmp_path / "pairs.jsonl"
    generate(corpus, count, seed=1)
    record = run("ours", corpus, tmp_path / "once", processes=2)
    assert record["peak_megabytes"] < 1500
    resumed = check_resume(corpus, tmp_path, processes=2)
    assert resumed["killed"] and resumed["shards_kept"] > 0 and resumed["same_files"]
