"""Training speed: target tokens a second of the same small Transformer, `transformers` against
ours.

    python -m bench.training_speed

Multi30k English to German, 10,000 byte-level pieces of both languages together. The peer's batch is
a number of sentences grouped by length; ours holds as many target tokens on average. Both sides
count real target tokens only. Two sizes of batch: 32 sentences, at which the peer is fastest, and
128, the usual size for such a model.
"""

from __future__ import annotations

import gzip
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bench import measure, ours
from bench.measure import Speed
from bench.peers import hf

VOCABULARY = 10_000
SENTENCES = (32, 128)  # in a batch of the peer
PAD, START, END = 0, 1, 2
Ids = list[int]


def corpus(folder: Path, part: str = "train") -> tuple[Tokenizer, list[tuple[Ids, Ids]]]:
    """The pieces, made on the training part, and the pairs of one part as ids, each side with
    its end mark."""

    def lines(name: str) -> list[str]:
        with gzip.open(folder / "multi30k" / f"{name}.gz", "rt", encoding="utf-8") as file:
            return file.read().splitlines()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines("train.en") + lines("train.de"), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    english, german = (
        tokenizer.encode_batch(lines(f"{part}.{language}")) for language in ("en", "de")
    )
    return tokenizer, [
        (source.ids, target.ids) for source, target in zip(english, german, strict=True)
    ]


def prepare(name: str, given: Namespace) -> Callable[[int], Speed]:
    """A side, ready to take its turns; round n is with the n-th size of SENTENCES, over and
    over."""
    tokenizer, pairs = corpus(given.data)
    vocabulary, clock = tokenizer.get_vocab_size(), {"warmup": given.warmup, "steps": given.steps}
    mean = sum(len(target) for _, target in pairs) / len(pairs)
    model = (
        hf.make(vocabulary, given.seed, pad=PAD, end=END)
        if name == "peer"
        else ours.make(vocabulary, given.seed)
    )

    def turn(number: int) -> Speed:
        size, seed = SENTENCES[number % len(SENTENCES)], given.seed + number
        if name == "peer":
            return hf.train_steps(model, tokenizer, pairs, sentences=size, seed=seed, **clock)
        return ours.train_steps(model, pairs, tokens=round(size * mean), seed=seed, **clock)

    return turn


def main() -> None:
    parser = measure.options(__doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=20, help="steps on the clock in a round")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them")
    given = parser.parse_args()
    given.rounds *= len(SENTENCES)
    rates = measure.take_turns(prepare, given)

    figures = {}
    for n, size in enumerate(SENTENCES):
        figures[str(size)] = measure.summary(
            {name: values[n :: len(SENTENCES)] for name, values in rates.items()}
        )
        print(f"{size} sentences\n{measure.told(figures[str(size)])}")
    if given.only is None:
        setting = {"warmup": given.warmup, "steps": given.steps}
        record = {
            "unit": "target tokens/s",
            "setting": setting,
            "figures": figures,
            "facts": measure.facts(given),
        }
        print(measure.write("training_speed", record))


if __name__ == "__main__":
    main()
