"""The built-in data as files: pictures and sounds to look at, ask about and train on.

    digits      FOLDER/LABEL/digit-0042.png, labels.csv       scikit-learn's digits, 8 x 8
    drawings    FOLDER/drawing-0042.png, captions.csv         pictures of shapes with captions
    voices      FOLDER/wavs/voice-0042.wav, metadata.csv      numbers and commands, as LJ Speech

A file holds exactly what the built-in data holds, so a model gives the same answer for both.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard import disk
from regard.data import drawn, labelled_pictures, spoken
from regard.errors import InputError, did_you_mean


class Exported(NamedTuple):
    """The files that were written (paths from the folder), the table of labels or texts, and a
    recipe that fits."""

    files: list[str]
    table: str
    recipe: str


def export(kind: str, folder: Path, *, count: int, seed: int) -> Exported:
    """Write `count` files and a table of their labels or texts into a new or empty folder.

    Files are written one by one and the table last, so a folder with a table is complete. If
    something goes wrong, the files written so far are removed again.
    """
    if kind not in KINDS:
        raise InputError(
            "no such data", where="data export", got=f'"{kind}"', hint=did_you_mean(kind, KINDS)
        )
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError("not a folder", where=folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            "the folder is not empty", where=folder, hint="name a new one: nothing is overwritten"
        )
    with _Output(folder.absolute()) as output:
        return KINDS[kind](output, count, seed)


class _Output:
    """A folder that files are written into; after an error, what was written is removed again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: list[Path] = []
        self.folders: list[Path] = []

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is None:
            return
        for file in self.files:
            with contextlib.suppress(OSError):
                file.unlink()
        for folder in reversed(self.folders):
            with contextlib.suppress(OSError):
                folder.rmdir()  # succeeds only if it is empty

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        self._make(path.parent)
        if os.path.lexists(path):
            raise InputError(
                "something of this name was put there meanwhile",
                where=path,
                hint="name a new folder: nothing is overwritten",
            )
        self.files.append(path)
        try:
            disk.write_bytes(path, content)
        except BaseException:
            self.files.pop()  # it is not there, or not ours
            raise

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        try:
            folder.mkdir()
        except OSError as problem:
            raise disk.refusal(folder, problem) or problem from None
        self.folders.append(folder)


def _digits(output: _Output, count: int, seed: int) -> Exported:
    digits = list(labelled_pictures.digits())
    if count > len(digits):
        raise InputError(
            "there are not so many digits",
            where="--count",
            got=f"{count:,}",
            hint=f"{len(digits):,} at most",
        )
    rows = []
    for number in sorted(np.random.default_rng(seed).permutation(len(digits))[:count].tolist()):
        image, label = digits[number]
        name = f"{label}/digit-{number:04d}.png"
        output.write(name, _png(image))
        rows.append((name, label))
    return _table(output, "labels.csv", ("path", "label"), rows, "image-pool")


def _drawings(output: _Output, count: int, seed: int) -> Exported:
    rows = []
    for number in range(count):
        scene, picture = drawn.drawing(seed, number)
        name = f"drawing-{number:04d}.png"
        output.write(name, _png(picture))
        rows.append((name, scene.sentence))
    return _table(output, "captions.csv", ("path", "text"), rows, "caption-attention")


def _voices(output: _Output, count: int, seed: int) -> Exported:
    import soundfile

    # In voices that no built-in recipe trains on.
    jobs = spoken.jobs("test", count=count, seed=seed)
    rows = []
    for number, (job, (rate, samples)) in enumerate(zip(jobs, spoken.said(jobs), strict=True)):
        name = f"wavs/voice-{number:04d}.wav"
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, rate, subtype="PCM_16", format="WAV")
        output.write(name, buffer.getvalue())
        rows.append((name, job.text))
    lines = (f"{Path(name).stem}|{text}|{text}\n" for name, text in rows)
    output.write("metadata.csv", "".join(lines).encode())
    return Exported([name for name, _ in rows], "metadata.csv", "speech-attention")


def _png(picture: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()


def _table(
    output: _Output, name: str, columns: tuple[str, str], rows: list[tuple[str, str]], recipe: str
) -> Exported:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    output.write(name, buffer.getvalue().encode())
    return Exported([file for file, _ in rows], name, recipe)


KINDS: dict[str, Callable[[_Output, int, int], Exported]] = {
    "digits": _digits,
    "drawings": _drawings,
    "voices": _voices,
}
