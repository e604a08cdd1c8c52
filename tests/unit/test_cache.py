"""A corpus on disk: what goes in comes out, once, in the right part, and never half of it."""

import errno
import json
import os
import random
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import build, disk, recipe
from regard.data import cache
from regard.data.cache import fingerprint, prepare
from regard.data.corpus import FREQUENCY
from regard.data.examples import Example, part_of
from regard.data.pairs import read_pairs
from regard.data.ragged import RaggedArray, RaggedArrayWriter
from regard.data.rules import Rules
from regard.errors import DataError, NoRoomError
from regard.tokenizers import BPE, UNKNOWN, Characters, Words, plain
from regard.train.ranks import Ranks
from regard.train.run import Prepared
from tests.tiny import Silent, memorised, pairs_file

SHARED = Path(__file__).parents[2] / "../shared/data"
EXAMPLES = [Example(f"Question {i}, please?", f"The answer is {i % 7}.") for i in range(101)]


def reader(examples=EXAMPLES):
    def read(tally):
        for example in examples:
            tally.used += 1
            yield example

    return read


def prepared(folder, examples=EXAMPLES, **settings):
    limits = {"valid": 0.2, "test": 0.1, "max_source": 50, "max_target": 50}
    for name in Rules.__dataclass_fields__.keys() & settings.keys():
        limits[name] = settings.pop(name)
    defaults = {"key": {"data": 1}, "fit": Words.fit, "rules": Rules(**limits)}
    return prepare(reader(examples), folder=folder, **(defaults | settings))


def texts(part) -> list[Example]:
    return [part.texts(i) for i in range(len(part))]


# -- ragged-----------------------------------------------------------------------------------------


@given(rows=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=7), max_size=11))
def test_ragged_rows_come_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("ragged") / "rows"
    with RaggedArrayWriter(path, np.int32) as writer:
        writer.extend(rows[:5])
        writer.extend(rows[5:])
    ragged = RaggedArray(path, np.int32)
    assert len(ragged) == len(rows)
    assert [row.tolist() for row in ragged] == rows
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    with pytest.raises(IndexError):
        ragged[len(rows)]


# -- prepare----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fit", [Words.fit, Characters.fit, partial(BPE.fit, size=300)], ids=["words", "chars", "bpe"]
)
@pytest.mark.parametrize("plain_source", [False, True])
def test_every_example_lies_in_its_part(tmp_path, fit, plain_source):
    corpus = prepared(tmp_path, fit=fit, plain_source=plain_source)
    assert sorted(texts(corpus.train) + texts(corpus.valid) + texts(corpus.test)) == sorted(
        EXAMPLES
    )
    for name in ("train", "valid", "test"):
        part = getattr(corpus, name)
        assert len(part) > 3
        for i, (source, target) in enumerate(texts(part)):
            assert isinstance(source, str)
            assert part_of(source, valid=0.2, test=0.1) == name
            asked = plain(source) if plain_source else source
            assert part.source[i].tolist() == corpus.tokenizer.encode(asked)
            assert part.target[i].tolist() == corpus.tokenizer.encode(target)
    assert corpus.tally.used == len(EXAMPLES)


def test_the_codec_sees_training_texts_only(tmp_path):
    examples = [Example(f"question{i}", f"answer{i}") for i in range(50)]
    corpus = prepared(tmp_path, examples)
    assert isinstance(corpus.tokenizer, Words)
    words = set(corpus.tokenizer.words)
    for source, target in texts(corpus.train):
        assert {source, target} <= words
    for source, target in texts(corpus.valid) + texts(corpus.test):
        assert not {source, target} & words


def test_small_chunks_change_nothing(tmp_path, monkeypatch):
    whole = prepared(tmp_path / "a")
    monkeypatch.setattr("regard.data.encode.BLOCK", 100)
    monkeypatch.setattr("regard.data.corpus.ROWS", 3)
    chunked = prepared(tmp_path / "b")
    assert texts(whole.train) == texts(chunked.train)
    assert np.array_equal(whole.train.target.values, chunked.train.target.values)
    assert np.array_equal(whole.frequency, chunked.frequency)


def test_the_second_time_nothing_is_read(tmp_path):
    first = prepared(tmp_path)

    def never(*_):
        raise AssertionError("read again")

    second = prepare(
        never,
        key={"data": 1},
        fit=never,
        folder=tmp_path,
        rules=Rules(valid=0.2, test=0.1, max_source=50, max_target=50),
    )
    assert second.tally == first.tally
    assert second.fingerprint == first.fingerprint
    assert texts(second.train) == texts(first.train)
    assert second.tokenizer.to_json() == first.tokenizer.to_json()


@pytest.mark.parametrize(
    "change", [{"key": {"data": 2}}, {"max_source": 49}, {"plain_source": True}, {"valid": 0.1}]
)
def test_another_key_or_rule_is_another_corpus(tmp_path, change):
    assert prepared(tmp_path, **change).fingerprint != prepared(tmp_path).fingerprint
    assert len(list(tmp_path.iterdir())) == 2


def test_duplicates_in_training_are_dropped(tmp_path):
    corpus = prepared(tmp_path, EXAMPLES + EXAMPLES)
    assert len(texts(corpus.train)) == len(set(texts(corpus.train)))
    assert corpus.tally.duplicates == len(corpus.train)
    assert len(corpus.valid) == 2 * len(set(texts(corpus.valid)))


def test_limits_skip_and_count(tmp_path):
    long = Example("short", "word " * 30)
    wordy = Example("one two three four five six seven eight nine ten", "ok")
    corpus = prepared(tmp_path, [*EXAMPLES, long, wordy], max_target=20, valid=0, test=0)
    assert corpus.tally.skipped == {"too many tokens": 1}
    corpus = prepared(tmp_path, [*EXAMPLES, long, wordy], max_words=9, valid=0, test=0)
    assert corpus.tally.skipped == {"too many words": 2}
    assert isinstance(corpus.tokenizer, Words)
    assert "eight" not in corpus.tokenizer.words  # the tokenizer never saw them either
    assert corpus.tally.used == len(corpus.train) == len(EXAMPLES)


def test_pairs_with_unknown_words_can_be_dropped(tmp_path):
    examples = [*EXAMPLES, Example("Question rare, please?", "Yes")]
    fit = partial(Words.fit, min_count=2)
    kept = prepared(tmp_path, examples, fit=fit)
    assert any(UNKNOWN in row for row in kept.train.source)
    dropped = prepared(tmp_path, examples, fit=fit, drop_unknown=True)
    assert not any(
        UNKNOWN in row
        for part in (dropped.train, dropped.valid, dropped.test)
        for row in part.source
    )
    assert dropped.tally.skipped["unknown word"] == len(examples) - dropped.tally.used > 0


def test_held_out_files_of_their_own(tmp_path):
    held = [Example("held", "out")]
    corpus = prepared(tmp_path, read_valid=reader(held), read_test=reader(held * 2))
    assert texts(corpus.train) == EXAMPLES
    assert texts(corpus.valid) == held
    assert texts(corpus.test) == held * 2
    assert corpus.tally.used == len(EXAMPLES) + 3


def test_nobody_trains_on_what_a_held_out_file_asks(tmp_path):
    """Prompts are the same as `part_of` has them: whatever their case and punctuation. The files
    stay as they are."""
    held = [
        Example("question 3, PLEASE", "Other words."),
        Example("Question 5, please?", "The answer is 5."),
    ]
    tested = [
        Example("Question 5, please?", "Something else."),
        Example("Question 8, please!", "Eight."),
    ]
    corpus = prepared(tmp_path, read_valid=reader(held), read_test=reader(tested))
    assert texts(corpus.train) == [
        example for i, example in enumerate(EXAMPLES) if i not in (3, 5, 8)
    ]
    assert texts(corpus.valid) == held and texts(corpus.test) == tested
    assert corpus.tally.skipped == {"also held out": 3}
    assert corpus.tally.used == len(EXAMPLES) - 3 + 4
    assert isinstance(corpus.tokenizer, Words)
    assert not {"8", "eight"} & set(corpus.tokenizer.words)  # the tokenizer never saw them either


def test_a_part_drawn_by_share_has_none_of_them_either(tmp_path):
    tested = EXAMPLES[:40]
    corpus = prepared(tmp_path, read_test=reader(tested))
    assert len(corpus.valid) > 3
    assert sorted(texts(corpus.train) + texts(corpus.valid)) == sorted(EXAMPLES[40:])


@pytest.mark.parametrize("fit", [Words.fit, partial(BPE.fit, size=300)], ids=["words", "bpe"])
def test_everything_held_out_is_said(tmp_path, fit):
    with pytest.raises(
        DataError, match=r"no usable examples to train on.*also held out 101.*hold out other ones"
    ):
        prepared(tmp_path, fit=fit, read_valid=reader())


def test_what_is_left_out_is_not_bad(tmp_path):
    """A reader complains of a file when most of its rows are bad; those that we leave out are
    not."""
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"prompt {i}\treply {i}\n{'broken' if i % 2 else ''}\n" for i in range(20))
    )
    corpus = prepare(
        lambda tally: read_pairs(tmp_path / "pairs.tsv", tally=tally),
        key={},
        fit=Words.fit,
        folder=tmp_path / "cache",
        rules=Rules(valid=0, test=0, max_source=9, max_target=9),
        read_valid=reader([Example(f"prompt {i}", "held out") for i in range(19)]),
    )
    assert corpus.tally.skipped == {"wrong field count": 10, "also held out": 19}
    assert texts(corpus.train) == [Example("prompt 19", "reply 19")]


# -- faults-----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", [Words.fit, partial(BPE.fit, size=300)], ids=["words", "bpe"])
def test_what_the_reader_complains_of_arrives(tmp_path, fit):
    (tmp_path / "pairs.tsv").write_text("prompt\treply\n")
    with pytest.raises(DataError, match="no usable examples in .*pairs.tsv"):
        prepare(
            lambda tally: read_pairs(tmp_path / "pairs.tsv", tally=tally),
            key={},
            fit=fit,
            folder=tmp_path / "cache",
            rules=Rules(valid=0, test=0, max_source=9, max_target=9),
        )


def test_nothing_left_to_train_on(tmp_path):
    with pytest.raises(DataError, match=r"no usable examples to train on.*too many tokens 101"):
        prepared(tmp_path, max_target=1)
    with pytest.raises(
        DataError, match=r"data: nothing is left to train on; got valid 0\.5, test 0\.5"
    ):
        prepared(tmp_path, valid=0.5, test=0.5)
    assert not list(tmp_path.iterdir())


def test_a_crash_leaves_nothing(tmp_path):
    def broken(tally):
        yield from EXAMPLES[:50]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(
            broken,
            key={},
            fit=Words.fit,
            folder=tmp_path,
            rules=Rules(valid=0, test=0, max_source=9, max_target=9),
        )
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_leaves_is_never_used(tmp_path):
    corpus = prepared(tmp_path)
    final = next(tmp_path.iterdir())
    half = tmp_path / f".{final.name}-abc"
    half.mkdir()
    (half / "tokenizer.json").write_text("{")
    assert texts(prepared(tmp_path).train) == texts(corpus.train)


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest", "tokenizer", "stranger"])
def test_a_damaged_cache_is_made_anew(tmp_path, damage):
    before = texts(prepared(tmp_path).train)
    final = next(tmp_path.iterdir())
    values, manifest = final / "train-source.values", final / "manifest.json"
    if damage == "cut":
        values.write_bytes(values.read_bytes()[:-4])
    elif damage == "missing":
        values.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-9])
    elif damage == "tokenizer":
        tokenizer = final / "tokenizer.json"
        tokenizer.write_text("!" + tokenizer.read_text()[1:])
    else:
        manifest.write_text(json.dumps({"fingerprint": "other"}))
    assert texts(prepared(tmp_path).train) == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_flipped_bit_anywhere_is_found(tmp_path, caplog):
    def content(folder):
        return {file.name: file.read_bytes() for file in folder.iterdir()}

    first = prepared(tmp_path)
    final = next(tmp_path.iterdir())
    before, draw = content(final), random.Random(5)
    assert first.tally == prepared(tmp_path).tally and not caplog.messages
    for name, whole in before.items():
        bad = bytearray(whole)
        bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        (final / name).write_bytes(bad)
        caplog.clear()
        prepared(tmp_path)
        assert content(final) == before
        (warning,) = caplog.messages
        assert "\n" not in warning and warning.startswith(
            f"{final}: this cached corpus is not trusted ("
        )
        assert name in warning or name == "manifest.json"


def test_sizes_alone_are_not_trusted(tmp_path, caplog):
    """What a cache was checked by before it had sums."""
    prepared(tmp_path)
    manifest = next(tmp_path.iterdir()) / "manifest.json"
    old = json.loads(manifest.read_text())
    old["files"] = {name: (manifest.parent / name).stat().st_size for name in old["files"]}
    manifest.write_text(json.dumps(old))
    prepared(tmp_path)
    assert "not what was written" in caplog.text


def test_a_second_writer_is_harmless(tmp_path):
    inner = []

    def fit(stream):
        if not inner:  # while the first prepares, a second one starts and finishes
            inner.append(prepared(tmp_path))
        return Words.fit(stream)

    outer = prepared(tmp_path, fit=fit)
    assert texts(outer.train) == texts(inner[0].train)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_lock_that_was_removed_is_made_anew(tmp_path, caplog):
    """Who prepared the corpus removes its folder; one that waited for it locks another file than
    one that comes now."""
    work = tmp_path / ".corpus-work"
    first = cache._locked(work, tmp_path / "corpus")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache._locked, work, tmp_path / "corpus")
        while "waiting for it" not in caplog.text:
            time.sleep(0.001)
        shutil.rmtree(work)
        first.close()
        with waiting.result() as lock:
            assert os.path.samestat(os.fstat(lock.fileno()), (work / cache.LOCK).stat())


def test_a_process_of_another_machine_may_have_the_same_pid(tmp_path, caplog):
    """Pods often have."""
    final = tmp_path / "corpus"
    work = tmp_path / ".corpus-work"
    other = cache._locked(work, final)
    other.write(str(os.getpid()))
    other.flush()

    def folder() -> Path:
        with cache._work_folder(final) as chosen:
            return chosen

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(folder)
        while "waiting for it" not in caplog.text and not waiting.done():
            time.sleep(0.001)
        other.close()
        assert waiting.result() == work


@pytest.mark.parametrize("change", ["text", "date"])
def test_data_that_changes_while_it_is_read(tmp_path, change):
    pairs = pairs_file(tmp_path)
    before = pairs.read_text()

    def read(tally):
        yield from read_pairs(pairs, tally=tally)
        pairs.write_text(before if change == "date" else f"More\tthan before\n{before}")
        os.utime(pairs, ns=(1, 1))

    snapshot = cache.Snapshot([tmp_path])
    settings = {
        "key": {"content": snapshot.fingerprint},
        "fit": Words.fit,
        "folder": tmp_path.with_name(f"{tmp_path.name}-cache"),
        "rules": Rules(valid=0, test=0, max_source=9, max_target=9),
        "data": snapshot,
    }
    if change == "date":
        assert len(prepare(read, **settings).train) > 0
        return
    with pytest.raises(DataError, match=r"pairs.tsv: the data changed while it was prepared"):
        prepare(read, **settings)
    assert not list(settings["folder"].iterdir())


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RaggedArrayWriter, "append", full)
    with pytest.raises(
        NoRoomError, match="no space left on the disk; got .* bytes free, at least [1-9].* needed"
    ):
        prepared(tmp_path)
    assert not list(tmp_path.iterdir())


# -- what else--------------------------------------------------------------------------------------


def test_document_frequency(tmp_path):
    examples = [Example(str(i), text) for i, text in enumerate(["a a b", "a", "c b b", "a c"])]
    corpus = prepared(tmp_path, examples, valid=0, test=0)
    assert sorted(corpus.frequency[corpus.frequency > 0].tolist()) == [2, 2, 3]
    assert_counts_targets(corpus)


def assert_counts_targets(corpus):
    """The frequencies stored with a corpus are those of its training targets."""
    counts = corpus.frequency
    assert counts.shape == (corpus.tokenizer.size,) and counts.dtype == np.int64
    expected = Counter(token for row in corpus.train.target for token in set(row.tolist()))
    assert expected
    assert {token: count for token, count in enumerate(counts.tolist()) if count} == expected


@pytest.mark.parametrize("damage", ["too long", "held out", "repeated"])
def test_document_frequency_is_of_what_is_written(tmp_path, damage, monkeypatch):
    monkeypatch.setattr("regard.data.encode.BLOCK", 300)
    others = {
        "too long": [Example(f"long {i}", "again and again " * 20) for i in range(5)],
        "held out": [Example("Question 3, please?", f"Other words {i}.") for i in range(5)],
        "repeated": EXAMPLES[:30],
    }
    assert_counts_targets(prepared(tmp_path, EXAMPLES + others[damage]))


def test_a_cache_of_an_earlier_version_is_made_anew(tmp_path, caplog):
    """It has no frequencies, but the same fingerprint: runs that use it can be resumed."""
    first = prepared(tmp_path)
    (final,) = tmp_path.iterdir()
    (final / FREQUENCY).unlink()
    manifest = json.loads((final / "manifest.json").read_text())
    del manifest["files"][FREQUENCY]
    (final / "manifest.json").write_text(json.dumps(manifest))
    second = prepared(tmp_path)
    assert "an earlier version prepared it" in caplog.text
    assert second.fingerprint == first.fingerprint
    assert np.array_equal(second.frequency, first.frequency)
    assert_counts_targets(second)


def test_a_cache_of_an_earlier_version_is_not_opened_unchecked(tmp_path, monkeypatch):
    """Another machine of the same training prepares its own anew."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load("chat-gru", memorised(pairs_file(tmp_path)))
    made = build.corpus(chosen)
    opened = build.opened_corpus(chosen, made.fingerprint, check=False)
    assert opened is not None and np.array_equal(opened.frequency, made.frequency)
    (tmp_path / "cache" / made.fingerprint[:32] / FREQUENCY).unlink()
    assert build.opened_corpus(chosen, made.fingerprint, check=False) is None


def test_a_damaged_cache_of_another_machine_is_made_anew(tmp_path, monkeypatch, caplog):
    """Its first process checks it. The others open it when that one has."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    chosen = recipe.load("chat-gru", memorised(pairs_file(tmp_path)))
    original = build.corpus(chosen)
    file = tmp_path / "cache" / original.fingerprint[:32] / "train-target.values"
    content = file.read_bytes()

    class Other(Ranks):
        is_leader = False

        def __init__(self, is_first_here: bool):
            self.is_first_here = is_first_here

        def lead(self, action):
            return original.fingerprint

        def wait_for_all(self, why, noted):
            if not self.is_first_here:
                file.unlink()
                file.write_bytes(content)  # the first process of the machine has made it anew

    for is_first_here in (True, False):
        file.unlink()
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        prepared = Prepared(chosen, tmp_path / "run", resume=False, anyway=False)
        corpus = prepared.corpus(Other(is_first_here), Silent())
        assert corpus.train.target.values.tobytes() == content
        assert file.read_bytes() == content
    assert caplog.text.count("train-target.values is not what was written") == 1


def test_fingerprint_is_of_the_contents(tmp_path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    before = fingerprint([tmp_path / "a", tmp_path / "b"])
    assert fingerprint([tmp_path]) == before
    assert fingerprint([tmp_path / "b", tmp_path / "a"]) != before
    (tmp_path / "a").write_text("onet")
    (tmp_path / "b").write_text("wo")
    assert fingerprint([tmp_path]) != before
    with pytest.raises(DataError, match="cannot be read"):
        fingerprint([tmp_path / "c"])


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
def test_the_usual_small_setting_on_real_pairs(tmp_path):
    pairs = SHARED / "cornell_pairs/pairs.tsv"
    corpus = prepare(
        lambda tally: read_pairs(pairs, tally=tally),
        key={"content": fingerprint([pairs])},
        fit=partial(Words.fit, min_count=3),
        folder=tmp_path,
        rules=Rules(
            valid=0.05,
            test=0.05,
            max_source=40,
            max_target=40,
            max_words=9,
            drop_unknown=True,
            plain_source=True,
        ),
    )
    assert len(corpus.train) > 5000
    assert corpus.tally.used == len(corpus.train) + len(corpus.valid) + len(corpus.test)
    asked = [
        {plain(str(example.source)) for example in texts(part)}
        for part in (corpus.train, corpus.valid, corpus.test)
    ]
    assert not asked[0] & asked[1]
    assert not asked[0] & asked[2]
    assert not asked[1] & asked[2]
    example = corpus.valid.texts(0)
    assert corpus.tokenizer.decode(corpus.valid.target[0]).lower() == example.target.lower()


def test_drafts_of_killed_processes_are_removed_after_a_day(tmp_path: Path):
    names = [f".{'a' * 32}-abcd_123", f".{'b' * 32}-abcd_123", ".mine-abcd1234", f"{'a' * 32}"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens").write_bytes(b"half")
    (tmp_path / f".{'c' * 32}-abcd_123").symlink_to(tmp_path / ".mine-abcd1234")
    day_ago = time.time() - disk.OLD - 60
    for name in (names[0], *names[2:]):
        for place in (tmp_path / name / "tokens", tmp_path / name):
            os.utime(place, (day_ago, day_ago))
    disk.remove_old_folders(tmp_path, cache._DRAFT)
    left = {place.name for place in tmp_path.iterdir()}
    assert left == {*names[1:], f".{'c' * 32}-abcd_123"}
    assert (tmp_path / ".mine-abcd1234" / "tokens").exists()


def test_the_draft_of_a_process_that_was_suspended_for_a_day_stays(tmp_path: Path):
    day_ago = time.time() - disk.OLD - 60
    drafts = [tmp_path / f".{letter * 32}-work" for letter in "ab"]
    for draft in drafts:
        draft.mkdir()
        (draft / cache.LOCK).touch()
        for place in (draft / cache.LOCK, draft):
            os.utime(place, (day_ago, day_ago))
    with disk.lock_file(drafts[0] / cache.LOCK) as lock:
        assert lock is not None
        disk.remove_old_folders(tmp_path, cache._DRAFT, lock=cache.LOCK)
    assert list(tmp_path.iterdir()) == drafts[:1]


def test_a_writer_that_cannot_begin_leaves_no_file_open(tmp_path):
    (tmp_path / "rows.ends").mkdir()
    writer = RaggedArrayWriter(tmp_path / "rows", np.int32)
    with pytest.raises(IsADirectoryError), writer:
        pass
    assert writer._values._file.closed
