"""metrics.jsonl, the log of a run, and its copy for TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard import disk
from regard.checkpoint import Progress
from regard.errors import TrainingError

METRICS = "metrics.jsonl"
TRAIN, VALID, CHANGED = "train", "valid", "changed"  # kinds of its lines
# instead of VALID where nothing is held out: scores of what the model learns from
FITTED = "training_examples"


class Log:
    """metrics.jsonl: a line for every few steps, for every validation, and for every change of a
    run under way."""

    def __init__(self, run: Path, *, tensorboard: bool):
        self.path = run / METRICS
        self.events = run / "tensorboard"
        with self._writing_events():
            self.board = _board(self.events) if tensorboard else None

    def forget(self, *, after: Progress) -> None:
        """Leave out what will come again."""
        if self.path.exists():
            records = [
                record for record in disk.read_json_lines(self.path) if _belongs(record, after)
            ]
            lines = [json.dumps(record, allow_nan=False) for record in records]
            disk.write_text(self.path, "".join(f"{line}\n" for line in lines))

    def add(self, progress: Progress, kind: str, record: dict[str, Any]) -> None:
        head = {
            "step": progress.step,
            "epoch": progress.epoch,
            "kind": kind,
            "seconds": round(progress.seconds, 3),
        }
        finite = {k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}
        disk.append_line(self.path, json.dumps(head | finite, allow_nan=False))
        if self.board is not None:
            with self._writing_events():
                for name, value in finite.items():
                    if isinstance(value, float):
                        self.board.add_scalar(f"{kind}/{name}", value, progress.step)

    def close(self) -> None:
        if self.board is not None:
            with self._writing_events():
                self.board.close()

    @contextlib.contextmanager
    def _writing_events(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:  # from a thread of TensorBoard's own, which names no file
            raise disk.refusal(self.events, problem) or problem from None


def _belongs(record: dict[str, Any], progress: Progress) -> bool:
    until = {VALID: progress.validated, FITTED: progress.validated, CHANGED: math.inf}
    match record:
        case {"kind": str(kind), "step": int(step)}:
            return step <= until.get(kind, progress.step)
    return False


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainingError(
            "TensorBoard is not installed", hint="pip install 'regard[tensorboard]'"
        ) from None
    return SummaryWriter(str(folder))
