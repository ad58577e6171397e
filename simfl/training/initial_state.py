"""Where visits start: from what they received and what each client remembers, to stacked tensors [n, …]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.protocol import EXTRA, ClientUpdate, ModelInfo, Parts, State, Weights
from simfl.stacking import select_namespace, stack_rows, take_row
from simfl.training.context import PhaseContext


@dataclass(frozen=True)
class InitialState:
    """Where n visits start, from what they received and what each client remembers (`kept`)."""

    stage: PhaseContext
    received: Parts
    visit: ClientUpdate
    kept: list[State]

    @cached_property
    def each(self) -> list[ClientUpdate]:
        """The visits one by one."""
        return [ClientUpdate(*numbers) for numbers in zip(*(t.unbind() for t in self.visit), strict=True)]

    @cached_property
    def states(self) -> list[State]:
        """What each client's algorithm works with."""
        algorithm = self.stage.phase.algorithm
        states = [select_namespace(memory, "algorithm") for memory in self.kept]
        if _own(algorithm, "init_client"):
            states = [
                state or algorithm.init_client(self.received, one) for state, one in zip(states, self.each, strict=True)
            ]
        if _own(algorithm, "prepare_state"):
            states = [
                algorithm.prepare_state(self.received, state, one) for state, one in zip(states, self.each, strict=True)
            ]
        return states

    def weights(self) -> Weights:
        """Every trained tensor and every extra, to be stepped in place."""
        stage, n = self.stage, len(self.kept)
        private = stage.binding.values(stage.roles.personal_params)
        mine = (
            [{**private, **select_namespace(memory, "personal_params").get("weights", {})} for memory in self.kept]
            if private
            else []
        )
        start: Weights = {}
        for name in stage.roles.trained:
            shared = self.received["weights"].get(name)
            start[name] = torch.stack([m[name] for m in mine]) if shared is None else _copies(shared, n)
        if _own(stage.phase.algorithm, "extra_params"):
            start |= stack_rows([self._extras(k, take_row(start, k)) for k in range(n)])
        return start

    def _extras(self, k: int, start: Weights) -> Weights:
        stage = self.stage
        mentor = start if stage.mentor is None else stage.mentor.binding.values(stage.mentor.trained)
        sample, mentor_sample = stage.samples
        facts = ModelInfo(sample, dict(mentor), mentor_sample)
        extras = stage.phase.algorithm.extra_params(facts, self.received, self.states[k], self.each[k])
        return {f"{EXTRA}/{group}/{name}": t for group, tensors in extras.items() for name, t in tensors.items()}

    def buffers(self) -> Weights:
        """Running statistics."""
        if not self.stage.roles.buffers:
            return {}
        general = self.received.get("buffers") or self.stage.binding.values(self.stage.roles.buffers)
        return stack_rows([select_namespace(memory, "buffers").get("weights") or general for memory in self.kept])


def _copies(tensor: Tensor, n: int) -> Tensor:
    """[n, …] of n equal rows."""
    return tensor.expand(n, *tensor.shape).clone(memory_format=torch.contiguous_format)


def _own(algorithm: Algorithm, method: str) -> bool:
    """Whether the algorithm has a method of its own in place of the one that does nothing."""
    return getattr(type(algorithm), method) is not getattr(Algorithm, method)


def on_device(memory: State, device: torch.device) -> State:
    """What a client remembers, on a device."""
    return {group: {name: t.to(device) for name, t in tensors.items()} for group, tensors in memory.items()}
