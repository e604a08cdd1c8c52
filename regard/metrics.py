"""Scores of answers, as pure functions over texts; no torch here.

Every score that counts words counts `words(text)`, whichever model wrote the text, so figures can be compared. Shares
lie in 0..1, BLEU and chrF in 0..100. Bland share, repetition and distinct-n mean little alone: people repeat
themselves too, so give the same figure for the reference answers beside them.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from regard.errors import InputError

# A word with its inner apostrophes ("don't"), or a run of one mark ("...", ". . .", "--").
_WORD = re.compile(r"\w+(?:'\w+)*|([^\w\s])(?:\s*\1)*")


def words(text: str) -> list[str]:
    """The words of a text: lower case, marks apart, a run of the same mark one word, spaced or not.

    >>> words("I DON’T know... Ok . . . ?!")
    ['i', "don't", 'know', '...', 'ok', '...', '?', '!']
    """
    plain = unicodedata.normalize("NFC", text).replace("’", "'").lower()
    return ["".join(found.group().split()) for found in _WORD.finditer(plain)]


def perplexity(nats: float, count: float) -> float:
    """exp(nats / count): between how many equally likely choices the model wavers at each of `count` words.

    `nats` is the total of -ln P. Divide by words that do not depend on the model and models may be compared.

    >>> round(perplexity(3 * math.log(20), 3), 9)
    20.0
    """
    if not count > 0:
        raise InputError("perplexity needs something to count", where="perplexity", got=f"count {count}")
    if not nats >= 0:  # also refuses not-a-number
        raise InputError("nats must be 0 or more", where="perplexity", got=nats)
    try:
        return math.exp(nats / count)
    except OverflowError:
        return math.inf


def distinct(texts: Sequence[str], n: int) -> float:
    """Distinct-n: different n-grams / all n-grams, counted over all texts together (Li et al. 2016, section 5).

    0 where no text is n words long. It falls as texts get longer or more numerous: compare equal numbers of answers.

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


# Matched on words without marks and with apostrophes opened to spaces ("don t"), because some models write them so.
_HEDGE = r"(?:(?:really|just|honestly|still|actually|even)[ ])*"
_BLAND = rf"""(?:
    (?:i[ ]{_HEDGE})? (?:don[ ]?t|do[ ]not)[ ]{_HEDGE}know
  | (?:i[ ])? dunno
  | (?:i[ ]{_HEDGE} (?:have|ve[ ]got|ve)[ ]{_HEDGE})? no[ ](?:idea|clue)
  | i[ ](?:haven[ ]?t|have[ ]not|don[ ]?t[ ]have)[ ](?:a|any|the[ ](?:slightest|faintest))[ ](?:idea|clue)
  | (?:i[ ]?m[ ]|i[ ]am[ ])? {_HEDGE} not[ ]{_HEDGE}(?:so[ ]|too[ ]|quite[ ])?sure
)"""
_FILLER = r"""(?:no|nope|yes|yeah|well|oh|ah|uh|um|er|hm+|so|but|and|look|really|honestly|actually|either|yet|maybe
  |sorry|i[ ]?m[ ]sorry|i[ ]am[ ]sorry|i[ ]mean|i[ ]guess|sir|ma[ ]?am|man)"""
_ONLY_BLAND = re.compile(rf"(?:{_FILLER}[ ])*(?:{_BLAND}[ ](?:{_FILLER}[ ])*)+", re.VERBOSE)


def bland_share(texts: Sequence[str]) -> float:
    """Share of answers that say nothing but "I don't know".

    An answer is bland when it *consists* of one or more of: (i) don't know / do not know, dunno, (i have) no idea or
    no clue, i haven't a clue, (i'm) not sure; with hedges inside ("really", "just") and fillers around ("no", "well",
    "I'm sorry", "sir"). Case, marks and a lost apostrophe ("i don t know") change nothing. An answer that goes on to
    say anything is not bland: "I don't know him." and "I don't know what you mean." name what is not known.

    >>> bland_share(["No, I don't know.", "I don't know him.", "i m not sure .", "Sure!"])
    0.5
    """
    _check(texts, "bland_share")
    return sum(_is_bland(text) for text in texts) / len(texts)


def repetition(texts: Sequence[str]) -> float:
    """Share of answers that repeat themselves: an n-gram directly followed by itself, or any trigram seen twice.

    Marks are words, so a single emphatic "No, no." passes and the loop "no, no, no, no" does not.

    >>> repetition(["I am am here.", "No, no.", "no, no, no, no", "Yes."])
    0.5
    """
    _check(texts, "repetition")
    return sum(_repeats(words(text)) for text in texts) / len(texts)


def chrf(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """chrF2 of the whole corpus (sacrebleu): F-score, recall weighing double, of character 1- to 6-grams.

    `references[i]` are the right answers to compare answer i with, one or several; the best of them counts.

    >>> chrf(["a dog runs"], [["a dog runs", "the dog is running"]])
    100.0
    """
    from sacrebleu.metrics import CHRF  # here and below: a quarter of a second that most commands never need

    return CHRF().corpus_score(list(answers), _streams(answers, references, "chrf")).score


def bleu(answers: Sequence[str], references: Sequence[Sequence[str]], order: int = 4) -> float:
    """BLEU of the whole corpus (sacrebleu, 13a tokens): brevity penalty x geometric mean of 1..`order`-gram precisions.

    `references[i]` are the right answers to compare answer i with, one or several. BLEU-1 is `order=1`.

    >>> round(bleu(["the cat sat down"], [["the cat sat"]], order=1), 9)
    75.0
    """
    from sacrebleu.metrics import BLEU

    if order < 1:
        raise InputError("order must be 1 or more", where="bleu", got=order)
    return BLEU(max_ngram_order=order).corpus_score(list(answers), _streams(answers, references, "bleu")).score


def exact(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Share of answers that are one of their references, to the letter.

    >>> exact(["drei", "vier "], [["drei", "3"], ["vier"]])
    0.5
    """
    _streams(answers, references, "exact")
    return sum(answer in group for answer, group in zip(answers, references, strict=True)) / len(answers)


def confusion(wanted: Sequence[str], answers: Sequence[str], labels: Sequence[str]) -> list[list[int]]:
    """Row i, column j: how often label i was wanted and label j was answered.

    >>> confusion(["cat", "cat", "dog"], ["cat", "dog", "dog"], ["cat", "dog"])
    [[1, 1], [0, 1]]
    """
    _check(answers, "confusion")
    if len(wanted) != len(answers):
        got = f"{len(answers)} answers, {len(wanted)} labels"
        raise InputError("every answer needs the label it should have been", where="confusion", got=got)
    place = {label: i for i, label in enumerate(labels)}
    counts = [[0] * len(labels) for _ in labels]
    for right, answer in zip(wanted, answers, strict=True):
        for label in (right, answer):
            if label not in place:
                raise InputError("no such label", where="confusion", got=label)
        counts[place[right]][place[answer]] += 1
    return counts


def classified(counts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Accuracy, and precision, recall and F1 as the mean over the labels (macro) that were wanted or answered at all;
    a label never answered has precision 0, one never wanted recall 0, as scikit-learn has it.

    >>> {name: round(value, 3) for name, value in classified([[1, 1], [0, 1]]).items()}
    {'accuracy': 0.667, 'precision': 0.75, 'recall': 0.75, 'f1': 0.667}
    """
    total = sum(map(sum, counts))
    if not total:
        raise InputError("nothing was classified", where="classified", got="no counts")
    each = []
    for i, row in enumerate(counts):
        hit, wanted, answered = row[i], sum(row), sum(other[i] for other in counts)
        if wanted or answered:
            each.append((_ratio(hit, answered), _ratio(hit, wanted), _ratio(2 * hit, wanted + answered)))
    names = ("precision", "recall", "f1")
    means = {name: math.fsum(column) / len(each) for name, column in zip(names, zip(*each, strict=True), strict=True)}
    return {"accuracy": sum(row[i] for i, row in enumerate(counts)) / total} | means


def _ratio(a: int, b: int) -> float:
    return a / b if b else 0.0


def _ngrams(sequence: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(sequence[i : i + n]) for i in range(len(sequence) - n + 1)]


def _is_bland(text: str) -> bool:
    bare = re.findall(r"\w+", text.lower())  # every word that is not a mark must be explained by the pattern
    return _ONLY_BLAND.fullmatch(" ".join(bare) + " ") is not None


def _repeats(sequence: list[str]) -> bool:
    # An n-gram of three or more words followed by itself repeats a trigram, so only 1 and 2 need looking at.
    at_once = any(
        sequence[i : i + n] == sequence[i + n : i + 2 * n] for n in (1, 2) for i in range(len(sequence) - 2 * n + 1)
    )
    trigrams = _ngrams(sequence, 3)
    return at_once or len(set(trigrams)) < len(trigrams)


def _streams(answers: Sequence[str], references: Sequence[Sequence[str]], where: str) -> list[Any]:
    # sacrebleu wants the k-th reference of every answer, None where there are fewer (its types do not say so)
    _check(answers, where)
    if len(answers) != len(references):
        got = f"{len(answers)} answers, {len(references)} lists of references"
        raise InputError("every answer needs its own list of references", where=where, got=got)
    for i, group in enumerate(references):
        if isinstance(group, str) or not group:
            hint = "give a list of one or more texts for each answer"
            raise InputError(f"no list of references for answer {i}", where=where, got=repr(group), hint=hint)
    most = max(len(group) for group in references)
    return [[group[k] if k < len(group) else None for group in references] for k in range(most)]


def _check(texts: Sequence[str], where: str) -> None:
    if isinstance(texts, str):
        raise InputError("needs a list of texts", where=where, got="one text", hint="put it in a list")
    if not texts:
        raise InputError("needs at least one text", where=where, got="none")
