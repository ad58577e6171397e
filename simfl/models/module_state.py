"""State of a module besides its trained parameters: registered tensors, and values in plain attributes of its layers.

Names are dotted paths: `norm.running_mean` is a buffer, `norm.calls` may be a number that a layer counts.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from simfl.generators.search import GENERATORS, find_generators
from simfl.weights import to_raw_bytes

OWN_ATTRIBUTES = frozenset(vars(nn.Module())) | {
    "forward",
    "dropout_layer",
    "hf_tokenizer",
    "_hf_hook",
    "_old_forward",
    "_output_capturing_hooks_installed",
}  # of every module, what simfl sets, what accelerate sets to divide a model over GPUs, and a mark of transformers
BIG = 1 << 20  # values from which a tensor is summed instead of hashed
HUGE = 1 << 26  # values from which a parameter that is not trained is not copied
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}  # by bytes of a value
DEPTH = 12  # levels of objects within objects that are looked at
SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range)

CREATED = "the first training step creates it; create it when the model is built"
RESHAPED = "a training step changes its shape or dtype"
EVALUATED = "evaluation changes it, so that scores would depend on their order"
BACKWARD = "the backward pass changes it, while state is carried from one forward pass to the next"
OVERWRITTEN = "a training step replaces this trained parameter; list it in frozen, so that no optimizer steps it"
RESET_BY_FREEZING = (EVALUATED,)  # reasons that do not hold for what is reset before each pass

Table = MutableMapping[str, Any]


@dataclass(frozen=True)
class StepEffects:
    """Effects of training steps and an evaluation on a module, by name.

    Attributes:
        tensors: Registered tensors that steps change and that keep shape and dtype, in the module's order.
        counters: Those of `tensors` that are not floating-point.
        attributes: Plain attributes that change and on which later passes depend.
        caches: Further attributes and buffers that change, on which no later pass depends.
        written: Trained parameters that a pass changes in place.
        mixes_examples: Whether results of an example in training depend on the other examples of its batch.
        faults: Names of what cannot be carried from step to step, and the reasons.
        draws: Names of the random generators from which a training step draws.
    """

    tensors: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    mixes_examples: bool = False
    faults: tuple[tuple[str, str], ...] = ()
    draws: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of everything that changes and on which later passes depend."""
        return (*self.tensors, *self.attributes, *self.written)


def registered(module: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer by name; a tied tensor has the first of its names."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def attribute_names(module: nn.Module) -> list[str]:
    """Return the names of all plain attributes of a module's layers."""
    layers = module.named_modules()
    return [
        f"{path}.{name}" if path else name
        for path, layer in layers
        for name in vars(layer)
        if name not in OWN_ATTRIBUTES
    ]


def tensors_elsewhere(module: nn.Module, device: torch.device) -> list[str]:
    """Return the names of plain attributes whose tensors are not on `device`, as `module.to` does not move them."""
    return [
        f"{path}{name}"
        for path, table in _tables(module)
        for name, value in table.items()
        if isinstance(value, Tensor) and value.device.type not in (device.type, "meta")
    ]


def digests(module: nn.Module, skipped: Collection[str] = ()) -> dict[str, str]:
    """Return a digest of every registered tensor and of every plain attribute, by name, without those `skipped`.

    Equal digests mean equal values. Functions count by what their closures hold, other objects by their attributes.
    """
    reader = _Reader(module)
    return {
        f"{path}{name}": reader.digest(value)
        for path, table in _tables(module)
        for name, value in table.items()
        if f"{path}{name}" not in skipped
    }


def _tables(module: nn.Module) -> Iterator[tuple[str, Table]]:
    """Yield the parameters, the buffers and the plain attributes of every layer, with the prefix of their names."""
    for path, child in module.named_modules():
        prefix = f"{path}." if path else ""
        yield prefix, child._parameters
        yield prefix, child._buffers
        yield prefix, {name: value for name, value in vars(child).items() if name not in OWN_ATTRIBUTES}


class _Reader:
    """Reads values into digests; an object that several attributes share is read under each of them."""

    def __init__(self, module: nn.Module) -> None:
        self.layers = {id(child) for child in module.modules()}

    def digest(self, value: object) -> str:
        """Return the digest of a value."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self._parts(value, DEPTH, set()):
            digest.update(part)
        return digest.hexdigest()

    def _parts(self, value: object, depth: int, open_objects: set[int]) -> Iterator[bytes]:
        """Yield the bytes that describe a value."""
        yield type(value).__qualname__.encode()
        if isinstance(value, SCALARS):
            yield repr(value).encode()
        elif isinstance(value, Tensor):
            yield from _tensor_parts(value)
        elif isinstance(value, np.ndarray):
            yield repr((value.dtype, value.shape)).encode()
            yield value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
        elif depth and id(value) not in self.layers and id(value) not in open_objects:
            for name, one in _members(value):
                yield name.encode()
                yield from self._parts(one, depth - 1, open_objects | {id(value)})


def _tensor_parts(tensor: Tensor) -> Iterator[bytes]:
    yield repr((tensor.dtype, tuple(tensor.shape), tensor.layout)).encode()
    if isinstance(tensor, UninitializedTensorMixin) or tensor.is_meta or tensor.layout != torch.strided:
        return
    if tensor.numel() < BIG:
        yield to_raw_bytes(tensor).tobytes()
    else:
        bits = tensor.detach().contiguous().reshape(-1).view(BITS[tensor.element_size()])
        yield repr([part.sum(dtype=torch.int64).item() for part in (bits, bits[::3], bits[::7])]).encode()


def _members(value: object) -> Iterator[tuple[str, object]]:
    """Yield the values that an object consists of, with a name for each."""
    if isinstance(value, Mapping):
        yield from ((repr(key) if isinstance(key, SCALARS) else "", one) for key, one in value.items())
    elif isinstance(value, (list, tuple, deque)):
        yield from (("", one) for one in value)
    elif isinstance(value, (set, frozenset)):
        yield "", sorted(map(repr, value))
    elif isinstance(value, (FunctionType, MethodType)):
        function = value.__func__ if isinstance(value, MethodType) else value
        yield from (("", cell.cell_contents) for cell in getattr(function, "__closure__", None) or () if _is_set(cell))
    elif isinstance(value, partial):
        yield from (("", one) for one in (value.func, value.args, value.keywords))
    elif not isinstance(value, (type, ModuleType, *GENERATORS)):  # generators are seeded before each pass
        yield from _attributes(value)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object; of one that has none, its text, unless that is its address alone."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in slots}}
    yield from found.items()
    if not found and " at 0x" not in (text := repr(value)):
        yield "", text


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


class ModuleSnapshot:
    """The state of a module at one moment, to which it can return."""

    def __init__(self, module: nn.Module, trained: Collection[str] = ()) -> None:
        """Copy the values of buffers, of parameters other than `trained`, and of plain attributes."""
        self._memo: dict[int, Any] = {id(one): one for one in (*module.modules(), *module.parameters())}
        self._memo |= {id(one): one for one in (*module.buffers(), *(one for _, one in find_generators(module, "")))}
        self._slots: list[tuple[str, Table, dict[str, Any]]] = []
        self._attributes: list[tuple[Table, dict[str, Any]]] = []
        self._values: list[tuple[Tensor, Tensor]] = []
        for path, child in module.named_modules():
            prefix = f"{path}." if path else ""
            self._slots += [(prefix, table, dict(table)) for table in (child._parameters, child._buffers)]
            own = {name: value for name, value in vars(child).items() if name not in OWN_ATTRIBUTES}
            self._attributes.append((vars(child), {name: self._copy(value) for name, value in own.items()}))
        for name, tensor in registered(module).items():
            huge = isinstance(tensor, nn.Parameter) and tensor.numel() >= HUGE
            if name not in trained and not huge and not tensor.is_meta:
                self._values.append((tensor, tensor.detach().clone()))

    def restore(self) -> None:
        """Return the module to this moment."""
        self.restore_tensors()
        self.restore_attributes()

    def restore_tensors(self, only: Collection[str] | None = None) -> None:
        """Return registered tensors to this moment, and their values; those created since are removed.

        `only`: the names of those to return; None: all.
        """
        kept: set[int] = set()
        for prefix, table, before in self._slots:
            if only is None:
                table.clear()
            mine = {name: t for name, t in before.items() if only is None or f"{prefix}{name}" in only}
            table.update(mine)
            kept |= {id(t) for t in mine.values()}
        for tensor, value in self._values:
            if id(tensor) in kept:
                tensor.data.copy_(value)

    def restore_attribute(self, table: Table, name: str, existed: bool) -> None:
        """Return one attribute of a layer, whose attributes are `table`, to this moment."""
        if not existed:
            table.pop(name, None)
            return
        before = next(values for attributes, values in self._attributes if attributes is table)
        table[name] = self._copy(before[name])

    def restore_attributes(self) -> None:
        """Return the plain attributes to this moment; those created since are removed."""
        for table, before in self._attributes:
            for name in [name for name in table if name not in OWN_ATTRIBUTES and name not in before]:
                del table[name]
            table.update({name: self._copy(value) for name, value in before.items()})

    def _copy(self, value: object) -> object:
        if isinstance(value, SCALARS):
            return value
        if isinstance(value, Tensor):
            return self._memo.get(id(value), value.detach().clone().requires_grad_(value.requires_grad))
        try:
            return copy.deepcopy(value, dict(self._memo))
        except Exception:  # of the user's class; the object is kept
            return value


class InitialAttributes:
    """The initial values of some plain attributes of a module's layers, to which they can return."""

    def __init__(self, module: nn.Module, names: Collection[str]) -> None:
        """Copy the values of the attributes `names`, such as `norm.calls`."""
        self.names = tuple(names)
        self._snapshot = ModuleSnapshot(module, registered(module)) if names else None
        self._kept = [(*_owner(module, name), name in digests(module)) for name in names]

    def restore(self) -> None:
        """Return the attributes to their initial values."""
        if self._snapshot is not None:
            for table, name, existed in self._kept:
                self._snapshot.restore_attribute(table, name, existed)


def _owner(module: nn.Module, name: str) -> tuple[Table, str]:
    path, _, attribute = name.rpartition(".")
    return vars(module.get_submodule(path)), attribute


class ModuleWatch:
    """Notices cheaply that a module's own tensors or attributes have changed, which others than those `known` must not.

    Tensors count their changes in place; of attributes, values and lengths are compared. Changes within objects and
    arrays are not noticed.
    """

    def __init__(self, module: nn.Module, known: Collection[str]) -> None:
        """Remember the module's state."""
        self._reader = _Reader(module)
        self._values: list[tuple[str, Table, str, object, object]] = []
        self._sizes: list[tuple[str, Table, int]] = []
        for path, child in module.named_modules():
            prefix = f"{path}." if path else ""
            for table in (child._parameters, child._buffers, vars(child)):
                for name, value in table.items():
                    watched = table is not vars(child) or _is_watched(name, value)
                    if watched and f"{prefix}{name}" not in known:
                        self._values.append((f"{prefix}{name}", table, name, value, _count(value)))
            self._sizes += [(prefix, table, len(table)) for table in (child._parameters, child._buffers)]

    def changed(self) -> str:
        """Return the name of something that has changed, or an empty string."""
        for name, table, key, before, count in self._values:
            now = table.get(key)
            if _count(before) != count or not (now is before or self._are_equal(now, before)):
                return name
        for prefix, table, size in self._sizes:
            if len(table) != size:
                return f"{prefix}{list(table)[-1]}"
        return ""

    def _are_equal(self, now: object, before: object) -> bool:
        """Return whether an object that replaces another has its value, as one that each pass computes again."""
        return type(now) is type(before) and self._reader.digest(now) == self._reader.digest(before)


def _is_watched(name: str, value: object) -> bool:
    return name not in OWN_ATTRIBUTES and isinstance(value, (*SCALARS, Tensor, list, dict, set, deque))


def _count(value: object) -> object:
    if isinstance(value, Tensor):
        return value._version
    return len(value) if isinstance(value, (list, dict, set, deque)) else None
