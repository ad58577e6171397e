"""What methods with a teacher share: the received model as teacher, when it begins, divergences of predictions."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import log_softmax

from simfl.protocol import ClientUpdate, Forward, Outputs

FLOOR = -1e4  # a log-probability; exp of it is 0
RECEIVED = Forward(sources=(("*", "received"),), train=False, grad=False)  # private tensors are the client's own


def divergence(
    first: Outputs, second: Outputs, temperature: float = 1.0, learns: Literal["first", "second"] = "second"
) -> Tensor:
    """KL(first ‖ second) of softened predictions times temperature², per example [B]; the other side has no gradient.

    Of sequences, the mean over the positions that count (Hinton et al. 2015 for the square).
    """
    sides = {"first": first, "second": second}
    p, q = (log_chances((out if name == learns else out.detach()).logits / temperature) for name, out in sides.items())
    return per_example((p.exp() * (p - q)).sum(-1) * temperature**2, sides[learns])


def log_chances(logits: Tensor) -> Tensor:
    """Log-probabilities over the last axis, all finite: classes masked with −∞ would make a divergence NaN."""
    return log_softmax(logits, dim=-1).clamp_min(FLOOR)


def per_example(each: Tensor, outputs: Outputs) -> Tensor:
    """Values of predictions as values of examples [B]: of sequences [B, T], the mean over positions that count."""
    if each.dim() == 1:
        return each
    mask = outputs.mask.to(each.dtype) if outputs.mask is not None else each.new_ones(each.shape)
    return (each * mask).sum(-1) / mask.sum(-1).clamp_min(1.0)


def begun(update: ClientUpdate, from_round: int) -> Tensor:
    """1 from this round of the phase on (counted from 1), 0 before."""
    return (update.round + 1 >= from_round).float()
