"""Memory: the closed forms of `regard budget` against the peak that training and a forward pass
really reach.

    python -m bench.memory
    python -m bench.memory --others

The terms of the forms were read off the allocations of the main recipes, so their figures say how
well the forms fit what they were made from. The others were written down before they were first
run, and no term was made from them: they say what to expect of a recipe of one's own.

Every recipe in a process of its own: two steps of training to warm up, then one whose allocations
are recorded, by torch's own profiler, which sees every byte that the allocator of the CPU gives and
takes back. The peak is the largest sum of them, with the weights and the optimiser's means that
were there before. Beside it stands how far the resident memory of the whole process grew, as the
kernel has it: that has the allocator's leftovers and scratch of oneDNN in it.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench import measure

# recipe, vocabulary of its data (None: it has none), batch size, length, changes
MAIN = [
    ("chat-attention", 3000, 32, 64),
    ("chat-lstm", 3000, 32, 64),
    ("chat-gru", 3000, 32, 64),
    ("chat-additive", 3000, 32, 64),
    ("chat-transformer", 3000, 32, 64),
    ("chat-maclaurin", 3000, 32, 64),
    ("translate-attention", 60, 32, 64),
    ("translate-transformer", 60, 32, 64),
    ("sentiment-lstm", 20_000, 64, 32),
    ("sentiment-gru", 20_000, 64, 32),
    ("sentiment-cnn", 20_000, 64, 32),
    ("sentiment-transformer", 20_000, 64, 32),
    ("image-pool", None, 64, 1),
    ("image-stride", None, 64, 1),
    ("image-patches", None, 64, 1),
    ("reference/chat-classic", 7823, 64, 10),
    ("reference/octmnist-pool", None, 8, 1),
    ("reference/octmnist-stride", None, 8, 1),
    ("speech-attention", 33, 16, 60, "source.tempo_perturbation=0.0"),
    ("speech-transformer", 33, 16, 60, "source.tempo_perturbation=0.0"),
    ("caption-attention", 36, 64, 16),
    ("caption-transformer", 36, 64, 16),
    ("caption-flickr8k", 3000, 16, 16),
    ("blank-rnn", 5000, 64, 20),
    ("blank-transformer", 5000, 64, 20),
    ("chat-attention", 3000, 64, 16),
    ("chat-transformer", 20_000, 8, 200),
]
OTHERS = [
    (
        "sentiment-transformer",
        500,
        24,
        48,
        "encoder.width=96",
        "encoder.layers=3",
        "encoder.dropout=0.0",
    ),
    ("sentiment-transformer", 500, 40, 60, "encoder.ffn_width=64", "encoder.positions=rotary"),
    ("sentiment-lstm", 500, 40, 25, "encoder.layers=3", "encoder.width=96"),
    ("sentiment-gru", 500, 40, 50, "encoder.directions=1", "encoder.layers=2"),
    ("sentiment-cnn", 500, 40, 50, "encoder.layers=4", "encoder.width=64"),
    (
        "image-pool",
        None,
        20,
        1,
        "source.size=[40,24]",
        "source.channels_in=3",
        "source.channels=[12,20,28]",
        "source.padding=[1,1,1]",
        "decoder.dropout=0.0",
    ),
    (
        "image-stride",
        None,
        30,
        1,
        "source.channels_in=3",
        "source.channels=[24,8]",
        "source.padding=[1,1]",
    ),
    ("image-patches", None, 50, 1, "encoder.positions=relative", "source.patch=7"),
    (
        "translate-attention",
        60,
        24,
        40,
        "encoder.cell=gru",
        "decoder.cell=gru",
        "decoder.attention_order=before_cell",
    ),
    ("translate-attention", 60, 24, 40, "encoder.layers=2", "decoder.layers=3"),
    (
        "translate-transformer",
        60,
        24,
        90,
        "encoder.dropout=0.0",
        "decoder.dropout=0.0",
        "encoder.positions=alibi",
        "decoder.positions=alibi",
    ),
    ("chat-maclaurin", 300, 12, 300),
    ("translate-gru", 60, 32, 64),
    ("translate-convolution", 60, 32, 64),
    ("translate-maclaurin", 60, 32, 64),
]
WITHIN = 0.05


def measured(
    name: str, sets: list[str], vocabulary: int | None, rows: int, length: int, threads: int
) -> dict[str, int]:
    """Peak bytes of a training step and of a forward pass."""
    import torch

    from regard import recipe
    from regard.budget.modules import built
    from regard.optimise import optimiser
    from regard.train import keep_memory

    torch.set_num_threads(threads)
    keep_memory()
    of = recipe.load(name, sets)
    before = _resident()
    model = built(of, vocabulary)
    update = optimiser(model, of.train)
    raw, mask = model.frontend.example(rows, length)
    ids = torch.full(
        (rows, 1 if of.decoder.kind == "classifier" else length), model.decoder.vocabulary - 1
    )
    real = torch.ones_like(ids, dtype=torch.bool)

    def step() -> None:
        loss, _ = model.loss(raw, mask, ids, ids, real, smoothing=of.train.label_smoothing)
        (loss / ids.numel()).backward()
        torch.nn.utils.clip_grad_norm_(
            model.parameters(), of.train.max_grad_norm or math.inf, foreach=True
        )
        update.step()
        update.zero_grad(set_to_none=True)

    def forward() -> None:
        with torch.inference_mode():
            model(raw, mask, ids)

    weights = sum(p.nbytes for p in model.parameters())
    for _ in range(2):
        step()
    resident = _resident(peak=True) - before
    always = (
        1 + (2 if of.train.optimiser == "adamw" else 0) + (of.train.ema_decay > 0)
    )  # the means of both
    training = always * weights + _peak(step)
    model.eval()
    forward()
    return {"training": training, "inference": weights + _peak(forward), "resident": resident}


def _peak(work: Callable[[], None]) -> int:
    """Most bytes that were allocated at a time since it began."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        work()
    changes: list[tuple[int, int]] = []

    def walk(events: Any) -> None:
        for event in events:
            if event.tag.name == "Allocation":
                changes.append((event.start_time_ns, event.typed[1].alloc_size))
            walk(event.children)

    walk(recording.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _resident(*, peak: bool = False) -> int:
    key = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)


def compare(args: Namespace) -> list[dict[str, Any]]:
    from regard import recipe
    from regard.budget import budget

    rows = []
    context = multiprocessing.get_context("spawn")
    for name, vocabulary, batch, length, *sets in OTHERS if args.others else MAIN:
        with ProcessPoolExecutor(1, context) as pool:
            peaks = pool.submit(
                measured, name, sets, vocabulary, batch, length, args.threads
            ).result()
        sizes = {
            "batch": batch,
            "source_length": length,
            "target_length": length,
            "vocabulary": vocabulary,
        }
        closed = budget(recipe.load(name, sets), **sizes).memory
        row = {
            "recipe": name,
            "sets": sets,
            **sizes,
            "measured": peaks,
            "formula": {k: closed[k] for k in ("training", "inference")},
        }
        row["off"] = {k: closed[k] / peaks[k] - 1 for k in ("training", "inference")}
        rows.append(row)
        print(
            f"{name:<24} {batch:>3} x {length:<4}"
            + "".join(
                f"  {k} {peaks[k] / 1e6:8.1f} MB, formula {row['off'][k]:+7.2%}"
                for k in ("training", "inference")
            )
            + f"  resident {peaks['resident'] / 1e6:8.1f} MB",
            flush=True,
        )
    return rows


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--others", action="store_true", help="recipes that no form was made from")
    args = parser.parse_args()
    rows = compare(args)
    worst = {k: max(abs(row["off"][k]) for row in rows) for k in ("training", "inference")}
    print("largest difference: " + ", ".join(f"{k} {off:.2%}" for k, off in worst.items()))
    name = "memory_others" if args.others else "memory"
    print(f"wrote {measure.write(name, measure.facts(args) | {'worst': worst, 'rows': rows})}")
    if max(worst.values()) > WITHIN and not args.others:
        sys.exit(f"more than {WITHIN:.0%} off")


if __name__ == "__main__":
    main()
