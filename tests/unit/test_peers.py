"""The other implementations in bench/peers work as they should."""

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
    """More threads only slow down models of this size."""
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
    long = " ".join(["word"] * classic_chatbot.MAX_WORDS)
    model = train(
        [("a b", "a"), ("a", "a"), (long, "word")],
        minutes=math.inf,
        width=7,
        min_count=2,
        max_steps=1,
    )
    # "b" is rare, and "word" occurs only in a pair that is too long.
    assert model.words[3:] == ["a"]
    assert model.knows(("a", "a")) and not model.knows(("a b", "a")) and not model.knows(("", "a"))


def test_nats_do_not_depend_on_the_batch():
    model = train(PAIRS, minutes=math.inf, width=11, min_count=1, max_steps=1)
    total, count = model.nats(PAIRS)
    alone = [model.nats([pair]) for pair in PAIRS]
    assert count == sum(n for _, n in alone) == sum(len(normalise(reply)) + 1 for _, reply in PAIRS)
    assert total == pytest.approx(sum(nats for nats, _ in alone), rel=1e-5)
    uniform = math.log(len(model.words))
    assert 0.5 * uniform < total / count < 2 * uniform  # after one step it is still near uniform


def test_it_attends_to_padding():
    """The defect is kept: padding changes what the decoder makes of a prompt."""
    model = train(PAIRS, minutes=math.inf, width=11, min_count=1, max_steps=1)
    model.encoder.eval()
    model.decoder.eval()
    short, long = (model._ids(PAIRS[i][0]) for i in (0, 1))
    with torch.no_grad():
        memory, hidden = model._read([short])
        padded_memory, padded_hidden = model._read([long, short])
        scores, _ = model.decoder(torch.tensor([END]), hidden, memory)
        padded_scores, _ = model.decoder(torch.tensor([END, END]), padded_hidden, padded_memory)
    assert PAD == 0 and not torch.allclose(scores[0], padded_scores[1])
    # The encoder's states are the same.
    assert torch.allclose(hidden[:, 0], padded_hidden[:, 1], atol=1e-6)


@pytest.mark.long
def test_the_classic_memorises_ten_pairs():
    model = train(PAIRS, minutes=math.inf, width=61, min_count=1, max_steps=400)
    nats, count = model.nats(PAIRS)
    assert nats / count < 0.3, f"{nats / count:.3f} nats a word after {model.steps} steps"
    assert [model.reply(prompt) for prompt, _ in PAIRS] == [
        " ".join(normalise(reply)) for _, reply in PAIRS
    ]
    assert model.reply("Zzz") == ""


@pytest.mark.long
def test_transformers_trains_and_generates():
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    from bench.peers import hf

    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    pairs = [([3 + i, 4 + i, 2], [5 + i, 2]) for i in range(7)]
    model = hf.make(13, 0, pad=0, end=2)
    speed = hf.train_steps(model, tokenizer, pairs, sentences=3, warmup=1, steps=2, seed=0)
    # 7 sentences make batches of 3, 3 and 1; each sentence has 2 target tokens; the first batch is
    # a warm-up step.
    assert speed.tokens == 8 and speed.rate > 0
    answers = hf.greedy(hf.never_end(model), [source for source, _ in pairs], [5] * len(pairs))
    assert [len(answer) for answer in answers] == [5] * 7
