"""Text to numbers and back."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import tokenizers
from regard.errors import BundleError, InputError
from regard.tokenizers import (
    BPE,
    NUM_SPECIAL_TOKENS,
    UNKNOWN,
    Characters,
    Labels,
    Tokenizer,
    Words,
    plain,
)

TEXTS = [
    "I don't know, John.",
    "Do you know what I don't? You know John's mother-in-law...",
    'She said "never", and (maybe) meant it: 1,000 times at 10:30!',
    "Mr. Smith paid $5.00 for the students' books -- all 3 of them.",
    "I've told you, <pad> is not a mark.",
]
PAIRS = Path(__file__).parents[2] / "../shared/data/cornell_pairs/pairs.tsv"

any_text = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates too


@pytest.fixture(scope="module")
def pieces() -> BPE:
    return BPE.fit(TEXTS * 3, size=300)


def fitted() -> list[Tokenizer]:
    return [
        Words.fit(TEXTS),
        Words.fit(TEXTS, lower=False),
        Labels.fit(TEXTS),
        Characters.fit(TEXTS),
        BPE.fit(TEXTS, size=300),
    ]


# Bytes that are no UTF-8: a lone continuation, two beginnings, an overlong form, a surrogate
BAD_BYTES = (b"\x80", b"\xc3\xe2", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf0\x9f", b"\xff")


def any_tokens(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Random tokens, and the tokens of texts with emoji, accents and invalid bytes between them."""
    random = st.lists(st.integers(0, tokenizer.size - 1), max_size=12)
    if not isinstance(tokenizer, BPE):
        return random
    characters = st.sampled_from(["é", "😀", "👩‍🚀", "日本", " a"]).map(tokenizer.encode)
    single_bytes = {text: token for token, text in enumerate(tokenizer._bytes)}
    broken = st.sampled_from(BAD_BYTES).map(lambda text: [single_bytes[bytes([b])] for b in text])
    return st.lists(random | characters | broken, max_size=5).map(lambda parts: sum(parts, []))


def ids(tokenizer: Tokenizer) -> str:
    return tokenizer.kind


# -- laws of every tokenizer------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", fitted(), ids=ids)
class TestEveryCodec:
    def test_json_round_trip(self, tokenizer, tmp_path):
        tokenizers.write(tokenizer, tmp_path / "tokenizer.json")
        again = tokenizers.read(tmp_path / "tokenizer.json")
        assert again.to_json() == tokenizer.to_json()
        assert again.size == tokenizer.size
        assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]

    @given(any_text)
    def test_tokens_lie_in_the_vocabulary_and_no_text_becomes_a_mark(self, tokenizer, text):
        assert all(UNKNOWN <= token < tokenizer.size for token in tokenizer.encode(text))

    @given(st.lists(any_text, max_size=4))
    def test_many_is_one_by_one(self, tokenizer, texts):
        assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]

    @given(st.data())
    def test_pieces_are_what_each_token_appends(self, tokenizer, data):
        tokens = data.draw(any_tokens(tokenizer))
        pieces = list(tokenizer.pieces(tokens))
        assert len(pieces) == len(tokens)
        for n in range(len(tokens) + 1):
            assert tokenizer.decode(tokens[:n]) == "".join(pieces[:n])
        assert not any(0xD800 <= ord(letter) <= 0xDFFF for piece in pieces for letter in piece)

    def test_a_piece_comes_with_its_token(self, tokenizer):
        taken = []

        def arriving():
            for token in tokenizer.encode(TEXTS[0]):
                taken.append(token)
                yield token

        for number, _ in enumerate(tokenizer.pieces(arriving()), 1):
            assert len(taken) == number

    def test_marks_are_ignored(self, tokenizer):
        tokens = tokenizer.encode(TEXTS[0])
        assert tokenizer.decode([1, 0, *tokens, 3, 2, 0]) == tokenizer.decode(tokens)
        assert tokenizer.decode([]) == tokenizer.decode([0, 1, 2, 3]) == ""

    def test_training_text_comes_back(self, tokenizer):
        for text in TEXTS:
            if tokenizer.kind == "words" and "<pad>" in text:
                continue  # words stand apart: "< pad >"
            assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_the_vocabulary_does_not_depend_on_the_order_of_texts(self, tokenizer):
        if tokenizer.kind in ("words", "characters"):
            settings = {"lower": tokenizer.lower}
        else:
            settings = {"size": 300} if tokenizer.kind == "bpe" else {}
        assert type(tokenizer).fit(TEXTS[::-1], **settings).to_json() == tokenizer.to_json()


# -- words------------------------------------------------------------------------------------------


def test_words_are_written_as_usual():
    tokenizer = Words.fit(
        ["You know I do, John.", "Know what? Tell John. I've known.", "WHAT DO YOU KNOW"]
    )
    assert (
        tokenizer.decode(tokenizer.encode("john know what? i've known."))
        == "John know what? I've known."
    )


@pytest.mark.parametrize(
    "text",
    [
        "It's 5%, isn't it?",
        'He said: "No!" (twice); then "Yes."',
        "The students' goin' home, 'cause I'm 'out'.",
        "One/two and $3.50 -- or #4?",
        "Wait... what?!",
        "Mr. Smith lives in the U.S. now.",
        "¿Qué? ¡No! «Oui»",
        "मैं ठीक हूँ।",
    ],
)
def test_words_spacing(text):
    tokenizer = Words.fit([text], lower=False)
    assert tokenizer.decode(tokenizer.encode(text)) == text


word = st.sampled_from(["the", "cat", "don't", "mother-in-law", "John", "I", "3", "1,000"])
sentence = st.tuples(
    st.lists(word, min_size=1, max_size=6), st.sampled_from([".", "?", "!", "..."])
).map(lambda parts: " ".join(parts[0]) + parts[1])


@given(st.lists(sentence, min_size=1, max_size=4).map(" ".join))
def test_words_decode_and_encode_again(text):
    tokenizer = Words.fit([text])
    tokens = tokenizer.encode(text)
    assert tokenizer.encode(tokenizer.decode(tokens)) == tokens
    assert tokenizer.decode(tokens).lower() == text.lower()


def test_words_size_counts_and_ties():
    tokenizer = Words.fit(["b b a a c d d d"], size=NUM_SPECIAL_TOKENS + 3)
    assert tokenizer.words == ("d", "a", "b")
    assert tokenizer.encode("c") == [UNKNOWN]
    assert Words.fit(["b b a"], min_count=2).words == ("b",)


def test_words_fit_forgets_rare_words_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("regard.tokenizers.base.MAX_COUNTED", 50)
    tokenizer = Words.fit(f"often word{i} often" for i in range(1000))
    assert tokenizer.words[0] == "often"
    assert tokenizer.size < 100


@pytest.mark.skipif(not PAIRS.exists(), reason="../shared/data/cornell_pairs is not here")
def test_words_on_real_dialogue():
    lines = [
        " ".join(side.split())
        for row in PAIRS.read_text("utf-8").split("\n")[:3000]
        for side in row.split("\t")
    ]
    lines = [line for line in lines if line]
    tokenizer = Words.fit(lines)
    back = [tokenizer.decode(tokenizer.encode(line)) for line in lines]
    letters = [re.sub(r"[\W_]", "", line.lower()) for line in lines]
    assert [re.sub(r"[\W_]", "", line.lower()) for line in back] == letters
    exact = sum(a == b for a, b in zip(lines, back, strict=True)) / len(lines)
    assert exact > 0.75  # the others differ in a space or in the case of a word


# -- characters and pieces--------------------------------------------------------------------------


@given(st.text(max_size=40))
def test_characters_round_trip(text):
    tokenizer = Characters.fit([text])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_characters_lower_and_unknown():
    tokenizer = Characters.fit(["Aab"], lower=True)
    assert tokenizer.characters == ("a", "b")
    assert tokenizer.encode("ABC") == [4, 5, UNKNOWN]
    assert Characters.fit(["aab"], min_count=2).characters == ("a",)


@given(text=any_text)
def test_pieces_round_trip(pieces, text):
    tokens = pieces.encode(text)
    assert UNKNOWN not in tokens
    assert pieces.decode(tokens) == re.sub("[\ud800-\udfff]", "\ufffd", text)


@pytest.mark.parametrize("text", ["<pad>", "mark pad", "mark end", "[UNK]", "<|endoftext|>", "<s>"])
def test_pieces_never_make_a_mark_of_text(text):
    tokenizer = BPE.fit([text] * 50, size=400)  # often enough to become a piece of its own
    assert min(tokenizer.encode(text)) >= NUM_SPECIAL_TOKENS
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_pieces_wait_for_the_whole_character(pieces):
    tokens = pieces.encode("é😀")
    assert [pieces.decode(tokens[:n]) for n in range(len(tokens) + 1)] == [
        "",
        "",
        "é",
        "é",
        "é",
        "é",
        "é😀",
    ]


def test_pieces_json_is_that_of_tokenizers(pieces):
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(json.dumps(pieces.to_json()))
    assert theirs.encode(TEXTS[2]).ids == pieces.encode(TEXTS[2])
    assert theirs.decode(pieces.encode(TEXTS[2])) == TEXTS[2]


def test_pieces_need_room_for_every_byte():
    with pytest.raises(InputError, match="size: too few pieces; got 100; use 260 or more"):
        BPE.fit(TEXTS, size=100)


# -- tokenizers on disk-----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ("[]", "not a tokenizer; got kind None"),
        ('{"kind": "wrods"}', 'did you mean "words"'),
        ('{"kind": "words"}', "malformed words tokenizer"),
        (
            '{"kind": "words", "lower": true, "words": ["a", "a"], "surface": {}}',
            "an entry occurs twice",
        ),
        (
            '{"kind": "words", "lower": true, "words": ["a", ""], "surface": {}}',
            "non-empty strings",
        ),
        (
            '{"kind": "words", "lower": true, "words": ["a"], "surface": {"a": 1}}',
            "malformed words tokenizer",
        ),
        (
            '{"kind": "characters", "lower": false, "characters": "abc"}',
            "malformed characters tokenizer",
        ),
        ('{"kind": "bpe", "tokenizer": {}}', "malformed bpe tokenizer"),
        (
            '{"kind": "bpe", "tokenizer": {"added_tokens": [], "model": {"type": "BPE"}}}',
            "malformed bpe tokenizer",
        ),
    ],
)
def test_malformed_files_are_named(tmp_path, content, message):
    file = tmp_path / "tokenizer.json"
    file.write_text(content)
    with pytest.raises(BundleError, match="tokenizer.json") as caught:
        tokenizers.read(file)
    assert message in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(BundleError, match="no such tokenizer file"):
        tokenizers.read(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(("old", "new"), [("mark pad", "pad"), ("mark unknown", "!!")])
def test_pieces_without_marks_are_refused(pieces, old, new):
    data = pieces.to_json()
    data["model"]["vocab"][new] = data["model"]["vocab"].pop(old)
    with pytest.raises(BundleError, match="the four special tokens first"):
        tokenizers.load(data)


# -- prompts----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is AI?", "what is ai"),
        ("Hi, How  is\tit going ?!", "hi how is it going"),
        ("“Don’t”, he said…", '"don\'t" he said'),
        ("1,000.50 or 3.5?", "1,000.50 or 3.5"),
        ("Yes. Really.", "yes. really"),
        ("?!", "?!"),
        (",", ","),
        ("  ", "  "),
        ("", ""),
    ],
)
def test_plain(text, expected):
    assert plain(text) == expected


@given(any_text)
def test_plain_is_never_empty_and_plain_already(text):
    once = plain(text)
    assert bool(once) == bool(text)
    assert plain(once) == once


def test_the_file_of_a_bpe_tokenizer_is_one_of_the_library(tmp_path):
    from tokenizers import Tokenizer as HubTokenizer

    tokenizer = BPE.fit(["Hello there, how are you?", "Grüße aus Köln", "hello you"], size=300)
    path = tmp_path / "tokenizer.json"
    tokenizers.write(tokenizer, path)
    other = HubTokenizer.from_file(str(path))
    for text in (
        "Hello, wörld!",
        "how are you",
        "  two  spaces ",
        "日本語 🎉",
        "<pad> mark end",
        "",
    ):
        assert other.encode(text).ids == tokenizer.encode(text)
        assert other.decode(tokenizer.encode(text)) == text
