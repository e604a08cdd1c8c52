"""What a person types in Python, and what comes back."""

from __future__ import annotations

import inspect
import json
import math
import pydoc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import regard
from regard import build, recipe
from regard.bundle import Bundle
from regard.cli.searching import options as typed
from regard.errors import InputError, RegardError
from regard.search import Options
from regard.search import Options as Search
from regard.tokenizers import Characters, Labels, Words
from regard.train import train
from regard.values import Answer
from tests.tiny import PAIRS, Silent, memorised, pairs_file

LETTERS = list(" abcdefghijklmnopqrstuvwxyz")
GREEDY = Options(max_new_tokens=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("python")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(home / "cache"))
        chosen = recipe.load(
            "chat-attention", memorised(pairs_file(home), "train.steps=60", "tokenizer.min_count=1")
        )
        train(chosen, home / "run", reporter=Silent())
    return home / "run"


@pytest.fixture(scope="module")
def bot(run: Path) -> Bundle:
    return regard.load(run)


def untrained(name: str, tokenizer, *changes: str) -> Bundle:
    torch.manual_seed(7)
    chosen = recipe.load(name, changes)
    model = build.model(chosen, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    return Bundle(chosen, build.task(chosen, tokenizer), model.eval())


# ------------------------------------------------------------------------------------ what is there


def test_dir_shows_the_public_names_and_importing_stays_instant():
    code = (
        "import sys, regard\n"
        "sys.exit(str((set(regard.__all__) - set(dir(regard)), 'torch' in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "(set(), False)"
    assert {"load", "train", "Answer", "Bundle", "Options", "attend", "budget"} <= {*regard.__all__}
    assert not {"import_module", "TYPE_CHECKING", "annotations"} & set(dir(regard))


def test_everything_public_is_explained_with_an_example():
    assert [
        name for name in regard.__all__ if ">>>" not in (getattr(regard, name).__doc__ or "")
    ] == []
    methods = (
        Bundle.ask,
        Bundle.candidates,
        Bundle.stream,
        Bundle.search_options,
        Bundle.evaluate,
        Bundle.budget,
    )
    assert [method.__name__ for method in methods if ">>>" not in (method.__doc__ or "")] == []
    assert "(T, H, S)" in (Answer.__doc__ or "") and "(T, H, S)" in (Bundle.ask.__doc__ or "")


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'nothing'"):
        _ = regard.nothing


# -------------------------------------------------------------------------------------- one or many


def test_one_input_has_one_answer_and_a_list_a_list(bot: Bundle):
    prompts = [prompt for prompt, _ in PAIRS]
    one = bot.ask(prompts[0], GREEDY)
    assert isinstance(one, Answer) and one.text
    several = bot.ask(prompts, GREEDY)
    assert isinstance(several, list) and several[0].tokens == one.tokens
    assert bot.ask(tuple(prompts), GREEDY) == several == bot.ask(iter(prompts), GREEDY)
    assert bot.ask([]) == [] == bot.candidates([])


def test_weights_have_the_places_of_their_own_source_whatever_else_is_asked(bot: Bundle):
    short, long = "Goodbye", "What is two plus two?"
    alone = bot.ask(short, GREEDY)
    beside = bot.ask([short, long], GREEDY)[0]
    assert alone.weights is not None and beside.weights is not None
    assert (
        alone.weights.shape
        == (len(alone.logprobs), 1, len(alone.place_names))
        == beside.weights.shape
    )
    assert torch.allclose(alone.weights, beside.weights, atol=1e-6)
    assert torch.allclose(beside.weights.sum(-1), torch.ones(len(alone.logprobs), 1))


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", {"a": 1}, [3], np.zeros(3), Path("x")])
def test_what_is_no_text_is_refused(bot: Bundle, wrong):
    with pytest.raises(InputError, match="this model reads text; got "):
        bot.ask(wrong)


def test_of_several_inputs_the_wrong_one_is_named(bot: Bundle, tmp_path: Path):
    with pytest.raises(InputError) as refused:
        bot.ask(["Hello!", "Hi", "  "])
    assert str(refused.value) == "input 3 of 3: the prompt is empty; type a sentence"
    with pytest.raises(InputError) as refused:
        bot.task.read_one("  ")
    assert str(refused.value) == "the prompt is empty; type a sentence"
    missing = tmp_path / "missing.png"
    with pytest.raises(InputError) as refused:
        untrained("image-pool", Labels(list("ab"))).ask([drawn("L"), missing])
    assert str(refused.value).startswith(f"input 2 of 2, {missing}: ")


def test_the_input_of_a_stream_is_read_at_once(bot: Bundle):
    with pytest.raises(InputError, match="the prompt is empty"):
        bot.stream(" ")


@pytest.mark.parametrize("single", ["hi", None, 5, Path("x")])
def test_candidates_need_a_list(bot: Bundle, single):
    with pytest.raises(InputError) as refused:
        bot.candidates(single)
    assert str(refused.value) == (
        f"candidates: needs a list of inputs; got one {type(single).__name__}; "
        "put it in a list: candidates([input])"
    )


def test_candidates_read_a_generator(bot: Bundle):
    prompts = [prompt for prompt, _ in PAIRS[:2]]
    assert bot.candidates((prompt for prompt in prompts), GREEDY) == bot.candidates(prompts, GREEDY)


@pytest.mark.parametrize("wrong", [None, 5, b"x", []])
def test_load_needs_a_path(wrong):
    with pytest.raises(InputError, match="load: needs the path of a run's folder; got "):
        regard.load(wrong)


@pytest.mark.parametrize("name", ["x" * 5000, "nothing here", "a\0b"])
def test_load_of_a_folder_that_is_not_there(name: str):
    with pytest.raises(RegardError, match="no such run; train one with") as refused:
        regard.load(name)
    assert len(str(refused.value)) < 300


# ------------------------------------------------------------------------------------------ options


def test_greedy_is_what_it_is_on_the_command_line(bot: Bundle):
    assert bot.search_options(greedy=True) == typed(bot, [], True, None)
    assert bot.search_options(greedy=True, max_new_tokens=3) == typed(
        bot, ["max_new_tokens=3"], True, None
    )
    assert bot.search_options(greedy=False) == bot.options
    assert bot.ask("Hello!", greedy=True) == bot.ask("Hello!", bot.search_options(greedy=True))


def test_every_search_option_is_a_keyword(bot: Bundle):
    for name, field in Search.model_fields.items():
        assert bot.ask("Hello!", **{name: getattr(bot.recipe.search, name)}) is not None, field
    assert bot.search_options(num_beams=4) == typed(bot, ["num_beams=4"], False, None)
    assert bot.search_options(temperature=0.5, top_k=np.int64(3)) == typed(
        bot, ["temperature=0.5", "top_k=3"], False, None
    )
    assert bot.search_options() == bot.options
    assert bot.search_options(seed=None) == bot.options.replaced(seed=None)
    assert bot.ask("Hello!", num_beams=2) == bot.ask("Hello!", bot.search_options(num_beams=2))
    assert len(bot.candidates(["Hello!"], num_beams=3, candidates=3)[0]) == 3
    assert (
        "".join(map(str, bot.stream("Hello!", num_beams=2))) == bot.ask("Hello!", num_beams=2).text
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nun_beams": 2}, 'ask: no such search option; got nun_beams; did you mean "num_beams"?'),
        (
            {"num_beams": "two"},
            'ask: search.num_beams: must be a whole number >= 1 and <= 1,024; got "two"',
        ),
        (
            {"num_beams": 2.5},
            "ask: search.num_beams: must be a whole number >= 1 and <= 1,024; got 2.5",
        ),
        ({"top_p": float("nan")}, "ask: search.top_p: must be a number > 0 and <= 1; got NaN"),
        (
            {"options": {"num_beams": 2}},
            (
                "ask: options must be regard.Options; got dict; "
                "give single search options by name: ask(input, num_beams=2)"
            ),
        ),
        (
            {"greedy": True, "num_beams": 3},
            (
                "greedy=True: a greedy search has one beam and draws nothing; got num_beams=3; "
                "leave one of them out"
            ),
        ),
        ({"rate": 8000}, "ask: rate is for sounds, and this model reads none; got rate=8000"),
        (
            {"options": GREEDY, "top_k": 1},
            "ask: give options or single search options, not both; got top_k",
        ),
    ],
)
def test_a_wrong_option_is_one_line(bot: Bundle, changes: dict, said: str):
    with pytest.raises(InputError) as refused:
        bot.ask("Hello!", **changes)
    assert str(refused.value) == said


# ----------------------------------------------------------------------------------------- pictures

PICTURES = {  # at sizes that are not the model's
    "L": (31, 23),
    "RGB": (37, 41, 3),
    "RGBA": (67, 71, 4),
    "LA": (29, 43, 2),
    "I;16": (61, 59),
    "1": (31, 29),
}


@pytest.fixture(scope="module", params=["image-pool", "image-patches", "caption-attention"])
def sighted(request) -> Bundle:
    changes = ["source.fit=crop"] if request.param == "image-patches" else []
    tokenizer = (
        Characters(LETTERS) if request.param == "caption-attention" else Labels(list("abcdefg"))
    )
    changes += ["tokenizer.kind=characters"] if request.param == "caption-attention" else []
    return untrained(request.param, tokenizer, *changes)


def drawn(mode: str) -> Image.Image:
    draw = np.random.default_rng(3)
    if mode == "I;16":
        return Image.fromarray(draw.integers(0, 1 << 16, PICTURES[mode], np.uint16))
    values = draw.integers(0, 256, PICTURES[mode], np.uint8)
    return Image.fromarray(values).convert("1") if mode == "1" else Image.fromarray(values)


@pytest.mark.parametrize("mode", PICTURES)
def test_file_image_and_array_of_a_picture_are_answered_alike(
    sighted: Bundle, mode: str, tmp_path: Path
):
    image = drawn(mode)
    image.save(tmp_path / "it.png")
    array = np.asarray(Image.open(tmp_path / "it.png"))
    forms = [str(tmp_path / "it.png"), Image.open(tmp_path / "it.png"), image, array]
    if mode != "I;16":
        forms.append(torch.from_numpy(array.copy()))
    if mode == "L":
        forms.append(array[..., None])
    if array.dtype == np.uint8:
        forms += [(array / 255).astype(np.float32), array / 255, array[:, ::-1][:, ::-1]]
    right = sighted.ask(tmp_path / "it.png", GREEDY)
    assert isinstance(right, Answer)
    for form in forms:
        assert sighted.ask(form, GREEDY) == right, type(form)
    raw, _ = sighted.task.read([*forms, tmp_path / "it.png"])
    assert (raw == raw[-1]).all()


def test_a_picture_that_lies_on_its_side_is_turned_as_its_file_is(sighted: Bundle, tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees
    drawn("RGB").save(tmp_path / "it.png", exif=exif)
    raw, _ = sighted.task.read([tmp_path / "it.png", Image.open(tmp_path / "it.png"), drawn("RGB")])
    assert (raw[0] == raw[1]).all() and not (raw[0] == raw[2]).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            np.zeros((3, 8, 8), np.uint8),
            "got uint8 (3, 8, 8); move its channels to the end: transpose(1, 2, 0)",
        ),
        (np.zeros(8, np.uint8), "(h, w, 3) or (h, w, 4); got uint8 (8,)"),
        (np.zeros((0, 8), np.uint8), "a picture of no pixels; got shape (0, 8)"),
        (
            np.zeros((8, 8), np.int64),
            "got int64 (8, 8); if its numbers are 0 to 255: astype(numpy.uint8)",
        ),
        (
            np.full((8, 8), 255.0),
            (
                "a picture of floats has them from 0 to 1; got 255 to 255; "
                "divide all pictures by their maximum: images / images.max()"
            ),
        ),
        (
            np.linspace(0, 16, 64).reshape(8, 8),
            "got 0 to 16; divide all pictures by their maximum: images / images.max()",
        ),
        (
            np.arange(16).reshape(4, 4),
            "got int64 (4, 4) from 0 to 15; divide all pictures by their maximum: images / ",
        ),
        (
            torch.zeros(8, 8, device="meta"),
            "a tensor on the device meta has no values; got torch.float32 (8, 8)",
        ),
        (np.full((8, 8), -0.5), "a picture of floats has them from 0 to 1; got -0.5 to -0.5"),
        (np.full((8, 8), np.nan), "pixels that are not numbers"),
        (
            np.array([["a"]]),
            "a picture is of bytes (uint8), or of floats from 0 to 1; got <U1 (1, 1)",
        ),
        (Image.new("L", (9000, 9000)), "the picture is too large; got 9,000 x 9,000 pixels"),
        (5, "this model reads pictures; got int; a file, a PIL image or an array"),
    ],
)
def test_an_array_that_is_no_picture_is_one_line(wrong, said: str):
    with pytest.raises(InputError) as refused:
        untrained("image-pool", Labels(list("ab"))).ask(wrong)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_tensor_of_any_type_or_layout_is_a_picture():
    bundle = untrained("image-pool", Labels(list("ab")))
    grey = torch.arange(64).reshape(8, 8).remainder(2).float()
    right = bundle.ask(grey.numpy())
    quantized = torch.quantize_per_tensor(grey, 1.0, 0, torch.quint8)
    for tensor in (
        grey.bfloat16(),
        grey.half(),
        grey.to_sparse(),
        quantized,
        grey.requires_grad_(),
    ):
        assert bundle.ask(tensor) == right


def test_a_folder_or_a_sound_is_no_picture(tmp_path: Path):
    bundle = untrained("image-pool", Labels(list("ab")))
    with pytest.raises(InputError) as refused:
        bundle.ask(tmp_path)
    assert str(refused.value) == f"{tmp_path}: a folder, not a picture"
    sound = tmp_path / "it.wav"
    soundfile.write(sound, np.zeros(800), 8000)
    with pytest.raises(InputError) as refused:
        bundle.ask(sound)
    assert str(refused.value) == (
        f"{sound}: not a picture that can be read; png, jpg, bmp, gif, webp and tif can be"
    )


# ------------------------------------------------------------------------------------------- sounds


@pytest.fixture(scope="module")
def hearing() -> Bundle:
    return untrained("speech-attention", Characters(LETTERS))


@pytest.mark.parametrize("kind", ["PCM_16", "PCM_U8", "PCM_32", "FLOAT"])
@pytest.mark.parametrize("rate", [8000, 16000, 22050])
def test_file_and_samples_of_a_sound_are_answered_alike(
    hearing: Bundle, kind: str, rate: int, tmp_path: Path
):
    shape = (rate // 3,) if kind == "FLOAT" else (rate // 3, 2)
    noise = 0.3 * np.random.default_rng(5).standard_normal(shape)
    soundfile.write(tmp_path / "it.wav", noise, rate, subtype=kind)
    samples, _ = soundfile.read(tmp_path / "it.wav")
    right = hearing.ask(tmp_path / "it.wav", GREEDY)
    assert isinstance(right, Answer)
    forms = [samples, samples.astype(np.float32), torch.from_numpy(samples)]
    if kind in ("PCM_16", "PCM_32"):
        forms.append(
            soundfile.read(tmp_path / "it.wav", dtype="int16" if kind == "PCM_16" else "int32")[0]
        )
    for form in forms:
        assert hearing.ask(form, GREEDY, rate=rate) == right == hearing.ask((form, rate), GREEDY)
        assert hearing.ask([form, form], GREEDY, rate=rate)[1].text == right.text
    raw, mask = hearing.task.read([tmp_path / "it.wav", *((form, rate) for form in forms)])
    assert (raw == raw[0]).all() and mask.all()


@pytest.mark.parametrize(
    ("wrong", "rate", "said"),
    [
        (
            np.zeros(800),
            None,
            "an array of samples needs its rate; got float64 (800,); ask(samples, rate=",
        ),
        (np.zeros(800, np.int16), None, "an array of samples needs its rate; got int16 (800,)"),
        (np.zeros(800), 8000.5, "must be a whole number from 1,000 to 192,000; got 8000.5"),
        (np.zeros(800), float("nan"), "must be a whole number from 1,000 to 192,000; got nan"),
        (np.zeros(800), 7, "must be a whole number from 1,000 to 192,000; got 7"),
        (
            np.zeros((2, 800)),
            8000,
            "got float64 (2, 800); move its channels to the end: transpose it",
        ),
        (np.zeros(0), 8000, "a sound of no samples"),
        (
            np.full(800, 20_000.0),
            8000,
            "got up to 20,000; if they are those of 16-bit integers, divide them by 32768",
        ),
        (np.full(800, np.inf), 8000, "samples that are not numbers"),
        (
            np.zeros(800, np.int64),
            8000,
            "floats from -1 to 1, or integers of type uint8, int16 or int32; got int64",
        ),
        (np.zeros(8000 * 61), 8000, "longer than 60 seconds; got 61.0 seconds"),
        (
            [0.0, 0.5],
            8000,
            (
                "must be an array, not a list; got float in a list of inputs; "
                "ask(numpy.asarray(samples), rate="
            ),
        ),
        ([0.0, 0.5], None, "the samples of a sound must be an array, not a list"),
        (
            np.zeros(800),
            "16k",
            "rate must be a number, the samples a second; got rate='16k'; as in",
        ),
        (Path(), None, ".: a folder, not a sound"),
        ("it.wav", 8000, "rate is for arrays of samples: a file says its own; got rate=8000"),
        (5, None, "this model reads sounds; got int; a file, or an array of samples and its rate"),
    ],
)
def test_samples_that_are_no_sound_are_one_line(hearing: Bundle, wrong, rate, said: str):
    with pytest.raises(InputError) as refused:
        hearing.ask(wrong, rate=rate)
    assert said in str(refused.value)


# ------------------------------------------------------------------------ train, evaluate, budget


def test_train_returns_the_trained_model(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    file = pairs_file(tmp_path)
    small = {"encoder.width": 48, "tokenizer.min_count": 1, "data.valid": 0.0, "train.epochs": None}
    bot = regard.train("chat-gru", data=file, steps=2, set=small)
    printed = capsys.readouterr().out
    assert "step 2: " in printed and "the run is runs/chat-gru" in printed
    assert bot.recipe.train.steps == 2 and getattr(bot.recipe.encoder, "width", 0) == 48
    assert bot.ask("Hello!") == regard.load("runs/chat-gru").ask("Hello!")
    assert (tmp_path / "runs/chat-gru/curves.png").exists()

    again = regard.train(resume="runs/chat-gru", steps=3, quiet=True)
    assert again.recipe.train.steps == 3 and capsys.readouterr().out == ""
    other = regard.train(bot.recipe, out=tmp_path / "other", steps=1, quiet=True)
    assert other.recipe.train.steps == 1 and (tmp_path / "other/manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, 'train: needs a recipe; got none; as in regard.train("chat-attention")'),
        ({"recipe": 5}, 'train: needs a recipe; got int; as in regard.train("chat-attention")'),
        ({"recipe": "chat-gro"}, 'did you mean "chat-gru"?'),
        ({"recipe": "chat-gru", "set": ["encoder.width=3"]}, "train: set must be a dict; got list"),
        ({"recipe": "chat-gru", "set": {"encoder.width": object()}}, "set, encoder.width: not a v"),
        ({"recipe": "chat-gru", "set": {"encoder.widht": 3}}, 'did you mean "width"?'),
        ({"recipe": "chat-gru", "minutes": 0}, "a budget must be more than 0; got 0"),
        ({"recipe": "chat-gru", "data": "gone.tsv"}, "gone.tsv: no such"),
        ({"recipe": "chat-gru", "anyway": True}, "anyway is for a run that is resumed"),
        ({"recipe": "chat-gru", "resume": "runs/x"}, "resume goes on in the run's own folder"),
        ({"resume": "gone"}, "gone: no such run"),
    ],
)
def test_a_mistake_in_training_is_a_regard_error(arguments: dict, said: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RegardError) as refused:
        regard.train(**arguments)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "first_line", "parameters"),
    [
        ("train", "Train a model as `regard train` does, and load it.", {"recipe", "minutes"}),
        ("budget", "The cost of a model: of a recipe, a run's folder", {"what", "vocabulary"}),
    ],
)
def test_train_and_budget_are_functions(name: str, first_line: str, parameters: set[str]):
    """Although there are packages of the same names, whichever is imported first."""
    import_module(f"regard.{name}")
    function = getattr(regard, name)
    assert inspect.isfunction(function) and function.__name__ == name
    assert parameters <= inspect.signature(function).parameters.keys()
    page = pydoc.plain(pydoc.render_doc(function))
    assert page.startswith(f"Python Library Documentation: function {name} in module regard.{name}")
    assert f"{name}(" in page and first_line in page and "PACKAGE CONTENTS" not in page


def test_importing_a_package_of_a_function_keeps_the_function():
    code = (
        "import regard.train, regard.train.loop, regard.budget.trace, inspect; "
        "from regard import train, budget; from regard.train import METRICS; "
        "assert inspect.isfunction(train) and inspect.isfunction(budget); "
        "assert METRICS == 'metrics.jsonl'"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_is_evaluated(bot: Bundle, run: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))
    result = bot.evaluate(split="train", greedy=True)
    assert isinstance(result, regard.Evaluation)
    assert (result.examples, result.prompts) == (len(PAIRS), len(PAIRS))
    assert result.better["perplexity"] == "lower" and "mean_length" not in result.better
    assert result.to_json()["perplexity"] == result.scores["perplexity"] > 1
    assert result.samples[0].references == [PAIRS[0][1]]
    assert repr(result).startswith("Evaluation(10 examples: perplexity ")
    assert json.loads(json.dumps(result.to_json()))["examples"] == len(PAIRS)

    assert bot.evaluate(run.parent / "pairs.tsv", limit=3).prompts == 3
    with pytest.raises(RegardError, match='no examples to evaluate on; got split="valid"'):
        bot.evaluate()
    with pytest.raises(InputError, match="split: no such split; got all; one of train, valid, te"):
        bot.evaluate(split="all")
    with pytest.raises(InputError, match="limit: must be a whole number >= 1; got 0"):
        bot.evaluate(limit=0)
    with pytest.raises(InputError, match="no such search option; got nun_beams"):
        bot.evaluate(nun_beams=2)
    with pytest.raises(RegardError, match="no such file or folder"):
        bot.evaluate(tmp_path / "gone.tsv")


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("chat-attention", Characters(LETTERS)),
        ("image-pool", Labels(list("abc"))),
        ("sentiment-gru", Labels(list("abc"), text=Characters(LETTERS))),
        ("speech-attention", Characters(LETTERS)),
        ("blank-rnn", Words(LETTERS[1:])),
    ],
)
def test_the_budget_of_a_model_is_that_of_its_weights(name: str, tokenizer):
    bundle = untrained(name, tokenizer)
    assert bundle.budget().parameters == bundle.model.parameter_count
    assert bundle.budget(batch=3) != bundle.budget(batch=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"minuts": 1}, 'train: no such argument; got minuts; did you mean "minutes"?'),
        ({"steps": "3"}, "train, steps: must be a number; got '3'"),
        ({"data": 3}, "train, data: must be a path; got 3"),
        ({"out": ""}, "train, out: the path is empty"),
    ],
)
def test_wrong_arguments_of_train_are_named(arguments: dict, message: str):
    with pytest.raises(InputError) as caught:
        regard.train("chat-attention", **arguments)
    assert str(caught.value) == message


def test_options_take_numbers_of_numpy_and_no_positional_arguments():
    assert Options(num_beams=np.int64(3)).num_beams == 3
    with pytest.raises(InputError, match="search: options are given by name; got 3"):
        Options(3)  # pyright: ignore[reportCallIssue] -- that is the point


def test_an_answer_without_a_finite_score_is_valid_json():
    answer = Answer((), "", -math.inf, logprobs=(math.nan,))
    assert json.loads(json.dumps(answer.to_json(), allow_nan=False))["score"] is None
