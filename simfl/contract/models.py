"""The contracts of models, adapters and objectives."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch
from torch import nn

from simfl.models.adapters import Adapter
from simfl.models.base import Model, seeded
from simfl.models.vit import ViT
from simfl.objectives.base import Objective
from simfl.protocol import Task

TASK = Task(3, num_classes=5, shape=(3, 16, 16))


def check_model(model: Model) -> Iterator[str]:
    """Yield one line for each rule that a model breaks."""
    first, second = model.build(TASK), model.build(TASK)
    if not _equal(first, second):
        yield "two builds with one seed differ; initialise inside `with simfl.models.base.seeded(task.seed)`"
    if any(module.training for module in first.modules()):
        yield "build returns a module in training mode; return module.eval()"
    names = [name for name, _ in first.named_parameters()]
    yield from _check_globs("trainable_params", model.trainable_params(first), names)


def check_adapter(adapter: Adapter) -> Iterator[str]:
    """Yield one line for each rule that an adapter kind breaks, tried on a small vision transformer."""
    base = ViT(size="tiny").build(TASK)
    before = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    with seeded(1):
        adapter.attach(base)
    after = {name.replace(".base_layer.", "."): parameter for name, parameter in base.named_parameters()}  # peft's name
    if changed := [name for name in before if name not in after or not torch.equal(before[name], after[name])]:
        yield f"attach renames or changes tensors of the model: {changed}"
    added = [name for name in after if name not in before]
    if unmatched := [name for name in added if not any(fnmatchcase(name, g) for g in adapter.own_params())]:
        yield f"own_params matches none of the tensors {unmatched}, which attach adds"
    yield from _check_globs(
        "trainable_params", adapter.trainable_params(base), [name for name, _ in base.named_parameters()]
    )


def check_objective(objective: Objective) -> Iterator[str]:
    """Yield one line for each rule about declarations that an objective breaks."""
    if getattr(objective, "reduction", None) not in ("token", "example"):
        yield "reduction: must be token or example"
    if not getattr(objective, "inputs", ()):
        yield "inputs: must name the batch keys that the model receives"
    if not getattr(objective, "metric", ""):
        yield "metric: must name the main metric"
    elif objective.metrics and objective.metric not in objective.metrics:
        yield f"metric: {objective.metric!r} is not in metrics, {objective.metrics}"


def _check_globs(setting: str, globs: tuple[str, ...], names: list[str]) -> Iterator[str]:
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            yield f"{setting}: {glob!r} matches no tensor"


def _equal(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
