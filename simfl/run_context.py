"""What an experiment is made of, as one process holds it: data, partition, model, encoded examples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from simfl.data.base import Dataset, Split
from simfl.errors import ConfigError, nearest
from simfl.experiment import Experiment
from simfl.models.base import Model, tied_names
from simfl.models.meta_device import build_on_meta
from simfl.objectives.base import Objective
from simfl.parameter_groups import ParameterGroups, roles, running_statistics
from simfl.privacy.mechanism import Mechanism
from simfl.protocol import Examples, Task, Weights
from simfl.seeds import rng
from simfl.training.context import LOCAL, Network, PhaseContext
from simfl.weights import select_names


@dataclass
class RunContext:
    """Built from the experiment alone, so that every process builds the same.

    On the device `meta` networks are names and shapes without memory, and weights that are not here are not fetched.
    """

    experiment: Experiment
    cache: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shared: dict[str, Any] | None = None  # what runs of one process, one after the other, have in common; null: nothing

    def _common(self, kind: str, key: object, make: Callable[[], Any]) -> Any:
        """What `make` returns, or what an earlier run made from an equal key; of each kind the newest is kept."""
        if self.shared is None:
            return make()
        if self.shared.get(kind, (None,))[0] != key:
            self.shared.pop(kind, None)  # freed before the next is made
            self.shared[kind] = (key, make())
        return self.shared[kind][1]

    @cached_property
    def dataset(self) -> Dataset:
        return self._common("dataset", repr(self.experiment.data), lambda: self.experiment.data.load(self.cache))

    @cached_property
    def module(self) -> nn.Module:
        model, task = self.experiment.model, self.task
        key = (repr(model), task, str(self.device))
        module, originals = self._common("module", key, lambda: (self._built(model), {}))
        _put(module, originals)
        self._originals: dict[str, torch.Tensor] = originals
        return module

    def overwrite(self, base: Weights) -> None:
        """Put what earlier phases made of the model into it. What was there first is kept if another run may follow."""
        if self.shared is not None:
            own = _tensors(self.module)
            for name in base.keys() - self._originals.keys():
                self._originals[name] = own[name].detach().clone()
        _put(self.module, base)

    @cached_property
    def mentor(self) -> Network | None:
        """The second network, if the experiment names one."""
        model = self.experiment.mentor
        if model is None:
            return None
        module = self._built(model)
        if running_statistics(module):
            raise ConfigError("mentor: it keeps running statistics, which clients would share; allowed: layers without")
        names = [name for name, _ in module.named_parameters()]
        frozen = set(select_names(names, model.frozen_params(module), where="mentor"))
        trained = [name for name in select_names(names, model.trainable_params(module), where="mentor") if name not in frozen]
        return Network(module, tuple(trained))

    def _built(self, model: Model) -> nn.Module:
        return build_on_meta(model, self.task) if self.device.type == "meta" else model.build(self.task).to(self.device)

    @cached_property
    def task(self) -> Task:
        card: Mapping[str, Any] = self.dataset.card
        shape = card.get("shape")
        return Task(self.experiment.seed, card.get("num_classes"), tuple(shape) if shape else None)

    @cached_property
    def aliases(self) -> dict[str, str]:
        return tied_names(self.module)

    def split(self, name: str) -> Split:
        """A split by name; ConfigError if the data set has none of that name."""
        if name not in self.dataset.splits:
            raise ConfigError(
                f"evaluate.splits: {self.dataset.name} has no split {name!r}; {nearest(name, self.dataset.splits)}"
            )
        return self.dataset.splits[name]

    def examples(self, objective: Objective, split: str) -> Examples:
        """The split as the objective encodes it, on the device; encoded once."""
        key = (repr(objective), split)
        if key not in self._encoded:
            encoded = objective.encode(self.split(split), self.experiment.model.tokenizer())
            self._encoded[key] = encoded.to(self.device)
        return self._encoded[key]

    @cached_property
    def _encoded(self) -> dict[tuple[str, str], Examples]:
        key = (repr(self.experiment.data), repr(self.experiment.model), str(self.device))
        found: dict[tuple[str, str], Examples] = self._common("examples", key, dict)
        return found

    def roles(self, phase: int) -> ParameterGroups:
        """The role of each tensor in a phase."""
        found = roles(self.experiment.model, self.module, self.experiment.phases[phase], f"phases.{phase}")
        if found.buffers and self.experiment.phases[phase].buffers == "refuse":
            raise ConfigError(
                f"phases.{phase}.buffers: refuse, but the model keeps running statistics ({found.buffers[0]}, …)"
            )
        return found

    def stage(self, phase: int, num_clients: int, noise_multiplier: float = math.nan) -> PhaseContext:
        """All that training in a phase needs."""
        experiment = self.experiment
        return PhaseContext(
            phase=experiment.phases[phase],
            index=phase,
            seed=experiment.seed,
            task=self.task,
            module=self.module,
            roles=self.roles(phase),
            mentor=self.mentor,
            keep_local=LOCAL in experiment.evaluate.models,
            load=partial(self.examples, experiment.phases[phase].objective, "train"),
            device=self.device,
            num_clients=num_clients,
            mechanism=self._mechanism(noise_multiplier),
            aliases=self.aliases,
            alias_rule=experiment.ledger.tied_weights,
            pieces=experiment.execution.data_parallel,
        )

    def _mechanism(self, noise_multiplier: float) -> Mechanism | None:
        privacy = self.experiment.privacy
        if privacy is None:
            return None
        copies = Counter(self.aliases.values()) if privacy.tied_weights == "always" else {}
        return Mechanism(privacy, noise_multiplier, self.experiment.seed, copies)

    def choose_rows(self, split: str, limit: int | None) -> np.ndarray:
        """The evaluated rows of a split: all, or `limit` of them drawn once, in file order."""
        count = len(self.split(split))
        if limit is None or limit >= count:
            return np.arange(count)
        return np.sort(rng(self.experiment.seed, "evaluate", split).choice(count, size=limit, replace=False))


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _put(module: nn.Module, values: Weights) -> None:
    own = _tensors(module)
    with torch.no_grad():
        for name, tensor in values.items():
            own[name].copy_(tensor)
