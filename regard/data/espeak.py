"""One voice of eSpeak NG speaks, in a process of its own: jobs as JSON on stdin, the rate, lengths
and 16-bit samples on stdout. It imports nothing of regard, so that it starts at once.

    echo '[["en-us+f3", "open the door", 170, 50, 50]]' | python -m regard.data.espeak > samples
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from collections.abc import Iterable

RETRIEVE, UTF8_AND_ENDS = 2, 1 | 0x1000  # constants of speak_lib.h
RATE, PITCH, RANGE = 1, 3, 4


def say(jobs: Iterable[tuple[str, str, int, int, int]]) -> tuple[int, list[bytes]]:
    """The rate, and the samples of each (voice, text, speed, pitch, range)."""
    import espeakng_loader

    speech = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = speech.espeak_Initialize(RETRIEVE, 0, str(espeakng_loader.get_data_path()).encode(), 0)
    if rate < 1:
        raise RuntimeError(f"eSpeak NG does not start: {rate}")
    speech.espeak_ng_SetRandSeed(ctypes.c_long(1))  # else it is the time
    pieces: list[bytes] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def receive(samples, count, _):
        if samples and count > 0:
            pieces.append(ctypes.string_at(samples, 2 * count))
        return 0

    speech.espeak_SetSynthCallback(receive)
    sounds = []
    for voice, text, speed, pitch, pitch_range in jobs:
        if speech.espeak_SetVoiceByName(voice.encode()):
            raise RuntimeError(f"no such voice: {voice}")
        for parameter, value in ((RATE, speed), (PITCH, pitch), (RANGE, pitch_range)):
            speech.espeak_SetParameter(parameter, value, 0)
        content = text.encode()
        size = ctypes.c_size_t(len(content) + 1)
        speech.espeak_Synth(content, size, 0, 0, 0, UTF8_AND_ENDS, None, None)
        speech.espeak_Synchronize()
        sounds.append(b"".join(pieces))
        pieces.clear()
    return rate, sounds


if __name__ == "__main__":
    rate, sounds = say(json.load(sys.stdin))
    lengths = [len(sound) // 2 for sound in sounds]
    sys.stdout.buffer.write(struct.pack(f"={1 + len(sounds)}i", rate, *lengths))
    sys.stdout.buffer.writelines(sounds)
