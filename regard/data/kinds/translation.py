"""Parallel text: spelled-out numbers that the program writes itself, and files in two languages."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regard.data.kinds.conversations import TRANSLATE
from regard.data.kinds.kind import Contents, DataKind, DataSet, Reader, SourceForm
from regard.data.kinds.sections import TextFiles, Texts
from regard.data.places import PACKED, files_at
from regard.data.public import Download, PublicDataSet
from regard.fields import File, HeldOutFile, Seed

VALID = ("val", "valid", "dev")
LANGUAGE = re.compile(r"(?P<part>.+)\.(?P<language>[a-z]{2})")


# -- synthetic--------------------------------------------------------------------------------------


class DataMadeTranslation(Texts):
    """Synthetic parallel text: English and German numbers and dates, spelled out; no download."""

    kind: Literal["made-translation"]
    count: Annotated[int, Field(ge=100, le=100_000)] = 10_000
    """Number of distinct pairs."""
    seed: Seed = 1
    """The seed they are drawn with."""


def _made_translation(section: DataMadeTranslation, form: SourceForm) -> Contents:
    from regard.data import spelled

    read = partial(spelled.read_spelled, count=section.count, seed=section.seed)
    return Contents(read, [Path(spelled.__file__)])


# -- two files--------------------------------------------------------------------------------------


class DataParallel(TextFiles):
    """Parallel text: two files in two languages, aligned line by line; also .gz or .zst."""

    kind: Literal["parallel"]
    path: File
    """The file to translate from, relative to the folder the command runs in."""
    target_path: File
    """The file with the translations, aligned line by line."""
    valid_target_path: HeldOutFile | None = None
    """The translation of `valid_path`."""
    test_target_path: HeldOutFile | None = None
    """The translation of `test_path`."""

    @model_validator(mode="after")
    def _both_sides(self) -> Self:
        for name in ("valid", "test"):
            if (getattr(self, f"{name}_path") is None) != (
                getattr(self, f"{name}_target_path") is None
            ):
                raise ValueError(
                    f"{name}_path and {name}_target_path need each other; got one of them"
                )
        return self

    def note(self) -> str:
        return f"files: source = {Path(self.path).name}, target = {Path(self.target_path).name}"


def _parallel(section: DataParallel, form: SourceForm) -> Contents:
    from regard.data.parallel import read_parallel

    files: list[Path] = []

    def reader(source: str | None, target: str | None) -> Reader | None:
        if source is None or target is None:
            return None
        files.extend([*files_at(source), *files_at(target)])
        return partial(read_parallel, source, target)

    train = reader(section.path, section.target_path)
    valid = reader(section.valid_path, section.valid_target_path)
    test = reader(section.test_path, section.test_target_path)
    assert train is not None
    return Contents(train, files, valid, test)


def _recognise_parallel(path: Path) -> DataSet | None:
    """train.en and train.de for example, also .gz: the part "train", or else the first one that is
    not held out, in two languages, English first; and the same two languages of a part to validate
    on."""
    if not path.is_dir():
        return None
    parts = _parts(path)
    in_two_languages = [part for part, files in parts.items() if len(files) >= 2]
    if not in_two_languages:
        return None
    part = min(in_two_languages, key=lambda part: (part != "train", _is_held_out(part), part))
    files = parts[part]
    source, target, *others = sorted(files, key=lambda language: (language != "en", language))

    fields: dict[str, object] = {
        "path": str(files[source]),
        "target_path": str(files[target]),
        "valid_path": None,
        "valid_target_path": None,
    }
    held_out: dict[str, object] | None = None
    for name in VALID:
        if name != part and {source, target} <= parts[name].keys():
            held_out = {"path": str(parts[name][source]), "target_path": str(parts[name][target])}
            fields["valid_path"] = held_out["path"]
            fields["valid_target_path"] = held_out["target_path"]
            break

    note = f"files: source = {files[source].name}, target = {files[target].name}"
    if others:
        note += f"; not used: {', '.join(files[language].name for language in others)}"

    from regard.data.parallel import read_parallel

    return DataSet(
        "parallel",
        path,
        fields,
        partial(read_parallel, files[source], files[target], limit=1.0),
        note,
        recipe="multi30k-transformer" if MULTI30K_PART in parts else "",
        held_out=held_out,
    )


def _parts(folder: Path) -> defaultdict[str, dict[str, Path]]:
    """The files called `part.language`, by part and language."""
    parts: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    for file in sorted(folder.iterdir()):
        name = file.name
        for suffix in (*PACKED, ".txt"):
            name = name.removesuffix(suffix)
        if file.is_file() and (match := LANGUAGE.fullmatch(name)):
            parts[match["part"]][match["language"]] = file
    return parts


def _is_held_out(part: str) -> bool:
    return part in (*VALID, "test")


# -- Multi30k---------------------------------------------------------------------------------------

MULTI30K_PART = "test_2016_flickr"  # a part that Multi30k has, and hardly anything else

# The commit of github.com/multi30k/dataset that sizes and SHA-256 are of.
_COMMIT = "2cc0f2d7c615b60e07e2d51bb5edc004444d7e0e"
_ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{_COMMIT}/data/task1/raw"
_FILES = {
    "train.cs.gz": (593827, "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077"),
    "train.de.gz": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.en.gz": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.fr.gz": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    "val.cs.gz": (22096, "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc"),
    "val.de.gz": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.en.gz": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.fr.gz": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
    f"{MULTI30K_PART}.cs.gz": (
        22572,
        "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1",
    ),
    f"{MULTI30K_PART}.de.gz": (
        22890,
        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    ),
    f"{MULTI30K_PART}.en.gz": (
        21077,
        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    ),
    f"{MULTI30K_PART}.fr.gz": (
        22310,
        "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    ),
}
MULTI30K = PublicDataSet(
    name="multi30k",
    what="Multi30k: 29,000 captions in Czech, German, English and French, with val and test 2016",
    licence="for research and teaching, not for trade; cite Elliott et al. 2016",
    downloads=tuple(
        Download(name, f"{_ADDRESS}/{name}", size=size, sum=f"sha256:{sha256}")
        for name, (size, sha256) in _FILES.items()
    ),
    needs=tuple(_FILES),
)


KINDS = (
    DataKind(
        section=DataMadeTranslation,
        contents=_made_translation,
        recipes={"translate": TRANSLATE},
    ),
    DataKind(
        section=DataParallel,
        contents=_parallel,
        recipes={"translate": (*TRANSLATE, "multi30k-transformer", "multi30k-attention")},
        words="a text in two languages",
        recognise=_recognise_parallel,
        public=(MULTI30K,),
    ),
)
