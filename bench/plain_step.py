"""Decoding one sentence without a C compiler: a step by modules against a step by functions.

    python -m bench.plain_step

The decoder is that of bench.decoding_speed: 4 layers, width 128. The ways read the same tokens of
one row over a memory of 14 places, in turns in one process, so that other programs slow all alike.
It prints the median processor time of a step and the ratio, which docs/log.md records. The C
library is the third way.
"""

from __future__ import annotations

import statistics
import time

import torch

from bench import ours
from regard.decoders import TransformerDecoder
from regard.layers.fused_step import FusedStep
from regard.layers.torch_step import TorchStep
from regard.values import State, Step

VOCABULARIES = 1000, 10_000
PLACES, LENGTH, ROUNDS = 14, 24, 100


def main() -> None:
    torch.set_num_threads(1)
    for vocabulary in VOCABULARIES:
        medians = measured(vocabulary)
        print(f"vocabulary {vocabulary}")
        for name, seconds in medians.items():
            ratio = medians["functions"] / seconds
            print(f"{name:10} {1e6 * seconds:7.0f} us a step, {ratio:.2f} of functions' speed")


def measured(vocabulary: int) -> dict[str, float]:
    """The median seconds of a step, by way."""
    model = ours.never_end(ours.make(vocabulary, seed=1))
    decoder = model.decoder
    assert isinstance(decoder, TransformerDecoder)
    parts = decoder.embedding, decoder.positions, list(decoder.blocks)
    by_functions = TorchStep(*parts, decoder.final_norm, decoder.output)
    fused = FusedStep(*parts, decoder.final_norm, decoder.output)
    ways = {"modules": decoder.step_by_modules, "functions": by_functions.step, "C": fused.step}

    raw = torch.randint(3, vocabulary, (1, PLACES))
    tokens = torch.randint(3, vocabulary, (LENGTH, 1))
    with torch.inference_mode():
        start = decoder.start(model.encode(raw, torch.ones_like(raw, dtype=torch.bool)))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 5):
            for name, step in ways.items():
                seconds = timed(step, start, tokens)
                if number >= 5:  # the first rounds warm up
                    times[name].append(seconds / LENGTH)
    return {name: statistics.median(values) for name, values in times.items()}


def timed(step, state: State, tokens: torch.Tensor) -> float:
    begin = time.process_time()
    for token in tokens:
        result: Step = step(token, state)
        state = result.state
    return time.process_time() - begin


if __name__ == "__main__":
    main()
