"""The only place where the names in a recipe become objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from regard import codecs
from regard import recipe as r
from regard.data import cache, readers
from regard.data.lines import Tally
from regard.data.readers import Example
from regard.decoders import Decoder, RecurrentDecoder, TransformerDecoder
from regard.encoders import ConvolutionEncoder, Encoder, RecurrentEncoder, TransformerEncoder
from regard.errors import DataError
from regard.frontends import Tokens
from regard.layers.positions import Alibi, Learned, NoPositions, Positions, Relative, Rotary, Sinusoidal
from regard.model import Model
from regard.search import Options
from regard.tasks.chat import Chat

LONGEST_PROMPT = 1000  # tokens
Read = Callable[[Tally], Iterator[Example]]


def model(recipe: r.Recipe, *, vocabulary: int) -> Model:
    """The model with its first weights, which the recipe's seed decides."""
    torch.manual_seed(recipe.seed)
    frontend = Tokens(vocabulary=vocabulary, width=recipe.encoder.width, dropout=recipe.source.dropout)
    reads = encoder(recipe, inputs=frontend.width)
    writes = decoder(recipe, vocabulary=vocabulary, memory_width=reads.width, summary_width=reads.summary_width)
    if recipe.decoder.shared:
        frontend.embedding = writes.embedding
    return Model(frontend=frontend, encoder=reads, decoder=writes)


def encoder(recipe: r.Recipe, *, inputs: int) -> Encoder:
    match recipe.encoder:
        case r.EncoderRecurrent() as e:
            return RecurrentEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                cell=e.cell,
                directions=e.directions,
                merge=e.merge,
                dropout=e.dropout,
            )
        case r.EncoderTransformer() as e:
            return TransformerEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                heads=e.heads,
                head_width=e.head_width,
                inner=e.ffn,
                positions=positions(e, longest=recipe.data.max_source + 1),
                norm=e.norm,
                activation=e.activation,
                dropout=e.dropout,
                kernel=e.kernel,
                terms=e.terms,
            )
        case r.EncoderConvolution() as e:
            return ConvolutionEncoder(
                inputs=inputs,
                width=e.width,
                layers=e.layers,
                reach=e.reach,
                activation=e.activation,
                dropout=e.dropout,
            )


def decoder(recipe: r.Recipe, *, vocabulary: int, memory_width: int, summary_width: int) -> Decoder:
    match recipe.decoder:
        case r.DecoderRecurrent() as d:
            return RecurrentDecoder(
                vocabulary=vocabulary,
                width=d.width,
                layers=d.layers,
                memory_width=memory_width,
                summary_width=summary_width,
                cell=d.cell,
                attention=d.attention,
                input_feeding=d.input_feeding,
                dropout=d.dropout,
                tied=d.tied,
            )
        case r.DecoderTransformer() as d:
            longest = 1 + max(recipe.data.max_target, recipe.search.max_new_tokens)
            return TransformerDecoder(
                vocabulary=vocabulary,
                width=d.width,
                layers=d.layers,
                memory_width=memory_width,
                heads=d.heads,
                head_width=d.head_width,
                inner=d.ffn,
                positions=positions(d, longest=longest),
                norm=d.norm,
                activation=d.activation,
                dropout=d.dropout,
                kernel=d.kernel,
                terms=d.terms,
                tied=d.tied,
            )


def positions(section: r.EncoderTransformer | r.DecoderTransformer, *, longest: int) -> Positions:
    match section.positions:
        case "none":
            return NoPositions()
        case "sinusoidal":
            return Sinusoidal(width=section.width)
        case "learned":
            return Learned(width=section.width, longest=longest)
        case "rotary":
            return Rotary(head_width=section.head_width)
        case "alibi":
            return Alibi(heads=section.heads)
        case "relative":
            return Relative(heads=section.heads)


def task(recipe: r.Recipe, codec: codecs.Codec) -> Chat:
    """A prompt may be longer than those of training, unless the encoder has learned a vector for each of its places."""
    learned = isinstance(recipe.encoder, r.EncoderTransformer) and recipe.encoder.positions == "learned"
    longest = recipe.data.max_source if learned else max(recipe.data.max_source, LONGEST_PROMPT)
    return Chat(codec=codec, plain_source=recipe.source.plain, max_source=longest)


def options(search: r.Search) -> Options:
    return Options(**search.model_dump())


def fit_codec(codec: r.Codec) -> Callable[[Iterator[str]], codecs.Codec]:
    settings = codec.model_dump(exclude={"kind"})
    match codec:
        case r.CodecWords():
            return partial(codecs.Words.fit, **settings)
        case r.CodecCharacters():
            return partial(codecs.Characters.fit, **settings)
        case r.CodecPieces():
            return partial(codecs.Pieces.fit, **settings)


def reader(data: r.Data, path: str | None = None) -> Read:
    """What yields the examples of `[data]`, or of another file of the same kind."""
    match data:
        case r.DataChatterbot():
            return lambda tally: readers.read_chatterbot(language=data.language, topics=data.topics, tally=tally)
        case r.DataPairs():
            return lambda tally: readers.read_pairs(
                path or data.path, source_column=data.source_column, target_column=data.target_column, tally=tally
            )
        case r.DataCornell():
            return lambda tally: readers.read_cornell(path or data.path, tally=tally)


def corpus(recipe: r.Recipe, codec: codecs.Codec | None = None) -> cache.Corpus:
    """The recipe's data, tokenised; read from the cache if this content was prepared with these settings before. A
    `codec` that exists already must be the one that this data makes."""
    data, own = recipe.data, _held_out(recipe.data)
    made = _prepared(
        recipe,
        reader(data),
        fit_codec(recipe.codec),
        files=_files(data),
        valid=data.valid,
        test=data.test,
        read_valid=reader(data, own[0]) if own[0] else None,
        read_test=reader(data, own[1]) if own[1] else None,
    )
    if codec is not None and codec.to_json() != made.codec.to_json():
        raise DataError(
            "the data is not what the run was trained on: it makes another vocabulary",
            where=getattr(data, "path", data.kind),
            hint="give the data it began with, or train a new run",
        )
    return made


def other(recipe: r.Recipe, codec: codecs.Codec, path: Path) -> cache.Corpus:
    """All examples of another file, as its `train` part, tokenised with a codec that exists."""
    kind = readers.detect(path)
    if isinstance(recipe.data, r.DataPairs) and kind == "pairs":
        data = recipe.data.model_copy(update={"path": str(path), "valid_path": None, "test_path": None})
    elif kind == "pairs":
        data = r.DataPairs(kind=kind, path=str(path))
    else:
        data = r.DataCornell(kind=kind, path=str(path))
    return _prepared(recipe, reader(data), lambda _: codec, files=_files(data), codec=codec.to_json())


def _held_out(data: r.Data) -> tuple[str | None, str | None]:
    return (None, None) if isinstance(data, r.DataChatterbot) else (data.valid_path, data.test_path)


def _files(data: r.Data) -> list[Path]:
    """Every file that decides what a section [data] holds."""
    if isinstance(data, r.DataChatterbot):
        return readers.chatterbot_files(data.language, data.topics)
    given = (data.path, *_held_out(data))
    return [file for path in given if path for file in readers.files(path)]


def _prepared(
    recipe: r.Recipe,
    read: Read,
    fit: Callable[[Iterator[str]], codecs.Codec],
    *,
    files: list[Path],
    codec: object = None,
    valid: float = 0.0,
    test: float = 0.0,
    read_valid: Read | None = None,
    read_test: Read | None = None,
) -> cache.Corpus:
    data = recipe.data
    rules = {
        "max_source": data.max_source,
        "max_target": data.max_target,
        "max_words": data.max_words,
        "drop_unknown": data.drop_unknown,
        "plain_source": recipe.source.plain,
    }
    key = {
        "content": cache.fingerprint(files),
        "codec": codec or recipe.codec.model_dump(mode="json"),
        "data": data.model_dump(mode="json", exclude={"path", "valid_path", "test_path"}),
        "parts": [valid, test, read_valid is not None, read_test is not None],
        "rules": rules,
    }
    return cache.prepare(
        read,
        key=key,
        fit=fit,
        folder=cache_folder(),
        valid=valid,
        test=test,
        read_valid=read_valid,
        read_test=read_test,
        **rules,
    )


def cache_folder() -> Path:
    """Where tokenised corpora are kept: $REGARD_CACHE, or the usual place for caches."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard")
