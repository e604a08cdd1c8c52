"""Blind judging of replies: a sheet without sources, and what two judges made of it.

    python -m bench.blind_judging sheet items.jsonl sheet.jsonl key.jsonl
    python -m bench.blind_judging report key.jsonl judge-a.jsonl judge-b.jsonl
    python -m bench.blind_judging report key.jsonl judge-a.jsonl judge-b.jsonl \\
        --record bench/results/dialogue_judging.json --what "Who judged which replies."

A line of `items.jsonl` is a history and the replies to it by their sources:

    {"history": ["Hello!", "Hi."], "replies": {"people": "...", "ours": "...", "before": "..."}}

`sheet` draws 100 histories, shuffles their replies and writes them without sources: id, history,
reply. Which source an id is from stands in the key, which judges do not see. If several sources
give the same reply to a history, it is judged once and counts for each of them.

A judge writes a line for each id: {"id": "...", "sensible": true}. `report` gives for each source
the share of replies that were judged sensible, over both judges, with a 95 % interval by bootstrap
over the histories (the two judgements of a reply, and all replies to a history, are not
independent); the ratio of this share to that of every other source, with an interval from the same
resamples; and how far the judges agree: the share of equal judgements, and Cohen's kappa. With it
goes every single verdict: the number of the item, the source, and what each judge said. A record
has all of it, so that others can count again; without `--record` all of it is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from regard import disk
from regard.errors import DataError
from regard.metrics import Statistic

HISTORIES = 100


def sheet(
    items: Sequence[Mapping[str, Any]], *, histories: int = HISTORIES, seed: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines to judge, shuffled, and the key: the number of the history and the sources of each
    id. All items must have the same sources."""
    _check_sources(items)
    random = np.random.Generator(np.random.PCG64(seed))
    sample = random.permutation(len(items))[:histories].tolist()
    lines = []
    for item in sample:
        sources_of_reply: dict[str, list[str]] = {}
        for source, reply in items[item]["replies"].items():
            sources_of_reply.setdefault(reply, []).append(source)
        for reply, sources in sources_of_reply.items():
            lines.append((item, reply, sources))

    replies = []
    key = []
    for number, place in enumerate(random.permutation(len(lines)).tolist()):
        item, reply, sources = lines[place]
        name = f"{number:04d}"
        replies.append({"id": name, "history": items[item]["history"], "reply": reply})
        key.append({"id": name, "item": item, "sources": sources})
    return replies, key


def _check_sources(items: Sequence[Mapping[str, Any]]) -> None:
    if not items:
        raise DataError("no items to judge")
    expected = set(items[0]["replies"])
    for number, item in enumerate(items, 1):
        if set(item["replies"]) != expected:
            raise DataError(
                "every item needs a reply of each source",
                where=f"item {number}",
                got=", ".join(sorted(item["replies"])),
                hint=", ".join(sorted(expected)),
            )


def report(
    key: Sequence[Mapping[str, Any]],
    first: Mapping[str, bool],
    second: Mapping[str, bool],
) -> dict[str, Any]:
    """Shares of sensible replies by source, their ratios, and the agreement of two judges, whose
    judgements are given by id."""
    for number, judgements in enumerate((first, second), 1):
        _check_judgements(key, judgements, f"judge {number}")
    sources = sorted({source for line in key for source in line["sources"]})
    place = {source: i for i, source in enumerate(sources)}
    rows = np.zeros((len(key), 2 * len(sources)))  # sensible judgements, then all, of each source
    for row, line in zip(rows, key, strict=True):
        for source in line["sources"]:
            row[place[source]] = first[line["id"]] + second[line["id"]]
            row[len(sources) + place[source]] = 2
    histories = [line["item"] for line in key]

    def share(a: int) -> Statistic:
        return Statistic(rows, lambda sums: sums[a] / sums[len(sources) + a])

    def ratio(a: int, b: int) -> Statistic:
        return Statistic(rows, lambda sums: sums[a] / sums[b] if sums[b] else np.inf)

    def figures(statistic: Statistic) -> dict[str, Any]:
        return {"value": statistic.value, "interval": statistic.interval(histories)}

    return {
        "histories": len(set(histories)),
        "sensible": {source: figures(share(a)) for source, a in place.items()},
        # every source has as many replies, so the ratio of counts is that of shares
        "ratio": {
            source: {other: figures(ratio(a, b)) for other, b in place.items() if other != source}
            for source, a in place.items()
        },
        **agreement([first[line["id"]] for line in key], [second[line["id"]] for line in key]),
        "verdicts": list(_verdicts(key, first, second)),
    }


def _verdicts(
    key: Sequence[Mapping[str, Any]], first: Mapping[str, bool], second: Mapping[str, bool]
) -> Iterator[dict[str, Any]]:
    """What both judges said of the reply of each source to each item, in the order of the items."""
    for line in sorted(key, key=lambda line: line["item"]):
        said = [first[line["id"]], second[line["id"]]]
        for source in line["sources"]:
            yield {"item": line["item"], "id": line["id"], "source": source, "sensible": said}


def _check_judgements(
    key: Sequence[Mapping[str, Any]], judgements: Mapping[str, bool], judge: str
) -> None:
    missing = [line["id"] for line in key if not isinstance(judgements.get(line["id"]), bool)]
    if missing:
        raise DataError(
            "every id needs a judgement, true or false",
            where=judge,
            got=f"none for {len(missing)} of {len(key)}: {', '.join(missing[:5])}",
        )


def agreement(first: Sequence[bool], second: Sequence[bool]) -> dict[str, float]:
    """The share of equal judgements, and Cohen's kappa (1960): the agreement beyond that of judges
    who say "sensible" as often, but at random, as a share of what is possible. If both always say
    the same one thing, kappa is not defined, and 0 here.

    >>> agreement([True, True, False, False], [True, False, False, False])
    {'agreement': 0.75, 'kappa': 0.5}
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    equal = float((a == b).mean())
    chance = float(a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean()))
    return {"agreement": equal, "kappa": (equal - chance) / (1 - chance) if chance < 1 else 0.0}


def _read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    disk.write_text(path, text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    sheet_parser = verbs.add_parser("sheet", help="write the sheet and its key")
    for name in ("items", "sheet", "key"):
        sheet_parser.add_argument(name, type=Path)
    sheet_parser.add_argument("--histories", type=int, default=HISTORIES)
    sheet_parser.add_argument("--seed", type=int, default=1)
    report_parser = verbs.add_parser("report", help="compare two files of judgements")
    for name in ("key", "first", "second"):
        report_parser.add_argument(name, type=Path)
    report_parser.add_argument("--record", type=Path, help="write it here, with all verdicts")
    report_parser.add_argument("--what", help="what was judged by whom, for the record")
    args = parser.parse_args(arguments)

    if args.verb == "sheet":
        replies, key = sheet(_read(args.items), histories=args.histories, seed=args.seed)
        _write(args.sheet, replies)
        _write(args.key, key)
        print(f"{len(replies)} replies to {len({line['item'] for line in key})} histories")
    else:
        judgements = [
            {line["id"]: line["sensible"] for line in _read(path)}
            for path in (args.first, args.second)
        ]
        result = report(_read(args.key), *judgements)
        if args.record is not None:
            _write_record(args.record, args.what, result)
            del result["verdicts"]  # a line for each reply, which nobody reads in a terminal
        print(json.dumps(result, indent=1))


def _write_record(path: Path, what: str | None, result: Mapping[str, Any]) -> None:
    if not what:
        raise DataError("a record has to say what was judged by whom", where="--what")
    today = datetime.now(UTC).date().isoformat()
    record = {"what": what, "date": today, "report": result}
    disk.write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
