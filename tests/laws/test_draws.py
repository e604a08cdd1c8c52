"""A sampled answer depends on its own input and the seed: not on its row, its neighbours, or how
it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard import build, cli, recipe, tokenizers
from regard.bundle import Bundle, create, put_weights
from regard.search import Options
from regard.tasks.chat import Chat
from regard.tasks.sources import TextSource
from regard.weights import tensors
from tests.laws import variants
from tests.laws.variants import DECODERS, VOCABULARY

MARKS = 4
WORDS = [f"w{number}" for number in range(VOCABULARY - MARKS)]
PROMPTS = ["w1", "w2 w3", "w4 w5 w6 w7 w8 w9 w10", "w11", "w2", "w3 w2", "w12 w12 w12"]
SAMPLING = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "all": {
        "temperature": 1.3,
        "top_k": 11,
        "top_p": 0.9,
        "candidates": 3,
        "repetition_penalty": 1.2,
    },
}

FAMILIES = ["recurrent-lstm-general", "transformer-pre-rotary", "transformer-pre-maclaurin-3"]


def of_words(decoder: str) -> Bundle:
    """A model of random weights behind the words w0, w1, …"""
    tokenizer = tokenizers.Words(WORDS)
    task = Chat(
        tokenizer=tokenizer,
        source=TextSource(tokenizer=tokenizer, plain_source=False, max_source=50),
    )
    model = variants.build("recurrent-lstm-2-concatenate", decoder)
    return Bundle(recipe.load("chat-gru"), task, model)


@pytest.mark.parametrize(
    ("decoder", "sampling"),
    [(decoder, "all") for decoder in DECODERS]
    + [(decoder, sampling) for decoder in FAMILIES for sampling in SAMPLING if sampling != "all"],
)
def test_alone_and_in_any_company(decoder: str, sampling: str):
    bundle = of_words(decoder)
    options = Options(do_sample=True, max_new_tokens=13, seed=7, **SAMPLING[sampling])

    def asked(prompts: list[str]) -> list[list[tuple[int, ...]]]:
        return [
            [answer.tokens for answer in answers] for answers in bundle.candidates(prompts, options)
        ]

    alone = {prompt: asked([prompt])[0] for prompt in PROMPTS}
    assert (
        len({tuple(answers) for answers in alone.values()}) > 3
    )  # other inputs draw other numbers
    for company in (PROMPTS, PROMPTS[::-1], [*PROMPTS[3:], *PROMPTS]):
        assert asked(company) == [alone[prompt] for prompt in company]
    for prompt in PROMPTS[:3]:
        assert "".join(map(str, bundle.stream(prompt, options))) == bundle.tokenizer.decode(
            alone[prompt][0]
        )


def test_candidates_of_one_input_differ():
    bundle = of_words("transformer-pre-rotary")
    found = bundle.candidates(
        ["w1"], Options(do_sample=True, candidates=7, max_new_tokens=13, seed=7)
    )
    assert len({answer.tokens for answer in found[0]}) > 1


def test_another_seed_draws_another_answer_and_no_seed_a_new_one_each_time():
    bundle = of_words("transformer-pre-rotary")
    several = [
        bundle.ask(
            ["w1", "w1"], Options(do_sample=True, max_new_tokens=29, min_new_tokens=13, seed=seed)
        )
        for seed in (1, 2, None, None)
    ]
    assert all(first.tokens == second.tokens for first, second in several)
    assert len({first.tokens for first, _ in several}) == 4


def untrained(name: str, tokenizer: tokenizers.Tokenizer, *changes: str) -> Bundle:
    chosen = recipe.load(name, changes)
    model = build.model(chosen, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    return Bundle(chosen, build.task(chosen, tokenizer), model.eval())


SAMPLED = ["search.num_beams=1", "search.candidates=1", "search.do_sample=true", "search.seed=7"]


@pytest.mark.parametrize("name", ["caption-attention", "caption-transformer"])
def test_a_picture_is_the_same_input_from_a_file_and_as_an_array(name: str, tmp_path: Path):
    bundle = untrained(name, tokenizers.Words(WORDS), *SAMPLED, "source.size=[32, 32]")
    pixels = np.random.default_rng(1).integers(0, 256, (5, 32, 32, 3), np.uint8)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    files = [str(tmp_path / f"{number}.png") for number in range(5)]
    alone = [bundle.ask([file])[0].tokens for file in files]
    assert [answer.tokens for answer in bundle.ask(list(pixels)[::-1])] == alone[::-1]
    assert len(set(alone)) == 5


@pytest.mark.parametrize("name", ["speech-attention", "reference/speech-lstm"])
def test_a_sound_draws_the_same_whatever_it_is_padded_to(name: str):
    bundle = untrained(name, tokenizers.Characters("abcdefg"), *SAMPLED, "search.max_new_tokens=11")
    draw = np.random.default_rng(1)
    assert isinstance(bundle.recipe.source, recipe.SourceSound)
    rate = bundle.recipe.source.rate
    sounds = [(draw.integers(-9000, 9000, length, np.int16), rate) for length in (4001, 9001, 6007)]
    alone = [bundle.ask([sound])[0].tokens for sound in sounds]
    assert [answer.tokens for answer in bundle.ask(sounds)] == alone


def test_a_file_of_many_is_answered_like_each_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Inputs are answered in chunks; an answer does not depend on which chunk it falls into, or
    on lines left out."""
    bundle = untrained(
        "chat-gru", tokenizers.Words(WORDS), *SAMPLED, "search.mmi_weight=0.0", "encoder.width=16"
    )
    run = tmp_path / "run"
    run.mkdir()
    create(run, bundle.recipe, bundle.tokenizer)
    put_weights(run, tensors(bundle.model))
    prompts = [f"w{number % 19} w{number % 7}" for number in range(131)]
    long = " ".join(["w1"] * 2000)  # cannot be read: longer than any prompt may be
    file = tmp_path / "prompts.txt"

    def answers(lines: list[str], code: int = 0) -> list[str]:
        file.write_text("\n".join(lines))
        assert cli.main(["ask", str(run), "--file", str(file)]) == code
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [record["answer"] for record in records if "answer" in record]

    together = answers(prompts)
    assert answers(prompts[::-1])[::-1] == together
    assert answers([long, *prompts[:5]], code=2) == together[:5]
    assert answers(prompts[130:]) == together[130:]
    assert cli.main(["ask", str(run), prompts[77]]) == 0
    assert capsys.readouterr().out == f"{prompts[77]}  ->  {together[77]}\n"
