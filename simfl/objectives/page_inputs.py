"""Pages as models of transformers read them, and the tokens of prompts about a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image
from torch import Tensor, nn

from simfl.errors import ConfigError, DataError
from simfl.images import read_image
from simfl.objectives.images import document_images
from simfl.objectives.pages import example_documents, read_words
from simfl.protocol import Batch

PAGE_FEATURES = (  # inputs of models of transformers that describe the images of a page
    "pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes", "image_position_ids", "spatial_shapes",
    "aspect_ratio_ids", "aspect_ratio_mask", "tile_fine_mask", "flattened_patches",
)  # fmt: skip
PATCH_MASK = "patch_mask"  # the batch key of a feature `attention_mask`, which Pix2Struct's patches have
TOKEN_FEATURES = ("token_type_ids", "mm_token_type_ids", "bbox")  # inputs of every token of a prompt
COUNTED = tuple(f"num_{name}" for name in PAGE_FEATURES)
PAGE_KEYS = (*PAGE_FEATURES, *COUNTED, PATCH_MASK)  # batch keys that `page_inputs` replaces
BOX_SCALE = 1000  # size of a page in the boxes of models of transformers
BLANK = Image.new("RGB", (224, 224), "white")  # stands for a page without an image
MISMATCH = "image tokens do not match"  # in transformers' errors


class PageTables(Protocol):
    """The features of pages: `models.page_pixels` implements it."""

    @property
    def tables(self) -> dict[str, Tensor]:
        """Feature -> [pages, n, …]."""

    @property
    def counts(self) -> dict[str, Tensor]:
        """Feature -> the n of each page, int64 [pages], where pages differ."""


@runtime_checkable
class PageProcessor(Protocol):
    """A processor of transformers; `models.hf_processor` implements it."""

    @property
    def in_decoder(self) -> bool:
        """True if an encoder reads the image alone, and the prompt begins the decoder's input."""

    @property
    def image_token(self) -> int:
        """The token that stands for images, many times; −1 if there is none."""

    @property
    def answer_type(self) -> int:
        """The token type of answers."""

    def pages(self, images: Sequence[Any], where: Sequence[str]) -> tuple[Any, list[dict[str, Any]]]:
        """Return the features of pages, and what prompts need to know of each."""

    def text(self, system: str, prompt: str) -> str:
        """Return the text of a prompt about an image."""

    def encode(self, text: str, page: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the inputs of a prompt [L, …]."""

    @property
    def reads_boxes(self) -> bool:
        """True if the model reads the words of a page with their boxes."""

    def encode_words(self, text: str, words: Sequence[str], boxes: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of a text and words with boxes in thousandths: ids, boxes and the word of each token."""

    def inputs(self, batch: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Return the features `names` of a batch's pages as the model reads them."""


@dataclass(frozen=True)
class EncodedPages:
    """The pages of a split, and the page of each example.

    Attributes:
        tables: Batch key -> [pages, n, …].
        counts: Batch key -> int64 [pages].
        outlines: What prompts need to know of each page.
        of_example: Index of each example's page, int64 [N].
    """

    tables: dict[str, Tensor]
    counts: dict[str, Tensor]
    outlines: list[dict[str, Any]]
    of_example: np.ndarray


@dataclass(frozen=True)
class Words:
    """The words of a page.

    Attributes:
        texts: The words.
        boxes: Left, top, right, bottom of each word in thousandths of the page, int64 [words, 4].
    """

    texts: list[str]
    boxes: np.ndarray

    def first(self, count: int) -> Words:
        """Return the first words."""
        return Words(self.texts[:count], self.boxes[:count])


NO_WORDS = Words([], np.zeros((0, 4), np.int64))


def page_words(split: Any, objective: str) -> list[Words]:
    """Return the words of all documents; without a column of boxes, these are zero."""
    if "boxes" not in split.documents.column_names:
        texts = [words or [] for words in split.documents["words"].to_pylist()]
        return [Words(words, np.zeros((len(words), 4), np.int64)) for words in texts]
    found = read_words(split.documents, objective)
    # truncated, as published code does; a float32 just below a whole number must not be cut to the one before
    boxes = np.clip(found.boxes * BOX_SCALE + 1e-6 * BOX_SCALE, 0, BOX_SCALE).astype(np.int64)
    bounds = zip(found.bounds[:-1].tolist(), found.bounds[1:].tolist(), strict=True)
    return [Words([found.texts[k] for k in found.kinds[a:b].tolist()], boxes[a:b]) for a, b in bounds]


def has_images(split: Any) -> bool:
    """Return whether the documents, or without documents the examples, have images."""
    table = split.examples if split.documents is None else split.documents
    names = {"image", "image_path"} & set(table.column_names)
    return any(table[name].null_count < table.num_rows for name in names)


def encode_pages(split: Any, processor: PageProcessor, objective: str) -> EncodedPages:
    """Return the pages of a split as a processor leaves them; a page without an image is white.

    Raises:
        DataError: A page cannot be read, or has a feature that no batch carries.
    """
    table = split.examples if split.documents is None else split.documents
    if split.documents is None:
        of_example = np.arange(len(split.examples))
    else:
        of_example = example_documents(split.examples, split.documents, objective)
    names = table["id"].to_pylist() if "id" in table.column_names else list(range(table.num_rows))
    where = [f"{objective}: document {name}" for name in names]
    images = []
    for given, name in zip(document_images(table), where, strict=True):
        source = Path(given) if isinstance(given, str) else given
        images.append(BLANK if source is None else read_image(source, "RGB", name))
    found, outlines = processor.pages(images, where)
    unknown = sorted(set(found.tables) - {*PAGE_FEATURES, "attention_mask"})
    if unknown:
        raise DataError(f"{objective}: the model's processor returns {unknown[0]!r}, which simfl does not carry")
    tables = {PATCH_MASK if name == "attention_mask" else name: values for name, values in found.tables.items()}
    return EncodedPages(tables, {f"num_{name}": counts for name, counts in found.counts.items()}, outlines, of_example)


def page_inputs(module: nn.Module, inputs: Batch) -> Batch:
    """Return the inputs of a model, with the features of its pages as its `forward` reads them."""
    features = {name: values for name, values in inputs.items() if name in PAGE_KEYS}
    if not features:
        return inputs
    processor: PageProcessor = getattr(module, "hf_tokenizer").processor  # noqa: B009  (unknown to nn.Module)
    found = {name: values for name, values in inputs.items() if name not in PAGE_KEYS}
    found |= processor.inputs(features, PAGE_FEATURES)
    if PATCH_MASK in features:
        found["attention_mask"] = features[PATCH_MASK].flatten(0, 1)
    return found


class fitting_image_tokens(AbstractContextManager[None]):
    """Raise ConfigError in one line if the image tokens of prompts are not as many as the image features."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Convert transformers' error."""
        if error is not None and MISMATCH in str(error):
            reason = str(error).splitlines()[0]
            raise ConfigError(f"model.processor: {reason}; set the number of image tokens or the image size") from error
