"""The execution of a phase on a worker: observer, compiled steps, gradients on other workers, batches drawn ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from simfl.errors import ConfigError
from simfl.protocol import Batch, ClientUpdate, Examples, Forward, Outputs, Parts, State, Weights
from simfl.training.augmentation import Augmentation, augmentation, example_keys
from simfl.training.batches import TrainingUnit, draw_unit, units_of
from simfl.training.compiled import CompiledSteps
from simfl.training.context import PhaseContext
from simfl.training.data_parallel import GradientTaker, MicroBatch, PartialGradient, SharedStepInputs, partial_gradient
from simfl.training.draws import refuse_draws
from simfl.training.forward import model_inputs, run_forward
from simfl.training.plan import CohortPlan
from simfl.training.tensor_optimizer import has_tensor_form


@dataclass(frozen=True)
class OptimizerStep:
    """One optimizer step of the clients that are trained together, as an observer sees it.

    Attributes:
        units: The clients or privacy units, n of them.
        step: Number of the local step, from 0.
        micro_step: Number of the micro-step within the local step, from 0.
        loss_sums: Sum of the task loss over the batch, [n].
        loss_weights: Weight of the task loss over the batch, [n].
        gradients: Gradients of the stepped tensors before clipping, [n, …].
        weights: These tensors after the step, [n, …].
    """

    units: Sequence[TrainingUnit]
    step: int
    micro_step: int
    loss_sums: Tensor
    loss_weights: Tensor
    gradients: Weights
    weights: Weights


class Observer:
    """A listener that is called during client updates and changes nothing. It must copy the tensors that it keeps."""

    is_active: ClassVar[bool] = True  # false: it is not called, and steps may be replayed without Python

    def stepped(self, step: OptimizerStep) -> None:
        """Receive an optimizer step."""

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """Receive a client's upload as it left the client, and as the server got it."""


class NullObserver(Observer):
    """The observer of ordinary training, which is never called."""

    is_active = False


@dataclass(frozen=True)
class TrainingInputs:
    """The inputs of n clients (or privacy units) that are trained together.

    Attributes:
        units: The batches of each.
        weights: Trained tensors and extra parameters, [n, …]; they are stepped in place.
        model_states: State of the models of each client, which is changed in place; empty if passes change none.
        received: The decoded download.
        state: The algorithm's state, [n, …].
        update: Facts of the client updates at local step 0, [n].
        client_states: Stored state of each client, on the device.
    """

    units: list[TrainingUnit]
    weights: Weights
    model_states: list[dict[str, Weights]]
    received: Parts
    state: State
    update: ClientUpdate
    client_states: list[State]


@dataclass(frozen=True)
class TrainingResult:
    """The results of n clients (or privacy units) after their last local step.

    Attributes:
        weights: Trained tensors and extra parameters, [n, …].
        model_states: State of the models of each client, see `training.model_states`; empty if passes change none.
        loss_sums: Task loss summed over the update, [n].
        loss_weights: Weight of the task loss over the update, [n].
        state: The algorithm's state as `after_step` left it, [n, …].
        optimizer_states: State of each optimizer, by micro-step, then client; empty if it is not kept.
        num_noised_steps: Steps whose gradients were clipped and noised example by example.
        num_zero: Number of gradients of examples that were not finite, and count as zero; None: not counted.
    """

    weights: Weights
    model_states: list[dict[str, Weights]]
    loss_sums: Tensor
    loss_weights: Tensor
    state: State
    optimizer_states: list[State]
    num_noised_steps: int = 0
    num_zero: Tensor | None = None


@dataclass
class Executor:
    """A phase and the means to train in it.

    Attributes:
        context: The phase.
        observer: Listener to local steps and uploads.
        compiled: Compiled local steps of `vectorized`; None: they run eagerly.
        gradient_taker: Takes the gradients of micro-batches on several workers; None: they are taken in this process.
        drawn_units: Units whose batches were drawn ahead, by round, client and unit.
        num_zero_examples: Examples of each local step, in the update under way, whose gradients count as zero.
        keeps_trained: Whether the trained weights are kept once the upload is made of them.
    """

    context: PhaseContext
    observer: Observer = field(default_factory=NullObserver)
    compiled: CompiledSteps | None = None
    gradient_taker: GradientTaker | None = None
    drawn_units: dict[tuple[int, int, int], TrainingUnit] = field(default_factory=dict)
    num_zero_examples: list[Tensor] = field(default_factory=list)
    keeps_trained: bool = False

    @cached_property
    def examples(self) -> Examples:
        """The encoded training split."""
        return self.context.load_examples()

    @cached_property
    def augmentation(self) -> Augmentation | None:
        """The transform of the phase's training examples; None without one."""
        return augmentation(self.context.phase, self.context.index, self.context.task)

    def example_keys(self, unit: TrainingUnit) -> np.ndarray | None:
        """Return the key of each example of a unit, int64 like its batches; None without a transform."""
        return None if self.augmentation is None else example_keys(unit.key, unit.batches)

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """Tokens of each training example, int64 [N]; None if padding is not cut off."""
        if self.context.full_length is None:
            return None
        return self.context.phase.objective.token_lengths(self.examples)

    def length_of(self, rows: Sequence[np.ndarray]) -> int | None:
        """Return the length to which batches with these rows [..., B] are cut; None if they are not cut.

        A batch of padding alone (−1) repeats the first example.
        """
        if self.lengths is None:
            return None
        repeated = [np.where(some < 0, np.maximum(some[..., :1], 0), some) for some in rows]
        longest = max(int(self.lengths[some].max()) for some in repeated)
        return self.context.phase.objective.cut_length(longest, self.examples)

    def batch(
        self,
        rows: Tensor,
        positions: Tensor | None = None,
        keys: np.ndarray | None = None,
        length: int | None = None,
    ) -> Batch:
        """Return the examples at these rows of the training split (any shape; −1 is padding).

        `keys`, like `rows`, key the draws of the phase's transform; None without one. `length`: tokens that are left
        of each example; None: all.
        """
        batch = self.examples.take(rows)
        if length is not None:
            batch = self.context.phase.objective.cut(batch, length)
        if self.augmentation is not None:
            assert keys is not None
            with self.context.generators.paused():
                batch = self.augmentation.apply(batch, rows, keys)
        return batch if positions is None else batch | {"position": positions}

    def batch_on_device(self, micro_batch: MicroBatch) -> Batch:
        """Return the examples of a micro-batch."""
        device, positions = self.context.device, micro_batch.positions
        rows = torch.from_numpy(micro_batch.rows).to(device)
        own_positions = None if positions is None else torch.from_numpy(positions).to(device)
        return self.batch(rows, own_positions, micro_batch.keys, self.length_of([micro_batch.rows]))

    def partial_gradient(self, micro_batch: MicroBatch, shared: SharedStepInputs) -> PartialGradient:
        """Return the contribution of a micro-batch to the gradient of its batch."""
        batch = self.batch_on_device(micro_batch)
        with refuse_draws(self.context):
            return partial_gradient(self.context, batch, micro_batch, shared)

    def partial_gradients(self, parts: Sequence[MicroBatch], shared: SharedStepInputs) -> list[PartialGradient]:
        """Return the contributions of micro-batches, in their order, from `gradient_taker` if there is one."""
        if self.gradient_taker is not None:
            return self.gradient_taker(parts, shared)
        return [self.partial_gradient(part, shared) for part in parts]

    @cached_property
    def sample_outputs(self) -> tuple[Outputs | None, Outputs | None]:
        """Outputs of model and mentor for the first training example, if the algorithm needs features.

        Raises:
            ConfigError: The model has no features.
        """
        if not self.context.phase.algorithm.needs_features:
            return None, None
        first = torch.zeros(1, dtype=torch.int64, device=self.context.device)
        return sample_outputs(self.context, self.examples.take(first))

    def draw_ahead(self, plans: Sequence[CohortPlan]) -> None:
        """Draw the batches of cohorts and keep them until these are trained; drops those kept before."""
        if plans:
            self.drawn_units.clear()
        for plan in plans:
            for client in plan.clients:
                for unit, rows in units_of(client):
                    drawn = draw_unit(self.context, plan, client, unit, rows)
                    self.drawn_units[plan.round, client.client, unit] = drawn


def sample_outputs(context: PhaseContext, batch: Batch) -> tuple[Outputs, Outputs]:
    """Return the outputs of model and mentor for a batch; ConfigError if one of them has no features."""
    inputs, passes = model_inputs(context, batch), (Forward(train=False), Forward(train=False, mentor=True))
    with torch.no_grad():
        model, mentor = (run_forward(context, one, {}, inputs, torch.tensor(0)) for one in passes)
    if model.features is None or mentor.features is None:
        name, network = type(context.phase.algorithm).__name__, "model" if model.features is None else "mentor"
        raise ConfigError(
            f"phases.{context.index}.algorithm: {name} needs features, which the {network} does not return;"
            " return simfl.protocol.Outputs(logits, features) from its forward"
        )
    return model, mentor


def compiled_steps(context: PhaseContext, program: str) -> CompiledSteps | None:
    """Return the compiled local steps of a phase, or None if they run eagerly; `auto` is `graph`."""
    if reason_not_compiled(context, program):
        return None
    return CompiledSteps("graph" if program == "auto" else program)


def reason_not_compiled(context: PhaseContext, program: str) -> str:
    """Return why local steps run eagerly; empty if they do not. On a CPU only `compiled` steps are programs."""
    if context.phase.transform is not None:
        return "the phase transforms examples"
    if context.device.type != "cuda" and program != "compiled":
        return "the device is not a GPU"
    if not has_tensor_form(context.phase.local):
        name = context.phase.local.optimizer.name
        return f"the optimizer {name} cannot be captured with its settings"
    return ""
