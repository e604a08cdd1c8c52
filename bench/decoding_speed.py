"""Decoding speed: tokens a second of greedy search with a cache, `transformers` against ours.

    python -m bench.decoding_speed

The model and pieces of bench.training_speed, untrained. It cannot end by itself; instead both sides
are told to end each answer at the length of its reference translation, so that lengths are those of
real use and the same for both: one sentence at a time, as in a conversation, and 128 together, as
over a file. What counts is tokens of answers; what a side computes for rows that have ended already
is its own affair.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence

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


def prepare(name: str, given: Namespace) -> Callable[[int], Speed]:
    """A side, ready to take its turns; round n is with the n-th size of BATCHES, over and over."""
    tokenizer, pairs = corpus(given.data, "val")
    vocabulary, sizes = tokenizer.get_vocab_size(), list(BATCHES)
    search: Search
    if name == "peer":
        theirs = hf.never_end(hf.make(vocabulary, given.seed, pad=PAD, end=END))
        search = lambda sources, lengths: hf.greedy(theirs, sources, lengths)  # noqa: E731
    else:
        model = ours.never_end(ours.make(vocabulary, given.seed))
        search = lambda sources, lengths: ours.greedy(model, sources, lengths)  # noqa: E731

    def turn(number: int) -> Speed:
        size = sizes[number % len(sizes)]
        return timed(search, pairs[: size * BATCHES[size]], size)

    return turn


def main() -> None:
    given = measure.options(__doc__, rounds=5).parse_args()
    given.rounds *= len(BATCHES)
    rates = measure.take_turns(prepare, given)

    figures = {}
    for n, size in enumerate(BATCHES):
        own = measure.summary({name: values[n :: len(BATCHES)] for name, values in rates.items()})
        figures[f"batch {size}"] = own
        print(f"batch {size}\n{measure.told(own)}")
    if given.only is None:
        setting = {"batches": {f"batch {size}": count for size, count in BATCHES.items()}}
        record = {
            "unit": "tokens/s",
            "setting": setting,
            "figures": figures,
            "facts": measure.facts(given),
        }
        print(measure.write("decoding_speed", record))


if __name__ == "__main__":
    main()
