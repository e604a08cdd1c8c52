"""The examples of a dialogue: each answer, with the turns before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.data.examples import DialogueExample, dialogue_key
from regard.data.lines import EMPTY, Tally
from regard.tokenizers import OTHER, SELF


def replies(
    turns: Sequence[str | None], tally: Tally, *, history: int = 1, missing: str = "missing turn"
) -> Iterator[DialogueExample]:
    """Every turn but the first as the answer to up to `history` turns before it, by two speakers in
    turn. Turns that are missing are None.

    >>> [example.source for example in replies(["Hi!", "Hello.", "Bye."], Tally(), history=2)]
    ['Hi!', 'Hi!\\nHello.']
    """
    texts = [None if turn is None else one_line(turn) for turn in turns]
    key = dialogue_key(text or "" for text in texts)
    for end in range(2, len(texts) + 1):
        window = texts[max(end - 1 - history, 0) : end]
        yield from last_reply(window, tally, key=key, missing=missing)


def last_reply(
    turns: Sequence[str | None], tally: Tally, *, key: bytes, missing: str = "missing turn"
) -> Iterator[DialogueExample]:
    """The last of some turns as the answer to those before it; `key` identifies the dialogue.

    A turn that is empty, or None because it is missing, cannot be used: neither as an answer nor as
    what is answered, and a history begins after it.
    """
    *history, reply = turns
    if reply is None or history[-1] is None:
        tally.skip(missing)
    elif not reply or not history[-1]:
        tally.skip(EMPTY)
    else:
        usable = usable_turns(history)
        tally.used += 1
        yield DialogueExample("\n".join(usable), reply, dialogue=key, speakers=in_turn(len(usable)))


def usable_turns(window: Sequence[str | None]) -> list[str]:
    """The turns after the last one that cannot be used."""
    usable: list[str] = []
    for turn in reversed(window):
        if not turn:
            break
        usable.append(turn)
    return usable[::-1]


def one_line(text: str) -> str:
    """A turn in one line: line breaks separate turns."""
    return " ".join(text.split())


def in_turn(count: int) -> str:
    """The speakers of so many turns, if two speak in turn and the last one is not who answers.

    >>> in_turn(3), in_turn(2)
    ('oso', 'so')
    """
    return ((SELF + OTHER) * count)[-count:] if count else ""
