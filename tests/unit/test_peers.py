"""The peers work: a comparison with a broken peer is worth nothing."""

from __future__ import annotations

import math

import pytest
import torch

from bench.peers import classic_chatbot
from bench.peers.classic_chatbot import END, PAD, normalise, train

PAIRS = [
    ("Hello.", "Hi there!"),
    ("How are you?", "I'm fine, thanks."),
    ("What is your name?", "My name is Bob."),
    ("Where do you live?", "In a small house."),
    ("Do you like tea?", "No, only coffee."),
    ("What time is it?", "It is late."),
    ("Are you hungry?", "Yes, very."),
    ("Who is that man?", "He is my brother."),
    ("Can you swim?", "Like a fish!"),
    ("Goodbye.", "See you soon."),
]


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small only wait for each other on more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_normalisation():
    assert (
        " ".join(normalise("Café? I don't KNOW, 3 of them..."))
        == "cafe ? i don t know of them . . ."
    )
    assert normalise("") == []


def test_long_pairs_and_rare_words_are_dropped():
    long = " ".join(["word"] * classic_chatbot.MOST_WORDS)
    model = train(
        [("a b", "a"), ("a", "a"), (long, "word")],
        minutes=math.inf,
        width=7,
        least_count=2,
        most_steps=1,
    )
    assert model.words[3:] == [
        "a"
    ]  # "b" is rare, and "word" is only seen in a pair that is too long
    assert model.knows(("a", "a")) and not model.knows(("a b", "a")) and not model.knows(("", "a"))


def test_nats_do_not_depend_on_the_neighbours():
    model = train(PAIRS, minutes=math.inf, width=11, least_count=1, most_steps=1)
    total, count = model.nats(PAIRS)
    alone = [model.nats([pair]) for pair in PAIRS]
    assert count == sum(n for _, n in alone) == sum(len(normalise(reply)) + 1 for _, reply in PAIRS)
    assert total == pytest.approx(sum(nats for nats, _ in alone), rel=1e-5)
    assert (
        0.5 * math.log(len(model.words)) < total / count < 2 * math.log(len(model.words))
    )  # near uniform still


def test_it_attends_to_padding():
    """The defect is there: the same prompt beside a longer one is read differently."""
    model = train(PAIRS, minutes=math.inf, width=11, least_count=1, most_steps=1)
    model.encoder.eval(), model.decoder.eval()
    short, long = (model._ids(PAIRS[i][0]) for i in (0, 1))
    with torch.no_grad():
        (alone, first), (beside, second) = model._read([short]), model._read([long, short])
        one, _ = model.decoder(torch.tensor([END]), first, alone)
        two, _ = model.decoder(torch.tensor([END, END]), second, beside)
    assert PAD == 0 and not torch.allclose(one[0], two[1])
    assert torch.allclose(
        first[:, 0], second[:, 1], atol=1e-6
    )  # the states themselves are the same


@pytest.mark.long
def test_the_classic_learns_ten_pairs_by_heart():
    model = train(PAIRS, minutes=math.inf, width=61, least_count=1, most_steps=400)
    nats, count = model.nats(PAIRS)
    assert nats / count < 0.3, f"{nats / count:.3f} nats a word after {model.steps} steps"
    assert [model.reply(prompt) for prompt, _ in PAIRS] == [
        " ".join(normalise(reply)) for _, reply in PAIRS
    ]
    assert model.reply("Zzz") == ""


@pytest.mark.long
def test_transformers_trains_and_writes():
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    from bench.peers import hf

    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    pairs = [([3 + i, 4 + i, 2], [5 + i, 2]) for i in range(7)]
    model = hf.make(13, 0, pad=0, end=2)
    speed = hf.train_steps(model, tokenizer, pairs, sentences=3, warmup=1, steps=2, seed=0)
    # 7 sentences are batches of 3, 3 and 1, each sentence with 2 target tokens; the first batch is
    # warm-up.
    assert speed.tokens == 8 and speed.rate > 0
    written = hf.greedy(hf.never_end(model), [source for source, _ in pairs], [5] * len(pairs))
    assert [len(answer) for answer in written] == [5] * 7
