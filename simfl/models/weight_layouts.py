"""Checkpoints in other people's names: renamed by rules, checked whole, copied.

Each backbone that reads one has a list of the official names and shapes in `checkpoint_names/`, and a test that every
name of it finds its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simfl.errors import ConfigError

Rules = Iterable[tuple[str, str]]  # a pattern and what takes its place, one after the other; "" is not needed

BERT_NAMES = (  # of BERT checkpoints, with or without heads -> embeddings, layer, pooler, cls (the head over pieces)
    (r"^bert\.", ""),
    (r"^cls\.seq_relationship\..*", ""),
    (r"^(.*\.)?position_ids$", ""),
    (r"^encoder\.layer\.", "layer."),
    (r"\.LayerNorm\.gamma$", ".LayerNorm.weight"),
    (r"\.LayerNorm\.beta$", ".LayerNorm.bias"),
)


def dimensions(folder: Path, keys: Iterable[str], setting: str = "model.weights") -> dict[str, Any]:
    """These keys of `config.json`, those it has; ConfigError, which names `setting`, if there is no such file."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{setting}: {folder} has no config.json")
    found = json.loads(path.read_text())
    return {key: found[key] for key in keys if key in found}


def renamed(names: Iterable[str], rules: Rules) -> dict[str, str]:
    """Names as stored -> our names; one that becomes empty is left out."""
    found = {}
    for name in names:
        ours = name
        for pattern, replacement in rules:
            ours = re.sub(pattern, replacement, ours)
        if ours:
            found[name] = ours
    return found


def fill(network: nn.Module, found: Mapping[str, Tensor], where: str, optional: Iterable[str] = ()) -> None:
    """Copy tensors by our names into `network`, running statistics included.

    ConfigError names what is missing (but for the globs of `optional`, which stay as drawn), unknown or of another
    shape.
    """
    own, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    known = own | buffers
    kept = [n for n in network.state_dict() if n in own or (n in buffers and buffers[n].is_floating_point())]
    missing = [n for n in kept if n not in found and not any(fnmatchcase(n, glob) for glob in optional)]
    unknown = [name for name in found if name not in known]
    if missing or unknown:
        raise ConfigError(
            f"model.weights: {where}: missing {missing[:8] or 'nothing'}, unknown {unknown[:8] or 'nothing'}"
        )
    for name, tensor in found.items():
        if tensor.shape != known[name].shape:
            raise ConfigError(
                f"model.weights: {where}: {name} is {list(tensor.shape)}, the model's is {list(known[name].shape)}"
            )
        known[name].data.copy_(tensor)


def resized_positions(table: Tensor, count: int) -> Tensor:
    """Position vectors [1, 1 + n², D] of a class token and a square grid, for a grid of `count` − 1 cells."""
    if table.shape[1] == count:
        return table
    side, wanted = round((table.shape[1] - 1) ** 0.5), round((count - 1) ** 0.5)
    grid = table[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    grid = functional.interpolate(grid, (wanted, wanted), mode="bicubic", align_corners=False)
    return torch.cat([table[:, :1].float(), grid.flatten(2).transpose(1, 2)], 1)
