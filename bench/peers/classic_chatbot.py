"""The small seq2seq chatbot of many tutorials, with its usual defects, to compare with.

Words are lower-cased and stripped of all but letters and . ! ?; pairs with 10 words or more on a
side are dropped, then words seen fewer than 3 times together with their pairs. The encoder is a
two-layer bidirectional GRU whose directions are summed; the decoder is a two-layer GRU with dot
attention (Luong et al. 2015), in a Python loop over tokens. Width 500, dropout 0.1, batch 64, Adam
with 1e-4 and five times that for the decoder, gradient clipping at 50, teacher forcing.

Three defects are kept, because they are part of the usual code:

- attention includes padding: its states and scores are 0, so it takes weight from the words;
- the decoder starts from `hidden[:2]`, layer 0 in both directions, instead of the top layer;
- the embedding belongs to encoder and decoder, so both optimisers update it in every step.

Two things are better than in the usual code: log-softmax, which cannot underflow, instead of the
log of a softmax; and unknown words of a prompt are skipped instead of failing.
"""

from __future__ import annotations

import random
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD, START, END = 0, 1, 2
MAX_WORDS = 10  # a side has fewer; a reply has at most this many
BATCH = 64
MAX_GRAD_NORM = 50.0
LEARNING_RATE = 1e-4
DECODER_FACTOR = 5.0  # of the learning rate
DROPOUT = 0.1

Pair = tuple[str, str]


def normalise(text: str) -> list[str]:
    """The words of a text: lower case, without accents, . ! ? as words, other characters as spaces.

    >>> normalise("Café? I don't KNOW, 3 of them...")
    ['cafe', '?', 'i', 'don', 't', 'know', 'of', 'them', '.', '.', '.']
    """
    decomposed = unicodedata.normalize("NFD", text.lower().strip())
    without_accents = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return re.sub(r"[^a-z.!?]+", " ", re.sub(r"([.!?])", r" \1 ", without_accents)).split()


class Encoder(nn.Module):
    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        width = embedding.embedding_dim
        self.embedding = embedding
        self.gru = nn.GRU(width, width, num_layers=2, dropout=DROPOUT, bidirectional=True)

    def forward(self, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Prompts (S, B), longest first, to memory (S, B, D) and four last states (4, B, D)."""
        packed = pack_padded_sequence(self.embedding(prompts), lengths)
        outputs, hidden = self.gru(packed)
        forwards, backwards = pad_packed_sequence(outputs)[0].chunk(2, dim=2)
        return forwards + backwards, hidden


class Decoder(nn.Module):
    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        vocabulary, width = embedding.weight.shape
        self.embedding = embedding
        self.dropout = nn.Dropout(DROPOUT)
        self.gru = nn.GRU(width, width, num_layers=2, dropout=DROPOUT)
        self.join = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One step: words (B,), hidden (2, B, D), memory (S, B, D) to log-probabilities (B, V)
        and the next hidden."""
        output, hidden = self.gru(self.dropout(self.embedding(words[None])), hidden)  # (1, B, D)
        weights = (output * memory).sum(2).softmax(0)  # (S, B), padding included
        context = (weights[:, :, None] * memory).sum(0)  # (B, D)
        joined = torch.tanh(self.join(torch.cat((output[0], context), dim=1)))
        return self.out(joined).log_softmax(1), hidden


class Classic:
    """The chatbot: its vocabulary, encoder and decoder, and the number of training steps."""

    def __init__(self, vocabulary: Sequence[str], width: int):
        self.words = ["<pad>", "<start>", "<end>", *vocabulary]
        self.index = {word: i for i, word in enumerate(self.words)}
        embedding = nn.Embedding(len(self.words), width)
        self.encoder = Encoder(embedding)
        self.decoder = Decoder(embedding)
        self.steps = 0

    def knows(self, pair: Pair) -> bool:
        """Whether both sides are short, not empty, and consist of known words."""
        return all(
            _short(side) and all(word in self.index for word in side)
            for side in map(normalise, pair)
        )

    @torch.no_grad()
    def nats(self, pairs: Sequence[Pair]) -> tuple[float, int]:
        """Total -ln P(reply | prompt) and its number of words, end tokens included.

        Prompts of equal length are scored together: without padding the score does not depend on
        the rest of the batch.
        """
        self._train(False)
        total, count = 0.0, 0
        pairs = sorted(pairs, key=lambda pair: len(normalise(pair[0])))
        for _, group in groupby(pairs, key=lambda pair: len(normalise(pair[0]))):
            same = list(group)
            for i in range(0, len(same), BATCH):
                for losses, real in self._losses(same[i : i + BATCH]):
                    total += losses.masked_fill(~real, 0).double().sum().item()
                    count += int(real.sum())
        return total, count

    @torch.no_grad()
    def reply(self, prompt: str) -> str:
        """The greedy reply, of at most 10 words; "" if the prompt has no known word."""
        self._train(False)
        known = [self.index[word] for word in normalise(prompt) if word in self.index]
        if not known:
            return ""
        memory, hidden = self._read([torch.tensor([*known, END])])
        word = torch.tensor([START])
        reply = []
        for _ in range(MAX_WORDS):
            scores, hidden = self.decoder(word, hidden, memory)
            word = scores.argmax(1)
            if word.item() == END:
                break
            reply.append(self.words[int(word)])
        return " ".join(word for word in reply if word not in ("<pad>", "<start>"))

    def _ids(self, text: str) -> Tensor:
        return torch.tensor([self.index[word] for word in normalise(text)] + [END])

    def _read(self, prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        memory, hidden = self.encoder(pad_sequence(prompts, padding_value=PAD), lengths)
        return memory, hidden[:2]  # the defect: layer 0 in both directions

    def _losses(self, pairs: Sequence[Pair]):
        """For each step, -ln P of the true next words (B,), and which of them are not padding."""
        pairs = sorted(pairs, key=lambda pair: len(normalise(pair[0])), reverse=True)
        memory, hidden = self._read([self._ids(prompt) for prompt, _ in pairs])
        targets = pad_sequence(
            [self._ids(reply) for _, reply in pairs], padding_value=PAD
        )  # (T, B)
        words = torch.full_like(targets[0], START)
        for row in targets:
            scores, hidden = self.decoder(words, hidden, memory)
            yield -scores.gather(1, row[:, None])[:, 0], row != PAD
            words = row

    def _train(self, on: bool) -> None:
        self.encoder.train(on)
        self.decoder.train(on)


def train(
    pairs: Sequence[Pair],
    minutes: float,
    seed: int = 0,
    *,
    width: int = 500,
    min_count: int = 3,
    max_steps: int | None = None,
) -> Classic:
    """A chatbot trained on the pairs it can represent, for `minutes` or `max_steps` steps."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model = Classic(_vocabulary(pairs, min_count), width)
    pairs = [pair for pair in pairs if model.knows(pair)]
    modules = (model.encoder, model.decoder)
    rates = (LEARNING_RATE, LEARNING_RATE * DECODER_FACTOR)
    optimisers = [
        torch.optim.Adam(module.parameters(), lr=rate)
        for module, rate in zip(modules, rates, strict=True)
    ]
    model._train(True)
    deadline = time.perf_counter() + 60 * minutes
    while time.perf_counter() < deadline and model.steps != max_steps:
        for optimiser in optimisers:
            optimiser.zero_grad()
        steps = model._losses([draw.choice(pairs) for _ in range(BATCH)])
        loss = torch.stack([losses[real].mean() for losses, real in steps]).sum()
        loss.backward()
        for module, optimiser in zip(modules, optimisers, strict=True):
            clip_grad_norm_(module.parameters(), MAX_GRAD_NORM)
            optimiser.step()
        model.steps += 1
    return model


def _short(side: Sequence[str]) -> bool:
    return 0 < len(side) < MAX_WORDS


def _vocabulary(pairs: Sequence[Pair], min_count: int) -> list[str]:
    """The frequent words of the short pairs, in order of appearance."""
    sides = ((normalise(prompt), normalise(reply)) for prompt, reply in pairs)
    counts = Counter(
        word for pair in sides if all(map(_short, pair)) for side in pair for word in side
    )
    return [word for word, count in counts.items() if count >= min_count]
