"""`regard.show`: an answer as a page, in a notebook or a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import InputError
from regard.pages.attend import Subject, attention_page, measured, name_of
from regard.pages.shell import Page
from regard.values import Answer

if TYPE_CHECKING:
    from regard.bundle import Bundle

EFFECT_CALL = "regard.show(answer, bot, input, effect=True)"


def show(
    answer: Answer | Sequence[Answer],
    bundle: Bundle | None = None,
    input: Any = None,  # noqa: A002 -- what `ask` calls an input
    *,
    effect: bool | None = None,
    layers: Sequence[int] | None = None,
) -> Page:
    """A page of the attention of an answer, or of two answers side by side. A notebook shows it;
    `page.save(path)` writes it to a file.

    answer  of `bot.ask(input, capture="all", alternatives=5)`; without `capture` the page has the
            last layer only
    bundle  the model that answered, with the `input` that it read: adds the picture or sound
    effect  whether to measure the effect of hiding each place, which needs bundle and input; by
            default up to 20,000 tokens x places
    layers  the numbers of the layers to show, from 0; by default all that fit in 25 MB

    >>> regard.show(bot.ask("Are you a robot?", capture="all"))  # doctest: +SKIP
    >>> regard.show(bot.ask("dog.png"), bot, "dog.png")  # doctest: +SKIP
    """
    answers = list(answer) if isinstance(answer, Iterable) else [answer]
    if not 1 <= len(answers) <= 2 or not all(isinstance(each, Answer) for each in answers):
        raise InputError(
            "needs one Answer, or two to compare",
            where="show",
            got=f"{len(answers)} values of type {type(answers[0]).__name__}" if answers else "none",
            hint='as in regard.show(bot.ask("Hello!", capture="all"))',
        )
    if (bundle is None) != (input is None) or (bundle is not None and len(answers) > 1):
        raise InputError(
            "give a model and the input of one answer, or neither",
            where="show",
            hint="as in regard.show(answer, bot, input)",
        )
    if bundle is None:
        subjects = [_without_model(each, effect) for each in answers]
        return attention_page(subjects, layers=layers)
    row = bundle.task.read_one(input)
    subject = Subject(answers[0], name_of(bundle, input), bundle, row)
    subject = measured(subject, effect, EFFECT_CALL)
    return attention_page([subject], layers=layers)


def _without_model(answer: Answer, effect: bool | None) -> Subject:
    """An answer alone, which has to have weights."""
    if effect or answer.weights is None:
        raise InputError(
            "the effect of hiding a place needs the model and the input"
            if effect
            else "this answer has no attention weights; their place takes the effect of "
            "hiding, which needs the model and the input",
            where="show",
            hint=f"as in {EFFECT_CALL}",
        )
    reason = "Effects are measured with the model and the input."
    return Subject(answer, answer.text, effect_reason=reason, effect_command=EFFECT_CALL)
