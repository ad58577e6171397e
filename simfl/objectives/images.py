"""Encoded images to tables of bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile
from torch import Tensor

from simfl.errors import DataError

WHITE = 255


def decode(image: bytes | str | None, mode: str, size: tuple[int, int] | None, where: str) -> np.ndarray:
    """Pixels uint8 [C, H, W] of an encoded image or of a file; none is a white page. DataError names `where`.

    `mode` is Pillow's: RGB or L. `size` is (width, height), bilinear, proportions not kept, as DiT's reader does.
    """
    if image is None:
        assert size is not None, "a missing image has no size of its own"
        return np.full((len(mode), size[1], size[0]), WHITE, np.uint8)
    try:
        with Image.open(Path(image) if isinstance(image, str) else io.BytesIO(image)) as opened:
            pixels = opened.convert(mode)
    except OSError as error:
        raise DataError(f"{where}: the image cannot be read: {error}") from error
    if size is not None and pixels.size != size:
        pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(pixels)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def table(
    images: Sequence[bytes | str | None], mode: str, size: tuple[int, int] | None, names: Sequence[str]
) -> Tensor:
    """All images as uint8 [N, C, H, W]; DataError if their sizes differ where none is asked for."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # the official release of PFL-DocVQA has pages that end early
    with ThreadPoolExecutor(2) as threads:
        pixels = list(threads.map(lambda row: decode(images[row], mode, size, names[row]), range(len(images))))
    shapes = {array.shape for array in pixels}
    if len(shapes) > 1:
        raise DataError(f"images differ in shape: {sorted(shapes)[:4]}")
    return torch.from_numpy(np.stack(pixels))


def pictures(documents: Any) -> list[bytes | str | None]:
    """The encoded images of documents, or their paths. DataError if there are neither."""
    column = next((name for name in ("image", "image_path") if name in documents.column_names), None)
    if column is None:
        raise DataError(f"the documents have neither 'image' nor 'image_path', but {documents.column_names}")
    return documents[column].to_pylist()
