"""Turn tokens: two special tokens of tokenizers for dialogues, and the histories they make."""

import json
from functools import partial

import numpy as np
import pytest
import tokenizers as hub
from hypothesis import given
from hypothesis import strategies as st

from regard import build, recipe, tokenizers
from regard.build.corpora import fit_tokenizer
from regard.data.cache import prepare
from regard.data.examples import Example
from regard.data.replies import replies
from regard.data.rules import Rules
from regard.errors import InputError, RecipeError
from regard.search import Options
from regard.tasks.sources import TextSource
from regard.tokenizers import (
    BPE,
    NUM_SPECIAL_TOKENS,
    OTHER_TURN,
    SELF_TURN,
    UNKNOWN,
    Characters,
    Words,
    join_turns,
    plain,
)

TEXTS = ["mark other", "mark self", "Hello, how are you?", "(other) (self) <other>", "o s"]
FITS = {
    "words": Words.fit,
    "words as written": partial(Words.fit, lower=False),
    "characters": Characters.fit,
    "bpe": partial(BPE.fit, size=300, min_count=1),
}
FITTED = {name: (fit(TEXTS), fit(TEXTS, turns=True)) for name, fit in FITS.items()}


@pytest.fixture(params=FITS)
def pair(request):
    """A tokenizer without turn tokens, and one with them, fitted to the same texts."""
    return FITTED[request.param]


# -- tokenizers-------------------------------------------------------------------------------------


def test_a_tokenizer_without_turn_tokens_is_as_before(pair):
    without, _ = pair
    assert without.turn_tokens == () and without.num_special_tokens == NUM_SPECIAL_TOKENS
    assert "turns" not in without.to_json()
    assert "mark other" not in json.dumps(without.to_json())


def test_turn_tokens_are_two_more_special_tokens(pair):
    without, with_turns = pair
    assert with_turns.turn_tokens == (OTHER_TURN, SELF_TURN) == (4, 5)
    assert with_turns.num_special_tokens == 6
    assert list(with_turns.pieces([OTHER_TURN, SELF_TURN])) == ["", ""]
    if with_turns.kind != "bpe":  # whose size is a limit
        assert with_turns.size == without.size + 2
    for text in TEXTS:
        tokens = with_turns.encode(text)
        assert with_turns.decode([OTHER_TURN, *tokens, SELF_TURN]) == without.decode(
            without.encode(text)
        )


@given(text=st.one_of(st.sampled_from(TEXTS), st.text(max_size=20)))
@pytest.mark.parametrize("name", FITS)
def test_no_text_is_encoded_as_a_turn_token(name, text):
    _, with_turns = FITTED[name]
    for tokens in (with_turns.encode(text), *with_turns.encode_many([text, text])):
        assert not {OTHER_TURN, SELF_TURN} & set(tokens)


def test_turn_tokens_are_saved_and_loaded(pair, tmp_path):
    for tokenizer in pair:
        tokenizers.write(tokenizer, tmp_path / "tokenizer.json")
        again = tokenizers.read(tmp_path / "tokenizer.json")
        assert again.to_json() == tokenizer.to_json()
        assert (again.turns, again.size) == (tokenizer.turns, tokenizer.size)
        assert again.encode(TEXTS[2]) == tokenizer.encode(TEXTS[2])


def test_another_program_loads_bpe_with_turn_tokens(tmp_path):
    _, with_turns = FITTED["bpe"]
    tokenizers.write(with_turns, tmp_path / "tokenizer.json")
    other = hub.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert other.encode(text).ids == with_turns.encode(text)
        assert other.decode(other.encode(text).ids) == text


def test_sizes_include_turn_tokens():
    assert Words.fit(["a b c d"], size=8, turns=True).size == 8
    assert BPE.fit(["a b"], size=262, turns=True).size == 262
    with pytest.raises(InputError, match="use 262 or more"):
        BPE.fit(["a b"], size=261, turns=True)
    with pytest.raises(RecipeError, match="tokenizer.size: data.turns needs two"):
        recipe.load("chat-attention", [*DIALOGUES, "tokenizer.kind=bpe", "tokenizer.size=260"])


DIALOGUES = ["data.kind=dialogues", "data.path=x", "data.turns=3"]


# -- histories--------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    limit=st.integers(1, 40),
)
def test_a_history_loses_its_oldest_turns(lengths, limit):
    turns = [[10 + i] * length for i, length in enumerate(lengths)]
    speakers = ("os" * len(turns))[: len(turns)]
    tokens = join_turns(turns, speakers, limit=limit)
    assert tokens[-lengths[-1] :] == turns[-1]
    kept = [token for token in tokens if token > SELF_TURN]
    count = len(dict.fromkeys(kept))
    assert kept == sum(turns[-count:], [])  # whole turns
    assert len(tokens) == len(kept) + count  # each with its token
    assert len(tokens) <= limit or count == 1
    if count < len(turns):
        assert len(tokens) + 1 + lengths[-count - 1] > limit  # as many as there is room for


def prepared(folder, dialogues, tokenizer, *, turns=3, plain_source=False, **limits):
    defaults = {"valid": 0.0, "test": 0.0, "max_source": 99, "max_target": 99}

    def read(tally):
        for said in dialogues:
            yield from replies(said, tally, history=turns)
        yield Example("A pair\nof two lines", "in a mixture")

    return prepare(
        read,
        key={"tokenizer": tokenizer.to_json()},
        fit=lambda _: tokenizer,
        folder=folder,
        rules=Rules(plain_source=plain_source, **(defaults | limits)),
        dialogues=True,
    )


SAID = [["Hello, you!", "Hi there.", "How are you?", "Fine."], ["Why?", "o s", "Hello, you!"]]


def source_of(tokenizer, **settings):
    defaults = {"plain_source": False, "max_source": 1000, "turns": 3, "max_history": 99}
    return TextSource(tokenizer=tokenizer, **(defaults | settings))


@pytest.mark.parametrize("plain_source", [False, True])
@pytest.mark.parametrize("max_source", [99, 12, 7])
def test_a_corpus_and_a_question_are_encoded_alike(pair, tmp_path, plain_source, max_source):
    _, tokenizer = pair
    corpus = prepared(
        tmp_path, SAID, tokenizer, plain_source=plain_source, max_source=max_source
    ).train
    source = source_of(tokenizer, plain_source=plain_source, max_history=max_source)
    asked = []
    for i in range(len(corpus)):
        row = corpus.source[i]
        assert row[0] in (OTHER_TURN, SELF_TURN) and len(row) <= max_source
        turns = corpus.source_name(i).split("\n")
        if corpus.texts(i).target == "in a mixture":
            turns = [" ".join(turns)]
        assert source.read_one(turns).tolist() == row.tolist()
        asked.append(len(turns))
        last = plain(turns[-1]) if plain_source else turns[-1]
        last_tokens = tokenizer.encode(last)
        assert row[-len(last_tokens) - 1 :].tolist() == [OTHER_TURN, *last_tokens]
    if max_source == 99:
        assert sorted(asked) == [1, 1, 1, 2, 2, 3]


def test_a_history_that_is_cut_to_a_held_out_one_is_not_trained_on(tmp_path):
    tokenizer = Words.fit(["a b c d e f g h"], turns=True)
    long = "a b c d e f g h a b c d e f"
    held_out = [[long, "b", "c"]]  # of which "b" is left
    corpus = prepare(
        lambda tally: replies(["a " + long, "b", "g", "h"], tally, history=3),
        read_valid=lambda tally: replies(held_out[0], tally, history=3),
        key={},
        fit=lambda _: tokenizer,
        folder=tmp_path,
        rules=Rules(valid=0.0, test=0.0, max_source=15, max_target=9),
        dialogues=True,
    )
    rows = [corpus.valid.source[i].tolist() for i in range(len(corpus.valid))]
    assert [OTHER_TURN, *tokenizer.encode("b")] in rows
    assert [corpus.train.texts(i).target for i in range(len(corpus.train))] == ["h"]
    assert corpus.tally.skipped == {"also held out": 1, "too many tokens": 1}


# -- questions--------------------------------------------------------------------------------------


def test_who_speaks(pair):
    _, tokenizer = pair
    source = source_of(tokenizer)
    turns = ["Why?", "o s", "Hello, you!"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
    expected = source.read_one(turns).tolist()
    assert [token for token in expected if token in (4, 5)] == [4, 5, 4]
    system = {"role": "system", "content": "Be kind."}
    for same in (messages, [system, *messages], [*turns[:2], messages[2]], ["older", *turns]):
        assert source.read_one(same).tolist() == expected
    messages[0]["role"] = "assistant"
    assert source.read_one(messages).tolist()[0] == SELF_TURN
    assert source.read_one("Hello,\n you!").tolist() == source.read_one(["Hello, you!"]).tolist()
    assert source.read_one(["Why?", " ", "o s"]).tolist() == [
        *source.read_one("Why?").tolist(),
        *source.read_one("o s").tolist(),
    ]


def test_a_model_without_history_reads_the_last_turn(pair):
    without, _ = pair
    source = source_of(without, turns=1)
    assert source.read_one(["Why?", "o s", "Hello, you!"]).tolist() == without.encode("Hello, you!")


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ([], "the conversation is empty"),
        (["Hi!", ""], "the prompt is empty"),
        (["Hi!", 7, "Hello."], "turn 2 of 3: not a turn; got 7; a turn is a string"),
        ([{"role": "tool", "content": "x"}], "turn 1 of 1: not a turn"),
        ([{"role": "user", "content": None}], "turn 1 of 1: not a turn"),
        ([{"role": "assistant", "content": "x"}], "the last turn is the assistant's"),
        ([{"role": "system", "content": "x"}], "the conversation is empty"),
        (["Hi!", "word " * 2000], "the prompt is too long"),
        (np.zeros(3), "this model reads text"),
        (np.array([1 << 30]), "this model reads text"),
        ({"turns": []}, "this model reads text"),
    ],
)
def test_what_is_not_a_conversation(conversation, message):
    source = source_of(FITTED["words"][1])
    with pytest.raises(InputError, match=message):
        source.read_one(conversation)
    if isinstance(conversation, list):
        with pytest.raises(InputError, match="this model reads text; got list"):
            source_of(FITTED["words"][0], turns=None).read_one(conversation)


def test_long_turns_before_the_last_one_are_left_out():
    source = source_of(FITTED["words"][1], max_history=9)
    expected = source.read_one(["Why?"]).tolist()
    assert source.read_one(["Hi!", "word " * 2000, "Why?"]).tolist() == expected
    assert source.read_one(["Hi!", "word " * 50_000, "Why?"]).tolist() == expected
    alone = source.read_one(["Why?", "you " * 20]).tolist()
    assert len(alone) == 21  # longer than in training, as other prompts may be


def test_dropout_spares_turn_tokens(pair):
    _, tokenizer = pair
    source = source_of(tokenizer, word_dropout=0.999)
    row = source.read_one(["Why?", "o s", "Hello, you!"])
    (dropped,) = source.augment([row], np.random.default_rng(1))
    is_turn = np.isin(row, (OTHER_TURN, SELF_TURN))
    assert (dropped[is_turn] == row[is_turn]).all() and is_turn.sum() == 3
    assert (dropped[~is_turn] == UNKNOWN).any()
    (emptied,) = source_of(tokenizer, prompt_dropout=0.999).augment([row], np.random.default_rng(1))
    assert len(emptied) == 0


def test_places_are_named_and_numbered_by_turn(pair):
    without, tokenizer = pair
    source = source_of(tokenizer)
    row = source.read_one(["Why?", "o s"])
    names = source.place_names(row)
    assert names[0] == "(self)" and names[len(tokenizer.encode("Why?")) + 1] == "(other)"
    numbers = source.turn_of_places(row)
    assert numbers[0] == 0 and numbers[-1] == 1 and sorted(numbers) == numbers
    assert "(self)" not in source_of(without).place_names(np.arange(4, 7))


# -- models-----------------------------------------------------------------------------------------


HEADS = ["encoder.heads=2", "decoder.heads=2"]
ENCODERS = {
    "LSTM": ("chat-lstm", []),
    "LSTM with attention": ("chat-attention", []),
    "GRU": ("chat-gru", []),
    "Transformer": ("chat-transformer", HEADS),
    "linear attention": ("chat-maclaurin", HEADS),
    "convolution": ("translate-convolution", ["task=chat", "tokenizer.kind=words"]),
}


@pytest.fixture(params=ENCODERS)
def bot(request):
    """An untrained chatbot of each encoder, which reads three turns."""
    import torch

    from regard.bundle import Bundle

    name, changes = ENCODERS[request.param]
    tokenizer = FITTED["words"][1]
    small = ["encoder.width=12", "encoder.layers=1"]
    chosen = recipe.load(name, [*changes, *DIALOGUES, *small])
    torch.manual_seed(7)
    model = build.model(chosen, vocabulary=tokenizer.size).eval()
    return Bundle(chosen, build.task(chosen, tokenizer), model)


def test_every_encoder_reads_the_history(bot):
    """Alone and in a batch of histories of other lengths; turn tokens are places like others."""
    histories = [["Hi!"], ["o s", "Hello, how are you?", "Hi!"], ["you", "Hi!"]]
    options = Options(min_new_tokens=4, max_new_tokens=4)
    together = bot.ask(histories, options)
    scores = [answer.score for answer in together]
    assert scores == pytest.approx([bot.ask([each], options)[0].score for each in histories])
    assert len({round(score, 4) for score in scores}) == len(histories)
    for turns, answer in zip(histories, together, strict=True):
        if bot.attends():
            row = bot.task.source.read_one(turns)
            expected = ["(other)", "(self)", "(other)"][-len(turns) :]
            names = " ".join(answer.place_names).split()  # a convolution reads two at a place
            assert [name for name in names if name in expected] == expected
            parts = bot.task.source.turns_of(row, len(answer.place_names))
            assert [part.name for part in parts] == [*expected, "(end)"]


def test_turn_tokens_are_never_generated(bot):
    """However likely they are."""
    import torch

    assert bot.task.special_tokens.never[-2:] == (OTHER_TURN, SELF_TURN)
    with torch.no_grad():
        bias = bot.model.decoder.output.bias
        assert bias is not None
        bias[OTHER_TURN] = bias[SELF_TURN] = 50.0
    for options in (
        Options(),
        Options(num_beams=3),
        Options(do_sample=True, candidates=3),
    ):
        for answer in bot.ask(
            ["Hi!", ["Hello.", "Hi!", "Why?"]], options.replaced(max_new_tokens=5)
        ):
            assert not {OTHER_TURN, SELF_TURN} & set(answer.tokens)


@pytest.mark.parametrize("kind", ["words", "bpe", "characters"])
def test_the_budget_counts_turn_tokens(kind):
    changes = [f"tokenizer.kind={kind}", "tokenizer.size=300"]
    if kind == "characters":
        changes = [f"tokenizer.kind={kind}", "tokenizer.alphabet=abcd"]
    from regard.budget import budget

    chosen = recipe.load("chat-attention", [*DIALOGUES, *changes])
    fit = fit_tokenizer(chosen)
    assert fit is not None
    tokenizer = fit(iter([f"word{i} {i}" for i in range(999)]))
    assert tokenizer.turns
    model = build.model(chosen, vocabulary=tokenizer.size)
    assert budget(chosen).parameters == model.parameter_count
