"""Pictures with sentences: every format gives the same examples, bad pictures are counted, and a
picture is kept and read once for all its sentences."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard import build, cli, recipe
from regard.bundle import load
from regard.data import captions, detect
from regard.data.batches import batches, ordered
from regard.data.lines import Tally
from regard.errors import DataError, InputError
from regard.evaluate import likelihood, questions
from regard.tasks.caption import Caption
from regard.tasks.sources import PictureSource
from regard.tokenizers import Words
from regard.train import train
from tests.tiny import Silent, captions_table, memorised_captions
from tests.unit.test_pictures import huge

SHARED = Path(__file__).parents[2] / "../shared/data"
FORM = dict(size=(5, 7), channels_in=3)
SAID = {
    "a.png": ["A dog runs .", "One dog", "Dogs on the left"],
    "b.png": ["A red house"],
    "c.png": ["Two men talk .", "People"],
}


def picture(seed: int) -> bytes:
    made = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)).save(
        made, "PNG"
    )
    return made.getvalue()


PICTURES = {name: picture(n) for n, name in enumerate(SAID)}
PAIRS = [(name, sentence) for name, sentences in SAID.items() for sentence in sentences]


def folder(home: Path, files: dict[str, bytes] = PICTURES) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (home / name).write_bytes(content)
    return home


def zipped(path: Path, files: dict[str, bytes] = PICTURES, inside: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(inside + name, content)
    return path


def flickr8k(home: Path, pairs=PAIRS) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}#{n}\t{sentence}\n" for n, (name, sentence) in enumerate(pairs)]
    (home / captions.TOKENS).write_text("".join(lines))
    return home


def coco(path: Path) -> Path:
    images = [{"id": n, "file_name": name} for n, name in enumerate(SAID)]
    said = [{"image_id": list(SAID).index(name), "caption": text} for name, text in PAIRS]
    path.write_text(json.dumps({"info": {}, "images": images, "annotations": said[::-1][::-1]}))
    return path


def fitted(place: Path, **how) -> captions.Fitted:
    return captions.Fitted(lambda: captions.Album(place, **how), **FORM)


def told(examples) -> list[tuple[str, str]]:
    return [(example.source.name, example.target) for example in examples]


# -- readers----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "Flicker8k_Dataset/"])
def test_every_format_gives_the_same(tmp_path, inside):
    album = (
        zipped(tmp_path / "images.zip", inside=inside) if inside else folder(tmp_path / "images")
    )
    readers = [
        lambda t: captions.read_flickr8k(
            flickr8k(tmp_path), part=None, fitted=fitted(album), tally=t
        ),
        lambda t: captions.read_coco(
            coco(tmp_path / "captions_x.json"), fitted=fitted(album), tally=t
        ),
    ]
    for kind, text in {
        "csv": "path,text\n" + "".join(f'{name},"{said}"\n' for name, said in PAIRS),
        "tsv": "caption\timage\n" + "".join(f"{said}\t{name}\n" for name, said in PAIRS),
        "jsonl": "".join(json.dumps({"text": said, "path": name}) + "\n" for name, said in PAIRS),
    }.items():
        (tmp_path / f"table.{kind}").write_text(text)
        path = tmp_path / f"table.{kind}"
        readers.append(
            lambda t, path=path: captions.read_captioned(path, fitted=fitted(album), tally=t)
        )
        assert detect.kind(path, "caption") == "captioned"
    for reader in readers:
        tally = Tally()
        examples = list(reader(tally))
        assert told(examples) == PAIRS and tally.used == 6 and not tally.skipped
        assert examples[0].source is examples[1].source  # one picture, once
        assert examples[0].source.values.shape == (5, 7, 3)
    assert detect.kind(tmp_path, "caption") == "flickr8k"
    assert detect.kind(tmp_path / "captions_x.json", "caption") == "coco"


def test_the_lists_are_parts_and_pictures_are_found(tmp_path):
    folder(flickr8k(tmp_path) / "Flicker8k_Dataset")
    (tmp_path / captions.LISTS["valid"]).write_text("b.png\n")
    where = captions.flickr8k_images(tmp_path)
    assert where.name == "Flicker8k_Dataset"
    found = told(
        captions.read_flickr8k(tmp_path, part="valid", fitted=fitted(where), tally=Tally())
    )
    assert found == [("b.png", "A red house")]
    assert (
        len(
            told(
                captions.read_flickr8k(tmp_path, part="train", fitted=fitted(where), tally=Tally())
            )
        )
        == 6
    )


def test_what_is_wrong_is_counted(tmp_path):
    files = PICTURES | {"b.png": b"no picture", "huge.png": huge()}
    pairs = [*PAIRS, ("gone.png", "x"), ("../b.png", "x"), ("huge.png", "x")]
    flickr8k(tmp_path, pairs)
    with (tmp_path / captions.TOKENS).open("a") as file:
        file.write("no number\tx\na.png#7\t \n")
    tally = Tally()
    assert (
        len(
            told(
                captions.read_flickr8k(
                    tmp_path, part=None, fitted=fitted(folder(tmp_path / "i", files)), tally=tally
                )
            )
        )
        == 5
    )
    assert tally.skipped == {
        "not a picture that can be read": 1,
        "no such picture": 1,
        "a picture outside its folder": 1,
        "the picture is too large": 1,
        "not a picture, a number and a sentence": 1,
        "empty side": 1,
    }


def test_a_table_without_a_header_may_speak_of_pictures(tmp_path):
    home = folder(tmp_path)
    names = sorted(PICTURES)
    (home / "t.tsv").write_text("".join(f"{name}\tA picture of a file\n" for name in names))
    assert detect.kind(home / "t.tsv", "caption") == "captioned"
    assert captions.captioned_files(home / "t.tsv")[1:] == [home / name for name in names]


def test_a_coco_file_that_is_none(tmp_path):
    path, tally = tmp_path / "captions_x.json", Tally()
    album = fitted(folder(tmp_path / "images"))
    for text, said in (
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        ('{"images": 3}', "must be lists"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            captions.read_coco(path, fitted=album, tally=Tally())
    whole = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2}, 7],
        "annotations": [{"image_id": 1, "caption": "x"}],
    }
    whole["annotations"] += [{"image_id": 9, "caption": "x"}, {"caption": "y"}, None]
    path.write_text(json.dumps(whole))
    assert told(captions.read_coco(path, fitted=album, tally=tally, limit=1.0)) == [("a.png", "x")]
    assert tally.skipped == {"missing field": 4, "dangling id": 1}


def test_a_zip_is_never_unpacked_and_not_trusted(tmp_path, monkeypatch):
    bad = {
        "../../evil.png": PICTURES["a.png"],
        "__MACOSX/a.png": b"",
        "a.png": PICTURES["a.png"],
        "b.png": bytes(9000),
    }
    path = zipped(tmp_path / "images.zip", bad)
    album = captions.Album(path)
    assert album.content("a.png") == PICTURES["a.png"]
    assert not (tmp_path.parent / "evil.png").exists() and list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="no such picture"):
        album.content("c.png")
    monkeypatch.setattr(captions, "LARGEST_FILE", 5000)
    with pytest.raises(InputError, match="too large"):
        album.content("b.png")
    monkeypatch.setattr("regard.data.pictures.LARGEST_FILE", 5000)
    with pytest.raises(InputError, match="too large"):
        captions.Album(Path("/dev")).content("zero")  # a file without an end
    whole = bytearray(path.read_bytes())
    whole[whole.index(PICTURES["a.png"]) + 40] ^= 0xFF  # one bit of the first picture
    path.write_bytes(whole)
    with pytest.raises(InputError, match="cannot be read from its zip"):
        captions.Album(path).content("../../evil.png")
    path.write_bytes(bytes(whole[:500]))
    with pytest.raises(DataError, match="not a whole zip"):
        captions.Album(path)


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
def test_flickr8k_itself():
    home, tally = SHARED / "flickr8k", Tally()
    album = captions.Fitted(
        lambda: captions.Album(captions.flickr8k_images(home)), size=(8, 8), channels_in=3
    )
    examples = list(captions.read_flickr8k(home, part="valid", fitted=album, tally=tally))
    assert len(examples) == tally.used == 5000 and not tally.skipped
    assert len({id(example.source) for example in examples}) == 1000


# -- several sentences for one picture--------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = memorised_captions(captions_table(tmp_path), "train.steps=1")
    return build.corpus(recipe.load("caption-attention", changes))


def test_a_picture_is_kept_once(corpus):
    part = corpus.train
    assert len(part) == 10 and part.groups is not None and len(part.groups) == 6
    assert len(part.source.values) == 6 * 32 * 32 * 3
    rows = part.gather_sources(range(10))
    for i in range(10):
        assert np.array_equal(rows[i], part.source[i])
    assert rows[part.groups[1]] is not rows[0] and len({id(row) for row in rows}) == 6
    chosen = recipe.load("caption-attention")
    task = build.task(chosen, corpus.tokenizer)
    asked = questions(part, task)
    assert [len(one.references) for one in asked] == np.diff([*part.groups, 10]).tolist()
    assert [one.shown for one in questions(part, task, at_most=2)] == [
        asked[0].shown,
        asked[3].shown,
    ]


def test_groups_stay_together(corpus):
    part = corpus.train
    source, target = np.full(10, 7), part.target.lengths + 1
    for made in (
        batches(source, target, tokens=60, groups=part.groups, seed=1, epoch=0),
        batches(source, target, tokens=10_000, most=2, groups=part.groups, seed=1, epoch=3),
        ordered(source, target, tokens=60, groups=part.groups),
    ):
        assert sorted(i for batch in made for i in batch) == list(range(10)) and len(made) > 2
        for batch in made:
            for start, end in zip(part.groups, [*part.groups[1:], 10], strict=True):
                assert len(set(range(start, end)) & set(batch.tolist())) in (0, end - start)
    rows = ordered(source[:4], target[:4], tokens=60, groups=part.groups)
    assert sorted(i for batch in rows for i in batch) == [
        0, 1, 2, 3,
    ]  # fmt: skip


@torch.no_grad()
def test_one_reading_for_all_its_sentences_is_the_same_as_one_for_each(corpus):
    chosen = recipe.load("caption-attention", memorised_captions(Path("x"), "train.steps=1"))
    model = build.model(chosen, vocabulary=corpus.tokenizer.size).eval()
    task, part = build.task(chosen, corpus.tokenizer), corpus.train
    targets = [part.target[i] for i in range(10)]
    shared = task.batch(part.gather_sources(range(10)), targets)
    apart = task.batch([part.source[i] for i in range(10)], targets)
    assert (
        len(shared.raw) == 6
        and shared.rows is not None
        and len(apart.raw) == 10
        and apart.rows is None
    )
    torch.testing.assert_close(model.loss(*shared), model.loss(*apart))
    assert likelihood(model, task, part).nats == pytest.approx(
        float(model.loss(*apart)[1]), rel=1e-5
    )


# -- what training shows----------------------------------------------------------------------------


def sample_task(**how) -> Caption:
    return Caption(
        tokenizer=Words.fit(["a dog to the left", "Right now"]), source=PictureSource(**FORM, **how)
    )


def test_nothing_is_mirrored_that_tells_left_from_right():
    task = sample_task(horizontal_flip=True)
    pictures = [np.arange(105, dtype=np.uint8).reshape(5, 7, 3) for _ in range(40)]
    targets = [
        np.array(task.tokenizer.encode(text))
        for text in ("a dog", "the left", "right")
        for _ in range(40)
    ]
    for first, mirrored in ((0, True), (40, False), (80, False)):
        seen = task.augment_pairs(pictures, targets[first : first + 40], np.random.default_rng(1))
        turned = [not np.array_equal(a, b) for a, b in zip(seen, pictures, strict=True)]
        assert any(turned) == mirrored and not all(turned)
        assert all(
            np.array_equal(a[:, ::-1], b)
            for a, b, t in zip(seen, pictures, turned, strict=True)
            if t
        )
    shared = [pictures[0]] * 40  # one picture with many sentences, one of which tells
    seen = task.augment_pairs(shared, [*targets[:39], targets[41]], np.random.default_rng(2))
    assert len({id(one) for one in seen}) == 1 and np.array_equal(seen[0], pictures[0])


def test_what_is_cut_out_is_a_part_and_a_function_of_the_draw():
    task = sample_task(random_crop=0.4)
    ramp = np.broadcast_to(np.arange(7, dtype=np.uint8)[None, :, None] * 30, (5, 7, 3)).copy()
    nothing = [np.empty(0, np.int64)] * 30
    one, two, other = (
        task.augment_pairs([ramp.copy() for _ in range(30)], nothing, np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    for seen in one:
        assert seen.shape == (5, 7, 3) and seen.dtype == np.uint8
        rows = seen[:, :, 0].astype(int)
        assert (np.diff(rows, axis=1) >= 0).all()  # still from dark to light
        assert 0.5 * 180 < rows[0, -1] - rows[0, 0] <= 180


def test_what_is_asked_is_left_as_it_is(tmp_path):
    (tmp_path / "a.png").write_bytes(PICTURES["a.png"])
    task = sample_task(random_crop=0.4, horizontal_flip=True, crop=True)
    raw, _ = task.read([str(tmp_path / "a.png")])
    again, _ = task.read([str(tmp_path / "a.png")])
    assert torch.equal(raw, again) and raw.shape == (1, 5, 7, 3)


# -- scores-----------------------------------------------------------------------------------------


def test_words_are_compared_without_case_and_marks():
    task = sample_task()
    scores = task.scores(
        ["A dog runs home.", "two men"], [["x", "a dog runs home"], ["Two men .", "three men"]]
    ).numbers
    assert scores["bleu_1"] == pytest.approx(100) and scores["bleu_4"] == pytest.approx(100)
    assert scores["exact"] == 0
    assert task.scores(["two men"], [["Two men", "two men"]]).numbers["exact"] == 1


# -- through the doors------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("caption")
    table = captions_table(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(home / "cache"))
        changes = memorised_captions(table, "train.steps=40")
        train(recipe.load("caption-attention", changes), home / "run", reporter=Silent())
    return home / "run"


def test_it_is_asked_for_the_best_and_draws_maps(run, tmp_path, capsys):
    given = str(run.parent / "0.png")
    assert (
        cli.main(
            ["ask", str(run), given, "--best", "3", "--json", "--maps", str(tmp_path / "maps.png")]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    scores = [one["score"] / (1 + len(one["answer"].split())) for one in told["best"]]
    assert len(scores) == 3 and told["best"][0]["answer"] == told["answer"]
    with Image.open(tmp_path / "maps.png") as drawn:
        assert drawn.format == "PNG" and drawn.width > 500
    assert cli.main(["ask", str(run), given, given, "--maps", str(tmp_path / "x.png")]) == 2
    assert "one picture" in capsys.readouterr().err and not (tmp_path / "x.png").exists()


def test_a_model_that_does_not_attend_has_no_maps(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    changes = memorised_captions(
        captions_table(tmp_path),
        "train.steps=1",
        "decoder.attention=none",
        "decoder.attention_order=after_cell",
    )
    train(recipe.load("caption-attention", changes), tmp_path / "run", reporter=Silent())
    run = str(tmp_path / "run")
    assert cli.main(["ask", run, str(tmp_path / "0.png"), "--maps", str(tmp_path / "x.png")]) == 2
    assert "does not attend" in capsys.readouterr().err


def test_bad_pictures_are_one_line_each(run, tmp_path, capsys):
    whole = PICTURES["a.png"]
    none = bytearray(whole)
    none[16:24] = bytes(8)  # 0 x 0, and the checksum of a head that was not so
    bad = {
        "cut.png": whole[: len(whole) // 2],
        "none.png": bytes(none),
        "huge.png": huge(),
        "text.jpg": b"<html>",
    }
    bad |= {
        "page.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "empty.gif": b"GIF89a" + bytes(7),
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        assert cli.main(["ask", str(run), str(tmp_path / name)]) == 2, name
        error = capsys.readouterr().err
        assert error.startswith("regard: ") and error.count("\n") == 1 and name in error


def test_a_training_says_what_it_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    table = captions_table(tmp_path)
    (tmp_path / "1.png").write_bytes(huge())
    changes = [
        word for change in memorised_captions(table, "train.steps=1") for word in ("--set", change)
    ]
    assert cli.main(["train", "caption-attention", "--out", str(tmp_path / "run"), *changes]) == 0
    assert "8 used, 2 skipped (the picture is too large 2)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["flickr8k", "coco", "captioned"])
def test_inspect_says_what_it_is(tmp_path, capsys, kind):
    folder(tmp_path / "images")
    if kind == "captioned":
        path = captions_table(tmp_path)
    else:
        path = flickr8k(tmp_path) if kind == "flickr8k" else coco(tmp_path / "captions_x.json")
    assert cli.main(["data", "inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"{kind}, {10 if kind == 'captioned' else 6} usable examples of" in said
    assert (
        f"regard train caption-{'attention' if kind == 'captioned' else 'flickr8k'} --data" in said
    )


def test_another_table_is_judged(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    other = captions_table(tmp_path)
    assert cli.main(["evaluate", str(run), "--data", str(other), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["examples"] == 10 and scores["prompts"] == 6
    assert {"bleu_1", "bleu_4", "chrf", "exact", "perplexity"} <= scores.keys()
    assert load(run).recipe.task == "caption"
