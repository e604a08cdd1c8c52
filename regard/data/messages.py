"""Conversations as in OpenAI's fine-tuning files, one a line:
`{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regard.data.lines import SYSTEM, UNANSWERED, Tally

SYSTEM_ROLES = ("system", "developer")  # newer files call it developer


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
        role = message.get("role") if isinstance(message, dict) else None
        if role in SYSTEM_ROLES:
            tally.skip(SYSTEM)
            continue
        if role not in ("user", "assistant"):
            tally.skip(
                "message of another role" if isinstance(role, str) else "message without a role"
            )
            continue

        text = content_text(message.get("content"))
        if role == "user":
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
