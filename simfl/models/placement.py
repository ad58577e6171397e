"""Layers of a model over several GPUs, one after the other, by accelerate's means.

A pass of the model moves its activations from device to device; inputs, results, trained tensors and optimizers stay on
the first one (the home device). Adapters are copied to the device of their layer in each pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from simfl.errors import ConfigError

HOME = "simfl_home"  # attribute of a module over several devices
WHOLE = "_no_split_modules"  # attribute of a model of transformers: classes of layers that stay on one device


def check_divisible(module: nn.Module, count: int) -> None:
    """Raise ConfigError if the layers of a module cannot be divided over `count` devices."""
    if count == 1:
        return
    where = f"execution.model_parallel: {count}"
    if not whole_layers(module):
        raise ConfigError(
            f"{where}, but {type(module).__name__} does not name the layers that stay whole (`{WHOLE}`, as models of"
            " transformers do); allowed: 1"
        )
    layers = sum(type(layer).__name__ in whole_layers(module) for layer in module.modules())
    if layers < count:
        raise ConfigError(f"{where}, but {type(module).__name__} has {layers} layers; allowed: at most {layers}")


def whole_layers(module: nn.Module) -> tuple[str, ...]:
    """Return the class names of the layers that stay on one device: those of the model and of its parts."""
    found = (getattr(layer, WHOLE, None) or () for layer in module.modules())
    return tuple(dict.fromkeys(name for names in found for name in names))


def local_gpus(count: int) -> tuple[torch.device, ...]:
    """Return the first GPUs of this process; ConfigError if it sees fewer."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if visible < count:
        raise ConfigError(
            f"execution.model_parallel: {count}, but a worker of this machine has {visible} GPUs; allowed: 1"
            + (f" to {visible}" if visible > 1 else "")
        )
    return tuple(torch.device("cuda", index) for index in range(count))


def device_map(module: nn.Module, count: int) -> dict[str, int]:
    """Return the number of the device of each part of a module, such that all devices hold about as many bytes."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    check_divisible(module, count)
    total = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    whole: Any = list(whole_layers(module))
    # accelerate leaves room for the largest layer on each device; twice the model lets all of it fit
    memory = get_balanced_memory(module, dict.fromkeys(range(count), 2 * total), no_split_module_classes=whole)
    memory = {number: size for number, size in memory.items() if number != "cpu"}
    found: dict[str, int] = infer_auto_device_map(module, memory, no_split_module_classes=whole)
    return found


def place(module: nn.Module, devices: Sequence[torch.device]) -> nn.Module:
    """Divide the layers of a module over devices and return it; the first one takes inputs and returns results."""
    from accelerate import dispatch_model

    places = {name: devices[number] for name, number in device_map(module, len(devices)).items()}
    kept: Any = getattr(module, "_skip_keys_device_placement", None)  # caches of keys and values stay with their layers
    dispatch_model(module, places, main_device=devices[0], skip_keys=kept, force_hooks=True)
    setattr(module, HOME, devices[0])
    return module


def home_of(module: nn.Module) -> torch.device | None:
    """Return the device of inputs and results of a module over several devices; None for other modules."""
    found: torch.device | None = getattr(module, HOME, None)
    return found
