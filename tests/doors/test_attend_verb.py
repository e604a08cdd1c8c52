"""regard attend: its files, its options, and mistakes that end in one line."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard import cli
from regard.bundle import Bundle, create, load, put_weights
from regard.weights import tensors
from tests.doors.test_verbs import one_line
from tests.stopping import run_with_signal
from tests.unit.test_answers import LETTERS, WORDS, untrained
from tests.unit.test_pages import Elements


def saved(bundle: Bundle, folder: Path) -> Path:
    """An untrained model as a run."""
    folder.mkdir()
    create(folder, bundle.recipe, bundle.tokenizer)
    put_weights(folder, tensors(bundle.model))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    saved(untrained("chat-transformer", WORDS, "search.max_new_tokens=4"), home / "text")
    saved(untrained("chat-attention", WORDS, "search.max_new_tokens=4"), home / "recurrent")
    saved(untrained("chat-lstm", WORDS, "search.max_new_tokens=4"), home / "plain")
    saved(untrained("caption-attention", WORDS, "search.max_new_tokens=4"), home / "picture")
    saved(untrained("speech-attention", LETTERS, "search.max_new_tokens=4"), home / "sound")
    draw = np.random.default_rng(5)
    Image.fromarray(draw.integers(0, 256, (37, 41, 3), np.uint8)).save(home / "in.png")
    soundfile.write(home / "in.wav", draw.standard_normal(5003) * 0.1, 8000)
    return home


def attend(*words: object) -> int:
    return cli.main(["attend", *map(str, words)])


def data(path: Path) -> dict:
    return json.loads(Elements(path.read_text("utf-8")).texts["data"])


def test_a_page_of_a_text(runs: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert attend(runs / "text", "one two", "--greedy", "--no-effect") == 0
    said = capsys.readouterr()
    assert said.out.startswith("one two  ->  ") and "wrote attend.html" in said.err
    (view,) = data(tmp_path / "attend.html")["views"]
    assert [part["id"] for part in view["parts"]] == ["cross", "encoder", "decoder"]
    assert view["effectCommand"] == f"regard attend {runs / 'text'} 'one two' --greedy --effect"
    assert view["effectReason"] == "The effects of this answer were left out."
    assert [name.lower() for name in view["names"]["places"]] == ["one", "two", "(end)"]
    assert attend(runs / "text", "one two", "--greedy", "--layers", "1") == 0
    (view,) = data(tmp_path / "attend.html")["views"]
    assert [part["id"] for part in view["parts"]][-1] == "effect"
    assert [layer["layer"] for layer in view["parts"][0]["layers"]] == [1]


@pytest.mark.parametrize(
    ("run", "file", "kind"), [("picture", "in.png", "picture"), ("sound", "in.wav", "sound")]
)
def test_pages_and_figures_of_pictures_and_sounds(
    runs: Path, tmp_path: Path, run: str, file: str, kind: str
):
    out, png, svg = (tmp_path / f"map.{ending}" for ending in ("html", "png", "svg"))
    words = ["--out", out, "--png", png, "--svg", svg, "--effect"]
    assert attend(runs / run, runs / file, *words) == 0
    source = data(out)["views"][0]["source"]
    assert source["kind"] == kind and source["url"].startswith("data:")
    if kind == "sound":
        places = len(data(out)["views"][0]["names"]["places"])
        assert len(source["times"]) == places and source["spectrogram"]["rows"] > 10
    with Image.open(png) as image:
        assert min(image.size) > 200
    assert svg.read_text().startswith("<?xml")


def test_a_model_without_attention_shows_effects(runs: Path, tmp_path: Path):
    out = tmp_path / "page.html"
    assert attend(runs / "plain", "one two", "--out", out) == 0
    (view,) = data(out)["views"]
    assert [part["id"] for part in view["parts"]] == ["effect"]
    assert "has no attention to the source" in out.read_text("utf-8")


def test_effects_are_measured_where_that_is_quick(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "page.html"
    words = [runs / "text", "one two three", "--out", out, "--set", "min_new_tokens=4"]
    monkeypatch.setattr("regard.pages.attend.EFFECT_CELLS", 16)  # 4 tokens x 4 places
    assert attend(*words) == 0
    (view,) = data(out)["views"]
    assert view["parts"][-1]["id"] == "effect" and not view["effectReason"]
    monkeypatch.setattr("regard.pages.attend.EFFECT_CELLS", 15)
    assert attend(*words) == 0
    (view,) = data(out)["views"]
    assert view["parts"][-1]["id"] != "effect"
    assert "up to 15 tokens x places. This answer has 4 x 4 = 16." in view["effectReason"]
    assert view["effectCommand"].endswith("--set min_new_tokens=4 --effect")
    assert attend(*words, "--effect") == 0
    assert data(out)["views"][0]["parts"][-1]["id"] == "effect"
    assert attend(runs / "plain", "one two three", "--out", out) == 0  # all there is to show
    assert data(out)["views"][0]["parts"][-1]["id"] == "effect"


def test_figures_of_two_answers_are_side_by_side_above_their_difference(runs: Path, tmp_path: Path):
    for run, inputs in (("text", ["one", "two"]), ("picture", [runs / "in.png"] * 2)):
        sizes = []
        for count in (1, 2):
            png = tmp_path / f"{run}.png"
            assert attend(runs / run, *inputs[:count], "--greedy", "--png", png) == 0
            with Image.open(png) as image:
                sizes.append(image.size)
        (width, height), (width_of_two, height_of_two) = sizes
        assert width_of_two == 2 * width and height_of_two > height + 144  # an inch at least


def test_two_inputs_and_two_models(runs: Path, tmp_path: Path, capsys):
    out = tmp_path / "page.html"
    words = ["--greedy", "--out", out]
    assert attend(runs / "text", "one two", "two one", *words) == 0
    assert [view["name"] for view in data(out)["views"]] == ["one two", "two one"]
    assert attend(runs / "text", "one two", "--against", runs / "text", *words) == 0
    first, second = data(out)["views"]
    assert (
        first["parts"][0]["layers"][0]["heads"][0]["numbers"]
        == (second["parts"][0]["layers"][0]["heads"][0]["numbers"])
    )
    assert capsys.readouterr().out.count("->") == 4


def test_a_checkpoint_is_loaded_like_a_run(runs: Path, tmp_path: Path):
    import torch

    from regard import checkpoint

    bundle = untrained("chat-transformer", WORDS)
    run = saved(bundle, tmp_path / "run")
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.add_(1)
    optimiser = torch.optim.SGD(bundle.model.parameters(), lr=1.0)
    checkpoint.save(run, bundle.model, None, optimiser, checkpoint.Progress(step=400))
    loaded = load(run / "checkpoints" / "step-000400")
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, bundle.model.state_dict()[name]), name
    kept = load(run).model.state_dict()
    assert any(not torch.equal(kept[name], bundle.model.state_dict()[name]) for name in kept)


def test_files_of_others_stay(runs: Path, tmp_path: Path, capsys):
    for option, name in (("--out", "mine.html"), ("--png", "mine.png"), ("--svg", "mine.svg")):
        mine = tmp_path / name
        mine.write_text("mine")
        said = one_line(capsys, "attend", runs / "text", "one", option, mine)
        assert "something that regard did not write" in said
        assert mine.read_text() == "mine"


def test_what_the_font_of_a_picture_lacks_is_one_line(runs: Path, tmp_path: Path, capfd):
    png, svg, out = (tmp_path / f"map.{ending}" for ending in ("png", "svg", "html"))
    text = "你好吗 \x01 one"
    words = ["--png", png, "--svg", svg, "--out", out, "--no-effect"]
    assert attend(runs / "text", text, *words) == 0
    told = capfd.readouterr().err
    assert told.count("its font") == 1 and "Warning" not in told
    line = "its font lacks 3 characters (你 吗 好); the HTML page has them"
    assert f"regard: {png}: {line}\n" in told
    assert "你好吗" in out.read_text("utf-8") and "你好吗" in svg.read_text("utf-8")
    assert r"\x01" in svg.read_text("utf-8") and "\x01" not in svg.read_text("utf-8")


def test_mistakes_end_in_one_line(runs: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = runs / "text"
    for words, said in (
        ([text, "one", "two", "three"], "put a sentence in quotes"),
        ([text, "one", "two", "--against", text], "not both"),
        ([text, "one", "two", "--history", "hi"], "a history is of one input"),
        ([text, "one", "--out", "page.txt"], "must end in .html"),
        ([text, "one", "--png", "page.svg"], "must end in .png"),
        ([text, "one", "--layers", "a-b"], "not a list of layers; got a-b; as in 0,2-4"),
        ([text, "one", "--layers", "77"], "no such layer; got 77"),
        (
            [runs / "recurrent", "one", "--layers", "5"],
            "no such layer; got 5; there are the layers 0",
        ),
        ([text, "one", "--png", "a.png", "--layer", "9"], "no such layer; got 9"),
        ([text, "  "], "the prompt is empty"),
        ([runs / "picture", "missing.png"], "missing.png"),
        ([runs / "picture", runs / "in.png", "--history", "hi"], "a history is for chats"),
        ([tmp_path / "nothing", "one"], "no such run"),
        ([text, "one", "--set", "num_beans=2"], "num_beams"),
        ([runs / "plain", "one", "--no-effect"], "all there is to show; leave --no-effect"),
    ):
        assert said in one_line(capsys, "attend", *words), words
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("builtins.__import__", "('cli',)"),
        ("regard.bundle.load", ""),
        ("regard.pages.attend.ask", ""),
        ("regard.pages.attend.effects", ""),
        ("regard.pages.shell.render", ""),
        ("regard.disk.sync", "page.html"),
        ("regard.disk.sync", "map.png"),
    ],
)
def test_ctrl_c_ends_in_one_line_and_older_files_are_intact(
    runs: Path, tmp_path: Path, place: str, text: str
):
    files = [tmp_path / "page.html", tmp_path / "map.png"]
    words = ["--greedy", "--effect", "--out", files[0], "--png", files[1]]
    assert attend(runs / "text", "one two", *words) == 0
    before = {path: path.read_bytes() for path in files}
    command = ["attend", runs / "text", "two three one", *words]
    new = place in ("builtins.__import__", "regard.bundle.load")
    done = run_with_signal(signal.SIGINT, place, command, text=text, new=new)
    assert done.returncode == 130
    lines = done.stderr.splitlines()
    waits = [line for line in lines if line.endswith(" …")]  # a busy machine
    assert lines == [*waits, "regard: stopped"]
    assert files[1].read_bytes() == before[files[1]]
    page_is_new = text == "map.png"
    assert (files[0].read_bytes() != before[files[0]]) == page_is_new
    assert sorted(tmp_path.iterdir()) == sorted(files)
