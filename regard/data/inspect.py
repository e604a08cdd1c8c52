"""What a file or folder is: its kind, how many examples can be used, what is wrong with the others, and for whom."""

from __future__ import annotations

import random
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.data import captions, labelled, parallel, pictures, readers, sentences, sound
from regard.data.examples import Example, Item, shown
from regard.data.lines import Tally, is_binary
from regard.data.readers import Column, quantiles, word_count
from regard.errors import DataError

LABELS = 30  # at most so many different short answers, each given often, are labels and not replies
SAMPLE = 2000  # lines of a table that tell which
RATE, SECONDS = 8000, 60.0  # sounds are looked at, not learned from
FORM: dict[str, Any] = {"size": (32, 32), "colours": 3}
VALID = ("val", "valid", "dev")
LANGUAGE = re.compile(r"(?P<part>.+)\.(?P<language>[a-z]{2})")


class Seen(NamedTuple):
    kind: str  # as a recipe names it
    fits: str  # how to train on it
    read: Callable[..., Iterator[Example]]


def inspect(path: Path | str, *, source_column: Column = None, target_column: Column = None) -> dict[str, Any]:
    """What `regard data inspect` shows: counts, lengths, three examples, and a command that trains on it."""
    seen, tally, draw = recognise(Path(path), source_column, target_column), Tally(), random.Random(0)
    words: defaultdict[str, Counter[int]] = defaultdict(Counter)
    labels, names, seconds, samples = Counter[str](), set[str](), Counter[int](), list[dict[str, str]]()
    for i, example in enumerate(seen.read(tally=tally)):
        match example.source:
            case Item(values=values) if values.ndim == 1:
                seconds[len(values)] += 1
            case Item(name=name):
                names.add(name)
            case text if seen.kind != "text":
                words["source"][word_count(text)] += 1
        if seen.kind in ("labelled", "pictures", "medmnist"):
            labels[example.target] += 1
        else:
            words["target"][word_count(example.target)] += 1
        place = i if i < 3 else draw.randrange(i + 1)  # reservoir: each example has the same chance
        if place < 3:
            told = {} if seen.kind == "text" else {"source": shown(example.source)}
            samples[place : place + 1] = [told | {"target": example.target}]
    found: dict[str, Any] = {
        "kind": seen.kind,
        "usable": tally.used,
        "skipped": dict(sorted(tally.skipped.items())),
        "replaced_characters": tally.replaced,
        "words": {side: quantiles(lengths) for side, lengths in words.items()},
        "samples": samples,
        "train": f"regard train {seen.fits}",
    }
    if seconds:
        total = sum(length * count for length, count in seconds.items())
        found["seconds"] = {name: round(length / RATE, 2) for name, length in quantiles(seconds).items()}
        found["seconds"] |= {"total": round(total / RATE, 1)}
    if names:
        found["pictures"] = len(names)
    if labels:
        found["labels"] = dict(labels.most_common(LABELS))
    return found


def recognise(path: Path, source_column: Column = None, target_column: Column = None) -> Seen:
    if not path.exists():
        raise DataError("no such file or folder", where=path)
    columns = {"source_column": source_column, "target_column": target_column}
    if source_column is not None or target_column is not None:
        return _table(path, columns)
    if path.name.lower().removesuffix(".gz").endswith(".npz"):
        return _medmnist(path)
    if kind := captions.detect(path):
        fits = "caption-attention" if kind == "captioned" else "caption-flickr8k"
        return Seen(kind, _on(fits, path), _captions(path, kind))
    if sound.holds_sounds(path):
        kind = sound.detect(path)
        read = partial(sound.READERS[kind], path, how=sound.Hearing(RATE, SECONDS), limit=1.0)
        return Seen(kind, _on("speech-fsdd" if kind == "fsdd" else "speech-attention", path), read)
    if path.is_file():
        if is_binary(path):
            raise DataError(
                "neither text nor a table",
                where=path,
                hint="one picture or sound is no corpus: give a folder, or a table of files and texts",
            )
        if sentences.is_text(path):
            return Seen("text", _on("blank-rnn", path), partial(sentences.read_text, path))
        return _table(path, columns)
    return _folder(path)


def _on(recipe: str, path: Path, **fields: object) -> str:
    """
    >>> _on("chat-attention", Path("my data.tsv"), source_column=2, target_column=None)
    "chat-attention --data 'my data.tsv' --set data.source_column=2"
    """
    return shlex.join([recipe, "--data", str(path), *_sets(**fields)])


def _sets(**fields: object) -> list[str]:
    return [word for name, value in fields.items() if value is not None for word in ("--set", f"data.{name}={value}")]


def _table(path: Path, columns: dict[str, Column]) -> Seen:
    if readers.detect(path) == "cornell":
        return Seen("cornell", _on("chat-attention", path), partial(readers.read_cornell, path, limit=1.0))
    read = partial(readers.read_pairs, path, limit=1.0, **columns)
    if _are_labels([example.target for example in islice(read(tally=Tally()), SAMPLE)]):
        named = {"text_column": columns["source_column"], "label_column": columns["target_column"]}
        return Seen("labelled", _on("sentiment-cnn", path, **named), read)
    return Seen("pairs", _on("chat-attention", path, **columns), read)


def _are_labels(answers: list[str]) -> bool:
    """Few different ones, none of them long, each given again and again.

    >>> _are_labels(["good", "bad"] * 5), _are_labels(["Yes.", "No.", "Where have you been all the time?", "Yes."])
    (True, False)
    """
    different = set(answers)
    short = all(word_count(answer) <= 3 for answer in different)
    return short and 2 <= len(different) <= min(LABELS, len(answers) / 5)


def _medmnist(path: Path) -> Seen:
    def read(*, tally: Tally) -> Iterator[Example]:
        return chain.from_iterable(
            pictures.read_medmnist(path, part=part, size=(28, 28), colours=1, tally=tally)
            for part in ("train", "val", "test")
        )

    return Seen("medmnist", _on("image-pool", path), read)


def _captions(path: Path, kind: str) -> Callable[..., Iterator[Example]]:
    if kind == "flickr8k":
        album = captions.Fitted(lambda: captions.Album(captions.flickr8k_images(path)), **FORM)
        return partial(captions.read_flickr8k, path, part=None, fitted=album, limit=1.0)
    if kind == "coco":
        album = captions.Fitted(lambda: captions.Album(captions.coco_images(path)), **FORM)
        return partial(captions.read_coco, path, fitted=album, limit=1.0)
    album = captions.Fitted(lambda: captions.Album(captions.table_of(path).parent, anywhere=True), **FORM)
    return partial(captions.read_captioned, path, fitted=album, limit=1.0)


def _folder(path: Path) -> Seen:
    if found := _parallel(path):
        (source, target), held_out = found
        files = _sets(path=source, target_path=target, valid_path=held_out[0], valid_target_path=held_out[1])
        fits = shlex.join(["multi30k-transformer", *files])
        return Seen("parallel", fits, partial(parallel.read_parallel, source, target, limit=1.0))
    try:
        readers.cornell_files(path)
    except DataError:
        pass
    else:
        return Seen("cornell", _on("chat-attention", path), partial(readers.read_cornell, path, limit=1.0))
    if any(file.suffix.lower() in pictures.SUFFIXES for file in path.glob("*/**/*")):
        return Seen("pictures", _on("image-pool", path), partial(pictures.read_folders, path, **FORM, limit=1.0))
    try:
        labelled.labelled_files(path)
    except DataError:
        pass
    else:
        return Seen("labelled", _on("sentiment-cnn", path), partial(labelled.read_labelled, path, limit=1.0))
    if len(packed := list(path.glob("*.npz"))) == 1:
        return _medmnist(packed[0])
    try:
        sentences.text_files(path)
    except DataError:
        raise DataError(
            "nothing here that regard can read",
            where=path,
            hint="regard data list names what it can; is it the folder above or below?",
        ) from None
    return Seen("text", _on("blank-rnn", path), partial(sentences.read_text, path))


def _parallel(path: Path) -> tuple[tuple[Path, Path], tuple[Path | str, Path | str]] | None:
    """train.en and train.de for example, also .gz: train, or else the first part that is not held out, in two
    languages, English first; and the same two of what is there to validate on ("": nothing is)."""
    parts: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    for file in sorted(path.iterdir()):
        name = file.name.removesuffix(".gz").removesuffix(".txt")
        if file.is_file() and (named := LANGUAGE.fullmatch(name)):
            parts[named["part"]][named["language"]] = file
    several = {part: files for part, files in parts.items() if len(files) >= 2}
    if not several:
        return None
    chosen = min(several, key=lambda part: (part != "train", part in (*VALID, "test"), part))
    files = several[chosen]
    one, other, *_ = sorted(files, key=lambda language: (language != "en", language))
    left = [part for part in VALID if part != chosen and {one, other} <= parts[part].keys()]
    held_out = parts[left[0]] if left else {}
    return (files[one], files[other]), (held_out.get(one, ""), held_out.get(other, ""))
