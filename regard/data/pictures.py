"""Pictures with labels: scikit-learn's digits, MedMNIST's npz files, and folders of image files
named by class.

A picture is never trusted: its size is looked at before it is unpacked, and what cannot be read is
counted and skipped.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from regard.data.examples import Example, Item, legible
from regard.data.lines import Tally
from regard.data.reading import checked
from regard.data.roles import PICTURES as SUFFIXES
from regard.errors import DataError, InputError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = (
    "PNG",
    "JPEG",
    "BMP",
    "GIF",
    "WEBP",
    "TIFF",
)  # others may start programs (EPS), or are seldom looked at
LARGEST_FILE = 64 << 20  # bytes
MOST_PIXELS = 50_000_000
LARGEST_ARRAY = 2 << 30  # bytes of one array of an npz file
WIDER = {
    "1": "L",
    "P": "RGBA",
    "PA": "RGBA",
    "I;16": "I",
    "I;16L": "I",
    "I;16B": "I",
    "I;16N": "I",
}  # can be shrunk
Part = Literal["train", "val", "test"]


# -- one picture------------------------------------------------------------------------------------


def read_picture(
    path: Path | str, *, size: tuple[int, int], channels_in: int, crop: bool = False
) -> Item:
    """A file as bytes (h, w, channels): turned as its camera says, grey or RGB, on white where
    it is transparent. Its shape becomes that of `size` by stretching it, or by cutting off
    (`crop`) what is too much on both sides."""
    content = content_of(Path(path))
    return Item(
        str(path),
        decoded(content, size=size, channels_in=channels_in, where=path, crop=crop),
        content,
    )


def content_of(path: Path) -> bytes:
    """The bytes of a picture's file, which ends somewhere."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise InputError("no such picture", where=path) from None
    except (
        OSError,
        ValueError,
    ) as problem:  # a name that cannot be one has a NUL, or too many letters
        said = getattr(problem, "strerror", None) or str(problem)
        raise InputError("cannot be read", where=f"{str(path)[:200]!a}", got=said[:80]) from None
    if len(content) > LARGEST_FILE:
        raise InputError(
            "the picture's file is too large", where=path, got=f"more than {LARGEST_FILE:,} bytes"
        )
    return content


def decoded(
    content: bytes,
    *,
    size: tuple[int, int],
    channels_in: int,
    where: Path | str,
    crop: bool = False,
) -> np.ndarray:
    """The bytes of a file as a picture, which is not unpacked before its size is known."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, which we do not need
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise InputError(
                        "the picture is too large",
                        where=where,
                        got=f"{image.width:,} x {image.height:,} pixels",
                    )
                image.draft(
                    "L" if channels_in == 1 else "RGB", (4 * size[1], 4 * size[0])
                )  # JPEG can be read smaller
                image.load()
                return _fitted(ImageOps.exif_transpose(image), size, channels_in, crop)
    except InputError:
        raise
    except Exception as problem:  # each of pillow's formats has errors of its own
        raise InputError(
            "not a picture that can be read", where=where, got=str(problem)[:120] or None
        ) from None


def _fitted(image, size: tuple[int, int], channels_in: int, crop: bool = False) -> np.ndarray:
    from PIL import Image, ImageOps

    if image.mode in WIDER:
        image = image.convert(WIDER[image.mode])
    elif image.mode in ("L", "RGB") and "transparency" in image.info:  # one colour of it
        image = image.convert("RGBA")
    shrunk = min(image.width // (2 * size[1]), image.height // (2 * size[0]))
    if shrunk > 1 and image.mode in ("L", "LA", "RGB", "RGBA", "CMYK", "I", "F"):
        image = image.reduce(shrunk)  # before more is made of it
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits: its own range becomes that of bytes
        values = np.asarray(image, np.float32)
        top = 65535.0 if image.mode.startswith("I") else max(float(values.max()), 1e-9)
        image = Image.fromarray((values / top * 255).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA"):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels_in == 1 else "RGB")
    if crop:
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BILINEAR)
    else:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.asarray(image, np.uint8).reshape(*size, channels_in)


def fitted(
    values: np.ndarray, *, size: tuple[int, int], channels_in: int, crop: bool = False
) -> np.ndarray:
    """The same of a picture (h, w) or (h, w, 3) of bytes."""
    if values.shape[:2] == size and values[0, 0].size == channels_in:
        return np.ascontiguousarray(values).reshape(*size, channels_in)
    from PIL import Image

    return _fitted(Image.fromarray(np.ascontiguousarray(values)), size, channels_in, crop)


def is_image(value: object) -> bool:
    """Whether this is an image of PIL, which is not imported to find out: who has one has
    imported it."""
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def from_image(
    image: Image.Image, *, size: tuple[int, int], channels_in: int, crop: bool = False
) -> np.ndarray:
    """What `read_picture` makes of the file of this picture. (A JPEG file is decoded at a
    smaller size where that is enough, so its pixels may differ a little from those of an image
    that was decoded as a whole.)"""
    from PIL import ImageOps

    if not image.width * image.height:
        raise InputError("a picture of no pixels", got=f"{image.width} x {image.height}")
    if image.width * image.height > MOST_PIXELS:
        raise InputError(
            "the picture is too large", got=f"{image.width:,} x {image.height:,} pixels"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _fitted(ImageOps.exif_transpose(image), size, channels_in, crop)
    # It may not have been decoded before, and each of pillow's formats has its own errors.
    except Exception as problem:
        raise InputError("not a picture that can be read", got=str(problem)[:120] or None) from None


def from_array(
    values: np.ndarray, *, size: tuple[int, int], channels_in: int, crop: bool = False
) -> np.ndarray:
    """What `read_picture` makes of the file of this picture: (h, w), or (h, w, channels) with
    grey, grey and alpha, RGB or RGBA, as bytes, as floats from 0 to 1 or as booleans; or (h, w)
    of 16 bits."""
    from PIL import Image

    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if not (values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (2, 3, 4))):
        channels_first = values.ndim == 3 and values.shape[0] in (1, 3, 4)
        raise InputError(
            "the array of a picture has shape (h, w), (h, w, 1), (h, w, 3) or (h, w, 4)",
            got=f"{values.dtype} {values.shape}",
            hint="move its channels to the end: transpose(1, 2, 0)" if channels_first else None,
        )
    if not values.size:
        raise InputError("a picture of no pixels", got=f"shape {values.shape}")
    return from_image(
        Image.fromarray(_as_bytes(values)), size=size, channels_in=channels_in, crop=crop
    )


def _as_bytes(values: np.ndarray) -> np.ndarray:
    """Bytes, or the 16 bits of a grey picture as they are."""
    if values.dtype == np.uint8 or (values.dtype == np.uint16 and values.ndim == 2):
        return np.ascontiguousarray(values)
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(
            "a picture is of bytes (uint8), or of floats from 0 to 1",
            got=f"{values.dtype} {values.shape}",
            hint="if its numbers are 0 to 255: astype(numpy.uint8)",
        )
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError("pixels that are not numbers", got="nan or inf")
    lowest = float(values.min())
    highest = float(values.max())
    if lowest < 0 or highest > 1:
        raise InputError(
            "a picture of floats has them from 0 to 1",
            got=f"{lowest:g} to {highest:g}",
            hint="if they are 0 to 255: astype(numpy.uint8)" if lowest >= 0 else None,
        )
    return np.rint(values * 255).astype(np.uint8)


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
            name = file.relative_to(path).as_posix()
            yield Example(
                Item(name, item.values, item.content), legible(file.relative_to(path).parts[0])
            )

    return checked(examples(), path, tally, limit=limit)


def folder_files(path: Path | str) -> list[Path]:
    """The pictures in the folders of a folder, in the order of their names."""
    path = Path(path)
    if not path.is_dir():
        raise DataError(
            "no such folder", where=path, hint="a folder with one folder of pictures for each label"
        )
    found = [
        file
        for label in sorted(inner for inner in path.iterdir() if inner.is_dir())
        for file in sorted(label.rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.is_file()
    ]
    if not found:
        raise DataError(
            f"no usable examples in {path}",
            hint="one folder for each label, with pictures in it (png, jpg, bmp, gif, webp, tif)",
        )
    return found


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
    names = (f"{part}_images", f"{part}_labels")
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {
                info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()
            }
        if missing := [name for name in names if name not in sizes]:
            raise DataError("not a MedMNIST file", where=path, got=f"no array {missing[0]}")
        if max(sizes[name] for name in names) > LARGEST_ARRAY:
            raise DataError(
                "the array is too large", where=path, got=f"{max(sizes.values()):,} bytes"
            )
        with np.load(path, allow_pickle=False) as arrays:
            images, labels = arrays[names[0]], arrays[names[1]]
    except FileNotFoundError:
        raise DataError("no such file", where=path) from None
    except DataError:
        raise
    # zip, deflate and numpy's headers have errors of their own, MemoryError among them.
    except Exception as problem:
        raise DataError(
            "not a whole npz file", where=path, got=str(problem)[:120] or None
        ) from None
    grey = images.ndim == 3
    if images.dtype != np.uint8 or not (grey or images.shape[3:] == (3,)) or 0 in images.shape[1:]:
        raise DataError(
            "pictures must be bytes (N, h, w) or (N, h, w, 3)",
            where=path,
            got=f"{images.dtype} {images.shape}",
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape not in (
        (len(images),),
        (len(images), 1),
    ):
        raise DataError(
            "there must be one label for each picture",
            where=path,
            got=f"{labels.dtype} {labels.shape}",
        )
    return images, [int(label) for label in labels.reshape(-1)]


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
    """Where it lies, without the second that importing scikit-learn takes."""
    found = importlib.util.find_spec("sklearn")
    file = (
        Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if found and found.origin
        else None
    )
    if file is None or not file.is_file():
        raise DataError(
            "the package scikit-learn is missing, which brings the digits",
            hint="pip install scikit-learn, or give --data FOLDER with pictures of your own",
        )
    return file
