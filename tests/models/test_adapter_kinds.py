"""Every adapter kind on every backbone: equal gradients in both execution modes, or a one-line error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_vt5 import near, small_vt5
from test_vectorized_models import (
    ALBEF_BATCHES,
    ANSWERS,
    CLIENTS,
    IMAGE_BATCHES,
    IMAGES,
    KEYS,
    PAGE_BATCHES,
    VILT_BATCHES,
    VT5_BATCHES,
    WORD_BATCHES,
    alone,
    total,
)  # fmt: skip
from torch import nn

from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.albef import Albef
from simfl.models.aster import Aster
from simfl.models.bottleneck import Bottleneck
from simfl.models.cnn import Cnn
from simfl.models.grouped_layers import grouped_forward, grouped_layers, ungrouped_params
from simfl.models.layout_t5 import LayoutT5
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.models.partial_tuning import BiasTuning, HeadTuning, LastLayersTuning
from simfl.models.peft_method import SEQUENTIAL_ONLY, PeftMethod
from simfl.models.prompt import Prompt
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.protocol import Batch, Task

BACKBONES: dict[str, tuple[Any, Task, Batch]] = {
    "albef": (Albef(), Task(1), ALBEF_BATCHES),
    "aster": (Aster("tiny", norm="group"), Task(1), WORD_BATCHES),
    "aster with shufflenet": (Aster("tiny", "shufflenet", context=False, norm="group"), Task(1), WORD_BATCHES),
    "cnn": (Cnn(channels=(2, 3), hidden=8), IMAGES, IMAGE_BATCHES),
    "layout_t5": (LayoutT5(dropout=0.0), Task(1), PAGE_BATCHES),
    "mlp": (Mlp(hidden_sizes=(32, 8)), IMAGES, IMAGE_BATCHES),
    "vault": (Vault(), ANSWERS, VILT_BATCHES),
    "vilt": (Vilt(), ANSWERS, VILT_BATCHES),
    "vit": (ViT(image_size=16), IMAGES, IMAGE_BATCHES),
    "vt5": (small_vt5(dropout=0.0), Task(1), VT5_BATCHES),
}
KINDS: dict[str, Adapter] = {
    "bias": BiasTuning(),
    "bottleneck": Bottleneck(),
    "head": HeadTuning(),
    "last_layers": LastLayersTuning(2),
    "lora": Lora(rank=2, dropout=0.0),
    "peft": PeftMethod("ia3", {"feedforward_modules": []}),
    "prompt": Prompt(tokens=3),
}
PLAIN = {
    "lora": Lora(rank=2, dropout=0.0, targets=("head",)),
    "peft": PeftMethod("ia3", {"target_modules": ["head"], "feedforward_modules": []}),
}
REJECTED = {
    ("aster", "prompt"): "AsterNetwork has no place for prompts",
    ("aster with shufflenet", "prompt"): "AsterNetwork has no place for prompts",
    ("cnn", "bottleneck"): "CnnNetwork has no place for a bottleneck",
    ("cnn", "prompt"): "CnnNetwork has no place for prompts",
    ("layout_t5", "head"): "LayoutT5Network has no head",
    ("mlp", "prompt"): "MlpNetwork has no place for prompts",
    ("vt5", "head"): "VT5Network has no head",
}
PAIRS = [(name, kind) for name in BACKBONES for kind in KINDS]
TOLERANCES = {
    "aster": 2e-3,
    "aster with shufflenet": 2e-3,
    "layout_t5": 1e-4,
}  # rounding moves the sampler; T5 amplifies it


def adapted(name: str, kind: str) -> Any:
    model = BACKBONES[name][0]
    return replace(model, adapters=PLAIN.get(kind, KINDS[kind]) if name in ("cnn", "mlp") else KINDS[kind])


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # fused attention has no vmap rule on the CPU
@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if pair not in REJECTED])
def test_gradients_of_an_adapter_kind_are_equal_in_both_modes(name: str, kind: str) -> None:
    """Grouped over one frozen base, or with all weights stacked if a trained layer has no grouped form."""
    _, task, batches = BACKBONES[name]
    module = adapted(name, kind).build(task).train()
    assert_equal_gradients(module, batches, TOLERANCES.get(name, 2e-5))


def assert_equal_gradients(module: nn.Module, batches: Batch, within: float) -> None:
    draw = torch.Generator().manual_seed(9)
    trained = {
        n: p.detach() + 0.05 * torch.randn(CLIENTS, *p.shape, generator=draw)
        for n, p in module.named_parameters()
        if p.requires_grad
    }
    assert trained
    expected = alone(module, trained, batches)
    if ungrouped_params(module, tuple(trained)):
        each = torch.func.vmap(torch.func.grad(lambda w, given, key: total(module, w, given, key, stacked=True)))
        found = each(trained, batches, KEYS)
    else:
        leaves = {n: t.clone().requires_grad_() for n, t in trained.items()}
        with grouped_forward(grouped_layers(module, tuple(trained))):
            loss = total(module, leaves, {n: t.flatten(0, 1) for n, t in batches.items()}, KEYS, CLIENTS)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        found = dict(zip(leaves, gradients, strict=True))
    moved = [n for n, t in found.items() if t.any()]
    assert len(moved) > len(found) / 2  # some biases of a tiny network get no gradient
    for n in trained:
        assert near(found[n], torch.stack([e[n] for e in expected]), within), n


@pytest.mark.parametrize(("name", "kind"), REJECTED)
def test_an_unsupported_adapter_kind_is_a_one_line_error(name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"^adapters\.kind: {REJECTED[name, kind]}[^\n]*$"):
        adapted(name, kind).build(BACKBONES[name][1])


def methods() -> list[str]:
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

    return sorted(str(kind.value).lower() for kind in PEFT_TYPE_TO_TUNER_MAPPING)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # peft's, about sparse tensors
@pytest.mark.parametrize("method", methods())
def test_every_peft_method_is_vectorized_or_sequential_only_or_rejected(method: str) -> None:
    settings: dict[str, dict[str, object]] = {
        "adalora": {"total_step": 10},
        "c3a": {"block_size": 8},
        "ia3": {"feedforward_modules": []},
    }
    model = replace(Vilt(), adapters=PeftMethod(method, settings.get(method, {})))
    try:
        module = model.build(ANSWERS).train()
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert hasattr(module, "sequential_only") == (method in SEQUENTIAL_ONLY)
    if method not in SEQUENTIAL_ONLY:
        assert_equal_gradients(module, VILT_BATCHES, 2e-5)
