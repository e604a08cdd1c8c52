"""What one check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from regard.errors import RegardError

State = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """One check, what was found, and what to do if it failed."""

    name: str
    state: State
    what: str
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def failed(name: str, problem: RegardError, hint: str | None = None) -> Check:
    """The check failed with this error, whose own hint is kept unless there is a better one."""
    message = f"{problem.where}: {problem.what}" if problem.where is not None else problem.what
    if problem.got is not None:
        message += f"; got {problem.got}"
    return Check(name, "failed", message, hint or problem.hint)
