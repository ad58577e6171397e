"""Clipping of each client's gradient before an optimizer's step."""

from __future__ import annotations

import torch

from simfl.experiment import Local
from simfl.protocol import Weights


def clip(gradients: Weights, local: Local) -> Weights:
    """Each client's gradient ([n, …]) clipped by value, then by its norm over all tensors."""
    if local.clip_value is not None:
        gradients = {name: g.clamp(-local.clip_value, local.clip_value) for name, g in gradients.items()}
    if local.clip_norm is not None:
        squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()]).sum(0)
        factor = (local.clip_norm / (squares.sqrt() + 1e-6)).clamp_max(1.0)
        gradients = {name: g * factor.reshape(-1, *[1] * (g.dim() - 1)) for name, g in gradients.items()}
    return gradients
