"""DailyDialog: training replies as candidates (`search.retrieved`), and how it was chosen.

    python -m bench.dialogue_retrieval RUN                      the table, record dialogue_retrieval
    python -m bench.dialogue_retrieval RUN --items items.jsonl  and replies for bench.blind_judging
    python -m bench.dialogue_retrieval RUN --grid               BLEU-2 of many rules, no record

Prompts are those of `bench.dialogue_search`: of the validation split, and in no other figure. For
each, the 48 training replies whose histories are most like it and 16 samples (`top_p` 0.7) are
scored with and without the prompt. A rule is one line of arithmetic over these numbers, the one of
`regard.search.reranking`:

    rank =   (log p(T|S) - mmi_weight * log p(T|nothing)) / length ** length_penalty
           + retrieval_weight * similarity of the histories

"BM25 alone" is the reply to the training history that is most like the given one, without a model.

DailyDialog has dialogues that are in its training and its validation split nearly word for word. A
retrieved reply is then the true one, and says little about other conversations. So every figure is
given for all prompts, and for those that are new. A prompt is not new if its dialogue has two turns
of six words or more in common with one training dialogue, or if its history is nearly one of the 32
most similar training histories (0.7 of the words, normalised Levenshtein similarity).
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein

from bench import measure, published_dialogue
from bench.dialogue_search import (
    FIXED,
    chosen_prompts,
    figures,
    lengths_of,
    samples,
    with_and_without,
)
from regard import bundle, disk, metrics
from regard.data.corpus import Split
from regard.evaluate import Question, questions
from regard.ranking import evenly_spread
from regard.retrieval import Retrieval
from regard.search.reranking import MAX_LAG_NATS
from regard.tokenizers import END

RETRIEVED = 48
SAMPLES = 16
TOP_P = 0.7
LONG = 6  # words of a turn that two dialogues do not have in common by chance
SHARED = 2  # such turns
SIMILAR = 0.7
COMPARED = 32  # training histories that a history is compared with


class Rule(NamedTuple):
    retrieved: int
    samples: int
    mmi_weight: float
    length_penalty: float
    retrieval_weight: float
    min_similarity: float


RULES = {
    "samples": Rule(0, 16, 0.3, 1.0, 0.0, 0.0),
    "BM25 alone": Rule(1, 0, 0.0, 1.0, 0.0, 0.0),
    "retrieved only": Rule(8, 0, 0.5, 1.0, 12.0, 0.0),
    "both, no similarity": Rule(8, 16, 0.5, 1.0, 0.0, 0.0),
    "both": Rule(8, 16, 0.5, 1.0, 12.0, 0.25),
}
GRID = {
    "retrieved": (8, 16, 32, 48),
    "samples": (16,),
    "mmi_weight": (0.0, 0.3, 0.5, 1.0),
    "length_penalty": (0.5, 1.0),
    "retrieval_weight": (0.0, 2.0, 4.0, 8.0),
    "min_similarity": (0.0, 0.3, 0.4),
}


@dataclass(frozen=True)
class Pool:
    """The candidates of one prompt, retrieved ones first, best first: their texts, lengths (the end
    token included), log p(T|S), log p(T|nothing), and similarity (nan: a sample)."""

    texts: list[str]
    lengths: np.ndarray
    scores: np.ndarray
    priors: np.ndarray
    similarity: np.ndarray

    def best(self, rule: Rule) -> tuple[str, bool]:
        """The best candidate, and whether it is a training reply."""
        is_retrieved = ~np.isnan(self.similarity)
        number = np.where(is_retrieved, is_retrieved.cumsum(), (~is_retrieved).cumsum())
        allowed = number <= np.where(is_retrieved, rule.retrieved, rule.samples)
        allowed &= ~(self.similarity < rule.min_similarity)
        ranks = (self.scores - rule.mmi_weight * self.priors) / self.lengths**rule.length_penalty
        ranks = ranks + rule.retrieval_weight * np.nan_to_num(self.similarity)
        mean = self.scores / self.lengths
        plausible = is_retrieved | (mean >= mean[allowed].max() - MAX_LAG_NATS)
        best = int(np.where(allowed & plausible, ranks, -np.inf).argmax())
        return self.texts[best], bool(is_retrieved[best])


@torch.inference_mode()
def pools(bot: bundle.Bundle, retrieval: Retrieval, rows: Sequence[np.ndarray]) -> list[Pool]:
    """The candidates of each prompt, scored."""
    longest = bot.search_options(**FIXED).max_new_tokens - 1
    nothing = bot.model.encode(*bot.task.nothing())
    result = []
    for row, answers in zip(rows, samples(bot, rows, TOP_P, SAMPLES), strict=True):
        found = retrieval.nearest(np.append(row, END), RETRIEVED, shortest=0, longest=longest)
        similarity = {answer.tokens: answer.similarity for answer in found}
        for answer in answers:
            similarity.setdefault(answer.tokens, np.nan)
        tokens = list(similarity)
        scores, priors = with_and_without(bot, row, nothing, tokens)
        result.append(
            Pool(
                texts=[bot.tokenizer.decode(each) for each in tokens],
                lengths=lengths_of(tokens),
                scores=scores,
                priors=priors,
                similarity=np.array(list(similarity.values())),
            )
        )
    return result


# -- which prompts are new --


def is_new(
    prompts: Sequence[Question], valid: Split, train: Split, retrieval: Retrieval
) -> np.ndarray:
    """(n,): whether training has nothing that is nearly the same."""
    shared = shared_turns(valid, train)
    new = []
    for prompt in prompts:
        dialogue = int(_dialogues(valid)[prompt.examples[0]])
        is_known_dialogue = shared[dialogue] >= SHARED
        nearest = np.argsort(-retrieval.scores(prompt.given), kind="stable")[:COMPARED]
        history = published_dialogue.words(prompt.shown)
        similarity = max(
            Levenshtein.normalized_similarity(
                history, published_dialogue.words(train.source_name(example))
            )
            for example in nearest
        )
        new.append(not is_known_dialogue and similarity < SIMILAR)
    return np.array(new)


def shared_turns(valid: Split, train: Split) -> dict[int, int]:
    """For each validation dialogue, the most long turns that it has in common with one training
    dialogue."""
    dialogues_with: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for dialogue, turns in _long_turns(train).items():
        for turn in turns:
            dialogues_with[turn].add(dialogue)
    result = {}
    for dialogue, turns in _long_turns(valid).items():
        counts = Counter(other for turn in turns for other in dialogues_with.get(turn, ()))
        result[dialogue] = max(counts.values(), default=0)
    return result


def _long_turns(part: Split) -> dict[int, set[tuple[str, ...]]]:
    """The turns of each dialogue that are long, as words."""
    result: dict[int, set[tuple[str, ...]]] = defaultdict(set)
    for i, dialogue in enumerate(_dialogues(part).tolist()):
        example = part.texts(i)
        for turn in (*str(example.source).split("\n"), example.target):
            words = tuple(published_dialogue.words(turn))
            if len(words) >= LONG:
                result[dialogue].add(words)
        result.setdefault(dialogue, set())
    return result


def _dialogues(part: Split) -> np.ndarray:
    assert part.dialogues is not None
    return part.dialogues


# -- the table --


def line_of(
    replies: Sequence[tuple[str, bool]], references: Sequence[str], training: set[str]
) -> dict[str, float]:
    """The figures of some replies."""
    texts = [text for text, _ in replies]
    copied = [text in training for text in texts]
    return figures(texts, list(references)) | {
        "repeating": round(metrics.repetition(texts), 4),
        "retrieved": round(float(np.mean([retrieved for _, retrieved in replies])), 4),
        "copied": round(float(np.mean(copied)), 4),
    }


def table_of(
    systems: dict[str, list[tuple[str, bool]]],
    references: list[str],
    new: np.ndarray,
    training: set[str],
) -> dict[str, dict[str, Any]]:
    parts = {"all": np.ones(len(new), bool), "new": new, "known": ~new}
    table: dict[str, dict[str, Any]] = {}
    for name, replies in systems.items():
        for part, mask in parts.items():
            index = np.flatnonzero(mask)
            table.setdefault(name, {})[part] = line_of(
                [replies[i] for i in index], [references[i] for i in index], training
            )
    return table


def write_items(
    path: Path, prompts: Sequence[Question], systems: dict[str, list[tuple[str, bool]]], count: int
) -> None:
    """Replies of all systems to the same histories, for `bench.blind_judging`."""
    lines = []
    for i in evenly_spread(len(prompts), count):
        replies = {name: replies[i][0] for name, replies in systems.items()}
        item = {"history": prompts[i].shown.split("\n"), "replies": replies}
        lines.append(json.dumps(item, ensure_ascii=False))
    disk.write_text(path, "\n".join(lines) + "\n")


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--items", type=Path)
    parser.add_argument("--count", type=int, default=100, help="histories in --items")
    args = parser.parse_args()
    torch.set_num_threads(args.threads or os.cpu_count() or 1)

    bot = bundle.load(args.run)
    corpus, valid = bot.own_data()
    retrieval = bot.retrieval or Retrieval.of(corpus.train, bot.tokenizer)
    everything = questions(valid, bot.task)
    prompts = [everything[i] for i in chosen_prompts(len(everything), args.prompts)]
    references = [prompt.references[0] for prompt in prompts]
    new = is_new(prompts, valid, corpus.train, retrieval)
    candidates = pools(bot, retrieval, [prompt.given for prompt in prompts])
    training = {corpus.train.texts(i).target for i in range(len(corpus.train))}
    print(f"{len(prompts)} prompts, {new.sum()} new", flush=True)

    if args.grid:
        lines = []
        for values in itertools.product(*GRID.values()):
            rule = Rule(**dict(zip(GRID, values, strict=True)))
            replies = [pool.best(rule) for pool in candidates]
            table = table_of({"": replies}, references, new, training)[""]
            lines.append((table["new"]["bleu_2"], table["all"]["bleu_2"], rule, table["new"]))
        for line in sorted(lines, key=lambda line: -line[0])[:40]:
            print(*line)
        return

    systems = {name: [pool.best(rule) for pool in candidates] for name, rule in RULES.items()}
    systems["people"] = [(reference, False) for reference in references]
    table = table_of(systems, references, new, training)
    for name, parts in table.items():
        for part, line in parts.items():
            print(f"{name:24}{part:8}", line)
    if args.items is not None:
        write_items(args.items, prompts, systems, args.count)
    record = {
        "prompts": len(prompts),
        "new": int(new.sum()),
        "rules": {name: rule._asdict() for name, rule in RULES.items()},
        "table": table,
        "facts": measure.facts(args),
    }
    print(measure.write("dialogue_retrieval", record))


if __name__ == "__main__":
    main()
