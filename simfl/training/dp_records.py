"""Record-level privacy: each example's gradient is clipped before gradients are summed (Abadi et al. 2016).

A step's examples are a Poisson sample, so the sum is divided by the expected batch size, and every step adds noise,
also a step without examples. Gradients of single examples are computed by `torch.func.vmap`, with the example's
position in the batch as part of its dropout key.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from simfl.privacy.units import factors, finite_or_zero, norms
from simfl.protocol import Batch, MicroStep, Weights
from simfl.training.batches import TrainingUnit
from simfl.training.context import PhaseContext
from simfl.training.forward import StepInputs, micro_step_loss


def noised_gradient(
    context: PhaseContext, micro: MicroStep, inputs: StepInputs, leaves: Weights, unit: TrainingUnit
) -> tuple[Weights, Tensor, Tensor, Tensor]:
    """Return the noised gradient by each of `leaves`, sum and weight of the task loss, and how many examples are zero.

    An example whose gradient is not finite counts as zero, and not in the loss.
    """
    mechanism, detached = context.mechanism, {name: t.detach() for name, t in leaves.items()}
    assert mechanism is not None
    clip = mechanism.clip_of(inputs.received)
    assert clip is not None
    total = {name: torch.zeros_like(t) for name, t in detached.items()}
    loss_sum = loss_weight = torch.zeros((), device=inputs.key.device)
    num_zero = torch.zeros((), dtype=torch.int64, device=inputs.key.device)
    if len(inputs.batch["mask"]):
        gradients, sums, weights = example_gradients(context, micro, inputs, detached)
        lengths = norms(gradients)
        counts = torch.isfinite(lengths)
        total, num_zero = clipped_sum(finite_or_zero(gradients, lengths), clip), (~counts).sum()
        loss_sum = torch.where(counts, sums.detach(), 0.0).sum()
        loss_weight = torch.where(counts, weights.detach(), 0.0).sum()
    name = ("step", clip, context.index, int(inputs.update.round), unit.client, int(inputs.update.step))
    total = mechanism.noised(total, mechanism.noise_multiplier * clip, name)
    gradient = {name: t / context.phase.local.batch_size for name, t in total.items()}
    return gradient, loss_sum, loss_weight, num_zero


def example_gradients(
    context: PhaseContext, micro: MicroStep, inputs: StepInputs, leaves: Weights
) -> tuple[Weights, Tensor, Tensor]:
    """Return the gradient of every example by `leaves`, [B, …], and its task loss and weight, [B]."""
    rest = {name: t.detach() for name, t in inputs.trained.items() if name not in leaves}

    def example_loss(own: Weights, example: Batch, key: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch = {name: t[None] for name, t in example.items()}
        single = replace(inputs, batch=batch, trained={**rest, **own}, key=key)
        loss = micro_step_loss(context, micro, single, {}, under_vmap=True)
        return loss.total(batch["mask"]), loss.task_totals()

    keys = inputs.key + 2 * torch.arange(len(inputs.batch["mask"]), device=inputs.key.device)
    gradient = torch.func.grad(example_loss, has_aux=True)
    gradients, (sums, weights) = torch.func.vmap(gradient, in_dims=(None, 0, 0), randomness="error")(
        leaves, inputs.batch, keys
    )
    return gradients, sums, weights


def clipped_sum(gradients: Weights, clip: float) -> Weights:
    """Return the sum over examples of gradients [B, …], each clipped to this norm over all tensors."""
    scales = factors(norms(gradients), clip)
    return {name: torch.einsum("b,b...->...", scales.to(g.dtype), g) for name, g in gradients.items()}
