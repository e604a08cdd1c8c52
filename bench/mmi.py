"""Choose the settings of MMI re-ranking, the remedy for bland replies in the chat recipes.

    python -m bench.mmi --run FOLDER

`bench.cornell` scores replies to held-out lines of Cornell. Settings chosen on those lines would
overfit them, so they are chosen here on other lines: the 2,000 lines before the held-out ones are
also excluded from training, and a chat-attention trained on the rest answers the first 500 prompts
among them with every setting of a grid. The run is kept in FOLDER, so that another grid needs no
training.

The rule was fixed before the figures were known. A setting qualifies with at most 4 % bland replies
(the goal in bench.cornell is 5 %), at least a third of people's distinct-2, and at most 1 % of
words that are in no training line. Of those, the setting whose replies have the highest
log-likelihood per token is chosen.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench import measure, ours
from bench.cornell import HELD_OUT, PROMPTS, Pair, quality, split
from bench.peers.classic_chatbot import normalise
from regard import bundle, recipe
from regard.train import train

GRID = {
    "top_p": (0.7, 0.8, 0.9),
    "mmi_weight": (0.5, 0.7, 1.0),
    "idf_weight": (0.2, 0.4),
}
MAX_BLAND = 0.04
MIN_DISTINCT = 1 / 3  # of people's
MAX_UNKNOWN_WORDS = 0.01
SCORES = (
    "bland_share",
    "distinct_2",
    "unique_share",
    "strange_words",
    "log_likelihood",
    "mean_length",
)


def trained(pairs: Sequence[Pair], args: Namespace) -> bundle.Bundle:
    """The run in the folder, trained first if there is none."""
    if not (args.run / bundle.RECIPE).exists():
        args.run.parent.mkdir(parents=True, exist_ok=True)
        file = args.run.with_suffix(".tsv")
        file.write_text(
            "".join(f"{prompt}\t{reply}\n" for prompt, reply in pairs), encoding="utf-8"
        )
        changes = [
            "data.kind=pairs",
            f'data.path="{file}"',
            "train.steps=",
            f"train.minutes={args.minutes}",
            f"seed={args.seed}",
            f"train.threads={args.threads}",
        ]
        train(recipe.load("chat-attention", changes), args.run, reporter=ours.ProgressReporter())
    return bundle.load(args.run)


def likelihood(chatbot: bundle.Bundle, prompts: Sequence[str], replies: Sequence[str]) -> float:
    """Mean log-probability per token of the replies, end tokens included."""
    total, tokens = 0.0, 0
    for start in range(0, len(prompts), 64):
        raw, mask = chatbot.task.read(prompts[start : start + 64])
        targets = [
            np.asarray(chatbot.tokenizer.encode(reply), np.int64)
            for reply in replies[start : start + 64]
        ]
        batch = chatbot.task.batch([np.empty(0, np.int64)] * len(targets), targets)
        with torch.inference_mode():
            total -= float(chatbot.model.loss(raw, mask, *batch[2:])[1])
        tokens += int(batch.real.sum())
    return total / tokens


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument(
        "--run",
        type=Path,
        required=True,
        help="folder of the trained run; created if it does not exist",
    )
    parser.add_argument("--minutes", type=float, default=8, help="training time")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    training, _ = split(args.data)
    training, held_out = training[:-HELD_OUT], training[-HELD_OUT:]
    complete = [pair for pair in held_out if all(side.strip() for side in pair)][:PROMPTS]
    prompts = [prompt for prompt, _ in complete]
    references = [reply for _, reply in complete]
    known = {word for pair in training for side in pair for word in normalise(side)}
    chatbot = trained(training, args)
    people = quality(references, references)
    defaults = recipe.load("chat-attention").search.replaced(seed=args.seed)

    rows = []
    replies_by_values = {}
    for values in itertools.product(*GRID.values()):
        setting = dict(zip(GRID, values, strict=True))
        replies = ours.Chatbot(chatbot).answered(prompts, defaults.replaced(**setting))
        words = [word for reply in replies for word in normalise(reply)]
        scores = quality(replies, references)
        scores["strange_words"] = sum(word not in known for word in words) / len(words)
        scores["log_likelihood"] = likelihood(chatbot, prompts, replies)
        row = setting | {name: scores[name] for name in SCORES}
        print("  ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)
        rows.append(row)
        replies_by_values[values] = replies
    qualified = [
        row
        for row in rows
        if row["bland_share"] <= MAX_BLAND
        and row["distinct_2"] >= MIN_DISTINCT * people["distinct_2"]
        and row["strange_words"] <= MAX_UNKNOWN_WORDS
    ]
    chosen = max(qualified, key=lambda row: row["log_likelihood"]) if qualified else None
    print("chosen", chosen)
    if chosen:
        replies = replies_by_values[tuple(chosen[name] for name in GRID)]
        for prompt, reply in zip(prompts[::20], replies[::20], strict=True):
            print(f"{prompt}\n    {reply}")
    record = {"people": people, "grid": rows, "chosen": chosen, "facts": measure.facts(args)}
    print(measure.write("mmi", record))


if __name__ == "__main__":
    main()
