"""BLEU and distinct-n as MultiTurnDialogZoo computes them, to compare with its figures on
DailyDialog.

Read from the public repository gmftbyGMFTBY/MultiTurnDialogZoo (`eval.py`, `metric/`, `utils.py`,
`data_loader.py`, March 2020):

    words      lower case; marks apart (nltk's word_tokenize, over text whose marks are apart
               already); a hyphen between letters is a space, "..." a comma
    references are cut to 28 words (`tgt_maxlen` 30, of which one is the start token and one the
               token of the speaker), or to 23 for models that read the history as one text
    BLEU-n     of the whole corpus (the script of Microsoft COCO captions), one reference, no
               smoothing, 0 to 1. Not nltk's sentence BLEU, which the file has too but does not call
    distinct-1 different words / words, over all replies together
    distinct-2 different bigrams / *words* (not bigrams), over all replies joined to one text, so
               with bigrams across the borders of replies
    short      a reply or reference of one word gets a second, "<unk>": the ROUGE that is computed
               before appends it to the same lists
    unknown    words outside the vocabulary (50,000 in `run.sh`, 25,000 in the README) are "<unk>",
               in references too
    length     a reply is greedy, and ends at the length of the longest reference of its batch

Ours (`regard.metrics`) differ: BLEU has sacrebleu's 13a tokens, the case of the texts, exponential
smoothing (which matters only if no n-gram matches) and 0 to 100; distinct-2 divides by bigrams, and
no bigram crosses a border; references are whole.

Left out here: "<unk>" for rare words, which needs their vocabulary, and the limit of length, which
tells the model something about the references. The first makes references a little easier to match
for a model that writes "<unk>"; the second keeps replies from becoming longer than references, for
which BLEU has no other penalty than precision. Both favour their figures, if anything.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from regard.metrics import Statistic

ORDERS = 4  # of BLEU
UNKNOWN = "<unk>"
REFERENCE_WORDS = 28  # after the start token and that of the speaker; the end token is not counted

# nltk's word_tokenize in what matters for chat: contractions are cut, marks are apart.
_CONTRACTION = re.compile(r"(\w)('ll|'re|'ve|n't|'s|'m|'d)(?!\w)")
_TOKEN = re.compile(r"n't(?!\w)|'(?:ll|re|ve|s|m|d)(?!\w)|\w+(?:[./]\w+)*|[^\w\s]")


def words(text: str) -> list[str]:
    """The words of a reply.

    >>> words("I don't know . It's well-known ... Mr.Smith")
    ['i', 'do', "n't", 'know', '.', 'it', "'s", 'well', 'known', ',', 'mr', '.', 'smith']
    """
    text = text.strip().lower().replace("’", "'")
    text = re.sub(r"(\w+)\.(\w+)", r"\1 . \2", text)
    text = re.sub(r"(\w+)-(\w+)", r"\1 \2", text)
    text = text.replace("...", ",")
    return _TOKEN.findall(_CONTRACTION.sub(r"\1 \2", text))


def scores(
    replies: Sequence[str], references: Sequence[str], *, reference_words: int = REFERENCE_WORDS
) -> dict[str, float]:
    """BLEU-1 to BLEU-4 and distinct-1 and -2, with their words, cuts and fillings.

    >>> result = scores(["i do not know"], ["i do not think so"])
    >>> round(result["bleu_1"], 4), result["distinct_2"]
    (0.5841, 0.75)
    """
    written = [_filled(words(reply)) for reply in replies]
    right = [_filled(words(reference)[:reference_words]) for reference in references]
    return bleus(written, right) | distincts(written)


def _filled(tokens: list[str]) -> list[str]:
    return [*tokens, UNKNOWN] if len(tokens) == 1 else tokens


def bleus(replies: Sequence[list[str]], references: Sequence[list[str]]) -> dict[str, float]:
    """BLEU of the whole corpus: geometric mean of the n-gram precisions x brevity penalty."""
    statistics = bleu_statistics(replies, references)
    return {name: statistic.value for name, statistic in statistics.items()}


def bleu_intervals(
    replies: Sequence[str],
    references: Sequence[str],
    clusters: Sequence[int] | None = None,
    *,
    reference_words: int = REFERENCE_WORDS,
) -> dict[str, tuple[float, float] | None]:
    """The 95 % intervals of BLEU-1 to BLEU-4 by bootstrap. Replies with the same number in
    `clusters` are resampled together: those of one dialogue are not independent.

    >>> replies, right = ["i do not know", "yes ."], ["i do not think so", "yes ."]
    >>> low, high = bleu_intervals(replies, right)["bleu_1"]
    >>> round(low, 4), high
    (0.5841, 1.0)
    """
    written = [_filled(words(reply)) for reply in replies]
    right = [_filled(words(reference)[:reference_words]) for reference in references]
    statistics = bleu_statistics(written, right)
    return {name: statistic.interval(clusters) for name, statistic in statistics.items()}


def bleu_statistics(
    replies: Sequence[list[str]], references: Sequence[list[str]]
) -> dict[str, Statistic]:
    """BLEU-1 to BLEU-4 as functions of sums over replies."""
    rows = np.array(
        [_counts(*pair) for pair in zip(replies, references, strict=True)], np.float64
    ).reshape(-1, 2 + 2 * ORDERS)
    return {
        f"bleu_{order}": Statistic(rows, partial(_bleu, order)) for order in range(1, ORDERS + 1)
    }


def _counts(reply: list[str], reference: list[str]) -> list[int]:
    """Words of the reply and of the reference; n-grams of the reply that are in the reference, and
    all, for each n."""
    correct = []
    total = []
    for order in range(1, ORDERS + 1):
        ours, theirs = _ngrams(reply, order), _ngrams(reference, order)
        correct.append((ours & theirs).total())
        total.append(ours.total())
    return [len(reply), len(reference), *correct, *total]


def _bleu(order: int, sums: np.ndarray) -> float:
    length, reference_length = sums[:2].tolist()
    correct, total = np.split(sums[2:], 2)
    product = 1.0
    for ours, of in zip(correct[:order].tolist(), total[:order].tolist(), strict=True):
        product *= ours / of if of else 0.0
    penalty = math.exp(min(0.0, 1 - reference_length / length)) if length else 0.0
    return penalty * product ** (1 / order)


def distincts(replies: Sequence[list[str]]) -> dict[str, float]:
    """Distinct-1 and -2 of all replies as one text, both divided by its words."""
    text = [word for reply in replies for word in reply]
    if not text:
        return {"distinct_1": 0.0, "distinct_2": 0.0}
    return {f"distinct_{order}": len(_ngrams(text, order)) / len(text) for order in (1, 2)}


def _ngrams(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))
