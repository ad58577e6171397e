"""One client at a time, under vmap, and as groups over one frozen base: the same logits and gradients, dropout on."""

from __future__ import annotations

import pytest
import torch
from test_albef import batch as albef_batch
from test_layout_t5 import batch as page_batch
from torch import nn
from torch.func import functional_call
from toy_vqa import batch as vqa_batch
from vt5_small import batch, near, small_vt5

from simfl.models.albef import Albef
from simfl.models.aster import Aster
from simfl.models.base import Model
from simfl.models.bottleneck import Bottleneck
from simfl.models.call_context import ModelCall, call_context
from simfl.models.cnn import Cnn
from simfl.models.grouped import grouped, owners
from simfl.models.layout_t5 import LayoutT5
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.models.parts import Bias, Head, LastLayers
from simfl.models.peft_method import PeftMethod
from simfl.models.prompt import Prompt
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.protocol import Batch, Task, Weights

CLIENTS = 3
KEYS = torch.tensor([11, 222, 3333])
IMAGES = Task(seed=1, num_classes=5, shape=(1, 12, 12))
VT5_BATCHES = {name: torch.stack([batch(2, k)[name] for k in range(CLIENTS)]) for name in batch(1)}
IMAGE_BATCHES = {
    "x": torch.randint(0, 256, (CLIENTS, 4, 1, 12, 12), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
}
ANSWERS = Task(seed=1, num_classes=5)
VILT_BATCHES = {n: t.unflatten(0, (CLIENTS, 2)) for n, t in vqa_batch(Vilt().tokenizer(), 2 * CLIENTS).items()}
VILT_BATCHES["num_answers"] = torch.tensor([[5, 4], [3, 3], [2, 5]])
RAMPS = torch.arange(64) * 2 + torch.arange(32)[:, None] + 7 * torch.arange(CLIENTS * 2)[:, None, None, None]
WORD_BATCHES = {  # pictures without edges: where the sampler passes from a pixel to the next, its gradient jumps
    "pixel_values": RAMPS.expand(-1, 3, -1, -1).unflatten(0, (CLIENTS, 2)).byte(),
    "labels": torch.tensor([[[1, 94, -100], [2, 3, 94]], [[4, 5, 94], [6, 94, -100]], [[94, -100, -100], [7, 8, 9]]]),
}
PAGE_BATCHES = {n: t.unflatten(0, (CLIENTS, 2)) for n, t in page_batch(2 * CLIENTS).items()}
ALBEF_BATCHES = {n: t.unflatten(0, (CLIENTS, 2)) for n, t in albef_batch(2 * CLIENTS).items()}
CASES: dict[str, tuple[Model, Task, Batch]] = {
    "aster": (Aster(size="tiny", norm="group"), Task(1), WORD_BATCHES),
    "aster with shufflenet": (Aster("tiny", "shufflenet", context=False, norm="group"), Task(1), WORD_BATCHES),
    "cnn": (Cnn(channels=(2, 3), hidden=8, dropout=0.2), IMAGES, IMAGE_BATCHES),
    "mlp": (Mlp(hidden_sizes=(8, 8), dropout=0.2, layer_norm=True), IMAGES, IMAGE_BATCHES),
    "mlp with bottlenecks": (Mlp(hidden_sizes=(32,), adapters=Bottleneck()), IMAGES, IMAGE_BATCHES),
    "vt5 with lora": (small_vt5(adapters=Lora(rank=2)), Task(1), VT5_BATCHES),
    "vt5 with bottlenecks": (small_vt5(adapters=Bottleneck()), Task(1), VT5_BATCHES),
    "layout_t5": (LayoutT5(), Task(1), PAGE_BATCHES),
    "layout_t5 with bottlenecks": (LayoutT5(adapters=Bottleneck()), Task(1), PAGE_BATCHES),
    "albef with bottlenecks": (Albef(adapters=Bottleneck(), dropout=0.1), Task(1), ALBEF_BATCHES),
    "albef with prompts": (Albef(adapters=Prompt()), Task(1), ALBEF_BATCHES),
    "albef in full": (Albef(), Task(1), ALBEF_BATCHES),
    "vault with bottlenecks": (Vault(adapters=Bottleneck(), dropout=0.1), ANSWERS, VILT_BATCHES),
    "vault's biases": (Vault(adapters=Bias()), ANSWERS, VILT_BATCHES),
    "vilt with bottlenecks": (Vilt(adapters=Bottleneck()), ANSWERS, VILT_BATCHES),
    "vilt with prompts": (Vilt(adapters=Prompt(), dropout=0.1), ANSWERS, VILT_BATCHES),
    "vilt with lora": (Vilt(adapters=Lora(rank=2, biases=True)), ANSWERS, VILT_BATCHES),
    "vilt's biases": (Vilt(adapters=Bias()), ANSWERS, VILT_BATCHES),
    "vilt's last layer": (Vilt(adapters=LastLayers(1), dropout=0.1), ANSWERS, VILT_BATCHES),
    "vilt's heads": (Vilt(adapters=Head()), ANSWERS, VILT_BATCHES),
    "vilt by peft": (Vilt(adapters=PeftMethod("ia3", {"feedforward_modules": []})), ANSWERS, VILT_BATCHES),
    "vilt in full": (Vilt(), ANSWERS, VILT_BATCHES),
    "vit with bottlenecks": (ViT(image_size=16, adapters=Bottleneck(), dropout=0.1), IMAGES, IMAGE_BATCHES),
    "vt5 in full": (small_vt5(frozen_dropout=True), Task(1), VT5_BATCHES),
}
ROUNDING = {"aster": 1e-3, "aster with shufflenet": 1e-3, "layout_t5": 1e-4}  # a hair moves the sampler; T5 amplifies


def built(name: str) -> tuple[nn.Module, Weights, Batch]:
    """The module in training mode, its trained tensors stacked and made different for each client, and the batches."""
    model, task, batches = CASES[name]
    module = model.build(task).train()
    draw = torch.Generator().manual_seed(9)
    trained = {
        name: p.detach() + 0.1 * torch.randn(CLIENTS, *p.shape, generator=draw)
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    return module, trained, batches


def total(
    module: nn.Module, weights: Weights, given: Batch, key: torch.Tensor, groups: int = 1, stacked: bool = False
) -> torch.Tensor:
    with call_context(ModelCall(key, groups, "dual" if has_bottlenecks(module) else "", stacked)):
        out = functional_call(module, weights, kwargs=given)
    logits = out.logits.clamp_min(-100)  # answers that a client does not have
    return logits.square().mean((-1, -2) if logits.dim() == 3 else -1).reshape(groups, -1).mean(-1).sum()


def has_bottlenecks(module: nn.Module) -> bool:
    return any("adapter_shared" in name for name, _ in module.named_parameters())


def alone(module: nn.Module, trained: Weights, batches: Batch) -> list[Weights]:
    one = torch.func.grad(lambda w, given, key: total(module, w, given, key, stacked=True))
    return [
        one({n: t[k] for n, t in trained.items()}, {n: t[k] for n, t in batches.items()}, KEYS[k])
        for k in range(CLIENTS)
    ]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # fused attention has no vmap rule on the CPU
@pytest.mark.parametrize("name", CASES)
def test_stacked_gradients_are_those_of_each_client_alone(name: str) -> None:
    module, trained, batches = built(name)
    expected = alone(module, trained, batches)
    stacked = torch.func.vmap(torch.func.grad(lambda w, given, key: total(module, w, given, key, stacked=True)))(
        trained, batches, KEYS
    )
    for tensor in trained:
        wanted = torch.stack([e[tensor] for e in expected])
        assert near(stacked[tensor], wanted, ROUNDING.get(name, 1e-5)), tensor


WHOLE = ("albef in full", "aster", "aster with shufflenet", "cnn", "layout_t5", "mlp", "vilt by peft", "vilt in full")
GROUPED = [name for name in CASES if name not in WHOLE]


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_gradients_are_those_of_each_client_alone(name: str) -> None:
    module, trained, batches = built(name)
    expected = alone(module, trained, batches)
    leaves = {n: t.clone().requires_grad_() for n, t in trained.items()}
    flat = {n: t.flatten(0, 1) for n, t in batches.items()}
    with grouped(owners(module, tuple(trained))):
        loss = total(module, leaves, flat, KEYS, CLIENTS)
    found = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True))
    for tensor in trained:
        wanted = torch.stack([e[tensor] for e in expected])
        assert near(found[tensor], wanted), tensor
