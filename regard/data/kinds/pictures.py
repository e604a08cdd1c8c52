"""Labelled pictures: scikit-learn's digits, folders of image files, MedMNIST."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Strict

from regard.data.kinds.kind import Contents, DataKind, DataSet, SourceForm, contents_of_paths
from regard.data.kinds.sections import Pictures, SplitSection
from regard.data.public import Download, PublicDataSet
from regard.fields import File, HeldOutFile, Whole

if TYPE_CHECKING:
    from regard.data.examples import Example
    from regard.data.lines import Tally

IMAGE = ("image-pool", "image-stride", "image-patches")


# -- digits-----------------------------------------------------------------------------------------


class DataDigits(SplitSection, Pictures):
    """The 1,797 handwritten digits of 8 x 8 pixels from scikit-learn; no download."""

    kind: Literal["digits"]


def _digits(section: DataDigits, form: SourceForm) -> Contents:
    from regard.data.labelled_pictures import digits_file, read_digits

    return Contents(partial(read_digits, **form.picture()), [digits_file()])


# -- folders----------------------------------------------------------------------------------------


class DataPictures(SplitSection, Pictures):
    """Image files, in one folder for each label."""

    kind: Literal["pictures"]
    path: File
    """The folder, relative to the folder the command runs in."""
    valid_path: HeldOutFile | None = None
    """A separate folder for validation; the share `valid` is then not held out."""
    test_path: HeldOutFile | None = None
    """A separate folder for testing; the share `test` is then not held out."""


def _pictures(section: DataPictures, form: SourceForm) -> Contents:
    from regard.data.labelled_pictures import folder_files, read_folders

    return contents_of_paths(
        section, lambda path: partial(read_folders, path, **form.picture()), folder_files
    )


# -- MedMNIST---------------------------------------------------------------------------------------


class DataMedmnist(Pictures):
    """A file of MedMNIST, with its own training, validation and test splits."""

    kind: Literal["medmnist"]
    path: File
    """The npz file, relative to the folder the command runs in."""
    test_first: Annotated[tuple[Whole, ...], Strict(False)] = ()
    """Number of test pictures of each class to use, from the first on; [182, 55, 42, 250] is the
    subset of 529 on which figures for OCTMNIST were reported; empty: all."""


def _medmnist(section: DataMedmnist, form: SourceForm) -> Contents:
    from regard.data.labelled_pictures import read_medmnist

    read = partial(read_medmnist, section.path, **form.picture())
    return Contents(
        partial(read, part="train"),
        [Path(section.path)],
        partial(read, part="val"),
        partial(read, part="test", first=section.test_first),
    )


def _recognise_medmnist(path: Path) -> DataSet | None:
    if not path.is_file() or not path.name.lower().removesuffix(".gz").endswith(".npz"):
        return None

    def read(*, tally: Tally) -> Iterator[Example]:
        from regard.data.labelled_pictures import read_medmnist

        return chain.from_iterable(
            read_medmnist(path, part=part, size=(28, 28), channels_in=1, tally=tally)
            for part in ("train", "val", "test")
        )

    return DataSet.at("medmnist", path, read)


def _is_medmnist(file: Path) -> bool:
    """Whether a file has the arrays of MedMNIST: other npz files are common."""
    if not file.name.lower().endswith(".npz"):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return "train_images.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


OCTMNIST = PublicDataSet(
    name="octmnist",
    what="OCTMNIST of MedMNIST: 109,309 retinal scans, 28 x 28 grey, 4 classes",
    licence="CC BY 4.0; cite Yang et al. 2023",
    downloads=(
        Download(
            "octmnist.npz",
            "https://zenodo.org/records/10519652/files/octmnist.npz?download=1",
            size=55_000_000,
            exact=False,
            sum="md5:c68d92d5b585d8d81f7112f81e2d0842",
        ),
    ),
    needs=("octmnist.npz",),
)


KINDS = (
    DataKind(
        section=DataDigits,
        contents=_digits,
        recipes={"classify": IMAGE},
    ),
    DataKind(
        section=DataPictures,
        contents=_pictures,
        recipes={"classify": IMAGE},
        words="a folder of pictures by label",
    ),
    DataKind(
        section=DataMedmnist,
        contents=_medmnist,
        recipes={"classify": IMAGE},
        words="a MedMNIST file",
        recognise=_recognise_medmnist,
        is_member=_is_medmnist,
        public=(OCTMNIST,),
    ),
)
