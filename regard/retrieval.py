"""Retrieval: the training answers whose prompts are most like a given one, by BM25.

    score(prompt, example) =   BM25(last turn of the prompt, last turn of the example)
                             + EARLIER_WEIGHT * BM25(earlier turns, earlier turns)

    BM25(Q, D) = sum over distinct tokens t in both of
                 idf(t) * n(t, D) * (K1 + 1) / (n(t, D) + K1 * (1 - B + B * |D| / mean |D|))
    idf(t)     = log(1 + (N - N(t) + 0.5) / (N(t) + 0.5))

N examples, of which N(t) have the token t; n(t, D) times it is in D. Robertson and Zaragoza (2009),
"The Probabilistic Relevance Framework: BM25 and Beyond". Special tokens are not counted. A prompt
that is no history is one turn.

The answers become candidates of a search (`search.retrieved`), and the model chooses among them and
its own ones: response selection (Weston et al. 2018, "Retrieve and Refine").
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.corpus import Split
from regard.errors import BundleError
from regard.search.requests import RetrievedAnswer
from regard.tokenizers import UNKNOWN, Tokenizer
from regard.weights import read_tensors

K1 = 1.2
B = 0.75
EARLIER_WEIGHT = 0.5

LAST, EARLIER = "last_turn", "earlier_turns"
WEIGHTS = {LAST: 1.0, EARLIER: EARLIER_WEIGHT}


class Postings(NamedTuple):
    """The index of one field. For each token the examples that have it, and what each of them
    scores if a prompt has the token too: those of token t are from ends[t - 1] to ends[t]."""

    ends: np.ndarray  # (V,)
    examples: np.ndarray
    scores: np.ndarray
    idf: np.ndarray  # (V,)
    mean_length: np.ndarray  # (1,)

    def add_scores(self, tokens: np.ndarray, weight: float, total: np.ndarray) -> None:
        """Add weight * BM25(tokens, example) to the total of each example."""
        for token in np.unique(tokens).tolist():
            start = self.ends[token - 1] if token else 0
            end = self.ends[token]
            # an example is in the postings of a token once
            total[self.examples[start:end]] += weight * self.scores[start:end]

    def own_score(self, tokens: np.ndarray) -> float:
        """BM25(tokens, tokens)."""
        distinct, counts = np.unique(tokens, return_counts=True)
        norm = 1 - B + B * len(tokens) / self.mean_length[0]
        return float((self.idf[distinct] * counts * (K1 + 1) / (counts + K1 * norm)).sum())


class Retrieval:
    """The answers of training examples, and an index of their prompts.

    answers    the tokens of all answers, one after the other
    ends       (N,): where each answer ends
    fields     the postings of the last turn and of the earlier turns of the prompts
    tokenizer  the run's own
    """

    def __init__(
        self,
        answers: np.ndarray,
        ends: np.ndarray,
        fields: dict[str, Postings],
        tokenizer: Tokenizer,
    ):
        self.answers = answers
        self.ends = ends
        self.fields = fields
        self.tokenizer = tokenizer

    @classmethod
    def of(cls, examples: Split, tokenizer: Tokenizer) -> Retrieval:
        """The index of training examples. Answers with an unknown word are left out."""
        count = len(examples)
        example_of_token = np.repeat(np.arange(count), examples.target.lengths)
        answers = np.asarray(examples.target.values, np.int32)
        is_kept = np.ones(count, bool)
        is_kept[example_of_token[answers == UNKNOWN]] = False
        answers = answers[is_kept[example_of_token]]
        ends = np.cumsum(examples.target.lengths[is_kept], dtype=np.int64)

        lengths = examples.source.lengths
        tokens = np.asarray(examples.source.values, np.int32)
        example_of_token = np.repeat(np.arange(count), lengths)
        turn = np.isin(tokens, tokenizer.turn_tokens).cumsum()
        last_turn = turn[examples.source.ends - 1]
        is_last = turn == last_turn[example_of_token]
        is_word = (tokens >= tokenizer.num_special_tokens) & is_kept[example_of_token]
        number = is_kept.cumsum() - 1  # of each example among those that are kept
        fields = {}
        for field, is_in_field in ((LAST, is_last & is_word), (EARLIER, ~is_last & is_word)):
            fields[field] = _postings(
                tokens[is_in_field],
                number[example_of_token[is_in_field]],
                examples=len(ends),
                vocabulary=tokenizer.source_size,
            )
        return cls(answers, ends, fields, tokenizer)

    def __len__(self) -> int:
        return len(self.ends)

    def scores(self, prompt: np.ndarray) -> np.ndarray:
        """(N,): the score of each example."""
        total = np.zeros(len(self))
        for field, tokens in self._fields(prompt):
            self.fields[field].add_scores(tokens, WEIGHTS[field], total)
        return total

    def own_score(self, prompt: np.ndarray) -> float:
        """The score of an example with this prompt."""
        return sum(
            WEIGHTS[field] * self.fields[field].own_score(tokens)
            for field, tokens in self._fields(prompt)
        )

    def _fields(self, prompt: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
        return zip((LAST, EARLIER), _turns(prompt, self.tokenizer), strict=True)

    def nearest(
        self, prompt: np.ndarray, count: int, *, shortest: int, longest: int
    ) -> list[RetrievedAnswer]:
        """Distinct answers of `shortest` to `longest` tokens whose prompts are most like this one,
        best first; of equal ones, the first in the training data. At most `count`: prompts that
        have no token in common with this one are not like it. The similarity is the score divided
        by that of an example with the same prompt."""
        scores = self.scores(prompt)
        matching = int(np.count_nonzero(scores))
        scores /= self.own_score(prompt) if matching else 1.0
        size = min(4 * count, matching)
        while True:
            answers = self._best(scores, size, count, shortest, longest)
            if len(answers) == count or size == matching:
                return answers
            size = min(4 * size, matching)

    def _best(
        self, scores: np.ndarray, size: int, count: int, shortest: int, longest: int
    ) -> list[RetrievedAnswer]:
        """The distinct answers among the `size` best examples, at most `count`."""
        if not size:
            return []
        least = np.partition(scores, -size)[-size]
        best = np.flatnonzero(scores >= least)
        order = np.argsort(-scores[best], kind="stable")
        similarity: dict[tuple[int, ...], float] = {}
        for example in best[order].tolist():
            answer = self._answer(example)
            if shortest <= len(answer) <= longest:
                similarity.setdefault(answer, float(scores[example]))
            if len(similarity) == count:
                break
        return [RetrievedAnswer(*pair) for pair in similarity.items()]

    def _answer(self, example: int) -> tuple[int, ...]:
        start = self.ends[example - 1] if example else 0
        return tuple(self.answers[start : self.ends[example]].tolist())

    # -- on disk --

    def tensors(self) -> dict[str, Tensor]:
        """What a safetensors file has of it."""
        content = {"answers": self.answers, "ends": self.ends}
        for field, postings in self.fields.items():
            for name, array in postings._asdict().items():
                content[f"{field}.{name}"] = array
        return {name: torch.from_numpy(array) for name, array in content.items()}

    @classmethod
    def read(cls, path: Path, tokenizer: Tokenizer) -> Retrieval:
        """The index in a safetensors file."""
        saved = {name: tensor.numpy() for name, tensor in read_tensors(path).items()}
        names = {"answers", "ends"}
        for field in WEIGHTS:
            names |= {f"{field}.{name}" for name in Postings._fields}
        if wrong := sorted(names ^ saved.keys()):
            raise BundleError(
                "not the training answers of a run", where=path, got=", ".join(wrong[:3])
            )
        fields = {
            field: Postings(*(saved[f"{field}.{name}"] for name in Postings._fields))
            for field in WEIGHTS
        }
        retrieval = cls(saved["answers"], saved["ends"], fields, tokenizer)
        if not retrieval._is_whole():
            raise BundleError("the training answers are not those of this run", where=path)
        return retrieval

    def _is_whole(self) -> bool:
        """Whether every number points to something that is there."""
        size, source_size = self.tokenizer.size, self.tokenizer.source_size
        is_whole = _all_below(self.answers, size) and _are_ends(self.ends, self.answers)
        for postings in self.fields.values():
            is_whole &= len(postings.ends) == len(postings.idf) == source_size
            is_whole &= len(postings.examples) == len(postings.scores)
            is_whole &= len(postings.mean_length) == 1
            is_whole &= _all_below(postings.examples, len(self))
            is_whole &= _are_ends(postings.ends, postings.examples)
        return is_whole


def _all_below(numbers: np.ndarray, limit: int) -> bool:
    is_whole_number = np.issubdtype(numbers.dtype, np.integer)
    return is_whole_number and bool(((numbers >= 0) & (numbers < limit)).all())


def _are_ends(ends: np.ndarray, values: np.ndarray) -> bool:
    """Whether these are the ends of rows that have all of the values."""
    last = ends[-1] if len(ends) else 0
    return last == len(values) and bool((np.diff(ends, prepend=0) >= 0).all())


def _turns(row: np.ndarray, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The words of the last turn of a prompt, and those of the turns before it."""
    turn = np.isin(row, tokenizer.turn_tokens).cumsum()
    is_last = turn == turn[-1:]
    is_word = row >= tokenizer.num_special_tokens
    return row[is_last & is_word], row[~is_last & is_word]


def _postings(
    tokens: np.ndarray, example_of_token: np.ndarray, *, examples: int, vocabulary: int
) -> Postings:
    """The postings of a field, from all tokens of it and the example that each is in."""
    lengths = np.bincount(example_of_token, minlength=examples)
    pairs = tokens.astype(np.int64) * examples + example_of_token
    pairs, counts = np.unique(pairs, return_counts=True)  # by token, then by example
    token, example = np.divmod(pairs, max(1, examples))

    frequency = np.bincount(token, minlength=vocabulary)  # examples that have each token
    idf = np.log1p((examples - frequency + 0.5) / (frequency + 0.5))
    mean = lengths.mean() if lengths.any() else 1.0
    norm = 1 - B + B * lengths[example] / mean
    scores = idf[token] * counts * (K1 + 1) / (counts + K1 * norm)
    return Postings(
        ends=np.cumsum(frequency, dtype=np.int64),
        examples=example.astype(np.int32),
        scores=scores.astype(np.float32),
        idf=idf.astype(np.float32),
        mean_length=np.array([mean]),
    )
