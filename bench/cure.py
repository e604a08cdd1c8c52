"""Chooses the settings of the cure for bland replies on prompts that no figure is taken from.

    python -m bench.cure --run FOLDER

`bench.cornell` scores replies to held-out lines of Cornell. Settings chosen by looking at those
would flatter themselves, so they are chosen here: the 2,000 lines before the held-out ones are left
out of training as well, and a chat-attention trained on the rest answers the first 500 prompts
among them with every setting of a grid. The run is kept in FOLDER, so that other grids need no
training.

The rule, fixed before the figures: of the settings with at most 4 % bland replies (the goal is 5 %
elsewhere), at least a third of people's distinct-2 and at most 1 % of words that are in no training
line, the one whose replies the model itself finds likeliest a token, which is the one that strays
least.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bench import measure, ours
from bench.cornell import ASKED, HELD_OUT, Pair, quality, split
from bench.peers.classic_chatbot import normalise
from regard import bundle, recipe
from regard.build import options
from regard.train import train

GRID = {
    "top_p": (0.7, 0.8, 0.9),
    "mmi_weight": (0.5, 0.7, 1.0),
    "idf_weight": (0.2, 0.4),
}
MOST_BLAND, LEAST_DISTINCT, MOST_STRANGE = 0.04, 1 / 3, 0.01


def trained(pairs: Sequence[Pair], given: Namespace) -> bundle.Bundle:
    """The run in the folder, trained first if it is not there."""
    if not (given.run / bundle.RECIPE).exists():
        given.run.parent.mkdir(parents=True, exist_ok=True)
        file = given.run.with_suffix(".tsv")
        file.write_text(
            "".join(f"{prompt}\t{reply}\n" for prompt, reply in pairs), encoding="utf-8"
        )
        how = [
            "data.kind=pairs",
            f'data.path="{file}"',
            "train.steps=",
            f"train.minutes={given.minutes}",
        ]
        chosen = recipe.load(
            "chat-attention", [*how, f"seed={given.seed}", f"train.threads={given.threads}"]
        )
        train(chosen, given.run, reporter=ours.Told())
    return bundle.load(given.run)


def likelihood(chatbot: bundle.Bundle, prompts: Sequence[str], replies: Sequence[str]) -> float:
    """Mean log-probability of a token of the replies, end marks counted."""
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
        "--run", type=Path, required=True, help="where the trained run is, or shall be"
    )
    parser.add_argument("--minutes", type=float, default=8, help="training time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    training, _ = split(given.data)
    training, judged = training[:-HELD_OUT], training[-HELD_OUT:]
    asked = [pair for pair in judged if all(side.strip() for side in pair)][:ASKED]
    prompts, answers = [prompt for prompt, _ in asked], [reply for _, reply in asked]
    known = {word for pair in training for side in pair for word in normalise(side)}
    chatbot = trained(training, given)
    people = quality(answers, answers)
    usual = replace(options(recipe.load("chat-attention").search), seed=given.seed)

    rows, replies = [], {}
    for values in itertools.product(*GRID.values()):
        setting = dict(zip(GRID, values, strict=True))
        said = ours.Chatbot(chatbot).answered(prompts, replace(usual, **setting))
        words = [word for reply in said for word in normalise(reply)]
        scores = quality(said, answers)
        scores["strange_words"] = sum(word not in known for word in words) / len(words)
        scores["log_likelihood"] = likelihood(chatbot, prompts, said)
        row = setting | {
            name: scores[name]
            for name in (
                "bland_share",
                "distinct_2",
                "unique_share",
                "strange_words",
                "log_likelihood",
                "mean_length",
            )
        }
        print("  ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)
        rows.append(row)
        replies[values] = said
    good = [
        row
        for row in rows
        if row["bland_share"] <= MOST_BLAND
        and row["distinct_2"] >= LEAST_DISTINCT * people["distinct_2"]
        and row["strange_words"] <= MOST_STRANGE
    ]
    chosen = max(good, key=lambda row: row["log_likelihood"]) if good else None
    print("chosen", chosen)
    if chosen:
        for prompt, reply in list(
            zip(prompts, replies[tuple(chosen[name] for name in GRID)], strict=True)
        )[::20]:
            print(f"{prompt}\n    {reply}")
    record = {"people": people, "grid": rows, "chosen": chosen, "facts": measure.facts(given)}
    print(measure.write("cure", record))


if __name__ == "__main__":
    main()
