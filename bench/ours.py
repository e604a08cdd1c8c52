"""Our side of the benchmarks. They call nothing of the library but what is here.

The model of both speed benchmarks has the sizes of `bench.peers.hf.make`: a Transformer of 4+4
layers, width 128, 4 heads, FFN 256 (ReLU), dropout 0.1, source, target and output embeddings tied.
Ids come from `training_speed.corpus`: 0 pads, 1 starts, 2 ends; sources and targets both end in 2
and neither holds 0 or 1.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bench.measure import Speed
from regard import evaluate, recipe
from regard.bundle import Bundle, load
from regard.data.batches import batches
from regard.decoders import Decoder, TransformerDecoder
from regard.encoders import TransformerEncoder
from regard.frontends import Tokens
from regard.layers.positions import Sinusoidal
from regard.model import Model
from regard.optimise import factor, optimiser
from regard.search import Options, SpecialTokens, search
from regard.tasks.task import Batch, padded
from regard.train import keep_memory, train
from regard.values import Memory, State, Step

Ids = list[int]
START, END, WIDTH = 1, 2, 128


def make(vocabulary: int, seed: int) -> Model:
    """The model, untrained."""
    keep_memory()  # as `regard train` does
    torch.manual_seed(seed)
    sizes = dict(width=WIDTH, layers=4, heads=4, ffn_width=256, activation="relu", dropout=0.1)
    model = Model(
        frontend=Tokens(vocabulary=vocabulary, width=WIDTH, dropout=0.1),
        encoder=TransformerEncoder(inputs=WIDTH, positions=Sinusoidal(width=WIDTH), **sizes),
        decoder=TransformerDecoder(
            vocabulary=vocabulary,
            memory_width=WIDTH,
            positions=Sinusoidal(width=WIDTH),
            tied=True,
            **sizes,
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
    """`warmup` steps, then `steps` steps on the clock, with label smoothing 0.1, AdamW and clipping
    at norm 1.

    `tokens` is how many real target tokens a batch should hold on average: what the peer's batches
    hold. How sentences are put together is ours to choose. Returns the real target tokens (end
    marks counted, padding not) of the steps on the clock and their seconds, from the end of the
    last warm-up step to the end of the last step, so that making batches counts. Data order follows
    `seed`.
    """
    how = recipe.Train(steps=warmup + steps, schedule="constant")
    adam = optimiser(model, how)
    model.train()
    counted, began = 0, 0.0
    for step, batch in enumerate(itertools.islice(_batches(pairs, tokens, seed), warmup + steps)):
        if step == warmup:
            began = time.perf_counter()
        total = int(batch.real.sum())
        loss, _ = model.loss(*batch, smoothing=0.1)
        (loss / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        for group in adam.param_groups:
            group["lr"] = group["peak"] * factor(how, step, 0.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        counted += total if step >= warmup else 0
    return Speed(counted, time.perf_counter() - began)


def _batches(pairs: Sequence[tuple[Ids, Ids]], tokens: int, seed: int) -> Iterator[Batch]:
    source = np.array([len(s) for s, _ in pairs])
    target = np.array([len(t) for _, t in pairs])
    places = round(
        tokens * (source.mean() + target.mean()) / target.mean()
    )  # our batches count both sides
    for epoch in itertools.count():
        for index in batches(source, target, tokens=places, seed=seed, epoch=epoch):
            raw, mask = padded([np.array(pairs[i][0]) for i in index])
            given, real = padded([np.array([START, *pairs[i][1][:-1]]) for i in index])
            answers, _ = padded([np.array(pairs[i][1]) for i in index])
            yield Batch(raw, mask, given, answers, real)


def never_end(model: Model) -> Model:
    """The model with its end and padding marks made impossible, at no cost in the loop."""
    model.decoder.output.bias.data[[0, END]] = -1e9
    return model.eval()


class _EndAt:
    """A decoder that is told where each row ends. Each row carries its own end, so rows may move
    and leave."""

    def __init__(self, decoder: Decoder, ends: Sequence[int]):
        self.decoder, self.ends = decoder, torch.tensor(ends)

    def start(self, memory: Memory) -> State:
        return replace(self.decoder.start(memory), recurrent=(self.ends[None].float(),))

    def step(self, token: torch.Tensor, state: State) -> Step:
        step = self.decoder.step(token, state)
        step.logits[:, END].masked_fill_(state.position >= state.recurrent[0][0], 1e9)
        return step


def greedy(model: Model, sources: Sequence[Ids], lengths: Sequence[int]) -> list[Ids]:
    """One batch of sources, answered greedily, each to its length; only the produced tokens,
    without the marks."""
    with torch.inference_mode():
        memory = model.read(*padded([np.array(source) for source in sources]))
        decoder, options = _EndAt(model.decoder, lengths), Options(max_new_tokens=max(lengths) + 1)
        found = search(
            decoder, memory, SpecialTokens(START, END), options, weights=False, scores=False
        )
    return [list(row[0].tokens) for row in found]


class Chatbot:
    """What bench.cornell asks of a trained chatbot."""

    def __init__(self, bundle: Bundle):
        self.bundle = bundle

    def nats(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Total -ln P(raw reply text and end mark | raw prompt), over all pairs."""
        total = 0.0
        for start in range(0, len(pairs), 64):
            some = pairs[start : start + 64]
            raw, mask = self.bundle.task.read([prompt for prompt, _ in some])
            targets = [
                np.asarray(self.bundle.tokenizer.encode(reply), np.int64) for _, reply in some
            ]
            batch = self.bundle.task.batch([np.empty(0, np.int64)] * len(some), targets)
            with torch.inference_mode():
                total += float(self.bundle.model.loss(raw, mask, *batch[2:])[1])
        return total

    def replies(self, prompts: Sequence[str], *, greedy: bool) -> list[str]:
        """As the recipe searches, or the likeliest token at each step and nothing else."""
        return self.answered(prompts, Options() if greedy else None)

    def answered(self, prompts: Sequence[str], options: Options | None) -> list[str]:
        return evaluate.answers(self.bundle, prompts, options)


def chat(
    pairs: Sequence[tuple[str, str]], minutes: float, seed: int, overrides: Sequence[str] = ()
) -> Chatbot:
    """Our chatbot (chat-attention), trained on all raw pairs for `minutes` on the clock."""
    with tempfile.TemporaryDirectory() as folder:
        file, run = Path(folder) / "pairs.tsv", Path(folder) / "run"
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
        train(recipe.load("chat-attention", [*data, *overrides]), run, reporter=Told())
        return Chatbot(load(run))


class Told:
    """Validations, so that who waits can see how it goes."""

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
