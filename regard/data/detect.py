"""What a file or folder is, and which recipes learn from it: the one answer of every command.

Recipes are named here and not loaded: data never sees a recipe. A test holds that each name exists
and fits.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard import disk
from regard.data import captions, labelled, parallel, pictures, readers, sentences, sound, tables
from regard.data.examples import Example
from regard.data.lines import Tally, is_binary, read_lines
from regard.data.tables import Column, Roles, Table, UnclearColumns
from regard.errors import DataError

RATE, SECONDS = 8000, 60.0  # sounds are looked at, not learned from
FORM: dict[str, Any] = {"size": (32, 32), "channels_in": 3}
VALID = ("val", "valid", "dev")
PARTS = frozenset({*VALID, "train", "training", "validation", "test", "testing", "eval"})
LANGUAGE = re.compile(r"(?P<part>.+)\.(?P<language>[a-z]{2})")
MULTI30K = "test_2016_flickr"  # a part that Multi30k has, and hardly anything else
RUN = "recipe.json"  # in a folder with a manifest
TURN = "__eou__"  # ends a turn of DailyDialog
TABLES = tuple(f"{suffix}{packed}" for suffix in tables.SUFFIXES for packed in ("", ".gz"))
MESSAGES = "keys: messages; source = user, target = the assistant message after it"
MOST_ENTRIES = 500  # of a folder, that are looked at as data sets of their own
MOST_SHOWN = 12  # data sets in a message
MOST_NAMES = 50  # cells of a column, that are looked for as files


@dataclass(frozen=True)
class Kind:
    """A kind of data that files can be: what it is in words, what a model reads of it, and for each
    task the recipes that learn from it, the first of which is recommended."""

    words: str
    input: str  # text, picture or sound
    recipes: Mapping[str, tuple[str, ...]]


_CHAT = ("chat-attention", "chat-transformer", "chat-lstm", "chat-gru")
_TRANSLATE = ("translate-attention", "translate-transformer")
_SENTIMENT = ("sentiment-cnn", "sentiment-lstm", "sentiment-gru", "sentiment-transformer")
_IMAGE = ("image-pool", "image-stride", "image-patches")
_CAPTION = ("caption-flickr8k", "caption-attention")
_SPEECH = ("speech-attention", "speech-transformer")

KINDS = {
    "pairs": Kind("a table of pairs", "text", {"chat": _CHAT, "translate": _TRANSLATE}),
    "cornell": Kind("a corpus of film dialogues (Cornell)", "text", {"chat": _CHAT}),
    "parallel": Kind(
        "a text in two languages",
        "text",
        {"translate": (*_TRANSLATE, "multi30k-transformer", "multi30k-attention")},
    ),
    "labelled": Kind("labelled text", "text", {"classify": _SENTIMENT}),
    "text": Kind("plain text", "text", {"blank": ("blank-rnn", "blank-transformer")}),
    "pictures": Kind("a folder of pictures by label", "picture", {"classify": _IMAGE}),
    "medmnist": Kind("a MedMNIST file", "picture", {"classify": _IMAGE}),
    "flickr8k": Kind(
        "a set of pictures with captions (Flickr8k)", "picture", {"caption": _CAPTION}
    ),
    "coco": Kind("a set of pictures with captions (COCO)", "picture", {"caption": _CAPTION}),
    "captioned": Kind(
        "a table of pictures with captions",
        "picture",
        {"caption": ("caption-attention", "caption-transformer")},
    ),
    "ljspeech": Kind(
        "a set of recordings with transcripts (LJ Speech)", "sound", {"speech": _SPEECH}
    ),
    "fsdd": Kind("a folder of spoken digits", "sound", {"speech": ("speech-fsdd", *_SPEECH)}),
    "sounds": Kind("a table of recordings with transcripts", "sound", {"speech": _SPEECH}),
}
ROLES = {
    "pairs": tables.PAIRS,
    "labelled": tables.LABELLED,
    "captioned": tables.CAPTIONED,
    "sounds": tables.SPOKEN,
}


@dataclass(frozen=True)
class DataSet:
    """One data set: its kind, the fields of [data] in a recipe that say it, and how to read it."""

    kind: str
    path: Path
    fields: dict[str, object]
    read: Callable[..., Iterator[Example]]
    note: str = ""  # which column or file is taken for what
    columns: dict[str, object] = field(default_factory=dict)  # those that the user named
    recipe: str = ""  # that is recommended; empty: the first of its kind

    def command(self, recipe: str | None = None) -> str:
        """What trains on it."""
        recipe = recipe or self.recipe or next(iter(KINDS[self.kind].recipes.values()))[0]
        return shlex.join(
            ["regard", "train", recipe, "--data", str(self.path), *_sets(self.columns)]
        )


class SeveralDataSets(DataError):
    """A folder of several data sets, where one is wanted."""

    def __init__(self, path: Path, sets: Sequence[DataSet]):
        self.sets = list(sets)
        paths = [
            shlex.join(["--data", str(one.path)]) + f" ({one.kind})"
            for one in self.sets[:MOST_SHOWN]
        ]
        if len(self.sets) > MOST_SHOWN:
            paths.append(f"… ({len(self.sets)} in all)")
        super().__init__(
            f"{len(self.sets)} data sets are here", where=path, hint=f"give one: {', '.join(paths)}"
        )


class DoesNotFit(DataError):
    """Data that a recipe does not learn from, with the recipes that do."""

    def __init__(self, data_set: DataSet, recipe: str, task: str):
        self.data_set = data_set
        known = KINDS[data_set.kind]
        first, *others = chain.from_iterable(known.recipes.values())
        hint = f"try: {data_set.command(first)}"
        if others:
            hint += f" (or {', '.join(others)})"
        if (
            data_set.kind == "labelled"
            and data_set.path.is_file()
            and task in KINDS["pairs"].recipes
        ):
            hint += "; if its labels are replies, add --set data.kind=pairs"
        what = f"this is {known.words}, which {recipe} does not learn from"
        super().__init__(what, where=data_set.path, hint=hint)


def recognise(
    path: Path | str,
    *,
    columns: Mapping[str, Column] | None = None,
    recipe: str | None = None,
    task: str | None = None,
    source: str | None = None,
    kind: str | None = None,
) -> DataSet:
    """What PATH is.

    With a `task` and the kind of its `source`, as a recipe has them, data that it cannot learn from
    is refused with the recipes that can; `recipe` is the name that the user gave. `kind` is what a
    run has learned from: a table is read as that, whatever its contents look like."""
    path = Path(path)
    columns = {field: column for field, column in (columns or {}).items() if column is not None}
    try:
        readings = _readings(path, columns, task, kind)
    except UnclearColumns as problem:
        raise _question(problem, path, recipe, task) from None
    if task is None:
        return readings[0]
    fitting = [one for one in readings if fits(one.kind, task, source)]
    fitting.sort(key=lambda one: one.kind != kind)
    if fitting:
        return fitting[0]
    raise DoesNotFit(readings[0], recipe or task, task)


def kind(path: Path | str, task: str) -> str:
    """The kind of data, as a recipe names it, that a file or folder is for this task."""
    return recognise(path, task=task).kind


def fits(kind: str, task: str, source: str | None) -> bool:
    """Whether a task that reads a kind of source, as recipes name both, can learn from this kind.

    >>> fits("labelled", "classify", "tokens"), fits("labelled", "classify", "patches")
    (True, False)
    >>> fits("pairs", "speech", None)
    False
    """
    known = KINDS[kind]
    reads = {"tokens": "text", "sound": "sound", None: known.input}.get(source, "picture")
    return task in known.recipes and reads == known.input


def _question(
    problem: UnclearColumns, path: Path, recipe: str | None, task: str | None
) -> DataError:
    """The question which columns are meant, with a command that can be typed."""
    columns = {field: _column(value) for field, value in problem.columns.items()}
    hint = "no two of them can be learned from"
    with contextlib.suppress(DataError):
        readings = _readings(path, columns, task, None)
        fitting = [data_set for data_set in readings if task in KINDS[data_set.kind].recipes]
        data_set = (fitting or readings)[0]
        if next(data_set.read(tally=Tally()), None) is not None:
            command = data_set.command(recipe if fitting else None)
            hint = f"say which, for example: {command}"
    return DataError(problem.what, where=problem.where, hint=hint)


def _column(value: object) -> Column:
    return value if isinstance(value, int) else str(value)


def _sets(fields: Mapping[str, object]) -> list[str]:
    """
    >>> _sets({"source_column": 2, "valid_path": None})
    ['--set', 'data.source_column=2', '--set', 'data.valid_path=']
    """
    values = ((name, "" if value is None else value) for name, value in fields.items())
    return [word for name, value in values for word in ("--set", f"data.{name}={value}")]


def _readings(
    path: Path, columns: Mapping[str, Column], task: str | None, kind: str | None
) -> list[DataSet]:
    """What it can be taken for, the likeliest first."""
    if not path.exists():
        raise DataError("no such file or folder", where=path)
    if not path.is_dir():
        return _file(path, columns, task, kind)
    try:
        data_sets = _folder(path)
        file = data_sets[0].path
    except UnclearColumns as problem:
        if not columns:
            raise
        data_sets = []
        file = Path(str(problem.where))
    if not columns:
        return data_sets
    if not file.is_file():
        raise DataError(
            f"{KINDS[data_sets[0].kind].words} has no columns to choose",
            where=path,
            got=", ".join(str(column) for column in columns.values()),
            hint="name columns of a table only",
        )
    return _file(file, columns, task, kind)


# -- files------------------------------------------------------------------------------------------


def _set(kind: str, path: Path, read: Callable[..., Iterator[Example]], **more: Any) -> DataSet:
    return DataSet(kind, path, {"path": str(path)}, read, **more)


def _file(
    path: Path, columns: Mapping[str, Column], task: str | None, kind: str | None
) -> list[DataSet]:
    name = path.name.lower().removesuffix(".gz")
    if not columns:
        if name.endswith(".npz"):
            return [_medmnist(path)]
        if name.endswith("token.txt"):
            return [_flickr8k(path)]
        if name.endswith(".json") and not _is_json_lines(path):
            return [_coco(path)]
        if name.endswith(tuple(tables.SOUNDS)):
            raise DataError(
                "one sound is no corpus",
                where=path,
                hint="give a folder, or a table with path,text",
            )
        if is_binary(path):
            raise DataError(
                "neither text nor a table",
                where=path,
                hint="one picture or sound is no corpus: "
                "give a folder, or a table of files and texts",
            )
        if sentences.is_text(path):
            return [_text(path)]
    if readers.detect(path) == "cornell":
        return [_cornell(path)]
    return _table(path, columns, task, kind)


def _is_json_lines(path: Path) -> bool:
    """Whether a .json file has an object a line, and is not COCO's; an array is refused."""
    lines = (line for line in read_lines(path, Tally()) if line.strip())
    first = next(lines, "").strip()
    if first.startswith("["):
        rows = path.name.removesuffix(".gz").removesuffix(".json") + ".jsonl"
        unpack = ["gzip", "-dc", str(path)] if path.name.endswith(".gz") else ["cat", str(path)]
        convert = f"{shlex.join(unpack)} | jq -c '.[]' > {shlex.quote(rows)}"
        raise DataError(
            "a JSON array, of which regard reads the form with one object a line (.jsonl)",
            where=path,
            hint=f"convert it, for example: {convert}",
        )
    row = tables.json_object(first, Tally())
    return row is not None and not {"images", "annotations"} & row.keys()


def _medmnist(path: Path) -> DataSet:
    def read(*, tally: Tally) -> Iterator[Example]:
        return chain.from_iterable(
            pictures.read_medmnist(path, part=part, size=(28, 28), channels_in=1, tally=tally)
            for part in ("train", "val", "test")
        )

    return _set("medmnist", path, read)


def _flickr8k(path: Path) -> DataSet:
    album = captions.Fitted(lambda: captions.Album(captions.flickr8k_images(path)), **FORM)
    return _set(
        "flickr8k", path, partial(captions.read_flickr8k, path, part=None, fitted=album, limit=1.0)
    )


def _coco(path: Path) -> DataSet:
    album = captions.Fitted(lambda: captions.Album(captions.coco_images(path)), **FORM)
    return _set("coco", path, partial(captions.read_coco, path, fitted=album, limit=1.0))


def _cornell(path: Path) -> DataSet:
    return _set("cornell", path, partial(readers.read_cornell, path, limit=1.0))


def _text(path: Path) -> DataSet:
    first = next(read_lines(sentences.text_files(path)[0], Tally()), "")
    if TURN in first:  # to all appearance sentences, with marks in them
        raise DataError(
            f"dialogues whose turns end in {TURN} (DailyDialog), which cannot be read yet",
            where=path,
            hint="a prompt, a tab and its reply in a line can: "
            "regard train chat-attention --data pairs.tsv",
        )
    return _set("text", path, partial(sentences.read_text, path))


def _table(
    path: Path, columns: Mapping[str, Column], task: str | None, kind: str | None
) -> list[DataSet]:
    table = tables.look(path, asked=columns.values())
    if table.format == "jsonl" and not columns:
        _refuse_conversations(table)
    if table.has_messages and not columns:
        return [_set("pairs", path, partial(readers.read_pairs, path, limit=1.0), note=MESSAGES)]
    if table.is_empty:
        _, rows = tables.read_rows(path, Tally())
        if any(isinstance(row, list) and len(row) == 1 for row in islice(rows, 1, 2)):
            raise DataError(
                f"no usable examples in {path}: only one column",
                hint="pairs and labelled texts need two; for sentences alone: "
                + shlex.join(
                    ["regard", "train", "blank-rnn", "--data", str(path), *_sets({"kind": "text"})]
                ),
            )
        list(readers.read_pairs(path, tally=Tally(), limit=1.0))  # says what is wrong with it
    naming = _naming_sounds(table, columns)
    if naming is not columns:
        return [_of_columns(table, "sounds", naming)]
    if of_files := _kind_of_files(table, columns, task):
        return [_of_columns(table, of_files, columns)]
    if kind in ("pairs", "labelled"):
        return [_of_columns(table, kind, columns)]
    if task == "classify":
        labels = _of_columns(table, "labelled", columns)
        choice = _choice(table, tables.LABELLED, columns)
        if table.holds[choice.target] == "label" or tables.may_be_labels(
            table.cells[choice.target]
        ):
            return [labels]
    try:
        choice = _choice(table, tables.PAIRS, columns)
    except UnclearColumns as problem:
        raise _for_labels(problem, table, task, columns) from None
    pairs = _of_columns(table, "pairs", columns)
    if table.holds[choice.target] != "label":
        return [pairs]
    labels = replace(pairs, kind="labelled", note=table.described(choice, tables.LABELLED))
    if pairs.columns:
        labels = _of_columns(table, "labelled", columns)
    is_named_reply = table.names[choice.target].lower() in tables.REPLY_NAMES
    return [labels, pairs] if is_named_reply else [labels]


def _refuse_conversations(table: Table) -> None:
    """ShareGPT's form is told apart, because it is close to one that can be read."""
    for name, holds in zip(table.names, table.holds, strict=True):
        if name.lower() == "conversations" and holds == "nested":
            raise DataError(
                'conversations as ShareGPT has them (keys "conversations", "from", "value")',
                where=table.path,
                hint='regard reads "messages" with "role" (user, assistant) and "content", '
                "one conversation a line: rename the keys",
            )


def columns_taken(path: Path, kind: str, columns: Mapping[str, Column]) -> str:
    """Which column of a table of this kind is taken for what, in a line."""
    columns = {field: column for field, column in columns.items() if column is not None}
    table = tables.look(path, asked=columns.values())
    if table.has_messages and not columns:
        return MESSAGES
    return table.described(_choice(table, ROLES[kind], columns), ROLES[kind])


def _kind_of_files(table: Table, columns: Mapping[str, Column], task: str | None) -> str | None:
    """The kind of a table that names files of sounds or pictures."""
    if "sound" in table.holds:
        return "sounds"
    if "picture" in table.holds:
        return "captioned"
    if "path_column" in columns:
        return {"speech": "sounds", "caption": "captioned"}.get(task or "")
    return None


def _naming_sounds(table: Table, columns: Mapping[str, Column]) -> Mapping[str, Column]:
    """The columns, with the one that names sounds beside the table, if there is one: files may be
    named without their suffix."""
    if columns or "sound" in table.holds or "picture" in table.holds:
        return columns
    places = sound.Places(table.path.parent)
    if not places.names:
        return columns
    for number, cells in enumerate(table.cells):
        sample = cells[:MOST_NAMES]
        count = sum(places.file(cell) is not None for cell in sample)
        if (
            sample
            and table.holds[number] in ("id", "text", "number")
            and 5 * count >= 4 * len(sample)
        ):
            return {"path_column": table.name(number)}
    return columns


def _for_labels(
    problem: UnclearColumns, table: Table, task: str | None, columns: Mapping[str, Column]
) -> UnclearColumns:
    """The same question in the words of labelled text, if the table seems to be that: one text."""
    if task in ("chat", "translate") or table.holds.count("text") > 1 or "label" not in table.holds:
        return problem
    try:
        _choice(table, tables.LABELLED, columns)
    except UnclearColumns as question:
        return question
    return problem


def _choice(table: Table, roles: Roles, columns: Mapping[str, Column]) -> tables.Choice:
    """Of the columns a user named, whatever they are called, those of these roles."""
    source, target = _given(roles, columns)
    return tables.choose(table, roles, source, target)


def _given(roles: Roles, columns: Mapping[str, Column]) -> tuple[Column, Column]:
    source = columns.get(roles.source.field, columns.get("source_column"))
    target = columns.get(roles.target.field, columns.get("target_column"))
    if roles.source.field == "source_column":
        source = columns.get("source_column", columns.get("text_column"))
        target = columns.get("target_column", columns.get("label_column"))
    return source, target


def _of_columns(table: Table, kind: str, columns: Mapping[str, Column]) -> DataSet:
    roles = ROLES[kind]
    choice = _choice(table, roles, columns)
    source, target = _given(roles, columns)
    pair = {roles.source.field: source, roles.target.field: target}
    own: dict[str, object] = {field: column for field, column in pair.items() if column is not None}
    path = table.path
    match kind:
        case "sounds":
            how = sound.Hearing(RATE, SECONDS)
            read = partial(
                sound.read_sounds, path, how=how, path_column=source, text_column=target, limit=1.0
            )
        case "captioned":
            album = captions.Fitted(lambda: captions.Album(path.parent, anywhere=True), **FORM)
            of = {"path_column": source, "text_column": target}
            read = partial(captions.read_captioned, path, fitted=album, **of, limit=1.0)
        case _:
            of = {"source_column": source, "target_column": target}
            read = partial(readers.read_pairs, path, **of, limit=1.0, roles=roles)
    note = table.described(choice, roles)
    is_translation = kind == "pairs" and tables.are_languages(table, choice)
    recipe = _TRANSLATE[0] if is_translation else ""
    return DataSet(kind, path, {"path": str(path), **own}, read, note, own, recipe)


# -- folders----------------------------------------------------------------------------------------


def _folder(path: Path) -> list[DataSet]:
    if (path / RUN).is_file() and (path / disk.MANIFEST).is_file():
        run = shlex.quote(str(path))
        raise DataError(
            "a run, not data", where=path, hint=f"regard ask {run} or regard evaluate {run}"
        )
    if own := _lies_in(path):
        return [own]
    questions: list[UnclearColumns] = []
    members = _members(path, depth=2, questions=questions)
    if len(members) == len(questions) == 1:
        raise questions[0]
    labels = _label_folders(path)
    are_parts = bool(labels) and {folder.name.lower() for folder in labels} <= PARTS
    if len(labels) >= 2 and not are_parts and not any(_has_files(one) for one in members):
        return [_pictures(path)]
    if are_parts and not members:
        members = [_pictures(folder) for folder in labels if _label_folders(folder)]
    if len(members) == 1:
        return members
    if members:
        raise SeveralDataSets(path, members)
    if labels:
        return [_pictures(path)]
    _refuse_sounds(path)
    return _texts(path)


def _refuse_sounds(path: Path) -> None:
    """A folder of sounds without a table is neither texts nor labels."""
    sounds = [file for file in _files_in(path) if file.suffix.lower() in tables.SOUNDS]
    if not sounds:
        return
    texts = sum(file.with_suffix(".txt").is_file() for file in sounds)
    beside = f", {texts:,} of them with a .txt file of their name" if texts else ""
    raise DataError(
        "a folder of sounds without a table of what is said in them",
        where=path,
        got=f"{len(sounds):,} sounds{beside}",
        hint="put a table beside them, for example texts.csv with the columns path,text",
    )


def _files_in(path: Path) -> list[Path]:
    """The files of a folder and of the folders in it."""
    entries = sorted(path.iterdir())
    inner = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return [file for place in (path, *inner) for file in sorted(place.iterdir()) if file.is_file()]


def _lies_in(path: Path) -> DataSet | None:
    """The data set whose files lie in this folder itself, if it is one that consists of several."""
    if (path / captions.TOKENS).is_file():
        return _flickr8k(path)
    if (path / "metadata.csv").is_file() and (path / "wavs").is_dir():
        first = next(read_lines(path / "metadata.csv", Tally()), "")
        if "|" in first:
            read = partial(sound.read_ljspeech, path, how=sound.Hearing(RATE, SECONDS), limit=1.0)
            return _set("ljspeech", path, read)
    if sound.is_fsdd(path):
        return _set(
            "fsdd",
            path,
            partial(sound.read_fsdd, path, how=sound.Hearing(RATE, SECONDS), limit=1.0),
        )
    if texts := _parallel(path):
        return texts
    if readers.holds_cornell(path):
        return _cornell(path)
    return None


def _members(folder: Path, depth: int, questions: list[UnclearColumns]) -> list[DataSet]:
    """The data sets in a folder and in its folders: files, or folders of files that belong
    together. Questions about the columns of a table are added to `questions`."""
    members: list[DataSet] = []
    for entry in _entries(folder):
        if entry.is_dir():
            own = _lies_in(entry)
            if own:
                members.append(own)
            elif depth > 1:
                members += _members(entry, depth - 1, questions)
        elif _is_data_file(entry):
            try:
                members.append(_file(entry, {}, None, None)[0])
            except UnclearColumns as problem:  # a table all the same
                questions.append(problem)
                members.append(_set("pairs", entry, partial(readers.read_pairs, entry, limit=1.0)))
            except DataError:
                continue
    return members


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder and is not hidden; of many, only folders and data files."""
    try:
        entries = (entry for entry in folder.iterdir() if not entry.name.startswith((".", "__")))
        candidates = sorted(entry for entry in entries if entry.is_dir() or _is_data_file(entry))
    except OSError as problem:
        raise DataError("cannot be read", where=folder, got=problem.strerror) from None
    return candidates[:MOST_ENTRIES]


def _is_data_file(file: Path) -> bool:
    name = file.name.lower()
    if name.endswith(".npz"):
        return _is_medmnist(file)
    if name.endswith(".json"):
        return name.startswith("captions_")
    return name.endswith(TABLES) or name == "captions.txt"


def _is_medmnist(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return "train_images.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _has_files(one: DataSet) -> bool:
    """Whether the pictures beside this data set are its own, and not labelled by their folders."""
    if one.path.is_dir() or one.kind in ("coco", "sounds"):
        return True
    if one.kind != "captioned":
        return False
    table = tables.look(one.path)
    choice = _choice(table, tables.CAPTIONED, {})
    return table.holds[choice.target] == "text"  # and no list of labels once more


def _label_folders(path: Path) -> list[Path]:
    """The folders that have pictures in them, at any depth."""
    folders = (
        folder
        for folder in sorted(path.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    )
    return [
        folder
        for folder in folders
        if any(file.suffix.lower() in pictures.SUFFIXES for file in folder.rglob("*"))
    ]


def _pictures(path: Path) -> DataSet:
    return _set("pictures", path, partial(pictures.read_folders, path, **FORM, limit=1.0))


def _texts(path: Path) -> list[DataSet]:
    """A folder of texts: by label, or just texts."""
    readings: list[DataSet] = []
    try:
        files = labelled.labelled_files(path)
    except DataError:
        files = []
    if files:
        labels = labelled.labels_of(files, path)
        is_by_folder = any(file.parent != path for file in files)
        if _occur_once(files, labels, is_by_folder=is_by_folder):
            files = []
        elif not any(_is_part(label) for label in labels):
            readings.append(
                _set("labelled", path, partial(labelled.read_labelled, path, limit=1.0))
            )
        elif is_by_folder and all(_is_part(label) for label in labels):
            raise SeveralDataSets(
                path, [_texts(path / label)[0] for label in dict.fromkeys(labels)]
            )
    if any(file.name.lower().endswith((".txt", ".txt.gz")) for file in path.rglob("*")):
        readings.append(_text(path))
    if not readings:
        raise DataError(
            f"no usable examples in {path}: nothing here that regard can read",
            hint="regard data list names what it can; is it the folder above or below?",
        )
    wrapped = [
        sentences.is_wrapped(list(islice(read_lines(file, Tally()), sentences.SAMPLE)))
        for file in files[:3]
    ]
    if len(readings) == 2 and files[0].parent == path and all(wrapped):
        readings.reverse()  # books, not a text a line
    return readings


def _occur_once(files: list[Path], labels: list[str], *, is_by_folder: bool) -> bool:
    """Whether every label has one text: then they are names, and no labels."""
    if is_by_folder:
        return len(set(labels)) == len(labels)
    if len({file.stem for file in files}) == 1:  # rt-polarity.neg and rt-polarity.pos
        return False
    texts = (
        sum(1 for line in islice(read_lines(file, Tally(), declared="cp1252"), 2) if line.strip())
        for file in files
    )
    return all(count < 2 for count in texts)


def _is_part(label: str) -> bool:
    """
    >>> _is_part("dialogues_train"), _is_part("positive")
    (True, False)
    """
    return not PARTS.isdisjoint(re.split(r"[^a-z]+", label.lower()))


def _parallel(path: Path) -> DataSet | None:
    """train.en and train.de for example, also .gz: train, or else the first part that is not held
    out, in two languages, English first; and the same two of what is there to validate on."""
    parts: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    for file in sorted(path.iterdir()):
        name = file.name.removesuffix(".gz").removesuffix(".txt")
        if file.is_file() and (match := LANGUAGE.fullmatch(name)):
            parts[match["part"]][match["language"]] = file
    several = {part: files for part, files in parts.items() if len(files) >= 2}
    if not several:
        return None
    chosen = min(several, key=lambda part: (part != "train", part in (*VALID, "test"), part))
    files = several[chosen]
    one, other, *others = sorted(files, key=lambda language: (language != "en", language))
    left = [part for part in VALID if part != chosen and {one, other} <= parts[part].keys()]
    held_out = parts[left[0]] if left else {}
    fields: dict[str, object] = {"path": str(files[one]), "target_path": str(files[other])}
    for name, language in (("valid_path", one), ("valid_target_path", other)):
        fields[name] = str(held_out[language]) if held_out else None
    note = f"files: source = {files[one].name}, target = {files[other].name}"
    if others:
        note += f"; not used: {', '.join(files[language].name for language in others)}"
    read = partial(parallel.read_parallel, files[one], files[other], limit=1.0)
    recipe = "multi30k-transformer" if MULTI30K in parts else ""
    return DataSet("parallel", path, fields, read, note, recipe=recipe)


def undivided(data_set: DataSet) -> DataSet:
    """The same as one part: what it holds out, if it names files for that, or else all of it."""
    if data_set.kind != "parallel" or data_set.fields["valid_path"] is None:
        return data_set
    fields = {
        "path": data_set.fields["valid_path"],
        "target_path": data_set.fields["valid_target_path"],
    }
    return replace(data_set, fields=fields)
