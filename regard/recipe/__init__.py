"""Recipes: the complete configuration of a run, in TOML.

A recipe has one section for the data, the tokenizer, the source, the encoder, the decoder, training
and search; `kind` selects the fields of a section. `load` reads a shipped recipe or a file, and
applies overrides:

    load("chat-attention", ["encoder.width=128", "train.minutes=2"])

The docstring of a field is its documentation: docs/recipes.md is generated from them
(`python -m regard.recipe`).
"""

from regard.fields import LARGEST, WIDTH, Section, allowed, shown
from regard.marks import Mark
from regard.recipe.data import READS, Captions, Data, Pictures, Sounds, Texts
from regard.recipe.learning import Train
from regard.recipe.marked import data_fields, marks_of, values_with
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
    "Mark",
    "Pictures",
    "Recipe",
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
    "data_fields",
    "differences",
    "document",
    "is_whole",
    "load",
    "marks_of",
    "names",
    "read_value",
    "resolve_file",
    "shown",
    "text",
    "values_with",
]
