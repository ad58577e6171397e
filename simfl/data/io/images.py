"""Resizing and encoding of images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

from PIL import Image

from simfl.errors import DataError
from simfl.images import Mode, measure_image, read_image, to_eight_bits, upright

GREY = ("1", "L", "LA", "I;16", "F")  # modes of one channel
MissingImages = Literal["refuse", "drop"]  # a missing image file is an error, or its examples are left out


def resize_image(
    image: Path | bytes, size: int, mode: Mode, format: str, where: str = "", truncated: bool = False
) -> bytes:
    """Resize an image to `size` x `size` pixels and encode it.

    Width and height are scaled independently, as VT5's image processor does.

    Args:
        image: A file, or encoded bytes.
        size: Pixels of each side.
        mode: Pillow's mode, L or RGB.
        format: Pillow's format, PNG or JPEG.
        where: The source of encoded bytes, for error messages.
        truncated: Whether a truncated JPEG is read, with the missing part in grey.

    Raises:
        DataError: the image cannot be read.
    """
    pixels = read_image(image, mode, where or str(image), size, truncated)
    out = io.BytesIO()
    pixels.resize((size, size), Image.Resampling.BICUBIC).save(out, format=format, quality=90)
    return out.getvalue()


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height in pixels, read from the file's header; DataError if it is not an image."""
    return measure_image(path, str(path))


def encode_upright(image: Image.Image, where: str) -> bytes:
    """Encode an image of any mode as PNG of 8 bits a channel, upright and on white; DataError if it is damaged."""
    try:
        turned = upright(image)
    except OSError as error:  # the file is read now
        raise DataError(f"{where}: not a readable image ({error})") from error
    out = io.BytesIO()
    to_eight_bits(turned, "L" if turned.mode in GREY else "RGB", where).save(out, "PNG")
    return out.getvalue()


def encode_png(image: Image.Image) -> bytes:
    """Encode an image as PNG with fast compression."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def encode_jpeg(image: Image.Image, quality: int = 88) -> bytes:
    """Encode an image as JPEG, which is smaller than PNG for noisy images."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
