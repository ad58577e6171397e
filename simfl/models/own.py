"""Torch modules that simfl did not write as models: a user's own, and the base of `simfl.models.hf`."""

from __future__ import annotations

import hashlib
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from simfl import imports
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.base import Model, seeded, set_trainable, to_float
from simfl.models.call_context import current_call
from simfl.models.dropout import KeyedDropout, install_keyed_dropout
from simfl.models.peft_method import check_given
from simfl.models.portable import copied, make_picklable, refuse_lazy
from simfl.models.quantized import dequantize_linears
from simfl.models.recomputation import CHECKPOINTED, refuse_other_checkpoints, use_recomputable_checkpoints
from simfl.models.saved_adapters import save_with_adapters
from simfl.protocol import Outputs, Task
from simfl.weights import HALF, sha256

ATTENTION_DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "dropout_rate", "attn_pdrop")
TOKENIZER = "hf_tokenizer"  # attribute of a model of transformers that simfl loaded: its `HfTokenizer`
SPAN_LOGITS = ("start_logits", "end_logits")  # of a result of transformers' models of question answering
ATTENTION_BEFORE = "attention_before"  # attribute of a model of transformers: the implementation that ours replaced


class WrappedModel(Model):
    """Base of models whose module is not simfl's: its `forward` is wrapped, and adapters may be attached."""

    adapters: Adapter | None

    @abstractmethod
    def module(self, task: Task) -> nn.Module:
        """Build the bare module in a block that is seeded; raise ConfigError if it cannot be built."""

    def build(self, task: Task) -> nn.Module:
        """Build the module and wrap its `forward` to take batches and return `Outputs`; ConfigError if it is none."""
        with seeded(task.seed):
            module = self.module(task)
            refuse_lazy(module)
            _refuse_complex(module)
            _key_attention_dropout(module)
            if self.adapters is not None:
                self.adapters.attach(module)
            elif hasattr(module, "peft_config"):
                check_given(module)
        if use_recomputable_checkpoints(module) and not hasattr(module, "grouped_only"):
            setattr(module, "grouped_only", CHECKPOINTED)  # noqa: B010
        module.forward = BatchForward(module, task.shape)  # not a wrapper module: tensors keep their names
        return set_trainable(self, install_keyed_dropout(module).eval())

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return what the adapters train, or else all that requires a gradient."""
        if self.adapters is not None:
            return self.adapters.trainable_params(module)
        names = [name for name, _ in module.named_parameters()]
        trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        return ("*",) if trainable == names else tuple(name.replace("[", "[[]") for name in trainable)


@dataclass(frozen=True)
class OwnModel(WrappedModel):
    """A torch module of your own: the result of `package.module:function`; from Python also the module itself."""

    of: object  # package.module:function or class, called with the settings, and the task if it takes one argument
    settings: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of the function
    adapters: Adapter | None = None  # trained instead of the rest
    sha256: str | None = None  # written by simfl for a module given from Python: a hash of its structure and values
    example: ClassVar[Mapping[str, object]] = {"of": "torch.nn:LayerNorm", "settings": {"normalized_shape": 4}}

    def __post_init__(self) -> None:
        """Let a given module be sent to workers; ConfigError if its tensors have no shapes yet."""
        if isinstance(self.of, nn.Module):
            refuse_lazy(self.of)
            make_picklable(self.of)

    def module(self, task: Task) -> nn.Module:
        """Copy the given module, or call the function that builds one; raise ConfigError if it returns none."""
        found = imports.resolve(self.of, "model.of")
        if isinstance(found, nn.Module):
            return copied(found)
        if not callable(found):
            raise ConfigError(f"model.of: {found!r} is neither a torch module nor a function that returns one")
        module = imports.call(found, self.settings, "model", task)
        if not isinstance(module, nn.Module):
            name = imports.reference(self.of)
            raise ConfigError(f"model.of: {name} returns {type(module).__name__}, not a torch module")
        return module

    def plain(self) -> dict[str, object]:
        """Return the settings as an experiment file stores them."""
        name = imports.reference(self.of)
        fields: dict[str, object] = {"of": name, "settings": self.settings, "adapters": self.adapters}
        return fields | {"sha256": self.sha256 or _content_sha256(self.of)}


def release(module: nn.Module) -> nn.Module:
    """Restore a wrapped module's own forward, dropout and attention, and let `save_pretrained` write adapters."""
    if not isinstance(vars(module).pop("forward", None), BatchForward):
        return module
    vars(module).pop(TOKENIZER, None)
    for name, layer in list(module.named_modules()):
        if isinstance(layer, KeyedDropout):
            parent, _, last_name = name.rpartition(".")
            setattr(module.get_submodule(parent), last_name, nn.Dropout(layer.p).train(layer.training))
        if before := vars(layer).pop(ATTENTION_BEFORE, None):
            layer.set_attn_implementation(before)
    dequantize_linears(module)
    save_with_adapters(module)
    return module


def wrap(value: object) -> Model | None:
    """Convert a module, or a function or class that builds one, to a component; return None for other values."""
    return OwnModel(value) if isinstance(value, nn.Module) or callable(value) else None


def _content_sha256(of: object) -> str | None:
    """Hash an object's structure and values; return None if it can be imported by name."""
    if not imports.reference(of).startswith(imports.OBJECT):
        return None
    if not isinstance(of, nn.Module):
        return imports.source_sha256(of)
    return hashlib.sha256(f"{of!r} {sha256(of.state_dict())}".encode()).hexdigest()


def _refuse_complex(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_complex():
            raise ConfigError(f"model: {name} has dtype {tensor.dtype}, which cannot be sent; allowed: real numbers")


def _key_attention_dropout(module: nn.Module) -> None:
    """Switch models of transformers to our keyed attention if the attention of one of their parts has dropout."""
    for model in module.modules():
        config, set_attention = getattr(model, "config", None), getattr(model, "set_attn_implementation", None)
        rates = (getattr(part, name, 0) for part in _configs(config) for name in ATTENTION_DROPOUTS)
        if callable(set_attention) and getattr(config, "_attn_implementation", "") != "simfl" and any(rates):
            import simfl.models.attention  # noqa: F401  (registers "simfl"; takes seconds)

            setattr(model, ATTENTION_BEFORE, getattr(config, "_attn_implementation", None))
            set_attention("simfl")


def _configs(config: object) -> Iterator[object]:
    """Yield a configuration of transformers and those of its parts, such as a text and a vision model."""
    yield config
    for name in getattr(config, "sub_configs", ()):
        if (part := getattr(config, name, None)) is not None:
            yield from _configs(part)


@contextmanager
def _stackable_attention(module: nn.Module) -> Iterator[None]:
    """Use our attention inside the block in place of "sdpa" of transformers, whose masks `torch.func.vmap` refuses."""
    configs: dict[int, Any] = {id(one): one for layer in module.modules() if (one := getattr(layer, "config", None))}
    switched = [one for one in configs.values() if getattr(one, "_attn_implementation", None) == "sdpa"]
    if switched:
        import simfl.models.attention  # noqa: F401  (registers "simfl")
    for one in switched:
        one._attn_implementation = "simfl"
    try:
        yield
    finally:
        for one in switched:
            one._attn_implementation = "sdpa"


class BatchForward:
    """A module's `forward` behind simfl's interface: batches in its shape and under its names, logits returned.

    An object with `logits` is returned unchanged, so that a model of transformers can `generate`; other results are
    converted to `Outputs`. The signature is that of the module's own forward.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...] | None) -> None:
        self.forward: Callable[..., object] = module.forward
        self.module, self.shape, self.checked, self.casts = module, shape, False, False
        dtypes = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
        self.dtype = next(dtypes, torch.float32)  # of the first parameter
        self.__signature__ = inspect.signature(self.forward)
        self.names = set(self.__signature__.parameters)
        self.options = {"use_cache": False} if _caches(module, self.__signature__) else {}

    def __call__(self, *inputs: Tensor, **named: Tensor) -> object:
        """Call the module's own forward."""
        inputs = tuple(self._reshape(x) for x in inputs)
        if "x" in named:
            named["x"] = self._reshape(named["x"])
        if len(named) == 1 and not inputs and not named.keys() & self.names:
            inputs, named = tuple(named.values()), {}  # a single input is passed by position, whatever its name
        with _stackable_attention(self.module) if current_call().under_vmap else nullcontext():
            if self.checked or not self.module.training:
                return _with_logits(self._forward(inputs, named))
            with refuse_other_checkpoints():
                out = self._forward(inputs, named)
            self.checked = True
            return _with_logits(out)

    def _forward(self, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> object:
        """Call the forward; floating inputs get the dtype of the parameters where the module does not take theirs."""
        if self.casts:
            given = {name: self._cast(x) for name, x in named.items()}
            return self.forward(*map(self._cast, inputs), **{**self.options, **given})
        try:
            return self.forward(*inputs, **{**self.options, **named})
        except RuntimeError:
            if not any(self._cast(x) is not x for x in (*inputs, *named.values())):
                raise
            self.casts = True
            try:
                return self._forward(inputs, named)
            except Exception:
                self.casts = False
            raise

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    def _reshape(self, x: Tensor) -> Tensor:
        """Convert to floats, and flat examples to the shape of the data set's."""
        x = to_float(x)
        flat = self.shape is not None and len(self.shape) > 1 and x.dim() == 2 and x.shape[1] == math.prod(self.shape)
        return x.reshape(len(x), *self.shape) if flat and self.shape else x


def _caches(module: nn.Module, signature: inspect.Signature) -> bool:
    """Return whether a model of transformers keeps keys and values of a pass, for `generate`, unless told not to."""
    config: Any = getattr(module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    passed_on = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    return hasattr(text, "use_cache") and (passed_on or "use_cache" in signature.parameters)


def _with_logits(out: object) -> object:
    """Return a result that has tensors as its `logits`, or as those of spans, unchanged, and any other as `Outputs`."""
    known = any(isinstance(getattr(out, name, None), Tensor) for name in ("logits", SPAN_LOGITS[0]))
    return out if known else to_outputs(out)


def _wide(tensor: Tensor) -> Tensor:
    """Return outputs in float32 at least, in which losses are computed."""
    return tensor.float() if tensor.dtype in HALF else tensor


def to_outputs(out: object) -> Outputs:
    """Convert a module's result to `Outputs`; raise ConfigError if it has no logits. Half precision becomes float32.

    It may be logits, a tuple that starts with them, or a mapping or object with `logits`. The scores of first and last
    tokens of spans become logits [B, 2, L].
    """
    if isinstance(out, Outputs):
        return replace(out, **{name: _wide(tensor) for name, tensor in out.tensors().items()})
    if isinstance(out, Tensor):
        return Outputs(_wide(out))
    if isinstance(out, Mapping) and "logits" in out:
        features = out.get("features")
        return Outputs(_wide(out["logits"]), _wide(features) if isinstance(features, Tensor) else features)
    if isinstance(out, (tuple, list)) and out and isinstance(out[0], Tensor):
        return Outputs(_wide(out[0]))
    ends = [getattr(out, name, None) for name in SPAN_LOGITS]
    if all(isinstance(one, Tensor) for one in ends):
        return Outputs(_wide(torch.stack(ends, 1)))  # type: ignore[arg-type]
    logits = getattr(out, "logits", None)
    if isinstance(logits, Tensor):
        return Outputs(_wide(logits))
    raise ConfigError(f"model.of: its forward returns {type(out).__name__}; allowed: logits, or simfl's Outputs")
