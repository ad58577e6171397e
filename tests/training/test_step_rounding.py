"""Repeated training steps in half precision may differ by its rounding on a GPU, and by no more."""

from __future__ import annotations

import torch
from torch import nn

from simfl.training.step_probe import HALF_STEPS, _half_precision, _near


def test_half_precision_is_that_of_the_coarsest_tensor() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.float16), nn.Linear(2, 2).to(torch.bfloat16))
    assert _half_precision(module) == HALF_STEPS * torch.finfo(torch.bfloat16).eps
    assert _half_precision(module[0]) == 0


def test_rounding_of_half_precision_is_no_state_and_more_is() -> None:
    torch.manual_seed(0)
    first = torch.randn(1000)
    half = _half_precision(nn.Linear(2, 2).to(torch.bfloat16))
    assert _near(first, first.to(torch.bfloat16).float(), half)
    assert not _near(first, first.to(torch.bfloat16).float(), 0)  # in float32 it would be a state
    assert not _near(first, first * 1.1, half)
    assert not _near(first, first.flip(0), half)
