"""DailyDialog: what makes replies better, and how good the replies of a run are.

    python -m bench.dialogue variants --minutes 8              train every variant, two side by side
    python -m bench.dialogue variants --only "turns 1" --only "turns 5"
    python -m bench.dialogue variants --epochs 1 --record dialogue_losses
    python -m bench.dialogue evaluate RUN [--name dialogue]    every score of a run
    python -m bench.dialogue items items.jsonl ours=RUN before=OTHER_RUN    for bench.blind_judging
    python -m bench.dialogue score items.jsonl                 BLEU and distinct-n of these replies

A variant is a smaller `chat-dialogue`, for few minutes, with one change. All are trained for the
same minutes, or with `--epochs` on the same examples, one thread each, with the same seed, and
scored on the validation part: perplexity per word, and the share of true replies that are ranked
first of 20, by likelihood per token and by PMI. A record keeps the variants that it already has.

`evaluate` answers the whole validation part with the recipe's search. It adds BLEU and distinct-n
by the definitions of a published benchmark (`bench.published_dialogue`), where attention is and
what it does (`bench.attending`), 20 replies, evenly spread, and five conversations of the model
with itself, which begin with the first turn of a validation dialogue.

`items` writes replies of several runs to the same validation dialogues, and the true ones, for
blind judging. Histories are of at most three turns; a run that was trained on single turns reads
the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import measure, published_dialogue
from bench.attending import attention_figures
from bench.judging import ValidationReporter
from regard import bundle, disk, metrics, recipe
from regard.data.corpus import Split
from regard.data.dailydialog import dailydialog_files, read_dailydialog
from regard.data.lines import Tally
from regard.evaluate import answers, likelihood, questions
from regard.evaluate import evaluate as evaluation_of
from regard.ranking import evenly_spread, rank_answers
from regard.search import Options
from regard.train import train
from regard.values import Answer

RANKED = 1000  # validation examples whose true reply is ranked
GREEDY = 500  # prompts with a greedy reply
SAMPLES = 20
TALKS = 5
TURNS = 6  # of a conversation of the model with itself, the first one included
HISTORY = 3  # turns that a judge reads
THREADS = 1  # of a variant: two are trained side by side
SMALL = [  # little is learned in some minutes, so little has to be unlearned
    "encoder.width=512",
    "source.dropout=0.2",
    "decoder.dropout=0.3",
    "train.ema_decay=0.99",
]
VARIANTS: dict[str, list[str]] = {
    "turns 3": [],
    "turns 1": ["data.turns=1"],
    "turns 5": ["data.turns=5", "data.max_source=160"],
    "4,000 tokens": ["tokenizer.size=4000"],
    "16,000 tokens": ["tokenizer.size=16000"],
    "words": ["tokenizer.kind=words", "tokenizer.size=16000"],
    "label smoothing": ["train.label_smoothing=0.1"],
    "unlikelihood": ["train.unlikelihood_weight=0.5"],
    "batches grow to 4 times": ["train.batch_tokens=3000", "train.batch_growth=4"],
    "float32": ["train.precision=float32"],
    "batches of 3,000": ["train.batch_tokens=3000"],
    "learning rate 4e-3": ["train.learning_rate=4e-3"],
    "no averaged weights": ["train.ema_decay=0"],
    "contrastive from the start": ["train.contrastive_start=0"],
    "no contrastive loss": ["train.contrastive_weight=0"],
    "multi-head attention": ["decoder.kind=recurrent-cross-attention", "decoder.attention="],
}


def overrides(args: argparse.Namespace) -> list[str]:
    """The overrides of every variant: the data, the budget, one thread."""
    return [
        f'data.path="{args.data / "dailydialog"}"',
        "train.steps=",
        *_budget(args),
        f"train.threads={THREADS}",
        "train.valid_every=1000000",
        "train.save_every=1000000",
        f"seed={args.seed}",
    ]


def _budget(args: argparse.Namespace) -> list[str]:
    """The overrides of the budget: epochs, if they are given, or else minutes."""
    if args.epochs is not None:
        return [f"train.epochs={args.epochs}", "train.minutes="]
    return ["train.epochs=", f"train.minutes={args.minutes}"]


def train_variant(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train one variant; its scores on the validation part."""
    changes = [*overrides(args), *SMALL, *VARIANTS[name]]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "run"
        progress = train(
            recipe.load("chat-dialogue", changes), target, reporter=ValidationReporter()
        )
        bot = bundle.load(target)
        _, valid = bot.own_data()
        figures = dict(likelihood(bot.model, bot.task, valid).scores)
        ranking = rank_answers(bot.model, bot.task, valid, at_most=RANKED)
        figures |= {name: statistic.value for name, statistic in ranking.statistics.items()}
        figures |= greedy_figures(bot, valid)
    return {
        "settings": [*SMALL, *VARIANTS[name]],
        "steps": progress.step,
        "parameters": bot.model.parameter_count,
        **({"epochs": args.epochs} if args.epochs is not None else {"minutes": args.minutes}),
        "seed": args.seed,
        "figures": {key: round(value, 4) for key, value in figures.items()},
        "measured": measure.revision(),
    }


def greedy_figures(bot: bundle.Bundle, valid: Split) -> dict[str, float]:
    """What greedy replies are like, without any measure against repetition."""
    greedy = Options(max_new_tokens=bot.recipe.search.max_new_tokens)
    asked = questions(valid, bot.task, at_most=GREEDY)
    replies = answers(bot, [question.given for question in asked], greedy)
    return {
        "greedy_unique_share": metrics.unique_share(replies),
        "greedy_repetition": metrics.repetition(replies),
        "greedy_bland_share": metrics.bland_share(replies),
        "greedy_distinct_2": metrics.distinct(replies, 2),
        "greedy_length": metrics.mean_length(replies),
    }


def variants(args: argparse.Namespace) -> None:
    """Train the variants, two at a time, and write the record."""
    args.threads = THREADS  # of a variant, and so of the record
    names = args.only or list(VARIANTS)
    for pair in _in_pairs(names):
        processes = {}
        for name in pair:
            command = [sys.executable, "-m", "bench.dialogue", "variant", name]
            command += ["--minutes", str(args.minutes), "--seed", str(args.seed)]
            command += ["--data", str(args.data)]
            if args.epochs is not None:
                command += ["--epochs", str(args.epochs)]
            processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for name, process in processes.items():
            output, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"{name}: exit code {process.returncode}")
            entry = json.loads(output.splitlines()[-1])
            measure.enter(args.record, "variants", name, entry, args)
            print(name, entry["steps"], entry["figures"], flush=True)


def _in_pairs(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), 2):
        yield names[start : start + 2]


class Remembering:
    """A bundle that answers the same input once."""

    def __init__(self, bot: bundle.Bundle):
        self.bot = bot
        self.model = bot.model
        self.task = bot.task
        self.answers: dict[bytes, list[Answer]] = {}

    def candidates(self, inputs: Sequence[Any], options: Any = None) -> list[list[Answer]]:
        keys = [np.asarray(row).tobytes() for row in inputs]
        new = {key: row for key, row in zip(keys, inputs, strict=True) if key not in self.answers}
        self.answers |= zip(new, self.bot.candidates(list(new.values()), options), strict=True)
        return [self.answers[key] for key in keys]


def evaluate(args: argparse.Namespace) -> None:
    """Every score of a run on its validation part, and 20 of its replies."""
    bot = bundle.load(args.run)
    start = time.perf_counter()
    corpus, valid = bot.own_data()
    remembering = Remembering(bot)
    evaluation = evaluation_of(remembering, valid, at_most=args.limit, training=corpus.train)
    asked = questions(valid, bot.task, at_most=args.limit)
    replies = answers(remembering, [question.given for question in asked])
    references = [question.references[0] for question in asked]
    published = published_dialogue.scores(replies, references)
    dialogues = [question.cluster for question in asked]
    intervals = published_dialogue.bleu_intervals(replies, references, dialogues)
    of_people = published_dialogue.scores(references, references)
    samples = [
        {"history": asked[i].shown.split("\n"), "reply": replies[i], "people": references[i]}
        for i in evenly_spread(len(asked), SAMPLES)
    ]
    lines = list(disk.read_json_lines(args.run / "metrics.jsonl"))
    record = {
        "examples": evaluation.examples,
        "prompts": evaluation.prompts,
        "scores": evaluation.scores,
        "intervals": {name: list(bounds) for name, bounds in evaluation.intervals.items()},
        "references": evaluation.references,
        "published_definitions": published,
        "published_intervals": intervals,
        "published_definitions_of_references": of_people,
        "attention": attention_figures(bot) if bot.attends() else None,
        "samples": samples,
        "talks": talks(bot, args.data),
        "training": {
            "steps": lines[-1]["step"],
            "seconds": lines[-1]["seconds"],
            "parameters": bot.model.parameter_count,
            "recipe": bot.recipe.model_dump(mode="json"),
        },
        "seconds": time.perf_counter() - start,
        "facts": measure.facts(args),
    }
    for name, value in {**evaluation.scores, **_prefixed("published ", published)}.items():
        print(f"{name:24}{value:10.4f}")
    print(f"95 % interval of published bleu_2: {intervals['bleu_2']}")
    print(measure.write(args.name, record))


def talks(bot: bundle.Bundle, data: Path) -> list[list[str]]:
    """Conversations of the model with itself."""
    file = dailydialog_files(data / "dailydialog")["valid"]
    first_turns = [
        str(example.source)
        for example in read_dailydialog(file, turns=TURNS, tally=Tally())
        if "\n" not in str(example.source)
    ]
    conversations = []
    for i in evenly_spread(len(first_turns), TALKS):
        turns = [first_turns[i]]
        while len(turns) < TURNS:
            turns.append(bot.ask([turns])[0].text)
        conversations.append(turns)
    return conversations


def _prefixed(prefix: str, scores: dict[str, float]) -> dict[str, float]:
    return {prefix + name: value for name, value in scores.items()}


def items(args: argparse.Namespace) -> None:
    """Replies of several runs, and the true ones, to the same validation dialogues."""
    runs = dict(pair.split("=", 1) for pair in args.runs)
    file = dailydialog_files(args.data / "dailydialog")["valid"]
    examples = list(read_dailydialog(file, turns=HISTORY, tally=Tally()))
    examples = [examples[i] for i in evenly_spread(len(examples), args.count)]
    histories = [str(example.source).split("\n") for example in examples]
    replies = {"people": [example.target for example in examples]}
    for name, run in runs.items():
        bot = bundle.load(Path(run))
        inputs: list[Any] = histories
        if not bot.task.source.reads_history:
            inputs = [history[-1] for history in histories]
        replies[name] = [answer.text for answer in bot.ask(inputs)]
    lines = []
    for i, history in enumerate(histories):
        of_sources = {name: texts[i] for name, texts in replies.items()}
        lines.append(json.dumps({"history": history, "replies": of_sources}, ensure_ascii=False))
    disk.write_text(args.file, "\n".join(lines) + "\n")
    print(f"{len(lines)} histories in {args.file}")


def score(args: argparse.Namespace) -> None:
    """BLEU and distinct-n of the replies in a file of `items`, by the published definitions."""
    lines = [json.loads(line) for line in args.file.read_text("utf-8").splitlines()]
    references = [line["replies"]["people"] for line in lines]
    for source in lines[0]["replies"]:
        replies = [line["replies"][source] for line in lines]
        figures = published_dialogue.scores(replies, references)
        print(f"{source:10}", "  ".join(f"{name} {value:.3f}" for name, value in figures.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--seed", type=int, default=1)
    shared.add_argument("--threads", type=int, default=os.cpu_count())
    shared.add_argument("--data", type=Path, default=measure.DATA)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("variants", "variant"):
        verb = verbs.add_parser(name, parents=[shared])
        verb.add_argument("--minutes", type=float, default=8)
        verb.add_argument("--epochs", type=int, help="epochs of training, instead of minutes")
        if name == "variant":
            verb.add_argument("name", choices=list(VARIANTS))
        else:
            verb.add_argument("--only", action="append", choices=list(VARIANTS))
            verb.add_argument("--record", default="dialogue_variants")
    scoring = verbs.add_parser("evaluate", parents=[shared])
    scoring.add_argument("run", type=Path)
    scoring.add_argument("--name", default="dialogue")
    scoring.add_argument("--limit", type=int, help="answer only so many prompts")
    writing = verbs.add_parser("items", parents=[shared])
    writing.add_argument("file", type=Path)
    writing.add_argument("runs", nargs="+", metavar="NAME=RUN")
    writing.add_argument("--count", type=int, default=100)
    scoring_items = verbs.add_parser("score", parents=[shared])
    scoring_items.add_argument("file", type=Path)
    args = parser.parse_args()
    if args.verb == "variant":
        torch.set_num_threads(THREADS)
        print(json.dumps(train_variant(args.name, args)), flush=True)
        return
    torch.set_num_threads(args.threads)
    {"variants": variants, "evaluate": evaluate, "items": items, "score": score}[args.verb](args)


if __name__ == "__main__":
    main()
