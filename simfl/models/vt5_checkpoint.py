"""Checkpoints of VT5: a folder with `model.safetensors`, `config.json` and a tokenizer.

Three layouts are read: our own names; those of the competition's published checkpoint (`language_backbone.…`, listed
in `checkpoint_names/`); and a plain T5, which leaves the other tensors at their initial values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import nn

from simfl.errors import ConfigError
from simfl.models.base import tied_names
from simfl.models.pretrained import Rules, check_names, copy_tensors, read_config, read_tensors, rename

if TYPE_CHECKING:
    from simfl.models.vt5_network import VT5Network  # imports transformers, which takes seconds

T5_KEYS = ("d_model", "d_ff", "num_layers", "num_heads", "d_kv", "vocab_size")
VISION_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size",
    "drop_path_rate", "use_absolute_position_embeddings",
)  # fmt: skip
PUBLISHED_RULES = (  # names of the published checkpoint (transformers 4.27) -> ours
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
T5_RULES = (
    (r"^.*\.EncDecAttention\.relative_attention_bias\.weight$", ""),  # in Google's old files; T5 does not use it
    (r"^(shared|encoder|decoder|lm_head)\.", r"t5.\1."),
)
HEAD, WORDS = "t5.lm_head.weight", "t5.shared.weight"


def read_vt5_config(folder: Path) -> dict[str, object]:
    """Return the sizes in `config.json`: T5's, `vision` and `head`; raise ConfigError for a gated T5."""
    found = read_config(folder)
    activation = found.get("feed_forward_proj", "relu")
    if activation != "relu":
        raise ConfigError(f"model.weights: {folder} is a T5 with {activation}; allowed: relu")
    return {key: found[key] for key in (*T5_KEYS, "vision", "head") if key in found}


def rename_vt5(names: Iterable[str]) -> dict[str, str]:
    """Map stored names to our names, by the layout that they have; names that are not needed are left out."""
    names = list(names)
    published = any(name.startswith("language_backbone.") for name in names)
    rules: Rules = PUBLISHED_RULES if published else T5_RULES if "shared.weight" in names else ()
    return rename(names, rules)


def load_vt5(network: nn.Module, folder: Path) -> None:
    """Fill `network` in place; raise ConfigError if a tensor is missing, unknown or of another shape."""
    stored = read_tensors(folder)
    found = {ours: stored[name] for name, ours in rename_vt5(stored).items()}
    known = dict(network.named_parameters())
    if HEAD in known and HEAD not in found and WORDS in found:
        found[HEAD] = found[WORDS]  # tied in the file, untied in the model
    for tied, owner in tied_names(network).items():
        copy = found.pop(tied, None)
        if copy is not None and owner in found and not torch.equal(copy, found[owner]):
            raise ConfigError(f"model.weights: {folder}: {tied} differs from {owner}, to which it is tied")
    plain_t5 = "shared.weight" in stored  # has no page reader and no box tables
    missing = [name for name in known if name not in found and (not plain_t5 or name.startswith("t5."))]
    check_names(missing, [name for name in found if name not in known], str(folder))
    copy_tensors(network, found, str(folder), optional=("*",))


def save_vt5(network: VT5Network, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write a folder that `load_vt5` reads: tensors in `dtype`, sizes, tokenizer. `network` must have no adapters."""
    assert network.tokenizer is not None
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().to("cpu", dtype).contiguous() for name, p in network.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    t5, vision = network.t5.config, network.vision.config
    config: dict[str, object] = {key: getattr(t5, key) for key in T5_KEYS}
    config["head"] = "untied" if HEAD in tensors else "tied"
    config["vision"] = {key: getattr(vision, key) for key in VISION_KEYS}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    network.tokenizer.backend.save(str(folder / "tokenizer.json"))
