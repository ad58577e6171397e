"""Measure training steps of every backbone at full size on one GPU: `python -m benchmarks.backbones`.

Each backbone runs in float32 and in bf16. Weights and inputs are drawn from a seed; shapes and batch sizes are those of
the papers (`BACKBONES`). A step is a forward pass in training mode, cross-entropy against random targets, a backward
pass and a step of AdamW over all trained parameters, without captured programs and without federation. MFU is the share
of the card's bf16 peak, by the formulas of `benchmarks.flops`. Results go to benchmarks/latest_backbones.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import flops
from simfl.models.albef import Albef
from simfl.models.aster import Aster
from simfl.models.call_context import ModelCall, call_context
from simfl.models.cnn import Cnn
from simfl.models.heads import HeadSpec
from simfl.models.layout_t5 import LayoutT5
from simfl.models.mlp import Mlp
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5
from simfl.objectives.self_pretraining import MixedModeling
from simfl.protocol import Batch, Outputs, Task

LATEST = Path(__file__).parent / "latest_backbones.json"
PRECISIONS = ("float32", "bf16")
WARMUP_STEPS, TIMED_STEPS = 2, 5  # the first steps compile kernels and choose algorithms
NUM_TOKENS = 200  # every vocabulary has at least as many
QUESTIONS, DIGITS = Task(0, 100, (3, 224, 224)), Task(0, 62, (1, 28, 28))
HEADS = {"answers": HeadSpec(classes=100)}


def forward(module: nn.Module, inputs: Batch) -> Outputs:
    """Run the forward pass of a module."""
    outputs: Outputs = module(**inputs)
    return outputs


@dataclass(frozen=True)
class Backbone:
    """A model, its batch size and a function that draws its inputs."""

    model: Any  # a `Model` with a precision
    batch: int  # B
    inputs: Callable[[Draw, int], Batch]
    learning_rate: float = 1e-4
    task: Task = QUESTIONS
    classes: int | None = None  # targets are drawn in [0, classes); None: the targets are the labels among the inputs
    run: Callable[[nn.Module, Batch], Outputs] = forward


class Draw:
    """Random inputs from one generator; `scale` shortens texts."""

    def __init__(self, device: str, scale: float) -> None:
        self.device, self.scale, self.generator = device, scale, torch.Generator().manual_seed(0)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator).to(self.device)

    def pixels(self, batch: int, height: int, width: int | None = None) -> Tensor:
        """Draw colour images [B, 3, H, W] of bytes, square by default."""
        return self.integers(0, 256, batch, 3, height, width or height).to(torch.uint8)

    def text(self, *shape: int) -> Batch:
        """Draw token ids without padding; the last number of the shape is their count, which `scale` shortens."""
        shape = (*shape[:-1], max(int(shape[-1] * self.scale), 4))
        return {
            "input_ids": self.integers(4, NUM_TOKENS, *shape),
            "attention_mask": torch.ones(shape, dtype=torch.int64, device=self.device),
        }


def page(tokens: int, answer: int, side: int = 224) -> Callable[[Draw, int], Batch]:
    """Return a function that draws words with boxes, an image of the page and an answer."""

    def inputs(draw: Draw, batch: int) -> Batch:
        text = draw.text(batch, tokens)
        corners = draw.integers(1, 500, *text["input_ids"].shape, 2)
        return text | {
            "boxes": torch.cat([corners, corners + 20], -1),
            "labels": draw.integers(4, NUM_TOKENS, batch, max(int(answer * draw.scale), 2)),
            "pixel_values": draw.pixels(batch, side),
        }

    return inputs


def masked(tokens: int, answer: int, side: int = 224) -> Callable[[Draw, int], Batch]:
    """Return a function that draws the three tasks of self-pretraining on a page."""

    def inputs(draw: Draw, batch: int) -> Batch:
        flat = page(tokens, answer, side)(draw, 3 * batch)
        rows = {name: tensor.unflatten(0, (batch, 3)) for name, tensor in flat.items()}
        return rows | {"labels": rows["labels"].flatten(1), "pixel_values": draw.pixels(batch, side)}

    return inputs


def question(tokens: int, side: int = 384, answer: int = 0) -> Callable[[Draw, int], Batch]:
    """Return a function that draws an image, a question and, for a decoder, the tokens of an answer."""

    def inputs(draw: Draw, batch: int) -> Batch:
        labels = {"labels": draw.integers(4, NUM_TOKENS, batch, 1, answer)} if answer else {}
        return draw.text(batch, tokens) | {"pixel_values": draw.pixels(batch, side)} | labels

    return inputs


def word(draw: Draw, batch: int) -> Batch:
    """Draw an image of a word, with 15 letters and an end symbol."""
    return {"pixel_values": draw.pixels(batch, 64, 256), "labels": draw.integers(0, 94, batch, 16)}


def grey(draw: Draw, batch: int) -> Batch:
    """Draw a small grey image."""
    return {"x": draw.integers(0, 256, batch, 1, 28, 28).to(torch.uint8)}


def colour(side: int) -> Callable[[Draw, int], Batch]:
    """Return a function that draws a colour image."""
    return lambda draw, batch: {"x": draw.pixels(batch, side)}


BACKBONES = {
    "vt5": Backbone(VT5("base"), 10, page(512, 20)),
    "layout_t5": Backbone(LayoutT5("base"), 16, page(1024, 256)),
    "layout_t5, self-pretraining": Backbone(
        LayoutT5("base", special_tokens=True), 4, masked(1024, 256), run=MixedModeling().run
    ),
    "vilt": Backbone(Vilt("base", heads=HEADS), 32, question(40), classes=100),
    "vault": Backbone(Vault("base", heads=HEADS), 32, question(40), classes=100),
    "albef": Backbone(Albef("base"), 32, question(25, answer=8)),
    "vit": Backbone(ViT("base"), 32, colour(224), classes=345, task=Task(0, 345, (3, 224, 224))),
    "aster": Backbone(Aster(), 512, word, 1e-3),
    "aster, ShuffleNetV2": Backbone(Aster(encoder="shufflenet"), 512, word, 1e-3),
    "cnn": Backbone(Cnn(), 20, grey, 1e-3, DIGITS, 62),
    "mlp": Backbone(Mlp(hidden_sizes=(200, 200)), 20, grey, 1e-3, DIGITS, 62),
}
TINY: dict[str, Callable[[Draw, int], Batch]] = {  # inputs of the tiny sizes
    "vt5": page(512, 20, 64), "layout_t5": page(1024, 256, 64), "layout_t5, self-pretraining": masked(1024, 256, 64),
    "vilt": question(40, 32), "vault": question(40, 32), "albef": question(25, 32, 8), "vit": colour(32),
}  # fmt: skip


def tiny(name: str) -> Backbone:
    """Return a backbone at its tiny size with two examples, for a machine without a GPU."""
    found = BACKBONES[name]
    small = {"size": "tiny"} if hasattr(found.model, "size") else {}
    return replace(
        found, model=replace(found.model, **small), batch=2, inputs=TINY.get(name, found.inputs), learning_rate=1e-3
    )


def measure(backbone: Backbone, precision: str, device: str = "cuda", scale: float = 1.0) -> dict[str, Any]:
    """Train on one batch and return the throughput, the peak memory and the loss before every step.

    The peak is what torch allocates for weights, optimizer state and batch; it is 0 without a GPU.
    """
    with torch.device(device):  # draws the weights on the device, which saves seconds for large models
        module = replace(backbone.model, precision=precision).build(backbone.task)
    module = module.to(device).train()
    draw = Draw(device, scale)
    inputs = backbone.inputs(draw, backbone.batch)
    target = inputs["labels"] if backbone.classes is None else draw.integers(0, backbone.classes, backbone.batch)
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, backbone.learning_rate)
    losses, started = [], 0.0
    for step in range(WARMUP_STEPS + TIMED_STEPS):
        if step == WARMUP_STEPS:
            started = synchronized_time(device)
        with call_context(ModelCall(dropout_key=torch.tensor(step, device=device))):  # enables dropout
            logits = backbone.run(module, inputs).logits
        loss = functional.cross_entropy(logits.flatten(0, -2), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    seconds = synchronized_time(device) - started
    cost = flops.of_backbone(backbone.model, inputs, backbone.classes)
    rate = TIMED_STEPS * backbone.batch / seconds
    card = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "precision": precision,
        "mfu": None if cost is None else flops.share(rate * cost, card),
        "batch": backbone.batch,
        "trained": sum(p.numel() for p in trained),
        "examples_per_second": rate,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        "losses": torch.stack(losses).tolist(),
    }


def synchronized_time(device: str) -> float:
    """Wait for the device and return the time in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """Measure all backbones, print the rows and write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backbones", description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=list(BACKBONES), metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU, to test this program")
    parser.add_argument("--out", type=Path, default=LATEST)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # as in a run with `deterministic: false`
    rows = []
    for name in given.backbones:
        for precision in PRECISIONS:
            try:
                if given.tiny:
                    found = measure(tiny(name), precision, "cpu", 0.05)
                else:
                    gc.collect()
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                    found = measure(BACKBONES[name], precision)
            except Exception:
                traceback.print_exc(limit=-4)
                continue
            share = "" if found["mfu"] is None else f"  MFU {100 * found['mfu']:4.1f} %"
            gpu = "CPU" if given.tiny else torch.cuda.get_device_name()
            rows.append({"backbone": name, **found, "gpu": gpu, "torch": torch.__version__})
            print(
                f"{name:28} {precision:8} B = {found['batch']:3} {found['trained']:11,} trained"
                f" {found['examples_per_second']:8.1f} examples/s{share} {found['peak_bytes'] / 2**30:6.2f} GiB"
                f"  loss {found['losses'][0]:.3f} -> {found['losses'][-1]:.3f}",
                flush=True,
            )
            given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
