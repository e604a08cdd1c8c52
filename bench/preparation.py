"""Preparing a corpus of pairs: regard and Hugging Face `datasets`, the same work, in MB/s.

    python -m bench.preparation                                  # 10 million pairs, about 1.3 GB
    python -m bench.preparation --pairs 200000 --processes 1     # a quick look

Both read the same JSON lines, leave out duplicates, split by a hash of the prompt, learn the same
byte-pair encoding from the training texts, tokenize both sides, leave out what is too long and
write the rest to disk. `datasets` does it as its documentation shows: `load_dataset`, `map` in
batches with `num_proc`, `select`, and `tokenizers` for the encoding. It needs `pip install
datasets`.

A side runs in its own process. Peak memory is the largest sum of the resident memory of that
process and its children, looked at ten times a second; memory that they share counts once for each.
With --check-resume, regard is also killed (-9) in the middle, started again, and the files are
compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import measure

MAX_TOKENS = 64
VOCABULARY = 8000
VALID = 0.01
FIT_BYTES = 1 << 28  # as regard: of more text, a part is learned from
CHUNK = 50_000  # pairs generated at a time
LEXICON = 50_000  # words
DUPLICATES = 0.02  # share of pairs


def main() -> None:
    parser = measure.options(__doc__, rounds=1)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="of each side"
    )
    parser.add_argument("--folder", type=Path, help="for the corpus; not given: a temporary one")
    parser.add_argument("--check-resume", action="store_true", help="kill regard and go on")
    parser.add_argument("--no-record", action="store_true", help="write no file of results")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        name, corpus, work = args.side
        print(json.dumps(SIDES[name](Path(corpus), Path(work), args.processes)))
        return

    with tempfile.TemporaryDirectory(dir=args.folder, prefix="preparation-") as folder:
        corpus = Path(folder) / "pairs.jsonl"
        generate(corpus, args.pairs, args.seed)
        size = corpus.stat().st_size / 1e6
        print(f"{args.pairs:,} pairs, {size:,.0f} MB, {args.processes} processes", flush=True)
        names = [args.only] if args.only else ["peer", "ours"]
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                work = Path(folder) / name
                record = run(name, corpus, work, args.processes)
                record["mb_per_second"] = size / record["seconds"]
                rounds[name].append(record)
                print(f"{name:5}", json.dumps(record), flush=True)
                shutil.rmtree(work)
        result: dict[str, Any] = {
            "pairs": args.pairs,
            "megabytes": size,
            "processes": args.processes,
            "sides": rounds,
        }
        for name, records in rounds.items():
            result[name] = measure.spread([record["mb_per_second"] for record in records])
        if len(names) == 2:
            result["ratio"] = measure.spread(_ratios(rounds, "seconds"))
            result["ratio_of_cpu_seconds"] = measure.spread(_ratios(rounds, "cpu_seconds"))
            print(f"ratio {result['ratio']['median']:.2f}", flush=True)
        if args.check_resume:
            result["resume"] = check_resume(corpus, Path(folder), args.processes)
            print("resume", json.dumps(result["resume"]), flush=True)
    if not args.no_record:
        print(measure.write("preparation", measure.facts(args) | result))


def _ratios(rounds: dict[str, list[dict[str, Any]]], key: str) -> list[float]:
    pairs = zip(rounds["peer"], rounds["ours"], strict=True)
    return [peer[key] / ours[key] for peer, ours in pairs]


# -- the corpus-------------------------------------------------------------------------------------


def generate(path: Path, count: int, seed: int) -> None:
    """Pairs of sentences of words whose frequencies follow Zipf's law."""
    random = np.random.Generator(np.random.PCG64(seed))
    letters = np.array(list("etaoinshrdlucmwfgypbvk"))
    lengths = random.integers(1, 12, LEXICON)
    words = ["".join(random.choice(letters, length)) for length in lengths]
    weights = 1 / (np.arange(LEXICON) + 2.7)
    edges = np.cumsum(weights / weights.sum())
    marks = np.array([".", "?", "!", "..."])
    with path.open("w", encoding="utf-8") as file:
        line = ""
        for start in range(0, count, CHUNK):
            for _ in range(min(CHUNK, count - start)):
                if line and random.random() < DUPLICATES:
                    file.write(line)
                    continue
                sides = []
                for length in random.integers(3, 12, 2):
                    tokens = [words[i] for i in np.searchsorted(edges, random.random(length))]
                    tokens[0] = tokens[0].capitalize()
                    sides.append(" ".join(tokens) + marks[random.integers(4)])
                line = json.dumps({"prompt": sides[0], "reply": sides[1]}) + "\n"
                file.write(line)


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
    peak = 0
    while process.poll() is None:
        peak = max(peak, _resident(process.pid))
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
        "peak_megabytes": peak / 1e6,
    }


def _resident(pid: int) -> int:
    """Bytes of resident memory of a process and its descendants."""
    import psutil

    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0
    return total


def check_resume(corpus: Path, folder: Path, processes: int) -> dict[str, Any]:
    """Whether a preparation that is killed and started again makes the same files, and how many
    shards were there already."""
    whole = run("ours", corpus, folder / "whole", processes)
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
    from regard.data.cache import fingerprint, prepare
    from regard.data.encode import Rules
    from regard.data.pairs import read_pairs
    from regard.tokenizers import Fit

    os.environ["REGARD_CACHE"] = str(work)
    began = time.monotonic()

    def opened() -> Any:
        return prepare(
            lambda tally: read_pairs(corpus, tally=tally),
            key={"content": fingerprint([corpus])},
            fit=Fit("bpe", {"size": VOCABULARY}),
            folder=work,
            rules=Rules(valid=VALID, test=0.0, max_source=MAX_TOKENS, max_target=MAX_TOKENS),
            workers=processes,
        )

    prepared = opened()
    seconds = time.monotonic() - began
    began = time.monotonic()
    opened()
    manifest = next(work.glob("*/manifest.json")).read_bytes()
    return {
        "seconds": seconds,
        "seconds_to_open": time.monotonic() - began,
        "examples": {"train": len(prepared.train), "valid": len(prepared.valid)},
        "tokens": int(prepared.train.source.ends[-1] + prepared.train.target.ends[-1]),
        "digest": hashlib.sha256(manifest).hexdigest(),
    }


def peer(corpus: Path, work: Path, processes: int) -> dict[str, Any]:
    try:
        import datasets
    except ImportError:
        raise SystemExit("bench.preparation needs: pip install datasets") from None
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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
    pairs = pairs.map(_cleaned, **settings)
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
    del hashes
    splits = {name: pairs.select(indices) for name, indices in rows.items()}

    texts = splits["train"].select_columns(["prompt", "reply"])
    share = min(1.0, FIT_BYTES / corpus.stat().st_size)

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
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if processes == 1 else "false"

    def encoded(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
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

    features = datasets.Features(
        {
            "source": datasets.Sequence(datasets.Value("int32")),
            "target": datasets.Sequence(datasets.Value("int32")),
            "prompt": datasets.Value("string"),
            "reply": datasets.Value("string"),
        }
    )
    done = {
        name: split.map(encoded, remove_columns=["hash", "is_valid"], features=features, **settings)
        for name, split in splits.items()
    }
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "examples": {name: len(split) for name, split in done.items()},
    }


def _cleaned(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
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


SIDES = {"ours": ours, "peer": peer}


if __name__ == "__main__":
    main()
