"""Every Python block of docs/python.md runs, from top to bottom, against small runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import regard
from regard import build, bundle, recipe
from regard.tokenizers import Characters, Labels, Tokenizer, Words
from regard.weights import tensors
from tests.tiny import PAIRS

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
SMALL = {"encoder.width": 48, "tokenizer.min_count": 1, "data.valid": 0.2, "train.warmup_steps": 1}
CAPTIONS = Words(["a", "dog", "runs", "."])


def untrained(folder: Path, name: str, tokenizer: Tokenizer) -> None:
    """A run with random weights."""
    chosen = recipe.load(name)
    torch.manual_seed(7)
    model = build.model(chosen, vocabulary=tokenizer.size, source_vocabulary=tokenizer.source_size)
    folder.mkdir()
    bundle.create(folder, chosen, tokenizer)
    bundle.put_weights(folder, tensors(model))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs and files that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    lines = [f"{prompt}\t{reply}\n" for prompt, reply in PAIRS]
    Path("pairs.tsv").write_text("".join(lines), "utf-8")
    regard.train(
        "chat-attention", data="pairs.tsv", out="runs/demo", steps=3, set=SMALL, quiet=True
    )
    for name, tokenizer in {
        "image-pool": Labels(list("0123456789")),
        "speech-attention": Characters(list(" abcdefgh")),
        "caption-attention": CAPTIONS,
    }.items():
        untrained(tmp_path / "runs" / name, name, tokenizer)

    draw = np.random.default_rng(7)
    for name in ("seven.png", "dog.png"):
        Image.fromarray(draw.integers(0, 256, (31, 29, 3), np.uint8)).save(name)
    soundfile.write("hello.wav", 0.3 * draw.standard_normal(4001), 8000)
    return tmp_path


def test_every_block_runs(place: Path, capsys: pytest.CaptureFixture[str]):
    text = PAGE.read_text("utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python") >= 10
    names: dict[str, object] = {}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        code = block[1].replace("minutes=2", f"steps=2, set={SMALL!r}")
        exec(compile("\n" * line + code, str(PAGE), "exec"), names)  # noqa: S102 -- our own page
    assert (place / "maps.png").exists()
    assert 'did you mean "num_beams"?' in capsys.readouterr().out


def test_the_table_names_what_there_is():
    names = re.findall(r"`bot\.(\w+)\(", PAGE.read_text("utf-8"))
    assert names and all(callable(getattr(regard.Bundle, name)) for name in names)
