"""Answers: what belongs to each of their tokens, whole or as a stream, for every kind of task."""

from __future__ import annotations

import dataclasses
import math
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch

from regard import build, recipe
from regard.bundle import Bundle
from regard.errors import InputError, printable
from regard.search import Options, StreamedToken
from regard.tokenizers import (
    BPE,
    END,
    NUM_SPECIAL_TOKENS,
    PAD,
    START,
    UNKNOWN,
    Characters,
    Labels,
    Tokenizer,
    Words,
)
from regard.values import END_NAME, Answer, Piece

WORDS = Words(["one", "two", "three", "four", "five", "six", ",", ".", "!", "(", ")"])
LETTERS = Characters(list(" abcdefghijklm"))
BYTES = BPE.fit(["the quick brown fox"], size=260)
KINDS = Labels(["red", "green", "blue"], text=WORDS)
PICTURE = np.random.default_rng(5).integers(0, 256, (37, 41, 3), np.uint8)
SOUND = (np.random.default_rng(5).standard_normal(5003) * 0.1, 8000)

# a recipe, its tokenizer and an input, and the number of places of the memory
CASES: dict[str, tuple[str, Tokenizer, Any, int | None]] = {
    "words": ("chat-attention", WORDS, "one two, three four five", 6),
    "bytes": ("chat-attention", BYTES, "héllo 😀", 12),
    "letters": ("translate-attention", LETTERS, "abc", 4),
    "transformer": ("chat-transformer", WORDS, "one two", 3),
    "no attention": ("chat-lstm", WORDS, "one two", 3),
    "shortened": ("translate-convolution", WORDS, "one two three four five six", None),
    "caption": ("caption-attention", WORDS, PICTURE, None),
    "label of a picture": ("image-pool", Labels(["a", "b"]), PICTURE, None),
    "label of a text": ("sentiment-transformer", KINDS, "one two three", None),
    "speech": ("speech-attention", LETTERS, SOUND, None),
    "blank": ("blank-transformer", WORDS, "one ___ three", 4),
}
Case = tuple[Bundle, Any, int | None]
SEARCHES = {
    "greedy": Options(max_new_tokens=7),
    "sampling": Options(max_new_tokens=11, do_sample=True, seed=3, temperature=2.0),
    "beam": Options(max_new_tokens=7, num_beams=3, candidates=2),
}


def untrained(name: str, tokenizer: Tokenizer, *changes: str) -> Bundle:
    torch.manual_seed(7)
    chosen = recipe.load(name, changes)
    model = build.model(chosen, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    return Bundle(chosen, build.task(chosen, tokenizer), model.eval())


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    name, tokenizer, given, places = CASES[request.param]
    return untrained(name, tokenizer), given, places


def answers_to(case: Case, options: Options) -> list[Answer]:
    bundle, given, _ = case
    return bundle.candidates([given], options, alternatives=3)[0]


@pytest.mark.parametrize("how", SEARCHES)
def test_everything_has_an_entry_for_each_step(case, how: str):
    is_text = case[0].task.answers_are_text
    for answer in answers_to(case, SEARCHES[how]):
        steps = len(answer.tokens) + (is_text and answer.finish == "stop")
        assert len(answer.pieces) == len(answer.tokens)
        assert "".join(answer.pieces) == answer.text
        assert len(answer.step_names) == len(answer.logprobs) == steps
        assert math.fsum(answer.logprobs) == pytest.approx(answer.score, abs=1e-4)
        if answer.finish == "length":
            assert steps == SEARCHES[how].max_new_tokens

        assert answer.alternatives is not None and len(answer.alternatives) == steps
        for step, logprob, token in zip(
            answer.alternatives, answer.logprobs, answer.tokens, strict=False
        ):
            probabilities = [alternative.probability for alternative in step]
            assert probabilities == sorted(probabilities, reverse=True)
            assert len(step) == 3 or (not is_text and len(step) == 2)  # one case has two labels
            chosen = [other.probability for other in step if other.token == token]
            assert chosen == [] or chosen == [pytest.approx(math.exp(logprob), abs=1e-5)]


def test_weights_are_over_places_that_have_names(case):
    bundle, _, places = case
    (answer, *_) = answers_to(case, SEARCHES["greedy"])
    if answer.weights is None:
        assert not bundle.attends()
    else:
        assert bundle.attends()
        assert answer.weights.shape[::2] == (len(answer.logprobs), len(answer.place_names))
        assert torch.allclose(answer.weights.sum(-1), torch.ones(()), atol=1e-5)
    if places is not None:
        assert len(answer.place_names) == places
    if answer.grid is not None:
        assert len(answer.place_names) == math.prod(answer.grid)


@pytest.mark.parametrize("how", SEARCHES)
def test_the_pieces_of_a_stream_add_up_to_the_answer(case, how: str):
    bundle, given, _ = case
    options = SEARCHES[how]
    answer = bundle.ask(given, options)
    stream = bundle.stream(given, options)
    assert stream.answer is None
    pieces = list(stream)
    assert stream.answer is not None
    assert stream.answer == answer and list(stream) == []
    assert stream.answer.logprobs == pytest.approx(answer.logprobs, abs=1e-5)

    assert [piece.text for piece in pieces if piece.text] == [p for p in answer.pieces if p]
    assert sum((piece.tokens for piece in pieces), ()) == answer.tokens
    assert sum((piece.logprobs for piece in pieces), ()) == pytest.approx(answer.logprobs, abs=1e-5)
    assert all(piece.text for piece in pieces[:-1])
    if answer.weights is not None:
        weights = torch.cat([piece.weights for piece in pieces if piece.weights is not None])
        torch.testing.assert_close(weights, answer.weights)


def test_half_a_character_waits_for_the_rest():
    """Byte by byte: the tokens of a character come in one piece, with a step for each."""
    bundle = untrained("chat-attention", BYTES)
    row = bundle.task.read_one("hello")
    answer = bundle.ask("hello", Options(max_new_tokens=40, min_new_tokens=40, do_sample=True))
    assert answer.text == BYTES.decode(answer.tokens) and len(answer.pieces) == 40

    tokens = BYTES.encode("é😀!") + BYTES.encode("é")[:1]
    weights = torch.rand(len(tokens), 2, len(row) + 1)
    hypothesis = bundle._search([row], Options(), 0, "none")[0][0]
    hypothesis = dataclasses.replace(
        hypothesis,
        tokens=tuple(tokens),
        logprobs=(-1.0,) * len(tokens),
        weights=weights,
        finish="length",
    )

    def streamed(*_: object):
        yield from map(StreamedToken, tokens, hypothesis.logprobs, weights)
        return hypothesis

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bundle, "_search_tokens", streamed)
        pieces = list(bundle.stream("hello"))
    assert [(piece.text, len(piece.tokens)) for piece in pieces] == [
        ("é", 2),
        ("😀", 4),
        ("!", 1),
        ("", 1),
    ]
    assert [len(piece.logprobs) for piece in pieces] == [2, 4, 1, 1]
    whole = torch.cat([piece.weights for piece in pieces if piece.weights is not None])
    torch.testing.assert_close(whole, weights)
    assert str(pieces[1]) == "😀" and f"{pieces[0]}" == "é"


def test_names_of_places():
    shortened = untrained("translate-convolution", WORDS, "encoder.layers=1")
    assert shortened.ask("one two, three four").place_names == (
        "One two",
        ", three",
        "four (end)",
    )
    assert untrained("chat-attention", WORDS).ask("one zwei").place_names == (
        "One",
        "(unknown)",
        "(end)",
    )
    blank = untrained("blank-transformer", WORDS).ask("one ___ three")
    assert blank.place_names == ("One", "___", "three", "(end)")
    caption = untrained("caption-attention", WORDS).ask(PICTURE)
    assert caption.grid is not None
    assert caption.place_names[: caption.grid[1] + 1 : caption.grid[1]] == (
        "row 1, column 1",
        "row 2, column 1",
    )
    speech = untrained("speech-attention", LETTERS).ask(SOUND)
    assert all(name.endswith(" s") and "–" in name for name in speech.place_names)


@pytest.mark.parametrize("name", [n for n in recipe.names() if not n.startswith("reference/")])
def test_every_place_of_every_recipe_has_a_name(name: str):
    """Also beside a longer input, whose places are padding for the shorter one."""
    chosen = recipe.load(name)
    tokenizer: Tokenizer = LETTERS if chosen.task == "speech" else WORDS
    short, long = "one ___", "one two three four ___ five six"
    inputs: list[Any] = [short, long]
    if chosen.source.kind == "sound":
        inputs = [SOUND, (np.tile(SOUND[0], 3), SOUND[1])]
    elif chosen.source.kind != "tokens":
        inputs = [PICTURE, PICTURE]
    if chosen.task == "classify":
        tokenizer = KINDS if chosen.source.kind == "tokens" else Labels(["a", "b"])

    bundle = untrained(name, tokenizer)
    options = Options(max_new_tokens=3)
    for value, answer in zip(inputs, bundle.ask(inputs, options), strict=True):
        assert answer.place_names == bundle.ask(value, options).place_names
        assert all(answer.place_names)
        if answer.weights is not None:
            assert answer.weights.shape[-1] == len(answer.place_names)


@pytest.mark.parametrize("name", ["label of a picture", "label of a text", "blank"])
def test_a_label_is_one_step_and_its_alternatives_are_labels(name: str):
    chosen, tokenizer, given, _ = CASES[name]
    bundle = untrained(chosen, tokenizer)
    many = NUM_SPECIAL_TOKENS + 20
    answer = bundle.ask(given, alternatives=many, capture="all")
    assert answer.finish == "stop" and answer.step_names == answer.pieces == (answer.text,)
    assert answer.logprobs == (answer.score,)
    assert answer.alternatives is not None
    (step,) = answer.alternatives
    assert len(step) == bundle.task.answer_tokenizer.size - NUM_SPECIAL_TOKENS
    assert min(alternative.token for alternative in step) == NUM_SPECIAL_TOKENS
    assert step[0].text == answer.text and sum(label.probability for label in step) == (
        pytest.approx(1)
    )
    assert all(len(layer.weights[0, 0]) == 1 for layer in answer.attention.cross)
    assert len(answer.to_json()["alternatives"]) == len(answer.to_json()["logprobs"]) == 1
    (piece,) = bundle.stream(given)
    assert (piece.text, piece.tokens) == (answer.text, answer.tokens)


def test_a_rank_is_the_score_by_length_unless_repetitions_are_penalised():
    bundle = untrained("chat-attention", WORDS)
    beams = {"num_beams": 3, "candidates": 3, "length_penalty": 0.7, "max_new_tokens": 11}
    beams |= {"mmi_weight": 0.0, "idf_weight": 0.0, "no_repeat_ngram_size": 0}

    def differences(**more: Any) -> list[float]:
        answers = bundle.candidates(["one two"], min_new_tokens=11, **beams, **more)[0]
        ranks = [answer.rank for answer in answers if answer.rank is not None]
        assert len(ranks) == 3 and ranks == sorted(ranks, reverse=True)
        plain = [answer.score / len(answer.logprobs) ** 0.7 for answer in answers]
        return [abs(a - b) for a, b in zip(ranks, plain, strict=True)]

    assert max(differences()) < 1e-4
    assert min(differences(repetition_penalty=3.0)) > 0.01


def test_alternatives_have_the_text_they_would_append():
    bundle = untrained("chat-attention", WORDS)
    answer = bundle.ask("one two", max_new_tokens=5, greedy=True, alternatives=WORDS.size)
    for t, step in enumerate(answer.alternatives or ()):
        assert sum(alternative.probability for alternative in step) == pytest.approx(1)
        special = {alternative.token: alternative.text for alternative in step}
        assert special[END] == END_NAME == "(end)"
        assert [special[token] for token in (PAD, START, UNKNOWN)] == [
            "(padding)",
            "(start)",
            "(unknown)",
        ]
        for alternative in step:
            if alternative.token >= NUM_SPECIAL_TOKENS:
                whole = WORDS.decode([*answer.tokens[:t], alternative.token])
                assert "".join(answer.pieces[:t]) + alternative.text == whole
    wrong: Any
    for wrong in (-1, 1.5, True, "three"):
        with pytest.raises(InputError, match="alternatives: must be a whole number >= 0; got"):
            bundle.ask("one two", alternatives=wrong)
        with pytest.raises(InputError, match="alternatives: must be a whole number >= 0; got"):
            bundle.stream("one two", alternatives=wrong)
    wrong = "some"
    with pytest.raises(InputError, match="no such capture; got some; one of"):
        bundle.ask("one two", capture=wrong)


def test_a_bundle_has_one_tokenizer():
    for name, tokenizer, _, _ in CASES.values():
        bundle = untrained(name, tokenizer)
        assert bundle.tokenizer is bundle.task.tokenizer is tokenizer


# -- in a notebook ---------------------------------------------------------------------------------


class Page(HTMLParser):
    """The visible text of a page, if every element is closed in its order."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs): ...

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_a_notebook_shows_text_and_weights(case):
    (answer, *_) = answers_to(case, SEARCHES["greedy"])
    page = Page(answer._repr_html_())
    assert page.text[0] == printable(answer.text) or not answer.text
    assert ("<svg" in answer._repr_html_()) == (answer.weights is not None)
    assert "script" not in answer._repr_html_()
    assert repr(answer).startswith(f"Answer({answer.text!r}, score ")


def test_markup_in_an_answer_is_only_text():
    evil = "<script>alert(1)</script>&\u202e\n"
    answer = Answer(
        tokens=(5,),
        text=evil,
        score=-1.0,
        pieces=(evil,),
        logprobs=(-1.0,),
        finish="length",
        weights=torch.ones(1, 1, 2) / 2,
        place_names=(evil, '"quoted"'),
    )
    page = answer._repr_html_()
    assert "<script" not in page and "\u202e" not in page and "\n" not in page
    assert "<script>alert(1)" in "".join(Page(page).text)


@pytest.mark.parametrize(
    ("steps", "places", "grid", "note"),
    [
        (97, 1009, None, "each column is the sum of 26 places"),
        (97, 13, None, "the first 40 of 97 tokens"),
        (31, 961, (31, 31), "each cell is the sum of 5 x 5 places"),
        (97, 4, (2, 2), "the first 40 of 97 tokens"),
    ],
)
def test_a_large_picture_is_reduced(steps: int, places: int, grid, note: str):
    answer = Answer(
        tokens=(5,) * steps,
        text="a" * 100_000,
        score=-1.0,
        pieces=("<a long piece of text>",) * steps,
        finish="length",
        weights=torch.full((steps, 2, places), 1 / places),
        place_names=("<a long name of a place>",) * places,
        grid=grid,
    )
    page = answer._repr_html_()
    assert note in page and len(page) < 50_000
    Page(page)


def test_a_piece_prints_as_its_text(capsys):
    print(Piece(" am", (17,)), end="")
    assert capsys.readouterr().out == " am"
