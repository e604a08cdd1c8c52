"""Build the tokenizer of a recipe and its tokenized corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from regard import disk, tokenizers
from regard import recipe as r
from regard.data import cache, detect
from regard.data.corpus import FREQUENCY, SPLITS, TOKENS, Corpus, Form, Split, read_frequency
from regard.data.encode import TALLY, TOKENIZER
from regard.data.kinds import KINDS, Contents, DataSet, Reader, SourceForm
from regard.data.lines import Tally
from regard.data.places import is_file
from regard.data.preparation import Readers
from regard.data.rules import Rules
from regard.data.sentences import sentences_of
from regard.errors import DataError

# -- tokenizers-------------------------------------------------------------------------------------


def fit_tokenizer(recipe: r.Recipe) -> tokenizers.Fit | None:
    """The fit of the recipe's tokenizer to texts; None if there are only labels."""
    settings = recipe.tokenizer.model_dump(exclude={"kind"})
    if recipe.data.history > 1:
        settings["turns"] = True
    match recipe.tokenizer:
        case r.TokenizerLabels():
            return None
        case r.TokenizerWords() if recipe.task == "blank":
            # A sentence is both source and target, and is counted once.
            return tokenizers.Fit("words", settings, sources_only=True)
        case _:
            return tokenizers.Fit(recipe.tokenizer.kind, settings)


# -- corpora----------------------------------------------------------------------------------------


def corpus(recipe: r.Recipe, tokenizer: tokenizers.Tokenizer | None = None) -> Corpus:
    """The tokenized data of a recipe, from the cache if the same contents were prepared with the
    same settings before. A `tokenizer` must be equal to the one fitted to this data."""
    data = recipe.data
    prepared = _prepared(
        recipe,
        contents(recipe),
        fit=fit_tokenizer(recipe),
        shares=data.shares,
    )
    if tokenizer is not None and tokenizer.to_json() != prepared.tokenizer.to_json():
        raise DataError(
            "the data is not what the run was trained on: it makes another vocabulary",
            where=getattr(data, "path", data.kind),
            hint="give the data it began with, or train a new run",
        )
    return prepared


def opened(recipe: r.Recipe, fingerprint: str, *, check: bool) -> Corpus | None:
    """A corpus that another process has prepared; None if it is not in the cache. With `check` also
    if it is damaged: other processes may have another cache."""
    folder = disk.cache_folder() / fingerprint[:32]
    # A version before this one did not write the frequencies.
    if not all((folder / name).exists() for name in (cache.MANIFEST, FREQUENCY)):
        return None
    if check and cache.fault(folder, fingerprint, dialogues=recipe.data.dialogues) is not None:
        return None
    splits = {
        name: Split.open(folder, name, _form(recipe), dialogues=recipe.data.dialogues)
        for name in SPLITS
    }
    return Corpus(
        **splits,
        tokenizer=tokenizers.read(folder / TOKENIZER),
        tally=Tally.from_json(disk.read_json(folder / TALLY)),
        frequency=read_frequency(folder),
        fingerprint=fingerprint,
    )


def with_tokenizer(recipe: r.Recipe, tokenizer: tokenizers.Tokenizer) -> Corpus:
    """The data of a recipe in its own splits, tokenized with an existing tokenizer."""
    return _prepared(
        recipe,
        contents(recipe),
        fit=lambda _: tokenizer,
        tokenizer=tokenizer.to_json(),
        shares=recipe.data.shares,
    )


def other(recipe: r.Recipe, tokenizer: tokenizers.Tokenizer, path: Path) -> Corpus:
    """All examples of another file, tokenized with an existing tokenizer, as the split `train`. Of
    data with splits of its own, only the last split."""
    data_set = _recognised(recipe, path)
    section = KINDS[data_set.kind].section
    fields = section.undivided() | (data_set.held_out or data_set.fields)
    if data_set.kind == recipe.data.kind:
        data = recipe.data.model_copy(update=fields)
    else:
        limits = {name: getattr(recipe.data, name) for name in _limits(recipe.data, section)}
        data = section.model_validate({"kind": data_set.kind} | limits | fields)

    recipe = recipe.model_copy(update={"data": data})
    splits = contents(recipe)
    last = splits.test or splits.valid or splits.train
    return _prepared(
        recipe,
        Contents(last, splits.files),
        fit=lambda _: tokenizer,
        tokenizer=tokenizer.to_json(),
        shares=(0.0, 0.0),
    )


def _limits(data: r.Data, section: type[r.Section]) -> list[str]:
    """The fields that select examples, and that both kinds of text have."""
    if not isinstance(data, r.Texts):
        return []
    names = (*data.limits(), "turns")
    return [name for name in names if name in section.model_fields and hasattr(data, name)]


def _recognised(recipe: r.Recipe, path: Path) -> DataSet:
    """The kind and fields of other data for a run: as detected, or of the run's kind if its own
    table is detected as the same kind as this one."""
    data = recipe.data
    recognise = partial(detect.recognise, columns=data.columns)
    about: dict[str, Any] = {
        "task": recipe.task,
        "source": recipe.source.kind,
        "recipe": f"a run for {recipe.task}",
    }
    try:
        return recognise(path, **about)
    except detect.DoesNotFit as problem:
        own = Path(getattr(data, "path", ""))
        is_table = KINDS[data.kind].table is not None and is_file(own)
        if not is_table or recognise(own).kind != problem.data_set.kind:
            raise
        return recognise(path, **about, kind=data.kind)


def columns_taken(data: r.Data) -> str | None:
    """A line that says which columns or files are used as source and target; None if there is no
    choice."""
    path = Path(getattr(data, "path", ""))
    if KINDS[data.kind].table is not None and is_file(path):
        return detect.columns_taken(path, data.kind, data.columns)
    return data.note()


def contents(recipe: r.Recipe) -> Contents:
    """The readers and files of a recipe's data; for task "blank", as single sentences."""
    data = recipe.data
    splits = KINDS[data.kind].contents(data, _source_form(recipe))
    if recipe.task != "blank" or data.answer == "blank":
        return splits
    return Contents(sentences_of(splits.train, targets=data.answer == "text"), splits.files)


def _source_form(recipe: r.Recipe) -> SourceForm:
    """The form in which the model reads pictures and sounds."""
    source = recipe.source
    if isinstance(source, r.SourceTokens):
        return SourceForm()
    if isinstance(source, r.SourceSound):
        return SourceForm(rate=source.rate)
    return SourceForm(size=source.size, channels_in=source.channels_in, crop=source.fit == "crop")


def _prepared(
    recipe: r.Recipe,
    splits: Contents,
    *,
    fit: Callable[[Iterator[str]], tokenizers.Tokenizer] | None,
    shares: tuple[float, float],
    tokenizer: object = None,
) -> Corpus:
    """The corpus of a recipe's data, from the cache or prepared. `tokenizer` is the JSON of
    an existing tokenizer, which then takes the place of the recipe's in the fingerprint."""
    data = recipe.data
    limits = data.limits()
    if isinstance(data, r.Texts):
        limits["plain_source"] = isinstance(recipe.source, r.SourceTokens) and recipe.source.plain

    values = r.values_with(recipe, r.Mark.VOCABULARY)
    if tokenizer is not None:
        values = {key: value for key, value in values.items() if not key.startswith("tokenizer.")}
    snapshot = cache.Snapshot(splits.files)
    key = {
        "content": snapshot.fingerprint,
        "tokenizer": tokenizer,
        "recipe": values,
        "parts": [*shares, splits.valid is not None, splits.test is not None],
    }
    if names := _names(data, splits.files):
        key["names"] = names
    if splits.parts:
        key["mixture"] = [
            [len(part.files), part.valid is not None, part.test is not None]
            for part in splits.parts
        ]

    valid, test = shares
    known = 1 if recipe.task == "blank" else 0
    read = [_readers(part) for part in splits.parts] or _with_tally(splits.train)
    return cache.prepare(
        read,
        key=key,
        fit=fit,
        folder=disk.cache_folder(),
        rules=Rules(valid=valid, test=test, known=known, **limits),
        read_valid=None if splits.valid is None else _with_tally(splits.valid),
        read_test=None if splits.test is None else _with_tally(splits.test),
        form=_form(recipe),
        labels=recipe.task == "classify",
        dialogues=data.dialogues,
        data=snapshot,
    )


def _names(data: r.Data, files: Sequence[Path]) -> list[str]:
    """Names of the files in the section's folders, relative to them: they may be labels."""
    folders = [Path(path) for path in data.paths().values() if Path(path).is_dir()]

    names = []
    for file in files:
        above = [folder for folder in folders if folder in file.parents]
        names += [file.relative_to(folder).as_posix() for folder in above]
    return names


def _readers(part: Contents) -> Readers:
    """The readers of a data set in a mixture."""
    separate = {"valid": part.valid, "test": part.test}
    return Readers(
        _with_tally(part.train),
        {split: _with_tally(read) for split, read in separate.items() if read is not None},
        part.share,
    )


def _with_tally(reader: Reader) -> cache.Read:
    """The same reader with the tally as its positional argument."""
    return lambda tally: reader(tally=tally)


def _form(recipe: r.Recipe) -> Form:
    """How the sources are stored in the cache."""
    if isinstance(recipe.source, r.SourceTokens):
        return TOKENS
    if isinstance(recipe.source, r.SourceSound):
        return Form(np.int16)
    return Form(np.uint8, (*recipe.source.size, recipe.source.channels_in))
