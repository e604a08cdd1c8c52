"""Training speed: target tokens/s of the same small Transformer, `transformers` against ours.

    python -m bench.training_speed

Multi30k English to German, a joint byte-level BPE vocabulary of 10,000. The peer's batch is a
number of sentences grouped by length; ours has the same number of target tokens on average. Padding
is not counted. There are two batch sizes: 32 sentences, at which the peer is fastest, and 128, the
usual size for such a model.
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


def corpus(folder: Path, split: str = "train") -> tuple[Tokenizer, list[tuple[Ids, Ids]]]:
    """The BPE tokenizer, trained on the training split, and the pairs of one split as token ids,
    each side with its end token."""

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
        tokenizer.encode_batch(lines(f"{split}.{language}")) for language in ("en", "de")
    )
    return tokenizer, [
        (source.ids, target.ids) for source, target in zip(english, german, strict=True)
    ]


def prepare(name: str, args: Namespace) -> Callable[[int], Speed]:
    """One side of the comparison; its rounds cycle through the batch sizes of SENTENCES."""
    tokenizer, pairs = corpus(args.data)
    vocabulary = tokenizer.get_vocab_size()
    schedule = {"warmup": args.warmup, "steps": args.steps}
    mean = sum(len(target) for _, target in pairs) / len(pairs)
    if name == "peer":
        peer = hf.make(vocabulary, args.seed, pad=PAD, end=END)
    else:
        own = ours.make(vocabulary, args.seed)

    def peer_turn(number: int) -> Speed:
        size = SENTENCES[number % len(SENTENCES)]
        seed = args.seed + number
        return hf.train_steps(peer, tokenizer, pairs, sentences=size, seed=seed, **schedule)

    def own_turn(number: int) -> Speed:
        tokens = round(SENTENCES[number % len(SENTENCES)] * mean)
        return ours.train_steps(own, pairs, tokens=tokens, seed=args.seed + number, **schedule)

    return peer_turn if name == "peer" else own_turn


def main() -> None:
    parser = measure.options(__doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=20, help="timed steps in a round")
    parser.add_argument("--warmup", type=int, default=4, help="warm-up steps before them")
    args = parser.parse_args()
    args.rounds *= len(SENTENCES)
    rates = measure.take_turns(prepare, args)
    figures = measure.summaries(rates, {str(size): f"{size} sentences" for size in SENTENCES})
    if args.only is None:
        setting = {"warmup": args.warmup, "steps": args.steps}
        record = {
            "unit": "target tokens/s",
            "setting": setting,
            "figures": figures,
            "facts": measure.facts(args),
        }
        print(measure.write("training_speed", record))


if __name__ == "__main__":
    main()
