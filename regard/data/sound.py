"""One sound: a file or samples, as the 16-bit samples a model reads.

A sound is never trusted: what its header says is looked at before anything is unpacked, and no more
than `max_seconds` of a file are unpacked.
"""

from __future__ import annotations

import hashlib
import io
import struct
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.examples import Item
from regard.errors import InputError

LARGEST_FILE = 256 << 20  # bytes
SLOWEST, FASTEST = 1_000, 192_000  # samples a second
MOST_CHANNELS = 8
BLOCK = 1 << 16  # frames unpacked at a time
LOUDEST = 32767
# floats a little above 1 are clipped, as in a file; these are integers that became floats
FLOAT_LIMIT = 100.0
# of samples that should be in -1..1; some programs write whole numbers as floats
HIGHEST_PEAK = 1e9
# what an AU file says that does not know its size, and RF64 in place of a larger one
UNSAID = 0xFFFFFFFF
UNKNOWN = 2**63 - 1  # frames of a FLAC file that came out of a pipe; libsndfile cannot go on in it


def read_sound(path: Path | str, *, rate: int, max_seconds: float) -> Item:
    """A file as 16-bit samples of one channel, `rate` a second."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a device may never end
            raise InputError("not a file", where=path)
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                "the sound's file is too large", where=path, got=f"{path.stat().st_size:,} bytes"
            )
        content = path.read_bytes()
    except (FileNotFoundError, ValueError):  # ValueError: a name with a zero in it
        raise InputError("no such sound", where=path) from None
    except OSError as problem:
        raise InputError("cannot be read", where=path, got=problem.strerror) from None
    values = sound_in(content, rate=rate, max_seconds=max_seconds, where=path)
    return Item(str(path), values, hashlib.sha256(content).digest())


def sound_in(
    content: bytes, *, rate: int, max_seconds: float, where: Path | str = "the sound"
) -> np.ndarray:
    """The bytes of a file as 16-bit samples of one channel, `rate` a second."""
    samples, own_rate = _unpacked(content, max_seconds, where)
    values = resampled(samples, own_rate, rate)
    if not len(values):
        raise InputError(
            "too short a sound",
            where=where,
            got=f"{len(samples):,} samples of {own_rate:,} a second",
        )
    return values


def from_samples(
    samples: np.ndarray, own_rate: float, *, rate: int, max_seconds: float
) -> np.ndarray:
    """What `read_sound` makes of a file with these samples, `own_rate` a second: (n,) or (n,
    channels), floats from -1 to 1 or integers of 8 (unsigned), 16 or 32 bits."""
    if not SLOWEST <= own_rate <= FASTEST or own_rate != int(own_rate):
        raise InputError(
            f"the rate of a sound must be a whole number from {SLOWEST:,} to {FASTEST:,}",
            got=f"{own_rate:g}",
        )
    own_rate = int(own_rate)
    has_channels = samples.ndim == 2 and 1 <= samples.shape[1] <= MOST_CHANNELS
    if samples.ndim != 1 and not has_channels:
        channels_first = samples.ndim == 2 and 1 <= samples.shape[0] <= MOST_CHANNELS
        raise InputError(
            f"samples have shape (n,) or (n, channels), with at most {MOST_CHANNELS} channels",
            got=f"{samples.dtype} {samples.shape}",
            hint="move its channels to the end: transpose it" if channels_first else None,
        )
    if not len(samples):
        raise InputError("a sound of no samples")
    if len(samples) > max_seconds * own_rate:
        raise InputError(too_long(max_seconds), got=f"{len(samples) / own_rate:,.1f} seconds")
    values = _as_floats(samples)
    if values.ndim == 2:
        values = values.mean(1, dtype=np.float64).astype(np.float32)
    values = resampled(values, own_rate, rate)
    if not len(values):
        raise InputError(
            "too short a sound", got=f"{len(samples):,} samples of {own_rate:,} a second"
        )
    return values


def _as_floats(samples: np.ndarray) -> np.ndarray:
    """Samples as 32-bit floats from -1 to 1, by the same division with which libsndfile reads
    integers."""
    if samples.dtype == np.int16 or samples.dtype == np.int32:
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128) / 128).astype(np.float32)
    if not np.issubdtype(samples.dtype, np.floating):
        raise InputError(
            "samples are floats from -1 to 1, or integers of type uint8, int16 or int32",
            got=str(samples.dtype),
        )
    values = samples.astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError("samples that are not numbers")
    highest = float(np.abs(values).max())
    if highest > FLOAT_LIMIT:
        raise InputError(
            "samples that are floats go from -1 to 1",
            got=f"up to {highest:,.0f}",
            hint="if they are those of 16-bit integers, divide them by 32768",
        )
    return values


def resampled(samples: np.ndarray, own_rate: int, rate: int) -> np.ndarray:
    """Samples in -1..1, `own_rate` a second, as 16-bit ones of another rate."""
    import soxr

    if own_rate != rate:
        samples = soxr.resample(samples, own_rate, rate)
    return np.rint(samples.clip(-1, 1) * LOUDEST).astype(np.int16)


def loud(samples: np.ndarray, share: float) -> slice:
    """From the first sample that has this share of the peak to the last; with 0, all of them.

    >>> loud(np.array([0, 1, -50, 0, 30, 1], np.int16), 0.02)
    slice(1, 6, None)
    """
    if not share:
        return slice(0, len(samples))
    heights = np.abs(samples.astype(np.int32))
    places = np.flatnonzero(heights >= share * heights.max())
    return slice(int(places[0]), int(places[-1]) + 1)


def _unpacked(content: bytes, max_seconds: float, where: Path | str) -> tuple[np.ndarray, int]:
    """The mean of the channels, and the rate."""
    import soundfile

    if not content:
        raise InputError("an empty file", where=where)
    _check_whole(content, where)
    try:
        with soundfile.SoundFile(_Content(content)) as sound:
            _check_header(sound, max_seconds, where)
            rate = sound.samplerate
            promised = sound.frames
            blocks = list(_blocks(sound, where))
    except soundfile.LibsndfileError as problem:
        raise InputError(
            "not a sound that can be read", where=where, got=str(problem.error_string)[:120]
        ) from None
    count = sum(map(len, blocks))
    if count < promised:
        raise InputError(
            "the sound is cut short", where=where, got=f"{count:,} of {promised:,} samples"
        )
    if not count:
        raise InputError("a sound of no samples", where=where)
    samples = np.concatenate(blocks)
    peak = float(np.abs(samples).max())
    if peak > HIGHEST_PEAK:  # filters that change the rate would overflow
        raise InputError("samples far outside of -1..1", where=where, got=f"{peak:.3g}")
    return samples, rate


def _check_header(sound: Any, max_seconds: float, where: Path | str) -> None:
    """Refuse a sound that is not to be unpacked, by what its header says."""
    rate = sound.samplerate
    if not SLOWEST <= rate <= FASTEST:
        raise InputError(
            f"its rate must be {SLOWEST:,} to {FASTEST:,} samples a second",
            where=where,
            got=f"{rate:,}",
        )
    if sound.channels > MOST_CHANNELS:
        raise InputError(f"more than {MOST_CHANNELS} channels", where=where, got=sound.channels)
    if sound.frames == UNKNOWN:
        raise InputError(
            "a sound that does not say its length",
            where=where,
            hint="save it as a file again",
        )
    if sound.frames > max_seconds * rate:
        raise InputError(
            too_long(max_seconds), where=where, got=f"{sound.frames / rate:,.1f} seconds"
        )


def _blocks(sound: Any, where: Path | str) -> Iterator[np.ndarray]:
    """The mean of the channels in pieces, as many as the header promises or fewer."""
    count = 0
    while count < sound.frames:
        block = sound.read(BLOCK, dtype="float32", always_2d=True)
        if not len(block):
            break
        if not np.isfinite(block).all():
            raise InputError("samples that are not numbers", where=where)
        yield block.mean(1, dtype=np.float64).astype(np.float32)
        count += len(block)


class _Content(io.BytesIO):
    """The bytes of a file for libsndfile, whose read and seek raise nothing.

    libsndfile reads through callbacks, and Python prints the traceback of an exception in one to
    the terminal. A seek to a place that does not exist, as a damaged header asks for, leaves the
    position where it is instead: libsndfile compares the two and reports the error itself.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def wav(row: np.ndarray, rate: int) -> bytes:
    """16-bit samples as a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(row.astype("<i2").tobytes())
    return buffer.getvalue()


def too_long(max_seconds: float) -> str:
    return f"longer than {max_seconds:g} seconds"


FORMS = {b"RIFF": "<4sI", b"RF64": "<4sI", b"RIFX": ">4sI", b"FORM": ">4sI"}
CHUNKS = {b"WAVE": b"data", b"AIFF": b"SSND", b"AIFC": b"SSND"}


def _check_whole(content: bytes, where: Path | str) -> None:
    """Refuse a file whose header promises more samples than there are, and an Ogg file without
    its last page: libsndfile reads what is left of either and says nothing."""
    if content[:4] in FORMS and content[8:12] in CHUNKS:
        form = FORMS[content[:4]]
        samples = CHUNKS[content[8:12]]
        at = 12
        large = 0
        while at + 8 <= len(content):
            name, size = struct.unpack_from(form, content, at)
            if name == b"ds64" and at + 24 <= len(content):  # sizes that need more than 4 bytes
                large = struct.unpack_from("<Q", content, at + 16)[0]
            if name == samples:
                _long_enough(content, at + 8, large if large and size == UNSAID else size, where)
            at += 8 + size + size % 2
    elif content[:4] == b".snd" and len(content) >= 12:
        start, size = struct.unpack_from(">II", content, 4)
        _long_enough(content, start, 0 if size == UNSAID else size, where)
    elif content[:4] == b"OggS":
        last = content.rfind(b"OggS")
        if not (len(content) > last + 5 and content[last + 5] & 4):
            raise InputError("the sound is cut short", where=where, got="no last page")


def _long_enough(content: bytes, start: int, size: int, where: Path | str) -> None:
    if start + size > len(content):
        raise InputError(
            "the sound is cut short", where=where, got=f"{len(content) - start:,} of {size:,} bytes"
        )
