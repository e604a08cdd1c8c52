"""Speed of linear attention (3 terms of the Maclaurin series) against torch's exact attention.

    python -m bench.maclaurin

Batch x heads = 2, float32. Each round times all sides of a case in turns, so that a slower machine
slows all of them; a figure is the median of its rounds with the lowest and the highest. `native`
uses the C kernel, `torch` does not (REGARD_NATIVE=0). Useful arithmetic is 2 x 2 L M (E + 1)
operations a head, as a share of what torch reaches in a 1024 x 1024 x 1024 matrix product in the
same round. `auto` is compared with the best of the forms. Extra memory is the peak growth of a
process minus the size of the results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from bench import measure
from regard.lab.quadratic import peak_memory
from regard.layers.maclaurin import Form, cheapest, maclaurin_attention
from regard.layers.monomials import how_many
from regard.layers.native import library, takes

HEADS = 2


class Case(NamedTuple):
    width: int
    length: int
    causal: bool = False
    backward: bool = False
    must: float | None = None  # required speed, relative to exact attention
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
FORMS: tuple[Form, ...] = ("quadratic", "parallel", "chunked", "recurrent")
# At greater lengths these forms are far from the best and take minutes.
MAX_LENGTH = {"quadratic": 8192, "recurrent": 512}
QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@contextmanager
def native(on: bool) -> Iterator[None]:
    """Turn the C kernel on or off."""
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


def inputs(case: Case, seed: int) -> QKV:
    """q, k and v."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, HEADS, case.length, case.width)
    q, k, v = (
        torch.randn(shape, generator=generator).requires_grad_(case.backward) for _ in range(3)
    )
    return q, k, v


def run(case: Case, side: str, qkv: QKV, form: Form = "auto") -> None:
    if side == "exact":
        context = F.scaled_dot_product_attention(*qkv, is_causal=case.causal)
    else:
        with native(side == "native"):
            context = maclaurin_attention(*qkv, causal=case.causal, form=form)
    if case.backward:
        with native(side == "native"):
            torch.autograd.grad(context, qkv, torch.ones_like(context))


def seconds(work: Callable[[], object], at_least: float = 0.05) -> float:
    """Seconds of one call: the mean of as many calls as fill `at_least` seconds."""
    calls = 0
    start = time.perf_counter()
    while True:
        work()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= at_least:
            return elapsed / calls


def rounds_of(
    works: Mapping[str, Callable[[], object]], rounds: int, at_least: float = 0.05
) -> dict[str, list[float]]:
    """Seconds of each work, round by round in turns, after one warm-up call each."""
    for work in works.values():
        work()
    figures: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for number in range(rounds):
        first = number % len(names)  # the order rotates
        for name in names[first:] + names[:first]:
            figures[name].append(seconds(works[name], at_least))
    return figures


def ratios(above: list[float], below: list[float]) -> dict[str, Any]:
    return measure.spread([a / b for a, b in zip(above, below, strict=True)])


def format_spread(spread: dict[str, Any], unit: str = "") -> str:
    return f"{spread['median']:.2f}{unit} ({spread['low']:.2f} to {spread['high']:.2f})"


def against_exact(args: Namespace) -> dict[str, Any]:
    """Every case of CASES, beside exact attention and a matrix product."""
    square = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(args.seed))
    record: dict[str, Any] = {}
    for case in CASES:
        if args.skip_long and case.length > 16384:
            continue
        qkv = inputs(case, args.seed)
        works: dict[str, Callable[[], object]] = {"exact": lambda: run(case, "exact", qkv)}  # noqa: B023
        works |= {side: lambda side=side: run(case, side, qkv) for side in sides()}  # noqa: B023
        works["product"] = lambda: square @ square
        figures = rounds_of(works, args.rounds if case.length <= 16384 else min(3, args.rounds))
        own: dict[str, Any] = {
            "seconds": {name: measure.spread(values) for name, values in figures.items()}
        }
        own["must"] = case.must
        own["goal"] = case.goal
        useful = 4 * case.length * HEADS * how_many(case.width, 3) * (case.width + 1)
        own["peak_gflops"] = measure.spread([2 * 1024**3 / s / 1e9 for s in figures["product"]])
        print(f"{case.name}   exact {own['seconds']['exact']['median'] * 1e3:,.1f} ms", flush=True)
        for side in sides():
            own[f"times as fast, {side}"] = ratios(figures["exact"], figures[side])
            line = f"   {side:7} {own['seconds'][side]['median'] * 1e3:8.1f} ms   "
            line += format_spread(own[f"times as fast, {side}"], "x")
            if not case.backward and not case.causal:
                shares = [
                    (useful / linear) / (2 * 1024**3 / product)
                    for linear, product in zip(figures[side], figures["product"], strict=True)
                ]
                own[f"share of peak, {side}"] = measure.spread(shares)
                line += "   share of matmul peak " + format_spread(own[f"share of peak, {side}"])
            print(
                line + (f"   must {case.must}x, goal {case.goal}x" if case.must else ""), flush=True
            )
        record[case.name] = own
    return record


def doubling(args: Namespace) -> dict[str, Any]:
    """time(2L) / time(L)"""
    record: dict[str, Any] = {}
    for causal in (False, True):
        for side in sides():
            cases = [Case(32, length, causal) for length in DOUBLING]
            works = {}
            for case in cases:
                qkv = inputs(case, args.seed)
                works[str(case.length)] = lambda case=case, qkv=qkv, side=side: run(
                    case, side, qkv, "chunked"
                )
            figures = rounds_of(works, args.rounds, 0.1)
            own = {
                f"{longer} / {shorter}": ratios(figures[str(longer)], figures[str(shorter)])
                for shorter, longer in pairwise(DOUBLING)
            }
            name = f"{side}{', causal' if causal else ''}"
            record[name] = own
            print(
                f"time(2L) / time(L), width 32, {name}: "
                + "   ".join(format_spread(ratio) for ratio in own.values()),
                flush=True,
            )
    return record


def automatic(args: Namespace) -> dict[str, Any]:
    """`auto` against the best form at every length."""
    record: dict[str, Any] = {}
    for width in (32, 64):
        for causal in (False, True):
            for side in sides():
                for length in LENGTHS:
                    case = Case(width, length, causal)
                    qkv = inputs(case, args.seed)
                    forms: list[Form] = [f for f in FORMS if length <= MAX_LENGTH.get(f, length)]
                    tried: list[Form] = [*forms, "auto"]
                    works = {f: partial(run, case, side, qkv, f) for f in tried}
                    figures = rounds_of(works, args.rounds, 0.02)
                    best = min(forms, key=lambda f: measure.spread(figures[f])["median"])
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
                            f: 1e3 * measure.spread(v)["median"] for f, v in figures.items()
                        },
                    }
                    name = f"{side}, width {width}{', causal' if causal else ''}, L {length}"
                    record[name] = own
                    times = "  ".join(f"{f} {ms:.2f}" for f, ms in own["milliseconds"].items())
                    ratio = format_spread(own["auto / best"])
                    print(
                        f"{name:36} auto {chosen:9} / best {best:9} {ratio}   ms: {times}",
                        flush=True,
                    )
    return record


def memory(args: Namespace) -> dict[str, Any]:
    """Peak memory beyond inputs and results, each case in a separate process."""
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
                result = subprocess.run(
                    command, cwd=measure.ROOT, capture_output=True, text=True, check=True
                )
                own = json.loads(result.stdout.splitlines()[-1])
                name = f"{side}, width 64, L {length:,}{', forward + backward' if backward else ''}"
                record[name] = own
                extra = "unknown" if own["extra_mib"] is None else f"{own['extra_mib']:.1f} MiB"
                all_features = f"{own['features_mib']:,.0f} MiB"
                print(
                    f"extra memory, {name}: {extra} (L x M would be {all_features})",
                    flush=True,
                )
    return record


def peak(side: str, length: int, backward: bool) -> None:
    """Measure one case and print it as JSON: the process that `memory` starts."""
    case = Case(64, length, backward=backward)
    warmup = Case(64, 512, backward=backward)
    qkv = inputs(case, 0)
    run(warmup, side, inputs(warmup, 0), "chunked")
    growth = peak_memory(lambda: run(case, side, qkv, "chunked"))

    results = 5 if backward else 1  # the context; and its gradient, dq, dk and dv
    extra = None if growth is None else (growth - results * qkv[0].nbytes) / 2**20
    features = HEADS * length * how_many(64, 3) * 4 / 2**20
    print(json.dumps({"extra_mib": extra, "features_mib": features}))


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
        help="run only this part, and write no record",
    )
    parser.add_argument(
        "--skip-long", action="store_true", help="skip L 65,536 against exact attention"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    record = {
        name: part(args) for name, part in parts.items() if not args.part or name in args.part
    }
    if not args.part and not args.skip_long:
        setting = {"batch x heads": HEADS, "terms": 3, "type": "float32", "rounds": args.rounds}
        print(
            measure.write(
                "maclaurin", {"setting": setting, "figures": record, "facts": measure.facts(args)}
            )
        )


if __name__ == "__main__":
    main()
