"""Decoding speed: tokens/s of greedy search with a key/value cache, `transformers` against ours.

    python -m bench.decoding_speed

The model and tokenizer are those of bench.training_speed, untrained. The end token is disabled, and
both sides end each answer at the length of its reference translation, so that the lengths are
realistic and equal. Batches have one sentence, as in a conversation, or 128, as for a file. Only
tokens of answers are counted; work on finished rows is not.
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

# Sentences in a batch: batches in a round.
BATCHES = {1: 24, 128: 3}


def timed(greedy: Search, pairs: Pairs, size: int) -> Speed:
    """Speed over all pairs, `size` at a time, after one warm-up batch."""
    chunks = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    tokens = 0
    start = 0.0
    for number, chunk in enumerate([chunks[0], *chunks]):
        start = time.perf_counter() if number == 1 else start
        lengths = [len(target) - 1 for _, target in chunk]
        answers = greedy([source for source, _ in chunk], lengths)
        assert [len(answer) for answer in answers] == lengths
        tokens += sum(lengths) if number else 0
    return Speed(tokens, time.perf_counter() - start)


def prepare(name: str, args: Namespace) -> Callable[[int], Speed]:
    """One side of the comparison; its rounds cycle through the batch sizes of BATCHES."""
    tokenizer, pairs = corpus(args.data, "val")
    vocabulary = tokenizer.get_vocab_size()
    sizes = list(BATCHES)
    search: Search
    if name == "peer":
        peer = hf.never_end(hf.make(vocabulary, args.seed, pad=PAD, end=END))
        search = lambda sources, lengths: hf.greedy(peer, sources, lengths)  # noqa: E731
    else:
        model = ours.never_end(ours.make(vocabulary, args.seed))
        search = lambda sources, lengths: ours.greedy(model, sources, lengths)  # noqa: E731

    def turn(number: int) -> Speed:
        size = sizes[number % len(sizes)]
        return timed(search, pairs[: size * BATCHES[size]], size)

    return turn


def main() -> None:
    args = measure.options(__doc__, rounds=5).parse_args()
    args.rounds *= len(BATCHES)
    rates = measure.take_turns(prepare, args)
    figures = measure.summaries(rates, {f"batch {size}": f"batch {size}" for size in BATCHES})
    if args.only is None:
        setting = {"batches": {f"batch {size}": count for size, count in BATCHES.items()}}
        record = {
            "unit": "tokens/s",
            "setting": setting,
            "figures": figures,
            "facts": measure.facts(args),
        }
        print(measure.write("decoding_speed", record))


if __name__ == "__main__":
    main()
