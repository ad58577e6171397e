"""What a worker holds during a phase, and the one function every way of training shares: a declared pass of the model.

Shapes: n items (a client's unit each) lie along the first axis of every stacked tensor; B is the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from simfl.errors import ConfigError
from simfl.experiment import Phase
from simfl.keyed_random import STEP
from simfl.models.call_context import ModelCall, call_context
from simfl.models.grouped_layers import GroupedLayers, grouped_layers, ungrouped_params
from simfl.parameter_groups import ParameterGroups
from simfl.privacy.mechanism import Mechanism
from simfl.protocol import EXTRA, Batch, ClientUpdate, Examples, Forward, Outputs, Parts, State, Task, Weights
from simfl.stacking import to_device
from simfl.training.binding import Binding
from simfl.training.observer import NullObserver, Observer
from simfl.training.plan import RoundDraft

if TYPE_CHECKING:
    from simfl.training.compiled import CompiledSteps
    from simfl.training.data_parallel import GradientTaker

LOCAL = "local"  # a client's model as it was before its last upload, which every algorithm can offer


@dataclass(frozen=True)
class TrainingUnit:
    """One unit of a visit: its batches as rows of the split (int64 [steps, B], −1 is padding) and its dropout key."""

    client: int
    unit: int
    batches: np.ndarray
    rates: np.ndarray  # learning rate of each local step, float64 [steps]
    key: int
    examples: int
    places: np.ndarray | None = None  # of each row among the client's own, like `batches`, for algorithms that ask

    @property
    def steps(self) -> int:
        return len(self.batches)


@dataclass(frozen=True)
class TrainingResult:
    """Items after their last local step, stacked: [n, …]."""

    weights: Weights  # model tensors and extras
    buffers: Weights
    sums: Tensor  # task loss summed over the visit, [n]
    counts: Tensor  # and its weights, [n]
    state: State  # as the algorithm's `observe` left it
    optimizer: list[State]  # one per item
    private_steps: int = 0  # steps with a gradient that was clipped and noised example by example


@dataclass(frozen=True)
class Network:
    """A module, and which of its tensors are trained."""

    module: nn.Module
    trained: tuple[str, ...]

    @cached_property
    def binding(self) -> Binding:
        return Binding(self.module)

    @cached_property
    def floats(self) -> dict[str, int]:
        """How many values each parameter has; a walk through the module, so it is made once."""
        return {name: parameter.numel() for name, parameter in self.module.named_parameters()}

    @cached_property
    def groupable(self) -> bool:
        """Whether every trained layer has a grouped form."""
        return not ungrouped_params(self.module, self.trained)

    @cached_property
    def owners(self) -> GroupedLayers:
        """The trained layers that have one."""
        return grouped_layers(self.module, self.trained)


@dataclass(frozen=True)
class PhaseContext:
    """A phase on a worker: resident model and data, and what each tensor is."""

    phase: Phase
    index: int
    seed: int
    task: Task
    module: nn.Module
    roles: ParameterGroups
    load: Callable[[], Examples]  # the training split as the objective encodes it
    device: torch.device
    num_clients: int
    mechanism: Mechanism | None = None  # what makes uploads private
    mentor: Network | None = None  # the second network, if there is one
    keep_local: bool = False  # clients update_state their last local model, to be scored
    aliases: Mapping[str, str] = field(default_factory=dict)
    alias_rule: str = "once"
    observer: Observer = field(default_factory=NullObserver)
    pieces: int = 1  # of each local batch, whose gradients are taken apart
    taker: GradientTaker | None = None  # who takes them
    programs: CompiledSteps | None = None  # of local steps on a GPU; None: they run as written
    drafts: dict[int, RoundDraft] = field(default_factory=dict)  # rounds that were drafted ahead, on the driver
    drawn: dict[tuple[int, int, int], TrainingUnit] = field(
        default_factory=dict
    )  # (round, client, unit): items drawn ahead

    @property
    def secure(self) -> bool:
        """Whether chance is to be nobody's to repeat."""
        return self.mechanism is not None and self.mechanism.privacy.secure

    @cached_property
    def examples(self) -> Examples:
        return self.load()

    def batch(self, rows: Tensor, places: Tensor | None = None) -> Batch:
        """The examples at these rows of the split (any shape; −1 is padding)."""
        batch = self.examples.take(rows)
        return batch if places is None else batch | {"position": places}

    @cached_property
    def network(self) -> Network:
        return Network(self.module, self.roles.trained)

    @property
    def binding(self) -> Binding:
        return self.network.binding

    def runs_on(self, forward: Forward) -> Network:
        """The network of a pass."""
        return self.mentor if forward.mentor and self.mentor is not None else self.network

    @cached_property
    def samples(self) -> tuple[Outputs | None, Outputs | None]:
        """What model and mentor give for the first training example, if features are needed; ConfigError without."""
        algorithm = self.phase.algorithm
        if not algorithm.needs_features:
            return None, None
        inputs = inputs_of(self, self.examples.take(torch.zeros(1, dtype=torch.int64, device=self.device)))
        with torch.no_grad():
            given = [call(self, Forward(train=False, mentor=on), {}, inputs, torch.tensor(0)) for on in (False, True)]
        if any(outputs.features is None for outputs in given):
            name = type(algorithm).__name__
            raise ConfigError(f"phases.{self.index}.algorithm: {name} needs features, of which the model has none")
        return given[0], given[1]

    @cached_property
    def sources(self) -> dict[str, dict[str, str]]:
        """For each declared pass, where each trained tensor is read."""
        table = {}
        for name, forward in self.phase.algorithm.forwards().items():
            table[name] = {tensor: _source(forward, tensor) for tensor in self.runs_on(forward).trained}
        return table


def _source(forward: Forward, name: str) -> str:
    return next((source for glob, source in forward.sources if fnmatchcase(name, glob)), "trained")


def tensors_for(sources: Mapping[str, str], trained: Weights, received: Parts, state: State) -> Weights:
    """The model tensors of a pass; a source that lacks one borrows the client's own, detached."""
    found = {}
    for name, source in sources.items():
        kind, _, key = source.partition(":")
        if kind == "trained":
            found[name] = trained[name]
            continue
        if kind == "received":
            tensor = received["weights"].get(name)
        elif kind == "state":
            tensor = state[key].get(name)
        else:
            tensor = trained.get(f"{EXTRA}/{key}/{name}")
        found[name] = trained[name].detach() if tensor is None else tensor
    return found


def call(
    stage: PhaseContext,
    forward: Forward,
    weights: Weights,
    inputs: Batch,
    key: Tensor,
    groups: int = 1,
    stacked: bool = False,
) -> Outputs:
    """Run the module with these tensors in place of its own."""
    network = stage.runs_on(forward)
    if network.module.training != forward.train:
        network.module.train(forward.train)
    step = ModelCall(key if forward.train else None, groups, forward.branch, stacked)
    with (
        call_context(step),
        network.binding.swapped(weights),
        torch.set_grad_enabled(forward.grad and torch.is_grad_enabled()),
    ):
        out = stage.phase.objective.run(network.module, inputs)
    return out if isinstance(out, Outputs) else Outputs(out)


def with_task(stage: PhaseContext, outputs: Outputs, batch: Batch) -> Outputs:
    """`outputs` with the objective's per-example loss, and what was to be predicted."""
    objective = stage.phase.objective
    sums, weights = objective.loss(outputs, batch)
    return replace(outputs, loss_sums=sums, loss_weights=weights, targets=batch.get(objective.target))


def inputs_of(stage: PhaseContext, batch: Batch) -> Batch:
    """What of the batch the model takes."""
    return {name: batch[name] for name in stage.phase.objective.inputs if name in batch}


def step_key(keys: Tensor, step: int | Tensor) -> Tensor:
    """The dropout key of a local step: an odd multiple apart for each step of an item."""
    return keys + ((2 * step + 1) * STEP & ((1 << 62) - 1))


def visits(
    stage: PhaseContext, items: list[TrainingUnit], round_number: int, weights: list[float], num_sampled: int
) -> ClientUpdate:
    """The numbers of these items' visits as stacked tensors [n], at step 0."""

    n, local = len(items), stage.phase.local
    whole = np.array([[i.client for i in items], [i.key for i in items], [round_number] * n, [0] * n], dtype=np.int64)
    lengths = {key: local.optimizer.total_rate(rates) for key, rates in {id(i.rates): i.rates for i in items}.items()}
    parts = [
        [i.steps for i in items],
        [i.examples for i in items],
        weights,
        [stage.num_clients] * n,
        [num_sampled] * n,
        [local.learning_rate] * n,
        [lengths[id(i.rates)] for i in items],
    ]
    return ClientUpdate(*to_device(stage.device, whole), *to_device(stage.device, np.array(parts, dtype=np.float32)))
