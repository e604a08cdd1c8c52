"""`inspect`, `train --data` and `evaluate --data` recognise a path alike, and what they print
can be typed."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard import cli, recipe
from regard.data import captions, detect
from regard.data import recordings as recordings_of
from regard.data.detect import recognise
from regard.data.inspect import inspect
from regard.data.kinds import KINDS
from regard.data.lines import Tally
from regard.errors import DataError
from tests.tiny import LABELS, PAIRS, WORDS, captions_table, pictures_folder, sounds_table

# -- a small one of every kind----------------------------------------------------------------------


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def pairs(home: Path) -> Path:
    rows = [
        f"{17 * i},{prompt},{reply!r}"
        for i, (prompt, reply) in enumerate(zip(*texts(), strict=True))
    ]
    return write(home / "my pairs.csv", "id,kunde,antwort_text", *rows)


def texts() -> tuple[list[str], list[str]]:
    prompts = [f"{prompt} {n}" for n in range(4) for prompt, _ in PAIRS]
    return prompts, [f"{reply.replace(',', '')} {n}" for n in range(4) for _, reply in PAIRS]


def messages(home: Path) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]}
        for prompt, reply in zip(*texts(), strict=True)
    ]
    return write(home / "chat.jsonl", *map(json.dumps, rows))


def folder_of_one_table(home: Path) -> Path:
    write(
        home / "one" / "pairs.tsv",
        *(f"{prompt}\t{reply}" for prompt, reply in zip(*texts(), strict=True)),
    )
    return home / "one"


def turns() -> list[list[str]]:
    """A dialogue for each neighbouring two pairs, of four turns."""
    return [[*PAIRS[i], *PAIRS[i - 1]] for i in range(len(PAIRS))]


def json_dialogues(home: Path) -> Path:
    lines = [json.dumps({"id": i, "dialog": said}) for i, said in enumerate(turns())]
    return write(home / "mine.jsonl", *lines, *(json.dumps(said[::-1]) for said in turns()))


def text_dialogues(home: Path) -> Path:
    return write(home / "talks.txt", *("\n".join([*said, ""]) for said in turns()))


def dailydialog(home: Path) -> Path:
    lines = [" ".join(f"{turn} __eou__" for turn in said) for said in turns()]
    write(home / "daily" / "dialogues_train.txt", *lines[:8])
    write(home / "daily" / "dialogues_validation.txt", *lines[8:])
    return home / "daily"


def cornell(home: Path) -> Path:
    said = [text for pair in PAIRS for text in pair]
    lines = (
        f"L{i} +++$+++ u{i % 2} +++$+++ m0 +++$+++ A +++$+++ {text}" for i, text in enumerate(said)
    )
    write(home / "corpus" / "inside" / "movie_lines.txt", *lines)
    conversations = [
        f"u0 +++$+++ u1 +++$+++ m0 +++$+++ ['L{i}', 'L{i + 1}', 'L{i + 2}']"
        for i in range(0, len(said) - 2, 2)
    ]
    write(home / "corpus" / "inside" / "movie_conversations.txt", *conversations)
    return home / "corpus"


def parallel(home: Path) -> Path:
    write(home / "two" / "a.en", *(f"{prompt} Now {n}." for n in range(3) for prompt, _ in PAIRS))
    write(home / "two" / "a.de", *(f"{reply} Nun {n}." for n in range(3) for _, reply in PAIRS))
    return home / "two"


def labelled(home: Path) -> Path:
    rows = [
        f"{prompt} {n},{1 + (i + n) % 5}" for n in range(4) for i, (prompt, _) in enumerate(PAIRS)
    ]
    return write(home / "reviews.csv", "review,stars", *rows)


def labelled_files(home: Path) -> Path:
    write(home / "polarity" / "neg.txt", *(f"{prompt} never" for prompt, _ in PAIRS))
    write(home / "polarity" / "pos.txt", *(f"{prompt} again" for prompt, _ in PAIRS))
    return home / "polarity"


def labelled_folders(home: Path) -> Path:
    for i, ((prompt, _), label) in enumerate(zip(PAIRS, LABELS, strict=True)):
        write(home / "texts" / label / f"{i}.txt", prompt)
    return home / "texts"


def text(home: Path) -> Path:
    return write(
        home / "novel.txt",
        *(f"{reply} And so it was on day {n}." for n in range(4) for _, reply in PAIRS),
    )


def medmnist_file(home: Path) -> Path:
    draw, arrays = np.random.default_rng(1), {}
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = draw.integers(0, 256, (12, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = np.arange(12)[:, None] % 3
    (home / "medmnist").mkdir()
    np.savez(home / "medmnist" / "it.npz", **arrays)
    return home / "medmnist" / "it.npz"


def medmnist_folder(home: Path) -> Path:
    return medmnist_file(home).parent


def photographs(folder: Path) -> Path:
    folder.mkdir(parents=True)
    draw = np.random.default_rng(7)
    for number in range(6):
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def flickr8k(home: Path) -> Path:
    photographs(home / "flickr" / "images")
    lines = (
        f"{i // 2}.png#{i % 2}\tA picture of it: {reply}" for i, (_, reply) in enumerate(PAIRS)
    )
    write(home / "flickr" / captions.TOKENS, *lines)
    return home / "flickr"


def coco(home: Path) -> Path:
    photographs(home / "coco" / "train2017")
    whole = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(6)],
        "annotations": [
            {"image_id": i % 6, "caption": reply} for i, (_, reply) in enumerate(PAIRS)
        ],
    }
    return write(home / "coco" / "captions_train2017.json", json.dumps(whole))


def captioned_folder(home: Path) -> Path:
    photographs(home / "album" / "images")
    rows = (
        f"images/{i % 6}.png;What I saw is this: {reply}"
        for i, (_, reply) in enumerate(sorted(PAIRS))
    )
    write(home / "album" / "captions.csv", "image;caption", *sorted(rows))
    return home / "album"


def recordings(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    draw = np.random.default_rng(7)
    for name in names:
        soundfile.write(folder / name, draw.uniform(-0.5, 0.5, 2400), 8000)


def ljspeech(home: Path) -> Path:
    recordings(home / "lj" / "wavs", [f"L{i}.wav" for i in range(10)])
    write(home / "lj" / "metadata.csv", *(f"L{i}|{word}|{word}" for i, word in enumerate(WORDS)))
    return home / "lj"


def fsdd(home: Path) -> Path:
    recordings(
        home / "fsdd" / "recordings",
        [f"{d}_{who}_{i}.wav" for d in (0, 7) for who in "ab" for i in range(8)],
    )
    return home / "fsdd"


def wavs_with_a_table(home: Path) -> Path:
    recordings(home / "clips", [f"{i}.wav" for i in range(10)])
    write(
        home / "clips" / "meta.csv",
        "file,gesagt",
        *(f"{i}.wav,{word} again {i}" for i, word in enumerate(WORDS)),
    )
    return home / "clips"


MAKERS = {
    "pairs": pairs,
    "dialogues of messages": messages,
    "dialogues in JSON": json_dialogues,
    "dialogues in a text": text_dialogues,
    "dailydialog": dailydialog,
    "dailydialog in a file": lambda home: dailydialog(home) / "dialogues_train.txt",
    "pairs in a folder": folder_of_one_table,
    "cornell": cornell,
    "parallel": parallel,
    "labelled": labelled,
    "labelled by file": labelled_files,
    "labelled by folder": labelled_folders,
    "text": text,
    "pictures": pictures_folder,
    "medmnist": medmnist_file,
    "medmnist in a folder": medmnist_folder,
    "flickr8k": flickr8k,
    "coco": coco,
    "captioned": captions_table,
    "captioned in a folder": captioned_folder,
    "ljspeech": ljspeech,
    "fsdd": fsdd,
    "sounds": sounds_table,
    "sounds in a folder": wavs_with_a_table,
}
WITH_FILES = [name for name, kind in KINDS.items() if kind.words]
assert {name.split()[0] for name in MAKERS} == set(WITH_FILES)


# -- every kind, at both doors----------------------------------------------------------------------

TINY = {
    "encoder.width": "16",
    "encoder.heads": "2",
    "encoder.layers": "1",
    "encoder.embedding_width": "16",
    "decoder.width": "16",
    "decoder.heads": "2",
    "decoder.layers": "1",
    "decoder.hidden": "[8]",
    "source.size": "[16, 16]",
    "source.channels": "[4, 8]",
    "source.mels": "16",
    "tokenizer.min_count": "1",
    "search.candidates": "1",
    "search.num_beams": "1",
    "search.max_new_tokens": "4",
    "search.mmi_weight": "0.0",
}


def tiny(name: str) -> list[str]:
    """What makes a recipe of this name small, as far as it has such fields."""
    whole = recipe.load(name).to_json()
    sections = {
        f"{section}.{field}"
        for section, fields in whole.items()
        if isinstance(fields, dict)
        for field in fields
    }
    fields = {key: value for key, value in TINY.items() if key in sections}
    if name == "speech-fsdd":
        del fields["source.channels"]  # it has three strides
    return [word for key, value in fields.items() for word in ("--set", f"{key}={value}")]


def typed(capsys, *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.parametrize("name", MAKERS)
def test_what_inspect_prints_can_be_typed(name: str, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = MAKERS[name](tmp_path)
    code, out, err = typed(capsys, "data", "inspect", path)
    assert code == 0, err
    assert f"{path}: {name.split()[0]}, " in out
    command = shlex.split(out.rpartition("train on it with: ")[2])
    small = ["--steps", "1", *tiny(command[2])]
    code, out, err = typed(capsys, *command[1:], *small, "--out", tmp_path / "printed")
    assert code == 0, err
    assert (tmp_path / "printed" / "model.safetensors").exists()

    note = inspect(path).get("note", "")
    assert note in out
    code, out, err = typed(
        capsys, "train", command[2], "--data", path, *small, "--out", tmp_path / "given"
    )
    assert code == 0, err
    printed, given = (
        json.loads((tmp_path / run / "recipe.json").read_text()) for run in ("printed", "given")
    )
    assert printed["data"] == given["data"]


# -- recipes that do not fit------------------------------------------------------------------------

READERS = [  # one recipe for each task and what it reads
    "chat-attention",
    "translate-attention",
    "sentiment-lstm",
    "image-pool",
    "speech-attention",
    "caption-attention",
    "blank-rnn",
]


def test_each_task_is_among_the_readers():
    tasks = {(each.task, each.source.kind == "tokens") for each in map(recipe.load, recipe.names())}
    assert {
        (each.task, each.source.kind == "tokens") for each in map(recipe.load, READERS)
    } == tasks


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("each")) for name, make in MAKERS.items()}


@pytest.mark.parametrize("name", MAKERS)
def test_a_recipe_that_does_not_fit_is_answered_with_those_that_do(
    name: str, one_of_each, capsys, tmp_path
):
    kind, path = name.split()[0], one_of_each[name]
    refused = 0
    for reader in READERS:
        own = recipe.load(reader)
        if detect.fits(kind, own.task, own.source.kind):
            continue
        if kind == "labelled" and path.is_dir() and reader == "blank-rnn":
            continue  # a folder of texts is text too
        if name == "dialogues in a text" and reader == "blank-rnn":
            continue  # so it is
        if name == "dialogues of messages" and reader == "translate-attention":
            continue  # they are pairs too
        code, out, err = typed(capsys, "train", reader, "--data", path, "--out", tmp_path / "run")
        assert code == 2 and out == "" and err.count("\n") == 1
        assert (
            f"this is {KINDS[kind].words}, which {reader} does not learn from; "
            "try: regard train " in err
        )
        assert "data.kind" not in err or "add --set data.kind=pairs" in err
        command = shlex.split(err.partition("try: ")[2].partition(" (or ")[0].partition("; ")[0])
        others = re.search(r" \(or ([^)]*)\)", err)
        for offered in (command[2], *(others[1].split(", ") if others else ())):
            whole = recipe.load(offered)
            assert detect.fits(kind, whole.task, whole.source.kind)
            assert detect.recognise(path, task=whole.task, source=whole.source.kind).kind == kind
        refused += 1
    assert refused >= 5


@pytest.mark.parametrize("kind", KINDS)
def test_every_recipe_that_is_offered_exists_and_reads_this_kind(kind: str):
    known = KINDS[kind]
    assert set(known.recipes) == {task for task, kinds in recipe.READS.items() if kind in kinds}
    for task, names in known.recipes.items():
        for name in names:
            whole = recipe.load(name)
            assert whole.task == task and detect.fits(kind, task, whole.source.kind)


def test_labels_that_are_replies_can_be_learned_as_such(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    rows = [f"{prompt} {n}\t{'yes' if n % 2 else 'no'}" for n in range(4) for prompt, _ in PAIRS]
    path = write(tmp_path / "yes.tsv", *rows)
    small = ["--steps", "1", *tiny("chat-attention")]
    words = ["train", "chat-attention", "--data", path, *small, "--out", tmp_path / "r"]
    code, _, err = typed(capsys, *words)
    assert code == 2 and "this is labelled text" in err and "add --set data.kind=pairs" in err
    code, _, err = typed(capsys, *words, "--set", "data.kind=pairs")
    assert code == 0, err
    code, _, err = typed(
        capsys, "evaluate", tmp_path / "r", "--data", shutil.copy(path, tmp_path / "other.tsv")
    )
    assert code == 0, err
    code, _, err = typed(
        capsys, "train", "--resume", tmp_path / "r", "--data", path, "--steps", "2"
    )
    assert code == 0, err


# -- columns at the door of train-------------------------------------------------------------------


def test_train_says_which_column_is_what_and_asks(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    words = ["--steps", "1", *tiny("chat-attention"), "--out", tmp_path / "run"]
    prompts, replies = texts()
    rows = [
        f"{prompt};{reply};Note of {reply}" for prompt, reply in zip(prompts, replies, strict=True)
    ]
    path = write(tmp_path / "three.csv", "kunde;von_uns;notiz", *rows)
    code, out, err = typed(capsys, "train", "chat-gru", "--data", path, *words)
    assert code == 2 and out == "" and err.count("\n") == 1
    command = shlex.split(err.partition("for example: ")[2])
    assert command[:5] == ["regard", "train", "chat-gru", "--data", str(path)]
    code, out, err = typed(capsys, *command[1:], *words)
    assert code == 0, err
    assert "columns: kunde, von_uns, notiz; source = kunde, target = von_uns; " in out
    assert "; text not used: notiz\n" in out
    kept = json.loads((tmp_path / "run" / "recipe.json").read_text())["data"]
    assert (kept["source_column"], kept["target_column"]) == ("kunde", "von_uns")
    one = ["--set", "data.source_column=kunde"]
    assert "not plain" in typed(capsys, "train", "chat-gru", "--data", path, *words, *one)[2]
    same = [*one, "--set", "data.target_column=kunde"]
    assert (
        "source and target are the same column"
        in typed(capsys, "train", "chat-gru", "--data", path, *words, *same)[2]
    )


def test_columns_of_labels_may_be_called_source_and_target(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    rows = [f"{prompt} {n},{n % 2},{n % 3}" for n in range(4) for prompt, _ in PAIRS]
    path = write(tmp_path / "t.csv", "said,mood,topic", *rows)
    words = [
        "train",
        "sentiment-lstm",
        "--data",
        path,
        "--steps",
        "1",
        *tiny("sentiment-lstm"),
        "--out",
        tmp_path / "r",
    ]
    assert "--set data.text_column=said --set data.label_column=mood" in typed(capsys, *words)[2]
    code, out, err = typed(
        capsys, *words, "--set", "data.source_column=said", "--set", "data.target_column=topic"
    )
    assert code == 0, err
    assert "text = said, label = topic" in out


def test_what_is_held_out_has_the_columns_of_what_trains(tmp_path: Path, capsys, monkeypatch):
    """Two rows alone would be taken for a table without a header."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = pairs(tmp_path)
    lines = path.read_text().splitlines()
    held_out = write(
        tmp_path / "valid.csv",
        "antwort_text,kunde",
        "A reply that comes first,Is it?",
        "Yes it does,Oh",
    )
    words = [
        "--set",
        f"data.valid_path={held_out}",
        "--steps",
        "1",
        *tiny("chat-attention"),
        "--out",
        tmp_path / "r",
    ]
    code, out, err = typed(capsys, "train", "chat-attention", "--data", path, *words)
    assert code == 0, err
    assert f"{len(lines) - 1} train, 2 valid" in out
    assert "Is it?  ->  " in out or "Oh  ->  " in out


# -- folders----------------------------------------------------------------------------------------


def test_several_data_sets_are_listed(tmp_path: Path, capsys):
    home = tmp_path / "all of it"
    home.mkdir()
    for make in (pairs, parallel, fsdd, ljspeech, medmnist_folder, flickr8k, cornell):
        make(home)
    write(home / "README.md", "What is here.")
    found = inspect(home)
    assert found["kind"] == "several"
    assert [one["kind"] for one in found["sets"]] == [
        "cornell",
        "flickr8k",
        "fsdd",
        "ljspeech",
        "medmnist",
        "pairs",
        "parallel",
    ]
    code, out, _ = typed(capsys, "data", "inspect", home)
    assert code == 0
    for line, one in zip(out.splitlines()[1:], found["sets"], strict=True):
        words = shlex.split(line.partition("#")[0])
        assert inspect(words[-1])["kind"] == one["kind"] and words[:3] == [
            "regard",
            "data",
            "inspect",
        ]
    code, out, err = typed(capsys, "train", "chat-attention", "--data", home)
    assert code == 2 and out == "" and err.count("\n") == 1
    offered = shlex.split(err.partition("give one: ")[2])
    paths = [path for option, path in zip(offered, offered[1:], strict=False) if option == "--data"]
    assert [detect.recognise(path).kind for path in paths] == [one["kind"] for one in found["sets"]]


def test_parts_are_no_labels(tmp_path: Path):
    for part in ("train", "val"):
        shutil.copytree(pictures_folder(tmp_path / f"made-{part}"), tmp_path / "split" / part)
        shutil.copytree(labelled_folders(tmp_path / f"texts-{part}"), tmp_path / "texts" / part)
        write(
            tmp_path / "tables" / f"{part}.csv",
            "text,label",
            *(f"text {n},{n % 2}" for n in range(20)),
        )
    for folder, kind in (("split", "pictures"), ("texts", "labelled"), ("tables", "labelled")):
        sets = inspect(tmp_path / folder)["sets"]
        assert [(Path(one["path"]).stem, one["kind"]) for one in sets] == [
            ("train", kind),
            ("val", kind),
        ]


def test_dialogues_with_marks_are_not_taken_for_labels_or_sentences(tmp_path: Path, capsys):
    home = dailydialog(tmp_path)
    for path in (home, home / "dialogues_train.txt"):
        code, _, err = typed(capsys, "train", "blank-rnn", "--data", path)
        assert code == 2 and "this is a corpus of dialogues (DailyDialog), which" in err
        assert err.count("\n") == 1
    (home / "dialogues_train.txt").rename(home / "a.txt")
    (home / "dialogues_validation.txt").rename(home / "b.txt")
    code, _, err = typed(capsys, "data", "inspect", home)
    assert code == 2 and f"give the file: --data {home / 'a.txt'}" in err


def test_a_text_with_a_turn_a_line_is_dialogues_or_sentences(tmp_path: Path, capsys):
    """Whichever the task learns from."""
    path = text_dialogues(tmp_path)
    assert recognise(path, task="blank", source="tokens").kind == "text"
    assert recognise(path, task="chat", source="tokens").kind == "dialogues"
    poems = write(tmp_path / "poems.txt", *["Wide,", "The sea is very blue today.", ""] * 9)
    assert recognise(poems).kind == "text"
    assert recognise(poems, task="chat", source="tokens").kind == "dialogues"


def test_messages_are_pairs_where_dialogues_do_not_fit(tmp_path: Path):
    path = messages(tmp_path)
    assert recognise(path, task="translate", source="tokens").kind == "pairs"
    assert recognise(path, task="chat", source="tokens", kind="pairs").kind == "pairs"


def test_a_table_beside_its_pictures_is_captions_and_not_one_label(tmp_path: Path):
    assert inspect(captioned_folder(tmp_path))["kind"] == "captioned"
    home = pictures_folder(tmp_path)
    write(
        home / "labels.csv",
        "file,label",
        *(f"{label}/{i}.png,{label}" for i, label in enumerate(LABELS)),
    )
    assert inspect(home)["kind"] == "pictures"


def test_metadata_of_other_columns_is_a_table(tmp_path: Path):
    """As the Hugging Face hub has folders of sounds."""
    recordings(tmp_path / "wavs", [f"{i}.wav" for i in range(10)])
    rows = [f"wavs/{i}.wav,{word} and so on" for i, word in enumerate(WORDS)]
    write(tmp_path / "metadata.csv", "file_name,transcription", *rows)
    found = inspect(tmp_path)
    assert (found["kind"], found["usable"]) == ("sounds", 10)


@pytest.mark.long
def test_real_folders(shared_data: Path):
    kinds = {one["kind"] for one in inspect(shared_data)["sets"]}
    texts = {"pairs", "cornell", "dailydialog", "parallel"}
    assert kinds == texts | {"flickr8k", "fsdd", "ljspeech", "medmnist"}
    record = inspect(shared_data / "dailydialog")
    assert record["usable"] > 80_000 and record["dialogues"] > 11_000


# -- evaluate---------------------------------------------------------------------------------------


def test_evaluate_recognises_what_train_does(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    words = [
        "train",
        "chat-attention",
        "--data",
        pairs(tmp_path),
        "--steps",
        "1",
        *tiny("chat-attention"),
    ]
    assert typed(capsys, *words, "--out", run)[0] == 0
    for make in (messages, folder_of_one_table, pairs, cornell):
        code, out, err = typed(
            capsys, "evaluate", run, "--data", make(tmp_path), "--json", "--limit", "2"
        )
        assert code == 0, err
        assert json.loads(out)["examples"] > 0
    for make, words in ((labelled, "labelled text"), (text, "plain text")):
        code, out, err = typed(capsys, "evaluate", run, "--data", make(tmp_path))
        assert code == 2 and f"this is {words}, which a run for chat does not learn from" in err
        assert err.count("\n") == 1


def test_evaluate_takes_a_folder_of_two_languages(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    home, run = parallel(tmp_path), tmp_path / "run"
    for language, line in (("en", "Who are you?"), ("de", "Wer bist du?")):
        with gzip.open(home / f"val.{language}.gz", "wt") as file:
            file.writelines(f"{line} {n}\n" for n in range(3))
    words = [
        "train",
        "translate-attention",
        "--data",
        home,
        "--steps",
        "1",
        *tiny("translate-attention"),
    ]
    code, _, err = typed(capsys, *words, "--out", run)
    assert code == 0, err
    code, out, err = typed(capsys, "evaluate", run, "--data", home, "--json")
    assert code == 0, err
    assert json.loads(out)["examples"] == 3  # what validates, not what trained


# -- folders of files and tables--------------------------------------------------------------------


def wave(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.sin(np.arange(4000) / 7) / 2, 8000)


@pytest.mark.parametrize("suffix", ["", ".wav"])
def test_a_table_of_sounds_in_a_folder_beside_it(tmp_path: Path, suffix: str):
    home = tmp_path / "recordings of mine"
    rows = []
    for number in range(8):
        wave(home / "clips" / f"take{number}.wav")
        speaker = ("Anna Lee", "Bo Rand")[number % 2]
        rows.append(
            f"take{number}{suffix},2024-03-0{1 + number},{speaker},Sentence number {number}."
        )
    write(home / "list.csv", "file name,recorded,speaker,what was said", *rows)

    for path in (home, home / "list.csv"):
        found = inspect(path)
        assert (found["kind"], found["usable"]) == ("sounds", 8), found
        assert "path = file name, text = what was said" in found["note"]
        assert found["train"].startswith("regard train speech-attention --data ")

    for file in (home / "clips").iterdir():
        file.unlink()
    columns: dict[str, Any] = {"path_column": "file name", "text_column": "what was said"}
    how = recordings_of.Hearing(8000, 60.0)
    with pytest.raises(DataError) as caught:
        list(recordings_of.read_sounds(home / "list.csv", how=how, **columns, tally=Tally()))
    assert "none of its sounds is there" in str(caught.value)
    assert f"looked for in {home}, {home / 'clips'}" in str(caught.value)


def test_sounds_with_a_text_file_each_are_refused(tmp_path: Path):
    for number in range(3):
        wave(tmp_path / f"{number}.wav")
        (tmp_path / f"{number}.txt").write_text(f"Sentence {number}.\n")
    with pytest.raises(DataError) as caught:
        recognise(tmp_path)
    assert "a folder of sounds without a table" in str(caught.value)
    assert "got 3 sounds, 3 of them with a .txt file" in str(caught.value)


def test_labels_that_occur_once_are_no_labels(tmp_path: Path):
    for number in range(4):
        (tmp_path / f"story{number}.txt").write_text("It was a dark night. The end came soon.\n")
    assert recognise(tmp_path).kind == "text"


def test_columns_of_a_folder_are_those_of_its_table(tmp_path: Path, capsys):
    rows = [f"Why {n} of them?,Because {n} is enough.,A note on {n}." for n in range(12)]
    write(tmp_path / "one" / "t.csv", "a,b,c", *rows)
    code, _, err = typed(capsys, "data", "inspect", tmp_path / "one")
    assert code == 2 and "--set data.source_column=a --set data.target_column=b" in err
    columns = ["--source-column", "c", "--target-column", "a"]
    code, out, err = typed(capsys, "data", "inspect", tmp_path / "one", *columns)
    assert code == 0 and "source = c, target = a" in out, err
    code, _, err = typed(capsys, "data", "inspect", fsdd(tmp_path / "other"), *columns)
    assert code == 2 and "has no columns to choose" in err


def test_a_json_array_is_not_coco(tmp_path: Path, capsys):
    pairs_of = [{"prompt": f"Why {n}?", "reply": f"Because {n}."} for n in range(5)]
    (tmp_path / "a.json").write_text(json.dumps(pairs_of, indent=1))
    code, _, err = typed(capsys, "data", "inspect", tmp_path / "a.json")
    assert code == 2 and "a JSON array" in err and ".jsonl" in err and "COCO" not in err
    write(tmp_path / "b.json", *map(json.dumps, pairs_of))
    assert inspect(tmp_path / "b.json")["usable"] == 5


def test_sharegpt_is_sent_to_messages(tmp_path: Path, capsys):
    row = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    write(tmp_path / "a.jsonl", *[json.dumps(row)] * 3)
    code, _, err = typed(capsys, "data", "inspect", tmp_path / "a.jsonl")
    assert code == 2 and "ShareGPT" in err and '"messages"' in err


def test_a_run_is_no_data(tmp_path: Path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("manifest.json", "recipe.json", "tokenizer.json"):
        (run / name).write_text("{}")
    code, _, err = typed(capsys, "data", "inspect", run)
    assert code == 2 and f"a run, not data; regard ask {run} or regard evaluate {run}" in err


def test_two_languages_are_given_as_their_folder(tmp_path: Path):
    home = tmp_path / "mine"
    write(home / "a.en", *[f"sentence {n}" for n in range(7)])
    write(home / "a.de", *[f"Satz {n}" for n in range(7)])
    assert inspect(home)["train"] == f"regard train translate-attention --data {home}"
