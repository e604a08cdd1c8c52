"""The picture or sound of an input, as a page shows it: what the model read."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard.data.pictures import png
from regard.data.sound import wav
from regard.frontends import Sound
from regard.pages.arrays import Arrays, quantised
from regard.tasks.sources import PictureSource, SoundSource

if TYPE_CHECKING:
    from regard.bundle import Bundle

PEAKS = 600  # bars of a wave form
LONGEST = 120.0  # seconds of a sound that can be played


def source_record(bundle: Bundle, row: np.ndarray, places: int, store: Arrays) -> dict[str, Any]:
    """What was read: a text, a picture with its grid, or a sound with its spectrogram."""
    source = bundle.task.source
    if isinstance(source, PictureSource):
        return _picture(row, bundle.model.frontend.grid)
    if isinstance(source, SoundSource):
        return _sound(bundle, source, row, places, store)
    return {"kind": "text"}


def _picture(row: np.ndarray, grid: tuple[int, int] | None) -> dict[str, Any]:
    return {
        "kind": "picture",
        "grid": list(grid or (1, 1)),
        "size": list(row.shape[:2]),
        "url": picture_url(row),
    }


def _sound(
    bundle: Bundle, source: SoundSource, row: np.ndarray, places: int, store: Arrays
) -> dict[str, Any]:
    times = source.place_times(row, places)
    duration = len(row) / source.rate
    record: dict[str, Any] = {
        "kind": "sound",
        "rate": source.rate,
        "duration": duration,
        "times": [[round(start, 4), round(end, 4)] for start, end in times],
        "peaks": _peaks(row),
        "url": _data_url("audio/wav", wav(row, source.rate)) if duration <= LONGEST else None,
        "spectrogram": None,
    }
    if isinstance(bundle.model.frontend, Sound):
        record["spectrogram"] = _spectrogram(bundle, bundle.model.frontend, row, times[0][0], store)
    return record


@torch.inference_mode()
def _spectrogram(
    bundle: Bundle, frontend: Sound, row: np.ndarray, start: float, store: Arrays
) -> dict[str, Any] | None:
    """The log-mel frames that the model reads, low mels at the bottom."""
    source = bundle.task.source
    assert isinstance(source, SoundSource)
    raw, mask = bundle.task.sources([row])
    device = bundle.model.device
    frames, _ = frontend.spectrogram(raw.to(device), mask.to(device))
    levels = frames[0].float().cpu().numpy().T[::-1]  # (mels, frames)
    low = float(levels.min())
    array = store.add(quantised(levels, low, max(low + 1e-6, float(levels.max()))))
    if array is None:
        return None
    seconds = frontend.hop / source.rate * levels.shape[1]
    return {
        "array": array,
        "rows": levels.shape[0],
        "columns": levels.shape[1],
        "start": start,
        "end": start + seconds,
    }


def _peaks(row: np.ndarray) -> list[int]:
    """The largest magnitude of each of up to PEAKS intervals, of 255."""
    size = np.abs(row.astype(np.float32))
    count = min(PEAKS, len(size))
    starts = np.arange(count) * len(size) // count
    peaks = np.maximum.reduceat(size, starts)
    return np.rint(255 * peaks / max(1.0, float(peaks.max()))).astype(int).tolist()


def picture_url(row: np.ndarray) -> str:
    """A picture (h, w, channels) of bytes as the address of an image."""
    return _data_url("image/png", png(row))


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
