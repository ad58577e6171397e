"""Transforms of training examples, with draws keyed by client, round, epoch and example.

An example is transformed when its batch is taken, alone and on the CPU, so its values depend neither on the examples
around it nor on the execution mode, the worker, or the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simfl.data.io.own_items import described_error
from simfl.errors import ConfigError
from simfl.experiment import Phase
from simfl.generators.process import global_states_kept
from simfl.generators.watched import SYSTEM_DRAWS, Generators
from simfl.protocol import Batch, Task

FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers of splitmix64


def example_keys(key: int, rows: np.ndarray) -> np.ndarray:
    """Return the key of each example of a client update: a hash of the update's key, the row, and the epoch.

    Args:
        key: Key of the client update.
        rows: Rows of the training split, int64 [steps, B]; −1 is padding.

    Returns:
        int64 like `rows`, at least 0. The epoch is the number of times that the row occurred in earlier steps.
    """
    flat = rows.reshape(-1)
    order = np.argsort(flat, kind="stable")
    is_first = np.r_[True, flat[order][1:] != flat[order][:-1]]
    epochs = np.empty(len(flat), np.uint64)
    epochs[order] = np.arange(len(flat)) - np.maximum.accumulate(np.where(is_first, np.arange(len(flat)), 0))
    mixed = _mix(_mix(np.uint64(key) + flat.astype(np.uint64)) + epochs)
    return (mixed >> np.uint64(1)).astype(np.int64).reshape(rows.shape)


def _mix(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64 to uint64 numbers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


class Augmentation:
    """A transform of a phase, applied to batches."""

    def __init__(
        self, function: Callable[[Any], Any], inputs: Sequence[str], shape: tuple[int, ...] | None, where: str
    ) -> None:
        """Store the transform.

        Args:
            function: Takes one example and returns it transformed.
            inputs: Names of the model's inputs.
            shape: Shape of one example's `x`, which the encoding may have flattened.
            where: The setting, for error messages.
        """
        self.function, self.inputs, self.shape, self.where = function, inputs, shape, where
        self.generators = Generators({"transform": function})

    def apply(self, batch: Batch, rows: Tensor, keys: np.ndarray) -> Batch:
        """Return the batch with each example transformed; padding does not change.

        Args:
            batch: Examples [*rows.shape, …].
            rows: Rows of the training split; −1 is padding.
            keys: Key of each example, int64 like `rows`.

        Raises:
            ConfigError: The transform returns other names, shapes or types.
        """
        names = [name for name in self.inputs if name in batch]
        flat = {name: batch[name].flatten(0, rows.dim() - 1).cpu().clone() for name in names}
        for i, (row, key) in enumerate(zip(rows.reshape(-1).tolist(), keys.reshape(-1).tolist(), strict=True)):
            if row >= 0:
                self.generators.seed(key)
                for name, value in self._transformed({name: t[i] for name, t in flat.items()}, row).items():
                    flat[name][i] = value
        moved = {name: t.to(batch[name].device).reshape(batch[name].shape) for name, t in flat.items()}
        return {**batch, **moved}

    def check(self, batch: Batch) -> None:
        """Transform the first example of a batch.

        Raises:
            ConfigError: The transform fails, returns anything but such an example, or draws what no run can repeat.
        """
        first = {name: t[:1] for name, t in batch.items()}
        try:
            with global_states_kept(), self.generators.watched():
                self.apply(first, torch.zeros(1, dtype=torch.int64), np.zeros(1, np.int64))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{self.where}: {described_error(error)}") from error
        if self.generators.has_system_draws:
            raise ConfigError(f"{self.where}: {SYSTEM_DRAWS}")

    def _transformed(self, example: dict[str, Tensor], row: int) -> Mapping[str, Tensor]:
        """Return one transformed example, checked."""
        shaped = {name: self._shaped(t) if name == "x" else t for name, t in example.items()}
        copies = {name: t.clone() for name, t in shaped.items()}
        result = self.function(next(iter(copies.values())) if len(copies) == 1 else copies)
        found = {next(iter(shaped)): result} if len(shaped) == 1 and not isinstance(result, Mapping) else result
        if not isinstance(found, Mapping) or found.keys() != shaped.keys():
            given = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(result).__name__
            raise ConfigError(f"{self.where}: it returns {given}; expected {', '.join(shaped)}")
        return {
            name: self._checked(name, found[name], t, row).reshape(example[name].shape) for name, t in shaped.items()
        }

    def _shaped(self, x: Tensor) -> Tensor:
        """Return `x` in the shape of the data."""
        return x.reshape(self.shape) if self.shape and x.numel() == int(np.prod(self.shape)) else x

    def _checked(self, name: str, value: object, before: Tensor, row: int) -> Tensor:
        """Return a result as a tensor; raise ConfigError where shape or type differ from the example's."""
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        if not isinstance(value, Tensor) or value.shape != before.shape or value.dtype != before.dtype:
            raise ConfigError(
                f"{self.where}: for row {row} it returns {_kind(value)} as {name}; expected {_kind(before)}"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ConfigError(f"{self.where}: for row {row} it returns a number that is not finite")
        return value


def augmentation(phase: Phase, index: int, task: Task) -> Augmentation | None:
    """Return the transform of a phase's training examples; None without one.

    Raises:
        ConfigError: The transform cannot be built.
    """
    if phase.transform is None:
        return None
    where = f"phases.{index}.transform"
    return Augmentation(phase.transform.build(where), phase.objective.inputs, task.shape, where)


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
