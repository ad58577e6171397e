"""Where an example is the unit: its own gradient is clipped before it is summed with others (Abadi et al. 2016).

A step's examples are a Poisson sample, so the sum is divided by the expected size of a batch, and every step is noised,
an empty one too. Gradients of single examples are taken by `torch.func.vmap`, with the example's place in its dropout.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from simfl.privacy.noise import noised
from simfl.privacy.units import factors, norms
from simfl.protocol import Batch, MicroStep, Weights
from simfl.training.context import PhaseContext, TrainingUnit
from simfl.training.step_inputs import StepInputs, loss_of


def hidden(stage: PhaseContext) -> bool:
    """Whether examples are the unit in this phase."""
    return stage.mechanism is not None and stage.mechanism.unit == "record"


def gradients(
    stage: PhaseContext, micro: MicroStep, now: StepInputs, leaves: Weights, item: TrainingUnit
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Sum and weight of the task loss, and the noised gradient of each of `leaves`."""
    assert stage.mechanism is not None
    mechanism, mine = stage.mechanism, {name: t.detach() for name, t in leaves.items()}
    clip, count = mechanism.clip_of(now.received), len(now.batch["mask"])
    assert clip is not None
    total, none = {name: torch.zeros_like(t) for name, t in mine.items()}, torch.zeros((), device=now.key.device)
    task = none, none
    if count:
        each, (sums, weights) = of_each(stage, micro, now, mine)
        total, task = clipped_sum(each, clip), (sums.sum().detach(), weights.sum().detach())
    name = ("step", stage.index, int(now.visit.round), item.client, int(now.visit.step))
    seeded = ("noise", mechanism.seed, *name)
    total = noised(total, mechanism.noise_multiplier * clip, seeded, mechanism.privacy.secure)
    return task, tuple(t / stage.phase.local.batch_size for t in total.values())


def of_each(
    stage: PhaseContext, micro: MicroStep, now: StepInputs, mine: Weights
) -> tuple[Weights, tuple[Tensor, Tensor]]:
    """The gradient of every example of a batch by `mine`, [B, …], and its task loss and weight, [B]."""
    rest = {name: t.detach() for name, t in now.trained.items() if name not in mine}

    def one(own: Weights, example: Batch, key: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        single = {name: t[None] for name, t in example.items()}
        alone = replace(now, batch=single, trained={**rest, **own}, key=key)
        loss = loss_of(stage, micro, alone, {}, mapped=True)
        return loss.total(single["mask"]), loss.task_totals()

    keys = now.key + 2 * torch.arange(len(now.batch["mask"]), device=now.key.device)
    mapped = torch.func.vmap(torch.func.grad(one, has_aux=True), in_dims=(None, 0, 0), randomness="error")
    each, task = mapped(mine, now.batch, keys)
    return each, task


def clipped_sum(each: Weights, clip: float) -> Weights:
    """The sum over examples ([B, …]) of gradients clipped to this norm over all tensors."""
    scales = factors(norms(each), clip)
    return {name: torch.einsum("b,b...->...", scales.to(g.dtype), g) for name, g in each.items()}
