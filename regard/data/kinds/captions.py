"""Pictures with captions: drawn shapes, Flickr8k, COCO, tables of image files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from regard.data.kinds.kind import (
    LOOKED_AT,
    Contents,
    DataKind,
    DataSet,
    Reader,
    SourceForm,
    TableKind,
    contents_of_paths,
)
from regard.data.kinds.sections import Captions
from regard.data.public import Download, PublicDataSet
from regard.data.roles import CAPTIONED, Column
from regard.data.rows import is_json_lines
from regard.fields import Column as ColumnField
from regard.fields import File, HeldOutFile, Seed

if TYPE_CHECKING:
    from regard.data.album import ResizedPictures

CAPTION = ("caption-flickr8k", "caption-attention")


# -- drawn shapes-----------------------------------------------------------------------------------


class DataDrawn(Captions):
    """Synthetic pictures of coloured shapes, each with a caption; no download."""

    kind: Literal["drawn"]
    count: Annotated[int, Field(ge=100, le=1_000_000)] = 12_000
    """Number of pictures."""
    seed: Seed = 1
    """The seed they are drawn with."""


def _drawn(section: DataDrawn, form: SourceForm) -> Contents:
    from regard.data import drawn, pictures

    read = partial(drawn.read_drawn, count=section.count, seed=section.seed, **form.picture())
    return Contents(read, [Path(drawn.__file__), Path(pictures.__file__)])


# -- Flickr8k---------------------------------------------------------------------------------------


class DataFlickr8k(Captions):
    """Flickr8k: five captions for each picture, split by its own lists (dev is the validation
    set)."""

    kind: Literal["flickr8k"]
    path: File
    """The folder with Flickr8k.token.txt, or that file, relative to the folder the command runs
    in."""
    images: File | None = None
    """The folder or zip file of the pictures; not set: images, images.zip, Flicker8k_Dataset or
    similar, next to it."""


def _flickr8k(section: DataFlickr8k, form: SourceForm) -> Contents:
    from regard.data import captions

    pictures = _flickr8k_pictures(section.path, section.images, form)
    read = partial(captions.read_flickr8k, section.path, pictures=pictures)

    def reader(part: str) -> Reader | None:
        has_list = captions.flickr8k_list(section.path, part) is not None
        return partial(read, part=part) if has_list else None

    return Contents(
        partial(read, part="train"),
        captions.flickr8k_files(section.path, section.images),
        reader("valid"),
        reader("test"),
    )


def _flickr8k_pictures(path: Path | str, images: str | None, form: SourceForm) -> ResizedPictures:
    from regard.data.album import Album, ResizedPictures
    from regard.data.captions import flickr8k_images

    return ResizedPictures(lambda: Album(flickr8k_images(path, images)), **form.picture())


def _recognise_flickr8k(path: Path) -> DataSet | None:
    from regard.data import captions

    if path.is_dir():
        is_flickr8k = (path / captions.TOKENS).is_file()
    else:
        is_flickr8k = path.name.lower().removesuffix(".gz").endswith("token.txt")
    if not is_flickr8k:
        return None
    pictures = _flickr8k_pictures(path, None, LOOKED_AT)
    read = partial(captions.read_flickr8k, path, part=None, pictures=pictures, limit=1.0)
    return DataSet.at("flickr8k", path, read)


FLICKR8K = PublicDataSet(
    name="flickr8k-captions",
    what="Flickr8k: five English captions for each of 8,092 pictures, and the usual parts; "
    "not the pictures",
    licence="for research, not for trade; cite Hodosh, Young and Hockenmaier 2013",
    downloads=(
        Download(
            "Flickr8k_text.zip",
            "https://github.com/jbrownlee/Datasets/releases/download/Flickr8k/Flickr8k_text.zip",
            size=2_300_000,
            exact=False,
            sum="md5:bf6c1abcb8e4a833b7f922104de18627",
        ),
    ),
    keep=("*.txt",),
    needs=("Flickr8k.token.txt", "Flickr_8k.trainImages.txt", "Flickr_8k.devImages.txt"),
    size=10_200_000,
    members=50,
    wants="its pictures: a folder Images, or Images.zip, beside the sentences",
)


# -- COCO-------------------------------------------------------------------------------------------


class DataCoco(Captions):
    """Captions in COCO's JSON format, and a folder or zip file of pictures."""

    kind: Literal["coco"]
    path: File
    """The JSON file, captions_train2017.json for example, relative to the folder the command runs
    in."""
    images: File | None = None
    """The folder or zip file of the pictures; not set: train2017 for example, next to the JSON file
    or one level up."""
    valid_path: HeldOutFile | None = None
    """A separate JSON file for validation; the share `valid` is then not held out."""
    valid_images: HeldOutFile | None = None
    """The folder or zip file of the pictures of `valid_path`."""


def _coco(section: DataCoco, form: SourceForm) -> Contents:
    from regard.data import captions

    files = [Path(section.path), captions.coco_images(section.path, section.images)]
    train = _read_coco(section.path, section.images, form)
    if section.valid_path is None:
        return Contents(train, files)
    files.append(Path(section.valid_path))
    files.append(captions.coco_images(section.valid_path, section.valid_images))
    return Contents(train, files, _read_coco(section.valid_path, section.valid_images, form))


def _read_coco(path: Path | str, images: str | None, form: SourceForm) -> partial:
    from regard.data.album import Album, ResizedPictures
    from regard.data.captions import coco_images, read_coco

    pictures = ResizedPictures(lambda: Album(coco_images(path, images)), **form.picture())
    return partial(read_coco, path, pictures=pictures)


def _recognise_coco(path: Path) -> DataSet | None:
    """Any .json file but one with an object a line; an array of objects is refused."""
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    if not path.is_file() or not is_json or is_json_lines(path):
        return None
    return DataSet.at("coco", path, partial(_read_coco(path, None, LOOKED_AT), limit=1.0))


def _is_coco(file: Path) -> bool:
    name = file.name.lower()
    return name.startswith("captions_") and name.endswith(".json")


# -- tables-----------------------------------------------------------------------------------------


class DataCaptioned(Captions):
    """A table of image files and captions (CSV, TSV, JSON lines); several captions of one picture
    are in consecutive rows."""

    kind: Literal["captioned"]
    path: File
    """The table, relative to the folder the command runs in."""
    images: File | None = None
    """The folder or zip file of the pictures; not set: the folder of the table."""
    path_column: ColumnField | None = None
    """Name or number (from 1) of the column with the image files; not set: detected by its name
    ("path", "image", …) or contents."""
    text_column: ColumnField | None = None
    """Name or number (from 1) of the column with the captions; not set: detected by its name
    ("text", "caption", …) or contents."""
    valid_path: HeldOutFile | None = None
    """A separate table for validation; the share `valid` is then not held out."""
    test_path: HeldOutFile | None = None
    """A separate table for testing; the share `test` is then not held out."""


def _captioned(section: DataCaptioned, form: SourceForm) -> Contents:
    from regard.data.captions import captioned_files

    columns = section.columns
    return contents_of_paths(
        section,
        lambda path: partial(_read_table(path, section.images, form), **columns),
        partial(captioned_files, images=section.images, **columns),
    )


def _read_table(path: Path | str, images: str | None, form: SourceForm) -> partial:
    from regard.data.album import Album, ResizedPictures
    from regard.data.captions import read_captioned

    home = images or str(Path(path).parent)
    pictures = ResizedPictures(lambda: Album(home, anywhere=not images), **form.picture())
    return partial(read_captioned, path, pictures=pictures)


def _read_captioned(path: Path, source: Column, target: Column) -> Reader:
    columns = {"path_column": source, "text_column": target}
    return partial(_read_table(path, None, LOOKED_AT), **columns, limit=1.0)


KINDS = (
    DataKind(
        section=DataDrawn,
        contents=_drawn,
        recipes={"caption": ("caption-attention", "caption-transformer")},
    ),
    DataKind(
        section=DataFlickr8k,
        contents=_flickr8k,
        recipes={"caption": CAPTION},
        words="a set of pictures with captions (Flickr8k)",
        recognise=_recognise_flickr8k,
        public=(FLICKR8K,),
        elsewhere='where its pictures are (its captions: "regard data fetch flickr8k-captions")',
    ),
    DataKind(
        section=DataCoco,
        contents=_coco,
        recipes={"caption": CAPTION},
        words="a set of pictures with captions (COCO)",
        recognise=_recognise_coco,
        is_member=_is_coco,
        elsewhere="https://cocodataset.org",
    ),
    DataKind(
        section=DataCaptioned,
        contents=_captioned,
        recipes={"caption": ("caption-attention", "caption-transformer")},
        words="a table of pictures with captions",
        table=TableKind(CAPTIONED, _read_captioned),
    ),
)
