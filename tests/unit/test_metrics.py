"""Scores: parity with sacrebleu, naive counts, and examples with their counter-examples."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import jiwer
import pytest
import sacrebleu
import sklearn.metrics  # seconds, which would count against the first example of a law
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import metrics
from regard.errors import InputError

few_words = st.lists(st.sampled_from(["a", "b", "c", "."]), max_size=11).map(" ".join)
some_texts = st.lists(few_words, min_size=1, max_size=7)


patient = settings(deadline=None)  # a machine may be busy with something else


def test_importing_is_light():
    code = (
        "import sys, regard.metrics\n"
        "heavy = {'torch', 'sklearn', 'sacrebleu', 'jiwer', 'rapidfuzz'}\n"
        "print(*heavy & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


# words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Rock'n'roll, 'tis 3pm!!!", ["rock'n'roll", ",", "'", "tis", "3pm", "!!!"]),
        ("Well --  go?!", ["well", "--", "go", "?", "!"]),
        ("Cafe\u0301", ["café"]),
        ("Grüße", ["grüße"]),
    ],
)
def test_words(text, expected):
    assert metrics.words(text) == expected


@patient
@given(st.text())
def test_words_lose_only_spaces(text):
    found = metrics.words(text)
    assert not any(part.isspace() or part == "" for part in found)
    assert metrics.words(" ".join(found)) == found  # cutting again changes nothing


# perplexity


@patient
@given(st.integers(1, 10_000), st.integers(1, 97))
def test_perplexity_of_a_uniform_model_is_the_number_of_choices(choices, count):
    assert metrics.perplexity(count * math.log(choices), count) == pytest.approx(choices)


def test_perplexity_has_no_ceiling():
    assert metrics.perplexity(1e6, 1) == math.inf
    assert metrics.perplexity(math.inf, 1) == math.inf


@pytest.mark.parametrize(("nats", "count"), [(1.0, 0), (1.0, -2), (-1.0, 3), (math.nan, 3)])
def test_perplexity_refuses(nats, count):
    with pytest.raises(InputError, match="perplexity"):
        metrics.perplexity(nats, count)


# counts over texts


@patient
@given(some_texts, st.integers(1, 5))
def test_distinct_is_the_naive_count(texts, n):
    seen, total = set(), 0
    for text in texts:
        cut = metrics.words(text)
        for i in range(len(cut)):
            if i + n <= len(cut):
                seen.add(" ".join(cut[i : i + n]))
                total += 1
    assert metrics.distinct(texts, n) == (len(seen) / total if total else 0)


@patient
@given(some_texts)
def test_repetition_is_the_naive_count(texts):
    def naive(w: list[str]) -> bool:
        size = len(w)
        for n in range(1, size + 1):
            for i in range(size - 2 * n + 1):
                if w[i : i + n] == w[i + n : i + 2 * n]:
                    return True
        return any(
            w[i : i + 3] == w[j : j + 3] for i in range(size - 2) for j in range(i + 1, size - 2)
        )

    assert metrics.repetition(texts) == sum(naive(metrics.words(text)) for text in texts) / len(
        texts
    )


@patient
@given(some_texts)
def test_shares_lie_between_zero_and_one_and_doubling_the_texts_keeps_them(texts):
    for share in (metrics.bland_share, metrics.repetition):
        assert 0 <= share(texts) <= 1
        assert share(texts * 2) == pytest.approx(share(texts))
    assert metrics.mean_length(texts * 2) == pytest.approx(metrics.mean_length(texts))
    assert metrics.unique_share(texts * 2) == pytest.approx(metrics.unique_share(texts) / 2)


@pytest.mark.parametrize(
    "text", ["I go and I go and I go", "the the", "to be or not to be or not", "a b a b"]
)
def test_repeats(text):
    assert metrics.repetition([text]) == 1


@pytest.mark.parametrize(
    "text", ["", "No, no.", "Well . . . no", "I know that you know that.", "a b c a b"]
)
def test_does_not_repeat(text):
    assert metrics.repetition([text]) == 0


# bland


@pytest.mark.parametrize(
    "text",
    [
        "I don't know.",
        "I DON’T KNOW!!",
        "i don t know .",  # as the classic normalisation writes it
        "I dont know",
        "I do not know.",
        "Don't know.",
        "Dunno.",
        "I dunno, man.",
        "I have no idea.",
        "I've got no idea, sir.",
        "No idea...",
        "I haven't a clue.",
        "I'm not sure.",
        "i m not sure .",
        "I'm not really sure.",
        "Not sure.",
        "No, I don't know.",
        "Well... I just don't know.",
        "I really don't know, I'm sorry.",
        "I don't really know.",
        "I don't know. I don't know.",
        "I don't know, I'm not sure.",
    ],
)
def test_bland(text):
    assert metrics.bland_share([text]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "...",
        "No.",
        "Well, yes.",
        "I know.",
        "You don't know.",
        "I don't know him.",
        "I don't know what you mean.",
        "I don't know, ask John.",
        "I'm sure.",
        "I'm not sure he did it.",
        "I have an idea.",
        "No idea is a bad idea.",
        "I don't know 3 of them.",
    ],
)
def test_not_bland(text):
    assert metrics.bland_share([text]) == 0


HEDGES = ["really", "just", "honestly", "still", "actually", "even"]
FILLERS = """no|nope|yes|yeah|well|oh|ah|uh|um|er|so|but|and|look|really|honestly|actually
either|yet|maybe|sorry|im sorry|i m sorry|i am sorry|i mean|i guess|sir|ma am|maam|man""".replace(
    "\n", "|"
).split("|")
# A bland phrase is a row of choices; "*" stands for any number of hedges, and "" for nothing.
PHRASES = [
    [["dont", "don t", "do not"], "*", ["know"]],
    [["i"], "*", ["dont", "don t", "do not"], "*", ["know"]],
    [["dunno", "i dunno"]],
    [["no idea", "no clue"]],
    [["i"], "*", ["have", "ve got", "ve"], "*", ["no idea", "no clue"]],
    [
        ["i"],
        ["havent", "haven t", "have not", "dont have", "don t have"],
        ["a", "any", "the slightest", "the faintest"],
        ["idea", "clue"],
    ],
    [["", "im", "i m", "i am"], "*", ["not"], "*", ["", "so", "too", "quite"], ["sure"]],
]


def reached(sentence: list[str], starts: set[int], choices: list[str]) -> set[int]:
    """Where one may stand after one of the choices, which may begin at any of the starts."""
    return {
        start + len(choice.split())
        for start in starts
        for choice in choices
        if sentence[start : start + len(choice.split())] == choice.split()
    }


def reached_by_any(sentence: list[str], starts: set[int], choices: list[str]) -> set[int]:
    """The same after any number of choices, none included."""
    places = set(starts)
    while more := reached(sentence, places, choices) - places:
        places |= more
    return places


def is_bland(sentence: list[str]) -> bool:
    """Every way to read the sentence at once: fillers, then phrases with fillers after each."""
    hums = [word for word in sentence if word[:2] == "hm" and set(word[1:]) == {"m"}]
    fillers = FILLERS + hums
    places = reached_by_any(sentence, {0}, fillers)
    for _ in sentence:
        ends: set[int] = set()
        for phrase in PHRASES:
            inside = places
            for choices in phrase:
                if choices == "*":
                    inside = reached_by_any(sentence, inside, HEDGES)
                else:
                    inside = reached(sentence, inside, list(choices))
            ends |= inside
        places = reached_by_any(sentence, ends, fillers)
        if len(sentence) in places:
            return True
    return False


def test_bland_as_it_is_defined():
    draw = random.Random(7)
    others = [
        "him",
        "hm",
        "hmmm",
        "h",
        "what",
        "i",
        "m",
        "t",
        "don",
        "ve",
        "got",
        "idea",
        "sure",
        "no",
        "not",
    ]
    verdicts = Counter[bool]()
    for _ in range(20_000):
        sentence: list[str] = []
        for _ in range(draw.randrange(1, 5)):
            kind = draw.random()
            if kind < 0.55:
                for choices in draw.choice(PHRASES):
                    some = (
                        draw.choices(HEDGES, k=draw.randrange(3))
                        if choices == "*"
                        else [draw.choice(choices)]
                    )
                    sentence += " ".join(some).split()
            elif kind < 0.9:
                sentence += draw.choice(FILLERS).split()
            else:
                sentence.append(draw.choice(others))
        if draw.random() < 0.3:
            del sentence[draw.randrange(len(sentence))]
        if draw.random() < 0.1:
            draw.shuffle(sentence)
        expected = is_bland(sentence)
        assert bool(metrics.bland_share([" ".join(sentence)])) == expected, sentence
        verdicts[expected] += 1
    assert min(verdicts.values()) > 3_000


@pytest.mark.parametrize(
    "unit",
    [
        "not sure really ",
        "really ",
        "just really ",
        "i m really ",
        "i really ",
        "no ",
        "so just ",
        "i m sorry ",
        "hm ",
    ],
)
@pytest.mark.parametrize("end", ["", "him", "not", "no idea", "i"])
def test_bland_takes_no_longer_than_the_text_is(unit: str, end: str):
    """Words that are fillers and hedges at once can be read in 2^n ways."""
    text = unit * (100_000 // len(unit)) + end
    assert metrics.bland_share([text]) == is_bland((unit * 3 + end).split())


# sacrebleu

ANSWERS = ["the cat sat on the mat", "a dog runs", "he said so yesterday evening"]
REFERENCES = [
    ["the cat is on the mat", "a cat sat on the mat"],
    ["the dog runs"],
    ["he said so last night", "so he said"],
]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_bleu_is_sacrebleus(order):
    sets: Any = [[r[0] for r in REFERENCES], [r[1] if len(r) > 1 else None for r in REFERENCES]]
    theirs = sacrebleu.metrics.BLEU(max_ngram_order=order).corpus_score(ANSWERS, sets).score
    assert metrics.bleu(ANSWERS, REFERENCES, order=order) == pytest.approx(theirs)
    assert 0 < theirs < 100


def test_chrf_is_sacrebleus():
    sets: Any = [[r[0] for r in REFERENCES], [r[1] if len(r) > 1 else None for r in REFERENCES]]
    theirs = sacrebleu.corpus_chrf(ANSWERS, sets).score
    assert metrics.chrf(ANSWERS, REFERENCES) == pytest.approx(theirs)
    assert 0 < theirs < 100


def test_a_missing_second_reference_is_not_an_empty_one():
    assert metrics.chrf(ANSWERS, [[r[0]] for r in REFERENCES]) == pytest.approx(
        sacrebleu.corpus_chrf(ANSWERS, [[r[0] for r in REFERENCES]]).score
    )


def test_bleus_are_the_four_orders():
    assert metrics.bleus(ANSWERS, REFERENCES) == {
        f"bleu_{order}": metrics.bleu(ANSWERS, REFERENCES, order=order) for order in (1, 2, 3, 4)
    }


# error rates


@patient
@given(
    st.lists(st.tuples(few_words, few_words.map(lambda text: "x " + text)), min_size=1, max_size=7)
)
def test_error_rates_are_jiwers(pairs):
    answers, references = ([*side] for side in zip(*pairs, strict=True))
    alone = [[reference] for reference in references]
    assert metrics.wer(answers, alone) == pytest.approx(jiwer.wer(references, answers))
    assert metrics.cer(answers, alone) == pytest.approx(jiwer.cer(references, answers))


def edits(a, b) -> int:
    """Levenshtein's distance, row by row."""
    row = [*range(len(b) + 1)]
    for i, x in enumerate(a):
        diagonal, row[0] = row[0], i + 1
        for j, y in enumerate(b):
            diagonal, row[j + 1] = row[j + 1], min(row[j] + 1, row[j + 1] + 1, diagonal + (x != y))
    return row[-1]


@patient
@given(st.lists(st.tuples(few_words, few_words), min_size=1, max_size=7))
def test_error_rates_are_edits_over_lengths(pairs):
    pairs.append(("one two", "one three"))  # some reference has a word
    answers, references = zip(*pairs, strict=True)
    alone = [[reference] for reference in references]
    by_word = sum(edits(a.split(), r.split()) for a, r in pairs) / sum(
        len(r.split()) for r in references
    )
    assert metrics.wer(answers, alone) == pytest.approx(by_word)
    by_letter = sum(edits(a, r) for a, r in pairs) / sum(map(len, references))
    assert metrics.cer(answers, alone) == pytest.approx(by_letter)


def test_the_nearest_reference_counts():
    assert metrics.wer(["a dog runs"], [["the dog ran off", "a dog ran"]]) == pytest.approx(1 / 3)
    assert metrics.cer(["abcd"], [["xxxx", "abce"]]) == 0.25
    assert metrics.wer(["one two three four"], [["five"]]) == 4  # a rate, not a share


def test_space_is_free_but_case_and_marks_are_not():
    assert metrics.wer(["  a\tdog\n runs"], [["a dog runs"]]) == 0
    assert metrics.cer(["a  dog"], [["a dog"]]) == metrics.cer(["Cafe\u0301"], [["Café"]]) == 0
    assert metrics.wer(["a dog."], [["A dog"]]) == 1
    assert metrics.exact_share(
        [" a  dog", "A dog", "a dog."], [["x", "a dog"]] * 3
    ) == pytest.approx(1 / 3)


def test_an_error_rate_needs_something_to_miss():
    with pytest.raises(InputError, match="wer: every reference is empty"):
        metrics.wer(["a"], [[" "]])
    assert (
        metrics.wer(["a", "b"], [[""], ["b"]]) == 1
    )  # one empty reference among others is an insertion


# classes

CLASSES = ["cat", "dog", "fox"]
some_labels = st.lists(
    st.tuples(st.sampled_from(CLASSES), st.sampled_from(CLASSES)), min_size=1, max_size=23
)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@patient
@given(some_labels)
def test_scores_of_classes_are_the_naive_counts(pairs):
    answers, references = zip(*pairs, strict=True)
    seen, given, right = (
        Counter(references),
        Counter(answers),
        Counter(a for a, r in pairs if a == r),
    )
    each = metrics.per_class(answers, references)
    assert list(each) == sorted({*answers, *references})
    for label, scores in each.items():
        precision, recall = ratio(right[label], given[label]), ratio(right[label], seen[label])
        f1 = ratio(2 * precision * recall, precision + recall)
        assert scores == pytest.approx(
            {"precision": precision, "recall": recall, "f1": f1, "examples": seen[label]}, abs=1e-12
        )
    for name in ("precision", "recall", "f1"):
        mean = sum(scores[name] for scores in each.values()) / len(each)
        assert getattr(metrics, name)(answers, references) == pytest.approx(mean, abs=1e-12)
    assert metrics.accuracy(answers, references) == pytest.approx(right.total() / len(pairs))
    f1_score: Any = sklearn.metrics.f1_score  # its types leave out zero_division=0
    theirs = f1_score(references, answers, average="macro", zero_division=0)
    assert metrics.f1(answers, references) == pytest.approx(theirs, abs=1e-12)


@patient
@given(some_labels)
def test_confusion_counts_every_pair_once(pairs):
    answers, references = zip(*pairs, strict=True)
    found = metrics.confusion(answers, references, classes=CLASSES)
    counts = Counter((r, a) for a, r in pairs)
    assert found == {
        "classes": CLASSES,
        "counts": [[counts[row, column] for column in CLASSES] for row in CLASSES],
    }


def test_named_classes_set_the_order_and_what_is_averaged():
    answers, references = ["a", "b"], ["a", "a"]
    assert metrics.recall(answers, references) == 0.25  # of a and b; b was never right
    assert metrics.recall(answers, references, classes=["b", "c", "a"]) == pytest.approx(0.5 / 3)
    assert metrics.confusion(answers, references, classes=["b", "a"])["counts"] == [[0, 0], [1, 1]]
    assert metrics.confusion([3, 1], [1, 1]) == {"classes": [1, 3], "counts": [[1, 1], [0, 0]]}
    assert metrics.accuracy([1, "a"], [1, "b"]) == 0.5  # of any kind


def test_classes_that_do_not_fit_are_refused():
    with pytest.raises(
        InputError, match="accuracy: every answer needs one reference; got 1 answers, 2 references"
    ):
        metrics.accuracy(["a"], ["a", "b"])
    with pytest.raises(InputError, match="f1: needs at least one answer; got none"):
        metrics.f1([], [])
    with pytest.raises(
        InputError, match="recall: not one of the classes; got 'c'; classes: 'a', 'b'"
    ):
        metrics.recall(["a"], ["c"], classes=["a", "b"])
    with pytest.raises(InputError, match="confusion: a class is named twice"):
        metrics.confusion(["a"], ["a"], classes=["a", "a"])
    with pytest.raises(InputError, match="precision: needs a list of classes; got one text"):
        metrics.precision("ab", "ab")


# what is refused

OVER_TEXTS = [
    metrics.unique_share,
    metrics.mean_length,
    metrics.bland_share,
    metrics.repetition,
    lambda texts: metrics.distinct(texts, 2),
    lambda texts: metrics.bleu(texts, []),
    *(
        lambda texts, score=score: score(texts, [])
        for score in (metrics.chrf, metrics.wer, metrics.cer)
    ),
    lambda texts: metrics.exact_share(texts, []),
    lambda texts: metrics.mean_similarities(texts, []),
]


@pytest.mark.parametrize("score", OVER_TEXTS)
def test_refuses_no_texts_and_a_bare_text(score):
    with pytest.raises(InputError, match="at least one text; got none"):
        score([])
    with pytest.raises(InputError, match="needs a list of texts; got one text; put it in a list"):
        score("yes")


COMPARING = [metrics.bleu, metrics.chrf, metrics.wer, metrics.cer, metrics.exact_share]


@pytest.mark.parametrize("score", COMPARING)
def test_refuses_references_that_do_not_fit(score):
    with pytest.raises(InputError, match="got 2 answers, 1 lists of references"):
        score(["a", "b"], [["a"]])
    with pytest.raises(InputError, match=r"no list of references for answer 1; got \[\]"):
        score(["a", "b"], [["a"], []])
    with pytest.raises(InputError, match="no list of references for answer 0; got 'a'"):
        score(["a"], ["a"])


def test_refuses_orders_below_one():
    with pytest.raises(InputError, match="distinct: n must be 1 or more; got 0"):
        metrics.distinct(["a"], 0)
    with pytest.raises(InputError, match="bleu: order must be 1 or more; got 0"):
        metrics.bleu(["a"], [["a"]], order=0)
