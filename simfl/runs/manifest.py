"""What a run was made of, and whether an experiment is the one that a folder holds."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from simfl import __version__
from simfl.errors import RunError

# settings that change no number, so a resumed run may have others
FREE = ("checkpoint", "tracking", "watchdog_seconds", "evaluate.overlap")
LIBRARIES = ("torch", "numpy", "ray", "transformers", "peft", "pyarrow", "tokenizers")


def refuse_another(folder: Path, experiment_yaml: str) -> None:
    """RunError if the run in a folder is of another experiment, but for what changes no number."""
    before, now = _binding((folder / "experiment.yaml").read_text()), _binding(experiment_yaml)
    for a, b in zip(before + [""] * len(now), now + [""] * len(before), strict=False):
        if a != b:
            raise RunError(f"{folder}: the run there has {a.strip()!r} where this experiment has {b.strip()!r}")


def _binding(experiment_yaml: str) -> list[str]:
    """The lines of an experiment that a resumed run must have in common: all but those that change no number."""
    kept, top = [], ""
    for line in experiment_yaml.splitlines():
        name = line.strip().partition(":")[0]
        if not line.startswith((" ", "-")):
            top = name
        if top not in FREE and f"{top}.{name}" not in FREE:
            kept.append(line)
    return kept


def bound(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an experiment as a mapping."""
    kept = {name: dict(value) if isinstance(value, Mapping) else value for name, value in experiment.items()}
    for path in FREE:
        top, _, name = path.partition(".")
        (kept[top] if name and top in kept else kept).pop(name or top, None)
    return kept


def manifest(identity: Mapping[str, Any], data_sha256: str, partition_sha256: str) -> dict[str, Any]:
    """What the run was made of: versions, hashes, hardware, and what is part of its identity."""
    return {
        "simfl": __version__,
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "gpus": _gpus()},
        "data_sha256": data_sha256,
        "partition_sha256": partition_sha256,
        "identity": dict(identity),
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:  # without Ray, say, runs go on in this process
        return None


def _gpus() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
