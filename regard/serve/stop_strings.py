"""Stop strings in a text that is still coming."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

Token = TypeVar("Token")


class StopStrings:
    """Holds back the end of a text as long as it may be the beginning of a stop string.

    >>> stops = StopStrings(["END"])
    >>> stops.add("the E"), stops.add("N"), stops.add("g"), stops.found
    ('the ', '', 'ENg', False)
    >>> stops.add("END of it"), stops.found
    ('', True)
    """

    def __init__(self, stops: Sequence[str]):
        self.found = False
        self._stops = [stop for stop in stops if stop]
        self._held_back = ""

    def add(self, text: str) -> str:
        """The part of the text so far that is certain not to be in a stop string, and has not been
        returned before. Nothing comes after a stop string."""
        if self.found:
            return ""
        text = self._held_back + text
        # The one that is complete first, however the text is cut into pieces.
        places = [
            (place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0
        ]
        if places:
            self.found = True
            self._held_back = ""
            return text[: min(places)[1]]
        count = self._possible_beginning(text)
        self._held_back = text[len(text) - count :]
        return text[: len(text) - count]

    def rest(self) -> str:
        """What was held back, at the end of the text."""
        rest = self._held_back
        self._held_back = ""
        return rest

    def _possible_beginning(self, text: str) -> int:
        """The length of the longest end of the text that a stop string begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for count in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - count :]
            if any(stop.startswith(end) for stop in self._stops):
                return count
        return 0


class TokensBeforeStop(Generic[Token]):
    """Holds back tokens as long as their text may be in a stop string.

    A token comes with its own text, once all of that is certain. If a stop string begins inside
    the text of a token, this is the last one, and its text ends there; so the texts together are
    the text before the stop string. A token without text, which ends inside a character, belongs
    to the next one that has text.

    >>> tokens = TokensBeforeStop(["END"])
    >>> tokens.add(1, "the"), tokens.add(2, " EN"), tokens.add(3, "D"), tokens.found
    ([(1, 'the')], [], [(2, ' ')], True)
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = StopStrings(stops)
        self._waiting: deque[tuple[Token, str]] = deque()
        self._certain = 0  # characters of those waiting that are in no stop string

    @property
    def found(self) -> bool:
        return self._stops.found

    def add(self, token: Token, text: str) -> list[tuple[Token, str]]:
        """The tokens that are certain now. None comes after a stop string."""
        self._waiting.append((token, text))
        self._certain += len(self._stops.add(text))
        tokens = self._take_whole()
        if self.found:
            while self._certain:
                token, text = self._waiting.popleft()
                tokens.append((token, text[: self._certain]))
                self._certain -= len(tokens[-1][1])
            self._waiting.clear()
        return tokens

    def rest(self) -> list[tuple[Token, str]]:
        """What was held back, at the end of the text."""
        tokens = list(self._waiting)
        self._waiting.clear()
        self._certain = 0
        return tokens

    def _take_whole(self) -> list[tuple[Token, str]]:
        """The tokens up to the last one with text, all of which is certain."""
        count = 0
        length = 0
        for number, (_, text) in enumerate(self._waiting, 1):
            length += len(text)
            if length > self._certain:
                break
            if text:
                count = number
        tokens = [self._waiting.popleft() for _ in range(count)]
        self._certain -= sum(len(text) for _, text in tokens)
        return tokens
