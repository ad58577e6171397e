"""Passes of the model within a local step, and the loss of a micro-step; shared by both execution modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simfl.errors import ConfigError, nearest
from simfl.keyed_random import STEP_MULTIPLIER
from simfl.models.call_context import ModelCall, call_context
from simfl.models.own import to_outputs
from simfl.models.recomputation import recomputable, recomputes
from simfl.protocol import BASE, EXTRA, Batch, ClientUpdate, Forward, Loss, MicroStep, Outputs, Parts, State, Weights
from simfl.training.context import Network, PhaseContext
from simfl.training.model_states import NO_STATE, ModelStates, PassState


@dataclass(frozen=True)
class StepInputs:
    """The tensors that passes and losses read in a local step: of one client, or stacked [n, …].

    Attributes:
        batch: Examples of the batch, [B, …] or [n, B, …].
        trained: Model tensors and extra parameters.
        received: The decoded download: the same for all clients, or `StackedParts`.
        state: The algorithm's state.
        update: Facts of the client update; `step` counts the local steps taken so far.
        key: Dropout key of this local step.
        states: State of the client's models; None where no pass changes any.
    """

    batch: Batch
    trained: Weights
    received: Parts
    state: State
    update: ClientUpdate
    key: Tensor
    states: ModelStates | None = None


def micro_step_loss(
    context: PhaseContext, micro: MicroStep, inputs: StepInputs, outputs: dict[str, Outputs], under_vmap: bool = False
) -> Loss:
    """Run the passes of a micro-step for one client and return its loss; adds the results to `outputs`."""
    forwards = context.phase.algorithm.forwards()
    for name in micro.forwards:
        weights = pass_weights(context, forwards[name], inputs)
        arguments = model_inputs(context, inputs.batch)
        state = NO_STATE if inputs.states is None else inputs.states.of(forwards[name], micro.at is not None)
        found = run_forward(context, forwards[name], weights, arguments, inputs.key, 1, under_vmap, state)
        outputs[name] = with_task_loss(context, found, inputs.batch)
    return micro.loss(outputs, inputs.batch, inputs.trained, inputs.received, inputs.state, inputs.update)


def pass_weights(context: PhaseContext, forward: Forward, inputs: StepInputs) -> Weights:
    """Return the model tensors of a pass; a tensor that its source lacks is the client's own, detached."""
    network = context.network_of(forward)
    found = tensors_from(network.sources(forward), inputs.trained, inputs.received, inputs.state)
    return found if network is not context.network else {**inputs.received.get(BASE, {}), **found}


def tensors_from(sources: Mapping[str, str], trained: Weights, received: Parts, state: State) -> Weights:
    """Return each named tensor from its source; see `Forward.sources`."""
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


def run_forward(
    context: PhaseContext,
    forward: Forward,
    weights: Weights,
    inputs: Batch,
    key: Tensor,
    num_groups: int = 1,
    under_vmap: bool = False,
    state: PassState = NO_STATE,
) -> Outputs:
    """Run a network with `weights` in place of its own tensors.

    `key` is the dropout key: a scalar, or [num_groups] where the examples of several clients are concatenated. Draws of
    the module and of the loss that follows are keyed by it too, once the phase has drawn from a generator.
    """
    if context.generators.keyed:
        context.generators.seed(int(key))
    network = context.network_of(forward)
    call = ModelCall(key if forward.train else None, num_groups, forward.branch, under_vmap, context.cut(inputs))
    with (
        recomputable(_Entrance(network, forward.train, call, weights, state.tensors)),
        torch.set_grad_enabled(forward.grad and torch.is_grad_enabled()),
    ):
        out = context.phase.objective.run(network.module, inputs)
        if state.followed:
            state.keep(network.replaced(state.tensors))
    return to_outputs(out)


class _Entrance:
    """Enters the context of a pass, and enters it again where layers are recomputed in the backward pass.

    A recomputed layer reads the state of before the pass, and what it changes is dropped.
    """

    def __init__(
        self, network: Network, train: bool, call: ModelCall, weights: Mapping[str, Tensor], state: Weights
    ) -> None:
        self.network, self.train, self.call, self.weights = network, train, call, weights
        self.state, self.entered = state, False
        again = bool(state) and recomputes(network.module)
        self.before = {name: t.clone() for name, t in state.items()} if again else {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Make the network compute with the pass's tensors inside the block."""
        state = {name: t.clone() for name, t in self.before.items()} if self.entered else self.state
        self.entered = True
        module = self.network.module
        if module.training != self.train:
            module.train(self.train)
        tensors = {**self.weights, **self.network.as_registered(state), **self.network.reset()}
        with call_context(self.call), self.network.swapped(tensors):
            yield


def with_task_loss(context: PhaseContext, outputs: Outputs, batch: Batch) -> Outputs:
    """Return `outputs` with the objective's loss of each example, and the targets."""
    objective = context.phase.objective
    sums, weights = objective.loss(outputs, batch)
    return replace(outputs, loss_sums=sums, loss_weights=weights, targets=batch.get(objective.target))


def model_inputs(context: PhaseContext, batch: Batch) -> Batch:
    """Return the tensors of a batch that the model takes as inputs."""
    return {name: batch[name] for name in context.phase.objective.inputs if name in batch}


def step_key(keys: Tensor, step: int | Tensor) -> Tensor:
    """Return the dropout key of a local step: the update's key plus an odd multiple for each step, in 62 bits."""
    return keys + ((2 * step + 1) * STEP_MULTIPLIER & ((1 << 62) - 1))


def keeps_gradients(context: PhaseContext, micro_steps: tuple[MicroStep, ...]) -> bool:
    """Return whether gradients are kept until the end of a local step, for `after_step` or `MicroStep.at`."""
    return context.phase.algorithm.needs_after_step() or any(micro.at is not None for micro in micro_steps)


def can_skip(context: PhaseContext, micro_steps: Sequence[MicroStep], gates: Sequence[bool]) -> list[bool]:
    """Return which inactive micro-steps of a local step need not be computed: nothing reads their gradients or passes.

    The reported loss is that of the first one computed. All of them find the weights of the start of the local step,
    as those before it did not move.
    """
    if context.has_record_privacy or keeps_gradients(context, tuple(micro_steps)):
        return [False] * len(micro_steps)

    def is_covered(number: int) -> bool:
        passes = set(micro_steps[number].forwards)
        others = [place for place in range(len(micro_steps)) if place != number]
        repeated = all(passes <= set(micro_steps[place].forwards) for place in others)
        return repeated and any(gates[place] for place in others)

    return [not gate and is_covered(number) for number, gate in enumerate(gates)]


def evaluation_point(
    micro: MicroStep, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
) -> Weights:
    """Return the tensors that `MicroStep.at` moves, for one client; ConfigError if it returns an unknown name."""
    assert micro.at is not None
    moved = micro.at(trained, gradients, state, update)
    for name in moved.keys() - trained.keys():
        hint = nearest(name, trained)
        raise ConfigError(f"algorithm: MicroStep.at returned {name!r}, which is not a trained tensor; {hint}")
    return moved
