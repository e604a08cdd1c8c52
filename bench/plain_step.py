"""Decoding one sentence without a C compiler: a step by modules against a step by functions.

    REGARD_NATIVE=0 python -m bench.plain_step

The decoder is that of bench.decoding_speed: 4 layers, width 128. Both ways read the same tokens of
one row over a memory of 14 places, in turns in one process, so that other programs slow both alike.
It prints the median time of a step and the ratio, which docs/log.md records.
"""

from __future__ import annotations

import os
import statistics
import time

import torch

from bench import ours
from regard.layers.fused_step import FusedStep
from regard.layers.torch_step import TorchStep
from regard.values import State, Step

VOCABULARY, PLACES, LENGTH, ROUNDS = 8000, 14, 24, 60


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model = ours.never_end(ours.make(VOCABULARY, seed=1))
    decoder = model.decoder
    parts = decoder.embedding, decoder.positions, list(decoder.blocks)
    by_functions = TorchStep(*parts, decoder.final_norm, decoder.output)
    fused = FusedStep(*parts, decoder.final_norm, decoder.output)
    ways = {"modules": decoder.step_by_modules, "functions": by_functions.step, "C": fused.step}

    raw = torch.randint(3, VOCABULARY, (1, PLACES))
    tokens = torch.randint(3, VOCABULARY, (LENGTH, 1))
    with torch.inference_mode():
        start = decoder.start(model.read(raw, torch.ones_like(raw, dtype=torch.bool)))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 5):
            for name, step in ways.items():
                seconds = timed(step, start, tokens)
                if number >= 5:  # the first rounds warm up
                    times[name].append(seconds / LENGTH)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in medians.items():
        ratio = medians["functions"] / seconds
        print(f"{name:10} {1e6 * seconds:7.0f} us a step, {ratio:.2f} of the speed of functions")


def timed(step, state: State, tokens: torch.Tensor) -> float:
    begin = time.perf_counter()
    for token in tokens:
        result: Step = step(token, state)
        state = result.state
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
