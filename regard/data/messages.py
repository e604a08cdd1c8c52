"""Conversations as in OpenAI's fine-tuning files, one a line:
`{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regard.data.examples import DialogueExample, dialogue_key
from regard.data.lines import EMPTY, SYSTEM, UNANSWERED, Tally, clean_text
from regard.data.replies import one_line, usable_turns
from regard.tokenizers import OTHER, SELF

SYSTEM_ROLES = ("system", "developer")  # newer files call it developer
SPEAKERS = {"user": OTHER, "assistant": SELF}
TURN_FORMS = 'a turn is a string, or {"role": "user" or "assistant", "content": "…"}'


def exchanges(row: Mapping[str, Any], tally: Tally) -> Iterator[tuple[str, str]]:
    """Each message of the assistant, with the last message of the user before it. Those marked with
    weight 0 are for reading only. What cannot be used is counted.

    >>> user, assistant = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo!"}
    >>> list(exchanges({"messages": [user, assistant]}, Tally()))
    [('Hi', 'Yo!')]
    """
    messages = row.get("messages")
    if not isinstance(messages, list):
        tally.skip("no list of messages")
        return

    prompt: str | None = None
    is_answered = True
    for message in messages:
        speaker = _speaker(message, tally)
        if speaker is None:
            continue
        text = content_text(message.get("content"))
        if speaker == OTHER:
            if not is_answered:
                tally.skip(UNANSWERED)
            if text is None:
                tally.skip("content is not text")
            prompt = text
            is_answered = text is None
        elif text is None:
            tally.skip("content is not text")
        elif prompt is None:
            tally.skip("reply to no user message")
        elif message.get("weight") == 0:
            tally.skip("weight 0")
            is_answered = True
        else:
            is_answered = True
            yield prompt, text
    if not is_answered:
        tally.skip(UNANSWERED)


def role_replies(
    messages: Sequence[Mapping[str, Any]], tally: Tally, *, history: int
) -> Iterator[DialogueExample]:
    """Each message of the assistant as the answer to up to `history` messages before it, the last
    of which is the user's. With a history of 1 these are the pairs of `exchanges`.

    >>> user, assistant = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo!"}
    >>> list(role_replies([user, assistant, user, assistant], Tally(), history=3))[1].source
    'Hi\\nYo!\\nHi'
    """
    turns: list[tuple[str, str | None]] = []  # speakers, and texts (None: not text)
    weights: list[object] = []
    for message in messages:
        speaker = _speaker(message, tally)
        if speaker is None:
            continue
        text = content_text(message.get("content"))
        text = None if text is None else one_line(clean_text(text, tally))
        turns.append((speaker, text))
        weights.append(message.get("weight"))

    key = dialogue_key(text or "" for _, text in turns)
    is_answered = True
    last_prompt = 0  # the number of turns up to the user's last one
    for i, (speaker, text) in enumerate(turns):
        if text is None:
            tally.skip("content is not text")
        if speaker == OTHER:
            if not is_answered:
                tally.skip(UNANSWERED)
            is_answered = text is None
            last_prompt = i + 1
        elif text is None:
            continue
        elif last_prompt == 0 or turns[last_prompt - 1][1] is None:
            tally.skip("reply to no user message")
        elif weights[i] == 0:
            tally.skip("weight 0")
            is_answered = True
        else:
            is_answered = True
            window = turns[max(last_prompt - history, 0) : last_prompt]
            source = usable_turns([text for _, text in window])
            if not text or not source:
                tally.skip(EMPTY)
                continue
            speakers = "".join(speaker for speaker, _ in window[-len(source) :])
            tally.used += 1
            yield DialogueExample("\n".join(source), text, dialogue=key, speakers=speakers)
    if not is_answered:
        tally.skip(UNANSWERED)


def _speaker(message: object, tally: Tally) -> str | None:
    """Who speaks in a message; None, and counted, if it is neither the user nor the assistant."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str):
        tally.skip("message without a role")
    elif role in SYSTEM_ROLES:
        tally.skip(SYSTEM)
    elif role not in SPEAKERS:
        tally.skip("message of another role")
    else:
        return SPEAKERS[role]
    return None


def content_text(content: Any) -> str | None:
    """The text of a message: a string, or a list of parts that are all text.

    >>> content_text([{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}])
    'two parts'
    >>> content_text([{"type": "image_url", "image_url": {"url": "…"}}]) is None
    True
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in content
    ]
    if not all(isinstance(text, str) for text in texts):
        return None
    return " ".join(map(str, texts))
