"""Where an example is the unit: its own gradient is clipped before it is summed with others (Abadi et al. 2016).

A step's examples are a Poisson sample, so the sum is divided by the expected size of a batch, and every step is noised,
an empty one too. Gradients of single examples are taken by `torch.func.vmap`, with the example's place in its dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simfl.cohort.stage import Item, Stage, call, inputs_of, tensors_for, with_task
from simfl.privacy.noise import noised
from simfl.privacy.units import factors, norms
from simfl.protocol import Batch, MicroStep, Outputs, Parts, State, Visit, Weights


def hidden(stage: Stage) -> bool:
    """Whether examples are the unit in this phase."""
    return stage.mechanism is not None and stage.mechanism.unit == "record"


def gradients(
    stage: Stage,
    micro: MicroStep,
    carried: dict[str, Outputs],
    batch: Batch,
    trained: Weights,
    received: Parts,
    state: State,
    visit: Visit,
    key: Tensor,
    leaves: Weights,
    item: Item,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Sum and weight of the task loss, and the noised gradient of each of `leaves`."""
    assert stage.mechanism is not None
    mechanism, mine = stage.mechanism, {name: t.detach() for name, t in leaves.items()}
    clip, count = mechanism.clip_of(received), len(batch["mask"])
    assert clip is not None
    total, none = {name: torch.zeros_like(t) for name, t in mine.items()}, torch.zeros((), device=key.device)
    task = none, none
    if count:
        each, (sums, weights) = of_each(stage, micro, batch, mine, trained, received, state, visit, key)
        total, task = clipped_sum(each, clip), (sums.sum().detach(), weights.sum().detach())
    name = ("step", stage.index, int(visit.round), item.client, int(visit.step))
    seeded = ("noise", mechanism.seed, *name)
    total = noised(total, mechanism.noise_multiplier * clip, seeded, mechanism.privacy.secure)
    return task, tuple(t / stage.phase.local.batch_size for t in total.values())


def of_each(
    stage: Stage,
    micro: MicroStep,
    batch: Batch,
    mine: Weights,
    trained: Weights,
    received: Parts,
    state: State,
    visit: Visit,
    key: Tensor,
) -> tuple[Weights, tuple[Tensor, Tensor]]:
    """The gradient of every example of a batch by `mine`, [B, …], and its task loss and weight, [B]."""
    forwards, rest = stage.phase.algorithm.forwards(), {n: t.detach() for n, t in trained.items() if n not in mine}

    def one(own: Weights, example: Batch, key: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        single, whole = {name: t[None] for name, t in example.items()}, {**rest, **own}
        outputs = {}
        for name in micro.runs:
            weights = tensors_for(stage.sources[name], whole, received, state)
            out = call(stage, forwards[name], weights, inputs_of(stage, single), key, stacked=True)
            outputs[name] = with_task(stage, out, single)
        loss = micro.loss(outputs, single, whole, received, state, visit)
        return loss.total(single["mask"]), loss.parts()

    keys = key + 2 * torch.arange(len(batch["mask"]), device=key.device)
    mapped = torch.func.vmap(torch.func.grad(one, has_aux=True), in_dims=(None, 0, 0), randomness="error")
    each, task = mapped(mine, batch, keys)
    return each, task


def clipped_sum(each: Weights, clip: float) -> Weights:
    """The sum over examples ([B, …]) of gradients clipped to this norm over all tensors."""
    scales = factors(norms(each), clip)
    return {name: torch.einsum("b,b...->...", scales.to(g.dtype), g) for name, g in each.items()}
