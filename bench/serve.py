"""Serving: throughput and waiting times of `regard serve` against other ways.

    python -m bench.serve                                          # trains two small models first
    python -m bench.serve --run rnn=runs/demo --run transformer=runs/demo-transformer
    python -m bench.serve --quick                                  # two minutes instead of ten
    python -m bench.serve --clients 64 --sides ours static         # parts of it

For each model and number of streaming clients: tokens/s, seconds to the first text of an answer and
seconds between two pieces of text (p50 and p99 over all requests of a round), of

    ours         `regard serve`
    plain        the same model behind a FastAPI handler, one request at a time
    static       the same model in static batches of what is waiting (up to 64, or after 10 ms),
                 each computed until its longest answer has ended: the dynamic batching of
                 LitServe and of Ray's `@serve.batch`
    static_drop  the same, but rows that have ended are no longer computed
    ctranslate2  the same Transformer in CTranslate2, which batches what is waiting in the same way

The clients have a process of their own. `plain` and `ctranslate2` are one process, in which the
model has all cores; `ours`, `static` and `static_drop` are a web process and a process of the
model, which has all cores but one. All of them and the clients share the cores of the machine. The
sides take turns, and only one works at a time.

The load is chat: prompts of the training data, all different as far as there are enough, greedy
search, at most 48 tokens; `answer_tokens` of the record says how long the answers are (most are
short, a few are long, as models write them). Every side streams each token as an event of the same
JSON. The first requests come at random moments of half a second; then each client sends its next
request when it has read the last answer, so from then on requests come when answers end. Times to
the first text of the first requests are apart (`first_wave`), the targets are about the others.
`agreement` is the share of answers with the same text as ours. Tokens that come in one read of a
client have no time between them: a server that is behind sends them together.

The overhead of the web layer is the time of a token of `regard serve` less that of the engine alone
in one process. The processor time that the web process takes for a token is given beside it
(`web_cpu_us`; `all_cpu_us` is that of all processes of a side).

CTranslate2 is not a dependency of ours. It is measured if this Python can import it, or the one
that `--ctranslate2` names. A side that fails is recorded as failed, and the others go on.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import measure

CLIENTS = (1, 8, 64, 256, 1000)
RECIPES = {"rnn": "chat-attention", "transformer": "chat-transformer"}
STEPS = 400  # of training: enough for answers of different lengths
MAX_TOKENS = 48
ROWS = 64  # of a batch, on every side that has batches
WAIT = 0.01  # seconds that static batches wait for more
WARM_UP = 16  # requests
SPREAD = 0.5  # seconds over which the first requests of the clients come
OVERHEAD_CLIENTS = (1, 64)
MANY_CLIENTS = 64  # with more than these, there is one round
QUICK_CLIENTS = (1, 8, 64)
WAITING_TIMES = (
    "first_wave_p50",
    "first_wave_p99",
    "first_p50",
    "first_p99",
    "token_p50",
    "token_p99",
)
TARGETS = {
    "clients": 64,
    "plain": 4.0,
    "static": 1.3,
    "static_drop": 1.3,
    "first_token_of_static": 0.5,
}


class SideFailed(Exception):
    """A server that did not start, or did not answer every request."""


@dataclass
class Server:
    """One side under way."""

    name: str
    port: int
    pid: int


def main() -> None:
    args = _arguments().parse_args()
    if args.quick:
        args.clients = args.clients or list(QUICK_CLIENTS)
        args.requests = min(args.requests, 128)
        args.rounds = 1
    args.clients = args.clients or list(CLIENTS)
    began = time.monotonic()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(args, Path(folder))
        for name, run in runs.items():
            figures[name] = _measure_run(name, run, args)
            path = measure.write(_record_name(args), _record(args, runs, figures, began), args.out)
    for name, by_clients in figures.items():
        print("\n".join(_table(name, by_clients, args.clients)))
    print()
    for line in _target_lines(_targets(figures)):
        print(line)
    print(f"{time.monotonic() - began:,.0f} seconds; {path}")


def _record_name(args: Namespace) -> str:
    return "serve_quick" if args.quick else "serve"


def _record(
    args: Namespace, runs: Mapping[str, Path], figures: Mapping[str, Any], began: float
) -> dict[str, Any]:
    return {
        "unit": "tokens/s and seconds",
        "setting": {
            "clients": args.clients,
            "requests": {clients: _requests(args, clients) for clients in args.clients},
            "max_tokens": MAX_TOKENS,
            "rows": ROWS,
            "wait": WAIT,
            "rounds": {clients: _rounds(args, clients) for clients in args.clients},
            "spread": SPREAD,
            "threads": {
                "ours, static, static_drop": _our_threads(args),
                "plain, ctranslate2": args.threads,
            },
            "quick": args.quick,
            "seconds": time.monotonic() - began,
            "models": {name: _about(name, run, args) for name, run in runs.items()},
        },
        "figures": figures,
        "targets": _targets(figures),
        "facts": measure.facts(args),
    }


def _arguments() -> ArgumentParser:
    parser = measure.options(__doc__, rounds=3)
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a trained run, instead of models trained here; may be repeated",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the training here")
    parser.add_argument("--our-threads", type=int, help="threads of regard serve's engine process")
    parser.add_argument("--clients", type=int, nargs="+", help="numbers of clients")
    parser.add_argument("--requests", type=int, default=256, help="the least requests of a round")
    parser.add_argument("--sides", nargs="+", help="measure only these")
    parser.add_argument("--ctranslate2", metavar="PYTHON", help="a Python that has ctranslate2")
    parser.add_argument(
        "--quick", action="store_true", help="fewer clients and requests, one round"
    )
    parser.add_argument("--out", type=Path, default=measure.RESULTS, help="folder of the record")
    return parser


# --- models and prompts ---


def _runs(args: Namespace, folder: Path) -> dict[str, Path]:
    if args.run:
        pairs = [text.partition("=") for text in args.run]
        return {name: Path(path) for name, _, path in pairs}
    runs = {}
    for name, recipe in RECIPES.items():
        run = folder / name
        print(f"training {recipe}: {args.steps} steps", flush=True)
        command = [sys.executable, "-m", "regard", "train", recipe, "--out", str(run)]
        command += ["--steps", str(args.steps), "--set", f"seed={args.seed}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        runs[name] = run
    return runs


def _about(name: str, run: Path, args: Namespace) -> str:
    return f"a given run, {run.name}" if args.run else f"{RECIPES[name]}, {args.steps} steps"


def _prompts(run: Path) -> list[str]:
    """Different prompts of the run's own training data."""
    from regard.bundle import load

    _, split = load(run).own_data("train")
    prompts = dict.fromkeys(split.source_name(index) for index in range(len(split)))
    return [prompt for prompt in prompts if prompt.strip()]


def _requests(args: Namespace, clients: int) -> int:
    """So many for each client that most requests meet others that began before them."""
    each = 12 if clients <= MANY_CLIENTS else 4
    return max(args.requests, (3 if args.quick else each) * clients)


def _rounds(args: Namespace, clients: int) -> int:
    return args.rounds if clients <= MANY_CLIENTS else 1


def _our_threads(args: Namespace) -> int:
    from regard.serve.server import threads_of_each

    return args.our_threads or threads_of_each(1)


# --- sides ---


def _sides(run: Path, args: Namespace) -> dict[str, list[str]]:
    """The command of each side."""
    rows = ["--rows", str(ROWS)]
    wait = ["--wait", str(WAIT)]
    one_process = ["--threads", str(args.threads), *rows]
    own = ["--threads", str(_our_threads(args)), *rows]  # beside a web process
    sides = {
        "plain": _command(sys.executable, "plain", run, one_process),
        "static": _command(sys.executable, "static", run, [*own, *wait]),
        "static_drop": _command(sys.executable, "static", run, [*own, *wait, "--drop"]),
    }
    python = _ctranslate2_python(args)
    if python is not None and _is_transformer(run):
        sides["ctranslate2"] = _command(python, "ctranslate", run, [*one_process, *wait])
    sides["ours"] = _command(sys.executable, "ours", run, own)
    if args.sides:
        sides = {name: command for name, command in sides.items() if name in args.sides}
    return sides


def _command(python: str, module: str, run: Path, options: Sequence[str]) -> list[str]:
    return [python, "-m", f"bench.serve_peers.{module}", str(run), *options]


def _ctranslate2_python(args: Namespace) -> str | None:
    if args.ctranslate2:
        return args.ctranslate2
    return sys.executable if importlib.util.find_spec("ctranslate2") else None


def _is_transformer(run: Path) -> bool:
    from regard.bundle import load

    recipe: Any = load(run).recipe
    return recipe.encoder.kind == recipe.decoder.kind == "transformer"


@contextmanager
def _server(name: str, command: Sequence[str]) -> Iterator[Server]:
    environment = os.environ | {"PYTHONPATH": str(measure.ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("port "):
                yield Server(name, int(line.removeprefix("port ")), process.pid)
                return
        raise SideFailed(f"{name} did not start")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --- measuring ---


def _measure_run(name: str, run: Path, args: Namespace) -> dict[str, Any]:
    prompts = _prompts(run)
    figures: dict[str, Any] = {}
    sides = _sides(run, args)
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        servers = []
        for side, command in sides.items():
            try:
                server = stack.enter_context(_server(side, command))
                _load(server, 4, _cycle(prompts, WARM_UP))
                servers.append(server)
            except SideFailed as problem:
                failed[side] = str(problem)
                print(problem)
        for clients in args.clients:
            working = [server for server in servers if server.name not in failed]
            rounds = _measure_level(name, clients, working, prompts, args, failed)
            figures[f"{clients} clients"] = _summary(rounds)
    if "ours" in sides and "ours" not in failed:
        figures["overhead"] = {
            f"{clients} clients": _overhead(run, clients, prompts, figures, args)
            for clients in OVERHEAD_CLIENTS
            if clients in args.clients
        }
    return figures | ({"failed": failed} if failed else {})


def _measure_level(
    model: str,
    clients: int,
    servers: Sequence[Server],
    prompts: Sequence[str],
    args: Namespace,
    failed: dict[str, str],
) -> dict[str, list[dict[str, Any]]]:
    """The figures of every side, round by round. A side that fails is noted and left out."""
    texts = _cycle(prompts, _requests(args, clients))
    rounds: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
    for number in range(_rounds(args, clients)):
        for server in servers:
            if server.name in failed:
                continue
            try:
                figure = _load(server, clients, texts)
            except SideFailed as problem:
                failed[server.name] = f"{clients} clients: {problem}"
                rounds.pop(server.name)
                print(failed[server.name], flush=True)
                continue
            rounds[server.name].append(figure)
            line = _line(figure)
            print(
                f"{model}, {clients} clients, round {number + 1}: {server.name:12}{line}",
                flush=True,
            )
    return rounds


def _cycle(prompts: Sequence[str], count: int) -> list[str]:
    return [prompts[number % len(prompts)] for number in range(count)]


def _load(server: Server, clients: int, prompts: Sequence[str]) -> dict[str, Any]:
    """What came of these requests."""
    load = {
        "port": server.port,
        "clients": clients,
        "max_tokens": MAX_TOKENS,
        "spread": SPREAD,
        "prompts": list(prompts),
    }
    processes = _processes(server.pid)
    before = {pid: _processor_seconds(pid) for pid in processes}
    command = [sys.executable, "-m", "bench.serve_peers.clients"]
    environment = os.environ | {"PYTHONPATH": str(measure.ROOT)}
    done = subprocess.run(
        command, input=json.dumps(load), capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SideFailed(f"the clients of {server.name} failed:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    seconds = {pid: _processor_seconds(pid) - before[pid] for pid in processes}
    if result["failed"]:
        raise SideFailed(f"{server.name}: {result['failed']} failed: {result['failures']}")
    return {
        "rate": result["tokens"] / result["seconds"],
        "tokens": result["tokens"],
        "answer_tokens": {
            "mean": statistics.mean(result["lengths"]),
            "p50": _quantile(result["lengths"], 0.5),
            "p99": _quantile(result["lengths"], 0.99),
        },
        "seconds": result["seconds"],
        "first_wave_p50": _quantile(result["first_wave"], 0.5),
        "first_wave_p99": _quantile(result["first_wave"], 0.99),
        "first_p50": _quantile(result["first"], 0.5),
        "first_p99": _quantile(result["first"], 0.99),
        "token_p50": _quantile(result["gaps"], 0.5),
        "token_p99": _quantile(result["gaps"], 0.99),
        "client_share": result["cpu"] / result["seconds"],
        "web_cpu_us": seconds[server.pid] / result["tokens"] * 1e6,
        "all_cpu_us": sum(seconds.values()) / result["tokens"] * 1e6,
        "texts": result["texts"],
    }


def _processes(pid: int) -> list[int]:
    """A process, and all that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(other for child in children for other in _processes(int(child)))]


def _processor_seconds(pid: int) -> float:
    """Processor time of a process, without those that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _line(figure: Mapping[str, Any]) -> str:
    def milliseconds(name: str) -> str:
        value = figure[name]
        return "-" if value is None else f"{value * 1000:,.1f}"

    return (
        f"{figure['rate']:10,.0f} tokens/s   "
        f"first {milliseconds('first_p50')} / {milliseconds('first_p99')} ms   "
        f"token {milliseconds('token_p50')} / {milliseconds('token_p99')} ms   "
        f"{figure['all_cpu_us']:,.0f} us of processor a token   "
        f"clients {figure['client_share']:.0%} of a core"
    )


def _summary(rounds: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The median of each figure over the rounds, by side, and the ratios to ours by round."""
    sides: dict[str, Any] = {}
    ours = rounds.get("ours")
    for name, figures in rounds.items():
        side: dict[str, Any] = {"tokens/s": measure.spread([figure["rate"] for figure in figures])}
        for field in WAITING_TIMES:
            values = [figure[field] for figure in figures if figure[field] is not None]
            side[field] = measure.spread(values) if values else None
        side["answer_tokens"] = figures[0]["answer_tokens"]
        side["client_share"] = max(figure["client_share"] for figure in figures)
        for field in ("web_cpu_us", "all_cpu_us"):
            side[field] = statistics.median(figure[field] for figure in figures)
        if ours is not None and name != "ours":
            pairs = list(zip(ours, figures, strict=True))
            side["ours_faster"] = measure.spread([a["rate"] / b["rate"] for a, b in pairs])
            side["our_first_p99"] = measure.spread(
                [a["first_p99"] / b["first_p99"] for a, b in pairs]
            )
            same = [x == y for a, b in pairs for x, y in zip(a["texts"], b["texts"], strict=True)]
            side["agreement"] = sum(same) / len(same)
        sides[name] = side
    return sides


def _overhead(
    run: Path, clients: int, prompts: Sequence[str], figures: Mapping[str, Any], args: Namespace
) -> dict[str, Any]:
    """Microseconds that a token takes longer through HTTP than in the engine alone."""
    command = _command(
        sys.executable,
        "engine_alone",
        run,
        ["--threads", str(_our_threads(args)), "--rows", str(ROWS), "--clients", str(clients)],
    )
    command += ["--max-tokens", str(MAX_TOKENS)]
    texts = json.dumps(_cycle(prompts, _requests(args, clients)))
    environment = os.environ | {"PYTHONPATH": str(measure.ROOT)}
    rates = []
    for _ in range(args.rounds):
        done = subprocess.run(
            command, input=texts, capture_output=True, text=True, check=True, env=environment
        )
        result = json.loads(done.stdout)
        rates.append(result["tokens"] / result["seconds"])
    alone = statistics.median(rates)
    ours = figures[f"{clients} clients"]["ours"]
    through_http = ours["tokens/s"]["median"]
    overhead = {
        "engine_tokens/s": measure.spread(rates),
        "overhead_us": 1e6 / through_http - 1e6 / alone,
        "web_cpu_us": ours["web_cpu_us"],
    }
    print(
        f"{clients} clients: {overhead['overhead_us']:,.0f} us a token more than the engine alone; "
        f"{overhead['web_cpu_us']:,.0f} us a token of processor time in the web process"
    )
    return overhead


# --- what is printed ---


def _table(model: str, figures: Mapping[str, Any], clients: Sequence[int]) -> Iterator[str]:
    """The medians of all rounds."""
    yield ""
    yield f"{model:14}{'clients':>8}{'tokens/s':>12}{'first text, ms':>20}{'a token, ms':>18}"
    yield f"{'':34}{'p50':>10}{'p99':>10}{'p50':>9}{'p99':>9}   ours is"
    for count in clients:
        for name, side in figures[f"{count} clients"].items():
            times = [side[field] for field in WAITING_TIMES[2:]]
            shown = ["-" if time is None else f"{time['median'] * 1000:,.1f}" for time in times]
            ratio = side.get("ours_faster")
            yield (
                f"{name:14}{count:>8}{side['tokens/s']['median']:>12,.0f}"
                f"{shown[0]:>10}{shown[1]:>10}{shown[2]:>9}{shown[3]:>9}"
                + ("" if ratio is None else f"   {ratio['median']:.2f} x")
            )
    for count, overhead in figures.get("overhead", {}).items():
        yield (
            f"web layer, {count}: {overhead['overhead_us']:,.0f} us a token more than the engine "
            f"alone, {overhead['web_cpu_us']:,.0f} us of processor time"
        )
    for name, reason in figures.get("failed", {}).items():
        yield f"{name} failed: {reason}"


# --- targets ---


def _targets(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    level = f"{TARGETS['clients']} clients"
    rows = []
    for model, by_clients in figures.items():
        sides = by_clients.get(level)
        if sides is None or "ours" not in sides:
            continue
        for name in ("plain", "static", "static_drop"):
            if name in sides:
                ratio = sides[name]["ours_faster"]["median"]
                rows.append(_target(model, f"tokens/s, times {name}", ratio, TARGETS[name], True))
        for name in ("static", "static_drop"):
            if name in sides:
                ratio = sides[name]["our_first_p99"]["median"]
                goal = TARGETS["first_token_of_static"]
                rows.append(_target(model, f"p99 to first text, of {name}", ratio, goal, False))
    return rows


def _target(model: str, what: str, ratio: float, goal: float, at_least: bool) -> dict[str, Any]:
    reached = ratio >= goal if at_least else ratio <= goal
    return {"model": model, "what": what, "ratio": ratio, "goal": goal, "reached": reached}


def _target_lines(targets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for target in targets:
        verdict = "holds" if target["reached"] else "DOES NOT HOLD"
        yield (
            f"{target['model']}, {TARGETS['clients']} clients: {target['what']}: "
            f"{target['ratio']:.2f} (goal {target['goal']}): {verdict}"
        )


if __name__ == "__main__":
    main()
