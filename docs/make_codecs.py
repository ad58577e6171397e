"""Writes the tables of docs/codecs.md: `python docs/make_codecs.py`; with `--check` says if they are current.

Payloads and errors are found out by encoding; only the times depend on the machine, and `--check` leaves them out.
"""

from __future__ import annotations

import inspect
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from simfl.codecs import CODECS
from simfl.codecs.base import Codec, Context
from simfl.codecs.identity import Float32
from simfl.codecs.int8 import Int8
from simfl.codecs.nf4 import Nf4
from simfl.codecs.sign import Sign
from simfl.codecs.sparse import RandomK, TopK
from simfl.codecs.svd import Svd
from simfl.config.catalogue import entry
from simfl.config.fields import shown
from simfl.models.aster import Aster
from simfl.models.base import Model
from simfl.models.cnn import Cnn
from simfl.models.layout_t5 import LayoutT5
from simfl.models.lora import Lora
from simfl.models.meta import sketch
from simfl.models.vt5 import VT5
from simfl.protocol import Task
from simfl.seeds import rng

FILE = Path(__file__).parent / "codecs.md"
HERE = Context(("docs",))
FORMATS: dict[str, Codec] = {
    "float32": Float32(),
    "float32, zstd": Float32(compress="zstd"),
    "bfloat16": CODECS["bfloat16"](),
    "float16": CODECS["float16"](),
    "int8": Int8(),
    "int8, per channel": Int8(per="channel"),
    "int8, stochastic": Int8(rounding="stochastic"),
    "int8, zstd": Int8(compress="zstd"),
    "nf4": Nf4(),
    "nf4, lz4": Nf4(compress="lz4"),
    "sign": Sign(),
    "topk 10 %": TopK(keep=0.1),
    "topk 1 %": TopK(keep=0.01),
    "randomk 10 %, seed": RandomK(keep=0.1),
    "randomk 10 %, paid": RandomK(keep=0.1, places="paid"),
    "svd 95 %": Svd(energy=0.95),
}
MODELS: dict[str, tuple[Model, Task]] = {
    "cnn": (Cnn(), Task(0, 62, (1, 28, 28))),
    "vt5, LoRA r = 6": (VT5("base", adapters=Lora()), Task(0)),
    "aster": (Aster(), Task(0)),
    "aster, hash 1/4": (Aster(encoder="shufflenet", hash="1/4"), Task(0)),
    "layout_t5": (LayoutT5("base"), Task(0)),
}


def main() -> None:
    """Write the file, or say whether it is current."""
    text = document()
    if "--check" in sys.argv:
        current = timeless(FILE.read_text(encoding="utf-8")) == timeless(text)
        sys.exit(0 if current else f"{FILE} is not current; run {Path(__file__).name}")
    FILE.write_text(text, encoding="utf-8")


def timeless(text: str) -> str:
    """Without the cells of times."""
    return re.sub(r"\| \d+ ms \|", "| ms |", text)


def document() -> str:
    """The whole text, its tables anew."""
    text = FILE.read_text(encoding="utf-8")
    for name, table in (("measured", measured()), ("payloads", payloads()), ("settings", settings())):
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n\n{table}\n\n<!-- /{name} -->{after}"
    return text


def measured() -> str:
    """Payload, ratio, error and time of each format, for one change of the cnn's weights."""
    change = {name: _change(name, shape) for name, shape in shapes("cnn").items()}
    values = sum(t.numel() for t in change.values())
    lines = ["| format | bytes | ratio | relative error | time |", "|---|---:|---:|---:|---:|"]
    for name, codec in FORMATS.items():
        length, error, seconds = _through(codec, change)
        cells = (name, f"{length:,}", f"{4 * values / length:.1f}", f"{error:.2g}", f"{seconds * 1e3:.0f} ms")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _through(codec: Codec, change: dict[str, Tensor]) -> tuple[int, float, float]:
    """Bytes, relative error and CPU seconds there and back."""
    began, length, lost, norm = time.process_time(), 0, 0.0, 0.0
    for name, tensor in change.items():
        payload = codec.encode_tensor(tensor, HERE.of(name))
        back = codec.decode_tensor(payload, tuple(tensor.shape), HERE.of(name))
        length += len(payload)
        lost, norm = lost + float((back - tensor).square().sum()), norm + float(tensor.square().sum())
    return length, (lost / norm) ** 0.5, time.process_time() - began


def _change(name: str, shape: tuple[int, ...]) -> Tensor:
    """A change as training makes them: matrices of rank 8, a hundredth of their energy in noise of all ranks."""
    draw = rng("docs", name)
    noise = torch.from_numpy(draw.standard_normal(shape))
    if len(shape) < 2:
        return (0.01 * noise).to(torch.float32)
    left, right = draw.standard_normal((shape[0], 8)), draw.standard_normal((8, noise[0].numel()))
    low = torch.from_numpy(left @ right).reshape(shape) / 8**0.5
    return (0.01 * (low + 0.1 * noise)).to(torch.float32)


def payloads() -> str:
    """Bytes of a message in each format, of what each model trains; the most where they vary."""
    sizes = {model: shapes(model) for model in MODELS}
    values = {model: sum(torch.Size(s).numel() for s in found.values()) for model, found in sizes.items()}
    heads = [f"{model}<br>{values[model]:,} values" for model in MODELS]
    lines = ["| format | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(MODELS)]
    for name, codec in FORMATS.items():
        cells = []
        for model, found in sizes.items():
            length = sum(codec.size(shape) for shape in found.values())
            most = "" if codec.fixed else "at most "
            cells.append(f"{most}{length:,} ({4 * values[model] / length:.1f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """The tensors that a model sends."""
    settings, task = MODELS[model]
    module = sketch(settings, task)
    return {name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}


def settings() -> str:
    """Every codec's own settings; those of all codecs first."""
    common = entry("codec", Codec)
    parts = ["### Settings of every codec\n", *_rows(common.settings)]
    known = {setting.name for setting in common.settings}
    for name, kind in CODECS.items():
        found = entry(name, kind)
        paper = (inspect.getdoc(inspect.getmodule(kind)) or "").partition("\n\n")[0].replace("\n", " ")
        parts += [f"### {name}\n", f"{found.summary}\n", f"*{paper.rstrip('.')}.*\n"]
        own = replace(found, settings=tuple(s for s in found.settings if s.name not in known))
        parts += _rows(own.settings) if own.settings else []
    return "\n".join(parts).rstrip("\n")


def _rows(found: tuple) -> list[str]:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    plain = [(s.name, shown(s.default).strip("'"), s.meaning.replace("|", "or")) for s in found]
    return [*lines, *(f"| `{name}` | `{default}` | {meaning} |" for name, default, meaning in plain), ""]


if __name__ == "__main__":
    main()
