"""Arithmetic on named tensors: sums in a fixed order, globs over names, hashes, files.

Sums follow one binary tree over positions, whose shape depends only on their number. The sum of an aligned block of 2^k
positions is a node of that tree, so clients can be summed in blocks, on any worker, with bit-identical results.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from simfl.errors import ConfigError

Weights = dict[str, Tensor]
State = dict[str, Weights]

SMALL, MANY = 1 << 16, 16  # most values of a small tensor; least number of small tensors that are packed into one
PACK = "small tensors"  # name of the packed tensor

HALF = (torch.float16, torch.bfloat16)  # dtypes that are summed and normalized in float32
DTYPES = {  # names of dtypes in safetensors files
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def add(a: Weights, b: Weights) -> Weights:
    """Return a + b; both have the same names."""
    assert a.keys() == b.keys(), f"names differ: {sorted(a.keys() ^ b.keys())}"
    return {name: x + b[name] for name, x in a.items()}


def add_into(a: Weights, b: Weights) -> Weights:
    """Add b to a in place and return a; bit-identical to `add`."""
    assert a.keys() == b.keys(), f"names differ: {sorted(a.keys() ^ b.keys())}"
    for name, tensor in a.items():
        tensor += b[name]
    return a


def subtract(a: Weights, b: Weights) -> Weights:
    """Return a − b; both have the same names."""
    assert a.keys() == b.keys(), f"names differ: {sorted(a.keys() ^ b.keys())}"
    return {name: x - b[name] for name, x in a.items()}


def scale(a: Weights, factor: float | Tensor) -> Weights:
    """Return factor · a."""
    return {name: x * factor for name, x in a.items()}


def squared_norm(a: Weights) -> Tensor:
    """Return the sum of all squares, a scalar. Its gradient at zero is 0, where that of `norm` is NaN."""
    squares = [a[name].square().sum() for name in sorted(a)]
    return torch.stack(squares).sum() if squares else torch.zeros(())


def dot(a: Weights, b: Weights) -> Tensor:
    """Return the inner product over the tensors of b, a scalar."""
    products = [(a[name] * x).sum() for name, x in b.items()]
    return torch.stack(products).sum() if products else torch.zeros(())


def norm(a: Weights) -> Tensor:
    """Return the Euclidean norm over all tensors, a scalar."""
    return squared_norm(a).sqrt()


def tree_sum(items: Sequence[Weights | None]) -> Weights | None:
    """Return the sum over positions 0, 1, …, added in pairs (0,1), (2,3), …, then pairs of pairs.

    The last of an odd number is carried to the next level. `None` is an empty position and adds nothing; the sum of
    empty positions alone is `None`.
    """
    level = list(items)
    while len(level) > 1:
        pairs = [_add_present(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0] if level else None


def _add_present(a: Weights | None, b: Weights | None) -> Weights | None:
    if a is None or b is None:
        return b if a is None else a
    return add(a, b)


def pack_small(tensors: Weights) -> Weights:
    """Concatenate the small tensors [n, ...], if there are many, to one [n, ...]: each kernel launch costs time."""
    small = _small(tensors)
    if not small:
        return tensors
    rest = {name: t for name, t in tensors.items() if name not in small}
    return {**rest, PACK: torch.cat([tensors[name].reshape(len(tensors[name]), -1) for name in small], 1)}


def unpack_small(tensors: Weights, like: Weights) -> Weights:
    """Undo `pack_small`, for tensors with the names and shapes of `like`."""
    small = _small(like)
    if not small:
        return tensors
    columns = tensors[PACK].split([like[name].numel() // len(like[name]) for name in small], 1)
    restored = {name: column.reshape(like[name].shape) for name, column in zip(small, columns, strict=True)}
    return {name: restored[name] if name in restored else tensors[name] for name in like}


def _small(tensors: Weights) -> list[str]:
    small = [name for name, t in tensors.items() if t.numel() <= SMALL * len(t) and t.dtype == torch.float32]
    return small if len(small) >= MANY else []


def stack_sum(stacked: Weights) -> Weights:
    """Return the sum over the rows of tensors [n, ...], n ≥ 1, bit-identical to `tree_sum` of the rows."""
    if not any(rows.is_cuda for rows in stacked.values()):
        return {name: _sum_rows(rows) for name, rows in stacked.items()}
    summed = {name: _sum_rows(rows)[None] for name, rows in pack_small(stacked).items()}
    return {name: t[0] for name, t in unpack_small(summed, {name: rows[:1] for name, rows in stacked.items()}).items()}


def _sum_rows(rows: Tensor) -> Tensor:
    last: Tensor | None = None  # the node carried up from a level with an odd number of nodes
    while len(rows) > 1 or (last is not None and len(rows) > 0):
        if len(rows) % 2 == 1:
            last = rows[-1] if last is None else rows[-1] + last
            rows = rows[:-1]
        rows = rows[0::2] + rows[1::2]
    return rows[0] if last is None else last


def select_names(
    names: Iterable[str], include: Iterable[str], exclude: Iterable[str] = (), where: str = "globs"
) -> list[str]:
    """Return the names that match a glob of `include` and none of `exclude`, in the order given.

    `*` matches dots too; case matters. Raises ConfigError, with the nearest name, for a glob that matches no name.
    """
    names, include, exclude = list(names), list(include), list(exclude)
    for glob in include + exclude:
        if not any(fnmatchcase(name, glob) for name in names):
            raise ConfigError(f"{where}: {glob!r} matches no tensor; {_nearest_name(glob, names)}")
    return [name for name in names if _matches(name, include) and not _matches(name, exclude)]


def _matches(name: str, globs: list[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _nearest_name(glob: str, names: list[str]) -> str:
    if not names:
        return "there are no tensors to choose from"
    plain = glob.replace("*", "")
    best = max(names, key=lambda name: SequenceMatcher(None, plain, name, autojunk=False).ratio())
    return f"nearest: {best!r}"


def to_raw_bytes(tensor: Tensor) -> np.ndarray:
    """Return the memory of a tensor of any dtype, shape and device as read-only uint8 [bytes]."""
    flat = tensor.detach().reshape(-1).contiguous()
    dense = flat.as_strided((flat.numel(),), (1,))  # a tensor with at most one value may have any stride
    return dense.view(torch.uint8).cpu().numpy()


def from_raw_bytes(values: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor whose `to_raw_bytes` these are. It shares their memory, and is read-only if they are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        flat = torch.from_numpy(values)
    return flat.as_strided((len(values),), (1,)).view(dtype).reshape(shape)  # an empty tensor may have any stride


def sha256(weights: Weights) -> str:
    """Return a hash of names, dtypes, shapes and raw bytes, in the order of the sorted names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        digest.update(json.dumps([name, dtype, list(tensor.shape)]).encode() + b"\n")
        digest.update(to_raw_bytes(tensor).data)
    return digest.hexdigest()


def flatten(state: State) -> Weights:
    """Flatten groups to the names `group/name`. An empty group becomes the empty tensor `group/`."""
    flat: Weights = {}
    for group, tensors in state.items():
        assert "/" not in group, f"the name of a group contains a slash: {group!r}"
        flat |= {f"{group}/{name}": tensor for name, tensor in tensors.items()}
        if not tensors:
            flat[f"{group}/"] = torch.empty(0, dtype=torch.uint8)
    return flat


def unflatten(flat: Weights) -> State:
    """Undo `flatten`."""
    state: State = {}
    for key, tensor in flat.items():
        group, _, name = key.partition("/")
        tensors = state.setdefault(group, {})
        if name:
            tensors[name] = tensor
    return state


def write_safetensors(weights: Weights, file: BinaryIO) -> None:
    """Stream tensors to a safetensors file; views, tied and device tensors are stored as independent tensors.

    The library's own writer takes only a path, so its file cannot be synced to disk through a handle.
    """
    header: dict[str, object] = {"__metadata__": {"order": json.dumps(list(weights))}}
    end = 0
    order = sorted(weights, key=lambda name: (-weights[name].element_size(), name))  # keeps every tensor aligned
    for name in order:
        tensor = weights[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(to_raw_bytes(weights[name]).data)


def load_safetensors(path: Path) -> Weights:
    """Return the tensors of a safetensors file on the CPU, in the order they were written; else sorted by name.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            order = json.loads((file.metadata() or {}).get("order", "null"))
            return {name: file.get_tensor(name) for name in order or sorted(file.keys())}
    except (SafetensorError, AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: not a complete safetensors file: {error}") from error


def parse_safetensors(content: bytes) -> Weights:
    """Return the tensors in bytes that `write_safetensors` wrote, on the CPU and in the order they were written.

    Raises:
        ValueError: The bytes are damaged.
    """
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        tensors = load(content)
        return {name: tensors[name] for name in json.loads(header["__metadata__"]["order"])}
    except (SafetensorError, AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"not complete safetensors: {error}") from error
