"""What attention gains: a recurrent model with attention against the same model without it.

    python -m bench.attention                                  three minutes a run, three seeds
    python -m bench.attention --minutes 10 --seeds 5           a recorded seed is not repeated
    python -m bench.attention --corpus dailydialog --measure-speeds
    python -m bench.attention --corpus dailydialog --minutes 10 --speeds 3.65 3.08

On DailyDialog (`chat-dialogue`, which reads three turns), where a reply seldom depends on single
words, and on Multi30k English to German (`chat-attention`), where it nearly always does. Both
models of a seed are trained at the same time, one thread each, so that a slower machine slows both.
The learning rate is constant after its warm-up, so one pair of runs gives both comparisons:

    equal minutes    the last weights of both
    equal steps      both at the last step that both were validated at

With `--speeds` a run takes minutes x 60 x speed steps. Then other programs may run beside it,
because a minute is one of the machine on which the speeds were measured. `--measure-speeds` prints
the steps a second of both models on all cores, validation not counted.

The figure is the difference of the log perplexity per word on the validation data, attention minus
none: its mean over the seeds, with a 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import measure
from bench.judging import ValidationReporter
from regard import recipe
from regard.disk import read_json_lines
from regard.train import train

RECIPES = {"dailydialog": "chat-dialogue", "multi30k": "chat-attention"}
KINDS: dict[str, list[str]] = {"none": ["decoder.attention=none"], "attention": []}
SPEED_STEPS = 60
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided, by the number of seeds


def corpus(name: str, data: Path) -> list[str]:
    """The overrides that select a corpus."""
    folder = data / name
    if name == "dailydialog":
        return ["data.kind=dailydialog", f'data.path="{folder}"']
    return [
        "data.kind=parallel",
        f'data.path="{folder / "train.en.gz"}"',
        f'data.target_path="{folder / "train.de.gz"}"',
        f'data.valid_path="{folder / "val.en.gz"}"',
        f'data.valid_target_path="{folder / "val.de.gz"}"',
        "task=translate",
        "source.plain=false",
    ]


def settings(name: str, kind: str, args: argparse.Namespace) -> list[str]:
    """The overrides of one run."""
    budget = ["train.steps=", f"train.minutes={args.minutes}"]
    if args.speeds:
        steps = steps_of(args)[kind]
        budget = ["train.minutes=", f"train.steps={steps}"]
    return [
        *corpus(name, args.data),
        *budget,
        "train.schedule=constant",
        f"train.threads={args.threads}",
        f"train.valid_every={args.valid_every}",
        "train.save_every=1000000",
        "train.keep=last",
        f"seed={args.seed}",
        *KINDS[kind],
    ]


def steps_of(args: argparse.Namespace) -> dict[str, int]:
    """The steps of both models, by the measured speeds."""
    return {
        kind: round(args.minutes * 60 * speed)
        for kind, speed in zip(KINDS, args.speeds, strict=True)
    }


def run(args: argparse.Namespace) -> None:
    """Train one model, and print its validations as JSON: step -> perplexity per word."""
    name, kind = args.cell
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "run"
        changes = settings(name, kind, args)
        train(recipe.load(RECIPES[name], changes), target, reporter=ValidationReporter())
        lines = list(read_json_lines(target / "metrics.jsonl"))
    validations = {
        line["step"]: line["word_perplexity"] for line in lines if line["kind"] == "valid"
    }
    print(json.dumps(validations), flush=True)


class StepTimes(ValidationReporter):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def stepped(self, progress, loss, speed, done) -> None:
        self.times.append(time.perf_counter())

    def validated(self, record, samples) -> None: ...


def measure_speeds(name: str, args: argparse.Namespace) -> None:
    """Print the steps a second of both models, in turns, one at a time."""
    for _ in range(2):
        for kind in KINDS:
            reporter = StepTimes()
            changes = [*settings(name, kind, args), "train.minutes=", f"train.steps={SPEED_STEPS}"]
            with tempfile.TemporaryDirectory() as folder:
                train(recipe.load(RECIPES[name], changes), Path(folder) / "run", reporter=reporter)
            first, *_, last = reporter.times[10:]  # memory is allocated in the first steps
            print(name, kind, f"{(len(reporter.times) - 11) / (last - first):.2f} steps/s")


def pair(name: str, seed: int, args: argparse.Namespace) -> dict[str, dict[int, float]]:
    """The validations of both models of one seed, trained side by side."""
    processes = {}
    threads = args.threads if args.speeds else 1
    for kind in KINDS:
        command = [sys.executable, "-m", "bench.attention", "--cell", name, kind]
        command += ["--minutes", str(args.minutes), "--seed", str(seed), "--data", str(args.data)]
        command += ["--valid-every", str(args.valid_every), "--threads", str(threads)]
        if args.speeds:
            command += ["--speeds", *map(str, args.speeds)]
        processes[kind] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    validations = {}
    for kind, process in processes.items():
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{name} {kind}: exit code {process.returncode}")
        last = json.loads(output.splitlines()[-1])
        validations[kind] = {int(step): value for step, value in last.items()}
    return validations


def difference(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Perplexities (none, attention), and the mean of log(attention / none) with its interval."""
    logs = [math.log(attention / none) for none, attention in pairs]
    mean = statistics.fmean(logs)
    margin = math.inf
    if len(logs) > 1:
        margin = T_95[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return {
        "none": [none for none, _ in pairs],
        "attention": [attention for _, attention in pairs],
        "log_difference": mean,
        "interval": [mean - margin, mean + margin] if len(logs) > 1 else None,
    }


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seeds", type=int, choices=list(T_95), default=3)
    parser.add_argument("--only-seed", type=int, help="train the pair of this seed, and stop")
    parser.add_argument("--valid-every", type=int, default=200)
    parser.add_argument("--corpus", choices=("dailydialog", "multi30k"), action="append")
    parser.add_argument(
        "--speeds", nargs=2, type=float, help="steps a second without and with attention"
    )
    parser.add_argument("--measure-speeds", action="store_true")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        run(args)
        return
    if args.measure_speeds:
        for name in args.corpus or RECIPES:
            measure_speeds(name, args)
        return

    for name in args.corpus or RECIPES:
        seeds = seeds_of(args)
        for seed in seeds:
            if seed not in recorded(name, args):
                both = pair(name, seed, args)
                enter(name, seed, both, args)
                print(name, "seed", seed, both, flush=True)
        print(name, json.dumps(summarise(name, args), indent=1), flush=True)


def seeds_of(args: argparse.Namespace) -> list[int]:
    """The seeds to train: 0 is one, too."""
    return list(range(1, args.seeds + 1)) if args.only_seed is None else [args.only_seed]


def recorded(name: str, args: argparse.Namespace) -> dict[int, dict[str, dict[int, float]]]:
    """The pairs that are on record with these minutes and speeds, by seed."""
    if not (measure.RESULTS / "attention.json").exists():
        return {}
    figures = measure.read("attention")["figures"].get(name, {})
    if [figures.get("minutes"), figures.get("speeds")] != [args.minutes, args.speeds]:
        return {}
    return {
        int(seed): {
            kind: {int(step): value for step, value in validations.items()}
            for kind, validations in both.items()
        }
        for seed, both in figures.get("validations", {}).items()
    }


def enter(
    name: str, seed: int, both: dict[str, dict[int, float]], args: argparse.Namespace
) -> None:
    """Write the pair of a seed to the record, so that the next command goes on after it."""
    pairs = recorded(name, args) | {seed: both}
    record: dict[str, Any] = {"unit": "perplexity per word", "figures": {}}
    if (measure.RESULTS / "attention.json").exists():
        record = measure.read("attention")
    record["figures"][name] = {
        "recipe": RECIPES[name],
        "minutes": args.minutes,
        "speeds": args.speeds,
        "facts": measure.facts(args),
        "validations": pairs,
    }
    measure.write("attention", record)


def summarise(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Differences over the seeds on record, which are added to it."""
    pairs = recorded(name, args)
    by_minutes = []
    by_steps = []
    steps = []
    for both in pairs.values():
        common = max(both["none"].keys() & both["attention"].keys(), default=None)
        if common is None:
            raise SystemExit("no step that both were validated at: lower --valid-every")
        last = {kind: max(both[kind]) for kind in KINDS}
        by_minutes.append((both["none"][last["none"]], both["attention"][last["attention"]]))
        by_steps.append((both["none"][common], both["attention"][common]))
        steps.append(last | {"common": common})
    summary: dict[str, Any] = {"steps": steps}
    summary["equal_minutes"] = difference(by_minutes)
    summary["equal_steps"] = difference(by_steps)
    record = measure.read("attention")
    record["figures"][name] |= summary
    measure.write("attention", record)
    return summary


if __name__ == "__main__":
    main()
