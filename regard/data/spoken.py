"""Spoken numbers and commands, made by eSpeak NG (`espeakng-loader` brings its library): many
voices, speeds, pitches.

What is said, by whom and how is drawn from a seed. The library's own draws cannot be repeated once
it has spoken, so every voice speaks in a process of its own (regard.data.espeak), from the
library's first moment on: the same jobs give the same samples, whatever ran before.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from regard.data import espeak, sound, spelled
from regard.data.examples import Example, Item
from regard.data.lines import Tally
from regard.data.reading import checked
from regard.data.recordings import Hearing
from regard.data.sound import loud, resampled, too_long
from regard.data.spelled import english
from regard.errors import DataError

Part = Literal["train", "valid", "test"]
ACCENTS = ("en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-us-nyc")
TRAINING = """
    m1 m2 m3 m4 m5 m6 f1 f2 f3 f4 Alex Alicia Andrea Andy Annie Gene Hugo Lee Marco Mike adam
    anika antonio belinda benjamin boris caleb david ed edward ian iven john linda marcelo max
    michel miguel norbert pablo paul pedro quincy rob robert sandro"""
VOICES: dict[Part, tuple[str, ...]] = {
    "train": tuple(TRAINING.split()),
    "valid": ("f5", "m7", "Mario", "aunty", "zac", "steph"),
    "test": ("m8", "Denis", "Michael", "travis", "shelby", "victor", "grandma", "Jacky"),
}
SHARES: dict[Part, int] = {"train": 1, "valid": 8, "test": 8}  # one in so many, as against training


# -- what is said-----------------------------------------------------------------------------------

SLOTS = {
    "thing": (
        *("lamp", "radio", "heater", "fan", "television"),
        *("kitchen light", "bedroom light", "music"),
    ),
    "opening": ("door", "window", "garage", "gate", "curtains"),
    "person": ("anna", "peter", "maria", "john", "the doctor", "the office"),
    "order": ("first", "second", "third", "fourth", "fifth", "last"),
    "way": ("left", "right", "forward", "back"),
    "switch": ("on", "off"),
    "move": ("open", "close"),
    "change": ("up", "down"),
}
ALONE = "yes no stop start next repeat help hundred timer alarm messages minutes volume"
WORDS = [
    *ALONE.split(),
    *(english(n) for n in (*range(20), *range(20, 100, 10))),
    *sorted({word for words in SLOTS.values() for phrase in words for word in phrase.split()}),
]
COMMANDS = (
    "turn {switch} the {thing}",
    "{move} the {opening}",
    "set the timer for {number} minutes",
    "set the alarm to {number}",
    "call {person}",
    "send {number} messages to {person}",
    "play the {order} song",
    "turn the volume {change}",
    "go {way} {number} steps",
    "turn {way} and stop",
    "what time is it",
)


def number(n: int) -> str:
    """
    >>> number(42)
    'forty two'
    """
    return english(n).replace("-", " ")


def sentence(draw: random.Random) -> str:
    """A word, a few digits, a number up to 999, or a command; the first two because their rest
    cannot be guessed."""
    kind = draw.random()
    if kind < 0.3:
        return draw.choice(WORDS)
    if kind < 0.55:
        return " ".join(number(draw.randrange(10)) for _ in range(draw.randrange(2, 5)))
    if kind < 0.7:
        return number(draw.randrange(1000))
    filled = {slot: draw.choice(words) for slot, words in SLOTS.items()}
    return draw.choice(COMMANDS).format(number=number(draw.randrange(1, 100)), **filled)


class Job(NamedTuple):
    voice: str  # accent+variant
    text: str
    speed: int  # words a minute
    pitch: int  # 0 to 99
    range: int  # of the pitch, 0 to 99


def digit(draw: random.Random) -> str:
    return number(draw.randrange(10))


def jobs(
    part: Part, *, count: int, seed: int, say: Callable[[random.Random], str] = sentence
) -> list[Job]:
    """What each voice of a part has to say, voice by voice."""
    draw = random.Random(f"{seed} {part}")
    variants = VOICES[part]
    drawn_jobs = []
    for i in range(count):
        job = Job(
            voice=f"{draw.choice(ACCENTS)}+{variants[i % len(variants)]}",
            text=say(draw),
            speed=draw.randrange(120, 221),
            pitch=draw.randrange(25, 76),
            range=draw.randrange(25, 76),
        )
        drawn_jobs.append(job)
    return sorted(drawn_jobs, key=_variant)


def _variant(job: Job) -> str:
    return job.voice.partition("+")[2]


# -- the reader-------------------------------------------------------------------------------------


def read_spoken(
    part: Part, *, count: int, seed: int, how: Hearing, tally: Tally
) -> Iterator[Example]:
    """`count` sounds that train, and an eighth as many that validate and test, in other voices."""
    examples = _examples(jobs(part, count=count // SHARES[part], seed=seed), how, tally)
    return checked(examples, "what the voices say", tally, limit=0.5)


def read_digits(*, count: int, how: Hearing, tally: Tally) -> Iterator[Example]:
    """Digits in the voices that train, cut where they begin and end, as recordings of digits
    are."""
    examples = _examples(jobs("train", count=count, seed=1, say=digit), how, tally, trim=0.02)
    return checked(examples, "what the voices say", tally, limit=0.5)


def _examples(
    jobs: Sequence[Job], how: Hearing, tally: Tally, *, trim: float = 0.0
) -> Iterator[Example]:
    samples, ends = _spoken(tuple(jobs), how.rate)
    spans = pairwise([0, *ends])
    for i, (job, (start, end)) in enumerate(zip(jobs, spans, strict=True)):
        values = np.asarray(samples[start:end])
        values = values[loud(values, trim)]
        if len(values) > how.max_seconds * how.rate:
            tally.skip(too_long(how.max_seconds))
            continue
        tally.used += 1
        item = Item(f"{job.voice} {i}", values, json.dumps(job).encode())
        yield Example(item, job.text[: how.cut])


def makers() -> list[Path]:
    """The files that decide what is said, and how it sounds."""
    return [
        library(),
        Path(espeak.__file__),
        Path(spelled.__file__),
        Path(sound.__file__),
        Path(__file__),
    ]


def library() -> Path:
    """Of eSpeak NG."""
    if importlib.util.find_spec("espeakng_loader") is None:
        raise DataError(
            "the package espeakng-loader is missing, which brings the voices",
            hint="pip install 'regard[speech]', "
            "or give --data PATH with sounds and texts of your own",
        )
    import espeakng_loader

    return Path(espeakng_loader.get_library_path())


@functools.lru_cache(maxsize=3)  # a corpus is read more than once while it is prepared
def _spoken(jobs: tuple[Job, ...], rate: int) -> tuple[np.ndarray, list[int]]:
    """The samples of all jobs one after the other, mapped from a temporary file, and where each
    ends."""
    ends = []
    end = 0
    with tempfile.TemporaryFile() as file:
        for own_rate, sound in said(jobs):
            samples = resampled(sound.astype(np.float32) / 32768, own_rate, rate)
            file.write(samples.tobytes())
            end += len(samples)
            ends.append(end)
        file.flush()
        return np.memmap(file, np.int16, "r"), ends


def said(jobs: Sequence[Job]) -> Iterator[tuple[int, np.ndarray]]:
    """The rate and the 16-bit samples of each job, which are in the order that `jobs` gives
    them, voice by voice."""
    library()
    groups = [list(group) for _, group in groupby(jobs, key=_variant)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for rate, sounds in pool.map(_say_apart, groups):
            for sound in sounds:
                yield rate, sound


def _say_apart(group: Sequence[Job]) -> tuple[int, list[np.ndarray]]:
    """The rate and the samples of each job, from a process of their own."""
    command = [sys.executable, "-m", "regard.data.espeak"]
    jobs = json.dumps(group).encode()
    process = subprocess.run(command, input=jobs, capture_output=True, check=False)  # noqa: S603
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise DataError("the voices cannot speak", where=group[0].voice, got=lines[-1][:200])
    rate, *lengths = np.frombuffer(process.stdout, "=i4", 1 + len(group)).tolist()
    samples = np.frombuffer(process.stdout, "=i2", offset=4 * (1 + len(group)))
    return rate, np.split(samples, np.cumsum(lengths)[:-1])
