"""Decoding speed: tokens a second of greedy search with a cache, `transformers` against ours.

    python -m bench.decoding_speed

The model and pieces of bench.training_speed, untrained and unable to end, so both sides write exactly `max_new_tokens`
for every sentence: one sentence at a time, as in a conversation, and 128 together, as over a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from bench import measure, ours
from bench.measure import Speed
from bench.peers import hf
from bench.training_speed import END, PAD, Ids, corpus

# Sentences in a batch, and how many batches make a round.
BATCHES = {1: 16, 128: 1}


def timed(greedy: Callable[[Sequence[Ids]], list[Ids]], sources: Sequence[Ids], size: int) -> Speed:
    """All sources, `size` at a time, after one batch that does not count."""
    greedy(sources[:size])
    began, written = time.perf_counter(), 0
    for i in range(0, len(sources), size):
        written += sum(len(answer) for answer in greedy(sources[i : i + size]))
    return Speed(written, time.perf_counter() - began)


def main() -> None:
    parser = measure.options(__doc__, rounds=5)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    tokenizer, pairs = corpus(given.data, "val")
    vocabulary, longest = tokenizer.get_vocab_size(), given.max_new_tokens
    searches: dict[str, Callable[[Sequence[Ids]], list[Ids]]] = {}
    if given.only != "ours":
        theirs = hf.never_end(hf.make(vocabulary, given.seed, pad=PAD, end=END))
        searches["peer"] = lambda sources: hf.greedy(theirs, sources, longest)
    if given.only != "peer":
        model = ours.never_end(ours.make(vocabulary, given.seed))
        searches["ours"] = lambda sources: ours.greedy(model, sources, longest)

    figures = {}
    for size, batches in BATCHES.items():
        sources = [source for source, _ in pairs[: size * batches]]
        sides = {name: _side(search, sources, size) for name, search in searches.items()}
        figures[f"batch {size}"] = measure.summary(measure.take_turns(sides, given.rounds))
        print(f"batch {size}\n{measure.told(figures[f'batch {size}'])}")
    if given.only is None:
        setting = {"max_new_tokens": longest, "batches": {f"batch {size}": count for size, count in BATCHES.items()}}
        record = {"unit": "tokens/s", "setting": setting, "figures": figures, "facts": measure.facts(given.seed)}
        print(measure.write("decoding_speed", record))


def _side(search: Callable[[Sequence[Ids]], list[Ids]], sources: Sequence[Ids], size: int) -> Callable[[int], Speed]:
    return lambda number: timed(search, sources, size)


if __name__ == "__main__":
    main()
