"""Random numbers inside a loss: a hash of the visit's key, the local step and a name, the same in both ways."""

from __future__ import annotations

import torch
from torch import Tensor

from simfl import keyed_random as chance
from simfl.protocol import ClientUpdate

NAME = 0x3C6EF372FE94F82B  # odd: keys of different names stay apart


def uniform(update: ClientUpdate, names: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1), [*names.shape, count]: a row for each of these names (int64) at this local step."""
    return chance.uniform(update.key + (2 * update.step.to(torch.int64) + 1) * chance.STEP + names * NAME, count)
