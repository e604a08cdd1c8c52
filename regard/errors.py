"""One exception family: everything a person can cause ends in one of these, and in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

CONTROLS = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of text
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # halves of characters, as in file names that are not UTF-8
    "]"
)
SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(value: object) -> str:
    """A value as text that stays on its line: control characters are escaped, so that no file name,
    label, prompt or answer can move the cursor, colour the terminal, or look like a message of
    ours.

    >>> print(printable("seven\\x1b[31m\\nred\\u202e"))
    seven\\x1b[31m\\nred\\u202e
    """
    return CONTROLS.sub(_escaped, str(value))


def turn_lines(text: object) -> list[str]:
    """The turns of a history, which has one a line, as texts that stay on their lines."""
    return [printable(line) for line in str(text).split("\n")]


def turns_in_line(text: object) -> str:
    """The turns of a history in one line.

    >>> turns_in_line("Hi!\\nHello.\\nHow are you?")
    'Hi! / Hello. / How are you?'
    """
    return " / ".join(turn_lines(text))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in SHORT:
        return SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class RegardError(Exception):
    """What is wrong, where, what was received, and what is allowed or what to type next. `details`
    have a line each.

    >>> str(RegardError("no such recipe", where="recipes", got="chat-gro", hint="chat-gru?"))
    'recipes: no such recipe; got chat-gro; chat-gru?'
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        got: object = None,
        hint: str | None = None,
        details: Iterable[str] = (),
    ):
        self.what = what
        self.where = where
        self.got = got
        self.hint = hint
        self.details = tuple(details)
        head = what if where is None else f"{where}: {what}"
        received = None if got is None else f"got {got}"
        sentence = "; ".join(part for part in (head, received, hint) if part)
        super().__init__("\n  ".join(printable(line) for line in (sentence, *self.details)))


class RecipeError(RegardError):
    """A recipe, or an override of one, that cannot be read."""


class DataError(RegardError):
    """A corpus, or a file of inputs, that cannot be used."""


class BundleError(RegardError):
    """A run folder that is not one, or whose files are not what was saved."""


class OtherFormatError(BundleError):
    """A folder that an earlier or a later version wrote: not damaged, but not for this one."""


class InputError(RegardError):
    """An input or an option that this model or this verb cannot take."""


class TrainingError(RegardError):
    """Training that cannot go on: not a number, a second trainer in the same folder."""


class DivergedError(TrainingError):
    """Loss, gradients or weights are not finite any more: the settings themselves are the cause."""


class WriteError(RegardError):
    """A file that cannot be written: no permission, a limit on its size, a disk that fails."""

    def at(self, where: object) -> WriteError:
        """The same of another file."""
        return WriteError(self.what, where=where, got=self.got, hint=self.hint)


class NoRoomError(WriteError):
    """The disk, or what a person may use of it, is full. `needed` is None where nobody can say
    it beforehand."""

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        free: int = 0,
        needed: int | None = None,
        at_least: bool = False,
        hint: str | None = None,
    ):
        self.free = free
        self.needed = needed
        self.at_least = at_least
        numbers = f"{free:,} bytes free"
        if needed is not None:
            numbers += f", {'at least ' if at_least else ''}{needed:,} needed"
        super().__init__(what, where=where, got=numbers, hint=hint)

    def at(self, where: object) -> NoRoomError:
        return self._with(where, self.needed, self.at_least)

    def needing(self, count: int, *, at_least: bool = False) -> NoRoomError:
        """The same, with the bytes that were to be written in all."""
        return self._with(self.where, count, at_least)

    def _with(self, where: object, needed: int | None, at_least: bool) -> NoRoomError:
        return NoRoomError(
            self.what, where=where, free=self.free, needed=needed, at_least=at_least, hint=self.hint
        )


class NoMemoryError(RegardError):
    """More memory than there is."""


class BusyError(TrainingError):
    """Somebody else is at work in the same folder."""


class BegunError(TrainingError):
    """A new run was to begin where there is one already."""


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
