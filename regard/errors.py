"""One exception family: everything a person can cause ends in one of these, and in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class RegardError(Exception):
    """What is wrong, where, what was received, and what is allowed or what to type next.

    >>> str(RegardError("no such recipe", where="recipes", got="chat-atention", hint="did you mean chat-attention?"))
    'recipes: no such recipe; got chat-atention; did you mean chat-attention?'
    """

    exit_code = 2

    def __init__(self, what: str, *, where: object = None, got: object = None, hint: str | None = None):
        self.what, self.where, self.got, self.hint = what, where, got, hint
        head = what if where is None else f"{where}: {what}"
        received = None if got is None else f"got {got}"
        super().__init__("; ".join(part for part in (head, received, hint) if part))


class RecipeError(RegardError):
    """A recipe, or an override of one, that cannot be read."""


class DataError(RegardError):
    """A corpus, or a file of inputs, that cannot be used."""


class BundleError(RegardError):
    """A run folder that is not one, or whose files are not what was saved."""


class NewerFormatError(BundleError):
    """A folder that a later version wrote: not damaged, but not for this one."""


class InputError(RegardError):
    """An input or an option that this model or this verb cannot take."""


class TrainingError(RegardError):
    """Training that cannot go on: not a number, a second trainer in the same folder."""


class NoRoomError(RegardError):
    """The disk is full."""


class BusyError(TrainingError):
    """Somebody else is at work in the same folder."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known word, or all of them when nothing is near.

    >>> did_you_mean("widht", ["width", "layers"])
    'did you mean "width"?'
    """
    known = sorted(known)
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    return "known: " + ", ".join(known) if known else None
