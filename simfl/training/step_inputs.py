"""A client at one local step: the passes of a micro-step and its loss, the same in every way of training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from simfl.protocol import Batch, ClientUpdate, Loss, MicroStep, Outputs, Parts, State, Weights
from simfl.training.context import PhaseContext, call, inputs_of, tensors_for, with_task


@dataclass(frozen=True)
class StepInputs:
    """All that passes and losses read of one client, or under `torch.func.vmap` of each."""

    batch: Batch
    trained: Weights
    received: Parts
    state: State
    visit: ClientUpdate  # with the count of local steps taken so far
    key: Tensor  # of this step's dropout


def loss_of(
    stage: PhaseContext, micro: MicroStep, now: StepInputs, outputs: dict[str, Outputs], mapped: bool = False
) -> Loss:
    """The loss of a micro-step, whose passes add to `outputs` what they give; `mapped`: inside of `vmap`."""
    forwards = stage.phase.algorithm.forwards()
    for name in micro.forwards:
        weights = tensors_for(stage.sources[name], now.trained, now.received, now.state)
        given = call(stage, forwards[name], weights, inputs_of(stage, now.batch), now.key, stacked=mapped)
        outputs[name] = with_task(stage, given, now.batch)
    return micro.loss(outputs, now.batch, now.trained, now.received, now.state, now.visit)
