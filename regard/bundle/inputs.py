"""What a model is asked: one input or several, with a history, as files, texts or arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from regard.errors import InputError
from regard.recipe import Recipe, SourceSound
from regard.tasks.conversation import is_conversation
from regard.tasks.sources import needs_array, needs_rate
from regard.tasks.task import is_sound

if TYPE_CHECKING:
    from PIL.Image import Image

Sound: TypeAlias = tuple[np.ndarray | Tensor, float]
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Input: TypeAlias = "str | os.PathLike[str] | np.ndarray | Tensor | Image | Sound"
Turns: TypeAlias = Sequence[str | Mapping[str, Any]]


def is_single(inputs: Any) -> bool:
    """Whether this is one input rather than several. A string is one input although it can be
    iterated over, and so is an array.

    >>> is_single("Hello"), is_single(["Hello"])
    (True, False)
    >>> is_single(np.zeros((8, 8))), is_single((np.zeros(8000), 8000))
    (True, True)
    >>> is_single([{"role": "user", "content": "Hello"}])
    True
    """
    if isinstance(inputs, str | bytes | os.PathLike | np.ndarray | Tensor | Mapping):
        return True
    return is_sound(inputs) or is_conversation(inputs) or not isinstance(inputs, Iterable)


def with_history(recipe: Recipe, value: Any, history: Turns | None) -> Any:
    """An input and the turns before it, as one list of turns."""
    if history is None:
        return value
    if recipe.task != "chat":
        raise InputError(
            "a history is for chats", where="history", got=f"a model for {recipe.task}"
        )
    if isinstance(history, str) or not isinstance(history, Sequence):
        raise InputError(
            "a history is a list of turns", where="history", got=type(history).__name__
        )
    if not isinstance(value, str | Mapping):
        raise InputError(
            "a history goes before one turn", where="history", got=type(value).__name__
        )
    return [*history, value]


def input_list(recipe: Recipe, inputs: Iterable[Any], rate: float | None) -> list[Input | Turns]:
    """Inputs as a list, in which arrays of samples have their rate."""
    batch = list(inputs)
    source = recipe.source
    if not isinstance(source, SourceSound):
        if rate is not None:
            raise InputError(
                "rate is for sounds, and this model reads none", where="ask", got=f"rate={rate}"
            )
        return batch

    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float | np.integer | np.floating)
    ):
        raise InputError(
            "rate must be a number, the samples a second",
            where="ask",
            got=f"rate={rate!r}",
            hint=f"as in rate={source.rate}",
        )
    sounds = []
    for sound in batch:
        if isinstance(sound, np.ndarray | Tensor):
            if rate is None:
                raise needs_rate(sound, source.rate)
            sound = (sound, rate)
        elif isinstance(sound, int | float | np.number | list):
            if len(batch) > 1 or rate is not None or isinstance(sound, list):
                raise needs_array(sound, source.rate)
        elif rate is not None:
            raise InputError(
                "rate is for arrays of samples: a file says its own",
                where="ask",
                got=f"rate={rate}",
            )
        sounds.append(sound)
    return sounds
