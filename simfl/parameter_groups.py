"""What each tensor of a model is in a phase: trained or not, travelling or private.

trained = (adapters + `train:` globs, by default everything) − what the model freezes − `frozen:` globs
private ⊆ trained: never travels, lives in client memory          shared = trained − private
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from simfl.errors import ConfigError
from simfl.objectives.base import Objective
from simfl.protocol import Weights
from simfl.weights import select

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

if TYPE_CHECKING:
    from simfl.experiment import Phase
    from simfl.models.base import Model


@dataclass(frozen=True)
class ParameterGroups:
    """Names of the model's tensors by role, each in the model's own order."""

    trained: tuple[str, ...]
    shared: tuple[str, ...]
    personal_params: tuple[str, ...]
    buffers: tuple[str, ...]  # running statistics, in floating point


def roles(model: Model, module: nn.Module, phase: Phase, where: str) -> ParameterGroups:
    """Sort the tensors of `module` for `phase`; errors name the glob at fault under the path `where`."""
    _refuse_unread(module, phase, where)
    names = [name for name, _ in module.named_parameters()]
    asked = select(names, phase.train, where=f"{where}.train")
    frozen = select(names, phase.frozen, where=f"{where}.frozen")
    both = sorted(set(asked) & set(frozen))
    if both:
        raise ConfigError(f"{where}: {both[0]!r} is both in train and in frozen")
    base = select(names, model.trains(module), where="model")
    if phase.train and tuple(model.trains(module)) == ("*",):
        base = []  # without adapters, `train:` names all that is trained
    never = set(frozen) | set(select(names, model.frozen(module), where="model"))
    trained = [name for name in names if (name in set(base) | set(asked)) and name not in never]
    if not trained:
        raise ConfigError(f"{where}: nothing is trained")
    private_globs = ("*",) if not phase.communicate else phase.personal_params + phase.algorithm.personal_params
    private = select(trained, private_globs, where=f"{where}.personal_params")
    shared = tuple(name for name in trained if name not in set(private))
    return ParameterGroups(tuple(trained), shared, tuple(private), running_statistics(module))


def _refuse_unread(module: nn.Module, phase: Phase, where: str) -> None:
    """ConfigError where the model cannot do without something that the phase's objective does not give."""
    if type(phase.objective).run is not Objective.run:
        return  # it calls the model in a way of its own
    asked = inspect.signature(module.forward).parameters.values()
    needed = [one.name for one in asked if one.default is one.empty and one.kind in NAMED]
    lacking = [name for name in needed if name not in phase.objective.inputs]
    if lacking:
        name, gives = type(phase.objective).__name__, ", ".join(phase.objective.inputs)
        raise ConfigError(f"{where}.objective: {name} gives the model {gives}; this one reads {', '.join(lacking)} too")


def running_statistics(module: nn.Module) -> tuple[str, ...]:
    """Buffers that normalisation layers change while they train, without counters, which mean nothing averaged."""
    layers = ((path, layer) for path, layer in module.named_modules() if isinstance(layer, _NormBase))
    return tuple(
        f"{path}.{name}" if path else name
        for path, layer in layers
        for name, buffer in layer.named_buffers(recurse=False)
        if torch.is_floating_point(buffer)
    )


def pick(weights: Weights, names: Iterable[str]) -> Weights:
    """These tensors, in this order."""
    return {name: weights[name] for name in names}
