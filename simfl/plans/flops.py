"""Floating-point operations of a training step, counted on tensors without values.

Matrix products, convolutions and attention are counted, forward and backward, as `torch.utils.flop_counter` does: a
multiplication and an addition are two operations. Element-wise operations are not counted, nor is the optimizer's step.
Gradients of frozen weights are not computed and so not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from simfl.errors import ConfigError, SimflError
from simfl.plans.memory import LocalTraining
from simfl.plans.messages import PhaseMessages
from simfl.protocol import Weights
from simfl.run_context import RunContext


def flops_per_example(messages: PhaseMessages, context: RunContext) -> float:
    """Return the floating-point operations of one local step of a phase over its batch size.

    Args:
        messages: The messages of the phase.
        context: The run on the meta device.

    Raises:
        ConfigError: They cannot be counted from shapes.
    """
    local, phase = LocalTraining(messages, context), messages.stage.phase
    for traced in (False, True):
        with suppress(SimflError, NotImplementedError, RuntimeError, DataDependentOutputException):
            batch = local.batch()
            losses = [local.loss_of(micro.forwards, batch) for micro in phase.algorithm.micro_steps()]
            counted = sum(_step_flops(loss, local.leaves, traced) for loss in losses)
            if counted:
                return counted / phase.local.batch_size
    raise ConfigError(
        f"clients.profile.flops_per_example: the operations of a step of phases.{messages.stage.index} cannot be"
        " counted from shapes; give their number"
    )


def _step_flops(loss_of: Callable[[Weights], Tensor], leaves: Mapping[str, Tensor], traced: bool) -> int:
    """Return the operations of a forward and backward pass."""
    fake = FakeTensorMode(allow_non_fake_inputs=True) if traced else None
    with fake or nullcontext():
        trained = {
            name: (t if fake is None else fake.from_tensor(t)).detach().requires_grad_() for name, t in leaves.items()
        }
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(loss_of(trained), list(trained.values()), allow_unused=True)
    return int(counter.get_total_flops())
