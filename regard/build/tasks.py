"""Build the task of a recipe, and its search options."""

from __future__ import annotations

from regard import recipe as r
from regard import tokenizers
from regard.build.models import longest_source
from regard.errors import BundleError
from regard.tasks.blank import Blank
from regard.tasks.caption import Caption
from regard.tasks.chat import Chat
from regard.tasks.classify import Classify
from regard.tasks.sources import PictureSource, SoundSource, Source, TextSource
from regard.tasks.speech import Speech
from regard.tasks.task import Task
from regard.tasks.translate import Translate

TASKS: dict[str, type[Task]] = {
    "chat": Chat,
    "translate": Translate,
    "classify": Classify,
    "speech": Speech,
    "caption": Caption,
    "blank": Blank,
}
LONGEST_PROMPT = 1000  # tokens
LONGEST_SOUND = 60.0  # seconds


def task(recipe: r.Recipe, tokenizer: tokenizers.Tokenizer) -> Task:
    """The task of a recipe, with its tokenizer and its source."""
    if isinstance(recipe.data, r.Sounds):
        filled = recipe.data.max_target if recipe.data.count_padding else None
        return Speech(tokenizer=tokenizer, source=_sound(recipe), filled=filled)

    source = _source(recipe, tokenizer)
    if recipe.task == "classify":
        if not isinstance(tokenizer, tokenizers.Labels):
            raise BundleError(
                "the tokenizer of a classifier holds labels", where="tokenizer", got=tokenizer.kind
            )
        return Classify(tokenizer=tokenizer, source=source)

    if isinstance(source, PictureSource):
        return Caption(tokenizer=tokenizer, source=source)
    assert isinstance(source, TextSource)  # recipes with other sources are rejected

    if recipe.task == "blank":
        if not isinstance(tokenizer, tokenizers.Words):
            raise BundleError(
                "the tokenizer of blanks holds words", where="tokenizer", got=tokenizer.kind
            )
        return Blank(tokenizer=tokenizer, source=source)

    if recipe.task == "chat":
        return Chat(tokenizer=tokenizer, source=source)
    return Translate(tokenizer=tokenizer, source=source)


def _sound(recipe: r.Recipe) -> SoundSource:
    """The source of a speech task. Sounds may be longer than in training, unless positions are
    learned or the number of frames is fixed."""
    assert isinstance(recipe.source, r.SourceSound) and isinstance(recipe.data, r.Sounds)
    max_seconds = recipe.data.max_seconds
    if not _has_learned_positions(recipe) and recipe.source.frames is None:
        max_seconds = max(max_seconds, LONGEST_SOUND)
    return SoundSource(
        rate=recipe.source.rate,
        max_seconds=max_seconds,
        seconds_a_place=recipe.source.seconds_a_place,
        speed_perturbation=recipe.source.speed_perturbation,
        trim=recipe.source.trim,
        spectral_tilt=recipe.source.spectral_tilt,
        noise=recipe.source.noise,
    )


def _has_learned_positions(recipe: r.Recipe) -> bool:
    return (
        isinstance(recipe.encoder, r.EncoderTransformer) and recipe.encoder.positions == "learned"
    )


def _source(recipe: r.Recipe, tokenizer: tokenizers.Tokenizer) -> Source:
    """The source of a task on pictures or text. A prompt may be longer than in training, unless the
    encoder's positions are learned."""
    assert not isinstance(recipe.source, r.SourceSound)
    if not isinstance(recipe.source, r.SourceTokens):
        s = recipe.source
        return PictureSource(
            size=s.size,
            channels_in=s.channels_in,
            crop=s.fit == "crop",
            random_crop=s.random_crop,
            horizontal_flip=s.horizontal_flip,
        )

    max_source = longest_source(recipe)
    if not _has_learned_positions(recipe):
        max_source = max(max_source, LONGEST_PROMPT)
    return TextSource(
        tokenizer=tokenizer.source_tokenizer,
        plain_source=recipe.source.plain,
        max_source=max_source,
        word_dropout=recipe.source.word_dropout,
        prompt_dropout=recipe.source.prompt_dropout,
        turns=recipe.data.history if recipe.task == "chat" else None,
        max_history=longest_source(recipe),
    )
