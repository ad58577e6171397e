"""Shared parts of methods with a teacher: the received model's pass, divergences of predictions, a starting round."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import log_softmax

from simfl.protocol import ClientUpdate, Forward, Outputs

FLOOR = -1e4  # smallest log-probability; its exp is 0
RECEIVED = Forward(sources=(("*", "received"),), train=False, grad=False)  # personal parameters are the client's own


def divergence(
    first: Outputs, second: Outputs, temperature: float = 1.0, learns: Literal["first", "second"] = "second"
) -> Tensor:
    """Return KL(first ‖ second) of softened predictions times temperature² (Hinton et al. 2015), per example [B].

    Only the side that `learns` has a gradient. Sequences have the mean over the positions that count.
    """
    sides = {"first": first, "second": second}
    p, q = (log_probs((out if name == learns else out.detach()).logits / temperature) for name, out in sides.items())
    return per_example((p.exp() * (p - q)).sum(-1) * temperature**2, sides[learns])


def log_probs(logits: Tensor) -> Tensor:
    """Return log-probabilities over the last axis, all finite: a class masked with −∞ would make a divergence NaN."""
    return log_softmax(logits, dim=-1).clamp_min(FLOOR)


def per_example(values: Tensor, outputs: Outputs) -> Tensor:
    """Return one value per example [B]: `values` [B], or the mean of `values` [B, T] over positions that count."""
    if values.dim() == 1:
        return values
    mask = outputs.mask.to(values.dtype) if outputs.mask is not None else values.new_ones(values.shape)
    return (values * mask).sum(-1) / mask.sum(-1).clamp_min(1.0)


def active_from(update: ClientUpdate, from_round: int) -> Tensor:
    """Return 1.0 from this round of the phase on (counted from 1), and 0.0 before."""
    return (update.round + 1 >= from_round).float()
