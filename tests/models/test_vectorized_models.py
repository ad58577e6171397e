"""Gradients of each client alone, under vmap, and grouped over one frozen base are equal, with dropout."""

from __future__ import annotations

import pytest
import torch
from small_vt5 import batch, near, small_vt5
from test_albef import batch as albef_batch
from test_layout_t5 import batch as page_batch
from torch import nn
from torch.func import functional_call
from toy_vqa import batch as vqa_batch

from simfl.models.albef import Albef
from simfl.models.aster import Aster
from simfl.models.base import Model
from simfl.models.bottleneck import Bottleneck
from simfl.models.call_context import ModelCall, call_context
from simfl.models.cnn import Cnn
from simfl.models.grouped_layers import grouped_forward, grouped_layers, grouped_product, ungrouped_params
from simfl.models.layout_t5 import LayoutT5
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.models.partial_tuning import BiasTuning, HeadTuning, LastLayersTuning
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
WORD_BATCHES = {  # images without edges: at the border of two pixels the sampler's gradient jumps
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
    "vault's biases": (Vault(adapters=BiasTuning()), ANSWERS, VILT_BATCHES),
    "vilt with bottlenecks": (Vilt(adapters=Bottleneck()), ANSWERS, VILT_BATCHES),
    "vilt with prompts": (Vilt(adapters=Prompt(), dropout=0.1), ANSWERS, VILT_BATCHES),
    "vilt with lora": (Vilt(adapters=Lora(rank=2, biases=True)), ANSWERS, VILT_BATCHES),
    "vilt's biases": (Vilt(adapters=BiasTuning()), ANSWERS, VILT_BATCHES),
    "vilt's last layer": (Vilt(adapters=LastLayersTuning(1), dropout=0.1), ANSWERS, VILT_BATCHES),
    "vilt's heads": (Vilt(adapters=HeadTuning()), ANSWERS, VILT_BATCHES),
    "vilt by peft": (Vilt(adapters=PeftMethod("ia3", {"feedforward_modules": []})), ANSWERS, VILT_BATCHES),
    "vilt in full": (Vilt(), ANSWERS, VILT_BATCHES),
    "vit with bottlenecks": (ViT(image_size=16, adapters=Bottleneck(), dropout=0.1), IMAGES, IMAGE_BATCHES),
    "vt5 in full": (small_vt5(frozen_dropout=True), Task(1), VT5_BATCHES),
}
ROUNDING = {
    "aster": 1e-3,
    "aster with shufflenet": 1e-3,
    "layout_t5": 1e-4,
}  # rounding moves the sampler; T5 amplifies it


def built(name: str) -> tuple[nn.Module, Weights, Batch]:
    """Return the module in training mode, the stacked trained tensors of different clients, and the batches."""
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
def test_stacked_gradients_equal_those_of_each_client_alone(name: str) -> None:
    module, trained, batches = built(name)
    expected = alone(module, trained, batches)
    stacked = torch.func.vmap(torch.func.grad(lambda w, given, key: total(module, w, given, key, stacked=True)))(
        trained, batches, KEYS
    )
    for tensor in trained:
        wanted = torch.stack([e[tensor] for e in expected])
        assert near(stacked[tensor], wanted, ROUNDING.get(name, 1e-5)), tensor


UNGROUPED = (
    "albef in full",
    "aster",
    "aster with shufflenet",
    "cnn",
    "layout_t5",
    "mlp",
    "vilt by peft",
    "vilt in full",
)
GROUPED = [name for name in CASES if name not in UNGROUPED]


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_gradients_equal_those_of_each_client_alone(name: str) -> None:
    module, trained, batches = built(name)
    expected = alone(module, trained, batches)
    leaves = {n: t.clone().requires_grad_() for n, t in trained.items()}
    flat = {n: t.flatten(0, 1) for n, t in batches.items()}
    with grouped_forward(grouped_layers(module, tuple(trained))):
        loss = total(module, leaves, flat, KEYS, CLIENTS)
    found = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True))
    for tensor in trained:
        wanted = torch.stack([e[tensor] for e in expected])
        assert near(found[tensor], wanted), tensor


FEATURE_CASES = (  # MOON, SP and CRD compare features
    "albef in full", "aster", "aster with shufflenet", "cnn", "layout_t5", "mlp", "vault with bottlenecks",
    "vilt in full", "vit with bottlenecks", "vt5 in full",
)  # fmt: skip


@pytest.mark.parametrize("name", FEATURE_CASES)
def test_features_are_a_vector_for_each_example_with_a_gradient(name: str) -> None:
    model, task, batches = CASES[name]
    module = model.build(task)
    features = functional_call(module, {}, kwargs={key: rows[0] for key, rows in batches.items()}).features
    assert features is not None
    assert features.shape == (len(next(iter(batches.values()))[0]), features.shape[-1])
    assert torch.isfinite(features).all()
    assert not torch.equal(features[0], features[1])  # of two examples
    trained = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(features.square().sum(), trained, allow_unused=True)
    assert any(g is not None and g.abs().sum() > 0 for g in found)


class Linear(nn.Linear):
    """A layer of a user that has the name of one of torch's and computes something else."""

    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["own class", "weight norm"])
def test_a_layer_that_only_resembles_a_known_one_has_no_grouped_form(kind: str) -> None:
    module = nn.Sequential(Linear(3, 2) if kind == "own class" else nn.utils.weight_norm(nn.Linear(3, 2)))
    trained = tuple(name for name, _ in module.named_parameters())
    assert ungrouped_params(module, trained) == list(trained)
    assert grouped_layers(module, trained) == []


@pytest.mark.parametrize("biased", [False, True])
def test_the_gradient_of_a_grouped_product_is_laid_out_like_the_weight(biased: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = [(3, 7, 5), (3, 4, 5)] + [(3, 4)] * biased
    given = [torch.randn(*shape, generator=draw, requires_grad=True) for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in given]
    out = grouped_product(given[0], given[1], given[2] if biased else None)
    right = exact[0] @ exact[1].mT + (exact[2][:, None] if biased else 0.0)
    slope = torch.randn(out.shape, generator=draw)
    found, wanted = torch.autograd.grad(out, given, slope), torch.autograd.grad(right, exact, slope.double())
    assert found[1].is_contiguous()
    for one, other in zip((out, *found), (right, *wanted), strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-5, atol=1e-5)


def test_under_autocast_a_grouped_product_is_one_of_bf16_and_its_gradients_are_float32() -> None:
    x, weight = torch.randn(2, 3, 8, requires_grad=True), torch.randn(2, 4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = grouped_product(x, weight, None)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, torch.bmm(x.bfloat16(), weight.bfloat16().mT))
    assert all(t.dtype == torch.float32 for t in torch.autograd.grad(out.float().sum(), (x, weight)))
