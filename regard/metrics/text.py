"""Scores of texts.

Every score of a text alone counts `words(text)`, whichever model wrote it, so models can be
compared. Scores against references follow their libraries, so papers can be compared with:
sacrebleu's tokens for BLEU and chrF, and for the error rates whatever stands between spaces, case
and marks included. Bland share, repetition and distinct-n mean little alone: people repeat
themselves too, so give the same figure for the references beside them.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from regard.errors import InputError

T = TypeVar("T")

# A word with its inner apostrophes ("don't"), or a run of one mark ("...", ". . .", "--").
_WORD = re.compile(r"\w+(?:'\w+)*|([^\w\s])(?:\s*\1)*")
_SPOKEN = re.compile(r"\w")


def words(text: str) -> list[str]:
    """The words of a text: lower case, marks apart, a run of the same mark one word, spaced or not.

    >>> words("I DON’T know... Ok . . . ?!")
    ['i', "don't", 'know', '...', 'ok', '...', '?', '!']
    """
    plain = unicodedata.normalize("NFC", text).replace("’", "'").lower()
    return ["".join(match.group().split()) for match in _WORD.finditer(plain)]


def perplexity(nats: float, count: float) -> float:
    """exp(nats / count): the number of equally likely choices at each of `count` words.

    `nats` is the total of -ln P. Divide by words that do not depend on the model and models may be
    compared.

    >>> round(perplexity(3 * math.log(20), 3), 9)
    20.0
    """
    if not count > 0:
        raise InputError(
            "perplexity needs something to count", where="perplexity", got=f"count {count}"
        )
    if not nats >= 0:  # also refuses not-a-number
        raise InputError("nats must be 0 or more", where="perplexity", got=nats)
    try:
        return math.exp(nats / count)
    except OverflowError:
        return math.inf


def distinct(texts: Sequence[str], n: int) -> float:
    """Distinct-n: different n-grams / all n-grams, counted over all texts together (Li et al. 2016,
    section 5).

    0 where no text is n words long. It falls as texts get longer or more numerous: compare equal
    numbers of answers.

    >>> distinct(["yes sir", "yes madam"], 1)
    0.75
    """
    _check(texts, "distinct")
    if n < 1:
        raise InputError("n must be 1 or more", where="distinct", got=n)
    grams = [gram for text in texts for gram in _ngrams(words(text), n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def unique_share(texts: Sequence[str]) -> float:
    """Different answers / answers, equal when their words are.

    >>> unique_share(["Yes.", "yes .", "No.", "Why?"])
    0.75
    """
    _check(texts, "unique_share")
    return len({tuple(words(text)) for text in texts}) / len(texts)


def mean_length(texts: Sequence[str]) -> float:
    """Words (and marks) per answer.

    >>> mean_length(["Yes.", "I do not know."])
    3.5
    """
    _check(texts, "mean_length")
    return sum(len(words(text)) for text in texts) / len(texts)


# Matched on words without marks and with apostrophes opened to spaces ("don t"), because some
# models write them so.
#
# Every word can be read in one way only, so the quantifiers are possessive and the time is linear.
# That needs care in two places, because fillers may stand before every phrase: the filler "no" is
# not the "no" of "no idea", and a hedge that opens a phrase ("really not sure") is left to the
# fillers where it is one of them.
_HEDGE = r"(?:(?:really|just|honestly|still|actually|even)[ ])*+"
_OPENING_HEDGE = rf"(?:just|still|even)[ ]{_HEDGE}"
_BLAND = rf"""(?:
    (?:i[ ]{_HEDGE})? (?:don[ ]?t|do[ ]not)[ ]{_HEDGE}know
  | (?:i[ ])? dunno
  | (?:i[ ]{_HEDGE} (?:have|ve[ ]got|ve)[ ]{_HEDGE})? no[ ](?:idea|clue)
  | i[ ](?:haven[ ]?t|have[ ]not|don[ ]?t[ ]have)[ ]
    (?:a|any|the[ ](?:slightest|faintest))[ ](?:idea|clue)
  | (?:(?:i[ ]?m|i[ ]am)[ ]{_HEDGE} | {_OPENING_HEDGE})?
    not[ ]{_HEDGE}(?:so[ ]|too[ ]|quite[ ])?sure
)"""
_FILLER = r"""(?:no(?![ ](?:idea|clue)[ ])|nope|yes|yeah|well|oh|ah|uh|um|er|hm+|so|but|and|look
  |really|honestly|actually|either|yet|maybe|sorry|i[ ]?m[ ]sorry|i[ ]am[ ]sorry|i[ ]mean|i[ ]guess
  |sir|ma[ ]?am|man)"""
_FILLERS = rf"(?:{_FILLER}[ ])*+"
_ONLY_BLAND = re.compile(rf"{_FILLERS}(?:{_BLAND}[ ]{_FILLERS})++", re.VERBOSE)


def bland_share(texts: Sequence[str]) -> float:
    """Share of answers that say nothing but "I don't know".

    An answer is bland when it *consists* of one or more of: (i) don't know / do not know, dunno, (i
    have) no idea or no clue, i haven't a clue, (i'm) not sure; with hedges inside ("really",
    "just") and fillers around ("no", "well", "I'm sorry", "sir"). Case, marks and a lost apostrophe
    ("i don t know") change nothing. An answer that goes on to say anything is not bland: "I don't
    know him." and "I don't know what you mean." name what is not known.

    >>> bland_share(["No, I don't know.", "I don't know him.", "i m not sure .", "Sure!"])
    0.5
    """
    _check(texts, "bland_share")
    return sum(is_bland(text) for text in texts) / len(texts)


def repetition(texts: Sequence[str]) -> float:
    """Share of answers that repeat themselves: an n-gram directly followed by itself, or any
    trigram seen twice.

    Punctuation marks are words, so a single emphatic "No, no." passes and the loop "no, no, no, no"
    does not.

    >>> repetition(["I am am here.", "No, no.", "no, no, no, no", "Yes."])
    0.5
    """
    _check(texts, "repetition")
    return sum(repeats(text) for text in texts) / len(texts)


def spoken(text: str) -> str:
    """The words of a text without its marks, by which copies are recognised.

    >>> spoken("Well , I DON'T know...")
    "well i don't know"
    """
    return " ".join(word for word in words(text) if _SPOKEN.match(word))


def is_prompt_copy(answer: str, prompt: str) -> bool:
    """Whether the words of an answer, three at least, stand in a line of the prompt as one run.
    A line is a turn.

    >>> is_prompt_copy("You like tea?", "Do you like tea, dear?"), is_prompt_copy("Tea?", "Tea?")
    (True, False)
    """
    run = spoken(answer)
    if run.count(" ") < 2:
        return False
    return any(f" {run} " in f" {spoken(line)} " for line in prompt.splitlines())


class SpokenTexts:
    """Texts to compare answers with: `text in texts` is whether one of them has the same words.

    >>> "yes , sir" in SpokenTexts(["Yes, Sir!", "No."])
    True
    """

    def __init__(self, texts: Iterable[str]):
        self._texts = texts

    @cached_property
    def _spoken(self) -> frozenset[str]:
        return frozenset(spoken(text) for text in self._texts)

    def __contains__(self, text: str) -> bool:
        return spoken(text) in self._spoken


def chrf(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """chrF2 of the whole corpus (sacrebleu): F-score, recall weighing double, of character 1- to
    6-grams.

    `references[i]` are the right answers to compare answer i with, one or several; the best of them
    counts.

    >>> chrf(["a dog runs"], [["a dog runs", "the dog is running"]])
    100.0
    """
    from sacrebleu.metrics import CHRF  # slow to import, and most commands do not need it

    return CHRF().corpus_score(list(answers), streams(answers, references, "chrf")).score


def bleu(answers: Sequence[str], references: Sequence[Sequence[str]], order: int = 4) -> float:
    """BLEU of the whole corpus (sacrebleu, 13a tokens): brevity penalty x geometric mean of
    1..`order`-gram precisions.

    `references[i]` are the right answers to compare answer i with, one or several. BLEU-1 is
    `order=1`.

    >>> round(bleu(["the cat sat down"], [["the cat sat"]], order=1), 9)
    75.0
    """
    from sacrebleu.metrics import BLEU

    if order < 1:
        raise InputError("order must be 1 or more", where="bleu", got=order)
    metric = BLEU(max_ngram_order=order, force=True)  # no warning about spaced marks
    return metric.corpus_score(list(answers), streams(answers, references, "bleu")).score


def bleus(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """BLEU-1 to BLEU-4, as captions are judged by.

    >>> scores = bleus(["a dog runs far"], [["a dog runs home", "dogs"]])
    >>> {name: round(score, 6) for name, score in scores.items()}
    {'bleu_1': 75.0, 'bleu_2': 70.710678, 'bleu_3': 62.996052, 'bleu_4': 59.460356}
    """
    return {f"bleu_{order}": bleu(answers, references, order=order) for order in range(1, 5)}


def wer(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Word error rate of the whole corpus (jiwer): substitutions, deletions and insertions / words
    of the references.

    Words are what stands between spaces: normalise both sides first where case and marks should not
    count. Of several references the one with the fewest errors counts. Over 1 where answers are
    much longer than they should be.

    >>> wer(["the cat sat", "a dog"], [["the cat sat"], ["a dog runs"]]) == 1 / 6
    True
    """
    import jiwer

    answers, closest = nearest(answers, references, "wer", str.split)
    return float(jiwer.wer(closest, answers))


def cer(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Character error rate of the whole corpus (jiwer); a space is a character, and a run of spaces
    is one.

    >>> cer(["the cot"], [["the cat"]]) == 1 / 7
    True
    """
    import jiwer

    answers, closest = nearest(answers, references, "cer", str)
    return float(jiwer.cer(closest, answers))


def exact_share(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Share of answers that are one of their references, letter for letter; only the amount of
    space is free.

    >>> exact_share(["Yes.", "no"], [["yes", " Yes. "], ["No"]])
    0.5
    """
    pairs = paired(answers, references, "exact_share")
    return sum(is_exact(answer, group) for answer, group in pairs) / len(answers)


def is_exact(answer: str, references: Sequence[str]) -> bool:
    """Whether an answer is one of its references, see `exact_share`."""
    return single_spaced(answer) in map(single_spaced, references)


def single_spaced(text: str) -> str:
    """The text with every run of white space made one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def nearest(
    answers: Sequence[str],
    references: Sequence[Sequence[str]],
    where: str,
    cut: Callable[[str], Sequence[str]],
) -> tuple[list[str], list[str]]:
    """Every answer, and the one of its references that it has the fewest errors against."""
    from rapidfuzz.distance import Levenshtein

    lines: list[str] = []
    closest: list[str] = []
    for answer, group in paired(answers, references, where):
        lines.append(single_spaced(answer))
        right = [single_spaced(reference) for reference in group]
        own = cut(lines[-1])
        closest.append(min(right, key=lambda text: Levenshtein.distance(cut(text), own)))
    if not any(closest):
        raise InputError(
            "every reference is empty", where=where, hint="an error rate needs something to miss"
        )
    return lines, closest


def _ngrams(sequence: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(sequence[i : i + n]) for i in range(len(sequence) - n + 1)]


def is_bland(text: str) -> bool:
    """Whether a text says nothing but "I don't know", see `bland_share`."""
    bare = re.findall(r"\w+", text.lower())  # the pattern must match all words; marks are ignored
    return _ONLY_BLAND.fullmatch(" ".join(bare) + " ") is not None


def repeats(text: str) -> bool:
    """Whether a text repeats itself, see `repetition`."""
    sequence = words(text)
    # An n-gram of three or more words followed by itself repeats a trigram, so only 1 and 2 need
    # looking at.
    at_once = any(
        sequence[i : i + n] == sequence[i + n : i + 2 * n]
        for n in (1, 2)
        for i in range(len(sequence) - 2 * n + 1)
    )
    trigrams = _ngrams(sequence, 3)
    return at_once or len(set(trigrams)) < len(trigrams)


def streams(answers: Sequence[str], references: Sequence[Sequence[str]], where: str) -> list[Any]:
    """The k-th reference of every answer, for each k, as sacrebleu wants them; None where there are
    fewer (which its types do not say)."""
    groups = [group for _, group in paired(answers, references, where)]
    most = max(map(len, groups))
    return [[group[k] if k < len(group) else None for group in groups] for k in range(most)]


def paired(
    answers: Sequence[T], references: Sequence[Sequence[T]], where: str
) -> list[tuple[T, Sequence[T]]]:
    """Every answer with its references, of which there must be one at least."""
    _check(answers, where)
    if len(answers) != len(references):
        got = f"{len(answers)} answers, {len(references)} lists of references"
        raise InputError("every answer needs its own list of references", where=where, got=got)
    for i, group in enumerate(references):
        if isinstance(group, str) or not group:
            hint = "give a list of one or more texts for each answer"
            raise InputError(
                f"no list of references for answer {i}", where=where, got=repr(group), hint=hint
            )
    return list(zip(answers, references, strict=True))


def _check(texts: Sequence[Any], where: str) -> None:
    if isinstance(texts, str):
        raise InputError(
            "needs a list of texts", where=where, got="one text", hint="put it in a list"
        )
    if not texts:
        raise InputError("needs at least one text", where=where, got="none")
