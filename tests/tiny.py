"""A corpus and a recipe so small that a model memorises them in seconds."""

from __future__ import annotations

import json
from pathlib import Path

PAIRS = [
    ("Hello!", "Hi there."),
    ("What is your name?", "I'm Ada, and you?"),
    ("How are you?", "I am doing well, thanks."),
    ("Do you like tea?", "Only with a biscuit."),
    ("Where do you live?", "In a small machine."),
    ("Tell me a joke.", "A horse walks into a bar."),
    ("Who wrote Faust?", "Goethe did."),
    ("What is two plus two?", "Four, I think."),
    ("Are you a robot?", "I don't know. Are you?"),
    ("Goodbye", "See you soon!"),
]


def pairs_file(folder: Path) -> Path:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{prompt}\t{reply}\n" for prompt, reply in PAIRS), "utf-8")
    return path


LIKED = ("tea", "rain", "chess", "jazz", "bread")


def dialogues_file(folder: Path) -> Path:
    """Dialogues whose last question is the same: its answer is in what was said before."""
    path = folder / "dialogues.jsonl"
    turns = [[f"I like {x}.", "Good.", "What do I like?", f"You like {x}."] for x in LIKED]
    path.write_text("".join(json.dumps(dialogue) + "\n" for dialogue in turns))
    return path


def text_file(folder: Path) -> Path:
    path = folder / "sentences.txt"
    path.write_text("".join(f"{reply}\n" for _, reply in PAIRS if len(reply.split()) > 2), "utf-8")
    return path


LABELS = ["joke", "fact", "fact", "taste", "fact", "joke", "fact", "fact", "fact", "taste"]


def labelled_file(folder: Path) -> Path:
    path = folder / "labelled.tsv"
    rows = zip(PAIRS, LABELS, strict=True)
    path.write_text(
        "text\tlabel\n" + "".join(f"{prompt}\t{label}\n" for (prompt, _), label in rows), "utf-8"
    )
    return path


def pictures_folder(folder: Path, side: int = 28) -> Path:
    """Ten pictures of noise in folders of three labels."""
    import numpy as np
    from PIL import Image

    draw, home = np.random.default_rng(7), folder / "pictures"
    for i, label in enumerate(LABELS):
        (home / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (side, side), np.uint8)).save(
            home / label / f"{i}.png"
        )
    return home


WORDS = ["red", "green", "blue", "on", "off", "up", "down", "left", "right", "stop"]


def sounds_table(folder: Path, rate: int = 8000, seconds: float = 0.24) -> Path:
    """Ten sounds of three tones each and a table of what they say: the files 0.wav to 9.wav."""
    import numpy as np
    import soundfile

    draw, home = np.random.default_rng(7), folder / "sounds"
    home.mkdir()
    for i in range(len(WORDS)):
        time = np.arange(int(rate * (seconds + 0.01 * i) / 3)) / rate
        tones = [np.sin(2 * np.pi * hertz * time) for hertz in draw.uniform(200, 3000, 3)]
        soundfile.write(home / f"{i}.wav", np.concatenate(tones) * 0.5, rate)
    table = home / "sounds.csv"
    table.write_text(
        "path,text\n" + "".join(f"{i}.wav,{word}\n" for i, word in enumerate(WORDS)), "utf-8"
    )
    return table


def memorised_sounds(path: Path, *more: str) -> list[str]:
    """Overrides that make a recipe for speech small, and free of whatever keeps it from
    memorising its examples."""
    none = (
        "time_masks=0",
        "mel_masks=0",
        "speed_perturbation=0.0",
        "tempo_perturbation=0.0",
        "trim=0.0",
        "spectral_tilt=0.0",
        "noise=0.0",
        "dropout=0.0",
    )
    return [
        "data.kind=sounds",
        f'data.path="{path}"',
        "data.valid=0.0",
        "data.test=0.0",
        "data.split=",
        "data.max_target=8",
        "source.rate=8000",
        "source.mels=20",
        "source.mel_rate=",
        "source.window=",
        "source.hop=",
        *(f"source.{one}" for one in none),
        "encoder.width=48",
        "encoder.layers=1",
        "encoder.dropout=0.0",
        "decoder.dropout=0.0",
        "train.label_smoothing=0.0",
        "train.weight_decay=0.0",
        "train.ema_decay=0.0",
        "train.minutes=",
        "train.epochs=",
        "train.schedule=cosine",
        "search.num_beams=1",
        "search.max_new_tokens=8",
        "train.warmup_steps=20",
        "train.learning_rate=5e-3",
        "train.max_grad_norm=1.0",
        "train.valid_every=1000",
        "train.save_every=1000",
        *more,
    ]


def memorised_pictures(path: Path, *more: str) -> list[str]:
    """The same for a recipe that reads pictures."""
    return [
        "data.kind=pictures",
        f'data.path="{path}"',
        "data.valid=0.0",
        "data.test=0.0",
        "data.test_first=",
        "source.random_crop=0.0",
        "decoder.dropout=0.0",
        "decoder.hidden_dropout=0.0",
        "train.label_smoothing=0.0",
        "train.weight_decay=0.0",
        "train.ema_decay=0.0",
        "train.optimiser=adamw",
        "train.epochs=",
        "train.warmup_steps=5",
        "train.learning_rate=2e-3",
        "train.max_grad_norm=1.0",
        "train.valid_every=1000",
        "train.save_every=1000",
        *more,
    ]


def captions_table(folder: Path, *, several: bool = True) -> Path:
    """A table of pictures of noise and ten sentences, of which some have `several`."""
    import numpy as np
    from PIL import Image

    draw, path = np.random.default_rng(7), folder / "captions.tsv"
    shown = [0, 0, 1, 1, 2, 3, 3, 3, 4, 5] if several else range(10)
    for number in sorted(set(shown)):
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    lines = (f"{number}.png\t{said}\n" for number, (_, said) in zip(shown, PAIRS, strict=True))
    path.write_text("path\ttext\n" + "".join(lines))
    return path


def memorised_captions(path: Path, *more: str) -> list[str]:
    """The same for a recipe that writes captions."""
    return [
        "data.kind=captioned",
        f'data.path="{path}"',
        "data.images=",
        "data.valid=0.0",
        "data.test=0.0",
        "tokenizer.min_count=1",
        "source.size=[32, 32]",
        "source.channels=[16, 32]",
        "source.random_crop=0.0",
        "source.horizontal_flip=false",
        "source.dropout=0.0",
        "decoder.width=48",
        "decoder.dropout=0.0",
        "search.num_beams=1",
        "train.label_smoothing=0.0",
        "train.weight_decay=0.0",
        "train.ema_decay=0.0",
        "train.epochs=",
        "train.minutes=",
        "train.warmup_steps=5",
        "train.learning_rate=2e-3",
        "train.valid_every=1000",
        "train.save_every=1000",
        *more,
    ]


def memorised(path: Path, *more: str) -> list[str]:
    """Overrides that make any recipe for text small, and free of whatever keeps it from
    memorising its examples."""
    kinds = {"labelled.tsv": "labelled", "sentences.txt": "text"}
    return [
        f"data.kind={kinds.get(path.name, 'pairs')}",
        f'data.path="{path}"',
        "data.valid_path=",
        "data.valid=0.0",
        "data.test=0.0",
        "encoder.width=48",
        "encoder.dropout=0.0",
        "decoder.dropout=0.0",
        "source.dropout=0.0",
        "source.word_dropout=0.0",
        "source.prompt_dropout=0.0",
        "search.mmi_weight=0.0",
        "search.max_new_tokens=27",  # the longest answer, in characters; untrained models write on
        "train.label_smoothing=0.0",
        "train.weight_decay=0.0",
        "train.ema_decay=0.0",
        "train.minutes=",
        "train.epochs=",
        "train.batch_tokens=4096",
        "train.warmup_steps=20",
        "train.learning_rate=5e-3",
        "train.max_grad_norm=1.0",
        "train.valid_every=1000",
        "train.save_every=1000",
        *more,
    ]


class Silent:
    """A reporter that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.losses: list[float] = []

    def began(self, facts) -> None:
        self.facts = facts

    def stepped(self, progress, loss, speed, done) -> None:
        self.losses.append(loss)

    def validated(self, record, samples) -> None:
        self.record, self.samples = record, samples

    def noted(self, message) -> None:
        self.notes.append(message)
