"""Shared by all benchmarks: options, facts of the machine, timing in turns, JSON records.

Two sides are timed in turns (peer, ours, peer, ours, ...), so that a slower machine slows both. The
figure of a side is the median of its rounds; the ratio is the median over rounds of ours / peer.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "bench" / "results"
PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "sacrebleu", "numpy")


Prepare = Callable[[str, argparse.Namespace], Callable[[int], "Speed"]]


class Speed(NamedTuple):
    """Number of tokens, padding not counted, and the seconds they took."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def options(description: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """An argument parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="torch threads, the same for both sides",
    )
    parser.add_argument(
        "--data", type=Path, default=DATA, help="the folder that contains the data sets"
    )
    parser.add_argument("--only", choices=("peer", "ours"), help="run one side only")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="rounds for each side")
    return parser


def facts(args: argparse.Namespace) -> dict[str, Any]:
    """Date, revision, command, seed, threads, machine and versions of a measurement."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "seed": args.seed,
        "threads": args.threads,
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": _memory(),
            "os": platform.platform(),
        },
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES},
    }


def revision() -> str:
    """The commit, with "+changes" if files differ from it; "unknown" outside a repository.

    Changes in bench/results do not count.
    """
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", ":(exclude)bench/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if changed else "")


def take_turns(prepare: Prepare, args: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens/s of each side, round by round in turns.

    Each side runs in its own process, prepared by `prepare(name, args)`, so that its settings of
    the memory allocator or of torch do not influence the other side. Only one works at a time.
    """
    names = [args.only] if args.only else ["peer", "ours"]
    figures: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        pools = {
            name: ProcessPoolExecutor(1, context, _begin, (prepare, name, args)) for name in names
        }
        for pool in pools.values():
            stack.enter_context(pool)
            pool.submit(_turn, None).result()  # wait until it is prepared
        for number in range(args.rounds):
            for name, pool in pools.items():
                figures[name].append(pool.submit(_turn, number).result().rate)
                print(
                    f"round {number + 1}/{args.rounds}  {name:5} {figures[name][-1]:12,.1f}",
                    flush=True,
                )
    return figures


_side: Callable[[int], Speed]


def _begin(prepare: Prepare, name: str, args: argparse.Namespace) -> None:
    import torch

    global _side
    torch.set_num_threads(args.threads)
    _side = prepare(name, args)


def _turn(number: int | None) -> Speed:
    return Speed(0, 1) if number is None else _side(number)


def summary(figures: Mapping[str, list[float]]) -> dict[str, Any]:
    """Spread of each side, and of the ratio ours / peer if both were measured."""
    spreads: dict[str, Any] = {name: spread(values) for name, values in figures.items()}
    if "ours" in figures and "peer" in figures:
        spreads["ratio"] = spread(
            [ours / peer for ours, peer in zip(figures["ours"], figures["peer"], strict=True)]
        )
    return spreads


def summaries(rates: Mapping[str, list[float]], titles: Mapping[str, str]) -> dict[str, Any]:
    """The summary of each setting, printed below its title; rounds cycle through the settings."""
    figures = {}
    for n, (key, title) in enumerate(titles.items()):
        own = {name: values[n :: len(titles)] for name, values in rates.items()}
        figures[key] = summary(own)
        print(f"{title}\n{format_summary(figures[key])}")
    return figures


def format_summary(figures: Mapping[str, Any]) -> str:
    """The result of `summary` as lines to print."""
    return "\n".join(
        f"{name:6}{side['median']:12,.2f}  ({side['low']:,.2f} to {side['high']:,.2f})"
        for name, side in figures.items()
    )


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """The last record of a benchmark."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def enter(
    name: str, group: str, key: str, entry: Mapping[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """Write one entry of a record, keep its other entries, and return all of them.

    The record is read again first, so entries that another run has written meanwhile are kept.
    """
    entries = read(name)[group] if (RESULTS / f"{name}.json").exists() else {}
    settings = {
        "changes": getattr(args, "set", None) or [],
        "threads": args.threads,
        "seed": args.seed,
    }
    entries[key] = {**entry, **settings}
    write(name, {**facts(args), group: entries})
    return entries


def write(name: str, record: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write the record to folder/NAME.json atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    draft = folder / f".{name}.json.{os.getpid()}"
    draft.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def spread(values: list[float]) -> dict[str, Any]:
    """Median, lowest, highest and all values."""
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "rounds": values,
    }


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).stem


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
