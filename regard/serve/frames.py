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
from typing import Any, BinaryIO, NamedTuple

LENGTHS = struct.Struct("<II")
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
        header = json.dumps(self.header, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        )
        return LENGTHS.pack(len(header), len(self.rest)) + header + self.rest


class BrokenFrame(Exception):
    """Bytes that are no frame, or a frame of which the end is missing."""


def read_frame(file: BinaryIO) -> Frame | None:
    """The next frame of a blocking file; None at its end."""
    lengths = file.read(LENGTHS.size)
    if not lengths:
        return None
    header_length, rest_length = _lengths(lengths)
    return _frame(file.read(header_length), header_length, file.read(rest_length), rest_length)


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
    return _frame(header, header_length, rest, rest_length)


def _lengths(raw: bytes) -> tuple[int, int]:
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
