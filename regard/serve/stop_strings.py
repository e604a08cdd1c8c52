"""Stop strings in a text that is still coming."""

from __future__ import annotations

from collections.abc import Sequence


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
        found = [
            (place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0
        ]
        if found:
            self.found = True
            self._held_back = ""
            return text[: min(found)[1]]
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
