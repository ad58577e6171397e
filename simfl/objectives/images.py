"""Decoding of images to uint8 tensors."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from simfl.errors import DataError
from simfl.images import Mode, read_image

WHITE = 255


def decode(image: bytes | str | None, mode: Mode, size: tuple[int, int] | None, where: str) -> np.ndarray:
    """Decode an image to pixels, uint8 [C, H, W].

    Args:
        image: The encoded bytes, or the path of a file; None: a white page.
        mode: Pillow's mode, RGB or L.
        size: (width, height) to scale to, bilinear, without keeping proportions (DiT's reader); None: no scaling.
        where: Name of the image in error messages.

    Raises:
        DataError: The image cannot be read, or is missing and no size is given.
    """
    if image is None and size is None:
        raise DataError(f"{where}: the image is missing")
    if image is None:
        assert size is not None
        return np.full((len(mode), size[1], size[0]), WHITE, np.uint8)
    pixels = read_image(Path(image) if isinstance(image, str) else image, mode, where)
    if size is not None and pixels.size != size:
        pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(pixels)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def decode_images(
    images: Sequence[bytes | str | None], mode: Mode, size: tuple[int, int] | None, names: Sequence[str]
) -> Tensor:
    """Decode images to uint8 [N, C, H, W]. Raises DataError if `size` is None and their sizes differ."""
    with ThreadPoolExecutor(2) as threads:
        pixels = list(threads.map(lambda row: decode(images[row], mode, size, names[row]), range(len(images))))
    shapes = {array.shape for array in pixels}
    if len(shapes) > 1:
        raise DataError(f"images differ in shape: {sorted(shapes)[:4]}")
    return torch.from_numpy(np.stack(pixels))


def document_images(documents: Any) -> list[bytes | str | None]:
    """Return the encoded images of documents, or their paths. Raises DataError if there are neither."""
    column = next((name for name in ("image", "image_path") if name in documents.column_names), None)
    if column is None:
        raise DataError(f"the documents have neither 'image' nor 'image_path'; their columns: {documents.column_names}")
    return documents[column].to_pylist()
