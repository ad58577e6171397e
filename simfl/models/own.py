"""A user's own torch module as a model, Hugging Face models included."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from simfl import imports
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.base import Model, seeded, set_trainable, to_float
from simfl.models.dropout import install_keyed_dropout
from simfl.protocol import Outputs, Task
from simfl.weights import sha256

FULLY_TRAINED = ".modules_to_save."  # in the names of modules that peft trains fully, in addition to its adapters
ATTENTION_DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "dropout_rate", "attn_pdrop")
UNKEYED_RANDOMNESS = (
    "the model draws from torch's global generator in training, so that no client update is reproducible; "
    "replace functional dropout by nn.Dropout, which simfl keys, or turn it off"
)


@dataclass(frozen=True)
class OwnModel(Model):
    """A torch module of your own: the result of `package.module:function`; from Python also the module itself."""

    of: object  # package.module:function or class, called with the settings, and the task if it takes one argument
    settings: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of the function
    adapters: Adapter | None = None  # trained instead of the rest
    sha256: str | None = None  # written by simfl for a module given from Python: a hash of its structure and values
    example: ClassVar[Mapping[str, object]] = {"of": "torch.nn:LayerNorm", "settings": {"normalized_shape": 4}}

    def build(self, task: Task) -> nn.Module:
        """Build the module and wrap its `forward` to take batches and return `Outputs`; ConfigError if it is none."""
        with seeded(task.seed):
            module = self._module(task)
            _key_attention_dropout(module)
            if self.adapters is not None:
                self.adapters.attach(module)
        module.forward = BatchForward(module, task.shape)  # not a wrapper module: tensors keep their names
        return set_trainable(self, install_keyed_dropout(module).eval())

    def _module(self, task: Task) -> nn.Module:
        found = imports.resolve(self.of, "model.of")
        if isinstance(found, nn.Module):
            return copy.deepcopy(found)
        if not callable(found):
            raise ConfigError(f"model.of: {found!r} is neither a torch module nor a function that returns one")
        module = imports.call(found, self.settings, "model", task)
        if not isinstance(module, nn.Module):
            name = imports.reference(self.of)
            raise ConfigError(f"model.of: {name} returns {type(module).__name__}, not a torch module")
        return module

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return the adapters and the modules that peft trains fully, or else all that requires a gradient."""
        names = [name for name, _ in module.named_parameters()]
        if self.adapters is not None:
            fully_trained = (f"*{FULLY_TRAINED}*",) if any(FULLY_TRAINED in name for name in names) else ()
            return self.adapters.trainable_params(module) + fully_trained
        trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        return ("*",) if trainable == names else tuple(name.replace("[", "[[]") for name in trainable)

    def plain(self) -> dict[str, object]:
        """Return the settings as an experiment file stores them."""
        name = imports.reference(self.of)
        fields: dict[str, object] = {"of": name, "settings": self.settings, "adapters": self.adapters}
        return fields | {"sha256": self.sha256 or _content_sha256(self.of)}


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


def _key_attention_dropout(module: nn.Module) -> None:
    """Switch a model of transformers to our keyed attention if its attention has dropout."""
    config, set_attention = getattr(module, "config", None), getattr(module, "set_attn_implementation", None)
    if not callable(set_attention) or not any(getattr(config, name, 0) for name in ATTENTION_DROPOUTS):
        return
    import simfl.models.attention  # noqa: F401  (registers "simfl"; takes seconds)

    set_attention("simfl")


class BatchForward:
    """A module's `forward` behind simfl's interface: batches in its shape and under its names, `Outputs` returned."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...] | None) -> None:
        self.forward: Callable[..., object] = module.forward
        self.module, self.shape, self.checked = module, shape, False
        self.names = set(inspect.signature(self.forward).parameters)

    def __call__(self, *inputs: Tensor, **named: Tensor) -> Outputs:
        """Call the module's own forward."""
        inputs = tuple(self._reshape(x) for x in inputs)
        if "x" in named:
            named["x"] = self._reshape(named["x"])
        if len(named) == 1 and not inputs and not named.keys() & self.names:
            inputs, named = tuple(named.values()), {}  # a single input is passed by position, whatever its name
        if self.module.training and not self.checked:
            self.checked = True
            return to_outputs(_check_randomness(self.forward, *inputs, **named))
        return to_outputs(self.forward(*inputs, **named))

    def _reshape(self, x: Tensor) -> Tensor:
        """Convert to floats, and flat examples to the shape of the data set's."""
        x = to_float(x)
        flat = self.shape is not None and len(self.shape) > 1 and x.dim() == 2 and x.shape[1] == math.prod(self.shape)
        return x.reshape(len(x), *self.shape) if flat and self.shape else x


def _check_randomness(function: Callable[..., object], *inputs: Tensor, **named: Tensor) -> object:
    """Call the function; raise ConfigError if it advanced torch's generators."""
    before = _generator_states()
    result = function(*inputs, **named)
    if _generator_states() != before:
        raise ConfigError(f"model.of: {UNKEYED_RANDOMNESS}")
    return result


def _generator_states() -> list[bytes]:
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return [state.numpy().tobytes() for state in states]


def to_outputs(out: object) -> Outputs:
    """Convert a module's result to `Outputs`; raise ConfigError if it has no logits.

    It may be logits, a tuple that starts with them, or a mapping or object with `logits`.
    """
    if isinstance(out, Outputs):
        return out
    if isinstance(out, Tensor):
        return Outputs(out)
    if isinstance(out, Mapping) and "logits" in out:
        return Outputs(out["logits"], out.get("features"))
    if isinstance(out, (tuple, list)) and out and isinstance(out[0], Tensor):
        return Outputs(out[0])
    logits = getattr(out, "logits", None)
    if isinstance(logits, Tensor):
        return Outputs(logits)
    raise ConfigError(f"model.of: its forward returns {type(out).__name__}; allowed: logits, or simfl's Outputs")
