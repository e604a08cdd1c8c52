"""The word of a blank is never seen, and what is asked in words is what is learned in numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard import build, recipe
from regard.decoders import ClassifierDecoder
from regard.encoders import BlankEncoder
from regard.errors import BundleError, InputError
from regard.frontends import Tokens
from regard.layers.recurrent import Recurrent
from regard.tasks.blank import Blank
from regard.tokenizers import NUM_SPECIAL_TOKENS, START, UNKNOWN, Characters, Words
from tests.laws.variants import ENCODERS, INPUTS, WIDTH
from tests.tiny import PAIRS

RECIPES = ["blank-rnn", "blank-transformer"]
TEXTS = [f"{prompt} {reply}" for prompt, reply in PAIRS]
TEXTS += [
    '"Why," asked Mr. Smith of the U.S. team, "is it 10:30?"',
    "It's the students' five-year-old -- so what...?",
]
TEXTS += ["It was _very_ good."]
TOKENIZER = Words.fit(TEXTS)


def made(name: str, *changes: str):
    chosen = recipe.load(
        name,
        ["encoder.width=14", "encoder.embedding_width=11"][: 1 + name.endswith("rnn")]
        + list(changes),
    )
    model = (
        build.model(chosen, vocabulary=TOKENIZER.size, source_vocabulary=TOKENIZER.size)
        .double()
        .eval()
    )
    task = build.task(chosen, TOKENIZER)
    assert isinstance(task, Blank)
    return model, task


def rows() -> list[np.ndarray]:
    return [np.asarray(TOKENIZER.encode(text)) for text in TEXTS]


@pytest.mark.parametrize("name", RECIPES)
def test_another_hidden_word_changes_nothing(name: str):
    """At every blank of every sentence: whatever word is hidden, the scores are the same to the
    last bit."""
    model, task = made(name)
    for row in rows():
        for at in task.blanks(row):
            hidden, other = np.array(row), np.array(row)
            hidden[at] = START
            other[at] = NUM_SPECIAL_TOKENS + (row[at] + 7) % (TOKENIZER.size - NUM_SPECIAL_TOKENS)
            first, second = task.batch([hidden], [row]), task.batch([hidden], [other])
            assert first.targets.item() == row[at] and second.targets.item() == other[at]
            scores = [model(batch.raw, batch.mask, batch.tokens) for batch in (first, second)]
            assert torch.equal(*scores)
            assert (scores[0][0, 0, NUM_SPECIAL_TOKENS:].softmax(-1) > 0).all()


@pytest.mark.parametrize("name", RECIPES)
def test_no_gradient_reaches_the_hidden_word_as_input(name: str):
    """Words stand once in these sentences, so a gradient of the hidden one's input vector could
    only come from the blank. The vectors that score it are others here."""
    model, task = made(name, "decoder.tied=false")
    row = np.array(sorted(set(rows()[1].tolist())))
    at = int(task.blanks(row)[1])
    hidden = np.array(row)
    hidden[at] = START
    model.loss(*task.batch([hidden], [row]))[0].backward()
    assert isinstance(model.frontend, Tokens)
    gradient = model.frontend.embedding.weight.grad
    assert gradient is not None
    assert (
        (gradient[row[at]] == 0).all()
        and (gradient[row[at - 1]] != 0).any()
        and (gradient[row[at + 1]] != 0).any()
    )


@pytest.mark.parametrize("encoder", [name for name in ENCODERS if name.startswith("blank")])
def test_the_two_way_memory_never_reads_its_own_place(encoder: str):
    """Not even the mark: M[t] depends on every other place and not on t (in one direction, on
    those before it)."""
    torch.manual_seed(3)
    from regard.values import Source

    reads = ENCODERS[encoder]().double().eval()
    features = torch.randn(1, 7, INPUTS, dtype=torch.double, requires_grad=True)
    memory = reads(Source(features, torch.ones(1, 7, dtype=torch.bool)))
    assert memory.states.shape == (1, 7, WIDTH)
    for t in range(7):
        (gradient,) = torch.autograd.grad(memory.states[0, t].sum(), features, retain_graph=True)
        read = (gradient[0] != 0).any(-1).tolist()
        assert read == [s < t or (s > t and not encoder.endswith("1")) for s in range(7)]


def test_it_is_the_formula():
    """e[w] . (W_f h_fwd[t-1] + W_b h_bwd[t+1]) + b[w], with the states of plain torch LSTMs over
    the two halves."""
    model, task = made("blank-rnn")
    row, at = rows()[2], 3
    hidden = np.array(row)
    hidden[at] = START
    batch = task.batch([hidden], [row])
    scores = model(batch.raw, batch.mask, batch.tokens)[0, 0, NUM_SPECIAL_TOKENS:]
    assert isinstance(model.frontend, Tokens)
    assert isinstance(model.encoder, BlankEncoder)
    assert isinstance(model.decoder, ClassifierDecoder)
    e = model.frontend.embedding
    x = e(batch.raw)
    forwards, backwards = (torch.nn.LSTM(11, 7, batch_first=True).double() for _ in range(2))
    for own, plain in zip(model.encoder.directions, (forwards, backwards), strict=True):
        assert isinstance(own, Recurrent)
        plain.load_state_dict(own.layers[0].state_dict())
    before, after = forwards(x[:, :at])[0][0, -1], backwards(x[:, at + 1 :].flip(1))[0][0, -1]
    assert model.decoder.projection is not None
    w_f, w_b = model.decoder.projection.weight.split(7, dim=1)
    wanted = (
        e.weight[NUM_SPECIAL_TOKENS:] @ (w_f @ before + w_b @ after) + model.decoder.output.bias
    )
    torch.testing.assert_close(scores, wanted)


# -- the task---------------------------------------------------------------------------------------


def test_what_is_asked_in_words_is_what_is_judged_in_numbers():
    _, task = made("blank-rnn")
    for text, row in zip(TEXTS, rows(), strict=True):
        shown, right = task.question(text, text)
        batch = task.batch([row], [row])
        raw, mask = task.read([shown])
        assert torch.equal(raw, batch.raw) and torch.equal(mask, batch.mask)
        assert task.tokenizer.encode(right) == [batch.targets.item()] and shown.count("___") == 1
        assert task.place_names(task.read_one(shown)).count("___") == 1


def test_blanks_are_drawn_anew_and_only_known_words():
    _, task = made("blank-rnn", "source.word_dropout=0.3")
    sentence, draw = np.array(TOKENIZER.encode("hush tea, horse hush")), np.random.default_rng(1)
    assert (sentence == UNKNOWN).tolist() == [True, False, False, False, True]
    seen = set()
    for _ in range(60):
        (row,) = task.augment([sentence], draw)
        (at,) = np.flatnonzero(row == START)
        seen.add(int(at))
        assert task.batch([row], [sentence]).targets.item() == sentence[at]
    assert seen == {1, 3}
    assert len({task.fixed(sentence) for _ in range(5)}) == 1
    again = [task.augment([sentence] * 9, np.random.default_rng(5)) for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(*again, strict=True))


def test_a_sentence_without_one_blank_is_refused():
    _, task = made("blank-rnn")
    with pytest.raises(
        InputError, match="a sentence needs one blank; got 'how are you'.*write ___"
    ):
        task.read(["how are you"])
    with pytest.raises(InputError, match="one blank at a time; got '___ are ____', which has 2"):
        task.read(["___ are ____"])
    raw, _ = task.read(["a ___-year-old boy"])
    assert (raw == START).sum() == 1
    with pytest.raises(InputError, match="this model reads text"):
        task.read([7])


def test_a_codec_of_another_kind_is_refused():
    with pytest.raises(BundleError, match="the tokenizer of blanks holds words"):
        build.task(recipe.load("blank-rnn"), Characters("ab"))


def test_among_the_first_five_needs_five():
    _, task = made("blank-rnn")
    five = [["a", "b", "c", "d", "e"], ["f", "g", "h", "i", "j"]]
    assert task.judge(five, [["a"], ["g"]]).numbers == {"accuracy": 0.5, "accuracy_at_5": 1.0}
    assert task.judge([row[:1] for row in five], [["a"], ["g"]]).numbers == {"accuracy": 0.5}
