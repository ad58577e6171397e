"""Models of transformers from settings alone: pretrained weights, or a configuration with weights drawn from the seed.

The module stays transformers' own: its `forward` and its `generate` are called. Code from a hub is never run
(`trust_remote_code` is false).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from simfl.errors import ConfigError, SimflError, nearest
from simfl.models.adapters import Adapter
from simfl.models.composed import composed_folder, language_weights
from simfl.models.gguf import converted_folder, find_gguf
from simfl.models.hf_processor import HfProcessor, add_tokens, load_processor, set_token_ids
from simfl.models.hf_tokenizer import HfTokenizer, load_tokenizer
from simfl.models.own import WrappedModel
from simfl.models.peft_method import PeftMethod
from simfl.models.pretrained import HUB_FILES, WEIGHT_FILES, reading, weights_folder
from simfl.models.quantized import check_kind, quantize_linears
from simfl.protocol import Task

HfTask = Literal[
    "causal_lm", "image_text_to_text", "seq2seq", "vision_encoder_decoder", "sequence_classification",
    "token_classification", "question_answering",
]  # fmt: skip
AUTO_CLASSES: dict[str, str] = {
    "image_text_to_text": "AutoModelForImageTextToText",
    "vision_encoder_decoder": "AutoModelForImageTextToText",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "causal_lm": "AutoModelForCausalLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
}
IMAGE_TASKS = ("image_text_to_text", "vision_encoder_decoder", "question_answering", "token_classification")
CLASSIFIERS = ("sequence_classification", "token_classification")
ENDINGS = {  # of the class that a configuration names
    "ForCausalLM": "causal_lm",
    "LMHeadModel": "causal_lm",
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
}
HEAD = "simfl_head"  # attribute of a module: names of the parameters of a classifier outside of its backbone
COMMON_SETTINGS = (
    "num_labels",
    "id2label",
    "label2id",
    "problem_type",
    "tie_word_embeddings",
    "decoder_start_token_id",
)


@dataclass(frozen=True)
class HuggingFace(WrappedModel):
    """A model of transformers: weights of a folder or of the hub, or a configuration with random weights."""

    weights: str | None = None  # a folder or a hub id; null: drawn from the seed
    config: Mapping[str, object] = field(default_factory=dict)  # of transformers; without weights, with `model_type`
    task: HfTask | None = None  # null: what the configuration names, or else what its model type is for
    gguf: str | None = None  # name of a file gguf among the weights; null: the only one, if there is no configuration
    tokenizer_from: str | None = None  # a folder or a hub id; null: the weights', or without weights a small public one
    processor: Mapping[str, object] = field(
        default_factory=dict
    )  # settings of the processor of images, such as its size
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of the weights; adapters stay float32
    attention: Literal["sdpa", "eager"] | None = (
        None  # null: what transformers chooses; with dropout, simfl's keyed one
    )
    base: Literal["none", "int8", "nf4", "bnb_nf4"] = (
        "none"  # quantization of the frozen linear layers under adapters; bnb_nf4: nf4 by bitsandbytes
    )
    checkpointing: bool = False  # recompute activations in the backward pass, to save memory
    adapters: Adapter | None = None  # trained instead of the rest, with the head of a classifier

    example: ClassVar[Mapping[str, object]] = {
        "config": {"model_type": "distilbert", "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
        "task": "sequence_classification",
    }

    def module(self, task: Task) -> nn.Module:
        """Load the model; on the device `meta`, build it without its weights, which are then not downloaded."""
        config = self._config(task)
        auto = self._auto_class(config)
        if self._folder is None or torch.get_default_device().type == "meta":
            with quiet_transformers("model.config"):
                module = auto.from_config(config, dtype=getattr(torch, self.dtype), attn_implementation=self.attention)
        else:
            module = self._load(auto, config)
        setattr(module, HEAD, self._head(module, config))
        self._quantize(module)
        module.hf_tokenizer = self.tokenizer()
        _complete_generation(module, module.hf_tokenizer)
        if module.hf_tokenizer.processor is not None:
            module.grouped_only = "a model that reads images trains several clients at once by adapters alone"
        if self.checkpointing:
            enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
            enable()
        found: nn.Module = module
        return found

    def _load(self, auto: Any, config: Any) -> Any:
        """Return the model with the weights; these may lack the head of a classifier, or have another one."""
        folder = self._found(str(self.weights), (*self._small_files, *WEIGHT_FILES))
        with quiet_transformers("model.weights"), reading(folder):
            module, info = auto.from_pretrained(
                folder, config=config, dtype=getattr(torch, self.dtype), attn_implementation=self.attention,
                ignore_mismatched_sizes=True, output_loading_info=True, trust_remote_code=False,
            )  # fmt: skip
        missing = {name for name, _ in module.named_parameters()} & set(info["missing_keys"])
        mismatched = {entry[0] if isinstance(entry, tuple) else entry for entry in info["mismatched_keys"]}
        lacking = sorted((missing | mismatched) - set(self._head(module, config)))
        if lacking:
            raise ConfigError(
                f"model.weights: {self.weights} lacks {len(lacking)} tensors of {type(module).__name__}:"
                f" {', '.join(lacking[:4])}"
            )
        return module

    def _quantize(self, module: Any) -> None:
        """Quantize the linear layers that adapters leave frozen; ConfigError if there are none."""
        if self.base == "none":
            return
        if self.adapters is None:
            raise ConfigError(f"model.base: {self.base} weights are not trained; add model.adapters, such as lora")
        check_kind(self.base)
        heads = {name.rpartition(".")[0] for name in getattr(module, HEAD)}
        kept = [layer for path, layer in module.named_modules() if path in heads]
        if not quantize_linears(module, self.base, [*kept, module.get_output_embeddings()]):
            raise ConfigError(f"model.base: {type(module).__name__} has no linear layers of torch; allowed: none")

    def _head(self, module: Any, config: Any) -> tuple[str, ...]:
        """Return the names of the parameters of a classifier that lie outside of its backbone."""
        if self._task(config) not in (*CLASSIFIERS, "question_answering"):
            return ()
        backbone = f"{module.base_model_prefix}."
        return tuple(name for name, _ in module.named_parameters() if not name.startswith(backbone))

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return what the adapters train, with the head of a classifier; without adapters, everything.

        A configuration of peft is followed exactly: it names the head itself.
        """
        found = super().trainable_params(module)
        if self.adapters is None or isinstance(self.adapters, PeftMethod):
            return found
        return tuple(dict.fromkeys((*found, *getattr(module, HEAD, ()))))

    def tokenizer(self) -> HfTokenizer:
        """Return the tokenizer of the weights or of `tokenizer_from`; without both, a small public one."""
        config, processor = self._config(None), self._processor
        text = config.get_text_config()
        limit = getattr(text, "max_position_embeddings", None)  # GPT-2's n_positions has this name too
        in_encoder = bool(config.is_encoder_decoder) and not (processor is not None and processor.in_decoder)
        return HfTokenizer(self._tokenizer, in_encoder, _start_token(config), limit, processor)

    @cached_property
    def _tokenizer(self) -> Any:
        folder = self._folder
        if self.tokenizer_from is not None:
            folder = weights_folder(self.tokenizer_from, "model.tokenizer_from", HUB_FILES)
        tokenizer = load_tokenizer(folder)
        if self._folder is None:
            add_tokens(tokenizer, self._bare_config())
        return tokenizer

    @cached_property
    def _processor(self) -> HfProcessor | None:
        """The processor of pages; None for models of text alone."""
        config = self._bare_config()
        task = self._task(config)
        if task not in IMAGE_TASKS:
            if self.processor:
                raise ConfigError(f"model.processor: {config.model_type!r} reads no images in task {task!r}")
            return None
        kind = self._auto_class(config)._model_mapping[type(config)]
        names = frozenset(inspect.signature((kind[0] if isinstance(kind, tuple) else kind).forward).parameters)
        with quiet_transformers("model.processor"):
            return load_processor(config, self._tokenizer, self._folder, self.processor, names)

    @cached_property
    def _folder(self) -> Path | None:
        if self.weights is None:
            if self.gguf is not None:
                raise ConfigError(f"model.gguf: {self.gguf!r} is a file among weights; give model.weights")
            return None
        return self._found(self.weights, self._small_files)

    def _found(self, weights: str, files: tuple[str, ...]) -> Path:
        """Return the folder of the weights in the layout of transformers: files gguf converted, parts composed."""
        folder = weights_folder(weights, "model.weights", files)
        language = language_weights(folder)
        if language is not None:
            whole = (*HUB_FILES, *WEIGHT_FILES)
            with quiet_transformers("model.weights"):
                parts = weights_folder(weights, "model.weights", whole)
                return composed_folder(parts, lambda: self._found(language, whole))
        file = find_gguf(folder, self.gguf)
        if file is None:
            return folder
        with quiet_transformers("model.weights"):
            return converted_folder(file)

    @property
    def _small_files(self) -> tuple[str, ...]:
        """Globs of the files of a hub that a plan needs: all but the weights, unless one gguf file holds everything."""
        return HUB_FILES if self.gguf is None else (*HUB_FILES, self.gguf)

    def _config(self, task: Task | None) -> Any:
        """Return the configuration with the experiment's settings, classes of the data and tokens of the tokenizer."""
        config = self._bare_config()
        classes = None if task is None else task.num_classes
        if classes is not None and self._task(config) in CLASSIFIERS and "num_labels" not in self.config:
            config.num_labels = classes
        text = config.get_text_config()
        found = self._processor  # it may add tokens to the tokenizer
        length = len(self._tokenizer if found is None else found.processor.tokenizer)
        if self._folder is None:
            with quiet_transformers("model.config"):
                set_token_ids(config, self._tokenizer, set(_flat(self.config)))
        if self._folder is None and "vocab_size" not in _flat(self.config):
            text.vocab_size = length
        if length > text.vocab_size:
            raise ConfigError(f"model.config.vocab_size: {text.vocab_size} rows are too few for {length} tokens")
        for one in {id(config): config, id(text): text}.values():
            if getattr(one, "pad_token_id", None) is None:
                one.pad_token_id = self._tokenizer.pad_token_id
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = _start_token(config)
        return config

    def _bare_config(self) -> Any:
        from transformers import AutoConfig
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        settings: dict[str, Any] = {name: copy.deepcopy(value) for name, value in self.config.items()}
        if self._folder is not None:
            with quiet_transformers("model.weights"), reading(self._folder / "config.json"):
                config = AutoConfig.from_pretrained(self._folder, trust_remote_code=False)
            _check_settings(settings, config, "model.config")
            return _updated(config, settings)
        kind = settings.pop("model_type", None)
        if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
            hint = nearest(str(kind), CONFIG_MAPPING) if kind else "such as llama, t5, distilbert"
            given = f"{kind!r} is no model type of transformers" if kind else "without weights, it needs a model_type"
            raise ConfigError(f"model.config.model_type: {given}; {hint}")
        with quiet_transformers("model.config"):
            composed = kind == "vision-encoder-decoder"  # which has no default configuration
            default = CONFIG_MAPPING[kind](**settings) if composed else CONFIG_MAPPING[kind]()
        _check_settings(settings, default, "model.config")
        if composed and "decoder" in settings:
            settings["decoder"] = {"is_decoder": True, "add_cross_attention": True, **settings["decoder"]}
        with quiet_transformers("model.config"):
            return CONFIG_MAPPING[kind](**settings)

    def _task(self, config: Any) -> str:
        """Return the task that the settings or the configuration name, or for which the model type is made."""
        return self.task or _task_of(config)

    def _auto_class(self, config: Any) -> Any:
        import transformers

        task = self._task(config)
        auto = getattr(transformers, AUTO_CLASSES[task])
        if type(config) not in auto._model_mapping:
            known = [name for name in AUTO_CLASSES if type(config) in _auto(name)._model_mapping]
            raise ConfigError(
                f"model.task: {config.model_type!r} has no model for {task!r}; allowed: {', '.join(known) or 'none'}"
            )
        return auto


def _auto(task: str) -> Any:
    import transformers

    return getattr(transformers, AUTO_CLASSES[task])


def _task_of(config: Any) -> str:
    """Return the task of a configuration: that of the class that it names, or of its model type."""
    for name in config.architectures or ():
        task = next((task for ending, task in ENDINGS.items() if name.endswith(ending)), None)
        if task is not None:
            return task
    from transformers import AutoModelForMaskedLM

    encoder = type(config) in AutoModelForMaskedLM._model_mapping and not config.is_encoder_decoder
    for task in ("image_text_to_text", "seq2seq", *(() if encoder else ("causal_lm",))):
        if type(config) in _auto(task)._model_mapping:
            return task
    known = [name for name in AUTO_CLASSES if type(config) in _auto(name)._model_mapping]
    raise ConfigError(f"model.task: {config.model_type!r} does not say its task; allowed: {', '.join(known) or 'none'}")


def _start_token(config: Any) -> int | None:
    """Return the first input of the decoder, for models with an encoder and a decoder."""
    if not config.is_encoder_decoder:
        return None
    start = getattr(config, "decoder_start_token_id", None)
    return config.pad_token_id if start is None else start


def _complete_generation(module: Any, tokenizer: HfTokenizer) -> None:
    """Set the tokens with which generation starts, ends and pads where the model does not name them."""
    generation = getattr(module, "generation_config", None)
    if generation is None:
        return
    tokens = {"pad_token_id": tokenizer.pad_id, "decoder_start_token_id": tokenizer.decoder_start}
    if tokenizer.tokenizer.eos_token_id is not None:
        tokens["eos_token_id"] = tokenizer.end_id
    for name, token in tokens.items():
        if getattr(generation, name, None) is None and token is not None:
            setattr(generation, name, token)


def _flat(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all settings, nested ones included."""
    for name, value in settings.items():
        yield name
        if isinstance(value, Mapping):
            yield from _flat(value)


def _check_settings(settings: Mapping[str, Any], config: Any, where: str) -> None:
    """Raise ConfigError for a setting that the configuration does not have, which transformers would ignore."""
    known = config.to_dict()
    for name, value in settings.items():
        if name not in known and name not in COMMON_SETTINGS and not hasattr(config, name):
            raise ConfigError(f"{where}.{name}: {config.model_type!r} has no such setting; {nearest(name, known)}")
        part: Any = getattr(config, name, None)
        known_part = isinstance(value, Mapping) and hasattr(part, "to_dict")
        if known_part and value.get("model_type", part.model_type) == part.model_type:
            _check_settings({k: v for k, v in value.items() if k != "model_type"}, part, f"{where}.{name}")


def _updated(config: Any, settings: Mapping[str, Any]) -> Any:
    """Return a configuration with other settings, nested ones included."""
    for name, value in settings.items():
        part: Any = getattr(config, name, None)
        if isinstance(value, Mapping) and hasattr(part, "to_dict"):
            _updated(part, value)
        else:
            setattr(config, name, value)
    return config


@contextmanager
def quiet_transformers(setting: str) -> Iterator[None]:
    """Raise ConfigError with one line, which names the setting, for an error of transformers in the block."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # its report of new and missing tensors; simfl checks them
    logging.disable_progress_bar()
    try:
        yield
    except (SimflError, MemoryError):
        raise
    except Exception as error:  # transformers and its libraries have errors of many kinds for unfit settings and files
        reasons = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"{setting}: {type(error).__name__}: {' '.join(reasons[:2])}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
