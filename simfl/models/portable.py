"""Copies of modules and their pickles, also of those that torch refuses to copy or to pickle.

`torch.nn.utils.parametrize` gives every parametrized layer a class of its own, whose instances torch does not pickle;
they travel to Ray workers as their original class and the names of their parametrizations. `torch.nn.utils.weight_norm`
keeps a computed weight as a plain attribute, which `copy.deepcopy` refuses; it is computed again in every pass.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from simfl.errors import ConfigError


def copied(module: nn.Module) -> nn.Module:
    """Return an independent copy of a module."""
    computed = (value for layer in module.modules() for value in vars(layer).values() if _is_computed(value))
    return copy.deepcopy(module, {id(value): value.detach().clone() for value in computed})


def _is_computed(value: object) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def make_picklable(module: nn.Module) -> None:
    """Let the parametrized layers of a module be pickled."""
    for layer in module.modules():
        if parametrize.is_parametrized(layer):
            copyreg.pickle(type(layer), _reduce)


def _reduce(layer: Any) -> tuple[Any, ...]:
    return _rebuild, (type(layer).__mro__[1], list(layer.parametrizations)), vars(layer)


def _rebuild(base: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return an empty layer of class `base`, whose tensors of these names are parametrized."""
    layer = base.__new__(base)
    parametrize._inject_new_class(layer)
    for name in names:
        parametrize._inject_property(layer, name)
    copyreg.pickle(type(layer), _reduce)
    return layer


def refuse_lazy(module: nn.Module) -> None:
    """Raise ConfigError for a tensor that has no shape before the first pass, as those of `nn.LazyLinear`."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(
                f"model.of: {name} has no shape before the first pass; run the module once, or give the layer its sizes"
            )
