"""Write the tables of docs/reference/codecs.md: `python docs/make_codecs.py`; `--check` tests that they are current.

The script imports the simfl of its own repository. Payloads and errors are measured by encoding. Only the times depend
on the machine; `--check` leaves them out.
"""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from simfl.codecs import CODECS  # noqa: E402
from simfl.codecs.base import Codec, MessageContext  # noqa: E402
from simfl.codecs.casts import Float32  # noqa: E402
from simfl.codecs.int8 import Int8  # noqa: E402
from simfl.codecs.nf4 import Nf4  # noqa: E402
from simfl.codecs.sparse import RandomK, TopK  # noqa: E402
from simfl.codecs.svd import Svd  # noqa: E402
from simfl.config.catalogue import ComponentSetting, entry  # noqa: E402
from simfl.config.fields import shown  # noqa: E402
from simfl.models.aster import Aster  # noqa: E402
from simfl.models.base import Model  # noqa: E402
from simfl.models.cnn import Cnn  # noqa: E402
from simfl.models.layout_t5 import LayoutT5  # noqa: E402
from simfl.models.lora import Lora  # noqa: E402
from simfl.models.meta_device import build_on_meta  # noqa: E402
from simfl.models.vt5 import VT5  # noqa: E402
from simfl.protocol import Task  # noqa: E402
from simfl.seeds import rng  # noqa: E402

FILE = ROOT / "docs/reference/codecs.md"
HERE = MessageContext(("docs",))
VARIANTS: dict[str, Codec] = {  # settings to measure, besides the default settings of every codec
    "float32, zstd": Float32(compress="zstd"),
    "int8, per channel": Int8(per="channel"),
    "int8, stochastic": Int8(rounding="stochastic"),
    "int8, zstd": Int8(compress="zstd"),
    "nf4, lz4": Nf4(compress="lz4"),
    "topk 10 %": TopK(keep=0.1),
    "topk 1 %": TopK(keep=0.01),
    "randomk 10 %, seed": RandomK(keep=0.1),
    "randomk 10 %, sent": RandomK(keep=0.1, positions="sent"),
    "svd 95 %": Svd(energy=0.95),
}
MODELS: dict[str, tuple[Model, Task]] = {
    "cnn": (Cnn(), Task(0, 62, (1, 28, 28))),
    "vt5, LoRA r = 6": (VT5("base", adapters=Lora()), Task(0)),
    "aster": (Aster(), Task(0)),
    "aster, hash 1/4": (Aster(encoder="shufflenet", hash="1/4"), Task(0)),
    "layout_t5": (LayoutT5("base"), Task(0)),
}


def _formats() -> dict[str, Codec]:
    """Return every registered codec with its default settings and its variants, in the order of the registry."""
    formats: dict[str, Codec] = {}
    for name, kind in CODECS.items():
        variants = {label: codec for label, codec in VARIANTS.items() if isinstance(codec, kind)}
        if not any("%" in label for label in variants):  # these name their settings
            settings: dict[str, Any] = dict(kind.example)
            formats[name] = kind(**settings)
        formats |= variants
    return formats


FORMATS = _formats()


def main() -> None:
    """Write the page, or with `--check` exit with an error if it is not current."""
    text = document()
    if "--check" in sys.argv:
        current = timeless(FILE.read_text(encoding="utf-8")) == timeless(text)
        sys.exit(0 if current else f"{FILE} is not current; run {Path(__file__).name}")
    FILE.write_text(text, encoding="utf-8")


def timeless(text: str) -> str:
    """Return the text without the cells of times."""
    return re.sub(r"\| \d+ ms \|", "| ms |", text)


def document() -> str:
    """Return the page with new tables."""
    text = FILE.read_text(encoding="utf-8")
    for name, table in (("measured", measured()), ("payloads", payloads()), ("settings", settings())):
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n\n{table}\n\n<!-- /{name} -->{after}"
    return text


def measured() -> str:
    """Return the table of payload, ratio, error and time of each format, for one delta of the cnn's weights."""
    delta = {name: _delta(name, shape) for name, shape in shapes("cnn").items()}
    values = sum(t.numel() for t in delta.values())
    lines = ["| format | bytes | ratio | relative error | time |", "|---|---:|---:|---:|---:|"]
    for name, codec in FORMATS.items():
        length, error, seconds = _measure(codec, delta)
        cells = (name, f"{length:,}", f"{4 * values / length:.1f}", f"{error:.2g}", f"{seconds * 1e3:.0f} ms")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _measure(codec: Codec, delta: dict[str, Tensor]) -> tuple[int, float, float]:
    """Return bytes, relative error, and CPU seconds of encoding and decoding."""
    began, length, lost, norm = time.process_time(), 0, 0.0, 0.0
    for name, tensor in delta.items():
        payload = codec.encode_tensor(tensor, HERE.child(name))
        back = codec.decode_tensor(payload, tuple(tensor.shape), HERE.child(name))
        length += len(payload)
        lost, norm = lost + float((back - tensor).square().sum()), norm + float(tensor.square().sum())
    return length, (lost / norm) ** 0.5, time.process_time() - began


def _delta(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a delta like those of training: matrices of rank 8 plus noise with a hundredth of their energy."""
    draw = rng("docs", name)
    noise = torch.from_numpy(draw.standard_normal(shape))
    if len(shape) < 2:
        return (0.01 * noise).to(torch.float32)
    left, right = draw.standard_normal((shape[0], 8)), draw.standard_normal((8, noise[0].numel()))
    low = torch.from_numpy(left @ right).reshape(shape) / 8**0.5
    return (0.01 * (low + 0.1 * noise)).to(torch.float32)


def payloads() -> str:
    """Return the table of message sizes of each model in each format; the maximum where sizes vary."""
    sizes = {model: shapes(model) for model in MODELS}
    values = {model: sum(torch.Size(s).numel() for s in found.values()) for model, found in sizes.items()}
    heads = [f"{model}<br>{values[model]:,} values" for model in MODELS]
    lines = ["| format | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(MODELS)]
    for name, codec in FORMATS.items():
        cells = []
        for model, found in sizes.items():
            length = sum(codec.size(shape) for shape in found.values())
            most = "" if codec.fixed_size else "at most "
            cells.append(f"{most}{length:,} ({4 * values[model] / length:.1f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a model sends."""
    settings, task = MODELS[model]
    module = build_on_meta(settings, task)
    return {name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}


def settings() -> str:
    """Return the settings of all codecs, then those of each."""
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


def _rows(found: Sequence[ComponentSetting]) -> list[str]:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    plain = [(s.name, shown(s.default).strip("'"), s.meaning.replace("|", "or")) for s in found]
    return [*lines, *(f"| `{name}` | `{default}` | {meaning} |" for name, default, meaning in plain), ""]


if __name__ == "__main__":
    main()
