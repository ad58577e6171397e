"""Clients of different adapter ranks: those of similar rank train together, with factors cut to the largest among them.

Padding all adapters to the largest rank would spend most of the work on zeros, and a program for each rank would have
too few clients to fill a GPU where ranks are many. Ranks up to 8 form a class, and so do those up to 16, 32, 64, …; the
classes follow from the ranks of all clients, so that a client's tensors have the same shapes in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from simfl.low_rank import rank_axis
from simfl.protocol import ClientUpdate, Parts, State, Weights
from simfl.stacking import StackedParts
from simfl.training.executor import Executor, TrainingInputs, TrainingResult

SMALLEST = 8  # bound of the lowest class: padding to it costs less than a further program
Train = Callable[[Executor, TrainingInputs], TrainingResult]


def train_by_rank(train: Train, executor: Executor, inputs: TrainingInputs) -> TrainingResult:
    """Train n clients, one class of ranks after the other; the result has factors of the full rank again."""
    ranks = executor.context.ranks
    if ranks is None:
        return train(executor, inputs)
    bounds = class_ranks(ranks)
    own = [int(bounds[unit.client]) for unit in inputs.units]
    joined = _Joined(inputs)
    for rank in sorted(set(own)):
        members = [k for k, one in enumerate(own) if one == rank]
        joined.add(train(executor, _cut_inputs(inputs, members, rank)), members)
    return joined.result()


def class_ranks(ranks: np.ndarray) -> np.ndarray:
    """Return the largest rank in the class of each client, int64 [K]."""
    classes = np.ceil(np.log2(np.maximum(ranks, SMALLEST))).astype(np.int64)
    largest = {int(one): int(ranks[classes == one].max()) for one in np.unique(classes)}
    return np.array([largest[int(one)] for one in classes], np.int64)


class _Joined:
    """The results of the classes, put together in the order of the clients.

    Tensors are copied as they arrive, since the next program may use their memory.
    """

    def __init__(self, inputs: TrainingInputs) -> None:
        self.inputs, self.num_clients = inputs, len(inputs.units)
        self.weights, self.state, self.losses = Weights(), State(), Weights()
        self.model_states = list(inputs.model_states)
        self.optimizers: list[list[State]] = [[] for _ in inputs.units]
        self.num_noised_steps = 0
        self.num_zero: Tensor | None = None

    def add(self, found: TrainingResult, members: Sequence[int]) -> None:
        """Add the results of some clients."""
        self._fill(self.weights, found.weights, self.inputs.weights, members)
        for key, group in found.state.items():
            self._fill(self.state.setdefault(key, {}), group, self.inputs.state.get(key, {}), members)
        losses = {"sums": found.loss_sums, "weights": found.loss_weights}
        self._fill(self.losses, losses, {}, members)
        for place, k in enumerate(members):
            if found.model_states:
                self.model_states[k] = found.model_states[place]
            self.optimizers[k] = found.optimizer_states[place :: len(members)]
        self.num_noised_steps = max(self.num_noised_steps, found.num_noised_steps)
        if found.num_zero is not None:
            self.num_zero = found.num_zero if self.num_zero is None else self.num_zero + found.num_zero

    def result(self) -> TrainingResult:
        """Return the result of all clients."""
        return TrainingResult(
            self.weights,
            self.model_states,
            self.losses["sums"],
            self.losses["weights"],
            self.state,
            [states[number] for number in range(len(self.optimizers[0])) for states in self.optimizers],
            self.num_noised_steps,
            self.num_zero,
        )

    def _fill(self, into: Weights, found: Weights, like: Weights, members: Sequence[int]) -> None:
        """Write rows of some clients, with zeros up to the shapes of `like`."""
        for name, tensor in found.items():
            shape = like[name].shape[1:] if name in like else tensor.shape[1:]
            if name not in into:
                into[name] = tensor.new_zeros((self.num_clients, *shape))
            index = torch.tensor(members, device=tensor.device)
            if tensor.shape[1:] != shape:
                padded = tensor.new_zeros((len(members), *shape))
                padded[(slice(None), *map(slice, tensor.shape[1:]))] = tensor
                tensor = padded
            into[name].index_copy_(0, index, tensor)


def _cut_inputs(inputs: TrainingInputs, members: Sequence[int], rank: int) -> TrainingInputs:
    """Return the inputs of some clients, with factors cut to a rank."""
    device = inputs.update.client.device
    index = torch.tensor(members, device=device)
    return replace(
        inputs,
        units=[inputs.units[k] for k in members],
        weights=_rows(inputs.weights, index, rank),
        model_states=[inputs.model_states[k] for k in members] if inputs.model_states else [],
        received=_received(inputs.received, index, rank),
        state={key: _rows(group, index, rank) for key, group in inputs.state.items()},
        update=ClientUpdate(*(t[index] for t in inputs.update)),
        client_states=[inputs.client_states[k] for k in members],
    )


def _received(received: Parts, index: Tensor, rank: int) -> Parts:
    """Return the download of some clients; the same for all, or stacked where they received different versions."""
    if isinstance(received, StackedParts):
        return StackedParts({part: _rows(own, index, rank) for part, own in received.items()})
    return {part: {name: _cut(name, t, rank, 0) for name, t in own.items()} for part, own in received.items()}


def _rows(stacked: Weights, index: Tensor, rank: int) -> Weights:
    return {name: _cut(name, t, rank, 1)[index].contiguous() for name, t in stacked.items()}


def _cut(name: str, tensor: Tensor, rank: int, first: int) -> Tensor:
    """Return a factor cut to a rank; `first`: number of axes before its own."""
    axis = rank_axis(name)
    if axis is None or tensor.dim() <= axis + first or tensor.shape[axis + first] <= rank:
        return tensor
    return tensor.narrow(axis + first, 0, rank).contiguous()
