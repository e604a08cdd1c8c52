"""sessions.json: when, where and by which command a run was trained; a record for each time.

The file is for people and for reports. Nothing that is trained depends on it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from regard import disk
from regard.errors import InputError

FILE = "sessions.json"
FORMAT = 1
State = Literal["under way", "stopped", "done"]


@dataclass(frozen=True)
class Session:
    """One time that a run was trained, from a first step to a last one.

    base     the name or path of the recipe it was begun with; "" if it has none
    command  what was typed; "" if it was called from Python
    began    a date and time in UTC, as ISO 8601 has it
    state    "under way" also if the process was killed
    """

    base: str = ""
    command: str = ""
    began: str = ""
    ended: str = ""
    state: State = "under way"
    first_step: int = 0
    last_step: int = 0
    seed: int = 0
    device: str = ""
    threads: int = 0
    processor: str = ""
    system: str = ""
    python: str = ""
    torch: str = ""
    regard: str = ""


def begin(run: Path, session: Session) -> Session:
    """Add a session that begins now on this machine."""
    session = replace(
        session,
        began=_now(),
        processor=processor(),
        system=platform.platform(),
        python=platform.python_version(),
    )
    _write(run, [*read(run), session])
    return session


def end(run: Path, session: Session, state: State, step: int) -> None:
    """Say how a session, as `begin` returned it, ended."""
    others = [other for other in read(run) if other != session]
    _write(run, [*others, replace(session, ended=_now(), state=state, last_step=step)])


def read(run: Path) -> list[Session]:
    """The sessions of a run, oldest first; none if there is no such file, or it is damaged."""
    records = _content(run / FILE) or []
    return [Session(**record) for record in records if _is_session(record)]


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _write(run: Path, sessions: Sequence[Session]) -> None:
    path = run / FILE
    if path.exists() and _content(path) is None:
        raise InputError("something that regard did not write is there already", where=path)
    records = [asdict(session) for session in sessions]
    disk.write_json(path, {"format": FORMAT, "sessions": records})


def _content(path: Path) -> list[Any] | None:
    """The records of a file; None if it is not such a file."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    match content:
        case {"format": int(), "sessions": list(records)}:
            return records
    return None


def _is_session(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    types = {
        field.name: int if isinstance(field.default, int) else str for field in fields(Session)
    }
    if not record.keys() <= types.keys():
        return False
    return all(type(value) is types[name] for name, value in record.items())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
