"""A VT5 small enough for tests, and a batch for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from simfl.models.vt5 import VT5
from simfl.protocol import Batch

SMALL = {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 2, "vocab_size": 400}
LENGTH, ANSWER = 24, 5


def small_vt5(**settings: Any) -> VT5:
    return VT5(**{**SMALL, **settings})


def near(found: Tensor, wanted: Tensor, relative: float = 1e-5) -> bool:
    """Equal up to rounding: attention uses another kernel if its bias needs no gradient."""
    return bool((found - wanted).norm() <= relative * wanted.norm() + 1e-7)


def batch(rows: int, seed: int = 0) -> Batch:
    """Random inputs; row 0 has 10 tokens and an answer of 3 tokens, the others are full."""
    draw = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=draw)

    made = {
        "input_ids": whole(3, 400, rows, LENGTH),
        "boxes": whole(0, 1000, rows, LENGTH, 4),
        "attention_mask": torch.ones(rows, LENGTH, dtype=torch.bool),
        "labels": whole(3, 400, rows, ANSWER),
        "pixel_values": whole(0, 256, rows, 3, 64, 64).to(torch.uint8),
    }
    made["attention_mask"][0, 10:] = False
    made["labels"][0, 3:] = -100
    return made
