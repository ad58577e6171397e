"""The groups of a model's tensors in a phase: trained or frozen, shared or personal.

trained = (adapters + `train:` globs, by default everything) − what the model freezes − `frozen:` globs
personal ⊆ trained: never sent, stored by the client          shared = trained − personal
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from simfl.errors import ConfigError
from simfl.experiment import Phase
from simfl.models.base import Model
from simfl.objectives.base import Objective
from simfl.protocol import Weights
from simfl.weights import select_names

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class ParameterGroups:
    """Names of the model's tensors by group, each in the model's own order.

    Attributes:
        trained: Parameters that local training changes.
        shared: Trained parameters that are sent.
        personal_params: Trained parameters that stay on the client.
        buffers: Running statistics, in floating point.
    """

    trained: tuple[str, ...]
    shared: tuple[str, ...]
    personal_params: tuple[str, ...]
    buffers: tuple[str, ...]


def group_parameters(model: Model, module: nn.Module, phase: Phase, where: str) -> ParameterGroups:
    """Group the tensors of `module` for `phase`.

    Raises:
        ConfigError: A glob matches nothing or contradicts another, or nothing is trained; `where` is the phase's path.
    """
    _check_inputs(module, phase, where)
    names = [name for name, _ in module.named_parameters()]
    requested = select_names(names, phase.train, where=f"{where}.train")
    frozen = select_names(names, phase.frozen, where=f"{where}.frozen")
    both = sorted(set(requested) & set(frozen))
    if both:
        raise ConfigError(f"{where}: {both[0]!r} is both in train and in frozen; allowed: one of them")
    by_default = select_names(names, model.trainable_params(module), where="model")
    if phase.train and tuple(model.trainable_params(module)) == ("*",):
        by_default = []  # without adapters, `train:` names all that is trained
    never = set(frozen) | set(select_names(names, model.frozen_params(module), where="model"))
    trained = [name for name in names if (name in set(by_default) | set(requested)) and name not in never]
    if not trained:
        raise ConfigError(f"{where}: no tensor is trained; allowed: at least one outside of frozen")
    globs = ("*",) if not phase.communicate else phase.personal_params + phase.algorithm.personal_params
    personal = select_names(trained, globs, where=f"{where}.personal_params")
    shared = tuple(name for name in trained if name not in set(personal))
    return ParameterGroups(tuple(trained), shared, tuple(personal), running_statistics(module))


def _check_inputs(module: nn.Module, phase: Phase, where: str) -> None:
    """Raise ConfigError if the model requires an input that the phase's objective does not provide."""
    if type(phase.objective).run is not Objective.run:
        return  # it passes the model inputs of its own
    parameters = inspect.signature(module.forward).parameters.values()
    required = [one.name for one in parameters if one.default is one.empty and one.kind in NAMED]
    missing = [name for name in required if name not in phase.objective.inputs]
    by_position = len(required) == len(phase.objective.inputs) == 1  # a module given by the user names it as it likes
    if missing and not by_position:
        name, provided = type(phase.objective).__name__, ", ".join(phase.objective.inputs)
        raise ConfigError(
            f"{where}.objective: {name} provides the inputs {provided}; the model also requires {', '.join(missing)}"
        )


def running_statistics(module: nn.Module) -> tuple[str, ...]:
    """Return the buffers that normalisation layers update in training, without counters, whose mean has no meaning."""
    layers = ((path, layer) for path, layer in module.named_modules() if isinstance(layer, _NormBase))
    return tuple(
        f"{path}.{name}" if path else name
        for path, layer in layers
        for name, buffer in layer.named_buffers(recurse=False)
        if torch.is_floating_point(buffer)
    )


def pick(weights: Weights, names: Iterable[str]) -> Weights:
    """Return these tensors, in this order."""
    return {name: weights[name] for name in names}
