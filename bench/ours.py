"""Our side of the comparisons with other implementations.

The model of both speed benchmarks has the sizes of `bench.peers.hf.make`: a Transformer of 4+4
layers, width 128, 4 heads, ffn_width 256 (ReLU), dropout 0.1, source, target and output embeddings
tied. Token ids come from `training_speed.corpus`: 0 is padding, 1 the start and 2 the end token;
sources and targets end in 2 and contain neither 0 nor 1.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from bench.measure import Speed
from regard import evaluate, recipe
from regard.bundle import Bundle, load
from regard.data.batches import batches
from regard.decoders import TransformerDecoder
from regard.encoders import TransformerEncoder
from regard.frontends import Tokens
from regard.layers.positions import Sinusoidal
from regard.layers.sizes import TransformerSizes
from regard.model import Model
from regard.optimise import factor, optimiser
from regard.search import Engine, Options, Outputs, SpecialTokens
from regard.tasks.task import Batch, padded
from regard.train import keep_memory, train

Ids = list[int]
START, END, WIDTH = 1, 2, 128


def make(vocabulary: int, seed: int) -> Model:
    """The model, untrained."""
    keep_memory()  # as `regard train` does
    torch.manual_seed(seed)
    sizes = TransformerSizes(layers=4, width=WIDTH, heads=4, ffn_width=256, dropout=0.1)
    model = Model(
        frontend=Tokens(vocabulary=vocabulary, width=WIDTH, dropout=0.1),
        encoder=TransformerEncoder(sizes, inputs=WIDTH, positions=Sinusoidal(width=WIDTH)),
        decoder=TransformerDecoder(
            sizes,
            vocabulary=vocabulary,
            memory_width=WIDTH,
            positions=Sinusoidal(width=WIDTH),
            tied=True,
        ),
    )
    model.frontend.embedding = model.decoder.embedding
    return model


def train_steps(
    model: Model,
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    tokens: int,
    warmup: int,
    steps: int,
    seed: int,
) -> Speed:
    """The speed of `steps` training steps after `warmup` others.

    Label smoothing 0.1, AdamW, gradient clipping at norm 1. `tokens` is the mean number of target
    tokens in a batch, equal to that of the peer's batches; sentences are batched as in `regard
    train`. The result has the target tokens (end tokens included, padding not) and the seconds from
    the end of the last warm-up step to the end of the last step, so that making batches counts.
    `seed` determines the order of the data.
    """
    settings = recipe.Train(steps=warmup + steps, schedule="constant")
    adam = optimiser(model, settings)
    model.train()
    counted = 0
    start = 0.0
    for step, batch in enumerate(itertools.islice(_batches(pairs, tokens, seed), warmup + steps)):
        if step == warmup:
            start = time.perf_counter()
        total = int(batch.real.sum())
        loss, _ = model.loss(*batch, smoothing=0.1)
        (loss / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        for group in adam.param_groups:
            group["lr"] = group["peak"] * factor(settings, step, 0.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        counted += total if step >= warmup else 0
    return Speed(counted, time.perf_counter() - start)


def _batches(pairs: Sequence[tuple[Ids, Ids]], tokens: int, seed: int) -> Iterator[Batch]:
    source_lengths = np.array([len(source) for source, _ in pairs])
    target_lengths = np.array([len(target) for _, target in pairs])
    # Our batches count the tokens of both sides.
    size = round(tokens * (source_lengths.mean() + target_lengths.mean()) / target_lengths.mean())
    for epoch in itertools.count():
        for index in batches(source_lengths, target_lengths, tokens=size, seed=seed, epoch=epoch):
            raw, mask = padded([np.array(pairs[i][0]) for i in index])
            inputs, real = padded([np.array([START, *pairs[i][1][:-1]]) for i in index])
            targets, _ = padded([np.array(pairs[i][1]) for i in index])
            yield Batch(raw, mask, inputs, targets, real)


def never_end(model: Model) -> Model:
    """The model with end and padding tokens disabled by the output bias, which costs no time."""
    model.decoder.output.bias.data[[0, END]] = -1e9
    return model.eval()


def greedy(model: Model, sources: Sequence[Ids], lengths: Sequence[int]) -> list[Ids]:
    """Greedy answers to a batch of sources, each of its given length, without special tokens."""
    engine = Engine(model, SpecialTokens(START, END), max_rows=len(sources))
    outputs = Outputs(weights=False, scores=False)
    requests = []
    for source, length in zip(sources, lengths, strict=True):
        raw, mask = padded([np.array(source)])
        options = Options(max_new_tokens=length)
        requests.append(engine.submit(raw, mask, options, outputs=outputs))
    engine.run()
    return [list(request.result()[0].tokens) for request in requests]


class Chatbot:
    """A trained chatbot, with the functions that bench.cornell needs."""

    def __init__(self, bundle: Bundle):
        self.bundle = bundle

    def nats(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Total -ln P(raw reply text and end token | raw prompt), over all pairs."""
        total = 0.0
        for start in range(0, len(pairs), 64):
            chunk = pairs[start : start + 64]
            raw, mask = self.bundle.task.read([prompt for prompt, _ in chunk])
            targets = [
                np.asarray(self.bundle.tokenizer.encode(reply), np.int64) for _, reply in chunk
            ]
            batch = self.bundle.task.batch([np.empty(0, np.int64)] * len(chunk), targets)
            with torch.inference_mode():
                total += float(self.bundle.model.loss(raw, mask, *batch[2:])[1])
        return total

    def replies(self, prompts: Sequence[str], *, greedy: bool) -> list[str]:
        """Replies by the recipe's search, or by plain greedy search."""
        return self.answered(prompts, Options() if greedy else None)

    def answered(self, prompts: Sequence[str], options: Options | None) -> list[str]:
        return evaluate.answers(self.bundle, prompts, options)


def chat(
    name: str,
    pairs: Sequence[tuple[str, str]],
    minutes: float,
    seed: int,
    overrides: Sequence[str] = (),
) -> Chatbot:
    """A chat recipe of ours, trained on all raw pairs for `minutes`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.tsv"
        run = Path(folder) / "run"
        file.write_text(
            "".join(f"{prompt}\t{reply}\n" for prompt, reply in pairs), encoding="utf-8"
        )
        data = [
            "data.kind=pairs",
            f'data.path="{file}"',
            "train.steps=",
            f"train.minutes={minutes}",
            f"seed={seed}",
        ]
        train(recipe.load(name, [*data, *overrides]), run, reporter=ProgressReporter())
        return Chatbot(load(run))


class ProgressReporter:
    """A training reporter that prints the start, validations and messages."""

    def began(self, facts) -> None:
        print(f"ours: {facts.examples} {sum(facts.parameters.values()):,} parameters", flush=True)

    def stepped(self, progress, loss, speed, done) -> None: ...

    def validated(self, record, samples) -> None:
        print(
            {key: value for key, value in record.items() if not isinstance(value, str)},
            samples,
            flush=True,
        )

    def noted(self, message: str) -> None:
        print(message, flush=True)
