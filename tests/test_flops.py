"""The formulas of `benchmarks.flops` against torch's count of a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import flops
from simfl.models.albef import Albef
from simfl.models.bottleneck import Bottleneck
from simfl.models.cnn import Cnn
from simfl.models.heads import HeadSpec
from simfl.models.layout_t5 import LayoutT5
from simfl.models.mlp import Mlp
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5
from simfl.protocol import Task

TOKENS, ANSWER, CLASSES, BATCH = 24, 5, 7, 2
TASK = Task(0, CLASSES, (3, 16, 16))
PIXELS = torch.zeros(BATCH, 3, 64, 64, dtype=torch.uint8)
HEADS = {"answers": HeadSpec(classes=CLASSES)}


def ids(count: int) -> Tensor:
    """Return tokens [B, count]."""
    return torch.ones(BATCH, count, dtype=torch.int64)


def question() -> dict[str, Tensor]:
    """Return the inputs of the tiny ViLT."""
    return {"input_ids": ids(40), "attention_mask": ids(40), "pixel_values": PIXELS[..., :32, :32]}


def document() -> dict[str, Tensor]:
    """Return the inputs of the tiny VT5."""
    text = {"input_ids": ids(TOKENS), "attention_mask": ids(TOKENS), "labels": ids(ANSWER)}
    return text | {"boxes": torch.ones(BATCH, TOKENS, 4), "pixel_values": PIXELS}


def answers() -> dict[str, Tensor]:
    """Return the inputs of the tiny ALBEF."""
    return question() | {"labels": ids(ANSWER)[:, None]}


def picture() -> dict[str, Tensor]:
    """Return the inputs of the tiny ViT."""
    return {"x": PIXELS[..., :16, :16]}


LAYOUT = LayoutT5("tiny")
TINY = VT5("tiny", vocab_size=5000)
READER = Vilt("tiny", heads=HEADS)
ADAPTED = Vilt("tiny", heads=HEADS, adapters=Bottleneck(reduction=64, names=("shared",)))


@pytest.mark.parametrize(
    ("model", "inputs", "formula", "close"),
    [
        (TINY, document, lambda: flops.vt5(TINY, TOKENS, ANSWER, page=True).training(), 0.02),
        (READER, question, lambda: flops.vilt(READER, 40, CLASSES).training(), 0.02),
        (ADAPTED, question, lambda: flops.vilt(ADAPTED, 40, CLASSES).training(adapters=True), 0.3),  # of two blocks
        (LAYOUT, document, lambda: flops.of_backbone(LAYOUT, document(), None), 0.02),
        (Vault("tiny", heads=HEADS), question, lambda: flops.of_backbone(Vault("tiny"), question(), CLASSES), 0.02),
        (Albef("tiny"), answers, lambda: flops.of_backbone(Albef("tiny"), answers(), None), 0.02),
        (ViT("tiny"), picture, lambda: flops.of_backbone(ViT("tiny"), picture(), CLASSES), 0.02),
        (Cnn(), lambda: {"x": PIXELS[..., :16, :16]}, lambda: flops.cnn(Cnn(), (3, 16, 16), CLASSES).training(), 0.01),
        (
            Mlp(hidden_sizes=(9, 8)),
            lambda: {"x": torch.zeros(BATCH, 48)},
            lambda: flops.mlp(Mlp(hidden_sizes=(9, 8)), 48, CLASSES).training(),
            0.01,
        ),
    ],
    ids=["vt5", "vilt", "vilt, adapters", "layout_t5", "vault", "albef", "vit", "cnn", "mlp"],
)
def test_the_operations_of_a_training_step_follow_the_formula(
    model: Any, inputs: Callable[[], dict[str, Tensor]], formula: Callable[[], float], close: float
) -> None:
    task = TASK if not isinstance(model, Mlp) else Task(0, CLASSES, (48,))
    network = model.build(task).train()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # whose products are counted
        network(**inputs()).logits.sum().backward()
    assert counter.get_total_flops() / BATCH == pytest.approx(formula(), rel=close)


def test_the_share_of_a_card_is_of_its_peak_in_bf16() -> None:
    assert flops.share(98.9e12, "NVIDIA H200") == pytest.approx(0.1)
    assert flops.share(1e12, "a card of tomorrow") is None
