"""Decoding speed: tokens a second of greedy search with a cache, `transformers` against ours.

    python -m bench.decoding_speed

The model and pieces of bench.training_speed, untrained. It cannot end by itself; instead both sides are told to end
each answer at the length of its reference translation, so that lengths are those of real use and the same for both:
one sentence at a time, as in a conversation, and 128 together, as over a file. What counts is tokens of answers; what
a side computes for rows that have ended already is its own affair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from bench import measure, ours
from bench.measure import Speed
from bench.peers import hf
from bench.training_speed import END, PAD, Ids, corpus

Pairs = list[tuple[Ids, Ids]]
Search = Callable[[Sequence[Ids], Sequence[int]], list[Ids]]

# Sentences in a batch, and how many batches make a round.
BATCHES = {1: 24, 128: 3}


def timed(greedy: Search, pairs: Pairs, size: int) -> Speed:
    """All pairs, `size` at a time, after one batch that does not count."""
    chunks = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    written, began = 0, 0.0
    for number, chunk in enumerate([chunks[0], *chunks]):
        began = time.perf_counter() if number == 1 else began
        lengths = [len(target) - 1 for _, target in chunk]
        answers = greedy([source for source, _ in chunk], lengths)
        assert [len(answer) for answer in answers] == lengths
        written += sum(lengths) if number else 0
    return Speed(written, time.perf_counter() - began)


def main() -> None:
    parser = measure.options(__doc__, rounds=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    tokenizer, pairs = corpus(given.data, "val")
    vocabulary = tokenizer.get_vocab_size()
    searches: dict[str, Search] = {}
    if given.only != "ours":
        theirs = hf.never_end(hf.make(vocabulary, given.seed, pad=PAD, end=END))
        searches["peer"] = lambda sources, lengths: hf.greedy(theirs, sources, lengths)
    if given.only != "peer":
        model = ours.never_end(ours.make(vocabulary, given.seed))
        searches["ours"] = lambda sources, lengths: ours.greedy(model, sources, lengths)

    figures = {}
    for size, batches in BATCHES.items():
        sides = {name: _side(search, pairs[: size * batches], size) for name, search in searches.items()}
        figures[f"batch {size}"] = measure.summary(measure.take_turns(sides, given.rounds))
        print(f"batch {size}\n{measure.told(figures[f'batch {size}'])}")
    if given.only is None:
        setting = {"batches": {f"batch {size}": count for size, count in BATCHES.items()}}
        record = {"unit": "tokens/s", "setting": setting, "figures": figures, "facts": measure.facts(given.seed)}
        print(measure.write("decoding_speed", record))


def _side(search: Search, pairs: Pairs, size: int) -> Callable[[int], Speed]:
    return lambda number: timed(search, pairs, size)


if __name__ == "__main__":
    main()
