"""Conversations as inputs: lists of turns, which are strings or messages with a role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from regard.data.messages import SPEAKERS, SYSTEM_ROLES, TURN_FORMS, content_text
from regard.errors import InputError
from regard.fields import shown
from regard.tokenizers import OTHER, SELF


class Turn(NamedTuple):
    speaker: str  # OTHER or SELF
    text: str


def is_conversation(value: Any) -> bool:
    """Whether this is one conversation, rather than several inputs: a list of messages.

    >>> is_conversation([{"role": "user", "content": "Hi!"}]), is_conversation(["Hi!", "Hello."])
    (True, False)
    """
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and all(isinstance(turn, Mapping) for turn in value)


def read_turns(value: Sequence[Any]) -> list[Turn]:
    """The turns of a conversation, the last of which is to be answered. Messages say who speaks;
    those of the system are left out. Strings are by two speakers in turn, and the last one is by
    the other speaker.

    >>> [turn.speaker for turn in read_turns(["Hi!", "Hello.", "How are you?"])]
    ['o', 's', 'o']
    """
    numbered_turns = [(i, turn) for i, turn in enumerate(value, 1) if not _is_system(turn)]
    turns = []
    for number, turn in numbered_turns:
        turns_after = len(numbered_turns) - len(turns) - 1
        speaker = OTHER if turns_after % 2 == 0 else SELF
        text: Any = turn
        if isinstance(turn, Mapping):
            role = turn.get("role")
            text = content_text(turn.get("content"))
            speaker = SPEAKERS.get(role, "") if isinstance(role, str) else ""
        if not isinstance(text, str) or not speaker:
            place = f"turn {number} of {len(value)}"
            raise InputError("not a turn", where=place, got=shown(turn), hint=TURN_FORMS)
        turns.append(Turn(speaker, text))
    if not turns:
        raise InputError("the conversation is empty", hint=TURN_FORMS)
    if turns[-1].speaker == SELF:
        raise InputError(
            "the last turn is the assistant's, so there is nothing to answer",
            got=shown(turns[-1].text),
            hint="end with a turn of the user",
        )
    return turns


def as_options(text: str) -> tuple[list[str], str]:
    """A history, with a turn a line, as a command has it: the options of the turns before the last
    one, and the last one. Two speakers take turns there, whoever spoke in the data.

    >>> as_options("Hi!\\nHello.\\nHow are you?")
    (['--history', 'Hi!', '--history', 'Hello.'], 'How are you?')
    """
    *before, last = text.split("\n")
    return [word for turn in before for word in ("--history", turn)], last


def _is_system(turn: object) -> bool:
    return isinstance(turn, Mapping) and turn.get("role") in SYSTEM_ROLES
