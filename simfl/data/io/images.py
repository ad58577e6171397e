"""Decoding, resizing and encoding of images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PIL import Image, ImageFile

from simfl.errors import DataError

MissingImages = Literal["refuse", "drop"]  # a missing image file is an error, or its examples are left out
UNREADABLE = (OSError, SyntaxError, ValueError)  # raised by Pillow for files that are not images, or broken ones


def resize_image(image: Path | bytes, size: int, mode: str, format: str, where: str = "") -> bytes:
    """Resize an image to `size` x `size` pixels and encode it.

    Width and height are scaled independently, as VT5's image processor does.

    Args:
        image: A file, or encoded bytes.
        size: Pixels of each side.
        mode: Pillow's mode, L or RGB.
        format: Pillow's format, PNG or JPEG.
        where: The source of encoded bytes, for error messages.

    Raises:
        DataError: the image cannot be read.
    """
    out = io.BytesIO()
    try:
        with Image.open(image if isinstance(image, Path) else io.BytesIO(image)) as opened:
            opened.draft(mode, (size, size))
            opened.convert(mode).resize((size, size), Image.Resampling.BICUBIC).save(out, format=format, quality=90)
    except UNREADABLE as error:
        raise DataError(f"{where or image!s}: not a readable image ({error})") from error
    return out.getvalue()


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height in pixels, read from the file's header; DataError if it is not an image."""
    try:
        with Image.open(path) as image:
            return image.size
    except UNREADABLE as error:
        raise DataError(f"{path}: not a readable image ({error})") from error


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


@contextmanager
def truncated_images(allowed: bool) -> Iterator[None]:
    """Read truncated image files with the missing part in grey, or refuse them. Applies to the whole process."""
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, allowed
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
