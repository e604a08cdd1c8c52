"""Linear attention by 3 terms of the Maclaurin series against torch's exact attention, in one run.

    python -m bench.maclaurin

Batch x heads = 2, single precision. Each round times every side of a case in turns, so a machine
that slows down slows all of them; a figure is the median of its rounds, the lowest and the highest
beside it. `native` is with the C kernel, `torch` without it (REGARD_NATIVE=0). Useful arithmetic is
2 x 2 L M (E + 1) operations a head, what the formula asks for, as a share of what torch reaches in
a 1024 x 1024 x 1024 matrix product in the same round. `auto` is held against the best of the forms.
Extra memory is what a process grows by at its peak, less what it is handed back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from bench import measure
from regard.lab.quadratic import peak_memory
from regard.layers.maclaurin import cheapest, maclaurin_attention
from regard.layers.monomials import how_many
from regard.layers.native import library, takes

HEADS = 2


class Case(NamedTuple):
    width: int
    length: int
    causal: bool = False
    backward: bool = False
    must: float | None = None  # times as fast as exact attention
    goal: float | None = None

    @property
    def name(self) -> str:
        how = "forward + backward" if self.backward else "forward"
        return f"{'causal, ' if self.causal else ''}width {self.width}, L {self.length:,}, {how}"


CASES = (
    Case(32, 8192, must=5, goal=8),
    Case(64, 16384, must=3.5, goal=6),
    Case(32, 8192, backward=True, must=4, goal=7),
    Case(32, 8192, causal=True, must=3, goal=5),
    Case(32, 8192, causal=True, backward=True),
    Case(16, 8192),
    Case(64, 16384, backward=True),
    Case(32, 65536, must=35, goal=60),
)
DOUBLING = (8192, 16384, 32768, 65536)
LENGTHS = tuple(2**n for n in range(6, 17))
LONGEST = {
    "quadratic": 8192,
    "recurrent": 512,
}  # longer ones are far from the best, and take minutes


@contextmanager
def native(on: bool) -> Iterator[None]:
    before = os.environ.get("REGARD_NATIVE")
    os.environ["REGARD_NATIVE"] = "1" if on else "0"
    try:
        yield
    finally:
        os.environ.pop("REGARD_NATIVE")
        if before is not None:
            os.environ["REGARD_NATIVE"] = before


def sides() -> tuple[str, ...]:
    return ("native", "torch") if library() is not None else ("torch",)


def inputs(case: Case, seed: int) -> tuple[torch.Tensor, ...]:
    make = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(1, HEADS, case.length, case.width, generator=make).requires_grad_(case.backward)
        for _ in range(3)
    )


def run(case: Case, side: str, qkv: tuple[torch.Tensor, ...], form: str = "auto") -> None:
    if side == "exact":
        context = F.scaled_dot_product_attention(*qkv, is_causal=case.causal)
    else:
        with native(side == "native"):
            context = maclaurin_attention(*qkv, causal=case.causal, form=form)
    if case.backward:
        with native(side == "native"):
            torch.autograd.grad(context, qkv, torch.ones_like(context))


def seconds(work: Callable[[], object], at_least: float = 0.05) -> float:
    """Of one call, over as many as take `at_least`."""
    calls, began = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        spent = time.perf_counter() - began
        if spent >= at_least:
            return spent / calls


def rounds_of(
    works: dict[str, Callable[[], object]], rounds: int, at_least: float = 0.05
) -> dict[str, list[float]]:
    """Seconds of each, round by round in turns, after one call each that does not count."""
    for work in works.values():
        work()
    figures: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for number in range(rounds):
        for name in (
            names[number % len(names) :] + names[: number % len(names)]
        ):  # nobody always follows the same one
            figures[name].append(seconds(works[name], at_least))
    return figures


def ratios(above: list[float], below: list[float]) -> dict[str, Any]:
    return measure._spread([a / b for a, b in zip(above, below, strict=True)])


def told(spread: dict[str, Any], unit: str = "") -> str:
    return f"{spread['median']:.2f}{unit} ({spread['low']:.2f} to {spread['high']:.2f})"


def against_exact(given: Namespace) -> dict[str, Any]:
    square = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(given.seed))
    record: dict[str, Any] = {}
    for case in CASES:
        if given.skip_long and case.length > 16384:
            continue
        qkv = inputs(case, given.seed)
        works: dict[str, Callable[[], object]] = {"exact": lambda: run(case, "exact", qkv)}  # noqa: B023
        works |= {side: lambda side=side: run(case, side, qkv) for side in sides()}  # noqa: B023
        works["product"] = lambda: square @ square
        figures = rounds_of(works, given.rounds if case.length <= 16384 else min(3, given.rounds))
        own: dict[str, Any] = {
            "seconds": {name: measure._spread(values) for name, values in figures.items()}
        }
        own["must"], own["goal"] = case.must, case.goal
        useful = 4 * case.length * HEADS * how_many(case.width, 3) * (case.width + 1)
        own["peak_gflops"] = measure._spread([2 * 1024**3 / s / 1e9 for s in figures["product"]])
        print(f"{case.name}   exact {own['seconds']['exact']['median'] * 1e3:,.1f} ms", flush=True)
        for side in sides():
            own[f"times as fast, {side}"] = ratios(figures["exact"], figures[side])
            line = f"   {side:7} {own['seconds'][side]['median'] * 1e3:8.1f} ms   "
            line += told(own[f"times as fast, {side}"], "x")
            if not case.backward and not case.causal:
                shares = [
                    (useful / mine) / (2 * 1024**3 / product)
                    for mine, product in zip(figures[side], figures["product"], strict=True)
                ]
                own[f"share of peak, {side}"] = measure._spread(shares)
                line += "   share of matmul peak " + told(own[f"share of peak, {side}"])
            print(
                line + (f"   must {case.must}x, goal {case.goal}x" if case.must else ""), flush=True
            )
        record[case.name] = own
    return record


def doubling(given: Namespace) -> dict[str, Any]:
    """time(2L) / time(L)"""
    record: dict[str, Any] = {}
    for causal in (False, True):
        for side in sides():
            cases = [Case(32, length, causal) for length in DOUBLING]
            works = {}
            for case in cases:
                qkv = inputs(case, given.seed)
                works[str(case.length)] = lambda case=case, qkv=qkv, side=side: run(
                    case, side, qkv, "chunked"
                )
            figures = rounds_of(works, given.rounds, 0.1)
            own = {
                f"{longer} / {shorter}": ratios(figures[str(longer)], figures[str(shorter)])
                for shorter, longer in pairwise(DOUBLING)
            }
            name = f"{side}{', causal' if causal else ''}"
            record[name] = own
            print(
                f"time(2L) / time(L), width 32, {name}: "
                + "   ".join(told(s) for s in own.values()),
                flush=True,
            )
    return record


def automatic(given: Namespace) -> dict[str, Any]:
    """`auto` against the best form at every length."""
    record: dict[str, Any] = {}
    for width in (32, 64):
        for causal in (False, True):
            for side in sides():
                for length in LENGTHS:
                    case = Case(width, length, causal)
                    qkv = inputs(case, given.seed)
                    forms = [
                        f
                        for f in ("quadratic", "parallel", "chunked", "recurrent")
                        if length <= LONGEST.get(f, length)
                    ]
                    works = {f: lambda f=f: run(case, side, qkv, f) for f in [*forms, "auto"]}  # noqa: B023
                    figures = rounds_of(works, given.rounds, 0.02)
                    best = min(forms, key=lambda f: measure._spread(figures[f])["median"])
                    with native(side == "native"):
                        kernel = takes(qkv[0], 3)
                    chosen = cheapest(
                        HEADS, length, length, width, width, terms=3, causal=causal, kernel=kernel
                    )
                    own = {
                        "best": best,
                        "chosen": chosen,
                        "auto / best": ratios(figures["auto"], figures[best]),
                        "milliseconds": {
                            f: 1e3 * measure._spread(v)["median"] for f, v in figures.items()
                        },
                    }
                    name = f"{side}, width {width}{', causal' if causal else ''}, L {length}"
                    record[name] = own
                    times = "  ".join(f"{f} {ms:.2f}" for f, ms in own["milliseconds"].items())
                    print(
                        f"{name:36} auto {chosen:9} / best {best:9} {told(own['auto / best'])}   ms: {times}",
                        flush=True,
                    )
    return record


def memory(given: Namespace) -> dict[str, Any]:
    """Peak memory beyond inputs and results, each in a process of its own."""
    record: dict[str, Any] = {}
    for side in sides():
        for backward in (False, True):
            for length in (8192, 65536):
                command = [
                    sys.executable,
                    "-m",
                    "bench.maclaurin",
                    "--peak",
                    side,
                    str(length),
                    str(int(backward)),
                ]
                said = subprocess.run(
                    command, cwd=measure.ROOT, capture_output=True, text=True, check=True
                )
                own = json.loads(said.stdout.splitlines()[-1])
                name = f"{side}, width 64, L {length:,}{', forward + backward' if backward else ''}"
                record[name] = own
                extra = "unknown" if own["extra_mib"] is None else f"{own['extra_mib']:.1f} MiB"
                print(
                    f"extra memory, {name}: {extra} (L x M would be {own['features_mib']:,.0f} MiB)",
                    flush=True,
                )
    return record


def peak(side: str, length: int, backward: bool) -> None:
    """What the process of `memory` does."""
    case, warm = Case(64, length, backward=backward), Case(64, 512, backward=backward)
    qkv = inputs(case, 0)
    run(warm, side, inputs(warm, 0), "chunked")
    grown = peak_memory(lambda: run(case, side, qkv, "chunked"))
    handed_back = (5 if backward else 1) * qkv[
        0
    ].nbytes  # the context; and its gradient, dq, dk and dv
    extra = None if grown is None else (grown - handed_back) / 2**20
    print(
        json.dumps(
            {"extra_mib": extra, "features_mib": HEADS * length * how_many(64, 3) * 4 / 2**20}
        )
    )


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        peak(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")
        return
    parts = {"exact": against_exact, "doubling": doubling, "memory": memory, "auto": automatic}
    parser = measure.options(__doc__, rounds=5)
    parser.add_argument(
        "--part",
        choices=list(parts),
        action="append",
        help="only this part (nothing is written then)",
    )
    parser.add_argument(
        "--skip-long", action="store_true", help="leave out L 65,536 against exact attention"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    record = {
        name: part(given) for name, part in parts.items() if not given.part or name in given.part
    }
    if not given.part and not given.skip_long:
        setting = {"batch x heads": HEADS, "terms": 3, "type": "float32", "rounds": given.rounds}
        print(
            measure.write(
                "maclaurin", {"setting": setting, "figures": record, "facts": measure.facts(given)}
            )
        )


if __name__ == "__main__":
    main()
