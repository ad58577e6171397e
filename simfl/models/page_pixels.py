"""Pages as the image processor of a model of transformers leaves them: stored as pixels, unpacked on the device.

A processor scales pixels to floats, (p · factor − mean) / std, and often repeats them: a page of 4 MB becomes 33 MB.
Here the pixels are found again, uint8, and kept if the same arithmetic returns exactly the processor's floats; other
floats are kept. Features of a page are tables that the examples share: [pages, n, …], n being the images or patches of
a page, which models read one page after the other. Where pages differ in n, tables are padded, and a row
`num_<feature>` per page has its n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

PIXELS, MASK = "pixel_values", "pixel_attention_mask"
COUNT = "num_"  # prefix of the rows that count a page's images or patches


@dataclass(frozen=True)
class PixelScale:
    """The arithmetic by which a processor makes floats of pixels.

    Attributes:
        factor: Factor of the pixels, usually 1/255.
        mean: Subtracted from each channel.
        std: Divisor of each channel.
        frames: Copies of each pixel in a patch, as models of videos read a still image; 0 for images [n, …, C, H, W].
    """

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    frames: int = 0

    @staticmethod
    def of(processor: Any) -> PixelScale | None:
        """Return the scale that the settings of an image processor name; None if it scales in another way."""
        factor = float(getattr(processor, "rescale_factor", 0) or 0)
        if not factor or not getattr(processor, "do_rescale", True):
            return None
        channels = 3
        mean, std = (0.0,) * channels, (1.0,) * channels
        if getattr(processor, "do_normalize", False):
            mean, std = (
                tuple(map(float, getattr(processor, name, None) or ())) for name in ("image_mean", "image_std")
            )
            if (len(mean), len(std)) != (channels, channels):
                return None
        patched = hasattr(processor, "merge_size") and hasattr(processor, "temporal_patch_size")
        return PixelScale(factor, mean, std, int(processor.temporal_patch_size) if patched else 0)

    def pixels(self, floats: np.ndarray, mask: np.ndarray | None) -> np.ndarray | None:
        """Return the pixels of which a page's floats were made, uint8; None if they do not give the same floats."""
        channels = self._channels_first(floats)
        mean, std = (self._shaped(values, channels.ndim) for values in (self.mean, self.std))
        near = np.clip(np.rint((channels * std + mean) / self.factor), 0, 255).astype(np.uint8)
        pixels = np.ascontiguousarray(near[:, :, :1] if self.frames else near)
        again = self.floats(torch.from_numpy(pixels), None if mask is None else torch.from_numpy(mask))
        return pixels if np.array_equal(again.numpy(), floats) else None

    def floats(self, pixels: Tensor, mask: Tensor | None) -> Tensor:
        """Return the processor's floats of pixels; zero where `mask` is, which is that of padded images."""
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device).reshape(self._shape(pixels.dim()))
            for values in (self.mean, self.std)
        )
        scaled = ((pixels.to(torch.float64) * self.factor).to(torch.float32) - mean) / std  # as numpy does there
        if self.frames:
            return scaled.expand(-1, -1, self.frames, -1).reshape(len(pixels), -1)
        return scaled if mask is None else torch.where(_over(mask, scaled), scaled, 0.0)

    def _channels_first(self, floats: np.ndarray) -> np.ndarray:
        """Return images unchanged, and patches [n, C·frames·p²] as [n, C, frames, p²]."""
        return floats.reshape(len(floats), len(self.mean), self.frames, -1) if self.frames else floats

    def _shape(self, num_axes: int) -> tuple[int, ...]:
        return (len(self.mean), 1, 1) if num_axes > 3 or not self.frames else (len(self.mean), 1)

    def _shaped(self, values: tuple[float, ...], num_axes: int) -> np.ndarray:
        return np.asarray(values, np.float32).reshape(self._shape(num_axes))


def _over(mask: Tensor, images: Tensor) -> Tensor:
    """Return a mask of images [n, …] or of their pixels [n, …, H, W], shaped to multiply images [n, …, C, H, W]."""
    if mask.dim() == images.dim() - 1:
        return mask.bool().unsqueeze(-3)
    return mask.bool().reshape(*mask.shape, *[1] * (images.dim() - mask.dim()))


@dataclass(frozen=True)
class PageTables:
    """The features of all pages.

    Attributes:
        tables: Feature -> [pages, n, …].
        counts: Feature -> the n of each page, int64 [pages], for features of which pages have different numbers.
        stored: Bytes of one page's pixels, and of the floats that the processor makes of them.
    """

    tables: dict[str, Tensor]
    counts: dict[str, Tensor]
    stored: tuple[int, int] = (0, 0)


def page_tables(pages: Sequence[Mapping[str, np.ndarray]], scale: PixelScale | None) -> PageTables:
    """Return the features of pages [n, …] as tables; pixels are uint8 if `scale` gives exactly their floats."""
    kept = [_with_pixels(page, scale) for page in pages] if scale is not None else []
    whole = [page for page in kept if page is not None]
    chosen: Sequence[Mapping[str, np.ndarray]] = whole if len(whole) == len(pages) else pages
    tables, counts = {}, {}
    for name in pages[0] if pages else ():
        values = [page[name] for page in chosen]
        lengths = [len(one) for one in values]
        tables[name] = torch.from_numpy(_stacked(values))
        if len(set(lengths)) > 1:
            counts[name] = torch.tensor(lengths)
    sizes = [max((page[PIXELS].nbytes for page in group if PIXELS in page), default=0) for group in (chosen, pages)]
    return PageTables(tables, counts, (sizes[0], sizes[1]))


def _with_pixels(page: Mapping[str, np.ndarray], scale: PixelScale) -> dict[str, np.ndarray] | None:
    """Return a page with pixels in place of floats; None if it has none that give the same floats."""
    floats = page.get(PIXELS)
    if floats is None or (not scale.frames and (floats.ndim < 4 or floats.shape[-3] != len(scale.mean))):
        return None
    pixels = scale.pixels(floats, page.get(MASK))
    return None if pixels is None else {**page, PIXELS: pixels}


def _stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays of one rank as one, [pages, …], each padded with zeros at the end."""
    shape = tuple(max(sizes) for sizes in zip(*(one.shape for one in values), strict=True))
    found: np.ndarray = np.zeros((len(values), *shape), values[0].dtype)
    for row, one in enumerate(values):
        part: Any = (row, *(slice(size) for size in one.shape))
        found[part] = one
    return found


def unpacked(batch: Mapping[str, Tensor], names: Sequence[str], scale: PixelScale | None) -> dict[str, Tensor]:
    """Return the features `names` of a batch [B, n, …] as the model reads them, one page after the other.

    Args:
        batch: The tables' rows of each example, and their counts.
        names: The features; those that the batch lacks are left out.
        scale: The arithmetic of the floats.
    """
    found = {}
    for name in names:
        if name not in batch:
            continue
        values = batch[name]
        if (count := batch.get(COUNT + name)) is not None:
            inside = torch.arange(values.shape[1], device=values.device) < count[:, None]
            found[name] = values[inside]
        else:
            found[name] = values.flatten(0, 1)
    if found.get(PIXELS) is not None and found[PIXELS].dtype == torch.uint8:
        assert scale is not None
        found[PIXELS] = scale.floats(found[PIXELS], found.get(MASK))
    return found
