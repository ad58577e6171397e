"""What distilling algorithms share: divergences between the outputs of two passes."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import log_softmax

from simfl.protocol import Outputs


def divergence(teacher: Outputs, student: Outputs, temperature: float = 1.0) -> Tensor:
    """KL(teacher ‖ student) of softened predictions times temperature², per example [B]; no gradient into the teacher.

    Of sequences, the mean over the positions that count (Hinton et al. 2015 for the square).
    """
    target = log_softmax(teacher.logits.detach() / temperature, dim=-1)
    guess = log_softmax(student.logits / temperature, dim=-1)
    each = (target.exp() * (target - guess)).sum(-1) * temperature**2
    if each.dim() == 1:
        return each
    mask = student.mask.to(each.dtype) if student.mask is not None else each.new_ones(each.shape)
    return (each * mask).sum(-1) / mask.sum(-1).clamp_min(1.0)
