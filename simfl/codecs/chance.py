"""Random bits of a message: a hash of its seed and of each value's place, the same for one client as in a cohort."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simfl import keyed_random as chance
from simfl.codecs.base import Context


def random_bits(contexts: Sequence[Context], count: int, device: torch.device) -> Tensor:
    """Whole numbers in [0, 2^24), int32 [n, count], equal on every device."""
    return chance.random_bits(_seeds(contexts, device), count)


def uniform(contexts: Sequence[Context], count: int, device: torch.device) -> Tensor:
    """Numbers in [0, 1), float32 [n, count]."""
    return chance.uniform(_seeds(contexts, device), count)


def _seeds(contexts: Sequence[Context], device: torch.device) -> Tensor:
    return torch.tensor([context.seed for context in contexts], dtype=torch.int64, device=device)
