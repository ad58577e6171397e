"""A torch module of one's own in place of a backbone that comes with simfl, Hugging Face models among them."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from simfl import imports as given
from simfl.errors import ConfigError
from simfl.models.adapters_base import Adapter
from simfl.models.base import Model, default_trained, seeded
from simfl.models.dropout import install
from simfl.models.mlp import as_float
from simfl.protocol import Outputs, Task
from simfl.weights import sha256

SAVED = ".modules_to_save."  # in the names of what peft trains whole beside its adapters
DRAWS = (
    "the model draws from torch's global generator while it trains, so that no visit could be repeated; "
    "use nn.Dropout, which simfl keys, in place of functional dropout, or switch the latter off"
)


@dataclass(frozen=True)
class Own(Model):
    """A torch module of your own: what `package.module:function` returns; from Python also the module itself."""

    of: object  # package.module:function or class, called with the settings, and the task if it asks for one argument
    settings: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of the function
    adapters: Adapter | None = None  # trained in place of the rest
    sha256: str | None = None  # written by simfl, of a module given from Python: what it is and holds

    def build(self, task: Task) -> nn.Module:
        """The module with its `forward` made to take batches and return `Outputs`; ConfigError if there is none."""
        with seeded(task.seed):
            module = self._module(task)
            _key_attention(module)
            if self.adapters is not None:
                self.adapters.attach(module)
        module.forward = Forward(module, task.shape)  # names of tensors stay as they are
        return default_trained(self, install(module).eval())

    def _module(self, task: Task) -> nn.Module:
        found = given.resolve(self.of, "model.of")
        if isinstance(found, nn.Module):
            return copy.deepcopy(found)
        if not callable(found):
            raise ConfigError(f"model.of: {found!r} is neither a torch module nor a function that returns one")
        module = given.called(found, self.settings, "model", task)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model.of: {given.written(self.of)} returns {type(module).__name__}, not a torch module")
        return module

    def trains(self, module: nn.Module) -> tuple[str, ...]:
        """The adapters and what peft trains whole beside them; without adapters, all that requires a gradient."""
        names = [name for name, _ in module.named_parameters()]
        if self.adapters is not None:
            return self.adapters.trains() + ((f"*{SAVED}*",) if any(SAVED in name for name in names) else ())
        wanted = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        return ("*",) if wanted == names else tuple(name.replace("[", "[[]") for name in wanted)

    def plain(self) -> dict[str, object]:
        """The settings as an experiment file holds them."""
        fields: dict[str, object] = {"of": given.written(self.of), "settings": self.settings, "adapters": self.adapters}
        return fields | {"sha256": self.sha256 or _content_sha256(self.of)}


def wrap(value: object) -> Model | None:
    """A module, or a function or class that makes one, as a component; None for anything else."""
    return Own(value) if isinstance(value, nn.Module) or callable(value) else None


def _content_sha256(of: object) -> str | None:
    """A hash of what an object is; None of what can be imported by name."""
    if not given.written(of).startswith(given.OBJECT):
        return None
    if not isinstance(of, nn.Module):
        return given.source_sha256(of)
    return hashlib.sha256(f"{of!r} {sha256(of.state_dict())}".encode()).hexdigest()


def _key_attention(module: nn.Module) -> None:
    """Where attention drops out, have transformers do it through our keyed attention."""
    config, implement = getattr(module, "config", None), getattr(module, "set_attn_implementation", None)
    names = ("attention_dropout", "attention_probs_dropout_prob", "dropout_rate", "attn_pdrop")
    if not callable(implement) or not any(getattr(config, name, 0) for name in names):
        return
    import simfl.models.attention  # noqa: F401  (registers "simfl"; seconds to import)

    implement("simfl")


class Forward:
    """Stands before a module's own `forward`: batches in its shape and under its names, `Outputs` out."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...] | None) -> None:
        self.own: Callable[..., Any] = module.forward
        self.module, self.shape, self.looked = module, shape, False
        parameters = inspect.signature(self.own).parameters.values()
        self.names = {p.name for p in parameters}

    def __call__(self, *inputs: Tensor, **named: Tensor) -> Outputs:
        inputs = tuple(self._shaped(x) for x in inputs)
        if "x" in named:
            named["x"] = self._shaped(named["x"])
        if len(named) == 1 and not inputs and not named.keys() & self.names:
            inputs, named = tuple(named.values()), {}  # the only input, whatever the module calls it
        if self.module.training and not self.looked:
            self.looked = True
            return as_outputs(_refuse_draws(self.own, *inputs, **named))
        return as_outputs(self.own(*inputs, **named))

    def _shaped(self, x: Tensor) -> Tensor:
        """Floats, in the shape of the data set's examples where they come flat."""
        x = as_float(x)
        flat = self.shape is not None and len(self.shape) > 1 and x.dim() == 2 and x.shape[1] == math.prod(self.shape)
        return x.reshape(len(x), *self.shape) if flat and self.shape else x


def _refuse_draws(function: Callable[..., Any], *inputs: Tensor, **named: Tensor) -> Any:
    """The function's answer; ConfigError if it moved torch's generators."""
    before = _generators()
    answer = function(*inputs, **named)
    if _generators() != before:
        raise ConfigError(f"model.of: {DRAWS}")
    return answer


def _generators() -> list[bytes]:
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return [state.numpy().tobytes() for state in states]


def as_outputs(out: Any) -> Outputs:
    """What modules return, as ours: logits, a tuple that begins with them, or things by name, `logits` among them."""
    if isinstance(out, Outputs):
        return out
    if isinstance(out, Tensor):
        return Outputs(out)
    if isinstance(out, Mapping) and "logits" in out:
        return Outputs(out["logits"], out.get("features"))
    if isinstance(out, (tuple, list)) and out and isinstance(out[0], Tensor):
        return Outputs(out[0])
    if isinstance(getattr(out, "logits", None), Tensor):
        return Outputs(out.logits)
    raise ConfigError(f"model.of: its forward returns {type(out).__name__}; return logits, or simfl's Outputs")
