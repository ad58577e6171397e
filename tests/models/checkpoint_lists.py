"""The committed lists of official checkpoint names."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from simfl.models import pretrained
from simfl.models.pretrained import Rules, rename

FOLDER = Path(pretrained.__file__).parent / "checkpoint_names"
Shapes = dict[str, tuple[int, ...]]


def official_shapes(checkpoint: str) -> Shapes:
    """Tensors of an official checkpoint, by name."""
    lines = [line for line in (FOLDER / f"{checkpoint}.txt").read_text().splitlines() if not line.startswith("#")]
    pairs = [line.split("\t") for line in lines]
    return {name: tuple(int(n) for n in shape.split("x") if n != "scalar") for name, shape in pairs}


def parameter_shapes(module: nn.Module, *excluded: str) -> Shapes:
    """Parameters of a module, by name, without those that start with `excluded`."""
    return {name: tuple(p.shape) for name, p in module.named_parameters() if not name.startswith(tuple(excluded))}


def renamed_shapes(shapes: Shapes, rules: Rules) -> Shapes:
    """Official tensors under our names."""
    return {ours: shapes[theirs] for theirs, ours in rename(shapes, rules).items()}
