"""The small seq2seq chatbot that everyone writes first (SPEC section 1), with its defects, to
compare with.

Words are lower-cased and stripped of all but letters and . ! ?; pairs of which a side has 10 words
or more are dropped, then words seen fewer than 3 times together with their pairs. A two-layer GRU
reads the prompt in both directions, which are summed; a two-layer GRU with dot attention (Luong et
al. 2015) writes the reply, one step of Python a token. Width 500, dropout 0.1, batch 64, Adam 1e-4
and five times that for the decoder, clipped at 50, always fed the true words.

Kept as they are, because that is what is compared with:

- attention looks at padding: its states are 0, so its scores are 0 and it takes weight from the words;
- the decoder starts from `hidden[:2]`, layer 0 in both directions, instead of the top layer;
- the embedding belongs to both halves, so both optimisers move it in every step.

Two kindnesses beyond the usual code: log-softmax in place of the log of a softmax, which cannot
underflow; and unknown words of a prompt are skipped where the usual code gives up.
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
MOST_WORDS, BATCH, CLIP, RATE, DECODER_FACTOR, DROPOUT = 10, 64, 50.0, 1e-4, 5.0, 0.1

Pair = tuple[str, str]


def normalise(text: str) -> list[str]:
    """Lower case, accents off, . ! ? apart, everything else a space.

    >>> normalise("Café? I don't KNOW, 3 of them...")
    ['cafe', '?', 'i', 'don', 't', 'know', 'of', 'them', '.', '.', '.']
    """
    bare = "".join(
        c
        for c in unicodedata.normalize("NFD", text.lower().strip())
        if unicodedata.category(c) != "Mn"
    )
    return re.sub(r"[^a-z.!?]+", " ", re.sub(r"([.!?])", r" \1 ", bare)).split()


class Encoder(nn.Module):
    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        width = embedding.embedding_dim
        self.embedding = embedding
        self.gru = nn.GRU(width, width, num_layers=2, dropout=DROPOUT, bidirectional=True)

    def forward(self, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Prompts (S, B), longest first, to memory (S, B, D) and the four last states (4, B, D)."""
        packed = pack_padded_sequence(self.embedding(prompts), lengths)
        outputs, hidden = self.gru(packed)
        forwards, backwards = pad_packed_sequence(outputs)[0].chunk(2, dim=2)
        return forwards + backwards, hidden


class Decoder(nn.Module):
    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        vocabulary, width = embedding.weight.shape
        self.embedding, self.dropout = embedding, nn.Dropout(DROPOUT)
        self.gru = nn.GRU(width, width, num_layers=2, dropout=DROPOUT)
        self.join = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One step: words (B,), hidden (2, B, D), memory (S, B, D) to log-probabilities (B, V)
        and hidden."""
        output, hidden = self.gru(self.dropout(self.embedding(words[None])), hidden)  # (1, B, D)
        weights = (output * memory).sum(2).softmax(0)  # (S, B), padding and all
        context = (weights[:, :, None] * memory).sum(0)  # (B, D)
        joined = torch.tanh(self.join(torch.cat((output[0], context), dim=1)))
        return self.out(joined).log_softmax(1), hidden


class Classic:
    """The chatbot: its words, its two halves, and how many steps it was trained."""

    def __init__(self, vocabulary: Sequence[str], width: int):
        self.words = ["<pad>", "<start>", "<end>", *vocabulary]
        self.index = {word: i for i, word in enumerate(self.words)}
        embedding = nn.Embedding(len(self.words), width)
        self.encoder, self.decoder = Encoder(embedding), Decoder(embedding)
        self.steps = 0

    def knows(self, pair: Pair) -> bool:
        """Whether both sides are short enough, not empty, and made of known words only."""
        return all(
            _short(side) and all(word in self.index for word in side)
            for side in map(normalise, pair)
        )

    @torch.no_grad()
    def nats(self, pairs: Sequence[Pair]) -> tuple[float, int]:
        """Total -ln P(reply | prompt) and the number of words it is over, end marks included.

        Prompts of one length are scored together: without padding the score cannot depend on the
        neighbours.
        """
        self._train(False)
        total, count = 0.0, 0
        pairs = sorted(pairs, key=lambda pair: len(normalise(pair[0])))
        for _, group in groupby(pairs, key=lambda pair: len(normalise(pair[0]))):
            same = list(group)
            for i in range(0, len(same), BATCH):
                for surprise, real in self._surprises(same[i : i + BATCH]):
                    total += surprise.masked_fill(~real, 0).double().sum().item()
                    count += int(real.sum())
        return total, count

    @torch.no_grad()
    def reply(self, prompt: str) -> str:
        """The likeliest word after word, at most 10; nothing to a prompt without a known word."""
        self._train(False)
        known = [self.index[word] for word in normalise(prompt) if word in self.index]
        if not known:
            return ""
        memory, hidden = self._read([torch.tensor([*known, END])])
        word, said = torch.tensor([START]), []
        for _ in range(MOST_WORDS):
            scores, hidden = self.decoder(word, hidden, memory)
            word = scores.argmax(1)
            if word.item() == END:
                break
            said.append(self.words[int(word)])
        return " ".join(word for word in said if word not in ("<pad>", "<start>"))

    def _ids(self, text: str) -> Tensor:
        return torch.tensor([self.index[word] for word in normalise(text)] + [END])

    def _read(self, prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        memory, hidden = self.encoder(pad_sequence(prompts, padding_value=PAD), lengths)
        return memory, hidden[:2]  # the defect: layer 0 of both directions

    def _surprises(self, pairs: Sequence[Pair]):
        """For each step in turn, -ln P of the true next words (B,) and which of them are not
        padding."""
        pairs = sorted(pairs, key=lambda pair: len(normalise(pair[0])), reverse=True)
        memory, hidden = self._read([self._ids(prompt) for prompt, _ in pairs])
        truth = pad_sequence([self._ids(reply) for _, reply in pairs], padding_value=PAD)  # (T, B)
        words = torch.full_like(truth[0], START)
        for row in truth:
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
    least_count: int = 3,
    most_steps: int | None = None,
) -> Classic:
    """A chatbot trained on the pairs it can represent for `minutes`, or `most_steps` if that is
    reached first."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model = Classic(_vocabulary(pairs, least_count), width)
    pairs = [pair for pair in pairs if model.knows(pair)]
    halves = (model.encoder, model.decoder)
    rates = (RATE, RATE * DECODER_FACTOR)
    optimisers = [
        torch.optim.Adam(half.parameters(), lr=rate)
        for half, rate in zip(halves, rates, strict=True)
    ]
    model._train(True)
    ends = time.perf_counter() + 60 * minutes
    while time.perf_counter() < ends and model.steps != most_steps:
        for optimiser in optimisers:
            optimiser.zero_grad()
        steps = model._surprises([draw.choice(pairs) for _ in range(BATCH)])
        loss = torch.stack([surprise[real].mean() for surprise, real in steps]).sum()
        loss.backward()
        for half, optimiser in zip(halves, optimisers, strict=True):
            clip_grad_norm_(half.parameters(), CLIP)
            optimiser.step()
        model.steps += 1
    return model


def _short(side: Sequence[str]) -> bool:
    return 0 < len(side) < MOST_WORDS


def _vocabulary(pairs: Sequence[Pair], least_count: int) -> list[str]:
    """The words of the short pairs seen often enough, in order of appearance."""
    sides = ((normalise(prompt), normalise(reply)) for prompt, reply in pairs)
    counts = Counter(
        word for pair in sides if all(map(_short, pair)) for side in pair for word in side
    )
    return [word for word, count in counts.items() if count >= least_count]
