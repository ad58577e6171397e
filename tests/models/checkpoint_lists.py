"""The committed lists of official checkpoint names."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from simfl.models import pretrained as start
from simfl.models.weight_layouts import Rules, renamed

NAMES = Path(start.__file__).parent / "checkpoint_names"


def listed(name: str) -> dict[str, tuple[int, ...]]:
    """Tensors of a list, by name, with their shapes."""
    lines = [line for line in (NAMES / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]
    pairs = [line.split("\t") for line in lines]
    return {name: tuple(int(n) for n in shape.split("x") if n != "scalar") for name, shape in pairs}


def shapes(module: nn.Module, *without: str) -> dict[str, tuple[int, ...]]:
    """Parameters of a module, by name, with their shapes; those that begin with `without` are left out."""
    return {name: tuple(p.shape) for name, p in module.named_parameters() if not name.startswith(tuple(without))}


def placed(names: dict[str, tuple[int, ...]], rules: Rules) -> dict[str, tuple[int, ...]]:
    """What the list becomes under our names."""
    return {ours: names[theirs] for theirs, ours in renamed(names, rules).items()}
