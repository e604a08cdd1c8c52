"""DailyDialog: how the search settings of `chat-dialogue` are chosen.

    python -m bench.dialogue_search RUN                       the table, record dialogue_search
    python -m bench.dialogue_search RUN --show 40 --rule "0.7 0.3 1.0 1.0"    read replies

Prompts are of the validation part, and none of those that `bench.dialogue evaluate --limit 1000`
answers. For each way to sample, 32 candidates of every prompt are drawn once, and scored with and
without the prompt. A rule is then one line of arithmetic over these numbers, the one of
`regard.search.reranking`, so a grid of rules costs nothing:

    rank = (log p(T|S) - mmi_weight * log p(T|nothing)) / length ** length_penalty

Candidates that are more than `lag` nats per token less likely than the likeliest come last. The
figures are those of `bench.published_dialogue`, the mean number of words, and the share of bland
replies.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import measure, published_dialogue
from regard import bundle, metrics
from regard.data.batches import ordered
from regard.evaluate import questions
from regard.ranking import evenly_spread
from regard.tasks.task import text_targets
from regard.values import Answer, Memory

EVALUATED = 1000  # prompts of `bench.dialogue evaluate --limit 1000`
CANDIDATES = 32
TOP_P = (0.5, 0.7, 0.9)
MMI_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
LENGTH_PENALTIES = (0.0, 0.5, 0.8, 1.0, 1.2, 1.4, 1.6)
LAGS = (0.3, 0.5, 1.0)
FIXED: dict[str, Any] = {"no_repeat_ngram_size": 3, "max_new_tokens": 48}


@dataclass(frozen=True)
class Candidates:
    """Candidates of one prompt: their texts, tokens (the end token included), log p(T|S) and
    log p(T|nothing)."""

    texts: list[str]
    lengths: np.ndarray
    scores: np.ndarray
    priors: np.ndarray

    def best(self, mmi_weight: float, length_penalty: float, lag: float, count: int) -> str:
        """The best of the first `count` by a rule."""
        lengths = self.lengths[:count]
        scores = self.scores[:count]
        ranks = (scores - mmi_weight * self.priors[:count]) / lengths**length_penalty
        mean = scores / lengths
        ranks = np.where(mean >= mean.max() - lag, ranks, -np.inf)
        return self.texts[int(ranks.argmax())]


def chosen_prompts(size: int, count: int) -> list[int]:
    """Numbers of validation examples, spread evenly, without those that are evaluated."""
    evaluated = set(evenly_spread(size, EVALUATED))
    others = [i for i in range(size) if i not in evaluated]
    return [others[i] for i in evenly_spread(len(others), count)]


@torch.inference_mode()
def draw(bot: bundle.Bundle, rows: list[np.ndarray], top_p: float) -> list[Candidates]:
    """Candidates of each prompt, in the order in which they were drawn."""
    nothing = bot.model.encode(*bot.task.nothing())
    result = []
    for row, answers in zip(rows, samples(bot, rows, top_p, CANDIDATES), strict=True):
        tokens = [answer.tokens for answer in answers]
        scores, priors = with_and_without(bot, row, nothing, tokens)
        texts = [answer.text for answer in answers]
        result.append(Candidates(texts, lengths_of(tokens), scores, priors))
    return result


def samples(
    bot: bundle.Bundle, rows: Sequence[np.ndarray], top_p: float, count: int
) -> list[list[Answer]]:
    """Sampled replies to each prompt, not ranked and without retrieved ones."""
    options = bot.search_options(
        **FIXED,
        do_sample=True,
        top_p=top_p,
        candidates=count,
        retrieved=0,
        mmi_weight=0.0,
        idf_weight=0.0,
        length_penalty=1.0,
        num_beams=1,
    )
    return bot.answer_rows(rows, options)


def lengths_of(tokens: Sequence[Sequence[int]]) -> np.ndarray:
    """With the end token."""
    return np.array([len(each) + 1 for each in tokens])


def with_and_without(
    bot: bundle.Bundle, row: np.ndarray, nothing: Memory, tokens: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """log p(T|S) and log p(T|nothing) of some replies to a prompt."""
    arrays = [np.array(each, np.int64) for each in tokens]
    memory = bot.model.encode(*bot.task.sources([row]))
    return log_p(bot, memory, arrays), log_p(bot, nothing, arrays)


def log_p(bot: bundle.Bundle, memory: Memory, answers: list[np.ndarray]) -> np.ndarray:
    lengths = np.array([len(answer) + 1 for answer in answers])
    places = np.full(len(answers), memory.mask.shape[1])
    result = np.empty(len(answers))
    for index in ordered(places, lengths, tokens=8192):
        batch = text_targets([answers[i] for i in index])
        rows = memory.rows(torch.zeros(len(index), dtype=torch.long))
        result[index] = -bot.model.nats(rows, *batch).numpy()
    return result


def figures(replies: list[str], references: list[str]) -> dict[str, float]:
    """What is known of replies without a judge."""
    published = published_dialogue.scores(replies, references)
    return {
        "bleu_2": round(published["bleu_2"], 4),
        "bleu_4": round(published["bleu_4"], 4),
        "distinct_2": round(published["distinct_2"], 4),
        "words": round(float(np.mean([len(reply.split()) for reply in replies])), 2),
        "bland": round(metrics.bland_share(replies), 4),
        "unique": round(len(set(replies)) / len(replies), 4),
    }


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--count", type=int, default=CANDIDATES)
    parser.add_argument("--rule", help="top_p, mmi_weight, length_penalty, lag")
    parser.add_argument("--show", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads or os.cpu_count() or 1)

    bot = bundle.load(args.run)
    _, valid = bot.own_data()
    everything = questions(valid, bot.task)
    prompts = [everything[i] for i in chosen_prompts(len(everything), args.prompts)]
    rows = [prompt.given for prompt in prompts]
    references = [prompt.references[0] for prompt in prompts]

    if args.rule:
        top_p, mmi_weight, length_penalty, lag = map(float, args.rule.split())
        rule = (mmi_weight, length_penalty, lag)
        replies = [each.best(*rule, args.count) for each in draw(bot, rows, top_p)]
        print(figures(replies, references))
        for i in evenly_spread(len(prompts), args.show):
            print(f"{prompts[i].shown}\n  -> {replies[i]}\n  == {references[i]}\n")
        return

    table = []
    for top_p in TOP_P:
        drawn = draw(bot, rows, top_p)
        for rule in itertools.product(MMI_WEIGHTS, LENGTH_PENALTIES, LAGS):
            replies = [each.best(*rule, args.count) for each in drawn]
            names = ("mmi_weight", "length_penalty", "lag")
            settings = {"top_p": top_p, **dict(zip(names, rule, strict=True))}
            table.append(settings | figures(replies, references))
    table.sort(key=lambda line: -line["bleu_2"])
    for line in table[:40]:
        print(line)
    record = {"prompts": len(prompts), "candidates": args.count, "rules": table}
    print(measure.write("dialogue_search", record | {"facts": measure.facts(args)}))


if __name__ == "__main__":
    main()
