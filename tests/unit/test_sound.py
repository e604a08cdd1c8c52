"""Sounds that are whole, and sounds that are not: each ends in one line, and training counts it
and goes on."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from regard.data.examples import Item
from regard.data.inspect import inspect
from regard.data.lines import Tally
from regard.data.recordings import (
    Hearing,
    Part,
    Row,
    _in_order,
    read_fsdd,
    read_ljspeech,
    read_sounds,
    sounds_files,
)
from regard.data.sound import (
    read_sound,
)
from regard.errors import DataError, InputError, printable

TONE = (np.sin(np.arange(4000) * 0.3) * 0.5).astype(np.float32)
HOW = Hearing(8000, 5.0)


def wav(
    folder: Path, name: str = "a.wav", samples: np.ndarray = TONE, rate: int = 8000, **more
) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, **more)
    return path


def said(path: Path, **more) -> str:
    """What `ask` would say of it."""
    with pytest.raises(InputError) as caught:
        read_sound(path, **({"rate": 8000, "max_seconds": 5.0} | more))
    message = str(caught.value)
    assert printable(path) in message and "\n" not in message
    return message


# -- whole ones-------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_every_format_gives_16_bit_samples_of_the_rate(tmp_path: Path, suffix: str):
    item = read_sound(wav(tmp_path, f"a.{suffix}"), rate=8000, max_seconds=5)
    assert item.values.dtype == np.int16 and len(item.values) == 4000
    assert np.abs(item.values / 32767 - TONE).max() < (0.15 if suffix == "ogg" else 1e-3)


def test_channels_become_one_and_rates_the_recipe_s(tmp_path: Path):
    stereo = np.stack([TONE, -TONE], axis=1)
    assert not read_sound(wav(tmp_path, samples=stereo), rate=8000, max_seconds=5).values.any()
    for rate in (11025, 22050, 48000):
        slow = np.sin(np.arange(rate) * 2 * np.pi * 440 / rate) * 0.5
        heard = read_sound(wav(tmp_path, samples=slow, rate=rate), rate=8000, max_seconds=5).values
        wave = np.sin(np.arange(8000) * 2 * np.pi * 440 / 8000) * 0.5 * 32767
        assert len(heard) == 8000 and np.abs(heard - wave)[200:-200].max() < 100


def test_loud_floats_are_clipped(tmp_path: Path):
    heard = read_sound(
        wav(tmp_path, samples=TONE * 4, subtype="FLOAT"), rate=8000, max_seconds=5
    ).values
    assert heard.max() == 32767 and heard.min() == -32767


# -- bad ones---------------------------------------------------------------------------------------


def test_each_bad_sound_is_named(tmp_path: Path):
    whole = wav(tmp_path).read_bytes()
    bad = {name: tmp_path / f"{name}.wav" for name in ("empty", "html", "cut", "lies")}
    bad["empty"].write_bytes(b"")
    bad["html"].write_text("<html>not found</html>")
    bad["cut"].write_bytes(whole[:2000])
    bad["lies"].write_bytes(whole[:40] + struct.pack("<I", 0xFFFFFF00) + whole[44:])
    assert "no such sound" in said(tmp_path / "nothing.wav")
    assert "an empty file" in said(bad["empty"])
    assert "not a file" in said(Path("/dev/zero")) and "not a file" in said(tmp_path)
    assert "not a sound that can be read" in said(bad["html"])
    assert "the sound is cut short; got 1,956 of 8,000 bytes" in said(bad["cut"])
    assert "the sound is cut short" in said(bad["lies"])
    assert "a sound of no samples" in said(wav(tmp_path, "none.wav", TONE[:0]))
    holes = TONE.copy()
    holes[7] = np.nan
    assert "not numbers" in said(wav(tmp_path, "nan.wav", holes, subtype="FLOAT"))
    assert "more than 8 channels; got 32" in said(wav(tmp_path, "32.wav", np.zeros((50, 32))))
    assert "longer than 5 seconds; got 12.5 seconds" in said(
        wav(tmp_path, "long.wav", np.zeros(100_000))
    )


def damaged(content: bytes, draw: np.random.Generator) -> bytes:
    """The same with one to three bytes of its header changed."""
    bad = bytearray(content)
    for at in draw.integers(0, min(80, len(bad)), draw.integers(1, 4)):
        bad[at] = draw.integers(256)
    return bytes(bad)


@pytest.mark.parametrize("suffix", ["aiff", "wav", "au", "flac", "ogg"])
def test_nothing_is_printed_about_a_damaged_sound(
    tmp_path: Path, suffix: str, capfd: pytest.CaptureFixture[str]
):
    whole = wav(tmp_path, f"whole.{suffix}", TONE[:400]).read_bytes()
    draw = np.random.default_rng(3)
    messages: list[str] = []
    for _ in range(200):
        path = tmp_path / f"bad.{suffix}"
        path.write_bytes(damaged(whole, draw))
        try:
            read_sound(path, rate=8000, max_seconds=5)
        except InputError as problem:
            messages.append(str(problem))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.inf, -np.inf, "samples that are not numbers"),
        (np.nan, 0.0, "samples that are not numbers"),
        (3e38, 3e38, "samples far outside of -1..1; got 3e+38"),
        (3e38, -3e38, None),
        (2e9, 0.0, None),
    ],
)
@pytest.mark.parametrize("rate", [8000, 11025])
def test_samples_of_any_size_warn_of_nothing(
    tmp_path: Path, first: float, second: float, message: str | None, rate: int
):
    stereo = np.stack([TONE, TONE], axis=1)
    stereo[7] = first, second
    path = wav(tmp_path, samples=stereo, rate=rate, subtype="FLOAT")
    if message is None:
        read_sound(path, rate=8000, max_seconds=5)
    else:
        assert message in said(path)


@pytest.mark.parametrize("rate", [0, 1, 999, 1_000_000_000])
def test_a_rate_that_cannot_be(tmp_path: Path, rate: int):
    path = wav(tmp_path)
    content = bytearray(path.read_bytes())
    content[24:28] = struct.pack("<I", rate)
    path.write_bytes(content)
    message = said(path)
    assert (
        "1,000 to 192,000 samples a second" in message or "not a sound that can be read" in message
    )


@pytest.mark.parametrize("suffix", ["flac", "ogg", "aiff", "au", "wav"])
def test_what_is_cut_is_not_half_used(tmp_path: Path, suffix: str):
    noise = np.random.default_rng(1).normal(size=30_000) * 0.1
    path = wav(tmp_path, f"a.{suffix}", noise)
    path.write_bytes(path.read_bytes()[:-4000])
    message = said(path)
    assert "cut short" in message or "not a sound that can be read" in message


@pytest.mark.parametrize(("form", "more"), [("RF64", {}), ("WAV", {"endian": "BIG"})])
def test_other_headers_of_wav_are_not_half_used_either(tmp_path: Path, form: str, more: dict):
    path = wav(tmp_path, format=form, **more)
    assert len(read_sound(path, rate=8000, max_seconds=5).values) == 4000
    path.write_bytes(path.read_bytes()[:-4000])
    assert "cut short" in said(path)


def test_a_flac_that_does_not_know_its_length_is_named(tmp_path: Path):
    path = wav(tmp_path, "a.flac")
    content = bytearray(path.read_bytes())
    content[21:26] = bytes([content[21] & 0xF0, 0, 0, 0, 0])  # as it is written into a pipe
    path.write_bytes(content)
    assert "a sound that does not say its length; save it as a file again" in said(path)


def test_what_is_too_short_or_no_name_is_said(tmp_path: Path):
    one = wav(tmp_path, samples=TONE[:1], rate=48_000)
    assert "too short a sound; got 1 samples of 48,000 a second" in said(one)
    assert "no such sound" in said(tmp_path / "a\0b.wav")


def test_a_name_that_is_too_long_costs_its_row(tmp_path: Path):
    wav(tmp_path)
    (tmp_path / "t.csv").write_text(f"path,text\na.wav,one\na.wav,two\n{'x' * 300}.wav,three\n")
    assert sounds_files(tmp_path / "t.csv")[1:] == [tmp_path / "a.wav"] * 2
    tally = Tally()
    assert len(list(read_sounds(tmp_path / "t.csv", how=HOW, tally=tally))) == 2 and tally.bad == 1


def test_random_bytes_never_do_more_than_fail(tmp_path: Path):
    draw, whole = np.random.default_rng(3), bytearray(wav(tmp_path).read_bytes())
    path = tmp_path / "b.wav"
    for _ in range(200):
        content = bytearray(whole)
        for at in draw.integers(0, 60, 3):
            content[at] = draw.integers(256)
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            assert len(read_sound(path, rate=8000, max_seconds=5.0).values)


def test_a_header_that_promises_a_gigabyte_costs_nothing(tmp_path: Path):
    """30 hours of silence are 5 kB of FLAC."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(8000 * 600, np.int16), 8000, format="FLAC")
    path = tmp_path / "a.flac"
    path.write_bytes(buffer.getvalue())
    tracemalloc.start()
    assert "longer than 5 seconds; got 600.0 seconds" in said(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# -- folders and tables-----------------------------------------------------------------------------


def test_a_table_skips_and_counts_what_is_bad(tmp_path: Path):
    for i in range(4):
        wav(tmp_path, f"{i}.wav", TONE * (i + 1) / 5)
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    rows = [
        "path,text",
        "0.wav,One two",
        '1.wav,"three, four"',
        "bad.wav,five",
        "nothing.wav,six",
        "2.wav,",
        "3.wav,a",
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    tally = Tally()
    found: list[Any] = list(read_sounds(tmp_path / "t.csv", how=HOW, tally=tally))
    assert [(one.source.name, one.target) for one in found] == [
        ("0.wav", "One two"),
        ("1.wav", "three, four"),
        ("3.wav", "a"),
    ]
    assert tally.used == 3 and tally.skipped == {
        "not a sound that can be read": 1,
        "no such sound": 1,
        "empty side": 1,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "hi", "audio": "x.wav"}\n'),
        ("a.tsv", "x.wav\thi\n"),
        ("b.tsv", "sentence\tpath\nhi\tx.wav\n"),
        ("c.csv", "id;file;transcript\n7;x.wav;hi\n"),
    ],
)
def test_tables_of_other_kinds(tmp_path: Path, name: str, text: str):
    wav(tmp_path, "x.wav")
    (tmp_path / name).write_text(text)
    (one,) = read_sounds(tmp_path / name, how=HOW, tally=Tally())
    assert isinstance(one.source, Item)
    assert (one.source.name, one.target) == ("x.wav", "hi")


def test_a_table_of_bad_sounds_only_is_refused(tmp_path: Path):
    (tmp_path / "t.csv").write_text("path,text\na.wav,one\nb.wav,two\n")
    with pytest.raises(DataError, match="none of its sounds is there; got a.wav; looked for in "):
        list(read_sounds(tmp_path / "t.csv", how=HOW, tally=Tally()))


def ljspeech(folder: Path, count: int = 8) -> Path:
    lines = []
    for i in range(count):
        wav(folder, f"wavs/LJ{i}.wav", TONE * (i + 1) / (count + 1))
        lines.append(f"LJ{i}|It was {i}.|It was number {i}.")
    (folder / "metadata.csv").write_text("\n".join([*lines, "no fields", "LJ99|gone|gone"]))
    return folder


def test_ljspeech(tmp_path: Path):
    tally = Tally()
    found = list(read_ljspeech(ljspeech(tmp_path), how=Hearing(8000, 5.0, cut=10), tally=tally))
    assert [one.target for one in found] == ["It was num"] * 8
    assert tally.skipped == {"wrong field count": 1, "no such sound": 1}


def test_parts_in_order_are_those_of_the_specification(tmp_path: Path):
    rows = [Row(Path(), str(i), "") for i in range(13_100)]
    parts = [_in_order(rows, part, (0.05, 0.2)) for part in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [9825, 655, 2620]
    assert [row.name for part in parts for row in part] == [str(i) for i in range(13_100)]


def fsdd(folder: Path) -> Path:
    for digit in (0, 7):
        for n, speaker in enumerate(("ann", "bob")):
            for index in range(7):
                samples = TONE * (1 + digit + 10 * n + 20 * index) / 200
                wav(folder, f"recordings/{digit}_{speaker}_{index}.wav", samples)
    wav(folder, "recordings/other.wav")
    return folder


def test_fsdd_parts(tmp_path: Path):
    def names(part: Part, hold_out: str | None = None) -> list[str]:
        examples = read_fsdd(fsdd(tmp_path), how=HOW, part=part, hold_out=hold_out, tally=Tally())
        items = [example.source for example in examples]
        return [item.name for item in items if isinstance(item, Item)]

    assert {one.target for one in read_fsdd(fsdd(tmp_path), how=HOW, tally=Tally())} == {
        "zero",
        "seven",
    }
    assert sorted(names("train")) == sorted(
        f"{d}_{s}_{i}.wav" for d in (0, 7) for s in ("ann", "bob") for i in (5, 6)
    )
    assert len(names("test")) == 20 and not set(names("test")) & set(names("train"))
    assert {name.split("_")[1] for name in names("test", "bob")} == {"bob"}
    assert {name.split("_")[1] for name in names("train", "bob")} == {"ann"} and len(
        names("train", "bob")
    ) == 14
    for i in range(20):
        wav(tmp_path, f"recordings/1_ann_smith_{i}.wav")
    tallies: dict[Part, Tally] = {"all": Tally(), "train": Tally(), "test": Tally()}
    for part, tally in tallies.items():
        list(read_fsdd(tmp_path, how=HOW, part=part, tally=tally, limit=1.0))
    assert [sum(tally.skipped.values()) for tally in tallies.values()] == [21, 21, 0]  # each once
    with pytest.raises(DataError, match="no such speaker; got eve; known: ann, bob"):
        names("train", "eve")


def test_inspect_says_what_a_folder_is(tmp_path: Path):
    found = inspect(fsdd(tmp_path / "f"))
    assert (found["kind"], found["usable"]) == ("fsdd", 28) and "speech-fsdd" in found["train"]
    assert found["skipped"] == {"not named {digit}_{speaker}_{index}": 1}
    found = inspect(ljspeech(tmp_path / "l"))
    assert (found["kind"], found["usable"]) == ("ljspeech", 8) and found["seconds"]["max"] == 0.5
    assert json.loads(json.dumps(found)) == found


def test_real_ones(shared_data: Path):
    tally = Tally()
    ten: list[Any] = [
        one
        for one, _ in zip(
            read_ljspeech(shared_data / "ljspeech", how=HOW, tally=tally), range(10), strict=False
        )
    ]
    assert len(ten) == 10 and all(len(one.source.values) > 8000 for one in ten)
    digits = read_fsdd(shared_data / "fsdd", how=HOW, part="test", tally=tally)
    assert len(list(digits)) == 250
