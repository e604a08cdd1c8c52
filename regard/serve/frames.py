"""Messages between the web process and an engine process, as bytes.

    4 bytes   length of the header, little-endian
    4 bytes   length of the rest
    header    JSON
    rest      raw bytes: the file of a sound or picture, or nothing

Both ends are this program, but a frame is still checked, so that an engine process that fails while
it writes cannot make the web process read for ever.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

LENGTHS = struct.Struct("<II")
LARGE = 1 << 18  # bytes of a frame after which a reader lets others go on
MAX_HEADER = 64_000_000
MAX_REST = 64_000_000


class Frame(NamedTuple):
    header: dict[str, Any]
    rest: bytes = b""

    def to_bytes(self) -> bytes:
        """
        >>> len(Frame({"a": 1}, b"xyz").to_bytes())
        18
        """
        header = _json(self.header)
        return LENGTHS.pack(len(header), len(self.rest)) + header + self.rest


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _json(value: object) -> bytes:
    return _encode(value).encode("utf-8", "surrogatepass")


def groups(items: Sequence[Any], size: int) -> Iterator[tuple[list[Any], int]]:
    """The items in groups whose JSON has at most `size` bytes, each with its number of bytes. Only
    a group of one item may be larger.

    >>> list(groups(["aaa", "bbb", "c" * 20, "d"], 12))
    [(['aaa', 'bbb'], 10), (['cccccccccccccccccccc'], 22), (['d'], 3)]
    """
    group: list[Any] = []
    total = 0
    for item in items:
        length = len(_json(item))
        if group and total + length > size:
            yield group, total
            group = []
            total = 0
        group.append(item)
        total += length
    if group:
        yield group, total


class BrokenFrame(Exception):
    """Bytes that are no frame, or a frame of which the end is missing."""


class FrameBuffer:
    """Frames out of bytes that come in pieces.

    >>> buffer = FrameBuffer()
    >>> content = Frame({"a": 1}).to_bytes()
    >>> buffer.add(content[:9]), buffer.add(content[9:])
    ([], [Frame(header={'a': 1}, rest=b'')])
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, content: bytes) -> list[Frame]:
        """The frames that are complete now."""
        self._bytes += content
        frames = []
        start = 0
        while len(self._bytes) - start >= LENGTHS.size:
            header_length, rest_length = _lengths(self._bytes[start : start + LENGTHS.size])
            header_start = start + LENGTHS.size
            rest_start = header_start + header_length
            end = rest_start + rest_length
            if len(self._bytes) < end:
                break
            header = bytes(self._bytes[header_start:rest_start])
            rest = bytes(self._bytes[rest_start:end])
            frames.append(_frame(header, header_length, rest, rest_length))
            start = end
        del self._bytes[:start]
        return frames


async def read_frame_async(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame of a stream; None at its end."""
    try:
        lengths = await reader.readexactly(LENGTHS.size)
    except asyncio.IncompleteReadError as problem:
        if not problem.partial:
            return None
        raise BrokenFrame("cut inside a frame") from None
    header_length, rest_length = _lengths(lengths)
    try:
        header = await reader.readexactly(header_length)
        rest = await reader.readexactly(rest_length)
    except asyncio.IncompleteReadError:
        raise BrokenFrame("cut inside a frame") from None
    if header_length > LARGE:  # reading many of them must not hold up everything else
        await asyncio.sleep(0)
    return _frame(header, header_length, rest, rest_length)


def _lengths(raw: bytes | bytearray) -> tuple[int, int]:
    if len(raw) < LENGTHS.size:
        raise BrokenFrame("cut inside a frame")
    header, rest = LENGTHS.unpack(raw)
    if header > MAX_HEADER or rest > MAX_REST:
        raise BrokenFrame(f"a frame of {header:,} + {rest:,} bytes")
    return header, rest


def _frame(header: bytes, header_length: int, rest: bytes, rest_length: int) -> Frame:
    if len(header) != header_length or len(rest) != rest_length:
        raise BrokenFrame("cut inside a frame")
    return Frame(json.loads(header.decode("utf-8", "surrogatepass")), rest)
