"""The groups of a model's tensors in a phase: trained or frozen, shared or personal.

trained = (adapters + `train:` globs, by default everything) − what model and algorithm freeze − `frozen:` globs
personal ⊆ trained: never sent, stored by the client          shared = trained − personal
buffers = what training steps change besides: averaged, personal or frozen, by the globs of `buffers:`
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torch import nn

from simfl.errors import ConfigError
from simfl.experiment import Buffers, Phase
from simfl.models.base import Model
from simfl.models.module_state import RESET_BY_FREEZING, StepEffects, attribute_names, registered
from simfl.objectives.base import Objective
from simfl.protocol import Weights
from simfl.weights import select_names

ATTRIBUTE = "training steps change this attribute, which no file or message carries; register it by register_buffer"
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class ParameterGroups:
    """Names of the model's tensors by group, each in the model's own order.

    Attributes:
        trained: Parameters that local training changes.
        shared: Trained parameters that are sent.
        personal_params: Trained parameters that stay on the client.
        buffers: Further tensors that training steps change and that follow the model from step to step, such as
            running statistics.
        personal_buffers: Those of `buffers` that stay on the client; the others are averaged.
        frozen_buffers: Tensors that steps change and that are reset before each pass.
        frozen_attributes: Attributes of layers that are reset before each pass.
        changed_in_passes: Everything that training passes change and depend on, trained parameters that they write to
            included; clients of such a model are trained one at a time.
        mixes_examples: Whether results of an example depend on the others of its batch, so that none may be padding.
    """

    trained: tuple[str, ...]
    shared: tuple[str, ...]
    personal_params: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    personal_buffers: tuple[str, ...] = ()
    frozen_buffers: tuple[str, ...] = ()
    frozen_attributes: tuple[str, ...] = ()
    changed_in_passes: tuple[str, ...] = ()
    mixes_examples: bool = False

    @property
    def averaged_buffers(self) -> tuple[str, ...]:
        """Those of `buffers` that are sent and averaged."""
        return tuple(name for name in self.buffers if name not in self.personal_buffers)


def group_parameters(model: Model, module: nn.Module, phase: Phase, where: str) -> ParameterGroups:
    """Group the parameters of `module` for `phase`; `with_buffers` adds what training steps change besides.

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
    never |= set(select_names(names, phase.algorithm.frozen_params, where=f"{where}.algorithm"))
    trained = [name for name in names if (name in set(by_default) | set(requested)) and name not in never]
    if not trained:
        raise ConfigError(f"{where}: no tensor is trained; allowed: at least one outside of frozen")
    globs = ("*",) if not phase.communicate else phase.personal_params + phase.algorithm.personal_params
    personal = select_names(trained, globs, where=f"{where}.personal_params")
    shared = tuple(name for name in trained if name not in set(personal))
    return ParameterGroups(tuple(trained), shared, tuple(personal))


def with_buffers(
    groups: ParameterGroups, effects: StepEffects, module: nn.Module, phase: Phase, where: str
) -> ParameterGroups:
    """Add what training steps change besides the trained parameters, each with its owner.

    A buffer or an attribute whose name is listed in full has this owner even if the steps before the run did not change
    it, as it may change later.

    Raises:
        ConfigError: It cannot be carried from step to step, nothing owns it, or a glob matches nothing.
    """
    owners, where = phase.buffers, f"{where}.buffers"
    effects = _with_listed(effects, owners, module, groups.trained)
    changing = (*effects.tensors, *effects.attributes)
    frozen = select_names(changing, owners.frozen, where=f"{where}.frozen")
    personal = select_names(effects.tensors, owners.personal, where=f"{where}.personal")
    if not phase.communicate:
        personal = list(effects.tensors)
    _check_averaged(effects, owners, where)
    for name, reason in effects.faults:
        if name not in frozen or reason not in RESET_BY_FREEZING:
            raise ConfigError(f"model: {name}: {reason}")
    for name in effects.attributes:
        if name not in frozen:
            raise ConfigError(f"{where}: {name}: {ATTRIBUTE}, or list it in frozen, to reset it before each pass")
    carried = [name for name in effects.tensors if name not in frozen]
    averaged = _matching(carried, owners.averaged)
    unowned = [name for name in carried if name not in personal and name not in averaged]
    if unowned:
        raise ConfigError(f"{where}: {unowned[0]} changes in training; list it in averaged, personal or frozen")
    return replace(
        groups,
        buffers=tuple(carried),
        personal_buffers=tuple(name for name in carried if name in personal),
        frozen_buffers=tuple(name for name in effects.tensors if name in frozen),
        frozen_attributes=tuple(name for name in effects.attributes if name in frozen),
        changed_in_passes=effects.changed,
        mixes_examples=effects.mixes_examples,
    )


def _with_listed(effects: StepEffects, owners: Buffers, module: nn.Module, trained: tuple[str, ...]) -> StepEffects:
    """Add the tensors and attributes that `buffers` lists by their whole names."""
    listed = {*owners.averaged, *owners.personal, *owners.frozen} - {*effects.tensors, *effects.attributes, "*"}
    if not listed:
        return effects
    own = registered(module)
    tensors = tuple(n for n in own if n in effects.tensors or (n in listed and n not in trained))
    attributes = [n for n in attribute_names(module) if n in listed and n in owners.frozen]
    return replace(effects, tensors=tensors, attributes=(*effects.attributes, *attributes))


def _check_averaged(effects: StepEffects, owners: Buffers, where: str) -> None:
    """Check the globs of `averaged`; the default, all, may match nothing."""
    if owners.averaged != Buffers().averaged:
        select_names(effects.tensors, owners.averaged, where=f"{where}.averaged")


def _matching(names: Iterable[str], globs: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


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


def pick(weights: Weights, names: Iterable[str]) -> Weights:
    """Return these tensors, in this order."""
    return {name: weights[name] for name in names}
