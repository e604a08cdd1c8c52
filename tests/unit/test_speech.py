"""Speech as a task: scores and their blind baselines, the reference's settings, draws that are
pure functions."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard import build, metrics, recipe, tokenizers
from regard.data import espeak, spoken
from regard.data.lines import Tally
from regard.data.recordings import Hearing
from regard.errors import DataError, InputError
from regard.layers.loss import cross_entropy
from regard.optimise import factor, optimiser
from regard.tasks.sources import SoundSource
from regard.tasks.speech import Speech
from regard.tokenizers import END, PAD, START, Characters
from regard.train import train
from tests.tiny import Silent, memorised_sounds, sounds_table

HOW = Hearing(8000, 10.0)
REFERENCE = ["reference/speech-lstm", "reference/speech-transformer"]


def task(**more) -> Speech:
    source = SoundSource(rate=8000, max_seconds=2.0, seconds_a_place=0.04, **more)
    return Speech(
        tokenizer=Characters(list(" abcdefghijklmnopqrstuvwxyz"), lower=True), source=source
    )


# -- the reference----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "decoder", "total"),
    [(REFERENCE[0], 658_435, 1_471_235), (REFERENCE[1], 517_035, 1_329_835)],
)
def test_the_reference_has_its_parameters(name: str, decoder: int, total: int):
    model = build.model(recipe.load(name), vocabulary=35)
    read = sum(p.numel() for part in (model.frontend, model.encoder) for p in part.parameters())
    assert (read, sum(p.numel() for p in model.decoder.parameters())) == (812_800, decoder)
    assert model.parameter_count == total


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_is_what_the_specification_says(name: str):
    chosen: Any = recipe.load(name)
    fit = build.fit_tokenizer(chosen)
    assert fit is not None
    tokenizer = fit(iter(["whatever"]))
    assert tokenizer.size == 35 and tokenizer.encode("Ab?#1") == [
        tokenizer.encode("a")[0],
        *tokenizer.encode("b?"),
        3,
        3,
    ]
    assert (chosen.source.rate, chosen.source.mel_rate) == (22050, 16000)
    assert (chosen.source.window, chosen.source.hop, chosen.source.mels, chosen.source.frames) == (
        400,
        160,
        80,
        2754,
    )
    assert (chosen.data.split, chosen.data.valid, chosen.data.test) == ("order", 0.05, 0.2)
    assert (chosen.source.levels, chosen.source.dynamic_range) == ("absolute", 8.0)
    assert (chosen.data.max_target, chosen.data.truncate, chosen.data.count_padding) == (
        97,
        True,
        True,
    )
    assert (chosen.seed, chosen.train.batch_examples, chosen.train.epochs) == (42, 64, 15)
    assert (
        chosen.train.learning_rate,
        chosen.train.label_smoothing,
        chosen.train.max_grad_norm,
    ) == (1e-3, 0.1, 0.0)
    assert (chosen.train.weight_decay, chosen.train.betas, chosen.search.max_new_tokens) == (
        0.01,
        (0.9, 0.999),
        98,
    )
    groups = optimiser(build.model(chosen, vocabulary=35), chosen.train).param_groups
    assert {group["weight_decay"] for group in groups} == {0.01}
    rates = [factor(chosen.train, 0, 0.0, epoch) for epoch in range(15)]
    assert rates[:3] == [0.01, 0.505, 1.0] and rates[-1] == pytest.approx(0.01)
    assert np.diff(rates[2:]) == pytest.approx(-0.99 / 12)


@torch.no_grad()
@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_hears_1377_places_and_answers_98(name: str):
    chosen = recipe.load(name)
    model = build.model(chosen, vocabulary=35).eval()
    heard = model.encode(
        torch.zeros(1, 30_000, dtype=torch.int16), torch.ones(1, 30_000, dtype=torch.bool)
    )
    assert heard.states.shape == (1, 1377, 200) and bool(heard.mask.all())
    assert model.decoder(torch.full((1, 98), 5), heard).shape == (1, 98, 35)


def test_padding_is_learned_and_the_floor_is_that_of_smoothing():
    """A model that is certain of every token, padding included, has the loss that label
    smoothing of 0.1 leaves."""
    tokenizer = build.fit_tokenizer(recipe.load(REFERENCE[0]))(iter(()))  # type: ignore[misc]
    reference = Speech(tokenizer=tokenizer, source=task().source, filled=97)
    batch = reference.batch(
        [np.ones(800, np.int16)] * 2,
        [np.array(tokenizer.encode("one")), np.array(tokenizer.encode("a"))],
    )
    assert batch.tokens.shape == batch.targets.shape == (2, 98) and bool(batch.real.all())
    assert batch.tokens[1].tolist() == [START, tokenizer.encode("a")[0], END, *[PAD] * 95]
    assert batch.targets[1].tolist() == [tokenizer.encode("a")[0], END, *[PAD] * 96]
    sure = math.log((0.9 + 0.1 / 35) / (0.1 / 35))
    targets, smoothing = batch.targets.flatten(), recipe.load(REFERENCE[0]).train.label_smoothing
    hidden = torch.nn.functional.one_hot(targets, 35).double() * sure
    loss, _ = cross_entropy(
        hidden, torch.eye(35).double(), torch.zeros(35).double(), targets, smoothing=smoothing
    )
    assert float(loss) / len(targets) == pytest.approx(0.6613, abs=5e-5)


# -- scores-----------------------------------------------------------------------------------------


def test_scores_ignore_case_where_the_codec_does_and_count_the_marks():
    numbers = task().scores(["ab", "cat"], [["Ab"], ["cut"]]).numbers
    assert (
        numbers["exact"] == 0.5 and numbers["cer"] == pytest.approx(1 / 5) and numbers["wer"] == 0.5
    )
    marked = metrics.similarities([START, 6, 4, 23, END], [START, 6, 24, 23, END])
    assert numbers["jaccard"] == pytest.approx((1 + marked["jaccard"]) / 2)


def test_blind_answers_score_as_the_specification_says(shared_data: Path):
    """On all transcripts: a fixed string of the histogram 0.666 / 0.8005 / 0.123, somebody
    else's 0.551 / 0.715 / 0.240 (there from the training part, here from the part that is
    judged)."""
    lines = (shared_data / "ljspeech" / "transcripts_all.csv").read_text("utf-8").splitlines()
    texts = [line.split("|")[2].lower()[:97] for line in lines][10_480:]
    tokenizer = build.fit_tokenizer(recipe.load(REFERENCE[0]))(iter(()))  # type: ignore[misc]
    blind = Speech(tokenizer=tokenizer, source=task().source).baselines([[text] for text in texts])
    names = ("jaccard", "cosine", "damerau_levenshtein")
    assert [blind["one string"][name] for name in names] == pytest.approx(
        [0.666, 0.8005, 0.123], abs=0.03
    )
    assert [blind["another's text"][name] for name in names] == pytest.approx(
        [0.551, 0.715, 0.240], abs=0.01
    )


def test_another_text_is_never_the_right_one():
    assert set(task().baselines([["one"]])) == {"one string"}
    for count in (2, 3, 7):
        blind = task().baselines([[chr(97 + i) * 3] for i in range(count)])
        assert blind["another's text"]["exact"] == 0 and blind["another's text"]["cer"] == 1


def test_who_has_not_heard_the_sound_is_judged_in_the_same_case():
    lower, cased = (
        task().baselines([[one] for one in texts]) for texts in (["ab c", "dd"], ["Ab C", "DD"])
    )
    assert lower == cased


# -- sources----------------------------------------------------------------------------------------


def test_what_training_bends_is_a_function_of_the_draw():
    rows = [np.arange(-500, 500, dtype=np.int16), np.full(300, 30_000, np.int16)]
    bent = task(speed_perturbation=0.2, noise=0.05)
    first, again = (bent.augment(rows, np.random.default_rng(4)) for _ in range(2))
    assert all(
        np.array_equal(a, b) and a.dtype == np.int16 for a, b in zip(first, again, strict=True)
    )
    assert not np.array_equal(first[0], bent.augment(rows, np.random.default_rng(5))[0])
    lengths = [len(bent.augment(rows[:1], np.random.default_rng(i))[0]) for i in range(200)]
    assert 830 <= min(lengths) < 900 and 1100 < max(lengths) <= 1250
    assert all(
        np.array_equal(a, b)
        for a, b in zip(task().augment(rows, np.random.default_rng(4)), rows, strict=True)
    )


def test_learned_positions_reach_as_far_as_training_stretches():
    chosen: Any = recipe.load(
        "speech-transformer",
        ["encoder.positions=learned", "encoder.layers=1", "data.max_seconds=4"],
    )
    model = build.model(chosen, vocabulary=30).train()
    longest = chosen.source.rate * chosen.data.max_seconds / (1 - chosen.source.speed_perturbation)
    raw = torch.randint(-9000, 9000, (2, int(longest)), dtype=torch.int16)
    for seed in range(20):
        torch.manual_seed(seed)
        model.encode(raw, torch.ones_like(raw, dtype=torch.bool))


def test_a_tilt_makes_sounds_duller_and_sharper_and_no_louder():
    times = np.arange(8000) / 8000
    low, high = (np.sin(2 * np.pi * hertz * times) for hertz in (20, 3980))
    given, bent = np.rint(8000 * (low + high)).astype(np.int16), task(spectral_tilt=0.5)
    made = [bent.augment([given], np.random.default_rng(i))[0].astype(float) for i in range(100)]
    sharper = [abs(one @ high) / abs(one @ low) for one in made]
    assert (
        0.33 < min(sharper) < 0.4 and 2.5 < max(sharper) < 3.01
    )  # (1 - a) / (1 + a), a from -0.5 to 0.5
    assert all(abs(np.abs(one).max() - np.abs(given).max()) <= 1 for one in made)
    assert not bent.augment([np.zeros(9, np.int16)], np.random.default_rng(1))[0].any()


def test_soft_ends_are_left_away_when_it_learns_and_when_it_is_asked():
    parts = (
        np.full(800, 50),
        np.full(1000, 10_000),
        np.full(200, 50),
        np.full(400, -10_000),
        np.full(700, -99),
    )
    sound, cut = np.concatenate(parts).astype(np.int16), task(trim=0.01)
    raw, mask = cut.read([sound])
    assert np.array_equal(raw[0], sound[800:2400]) and mask.all()  # what is soft between is left
    assert np.array_equal(cut.sources([sound])[0], raw)
    assert cut.place_names(sound) == (
        "0.10–0.14 s",
        "0.14–0.18 s",
        "0.18–0.22 s",
        "0.22–0.26 s",
        "0.26–0.30 s",
    )
    assert cut.place_names(sound, 3) == ("0.10–0.18 s", "0.18–0.26 s", "0.26–0.34 s")
    noisy = task(trim=0.01, noise=0.2).augment([sound], np.random.default_rng(1))
    assert len(noisy[0]) == 1600  # before there is noise
    assert cut.read([np.zeros(90, np.int16)])[1].sum() == 90


def test_arrays_must_be_sounds():
    for wrong in (np.zeros(5), np.zeros((5, 2), np.int16), np.zeros(0, np.int16)):
        with pytest.raises(InputError, match="an array of samples needs its rate"):
            task().read([wrong])
    with pytest.raises(InputError, match=r"longer than 2 seconds; got 2\.5 seconds"):
        task().read([np.zeros(20_000, np.int16)])
    raw, mask = task().read([np.ones(3, np.int16), np.ones(5, np.int16)])
    assert raw.dtype == torch.int16 and mask.sum(1).tolist() == [3, 5]
    assert task().place_names(np.ones(700, np.int16)) == (
        "0.00–0.04 s",
        "0.04–0.08 s",
        "0.08–0.12 s",
    )


class Killed(Silent):
    def stepped(self, progress, loss, speed, done) -> None:
        if progress.step == 10:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["speech-attention", "speech-transformer"])
def test_a_run_that_was_killed_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With everything on that draws: bent samples, hidden bands, dropout."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    draws = (
        "time_masks=2",
        "mel_masks=2",
        "speed_perturbation=0.2",
        "tempo_perturbation=0.3",
        "spectral_tilt=0.5",
        "noise=0.05",
        "dropout=0.2",
    )
    more = [
        *(f"source.{one}" for one in draws),
        "encoder.dropout=0.2",
        "train.steps=14",
        "train.save_every=4",
    ]
    chosen = recipe.load(
        name, memorised_sounds(sounds_table(tmp_path), *more, "train.ema_decay=0.9")
    )
    train(chosen, tmp_path / "whole", reporter=Silent())
    with pytest.raises(KeyboardInterrupt):
        train(chosen, tmp_path / "killed", reporter=Killed())
    reporter = Silent()
    train(chosen, tmp_path / "killed", reporter=reporter, resume=True)
    assert reporter.facts.resumed_at == 8
    ends = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "killed")]
    assert ends[0] == ends[1]


# -- spoken-----------------------------------------------------------------------------------------

has_voices = importlib.util.find_spec("espeakng_loader") is not None


def test_voices_that_test_do_not_train():
    voices = [set(part) for part in spoken.VOICES.values()]
    assert not voices[0] & voices[1] and not voices[0] & voices[2] and not voices[1] & voices[2]
    parts: tuple[spoken.Part, ...] = ("train", "valid", "test")
    assert set(parts) == set(spoken.VOICES)
    for part in parts:
        said = spoken.jobs(part, count=300, seed=1)
        assert {job.voice.partition("+")[2] for job in said} == set(spoken.VOICES[part])
        assert said == spoken.jobs(part, count=300, seed=1) != spoken.jobs(part, count=300, seed=2)


@pytest.mark.skipif(not has_voices, reason="espeakng-loader is not installed")
def test_the_same_jobs_give_the_same_samples():
    def heard() -> list:
        spoken._spoken.cache_clear()
        return list(spoken.read_spoken("test", count=160, seed=3, how=HOW, tally=Tally()))

    first, again = heard(), heard()
    assert len(first) == 20 and len({example.source.content for example in first}) == 20
    tally, brief = Tally(), Hearing(8000, 2.0, cut=3)
    for one in (
        kept := list[Any](spoken.read_spoken("test", count=160, seed=3, how=brief, tally=tally))
    ):
        assert len(one.source.values) <= 16000 and len(one.target) <= 3
    assert 0 < len(kept) < 20 and tally.skipped == {"longer than 2 seconds": 20 - len(kept)}
    with pytest.raises(
        DataError, match=r"no usable examples in what the voices say; got .*than 0\.1 seconds 20"
    ):
        list(spoken.read_spoken("test", count=160, seed=3, how=Hearing(8000, 0.1), tally=Tally()))
    for a, b in zip(first, again, strict=True):
        assert a.target == b.target and np.array_equal(a.source.values, b.source.values)
        assert a.source.values.dtype == np.int16 and 0.3 < len(a.source.values) / 8000 < 6
        assert np.abs(a.source.values).max() > 500


@pytest.mark.skipif(not has_voices, reason="espeakng-loader is not installed")
def test_voices_beside_recordings_train_and_do_not_test(
    shared_data: Path, tmp_path: Path, monkeypatch
):
    """Digits in voices that train, without the silence around them."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    said: list[Any] = list(spoken.read_digits(count=30, how=HOW, tally=Tally()))
    assert {one.target for one in said} <= {spoken.number(n) for n in range(10)}
    for one in said:
        heights = np.abs(one.source.values.astype(int))
        assert (
            min(heights[0], heights[-1]) * 50 >= heights.max() and 0.1 < len(heights) / 8000 < 1.2
        )
    changes = [f'data.path="{shared_data / "fsdd"}"', "data.hold_out=lucas"]
    plain, more = (
        build.corpus(recipe.load("speech-fsdd", [*changes, *voices]))
        for voices in ([], ["data.voices=30"])
    )
    assert len(more.train) + len(more.valid) == len(plain.train) + len(plain.valid) + 30
    assert len(more.test) == len(plain.test) == 500


@pytest.mark.skipif(not has_voices, reason="espeakng-loader is not installed")
def test_a_voice_that_cannot_speak_is_named():
    with pytest.raises(DataError, match="the voices cannot speak.*no such voice: xx-yy"):
        spoken._say_apart([spoken.Job("xx-yy", "one", 150, 50, 50)])
    assert callable(espeak.say)


def test_without_voices_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"espeakng-loader is missing.*pip install 'regard\[speech\]'.*--data PATH"
    ):
        spoken.library()


def test_a_codec_with_an_alphabet_needs_no_data():
    tokenizer = Characters.fit(["xyz"], alphabet="abca", lower=True)
    assert tokenizer.characters == ("a", "b", "c") and tokenizers.load(tokenizer.to_json()).encode(
        "Ax"
    ) == [4, 3]
