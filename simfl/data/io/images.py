"""Pages as small pictures of one size, from files as they are found: large, coloured, sometimes cut off."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageFile

from simfl.errors import DataError

UNREADABLE = (OSError, SyntaxError, ValueError)  # what Pillow raises for files that are no pictures, or broken ones


def shrink(picture: Path | bytes, size: int, mode: str, format: str, where: str = "") -> bytes:
    """The picture squeezed to `size` x `size` pixels, in Pillow's `mode` (L, RGB) and `format` (PNG, JPEG).

    Width and height are squeezed apart, as VT5's image processor does. DataError if it is broken: it names the file, or
    `where` encoded bytes come from.
    """
    out = io.BytesIO()
    try:
        with Image.open(picture if isinstance(picture, Path) else io.BytesIO(picture)) as image:
            image.draft(mode, (size, size))
            image.convert(mode).resize((size, size), Image.Resampling.BICUBIC).save(out, format=format, quality=90)
    except UNREADABLE as error:
        raise DataError(f"{where or picture!s}: not a readable picture ({error})") from error
    return out.getvalue()


def size_of(path: Path) -> tuple[int, int]:
    """Width and height in pixels, from the file's head. DataError if it is no picture."""
    try:
        with Image.open(path) as image:
            return image.size
    except UNREADABLE as error:
        raise DataError(f"{path}: not a readable picture ({error})") from error


@contextmanager
def truncated_files(read: bool) -> Iterator[None]:
    """While this holds, in the whole process: files that end too early are read, what is missing grey, or refused."""
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, read
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
