"""Tensors put in the place of a module's own for the length of a pass.

What `torch.func.functional_call` does, without its search at each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from simfl.protocol import Weights


class Binding:
    """Where each named tensor of a module hangs, aliases of tied tensors included."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        owner: dict[int, str] = {}
        self.places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        for path, child in module.named_modules():
            for table in (child._parameters, child._buffers):
                for attribute, tensor in table.items():
                    if tensor is None:
                        continue
                    name = f"{path}.{attribute}" if path else attribute
                    first = owner.setdefault(id(tensor), name)
                    self.places.setdefault(first, []).append((table, attribute))

    @contextmanager
    def swapped(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside the block the module computes with `weights`; tensors it does not name stay."""
        before = []
        for name, tensor in weights.items():
            for table, attribute in self.places[name]:
                before.append((table, attribute, table[attribute]))
                table[attribute] = tensor
        try:
            yield
        finally:
            for table, attribute, tensor in before:
                table[attribute] = tensor

    def values(self, names: list[str] | tuple[str, ...]) -> Weights:
        """The module's own tensors, detached."""
        return {name: self.places[name][0][0][self.places[name][0][1]].detach() for name in names}
