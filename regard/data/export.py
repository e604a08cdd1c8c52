"""The data that regard brings, as files that people can look at, ask about and train on.

    digits      FOLDER/LABEL/digit-0042.png, and labels.csv          scikit-learn's handwritten digits, 8 x 8
    drawings    FOLDER/drawing-0042.png, and captions.csv            pictures of shapes, each with its sentence
    voices      FOLDER/wavs/voice-0042.wav, and metadata.csv         numbers and commands, as LJ Speech is laid out

A file holds exactly what the built-in data holds, so a model answers both alike.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data import drawn, pictures, spoken
from regard.errors import InputError, did_you_mean


class Exported(NamedTuple):
    """What was written: the files (their paths from the folder), the table of what is right, a
    recipe that fits."""

    files: list[str]
    table: str
    recipe: str


def export(kind: str, folder: Path, *, count: int, seed: int) -> Exported:
    """Write `count` files and a table of what is right into a folder that is new or empty. The
    table comes last."""
    if kind not in KINDS:
        raise InputError(
            "no such data", where="data export", got=f'"{kind}"', hint=did_you_mean(kind, KINDS)
        )
    if folder.exists() and not folder.is_dir():
        raise InputError("not a folder", where=folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            "the folder is not empty", where=folder, hint="name a new one: nothing is overwritten"
        )
    folder = folder.absolute()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        exported = KINDS[kind](draft, count, seed)
        folder.mkdir(exist_ok=True)
        for entry in sorted(draft.iterdir(), key=lambda entry: entry.name == exported.table):
            os.rename(entry, folder / entry.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return exported


def _digits(folder: Path, count: int, seed: int) -> Exported:
    from PIL import Image

    every = list(pictures.digits())
    if count > len(every):
        raise InputError(
            "there are not so many digits",
            where="--count",
            got=f"{count:,}",
            hint=f"{len(every):,} at most",
        )
    rows = []
    for number in sorted(np.random.default_rng(seed).permutation(len(every))[:count].tolist()):
        image, label = every[number]
        name = f"{label}/digit-{number:04d}.png"
        (folder / label).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / name)
        rows.append((name, label))
    return _table(folder / "labels.csv", ("path", "label"), rows, "image-pool")


def _drawings(folder: Path, count: int, seed: int) -> Exported:
    from PIL import Image

    rows = []
    for number in range(count):
        scene, picture = drawn.drawing(seed, number)
        name = f"drawing-{number:04d}.png"
        Image.fromarray(picture).save(folder / name)
        rows.append((name, scene.sentence))
    return _table(folder / "captions.csv", ("path", "text"), rows, "caption-attention")


def _voices(folder: Path, count: int, seed: int) -> Exported:
    import soundfile

    jobs = spoken.jobs(
        "test", count=count, seed=seed
    )  # in voices that no built-in recipe trains on
    (folder / "wavs").mkdir()
    rows = []
    for number, (job, (rate, samples)) in enumerate(zip(jobs, spoken.said(jobs), strict=True)):
        name = f"wavs/voice-{number:04d}.wav"
        soundfile.write(folder / name, samples, rate, subtype="PCM_16")
        rows.append((name, job.text))
    lines = (f"{Path(name).stem}|{text}|{text}\n" for name, text in rows)
    (folder / "metadata.csv").write_text("".join(lines), "utf-8")
    return Exported([name for name, _ in rows], "metadata.csv", "speech-attention")


def _table(
    path: Path, columns: tuple[str, str], rows: list[tuple[str, str]], recipe: str
) -> Exported:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return Exported([name for name, _ in rows], path.name, recipe)


KINDS: dict[str, Callable[[Path, int, int], Exported]] = {
    "digits": _digits,
    "drawings": _drawings,
    "voices": _voices,
}
