"""Preparing a corpus of pairs: regard and Hugging Face `datasets`, the same work, in MB/s.

    python -m bench.preparation --peer-pairs 1000000 --check-resume    # 10 million pairs, 1.3 GB
    python -m bench.preparation --pairs 200000 --processes 1           # a quick look

Both read the same JSON lines, leave out duplicates, split by a hash of the prompt, learn the same
byte-pair encoding from the training texts, tokenize both sides, leave out what is too long and
write the rest to disk. `datasets` does it as its documentation shows: `load_dataset`, `map` in
batches with `num_proc`, `select`, and `tokenizers` for the encoding. It needs `pip install
datasets`. With --peer-pairs both sides are compared on the first pairs of the corpus, so many of
them, and regard alone prepares the whole.

A side runs in its own process. Memory is looked at ten times a second: resident memory of that
process and its children, where pages that they share, and pages of files they have mapped, count
once for each; and of the process that has most. Seconds of a step are from the end of the step
before it. The prepared corpus is opened in another new process, which makes batches in the order of
training: the time from its start to the first batch, and the memory that batches take. Then
`regard train` prepares the corpus for a small recipe, and is started again on what is prepared: the
time from its start to the end of its first step. Nothing is held out, which is the slowest case.

With --check-resume, regard is also killed (-9) in the middle, started again, and the files are
compared.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench import measure

if TYPE_CHECKING:
    from regard.data.corpus import Corpus

MAX_TOKENS = 64
VOCABULARY = 8000
VALID = 0.01
FIT_BYTES = 1 << 28  # as regard: of more text, a part is learned from
CHUNK = 20_000  # pairs generated at a time
LEXICON = 50_000  # words
DUPLICATES = 0.02  # share of pairs
BATCH_TOKENS = 4096
WINDOWS = 12  # of batches that are taken from an opened corpus


def main() -> None:
    parser = measure.options(__doc__, rounds=1)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--peer-pairs", type=int, help="that both sides prepare; not given: all")
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="of each side"
    )
    parser.add_argument("--folder", type=Path, help="for the corpus; not given: a temporary one")
    parser.add_argument("--check-resume", action="store_true", help="kill regard and go on")
    parser.add_argument("--no-record", action="store_true", help="write no file of results")
    parser.add_argument("--out", type=Path, default=measure.RESULTS, help="folder for the record")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        name, corpus, work = args.side
        print(json.dumps(SIDES[name](Path(corpus), Path(work), args.processes)))
        return

    with tempfile.TemporaryDirectory(dir=args.folder, prefix="preparation-") as folder:
        corpus = Path(folder) / "pairs.jsonl"
        generate(corpus, args.pairs, args.seed, args.processes)
        result: dict[str, Any] = {"pairs": args.pairs, "processes": args.processes}
        compared = args.peer_pairs or args.pairs
        if compared < args.pairs:
            first = Path(folder) / "first.jsonl"
            copy_lines(corpus, first, compared)
            result["compared"] = compare(first, compared, args)
            first.unlink()
            result["whole"] = prepare_whole(corpus, args)
        else:
            result["compared"] = compare(corpus, compared, args)
        if args.check_resume:
            whole = result.get("whole")
            result["resume"] = check_resume(corpus, Path(folder), args.processes, whole)
            print("resume", json.dumps(result["resume"]), flush=True)
    if not args.no_record:
        print(measure.write("preparation", measure.facts(args) | result, args.out))


def compare(corpus: Path, pairs: int, args: argparse.Namespace) -> dict[str, Any]:
    """Both sides in turns, or the one that --only names."""
    names = [args.only] if args.only else ["peer", "ours"]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            rounds[name].append(measured(name, corpus, args.processes))
    megabytes = corpus.stat().st_size / 1e6
    result: dict[str, Any] = {"pairs": pairs, "megabytes": megabytes, "sides": rounds}
    for name, records in rounds.items():
        result[name] = measure.spread([record["mb_per_second"] for record in records])
    if len(names) == 2:
        result["ratio"] = measure.spread(_ratios(rounds, "seconds"))
        result["ratio_of_cpu_seconds"] = measure.spread(_ratios(rounds, "cpu_seconds"))
        print(
            f"{pairs:,} pairs: ratio {result['ratio']['median']:.2f},"
            f" of CPU seconds {result['ratio_of_cpu_seconds']['median']:.2f}",
            flush=True,
        )
    return result


def prepare_whole(corpus: Path, args: argparse.Namespace) -> dict[str, Any]:
    megabytes = corpus.stat().st_size / 1e6
    return {"megabytes": megabytes, **measured("ours", corpus, args.processes)}


def measured(name: str, corpus: Path, processes: int) -> dict[str, Any]:
    """One preparation by one side, and for regard the opening of the corpus."""
    work = corpus.with_name(name)
    record = run(name, corpus, work, processes)
    megabytes = corpus.stat().st_size / 1e6
    record["mb_per_second"] = megabytes / record["seconds"]
    print(f"{name:5} {megabytes:,.0f} MB", json.dumps(record), flush=True)
    if name == "ours":
        record["opening"] = run("open", corpus, work, processes)
        print("open ", json.dumps(record["opening"]), flush=True)
        run("train", corpus, work, processes)  # its corpus has another key, and is prepared first
        record["training"] = run("train", corpus, work, processes)
        print("train", json.dumps(record["training"]), flush=True)
        assert not record["training"]["prepared_again"]
    shutil.rmtree(work)
    return record


def _ratios(rounds: dict[str, list[dict[str, Any]]], key: str) -> list[float]:
    pairs = zip(rounds["peer"], rounds["ours"], strict=True)
    return [peer[key] / ours[key] for peer, ours in pairs]


# -- the corpus-------------------------------------------------------------------------------------


def generate(path: Path, count: int, seed: int, processes: int = 1) -> None:
    """Pairs of sentences of words whose frequencies follow Zipf's law. The chunks of the file are
    made from their numbers, so the number of processes makes no difference."""
    chunks = [(seed, i, min(CHUNK, count - i * CHUNK)) for i in range(-(-count // CHUNK))]
    context = multiprocessing.get_context("spawn")
    with path.open("wb") as file, ProcessPoolExecutor(processes, context) as pool:
        for start in range(0, len(chunks), 4 * processes):  # few are in memory
            for content in pool.map(_chunk, chunks[start : start + 4 * processes]):
                file.write(content)


@cache
def _lexicon(seed: int) -> np.ndarray:
    random = np.random.Generator(np.random.PCG64(seed))
    letters = np.array(list("etaoinshrdlucmwfgypbvk"))
    lengths = random.integers(1, 12, LEXICON)
    return np.array(["".join(random.choice(letters, length)) for length in lengths], object)


def _chunk(task: tuple[int, int, int]) -> bytes:
    """Some lines of the corpus."""
    seed, number, count = task
    random = np.random.Generator(np.random.PCG64([seed, number]))
    edges = np.cumsum(1 / (np.arange(LEXICON) + 2.7))
    lengths = random.integers(3, 12, 2 * count)
    drawn = random.random(int(lengths.sum())) * edges[-1]
    words = _lexicon(seed)[np.searchsorted(edges, drawn)].tolist()
    marks = [[".", "?", "!", "..."][i] for i in random.integers(4, size=2 * count)]
    is_copy = (random.random(count) < DUPLICATES).tolist()
    ends = np.cumsum(lengths).tolist()
    sides = [
        " ".join(words[end - length : end]).capitalize() + mark
        for end, length, mark in zip(ends, lengths.tolist(), marks, strict=True)
    ]
    lines: list[str] = []
    for i in range(count):
        line = f'{{"prompt": "{sides[2 * i]}", "reply": "{sides[2 * i + 1]}"}}\n'
        lines.append(lines[-1] if i and is_copy[i] else line)
    return "".join(lines).encode()


def copy_lines(path: Path, copy: Path, count: int) -> None:
    """The first lines of a file as another file."""
    with path.open("rb") as file, copy.open("wb") as output:
        output.writelines(islice(file, count))


# -- running----------------------------------------------------------------------------------------


def run(
    name: str, corpus: Path, work: Path, processes: int, *, kill_at: float | None = None
) -> dict[str, Any]:
    """Run a side in a process of its own; with `kill_at` it is killed after so many seconds."""
    work.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "bench.preparation", "--processes", str(processes)]
    command += ["--side", name, str(corpus), str(work)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    environment = os.environ | {"RAYON_NUM_THREADS": str(processes)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=measure.ROOT)
    peak = _Memory(0, 0)
    while process.poll() is None:
        now = _resident(process.pid)
        peak = _Memory(*map(max, peak, now))
        if kill_at is not None and time.monotonic() - began > kill_at:
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.1)
    assert process.stdout is not None
    with process.stdout as stdout:
        output = stdout.read()
    if kill_at is not None:
        return {"killed": process.returncode == -signal.SIGKILL}
    if process.returncode:
        raise SystemExit(f"{name} ended with exit code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        **json.loads(output.splitlines()[-1]),
        "cpu_seconds": cpu,
        "peak_megabytes": peak.total / 1e6,
        "peak_megabytes_of_a_process": peak.largest / 1e6,
    }


class _Memory(NamedTuple):
    """Bytes of resident memory of a process and its descendants, and of the one with most."""

    total: int
    largest: int


def _resident(pid: int) -> _Memory:
    import psutil

    sizes: list[int] = [0]
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                sizes.append(process.memory_info().rss)
    return _Memory(sum(sizes), max(sizes))


def check_resume(
    corpus: Path, folder: Path, processes: int, whole: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Whether a preparation that is killed and started again makes the same files as the `whole`
    one, and how many shards were there already."""
    if whole is None:
        whole = run("ours", corpus, folder / "whole", processes)
        shutil.rmtree(folder / "whole")
    work = folder / "killed"
    killed = run("ours", corpus, work, processes, kill_at=whole["seconds"] / 2)
    shards = len(list(work.glob(".*-work/*.examples")))
    again = run("ours", corpus, work, processes)
    return {
        **killed,
        "shards_kept": shards,
        "seconds_whole": whole["seconds"],
        "seconds_after_kill": again["seconds"],
        "same_files": again["digest"] == whole["digest"],
    }


# -- the sides--------------------------------------------------------------------------------------


def ours(corpus: Path, work: Path, processes: int) -> dict[str, Any]:
    from regard.data.progress import reporting_to

    steps = _Steps()
    began = time.monotonic()
    with reporting_to(steps.report):
        prepared = _opened(corpus, work, processes)
    seconds = time.monotonic() - began
    manifest = next(work.glob("*/manifest.json")).read_bytes()
    return {
        "seconds": seconds,
        "seconds_by_step": steps.seconds(began, seconds),
        "examples": {"train": len(prepared.train), "valid": len(prepared.valid)},
        "tokens": int(prepared.train.source.ends[-1] + prepared.train.target.ends[-1]),
        "digest": hashlib.sha256(manifest).hexdigest(),
    }


def _opened(corpus: Path, work: Path, processes: int) -> Corpus:
    """The corpus from the cache in `work`, prepared if it is not there."""
    from regard.data.cache import fingerprint, prepare
    from regard.data.pairs import read_pairs
    from regard.data.rules import Rules
    from regard.tokenizers import Fit

    os.environ["REGARD_CACHE"] = str(work)
    return prepare(
        lambda tally: read_pairs(corpus, tally=tally),
        key={"content": fingerprint([corpus])},
        fit=Fit("bpe", {"size": VOCABULARY}),
        folder=work,
        rules=Rules(valid=VALID, test=0.0, max_source=MAX_TOKENS, max_target=MAX_TOKENS),
        workers=processes,
    )


class _Steps:
    """When each step of a preparation last reported."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def report(self, step: str, done: int, total: int | None) -> None:
        self._last[step] = time.monotonic()

    def seconds(self, began: float, total: float) -> dict[str, float]:
        durations: dict[str, float] = {}
        before = began
        for step, last in self._last.items():
            durations[step] = last - before
            before = last
        durations["syncing and checking"] = began + total - before
        return durations


def opening(corpus: Path, work: Path, processes: int) -> dict[str, Any]:
    """Open a prepared corpus, as a new process does before it trains, and take batches from it."""
    import psutil

    from regard.data.batches import Batches, Place, pad

    process = psutil.Process()
    prepared = _opened(corpus, work, processes)
    seconds_to_open = time.time() - process.create_time()
    split = prepared.train

    def lengths(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = split.select(index)
        return rows.source.lengths, rows.target.lengths + 2

    batches = Batches(lengths, len(split), tokens=BATCH_TOKENS, seed=1)
    place = Place(0, 0, 0)
    seconds_to_first_batch = 0.0
    memory: list[int] = []  # of the process itself, after each window
    for _ in range(min(WINDOWS, batches.windows)):
        taken, place = batches.take(place, len(batches.window(*place[:2])))
        for _, index in taken:
            pad(split.gather_sources(index))
            pad([split.target[i] for i in index])
            if not seconds_to_first_batch:
                seconds_to_first_batch = time.time() - process.create_time()
        usage = process.memory_info()
        memory.append(usage.rss - usage.shared)
    return {
        "seconds_to_open": seconds_to_open,
        "seconds_to_first_batch": seconds_to_first_batch,
        "windows": len(memory),
        "windows_of_an_epoch": batches.windows,
        "examples_of_a_window": -(-len(split) // batches.windows),
        "megabytes_after_first_window": memory[0] / 1e6,
        "megabytes_after_last_window": memory[-1] / 1e6,
    }


def training(corpus: Path, work: Path, processes: int) -> dict[str, Any]:
    """`regard train` up to the end of its first step. Nothing is held out, so it is the whole
    corpus that validations choose from."""
    import psutil

    from regard import cli
    from regard.train.loop import Loop

    os.environ["REGARD_CACHE"] = str(work)
    os.environ["REGARD_WORKERS"] = str(processes)
    before = set(work.iterdir())
    run = Path(tempfile.mkdtemp(dir=work.parent)) / "run"
    seconds: list[float] = []
    owner: Any = Loop
    real = owner._update

    def update(loop: Loop, *arguments: Any) -> None:
        real(loop, *arguments)
        if not seconds:
            seconds.append(time.time() - psutil.Process().create_time())
            os.kill(os.getpid(), signal.SIGINT)

    owner._update = update
    changes = [
        "tokenizer.kind=bpe",
        f"tokenizer.size={VOCABULARY}",
        "data.valid=0",
        "data.test=0",
        f"data.max_source={MAX_TOKENS}",
        f"data.max_target={MAX_TOKENS}",
        f"train.batch_tokens={BATCH_TOKENS}",
    ]
    sets = [word for change in changes for word in ("--set", change)]
    command = ["train", "chat-attention", "--data", str(corpus), "--out", str(run), *sets]
    with contextlib.redirect_stdout(sys.stderr):
        code = cli.main([*command, "--steps", "1000"])
    shutil.rmtree(run.parent)
    if not seconds:
        raise SystemExit(code)
    return {
        "seconds_to_first_step": seconds[0],
        "prepared_again": set(work.iterdir()) != before,
    }


def peer(corpus: Path, work: Path, processes: int) -> dict[str, Any]:
    try:
        import datasets
    except ImportError:
        raise SystemExit("bench.preparation needs: pip install datasets") from None

    datasets.disable_progress_bars()
    settings: dict[str, Any] = {"batched": True, "num_proc": processes if processes > 1 else None}
    began = time.monotonic()
    pairs: Any = datasets.load_dataset(
        "json",
        data_files=str(corpus),
        split="train",
        cache_dir=str(work),
        num_proc=settings["num_proc"],
    )
    pairs = pairs.map(_tidy, **settings)
    splits = {name: pairs.select(indices) for name, indices in _split_rows(pairs).items()}
    share = min(1.0, FIT_BYTES / corpus.stat().st_size)
    tokenizer = _learn_tokenizer(splits["train"], share)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if processes == 1 else "false"
    features = datasets.Features(
        {
            "source": datasets.Sequence(datasets.Value("int32")),
            "target": datasets.Sequence(datasets.Value("int32")),
            "prompt": datasets.Value("string"),
            "reply": datasets.Value("string"),
        }
    )
    settings |= {"remove_columns": ["hash", "is_valid"], "features": features}
    encode = partial(_encode, tokenizer)
    examples = {name: len(split.map(encode, **settings)) for name, split in splits.items()}
    return {"seconds": time.monotonic() - began, "examples": examples}


def _split_rows(pairs: Any) -> dict[str, list[int]]:
    """The rows of each split; a pair is in the training split once."""
    rows: dict[str, list[int]] = {"train": [], "valid": []}
    hashes: set[bytes] = set()
    for start in range(0, len(pairs), 10_000):
        batch = pairs.with_format(None, columns=["hash", "is_valid"])[start : start + 10_000]
        for i, (digest, is_valid) in enumerate(
            zip(batch["hash"], batch["is_valid"], strict=True), start
        ):
            if is_valid:
                rows["valid"].append(i)
            elif digest not in hashes:
                hashes.add(digest)
                rows["train"].append(i)
    return rows


def _learn_tokenizer(training: Any, share: float) -> Any:
    """A byte-pair encoding, learned from a share of the training texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = training.select_columns(["prompt", "reply"])

    def sample() -> Iterator[list[str]]:
        for start in range(0, int(share * len(texts)), 1000):
            batch = texts[start : start + 1000]
            yield batch["prompt"] + batch["reply"]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        show_progress=False,
        special_tokens=["<pad>", "<s>", "</s>", "<unk>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(sample(), trainer)
    return tokenizer


def _encode(tokenizer: Any, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The tokens of both sides, without pairs that are too long."""
    sources = [each.ids for each in tokenizer.encode_batch_fast(batch["prompt"])]
    targets = [each.ids for each in tokenizer.encode_batch_fast(batch["reply"])]
    keep = [
        i
        for i, (source, target) in enumerate(zip(sources, targets, strict=True))
        if 0 < len(source) <= MAX_TOKENS and 0 < len(target) <= MAX_TOKENS
    ]
    return {
        "source": [sources[i] for i in keep],
        "target": [targets[i] for i in keep],
        "prompt": [batch["prompt"][i] for i in keep],
        "reply": [batch["reply"][i] for i in keep],
    }


def _tidy(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
    """Tidy both sides, and find the split and a hash of every pair, as regard does."""
    from regard.tokenizers import plain

    prompts = [" ".join(text.split()) for text in batch["prompt"]]
    replies = [" ".join(text.split()) for text in batch["reply"]]
    hashes = []
    are_valid = []
    for prompt, reply in zip(prompts, replies, strict=True):
        content = f"{prompt}\0{reply}".encode()
        hashes.append(hashlib.blake2b(content, digest_size=8).digest())
        place = hashlib.sha256(plain(prompt).encode()).digest()[:8]
        are_valid.append(int.from_bytes(place, "big") / 2**64 < VALID)
    return {"prompt": prompts, "reply": replies, "hash": hashes, "is_valid": are_valid}


SIDES = {"ours": ours, "peer": peer, "open": opening, "train": training}


if __name__ == "__main__":
    main()
