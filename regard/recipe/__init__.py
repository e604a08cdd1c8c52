"""Recipes: the complete configuration of a run, in TOML.

A recipe has one section for the data, the tokenizer, the source, the encoder, the decoder, training
and search; `kind` selects the fields of a section. `load` reads a shipped recipe or a file, and
applies overrides:

    load("chat-attention", ["encoder.width=128", "train.minutes=2"])

The docstring of a field is its documentation: docs/recipes.md is generated from them
(`python -m regard.recipe`).
"""

from regard.fields import LARGEST, WIDTH, Section, allowed, shown
from regard.recipe.data import READS, Captions, Data, Pictures, Sounds, Texts
from regard.recipe.learning import Search, Train
from regard.recipe.page import document
from regard.recipe.parts import (
    Decoder,
    DecoderClassifier,
    DecoderRecurrent,
    DecoderRecurrentCrossAttention,
    DecoderTransformer,
    Encoder,
    EncoderBlank,
    EncoderConvolution,
    EncoderIdentity,
    EncoderRecurrent,
    EncoderTransformer,
    Side,
    Source,
    SourceConvolutions,
    SourcePatches,
    SourceResidual,
    SourceSound,
    SourceTokens,
    Tokenizer,
    TokenizerBPE,
    TokenizerCharacters,
    TokenizerLabels,
    TokenizerWords,
)
from regard.recipe.reading import (
    LARGEST_FILE,
    differences,
    is_whole,
    load,
    names,
    resolve_file,
    text,
)
from regard.recipe.whole import SECTIONS, Recipe, read_value

__all__ = [
    "LARGEST",
    "LARGEST_FILE",
    "READS",
    "SECTIONS",
    "WIDTH",
    "Captions",
    "Data",
    "Decoder",
    "DecoderClassifier",
    "DecoderRecurrent",
    "DecoderRecurrentCrossAttention",
    "DecoderTransformer",
    "Encoder",
    "EncoderBlank",
    "EncoderConvolution",
    "EncoderIdentity",
    "EncoderRecurrent",
    "EncoderTransformer",
    "Pictures",
    "Recipe",
    "Search",
    "Section",
    "Side",
    "Sounds",
    "Source",
    "SourceConvolutions",
    "SourcePatches",
    "SourceResidual",
    "SourceSound",
    "SourceTokens",
    "Texts",
    "Tokenizer",
    "TokenizerBPE",
    "TokenizerCharacters",
    "TokenizerLabels",
    "TokenizerWords",
    "Train",
    "allowed",
    "differences",
    "document",
    "is_whole",
    "load",
    "names",
    "read_value",
    "resolve_file",
    "shown",
    "text",
]
