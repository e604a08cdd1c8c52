"""`regard.show`: an answer as a page, in a notebook or a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import InputError
from regard.pages.attend import Subject, attention_page, with_effect
from regard.pages.shell import Page
from regard.values import Answer

if TYPE_CHECKING:
    from regard.bundle import Bundle


def show(
    answer: Answer | Sequence[Answer],
    bundle: Bundle | None = None,
    input: Any = None,  # noqa: A002 -- what `ask` calls an input
    *,
    effect: bool = False,
    layers: Sequence[int] | None = None,
) -> Page:
    """A page of the attention of an answer, or of two answers side by side. A notebook shows it;
    `page.save(path)` writes it to a file.

    answer  of `bot.ask(input, capture="all", alternatives=5)`; without `capture` the page has the
            last layer only
    bundle  the model that answered, with the `input` that it read: adds the picture or sound
    effect  also measure the effect of hiding each place, which needs bundle and input
    layers  the numbers of the layers to show, from 0; by default all that fit in 25 MB

    >>> regard.show(bot.ask("Are you a robot?", capture="all"))  # doctest: +SKIP
    >>> regard.show(bot.ask("dog.png"), bot, "dog.png", effect=True)  # doctest: +SKIP
    """
    answers = [answer] if isinstance(answer, Answer) else list(answer)
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
        if effect or answers[0].weights is None:
            raise InputError(
                "the effect of hiding a place needs the model and the input"
                if effect
                else "this answer has no attention weights; their place takes the effect of "
                "hiding, which needs the model and the input",
                where="show",
                hint="as in regard.show(answer, bot, input, effect=True)",
            )
        return attention_page([Subject(each, each.text) for each in answers], layers=layers)
    row = bundle.task.read_one(input)
    name = input if isinstance(input, str) else ""
    subject = Subject(answers[0], name, bundle, row)
    if effect or answers[0].weights is None:
        subject = with_effect(subject)
    return attention_page([subject], layers=layers)
