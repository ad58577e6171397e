"""Every backbone at full size takes training steps on a GPU, in float32 and bf16; prints peak memory and examples/s."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from simfl.models.albef import Albef
from simfl.models.aster import Aster
from simfl.models.base import Model
from simfl.models.heads import HeadSpec
from simfl.models.layout_t5 import LayoutT5
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5
from simfl.protocol import Batch, Task

ROWS, STEPS = 16, 5
HEADS = {"answers": HeadSpec(classes=100)}
MODELS: dict[str, tuple[type[Model], dict[str, Any]]] = {
    "albef": (Albef, {}),
    "aster": (Aster, {}),
    "aster with shufflenet": (Aster, {"encoder": "shufflenet"}),
    "layout_t5": (LayoutT5, {}),
    "vault": (Vault, {"heads": HEADS}),
    "vilt": (Vilt, {"heads": HEADS}),
    "vit": (ViT, {}),
    "vt5": (VT5, {}),
}
PRECISIONS = {name: ("float32",) if name.startswith("aster") else ("float32", "bf16") for name in MODELS}


def batch(name: str) -> Batch:
    """Random inputs of the shapes of the papers' data."""
    draw = torch.Generator().manual_seed(0)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(4, high, (ROWS, *shape), generator=draw).cuda()

    def pixels(*side: int) -> torch.Tensor:
        return torch.randint(0, 256, (ROWS, 3, *side), generator=draw).byte().cuda()

    if name.startswith("aster"):
        return {"pixel_values": pixels(64, 256), "labels": whole(94, 24)}
    if name == "vit":
        return {"x": pixels(224, 224)}
    if name in ("vt5", "layout_t5"):
        text = {"input_ids": whole(500, 512), "attention_mask": torch.ones(ROWS, 512, device="cuda")}
        return text | {"boxes": whole(1000, 512, 4), "labels": whole(500, 12), "pixel_values": pixels(224, 224)}
    text = {"input_ids": whole(500, 24), "attention_mask": torch.ones(ROWS, 24, device="cuda")}
    return text | {"pixel_values": pixels(384, 384)} | ({"labels": whole(500, 1, 8)} if name == "albef" else {})


def step(module: nn.Module, given: Batch, optimizer: torch.optim.Optimizer) -> float:
    loss = module(**given).logits.float().log_softmax(-1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "precision"), [(name, p) for name in MODELS for p in PRECISIONS[name]])
def test_a_backbone_of_full_size_takes_training_steps(name: str, precision: str) -> None:
    kind, settings = MODELS[name]
    precise = {} if name.startswith("aster") else {"precision": precision}
    task = Task(0, 345 if name == "vit" else 100, (3, 224, 224))
    module = kind(size="base", **settings, **precise).build(task).cuda().train()
    given = batch(name)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 1e-5)
    torch.cuda.reset_peak_memory_stats()
    first = step(module, given, optimizer)
    torch.cuda.synchronize()
    started = time.perf_counter()
    last = [step(module, given, optimizer) for _ in range(STEPS)][-1]
    rate = ROWS * STEPS / (time.perf_counter() - started)
    print(f"{name} {precision}: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, {rate:.0f} examples/s")
    assert last < first
