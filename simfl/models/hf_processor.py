"""Processors of transformers: the page of an example becomes pixels, and its prompt tokens, as the model expects them.

The processor is that of a folder, or is built from the configuration of a model without weights. Without torchvision,
transformers' image processors on Pillow are used, and the processors of videos are left out.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from simfl.errors import ConfigError, DataError, nearest
from simfl.models.lora import TOWER
from simfl.models.page_pixels import COUNT, PIXELS, PageTables, PixelScale, page_tables, unpacked

NAMED_TOKENS: dict[str, dict[str, str]] = {  # special tokens that processors read from their tokenizer, by model type
    "smolvlm": {
        "image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>",
        "end_of_utterance_token": "<end_of_utterance>",
    },
    "idefics3": {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global": "<global-img>"},
    "granite_docling": {
        "image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global": "<global-img>",
    },
    "internvl": {
        "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
    "got_ocr2": {"image_token": "<imgpad>", "start": "<img>", "end": "</img>", "im_start": "<|im_start|>",
                 "im_end": "<|im_end|>"},
    "florence2": {"image_token": "<image>", "bos_token": "<s>"},
    "paligemma": {"image_token": "<image>", "bos_token": "<s>"},
    "vision-encoder-decoder": {"bos_token": "<s>"},
}  # fmt: skip
QWEN_TOKENS = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}  # fmt: skip
NAMED_TOKENS |= dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"), QWEN_TOKENS)
SPECIAL_IDS = (  # settings of a configuration without weights, and the token of the tokenizer
    ("pad_token_id", "pad_token_id"), ("eos_token_id", "eos_token_id"), ("bos_token_id", "bos_token_id"),
    ("forced_eos_token_id", "eos_token_id"), ("decoder_start_token_id", "pad_token_id"),
)  # fmt: skip
TOKEN_SETTINGS = {  # settings of a configuration that name a token, and the tokens
    "image_token_id": ("image_token", "context_image_token"),
    "video_token_id": ("video_token",),
    "vision_start_token_id": ("vision_bos_token",),
    "vision_end_token_id": ("vision_eos_token",),
}
PLACES_IMAGE = ("florence2",)  # model types whose processor writes the token of the image into a prompt itself
UNEVEN = "{} is trained on pages of which the model reads different numbers of patches"
LARGE = 4096  # values of a feature from which it is not kept in memory after its page was stored


@dataclass(frozen=True)
class HfProcessor:
    """A processor of transformers and how its model reads a page.

    Attributes:
        processor: A `transformers.ProcessorMixin` with an image processor and a tokenizer.
        names: Inputs of the model's `forward`.
        model_type: Of the configuration.
        in_decoder: Whether an encoder reads the image alone, and the prompt begins the decoder's input.
    """

    processor: Any
    names: frozenset[str]
    model_type: str
    in_decoder: bool = False

    @cached_property
    def scale(self) -> PixelScale | None:
        """The arithmetic of the pixels; None if it is not that of a mean and a deviation per channel."""
        return PixelScale.of(self.processor.image_processor)

    def pages(self, images: Sequence[Image.Image], where: Sequence[str]) -> tuple[PageTables, list[dict[str, Any]]]:
        """Return the features of pages as tables, and what prompts need to know of each page.

        Args:
            images: One per page, RGB.
            where: Names of the pages, for errors.

        Raises:
            DataError: The image processor refuses a page.
        """
        features = []
        for image, name in zip(images, where, strict=True):
            try:
                features.append(dict(self.processor.image_processor([image], **self._image_options)))
            except Exception as error:  # transformers has errors of many kinds for unfit images
                reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
                raise DataError(f"{name}: the model's image processor refuses it ({reason})") from error
        pages = [self._arrays(one) for one in features]
        return page_tables(pages, self.scale), [_outlines(one) for one in features]

    @cached_property
    def _image_options(self) -> dict[str, Any]:
        """Options with which the processor calls its image processor."""
        merged = self.processor._merge_kwargs(tokenizer_init_kwargs=self.processor.tokenizer.init_kwargs)
        found: dict[str, Any] = {**merged["images_kwargs"], "return_tensors": None}
        return found

    def _arrays(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return those features of a page that the model reads, [n, …]."""
        found: dict[str, np.ndarray] = {}
        for name, value in features.items():
            if name in self.names:
                array: np.ndarray = np.asarray(value)
                found[name] = array.astype({"f": np.float32, "b": np.bool_}.get(array.dtype.kind, np.int64))
        return found

    def text(self, system: str, prompt: str) -> str:
        """Return the text of a prompt about an image, in the model's chat template if it has one."""
        processor = self.processor
        if getattr(processor, "chat_template", None):
            first = [{"role": "system", "content": [{"type": "text", "text": system}]}] if system else []
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            messages = [*first, {"role": "user", "content": content}]
            found: str = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            return found
        text = f"{system}\n{prompt}" if system else prompt
        token = getattr(processor, "image_token", None)
        if token is None or self.model_type in PLACES_IMAGE:
            return text
        around = [getattr(processor.tokenizer, name, "") for name in ("vision_bos_token", "vision_eos_token")]
        return f"{around[0]}{token}{around[1]}{text}"

    def encode(self, text: str, page: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the inputs of a prompt [L, …]: `input_ids` and what else the model reads of every token.

        Args:
            text: Result of `text`.
            page: What prompts need to know of the page.
        """
        if self.in_decoder:
            return {"input_ids": np.array(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"])}
        with self._known_page(page):
            image = Image.new("RGB", (1, 1))  # its features are known
            found = dict(self.processor(images=[image], text=[text]))
        length = len(found["input_ids"][0])
        return {
            name: np.asarray(value[0], np.int64)
            for name, value in found.items()
            if name in self.names - {"attention_mask", "labels"} and name not in page and len(value[0]) == length
        }

    @property
    def reads_boxes(self) -> bool:
        """True if the model reads the words of a page with their boxes."""
        return "bbox" in self.names

    def encode_words(self, text: str, words: Sequence[str], boxes: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of a text and the words of a page: `input_ids` [L], `bbox` [L, 4], and `word` [L].

        Args:
            text: Read before the words; empty: there is none.
            words: The words.
            boxes: Left, top, right, bottom of each word in thousandths of the page, int64 [words, 4].

        `word` is the index of each token's word; −1 for other tokens.
        """
        tokenizer = self.processor.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None) or tokenizer._tokenizer
        pair = (text.split(), list(words)) if text else (list(words),)
        found = backend.encode(*pair, is_pretokenized=True)
        of_page = len(pair) - 1
        word = np.array(
            [-1 if w is None or q != of_page else w for w, q in zip(found.word_ids, found.sequence_ids, strict=True)],
            np.int64,
        ).reshape(-1)
        page = np.concatenate([np.zeros((1, 4), np.int64), boxes])  # row 0 is that of other tokens
        box = page[word + 1]
        ids = np.array(found.ids, np.int64)
        for name in ("cls", "sep"):
            special, given = getattr(tokenizer, f"{name}_token_id", None), getattr(tokenizer, f"{name}_token_box", None)
            if special is not None and given is not None:
                box[(ids == special) & (word < 0)] = given
        return {"input_ids": ids, "bbox": box, "word": word}

    @contextmanager
    def _known_page(self, page: Mapping[str, Any]) -> Iterator[None]:
        """Let the processor read the features of a page that was processed before."""
        processor = self.processor
        before = processor.image_processor
        processor.image_processor = _KnownPage(before, page)
        try:
            yield
        finally:
            processor.image_processor = before

    @property
    def image_token(self) -> int:
        """The token that stands for images, many times; −1 if there is none."""
        found = getattr(self.processor, "image_token_id", None)
        return -1 if found is None else int(found)

    @property
    def answer_type(self) -> int:
        """The token type of answers: 1 where the model distinguishes them from prompts, as PaliGemma does."""
        return int("suffix" in inspect.signature(type(self.processor).__call__).parameters)

    def inputs(self, batch: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Return the features `names` of a batch's pages as the `forward` of the model reads them."""
        return unpacked(batch, names, self.scale)

    def save(self, folder: Path) -> None:
        """Write the processor, with its tokenizer, where `AutoProcessor.from_pretrained` reads it."""
        self.processor.save_pretrained(folder)


def trained_encoder(names: Iterable[str]) -> str | None:
    """Return the first of these tensors that belongs to an encoder of images; None if none does."""
    return next((name for name in names if any(re.fullmatch(TOWER, part) for part in name.split("."))), None)


def uneven_pages(module: nn.Module, trained: Sequence[str], rows: Callable[[], Iterable[str]]) -> str:
    """Return why an encoder of images is trained one client at a time; empty if it need not be.

    Args:
        module: The model.
        trained: Names of the trained tensors.
        rows: Returns the names of the rows of the encoded examples.
    """
    tokenizer = getattr(module, "hf_tokenizer", None)
    found = trained_encoder(trained) if getattr(tokenizer, "processor", None) is not None else None
    counted = found is not None and any(name.startswith(f"{COUNT}{PIXELS}") for name in rows())
    return UNEVEN.format(found) if counted else ""


class _KnownPage:
    """An image processor that returns the features of one page."""

    def __init__(self, processor: Any, page: Mapping[str, Any]) -> None:
        self.processor, self.page = processor, page

    def __call__(self, images: Any, **options: Any) -> dict[str, Any]:
        return dict(self.page)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)


def _outlines(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of a page with large ones replaced by zeros of their shape, which need no memory."""
    found = {}
    for name, value in features.items():
        array = np.asarray(value) if isinstance(value, (list, tuple, np.ndarray)) else None
        large = array is not None and array.dtype != object and array.size > LARGE
        found[name] = np.broadcast_to(np.float32(0), array.shape) if large and array is not None else value
    return found


def load_processor(
    config: Any, tokenizer: Any, folder: Path | None, settings: Mapping[str, Any], names: frozenset[str]
) -> HfProcessor | None:
    """Return the processor of a folder, or one that is built from a configuration; None if the model has none.

    Args:
        config: The model's configuration.
        tokenizer: The model's tokenizer.
        folder: Where the processor is read from; None: it is built.
        settings: Settings of the image processor, or of the processor.
        names: Inputs of the model's `forward`.

    Raises:
        ConfigError: A setting is unknown, or a package that the processor needs is not installed.
    """
    kind = _processor_class(config, folder)
    if kind is None or not {"image_processor", "tokenizer"} <= set(kind.get_attributes()):
        return None
    in_decoder = bool(config.is_encoder_decoder) and "input_ids" not in names
    if folder is None:
        images = _image_processor(config)
        _apply((images,), {name: value for name, value in settings.items() if hasattr(images, name)})
        if not getattr(images, "image_seq_length", None):
            images.image_seq_length = _num_image_tokens(config, images)
        processor = kind(image_processor=images, tokenizer=tokenizer, **_processor_settings(kind, config, images))
        if getattr(processor, "num_image_tokens", None) and getattr(config, "image_seq_length", None):
            processor.num_image_tokens = config.image_seq_length
    else:
        processor = kind.from_pretrained(folder, trust_remote_code=False)
        stored, _ = kind.get_processor_dict(folder)
        for name in inspect.signature(kind.__init__).parameters:  # transformers drops those of a class without videos
            if isinstance(stored.get(name), int) and hasattr(processor, name):
                setattr(processor, name, stored[name])
        processor.tokenizer = tokenizer
    if hasattr(processor.image_processor, "apply_ocr"):
        processor.image_processor.apply_ocr = False  # the data have the words
    _apply((processor.image_processor, processor), settings)
    if getattr(processor.image_processor, "is_vqa", False):
        raise ConfigError(
            "model.processor.is_vqa: true, by which the question is drawn into each page, is not supported; allowed:"
            " false, with which the prompt begins the decoder's input"
        )
    return HfProcessor(processor, names, config.model_type, in_decoder)


def _processor_class(config: Any, folder: Path | None) -> Any:
    """Return the class of a processor, without the processor of videos where the folder or torchvision lacks it."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
    from transformers.utils import is_torchvision_available

    name = PROCESSOR_MAPPING_NAMES.get(config.model_type)
    if config.model_type == "vision-encoder-decoder":
        name = "DonutProcessor" if config.encoder.model_type == "donut-swin" else "TrOCRProcessor"
    if name is None:
        return None
    kind = getattr(transformers, name)
    attributes = kind.get_attributes()
    if "video_processor" not in attributes or (is_torchvision_available() and _has_videos(folder)):
        return kind
    kept = [attribute for attribute in attributes if attribute != "video_processor"]
    without = {"get_attributes": classmethod(lambda cls: kept), "__module__": kind.__module__}
    if "video_processor" in inspect.signature(kind.__init__).parameters:

        @wraps(kind.__init__)  # settings that are saved are those of its signature
        def start(self: Any, image_processor: Any = None, tokenizer: Any = None, **options: Any) -> None:
            kind.__init__(self, image_processor, tokenizer, None, **options)

        without["__init__"] = start
    return type(kind.__name__, (kind,), without)


def _has_videos(folder: Path | None) -> bool:
    """Return whether a folder has a processor of videos; older ones name it nowhere."""
    if folder is None:
        return False
    own, all_in_one = folder / "video_preprocessor_config.json", folder / "processor_config.json"
    return own.exists() or not all_in_one.exists() or "video_processor" in all_in_one.read_text()


def _image_class(config: Any) -> Any:
    """Return the class of the image processor of a model type, on Pillow where torchvision is missing."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.utils import is_torchvision_available

    part = config.encoder if config.model_type == "vision-encoder-decoder" else config
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(part.model_type) or {}
    name = names.get("torchvision") if is_torchvision_available() else names.get("pil")
    if name is None:
        raise ConfigError(f"model.config: {part.model_type!r} has no image processor without torchvision")
    return getattr(transformers, name)


def _image_processor(config: Any) -> Any:
    """Return the image processor of a configuration."""
    kind = _image_class(config)
    return kind(**_sizes(config, kind().to_dict()))


def _vision(config: Any) -> Any:
    if config.model_type == "vision-encoder-decoder":
        return config.encoder
    return getattr(config, "vision_config", None) or config


def _side(config: Any) -> tuple[int, int] | None:
    """Return height and width of the images that a configuration names."""
    vision = _vision(config)
    size = getattr(vision, "image_size", None) or getattr(vision, "input_size", None)
    if size is None:
        return None
    return (size[0], size[1]) if isinstance(size, (list, tuple)) else (size, size)


def _sizes(config: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an image processor that follow from the sizes of a model."""
    vision, found = _vision(config), dict[str, Any]()
    for name, attribute in (
        ("patch_size", "patch_size"),
        ("temporal_patch_size", "temporal_patch_size"),
        ("merge_size", "spatial_merge_size"),
    ):
        value = getattr(vision, attribute, None)
        if name in known and value is not None:
            patched = {"height": value, "width": value} if isinstance(known[name], Mapping) else value
            found[name] = patched
    side = _side(config)
    if side is None:
        return found
    height, width = side
    for name in ("size", "crop_size", "max_image_size"):
        given = known.get(name)
        if isinstance(given, Mapping) and "merge_size" not in known:
            edges = {"height": height, "width": width, "shortest_edge": min(side), "longest_edge": max(side)}
            found[name] = {key: edges[key] for key, value in given.items() if value is not None and key in edges}
    if "do_image_splitting" in known:
        found["do_image_splitting"] = False
    return found


def _num_image_tokens(config: Any, images: Any) -> int:
    """Return how many tokens of the text stand for an image, by the sizes of a model and of its images."""
    vision, side = _vision(config), _side(config)
    strides, patch = getattr(vision, "patch_stride", None), getattr(vision, "patch_size", None)
    if isinstance(strides, (list, tuple)):  # Florence-2: the last of several stages, and its mean
        size, stride = dict(getattr(images, "crop_size", None) or images.size), math.prod(strides)
        return -(-size["height"] // stride) * -(-size["width"] // stride) + 1
    if side is None or patch is None:
        return 0
    height, width = (patch[0], patch[1]) if isinstance(patch, (list, tuple)) else (patch, patch)
    return (side[0] // height) * (side[1] // width)


def _processor_settings(kind: Any, config: Any, images: Any) -> dict[str, Any]:
    """Return the settings of a processor that follow from the sizes of a model."""
    bases = (kind, *kind.__bases__)
    known = [name for one in bases for name in inspect.signature(one.__init__).parameters]
    factor = getattr(config, "scale_factor", None) or getattr(config, "downsample_ratio", None)
    factor = factor or getattr(_vision(config), "scale_factor", None)
    found = dict[str, Any]()
    for name in ("image_seq_len", "image_seq_length"):
        if name in known and factor:
            share = factor**2 if factor < 1 else 1 / factor**2
            found[name] = int(_num_image_tokens(config, images) * share)
    return found


def _apply(owners: tuple[Any, ...], settings: Mapping[str, Any]) -> None:
    """Set settings of an image processor or a processor; ConfigError for one that none of them has."""
    for name, value in settings.items():
        owner = next((one for one in owners if hasattr(one, name) and not callable(getattr(one, name))), None)
        if owner is None:
            known = {key for one in owners for key in one.to_dict()}
            kind = type(owners[-1]).__name__
            raise ConfigError(f"model.processor.{name}: {kind} has no such setting; {nearest(name, known)}")
        setattr(owner, name, _like(getattr(owner, name), value))
        for one in owners:
            if name in (options := getattr(one, "images_kwargs", {})):
                one.images_kwargs = {**options, name: value}


def _like(before: Any, value: Any) -> Any:
    """Return a size as the class in which an image processor keeps sizes; other values unchanged."""
    return type(before)(**value) if type(before).__name__ == "SizeDict" and isinstance(value, Mapping) else value


def add_tokens(tokenizer: Any, config: Any) -> None:
    """Add the special tokens that the processor of a model without weights reads, under their names."""
    for name, token in NAMED_TOKENS.get(config.model_type, {}).items():
        if name in ("bos_token",):
            tokenizer.add_special_tokens({name: token})
        elif getattr(tokenizer, name, None) is None:
            tokenizer.add_special_tokens({"additional_special_tokens": [token]}, replace_extra_special_tokens=False)
            setattr(tokenizer, name, token)
            setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))


def set_token_ids(config: Any, tokenizer: Any, given: Collection[str]) -> None:
    """Set the tokens that a configuration names to those of the tokenizer, where the settings do not give them."""
    known = NAMED_TOKENS.get(config.model_type, {})
    for setting, names in TOKEN_SETTINGS.items():
        token = next((known[name] for name in names if name in known), None)
        if token is not None and hasattr(config, setting) and setting not in given:
            setattr(config, setting, tokenizer.convert_tokens_to_ids(token))
    for part in config_parts(config):
        for setting, token in SPECIAL_IDS:
            if getattr(part, setting, None) is not None and setting not in given:
                setattr(part, setting, getattr(tokenizer, token))


def config_parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and those of its parts."""
    yield config
    for name in getattr(config, "sub_configs", ()) or ("encoder", "decoder"):
        part = getattr(config, name, None)
        if hasattr(part, "to_dict"):
            yield from config_parts(part)
