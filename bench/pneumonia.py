"""The reference CNNs A (pooling) and B (strides) on PneumoniaMNIST, three seeds each.

    python -m bench.pneumonia

Both are the OCTMNIST recipes with two labels instead of four: plain SGD, 15 epochs, batches of 8.
The learning rate is the one of 0.1, 0.01 and 0.001 with the best mean validation accuracy of the
three seeds; one that can no longer be the best is abandoned. The test split is used once, with the
weights of the last epoch. The interval of the difference A - B is over the test images: the mean
over seeds of each image, and 1.96 standard errors either side.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from bench import measure
from bench.judging import ValidationReporter
from regard import build, recipe
from regard.bundle import Bundle, load
from regard.data.corpus import Split
from regard.evaluate import answers, questions
from regard.train import train

NETS = {"pool": "reference/octmnist-pool", "stride": "reference/octmnist-stride"}
RATES = (0.1, 0.01, 0.001)
SEEDS = (42, 43, 44)


def trained(name: str, data: Path, rate: float, seed: int, threads: int, folder: Path) -> Bundle:
    changes = [
        f'data.path="{data}"',
        "data.test_first=[]",
        f"train.learning_rate={rate}",
        f"seed={seed}",
    ]
    run = folder / f"{name}-{rate}-{seed}"
    train(
        recipe.load(NETS[name], [*changes, f"train.threads={threads}"]),
        run,
        reporter=ValidationReporter(),
    )
    return load(run)


def correct(bundle: Bundle, split: Split) -> np.ndarray:
    """Which images of a split are classified correctly."""
    items = questions(split, bundle.task)
    labels = answers(bundle, [question.given for question in items])
    return np.array(
        [label in question.references for label, question in zip(labels, items, strict=True)]
    )


def main() -> None:
    args = measure.options(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    data = args.data / "medmnist" / "pneumoniamnist.npz"
    figures = {}
    hits = {}  # (seed, image): whether it is classified correctly
    with tempfile.TemporaryDirectory() as folder:
        for name in NETS:
            start = time.perf_counter()
            runs_by_rate: dict[float, list[Bundle]] = {}
            valid: dict[float, list[float]] = {}
            for rate in RATES:
                runs_by_rate[rate] = []
                valid[rate] = []
                for seed in SEEDS:
                    run = trained(name, data, rate, seed, args.threads, Path(folder))
                    runs_by_rate[rate].append(run)
                    corpus = build.corpus(runs_by_rate[rate][0].recipe)
                    valid[rate].append(float(correct(run, corpus.valid).mean()))
                    highest_possible = sum(valid[rate]) + len(SEEDS) - len(valid[rate])
                    if highest_possible < max(map(sum, valid.values())):
                        break

            rate = max(valid, key=lambda rate: sum(valid[rate]))
            runs = runs_by_rate[rate]
            corpus = build.corpus(runs[0].recipe)
            hits[name] = np.stack([correct(bundle, corpus.test) for bundle in runs])
            figures[name] = {
                "parameters": runs[0].model.parameter_count,
                "valid_accuracy": valid,
                "rate": rate,
                "test_accuracy": hits[name].mean(1).tolist(),
                "mean": float(hits[name].mean()),
                "seconds": round(time.perf_counter() - start, 1),
            }
            print(name, figures[name], flush=True)
    gap = hits["pool"].mean(0) - hits["stride"].mean(0)
    error = float(gap.std(ddof=1) / len(gap) ** 0.5)
    figures["pool less stride"] = {
        "mean": float(gap.mean()),
        "low": float(gap.mean() - 1.96 * error),
        "high": float(gap.mean() + 1.96 * error),
        "by_seed": (hits["pool"].mean(1) - hits["stride"].mean(1)).tolist(),
    }
    print(figures["pool less stride"])
    setting = {"seeds": SEEDS, "rates": RATES, "test_pictures": len(gap)}
    print(
        measure.write(
            "pneumonia", {"setting": setting, "figures": figures, "facts": measure.facts(args)}
        )
    )


if __name__ == "__main__":
    main()
