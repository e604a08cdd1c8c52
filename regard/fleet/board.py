"""The board: an actor to which tasks write how far they are, and which the driver reads.

A task that asks something (may I go on?) waits until the driver has answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

# The number of a question, or None; the key of the task; a kind; JSON.
Message = tuple[int | None, str, str, str]


class Board:
    """The messages of tasks, until the driver takes them. Ray runs it as an actor."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.has_messages = asyncio.Event()
        self.questions: dict[int, asyncio.Future[bool]] = {}
        self.question_count = 0

    async def tell(self, key: str, kind: str, content: str) -> None:
        self._put((None, key, kind, content))

    async def ask(self, key: str, kind: str, content: str) -> bool:
        """The driver's answer."""
        self.question_count += 1
        question = self.questions[self.question_count] = asyncio.get_running_loop().create_future()
        self._put((self.question_count, key, kind, content))
        return await question

    async def take(self, seconds: float) -> list[Message]:
        """All messages, or none if none comes in this time."""
        try:
            await asyncio.wait_for(self.has_messages.wait(), seconds)
        except TimeoutError:
            return []
        self.has_messages.clear()
        messages, self.messages = self.messages, []
        return messages

    async def answer(self, question: int, value: bool) -> None:
        waiting: Any = self.questions.pop(question, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(value)

    def _put(self, message: Message) -> None:
        self.messages.append(message)
        self.has_messages.set()
