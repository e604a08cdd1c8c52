"""One picture: a file, an array or an image, as the bytes a model reads.

A picture is never trusted: its size is looked at before it is unpacked.
"""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from regard.data.examples import Item
from regard.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")  # others may start programs (EPS)
LARGEST_FILE = 64 << 20  # bytes
PIECE = 1 << 20  # bytes that are read at a time
MOST_PIXELS = 50_000_000
WIDER = {  # modes that cannot be resized, and those that can and hold the same
    "1": "L",
    "P": "RGBA",
    "PA": "RGBA",
    "I;16": "I",
    "I;16L": "I",
    "I;16B": "I",
    "I;16N": "I",
}


def read_picture(
    path: Path | str, *, size: tuple[int, int], channels_in: int, crop: bool = False
) -> Item:
    """A file as bytes (h, w, channels): turned as its camera says, grey or RGB, on white where
    it is transparent. Its shape becomes that of `size` by stretching it, or by cutting off
    (`crop`) what is too much on both sides."""
    content = content_of(Path(path))
    values = decoded(content, size=size, channels_in=channels_in, where=path, crop=crop)
    return Item(str(path), values, content)


def content_of(path: Path) -> bytes:
    """The bytes of a picture's file, up to LARGEST_FILE: a device never ends."""
    try:
        with path.open("rb") as file:
            content = _read(file, LARGEST_FILE + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise InputError("no such picture", where=path) from None
    except (OSError, ValueError) as problem:  # ValueError: a name with a NUL in it
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InputError("cannot be read", where=f"{str(path)[:200]!a}", got=reason[:80]) from None
    if len(content) > LARGEST_FILE:
        raise InputError(
            "the picture's file is too large", where=path, got=f"more than {LARGEST_FILE:,} bytes"
        )
    return content


def _read(file: BinaryIO, limit: int) -> bytes:
    """Up to `limit` bytes. `file.read(limit)` would allocate that many for each small file."""
    pieces: list[bytes] = []
    while limit and (piece := file.read(min(limit, PIECE))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def decoded(
    content: bytes,
    *,
    size: tuple[int, int],
    channels_in: int,
    where: Path | str,
    crop: bool = False,
) -> np.ndarray:
    """The bytes of a file as a picture, which is not unpacked before its size is known."""
    from PIL import Image, ImageOps, UnidentifiedImageError

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
                # JPEG can be decoded at a smaller size.
                image.draft("L" if channels_in == 1 else "RGB", (4 * size[1], 4 * size[0]))
                image.load()
                return _fitted(ImageOps.exif_transpose(image), size, channels_in, crop)
    except InputError:
        raise
    except UnidentifiedImageError:  # its message has the address of an object
        raise InputError(
            "not a picture that can be read",
            where=where,
            hint="png, jpg, bmp, gif, webp and tif can be",
        ) from None
    except Exception as problem:  # each of pillow's formats has errors of its own
        raise InputError(
            "not a picture that can be read", where=where, got=str(problem)[:120] or None
        ) from None


def png(row: np.ndarray) -> bytes:
    """A picture (h, w, channels) of bytes as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    pixels = row if row.shape[2] == 3 else row[..., 0]
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _fitted(
    image: Image.Image, size: tuple[int, int], channels_in: int, crop: bool = False
) -> np.ndarray:
    from PIL import Image, ImageOps

    if image.mode in WIDER:
        image = image.convert(WIDER[image.mode])
    elif image.mode in ("L", "RGB") and "transparency" in image.info:  # one colour of it
        image = image.convert("RGBA")

    factor = min(image.width // (2 * size[1]), image.height // (2 * size[0]))
    if factor > 1 and image.mode in ("L", "LA", "RGB", "RGBA", "CMYK", "I", "F"):
        image = image.reduce(factor)  # first, so that the rest is fast
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits: its own range becomes that of bytes
        values = np.asarray(image, np.float32)
        top = 65535.0 if image.mode.startswith("I") else max(float(values.max()), 1e-9)
        image = Image.fromarray((values / top * 255).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA"):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels_in == 1 else "RGB")

    width_and_height = (size[1], size[0])
    if crop:
        image = ImageOps.fit(image, width_and_height, Image.Resampling.BILINEAR)
    else:
        image = image.resize(width_and_height, Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.asarray(image, np.uint8).reshape(*size, channels_in)


def fitted(
    values: np.ndarray, *, size: tuple[int, int], channels_in: int, crop: bool = False
) -> np.ndarray:
    """An array (h, w) or (h, w, 3) of bytes in the size a model reads."""
    if values.shape[:2] == size and values[0, 0].size == channels_in:
        return np.ascontiguousarray(values).reshape(*size, channels_in)
    from PIL import Image

    return _fitted(Image.fromarray(np.ascontiguousarray(values)), size, channels_in, crop)


def is_image(value: object) -> bool:
    """Whether this is an image of PIL. PIL is not imported for that: an image exists only if it
    was imported already."""
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
