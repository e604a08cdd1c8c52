"""Pictures with labels: folders of image files, MedMNIST's npz files, scikit-learn's digits.

What cannot be read is counted and skipped.
"""

from __future__ import annotations

import gzip
import importlib.util
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from regard.data.examples import Example, Item, legible
from regard.data.lines import Tally
from regard.data.pictures import fitted, read_picture
from regard.data.reading import checked
from regard.data.roles import PICTURES
from regard.errors import DataError, InputError

LARGEST_ARRAY = 2 << 30  # bytes of one array of an npz file

Part = Literal["train", "val", "test"]

# -- folders----------------------------------------------------------------------------------------


def read_folders(
    path: Path | str,
    *,
    size: tuple[int, int],
    channels_in: int,
    crop: bool = False,
    tally: Tally,
    limit: float = 0.5,
) -> Iterator[Example]:
    """PATH/label/picture.png, and so on."""
    files = folder_files(path)

    def examples() -> Iterator[Example]:
        for file in files:
            try:
                item = read_picture(file, size=size, channels_in=channels_in, crop=crop)
            except InputError as problem:
                tally.skip(problem.what)
                continue
            tally.used += 1
            inner = file.relative_to(path)
            item = Item(inner.as_posix(), item.values, item.content)
            yield Example(item, legible(inner.parts[0]))

    return checked(examples(), path, tally, limit=limit)


def folder_files(path: Path | str) -> list[Path]:
    """The pictures in the folders of a folder, in the order of their names."""
    path = Path(path)
    if not path.is_dir():
        raise DataError(
            "no such folder", where=path, hint="a folder with one folder of pictures for each label"
        )
    files = []
    for folder in sorted(inner for inner in path.iterdir() if inner.is_dir()):
        pictures = (file for file in sorted(folder.rglob("*")) if file.is_file())
        files += [file for file in pictures if file.suffix.lower() in PICTURES]
    if not files:
        raise DataError(
            f"no usable examples in {path}",
            hint="one folder for each label, with pictures in it (png, jpg, bmp, gif, webp, tif)",
        )
    return files


# -- MedMNIST---------------------------------------------------------------------------------------


def read_medmnist(
    path: Path | str,
    *,
    part: Part,
    size: tuple[int, int],
    channels_in: int,
    crop: bool = False,
    first: Sequence[int] = (),
    tally: Tally,
) -> Iterator[Example]:
    """One part of an npz file with train_images, train_labels, val_…, test_… . `first` keeps
    only the first so many pictures of each class; with [182, 55, 42, 250] the test part of
    OCTMNIST is the subset of 529."""
    images, labels = medmnist_arrays(path, part)

    def examples() -> Iterator[Example]:
        left = Counter(dict(enumerate(first)))
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            if first:
                if not left[label]:
                    continue
                left[label] -= 1
            tally.used += 1
            values = fitted(image, size=size, channels_in=channels_in, crop=crop)
            yield Example(Item(f"{part}/{i}", values, image.tobytes()), str(label))

    return checked(examples(), path, tally, limit=0.5)


def medmnist_arrays(path: Path | str, part: Part) -> tuple[np.ndarray, list[int]]:
    """Pictures (N, h, w) or (N, h, w, 3) of bytes, and their labels."""
    path = Path(path)
    try:
        images, labels = _load(path, f"{part}_images", f"{part}_labels")
    except FileNotFoundError:
        raise DataError("no such file", where=path) from None
    except DataError:
        raise
    # zip, deflate and numpy's headers have errors of their own, MemoryError among them.
    except Exception as problem:
        raise DataError(
            "not a whole npz file", where=path, got=str(problem)[:120] or None
        ) from None

    is_picture = images.ndim == 3 or images.shape[3:] == (3,)
    if images.dtype != np.uint8 or not is_picture or 0 in images.shape[1:]:
        raise DataError(
            "pictures must be bytes (N, h, w) or (N, h, w, 3)",
            where=path,
            got=f"{images.dtype} {images.shape}",
        )
    is_one_each = labels.shape in ((len(images),), (len(images), 1))
    if not np.issubdtype(labels.dtype, np.integer) or not is_one_each:
        raise DataError(
            "there must be one label for each picture",
            where=path,
            got=f"{labels.dtype} {labels.shape}",
        )
    return images, [int(label) for label in labels.reshape(-1)]


def _load(path: Path, *names: str) -> list[np.ndarray]:
    """Arrays of an npz file, whose sizes are looked at first."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    sizes = {member.filename.removesuffix(".npy"): member.file_size for member in members}
    for name in names:
        if name not in sizes:
            raise DataError("not a MedMNIST file", where=path, got=f"no array {name}")
    if max(sizes[name] for name in names) > LARGEST_ARRAY:
        raise DataError("the array is too large", where=path, got=f"{max(sizes.values()):,} bytes")
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in names]


# -- digits-----------------------------------------------------------------------------------------


def read_digits(
    *, size: tuple[int, int], channels_in: int, crop: bool = False, tally: Tally
) -> Iterator[Example]:
    """The 1,797 handwritten digits, 8 x 8, that scikit-learn brings."""

    def examples() -> Iterator[Example]:
        for i, (image, label) in enumerate(digits()):
            tally.used += 1
            values = fitted(image, size=size, channels_in=channels_in, crop=crop)
            yield Example(Item(f"digit {i}", values, image.tobytes()), label)

    return checked(examples(), digits_file(), tally, limit=0.0)


def digits() -> Iterator[tuple[np.ndarray, str]]:
    """Each digit as bytes (8, 8), and its label."""
    with gzip.open(digits_file(), "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",").astype(np.int64)
    for row in rows:
        yield (row[:64].reshape(8, 8) * 255 // 16).astype(np.uint8), str(row[64])


def digits_file() -> Path:
    """The file of the digits, found without the second that importing scikit-learn takes."""
    package = importlib.util.find_spec("sklearn")
    home = Path(package.origin).parent if package and package.origin else Path()
    file = home / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        raise DataError(
            "the package scikit-learn is missing, which brings the digits",
            hint="pip install scikit-learn, or give --data FOLDER with pictures of your own",
        )
    return file
