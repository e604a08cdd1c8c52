"""Build the readers of a recipe's [data], and the tokenized corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from regard import disk, tokenizers
from regard import recipe as r
from regard.data import (
    cache,
    captions,
    detect,
    drawn,
    labelled,
    parallel,
    pictures,
    readers,
    sentences,
    sound,
    spoken,
    tables,
)
from regard.data.examples import Example
from regard.data.lines import Tally
from regard.errors import DataError

# What makes all of the data one split, beside no files of held-out data.
UNDIVIDED = {"split": "hash", "hold_out": None, "usual_test": False}
Read = Callable[[Tally], Iterator[Example]]


def fit_tokenizer(recipe: r.Recipe) -> Callable[[Iterator[str]], tokenizers.Tokenizer] | None:
    """The function that fits the recipe's tokenizer to texts; None if there are only labels."""
    settings = recipe.tokenizer.model_dump(exclude={"kind"})
    match recipe.tokenizer:
        case r.TokenizerWords() if recipe.task == "blank":
            # A sentence is both source and target, and is counted once.
            return lambda texts: tokenizers.Words.fit(islice(texts, 0, None, 2), **settings)
        case r.TokenizerWords():
            return partial(tokenizers.Words.fit, **settings)
        case r.TokenizerCharacters():
            return partial(tokenizers.Characters.fit, **settings)
        case r.TokenizerBPE():
            return partial(tokenizers.BPE.fit, **settings)
        case r.TokenizerLabels():
            return None


@dataclass(frozen=True)
class Contents:
    """The contents of a section [data]: the reader of the training data, readers of separate
    validation and test data, and every file they depend on. Synthetic data depends on the source
    files that generate it."""

    read: Callable[..., Iterator[Example]]
    files: list[Path]
    valid: Callable[..., Iterator[Example]] | None = None
    test: Callable[..., Iterator[Example]] | None = None


def contents(recipe: r.Recipe) -> Contents:
    """The contents of a recipe's data; for task "blank", as single sentences."""
    held = _contents(recipe)
    if recipe.task != "blank" or isinstance(recipe.data, r.DataText):
        return held
    targets = recipe.data.kind == "chatterbot"
    return Contents(sentences.sentences_of(held.read, targets=targets), held.files)


def _contents(recipe: r.Recipe) -> Contents:
    match recipe.data:
        case r.DataChatterbot() as d:
            files = readers.chatterbot_files(d.language, d.topics)
            return Contents(
                partial(readers.read_chatterbot, language=d.language, topics=d.topics), files
            )
        case r.DataPairs() as d:

            def pairs(path: str) -> Callable[..., Iterator[Example]]:
                source, target = _columns(d, path, tables.PAIRS, d.source_column, d.target_column)
                return partial(readers.read_pairs, path, source_column=source, target_column=target)

            return _from_paths(pairs, d, readers.files)
        case r.DataCornell() as d:
            return _from_paths(lambda path: partial(readers.read_cornell, path), d, readers.files)
        case r.DataMadeTranslation() as d:
            return Contents(
                partial(parallel.read_made, count=d.count, seed=d.seed), [Path(parallel.__file__)]
            )
        case r.DataParallel() as d:
            pairs_of_files = [
                _both(d.path, d.target_path),
                _both(d.valid_path, d.valid_target_path),
                _both(d.test_path, d.test_target_path),
            ]
            read, valid, test = (
                None if pair is None else partial(parallel.read_parallel, *pair)
                for pair in pairs_of_files
            )
            assert read is not None
            files = [Path(path) for pair in pairs_of_files if pair for path in pair]
            return Contents(read, files, valid, test)
        case r.DataLabelled() as d:

            def texts(path: str) -> Callable[..., Iterator[Example]]:
                text, label = _columns(d, path, tables.LABELLED, d.text_column, d.label_column)
                return partial(labelled.read_labelled, path, text_column=text, label_column=label)

            return _from_paths(texts, d, labelled.labelled_files)
        case r.DataText() as d:
            return _from_paths(
                lambda path: partial(sentences.read_text, path, layout=d.layout),
                d,
                sentences.text_files,
            )
        case r.DataReviews():
            return Contents(labelled.read_reviews, [labelled.reviews_file()])

    if isinstance(recipe.source, r.SourceSound):
        return _sounds(recipe, recipe.source)
    return _pictures(recipe)


def _pictures(recipe: r.Recipe) -> Contents:
    """The contents of data with pictures, labelled or with captions."""
    assert not isinstance(recipe.source, r.SourceTokens | r.SourceSound)  # rejected by the recipe
    assert isinstance(recipe.data, r.Pictures | r.Captions)
    form: dict[str, Any] = {
        "size": recipe.source.size,
        "channels_in": recipe.source.channels_in,
        "crop": recipe.source.fit == "crop",
    }
    match recipe.data:
        case r.DataDigits():
            return Contents(partial(pictures.read_digits, **form), [pictures.digits_file()])
        case r.DataPictures() as d:
            return _from_paths(
                lambda path: partial(pictures.read_folders, path, **form), d, pictures.folder_files
            )
        case r.DataMedmnist() as d:
            read, valid, test = (
                partial(pictures.read_medmnist, d.path, part=part, first=first, **form)
                for part, first in (("train", ()), ("val", ()), ("test", d.test_first))
            )
            return Contents(read, [Path(d.path)], valid, test)
        case r.DataDrawn() as d:
            read = partial(drawn.read_drawn, count=d.count, seed=d.seed, **form)
            return Contents(read, [Path(drawn.__file__), Path(pictures.__file__)])
        case r.DataFlickr8k() as d:
            fitted = captions.Fitted(
                lambda: captions.Album(captions.flickr8k_images(d.path, d.images)), **form
            )
            read, valid, test = (
                partial(captions.read_flickr8k, d.path, part=part, fitted=fitted)
                if part == "train" or captions.flickr8k_list(d.path, part)
                else None
                for part in captions.LISTS
            )
            assert read is not None
            return Contents(read, captions.flickr8k_files(d.path, d.images), valid, test)
        case r.DataCoco() as d:

            def coco(path: str, images: str | None) -> Callable[..., Iterator[Example]]:
                fitted = captions.Fitted(
                    lambda: captions.Album(captions.coco_images(path, images)), **form
                )
                return partial(captions.read_coco, path, fitted=fitted)

            read = coco(d.path, d.images)
            files = [Path(d.path), captions.coco_images(d.path, d.images)]
            if d.valid_path is None:
                return Contents(read, files)
            files += [Path(d.valid_path), captions.coco_images(d.valid_path, d.valid_images)]
            return Contents(read, files, coco(d.valid_path, d.valid_images))
        case r.DataCaptioned() as d:
            columns = {"path_column": d.path_column, "text_column": d.text_column}

            def table(path: str) -> Callable[..., Iterator[Example]]:
                home = d.images or str(Path(path).parent)
                anywhere = not d.images
                fitted = captions.Fitted(lambda: captions.Album(home, anywhere=anywhere), **form)
                return partial(captions.read_captioned, path, fitted=fitted, **columns)

            return _from_paths(
                table, d, partial(captions.captioned_files, images=d.images, **columns)
            )


def _sounds(recipe: r.Recipe, source: r.SourceSound) -> Contents:
    """The contents of data with sounds and transcripts."""
    assert isinstance(recipe.data, r.Sounds)
    max_characters = recipe.data.max_target if recipe.data.truncate else None
    how = sound.Hearing(source.rate, recipe.data.max_seconds, max_characters)
    match recipe.data:
        case r.DataSpoken() as d:
            read, valid, test = (
                partial(spoken.read_spoken, part, count=d.count, seed=d.seed, how=how)
                for part in ("train", "valid", "test")
            )
            return Contents(read, spoken.makers(), valid, test)
        case r.DataSounds() as d:
            columns = {"path_column": d.path_column, "text_column": d.text_column}
            read_table = partial(sound.read_sounds, how=how, **columns)
            return _from_paths(
                lambda path: partial(read_table, path), d, partial(sound.sounds_files, **columns)
            )
        case r.DataLjspeech() as d:
            read = partial(sound.read_ljspeech, d.path, how=how)
            files = sound.ljspeech_files(d.path)
            if d.split == "hash":
                return Contents(read, files)
            train, valid, test = (
                partial(read, part=part, shares=(d.valid, d.test)) for part in cache.SPLITS
            )
            return Contents(train, files, valid if d.valid else None, test if d.test else None)
        case r.DataFsdd() as d:
            files = [file for file, *_ in sound.fsdd_files(d.path).named]
            read = partial(sound.read_fsdd, d.path, how=how, hold_out=d.hold_out)
            if not d.usual_test and d.hold_out is None:
                return Contents(read, files)
            train, test = (partial(read, part=part) for part in ("train", "test"))
            if d.voices:
                train = _concatenated(train, partial(spoken.read_digits, count=d.voices, how=how))
                files = [*files, *spoken.makers()]
            return Contents(train, files, test=test)


def _concatenated(*readers: Callable[..., Iterator[Example]]) -> Callable[..., Iterator[Example]]:
    """A reader of the examples of several readers, one after the other."""
    return lambda *, tally: chain.from_iterable(read(tally=tally) for read in readers)


def _columns(
    data: r.DataPairs | r.DataLabelled,
    path: str,
    roles: tables.Roles,
    source: tables.Column,
    target: tables.Column,
) -> tuple[tables.Column, tables.Column]:
    """The columns of one of a section's files: validation and test files have the columns of the
    training file."""
    if path == data.path or not (Path(data.path).is_file() and Path(path).is_file()):
        return source, target
    return tables.same_columns(Path(data.path), Path(path), roles, source, target)


def _both(source: str | None, target: str | None) -> tuple[str, str] | None:
    """Two paths as a pair, or None if one is missing."""
    return None if source is None or target is None else (source, target)


def _from_paths(
    reader: Callable[[str], Callable[..., Iterator[Example]]],
    data: r.DataPairs
    | r.DataCornell
    | r.DataLabelled
    | r.DataText
    | r.DataPictures
    | r.DataSounds
    | r.DataCaptioned,
    files: Callable[[str], list[Path]],
) -> Contents:
    """The contents of a section with a path, and optional paths of validation and test data."""
    valid = None if data.valid_path is None else reader(data.valid_path)
    test = None if data.test_path is None else reader(data.test_path)
    read = reader(data.path)

    all_files = []
    for path in (data.path, data.valid_path, data.test_path):
        if path:
            all_files += files(path)
    return Contents(read, all_files, valid, test)


def corpus(recipe: r.Recipe, tokenizer: tokenizers.Tokenizer | None = None) -> cache.Corpus:
    """The tokenized data of a recipe, from the cache if the same contents were prepared with the
    same settings before. A `tokenizer` must be equal to the one fitted to this data."""
    data = recipe.data
    if isinstance(data, r.DataMedmnist | r.DataSpoken):  # with splits of their own
        valid = test = 0.0
    else:
        valid = data.valid
        test = data.test
    prepared = _prepared(recipe, fit_tokenizer(recipe), valid=valid, test=test)
    if tokenizer is not None and tokenizer.to_json() != prepared.tokenizer.to_json():
        raise DataError(
            "the data is not what the run was trained on: it makes another vocabulary",
            where=getattr(data, "path", data.kind),
            hint="give the data it began with, or train a new run",
        )
    return prepared


def other(recipe: r.Recipe, tokenizer: tokenizers.Tokenizer, path: Path) -> cache.Corpus:
    """All examples of another file, tokenized with an existing tokenizer, as the split `train`. Of
    data with splits of its own, only the last split."""
    data = recipe.data
    data_set = detect.undivided(_recognised(recipe, path))
    section = r.SECTIONS["data"][data_set.kind]
    fields = {name: value for name, value in UNDIVIDED.items() if name in section.model_fields}
    fields |= dict.fromkeys(r.data_fields(section, r.Mark.HELD_OUT))
    fields |= data_set.fields
    if data_set.kind == data.kind:
        data = data.model_copy(update=fields)
    else:
        data = section.model_validate({"kind": data_set.kind} | fields)
    return _prepared(
        recipe.model_copy(update={"data": data}), lambda _: tokenizer, tokenizer=tokenizer.to_json()
    )


def _recognised(recipe: r.Recipe, path: Path) -> detect.DataSet:
    """The kind and fields of other data for a run: as detected, or of the run's kind if its own
    table is detected as the same kind as this one."""
    data = recipe.data
    columns = {name: getattr(data, name) for name in r.data_fields(type(data), r.Mark.COLUMN)}
    recognise = partial(detect.recognise, columns=columns)
    about: dict[str, Any] = {
        "task": recipe.task,
        "source": recipe.source.kind,
        "recipe": f"a run for {recipe.task}",
    }
    try:
        return recognise(path, **about)
    except detect.DoesNotFit as problem:
        own = Path(getattr(data, "path", ""))
        if (
            data.kind not in detect.ROLES
            or not own.is_file()
            or recognise(own).kind != problem.data_set.kind
        ):
            raise
        return recognise(path, **about, kind=data.kind)


def columns_taken(data: r.Data) -> str | None:
    """A line that says which columns or files are used as source and target; None if there is no
    choice."""
    if isinstance(data, r.DataParallel):
        return f"files: source = {Path(data.path).name}, target = {Path(data.target_path).name}"
    if data.kind not in detect.ROLES or not Path(getattr(data, "path", "")).is_file():
        return None
    columns = {name: getattr(data, name) for name in r.data_fields(type(data), r.Mark.COLUMN)}
    return detect.columns_taken(Path(getattr(data, "path", "")), data.kind, columns)


def _prepared(
    recipe: r.Recipe,
    fit: Callable[[Iterator[str]], tokenizers.Tokenizer] | None,
    *,
    tokenizer: object = None,
    valid: float = 0.0,
    test: float = 0.0,
) -> cache.Corpus:
    """The corpus of a recipe's data, from the cache or prepared. `tokenizer` is the JSON of an
    existing tokenizer, with which all data is one split."""
    data = recipe.data
    held = contents(recipe)
    read = held.read
    read_valid = held.valid
    read_test = held.test
    if tokenizer is not None:
        read_valid = read_test = None
        if isinstance(data, r.DataMedmnist | r.DataFlickr8k):
            read = held.test or held.valid or held.read

    if isinstance(data, r.Pictures):
        rules: dict[str, Any] = {"max_source": 1, "max_target": 1}
    elif isinstance(data, r.Sounds | r.Captions):
        rules = {"max_source": 1, "max_target": data.max_target}
    else:
        rules = {
            "max_source": data.max_source,
            "max_target": data.max_target,
            "max_words": data.max_words,
            "drop_unknown": data.drop_unknown,
            "plain_source": isinstance(recipe.source, r.SourceTokens) and recipe.source.plain,
        }

    values = r.values_with(recipe, r.Mark.VOCABULARY)
    if tokenizer is not None:
        values = {key: value for key, value in values.items() if not key.startswith("tokenizer.")}
    key = {
        "content": cache.fingerprint(held.files),
        "tokenizer": tokenizer,
        "recipe": values,
        "parts": [valid, test, read_valid is not None, read_test is not None],
    }
    if names := _names(data, held.files):
        key["names"] = names
    if recipe.task == "blank":
        rules = rules | {"known": 1}

    return cache.prepare(
        lambda tally: read(tally=tally),
        key=key,
        fit=fit,
        folder=disk.cache_folder(),
        valid=valid,
        test=test,
        read_valid=_with_tally(read_valid),
        read_test=_with_tally(read_test),
        form=_form(recipe),
        labels=recipe.task == "classify",
        **rules,
    )


def _names(data: r.Data, files: Sequence[Path]) -> list[str]:
    """Names of the files in the section's folders, relative to them: they may be labels."""
    homes = []
    for field in r.data_fields(type(data), r.Mark.PATH):
        path = getattr(data, field)
        if path and Path(path).is_dir():
            homes.append(Path(path))

    names = []
    for file in files:
        inside = [home for home in homes if home in file.parents]
        names += [file.relative_to(home).as_posix() for home in inside]
    return names


def _with_tally(read: Callable[..., Iterator[Example]] | None) -> Read | None:
    """The same reader with the tally as its positional argument."""
    return None if read is None else lambda tally: read(tally=tally)


def _form(recipe: r.Recipe) -> cache.Form:
    """How the sources are stored in the cache."""
    if isinstance(recipe.source, r.SourceTokens):
        return cache.TOKENS
    if isinstance(recipe.source, r.SourceSound):
        return cache.Form(np.int16)
    return cache.Form(np.uint8, (*recipe.source.size, recipe.source.channels_in))
