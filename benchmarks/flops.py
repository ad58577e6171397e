"""Floating-point operations of a training step by formula, and their share of what a card can do (MFU).

A product of matrices [a, b] and [b, c] counts 2·a·b·c; nothing else counts. Per example, with T tokens of width d and
a feed-forward of width f:

    layer of a transformer      2·T·(4·d² + 2·d·f) + 4·T²·d
    cross-attention to S states 4·T·d² + 4·S·d² + 4·T·S·d
    convolution                 2·(height · width of the output)·(values of a filter)·(filters)
    head over V classes         2·d·V

A trained layer counts three times: forward, gradient of its input, gradient of its weights; the first layer of a
network twice. A frozen layer counts twice where a gradient passes through it (below adapters, whose own products, some
hundredths, are left out), and once where none does (a frozen page reader). Recomputation counts as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from simfl.experiment import Experiment
from simfl.models.albef import SIZES as ALBEF_SIZES
from simfl.models.albef import Albef
from simfl.models.cnn import Cnn
from simfl.models.layout_t5 import SIZES as LAYOUT_SIZES
from simfl.models.layout_t5 import LayoutT5
from simfl.models.mlp import Mlp
from simfl.models.tokenizer import public_tokenizer
from simfl.models.vault import SIZES as VAULT_SIZES
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import SIZES as VIT_SIZES
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5
from simfl.protocol import Batch, MicroStep

PEAKS = {"H100 80GB HBM3": 989e12, "H200": 989e12, "H100 PCIe": 756e12, "A100": 312e12}  # dense bf16, data sheets


@dataclass(frozen=True)
class Forward:
    """Operations of a forward pass of one example.

    Attributes:
        rest: Of the layers through which gradients pass.
        first: Of these, those whose input needs no gradient.
        frozen: Of layers through which no gradient passes.
    """

    rest: float
    first: float = 0.0
    frozen: float = 0.0

    def training(self, adapters: bool = False) -> float:
        """Return the operations of forward and backward pass, where all layers of `rest` are trained or none is."""
        return self.frozen + (2.0 if adapters else 3.0) * self.rest - (0.0 if adapters else self.first)


def layers(count: int, tokens: int, width: int, inner: int) -> float:
    """Count self-attention layers with their feed-forward."""
    return count * (2 * tokens * (4 * width**2 + 2 * width * inner) + 4 * tokens**2 * width)


def cross_attention(count: int, tokens: int, states: int, width: int) -> float:
    """Count layers of cross-attention from tokens to states."""
    return count * (4 * tokens * width**2 + 4 * states * width**2 + 4 * tokens * states * width)


def image_encoder(sizes: dict[str, Any]) -> tuple[Forward, int]:
    """Count a ViT or BEiT with a class token; return also the number of its states."""
    patches = (sizes["image_size"] // sizes["patch_size"]) ** 2
    width = sizes["hidden_size"]
    first = 2 * patches * 3 * sizes["patch_size"] ** 2 * width
    blocks = layers(sizes["num_hidden_layers"], patches + 1, width, sizes["intermediate_size"])
    return Forward(first + blocks, first), patches + 1


def t5(sizes: dict[str, Any], states: int, answer: int) -> float:
    """Count encoder and decoder of a T5, and its head."""
    width, inner, count = sizes["d_model"], sizes["d_ff"], sizes["num_layers"]
    decoder = layers(count, answer, width, inner) + cross_attention(count, answer, states, width)
    return layers(count, states, width, inner) + decoder + 2 * answer * width * sizes["vocab_size"]


def vt5(model: VT5, tokens: int, answer: int, page: bool) -> Forward:
    """Count T5 over text and page, with the frozen page reader."""
    sizes = model._sizes
    width = sizes["d_model"]
    frozen, projection, states = 0.0, 0.0, tokens
    if page:
        reader, patches = image_encoder(sizes["vision"])
        frozen, states = reader.rest, tokens + patches
        projection = 2 * patches * sizes["vision"]["hidden_size"] * width
    return Forward(projection + 2 * tokens * width**2 + t5(sizes, states, answer), projection, frozen)


def layout_t5(model: LayoutT5, tokens: int, answer: int) -> Forward:
    """Count T5 over words and the patches of a page."""
    sizes = LAYOUT_SIZES[model.size] | {"vocab_size": model._rows}
    patches = (sizes["image_size"] // sizes["patch_size"]) ** 2
    first = 2 * patches * 3 * sizes["patch_size"] ** 2 * sizes["d_model"]
    return Forward(first + t5(sizes, tokens + patches, answer), first)


def vault(model: Vault, tokens: int, classes: int) -> Forward:
    """Count BERT over the question, and ViLT."""
    image, text = VAULT_SIZES[model.size]
    reader = vilt(Vilt(model.size if model.size == "tiny" else "base"), tokens, classes)
    assert text["hidden_size"] == image["hidden_size"]
    question = layers(text["num_hidden_layers"], tokens, text["hidden_size"], text["intermediate_size"])
    return Forward(reader.rest + question, reader.first)


def albef(model: Albef, tokens: int, answer: int) -> Forward:
    """Count the image encoder, the question encoder with its fusion layers, and the decoder of one answer."""
    sizes = ALBEF_SIZES[model.size]
    image, patches = image_encoder(sizes)
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    question = layers(sizes["text_layers"], tokens, width, inner)
    question += cross_attention(sizes["text_layers"] - sizes["fusion"], tokens, patches, width)
    decoder = layers(sizes["decoder_layers"], answer, width, inner)
    decoder += cross_attention(sizes["decoder_layers"], answer, tokens, width)
    head = 2 * answer * (width**2 + width * sizes.get("vocab_size", public_tokenizer().get_vocab_size()))
    return Forward(image.rest + question + decoder + head, image.first)


def vit(model: ViT, classes: int) -> Forward:
    """Count the image encoder and its head."""
    sizes = VIT_SIZES[model.size or "tiny"]
    image, _ = image_encoder(dict(sizes))
    return Forward(image.rest + 2 * sizes["hidden_size"] * classes, image.first)


def of_backbone(model: Any, inputs: Batch, classes: int | None) -> float | None:
    """Return the operations of a training step of one example of `benchmarks.backbones`; None without a formula."""
    count = {name: tensor.shape[-1] for name, tensor in inputs.items()}
    if isinstance(model, VT5):
        return vt5(model, count["input_ids"], count["labels"], page=True).training()
    if isinstance(model, LayoutT5):
        tasks = inputs["input_ids"].shape[1] if inputs["input_ids"].dim() == 3 else 1
        return tasks * layout_t5(model, count["input_ids"], count["labels"] // tasks).training()
    if isinstance(model, Albef):
        return albef(model, count["input_ids"], count["labels"]).training()
    if isinstance(model, Vilt):
        return vilt(model, count["input_ids"], classes or 0).training()
    if isinstance(model, Vault):
        return vault(model, count["input_ids"], classes or 0).training()
    return vit(model, classes or 0).training() if isinstance(model, ViT) else None


def vilt(model: Vilt, tokens: int, classes: int) -> Forward:
    """Count ViLT with a pooler and a head of one hidden layer."""
    sizes = model._sizes
    width, patches = sizes["hidden_size"], (sizes["image_size"] // sizes["patch_size"]) ** 2
    first = 2 * patches * 3 * sizes["patch_size"] ** 2 * width
    blocks = layers(sizes["num_hidden_layers"], tokens + patches + 1, width, sizes["intermediate_size"])
    return Forward(first + blocks + 2 * (width**2 + 2 * width**2 + 2 * width * classes), first)


def cnn(model: Cnn, shape: tuple[int, ...], classes: int) -> Forward:
    """Count two 3×3 convolutions, pooling, a dense layer and a head."""
    channels, height, width = shape
    one, two = model.channels
    first = 2 * (height - 2) * (width - 2) * 9 * channels * one
    second = 2 * (height - 4) * (width - 4) * 9 * one * two
    dense = 2 * ((height - 4) // 2) * ((width - 4) // 2) * two * model.hidden
    return Forward(first + second + dense + 2 * model.hidden * classes, first)


def mlp(model: Mlp, values: int, classes: int) -> Forward:
    """Count a perceptron."""
    widths = [values, *model.hidden_sizes, classes]
    products = [2 * a * b for a, b in pairwise(widths)]
    return Forward(sum(products), products[0])


def of_example(experiment: Experiment) -> float:
    """Return the operations of one example in one local step of a work of `gpu_works`."""
    phase, forward = experiment.phases[0], _forward(experiment)
    adapters = getattr(experiment.model, "adapters", None) is not None
    passes = phase.algorithm.forwards()

    def of_micro_step(micro: MicroStep) -> float:
        whole = forward.training(adapters)
        return sum(whole if passes[name].grad else forward.frozen + forward.rest for name in micro.forwards)

    return sum(of_micro_step(micro) for micro in phase.algorithm.micro_steps())


def _forward(experiment: Experiment) -> Forward:
    model, objective, data = experiment.model, experiment.phases[0].objective, experiment.data
    own: Any = objective
    if isinstance(model, VT5):
        return vt5(model, own.length, own.answer, own.page)
    if isinstance(model, Vilt):
        return vilt(model, 40, own.answers)
    shape, classes = tuple(getattr(data, "shape")), int(getattr(data, "classes"))  # noqa: B009
    if isinstance(model, Cnn):
        return cnn(model, shape, classes)
    assert isinstance(model, Mlp)
    return mlp(model, shape[0], classes)


def peak(card: str) -> float | None:
    """Return the operations per second of a card in bf16, or None for one that is not listed."""
    return next((rate for name, rate in PEAKS.items() if name in card), None)


def share(flops_per_second: float, card: str) -> float | None:
    """Return the share of a card's peak, MFU; None for a card that is not listed."""
    known = peak(card)
    return None if known is None else flops_per_second / known
