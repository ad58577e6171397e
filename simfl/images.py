"""Reading of image files as people have them: any common format, as upright 8-bit pixels on white.

    16 bits a channel, or floats in [0, 1]    scaled to 0 … 255
    transparency, palettes                    drawn on white, as a page is printed
    EXIF orientation                          applied
    several frames                            the first
    truncated or damaged files                refused
    more than `MAX_PIXELS` pixels             refused

Formats whose reader runs another program (EPS) or draws (WMF) are refused.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps

from simfl.errors import DataError

Mode = Literal["RGB", "L"]
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000")  # common ones first: others are loaded late
MAX_PIXELS = 89_478_485  # Pillow's limit, from which a file can be a decompression bomb
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"


def read_image(
    source: Path | bytes, mode: Mode, where: str, size_hint: int | None = None, truncated: bool = False
) -> Image.Image:
    """Return an image as 8-bit pixels.

    Args:
        source: A file, or its content.
        mode: Pillow's mode of the result.
        where: Name of the image, for error messages.
        size_hint: Side in pixels that the image is scaled to next; a JPEG is then decoded at a smaller scale.
        truncated: Whether a truncated JPEG is read, with the missing part in grey.

    Raises:
        DataError: The image cannot be read, is truncated, or has too many pixels.
    """
    try:
        return _read(source, mode, where, size_hint)
    except DataError as error:
        content = source.read_bytes() if isinstance(source, Path) and source.is_file() else source
        if not (truncated and isinstance(content, bytes) and content.startswith(JPEG_START)):
            raise error from None
        return _read(content + JPEG_END, mode, where, size_hint)


def measure_image(source: Path | bytes, where: str, whole: bool = False) -> tuple[int, int]:
    """Return width and height of an image in pixels, upright.

    Args:
        source: A file, or its content.
        where: Name of the image, for error messages.
        whole: Whether all pixels are decoded, so that a damaged image is found; else the header alone is read.

    Raises:
        DataError: The image cannot be read.
    """
    if whole:
        return _read(source, "RGB", where).size
    try:
        with _open(source) as opened:
            _check_size(opened, where)
            width, height = opened.size
            turned = opened.format != "TIFF" and _orientation(opened) >= 5  # Pillow has turned a TIFF
            return (height, width) if turned else (width, height)
    except DataError:
        raise
    except Exception as error:  # Pillow raises errors of any kind for damaged files
        raise _unreadable(source, where, error) from error


def upright(image: Image.Image) -> Image.Image:
    """Return an image turned as its EXIF orientation says."""
    image.load()
    return ImageOps.exif_transpose(image) if 2 <= _orientation(image) <= 8 else image


def to_eight_bits(image: Image.Image, mode: Mode, where: str) -> Image.Image:
    """Return the pixels of an image in a mode of 8 bits, on white where it is transparent.

    Raises:
        DataError: The pixels have no known range: floats outside of [0, 1], or integers of 32 bits.
    """
    if image.mode in SIXTEEN_BITS or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return _from_sixteen_bits(image).convert(mode)
    if image.mode == "F":
        return _from_floats(image, where).convert(mode)
    if image.mode == "I":
        raise DataError(
            f"{where}: pixels are integers of 32 bits, which have no known range; save it with 8 or 16 bits"
        )
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        drawn = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert(mode)
    return image.convert(mode)


def _read(source: Path | bytes, mode: Mode, where: str, size_hint: int | None = None) -> Image.Image:
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, so truncated images would go unnoticed; unset it")
    try:
        with _open(source) as opened:
            _check_size(opened, where)
            if size_hint is not None:
                opened.draft(mode, (size_hint, size_hint))
            opened.load()
            format, turned = opened.format, upright(opened)
            turned.format = format
            return to_eight_bits(turned, mode, where)
    except DataError:
        raise
    except Exception as error:  # Pillow raises errors of any kind for damaged files
        raise _unreadable(source, where, error) from error


def _open(source: Path | bytes) -> Image.Image:
    return Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=FORMATS)


def _check_size(image: Image.Image, where: str) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"{where}: the image has {width} x {height} pixels, allowed: {MAX_PIXELS:,}")


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (upright) without one, or where it cannot be read."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data, which say nothing about the pixels
        return 1
    return value if isinstance(value, int) else 1


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image).astype(np.int64)
    if (white := image.info.get("transparency")) is not None:
        pixels = np.where(pixels == white, 65535, pixels)
    return Image.fromarray(((pixels * 255 + 32767) // 65535).astype(np.uint8))


def _from_floats(image: Image.Image, where: str) -> Image.Image:
    pixels = np.asarray(image)
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # false for NaN too
        raise DataError(f"{where}: float pixels are from {pixels.min():g} to {pixels.max():g}, expected 0 to 1")
    return Image.fromarray(np.rint(pixels * 255).astype(np.uint8))


def _unreadable(source: Path | bytes, where: str, error: Exception) -> DataError:
    if isinstance(source, Path) and not source.exists():
        reason = f"a broken link to {source.readlink()}" if source.is_symlink() else "the file is missing"
        return DataError(f"{where}: {reason}")
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return DataError(f"{where}: the image has more than {MAX_PIXELS:,} pixels, as a decompression bomb has")
    if isinstance(error, Image.UnidentifiedImageError):
        return DataError(f"{where}: not a readable image; allowed: {', '.join(FORMATS)}")
    if isinstance(error, OSError) and error.strerror:
        return DataError(f"{where}: {error.strerror}")
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(f"{where}: not a readable image ({reason})")
