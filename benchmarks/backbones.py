"""`python -m benchmarks.backbones`: training steps of every backbone at full size on one GPU, in float32 and bf16.

Weights and inputs are drawn from a seed, shapes and batch sizes are those of the papers (`BACKBONES`). A step is a pass
in training mode, cross-entropy against random targets, a gradient and AdamW over all that the model trains, written out
plainly: no captured program, no federation. Results go to benchmarks/latest_backbones.json.
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
WARM, TIMED = 2, 5  # steps: kernels are compiled and algorithms chosen in the first
PIECES = 200  # every vocabulary has as many
QUESTIONS, DIGITS = Task(0, 100, (3, 224, 224)), Task(0, 62, (1, 28, 28))
HEADS = {"answers": HeadSpec(classes=100)}


def call(module: nn.Module, inputs: Batch) -> Outputs:
    """The usual pass."""
    found: Outputs = module(**inputs)
    return found


@dataclass(frozen=True)
class Backbone:
    """A model, its batch, and what it reads: `inputs(draw, B)`."""

    model: Any
    batch: int  # B
    inputs: Callable[[Draw, int], Batch]
    rate: float = 1e-4
    task: Task = QUESTIONS
    classes: int | None = None  # targets are drawn below it; None: they are the labels that the model reads
    run: Callable[[nn.Module, Batch], Outputs] = call


class Draw:
    """Random inputs from one stream."""

    def __init__(self, device: str, scale: float) -> None:
        self.device, self.scale, self.stream = device, scale, torch.Generator().manual_seed(0)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.stream).to(self.device)

    def pixels(self, batch: int, side: int, wide: int | None = None) -> Tensor:
        """Colour images as bytes."""
        return self.whole(0, 256, batch, 3, side, wide or side).to(torch.uint8)

    def text(self, *shape: int) -> Batch:
        """Pieces, all of them real; the last number of the shape is their count, cut with the scale."""
        shape = (*shape[:-1], max(int(shape[-1] * self.scale), 4))
        return {
            "input_ids": self.whole(4, PIECES, *shape),
            "attention_mask": torch.ones(shape, dtype=torch.int64, device=self.device),
        }


def page(tokens: int, said: int, side: int = 224) -> Callable[[Draw, int], Batch]:
    """Words with places, a picture of the page, an answer."""

    def inputs(draw: Draw, batch: int) -> Batch:
        text = draw.text(batch, tokens)
        places = draw.whole(1, 500, *text["input_ids"].shape, 2)
        return text | {
            "boxes": torch.cat([places, places + 20], -1),
            "labels": draw.whole(4, PIECES, batch, max(int(said * draw.scale), 2)),
            "pixel_values": draw.pixels(batch, side),
        }

    return inputs


def hidden(tokens: int, said: int, side: int = 224) -> Callable[[Draw, int], Batch]:
    """Three tasks of self-pretraining on a page."""

    def inputs(draw: Draw, batch: int) -> Batch:
        flat = page(tokens, said, side)(draw, 3 * batch)
        rows = {name: tensor.unflatten(0, (batch, 3)) for name, tensor in flat.items()}
        return rows | {"labels": rows["labels"].flatten(1), "pixel_values": draw.pixels(batch, side)}

    return inputs


def question(tokens: int, side: int = 384, answer: int = 0) -> Callable[[Draw, int], Batch]:
    """A question about an image, and for a decoder the pieces of one answer."""

    def inputs(draw: Draw, batch: int) -> Batch:
        labels = {"labels": draw.whole(4, PIECES, batch, 1, answer)} if answer else {}
        return draw.text(batch, tokens) | {"pixel_values": draw.pixels(batch, side)} | labels

    return inputs


def word(draw: Draw, batch: int) -> Batch:
    """A picture of a word of 15 letters and its end."""
    return {"pixel_values": draw.pixels(batch, 64, 256), "labels": draw.whole(0, 94, batch, 16)}


def grey(draw: Draw, batch: int) -> Batch:
    """A small grey image."""
    return {"x": draw.whole(0, 256, batch, 1, 28, 28).to(torch.uint8)}


def colour(side: int) -> Callable[[Draw, int], Batch]:
    """A colour image."""
    return lambda draw, batch: {"x": draw.pixels(batch, side)}


BACKBONES = {
    "vt5": Backbone(VT5("base"), 10, page(512, 20)),
    "layout_t5": Backbone(LayoutT5("base"), 16, page(1024, 256)),
    "layout_t5, self-pretraining": Backbone(
        LayoutT5("base", special_tokens=True), 4, hidden(1024, 256), run=MixedModeling().run
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
TINY: dict[str, Callable[[Draw, int], Batch]] = {  # what the tiny sizes read
    "vt5": page(512, 20, 64), "layout_t5": page(1024, 256, 64), "layout_t5, self-pretraining": hidden(1024, 256, 64),
    "vilt": question(40, 32), "vault": question(40, 32), "albef": question(25, 32, 8), "vit": colour(32),
}  # fmt: skip


def tiny(name: str) -> Backbone:
    """The backbone at its tiny size, with two examples, for a machine without a GPU."""
    found = BACKBONES[name]
    small = {"size": "tiny"} if hasattr(found.model, "size") else {}
    return replace(found, model=replace(found.model, **small), batch=2, inputs=TINY.get(name, found.inputs), rate=1e-3)


def measure(backbone: Backbone, precision: str, device: str = "cuda", scale: float = 1.0) -> dict[str, Any]:
    """Train on one batch and say how fast it went, with how much memory, and the loss before every step.

    ClientStore is the most that torch had allocated, weights, optimizer and batch included; without a GPU 0.
    """
    with torch.device(device):  # drawn where they will lie: seconds less for the large ones
        module = replace(backbone.model, precision=precision).build(backbone.task)
    module = module.to(device).train()
    draw = Draw(device, scale)
    inputs = backbone.inputs(draw, backbone.batch)
    target = inputs["labels"] if backbone.classes is None else draw.whole(0, backbone.classes, backbone.batch)
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, backbone.rate)
    losses, started = [], 0.0
    for step in range(WARM + TIMED):
        if step == WARM:
            started = now(device)
        with call_context(ModelCall(dropout_key=torch.tensor(step, device=device))):  # dropout is on
            logits = backbone.run(module, inputs).logits
        loss = functional.cross_entropy(logits.flatten(0, -2), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    seconds = now(device) - started
    return {
        "precision": precision,
        "vectorized": backbone.batch,
        "trained": sum(p.numel() for p in trained),
        "examples_per_second": TIMED * backbone.batch / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        "losses": torch.stack(losses).tolist(),
    }


def now(device: str) -> float:
    """Seconds, when the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backbones", description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=list(BACKBONES), metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU, which say nothing about a GPU")
    parser.add_argument("--out", type=Path, default=LATEST)
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # as a run has it that is not strict
    rows = []
    for name in asked.backbones:
        for precision in PRECISIONS:
            try:
                if asked.tiny:
                    found = measure(tiny(name), precision, "cpu", 0.05)
                else:
                    gc.collect()
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                    found = measure(BACKBONES[name], precision)
            except Exception:
                traceback.print_exc(limit=-4)
                continue
            card = "CPU" if asked.tiny else torch.cuda.get_device_name()
            rows.append({"backbone": name, **found, "gpu": card, "torch": torch.__version__})
            print(
                f"{name:28} {precision:8} B = {found['batch']:3} {found['trained']:11,} trained"
                f" {found['examples_per_second']:8.1f} examples/s {found['peak_bytes'] / 2**30:6.2f} GiB"
                f"  loss {found['losses'][0]:.3f} -> {found['losses'][-1]:.3f}",
                flush=True,
            )
            asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
