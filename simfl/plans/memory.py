"""Memory of server, workers and clients in bytes, computed on the meta device.

A worker holds the model, the received parts and the training examples once, and per client of a batch its trained
parameters, optimizer and algorithm state, and at most what a training step creates (`simfl.plans.live_memory`):
activations, gradients and temporary tensors. Not counted: pages that several examples share, other splits, workspaces
of kernels, and fragmentation of the allocator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException

from simfl.errors import ConfigError, SimflError
from simfl.parameter_groups import pick
from simfl.plans.live_memory import step_peak
from simfl.plans.messages import PhaseMessages
from simfl.protocol import EXTRA, Batch, ModelInfo, State, Weights
from simfl.run_context import RunContext
from simfl.training.executor import Executor
from simfl.training.forward import model_inputs, run_forward, tensors_from
from simfl.training.model_states import has_states, main_state, state_of, stored_states
from simfl.training.optimizer_step import StackedOptimizer
from simfl.weights import select_names

UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}
CAST_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)  # whose weights autocast copies
MAX_CLIENTS = 1 << 16  # clients per batch


@dataclass(frozen=True)
class MemoryPlan:
    """Memory in bytes."""

    server: int  # driver: model, global state, optimizer state, last broadcast
    client: int  # client state between two updates
    resident: int  # worker without clients
    each: int  # additional memory per client of a batch
    step: int | None  # part of `each` that a training step creates and frees; None if it is not known
    clients_per_batch: int = 1  # with a card, the largest power of two that fits
    card: int | None = None  # memory of a GPU

    @property
    def worker(self) -> int:
        """Memory of a worker with a batch of clients."""
        return self.resident + self.clients_per_batch * self.each

    def json(self) -> dict[str, int]:
        """Return the output of `simfl plan --json`."""
        return {"server": self.server, "worker": self.worker, "client": self.client}


def memory_of(messages: PhaseMessages, context: RunContext, index: int, examples: int, card: int | None) -> MemoryPlan:
    """Return the memory of a phase.

    Args:
        messages: The messages of the phase.
        context: The run on the meta device.
        index: The phase.
        examples: Number of training examples of all clients, which every worker holds.
        card: Memory of a GPU in bytes, to be filled with clients.
    """
    local = LocalTraining(messages, context)
    trained = _bytes(local.start)
    step = local.step()
    each = trained + _bytes_of(local.optimizer) + _bytes_of(messages.state) + (trained if step is None else step)
    resident = _model_bytes(context.module) + (_model_bytes(context.mentor.module) if context.mentor else 0)
    resident += sum(_bytes(tensors) for tensors in messages.received.values()) + local.row() * examples
    fixed = context.experiment.execution.clients_per_batch
    clients_per_batch = _fitting(resident, each, card) if card is not None else fixed if isinstance(fixed, int) else 1
    return MemoryPlan(
        _server(messages, context, index), local.client_state(), resident, each, step, clients_per_batch, card
    )


def card_bytes(text: str) -> int:
    """Parse the memory of a GPU, such as 80GB or 80 GiB; ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = found[2].upper() if found else "?"
    if found is None or unit not in UNITS or not float(found[1]):
        raise ConfigError(f"--card: {text!r} given; allowed: a number with MB, GB, MiB or GiB, such as 80GB")
    return int(float(found[1]) * UNITS[unit])


def _fitting(resident: int, each: int, card: int) -> int:
    """Return the largest power of two of clients that fits; 0 if not even one does."""
    counts = (1 << k for k in range(MAX_CLIENTS.bit_length() - 1, -1, -1))
    return next((count for count in counts if resident + count * each <= card), 0)


def _server(messages: PhaseMessages, context: RunContext, index: int) -> int:
    phase, server = messages.stage.phase, messages.server
    _, moments = phase.server.step(server.weights, server.weights, {})
    earlier = {name for i in range(index) for name in context.parameter_groups(i).shared}
    base = pick(dict(context.module.named_parameters()), sorted(earlier))
    public = {part: messages.received[part] for part in messages.changing}
    held = [base, server.weights, messages.buffers, *server.state.values(), *moments.values(), *public.values()]
    return _model_bytes(context.module) + sum(_bytes(tensors) for tensors in held)


@dataclass(frozen=True)
class LocalTraining:
    """Local training of a client."""

    messages: PhaseMessages
    context: RunContext

    @property
    def start(self) -> Weights:
        """Trained parameters, with the extra parameters of the algorithm."""
        stage, messages = self.messages.stage, self.messages
        mentor = messages.trained if stage.mentor is None else stage.mentor.tensors(stage.mentor.trained)
        facts = ModelInfo(None, dict(mentor), None, messages.trained)
        if stage.phase.algorithm.needs_features:
            outputs, mentor_outputs = Executor(stage).sample_outputs
            facts = replace(facts, outputs=outputs, mentor_outputs=mentor_outputs)
        extras = stage.phase.algorithm.extra_params(facts, messages.received, messages.state, messages.update)
        extra = {f"{EXTRA}/{group}/{name}": t for group, tensors in extras.items() for name, t in tensors.items()}
        return messages.trained | extra

    @property
    def optimizer(self) -> list[State]:
        """Optimizer states after the first step."""
        stage, start, states = self.messages.stage, self.start, list[State]()
        for micro in stage.phase.algorithm.micro_steps():
            if not micro.steps:
                continue
            names = select_names(start, micro.trains, micro.excludes, where="algorithm")
            stacked = {name: torch.empty_like(start[name][None], device="meta") for name in names}
            stepper = StackedOptimizer(stage.phase.local, stacked, [{}])
            stepper.step({name: torch.empty_like(t) for name, t in stacked.items()}, [True], [0.0])
            states += stepper.states()
        return states

    def client_state(self) -> int:
        """Return the bytes of the client state after an update."""
        stage, messages, start = self.messages.stage, self.messages, self.start
        args = (messages.sent, start, messages.received, messages.state, messages.update)
        kept = [
            *stage.phase.algorithm.update_state(*args).values(),
            pick(start, stage.parameter_groups.personal_params),
        ]
        corrected = [part for part in messages.sent if stage.messages.codec("upload", part).error_feedback]
        kept += [messages.sent[part] for part in corrected]
        if stage.keeps_local_model:
            kept.append(pick(start, stage.parameter_groups.shared))
        kept.append(stage.network.tensors(stage.parameter_groups.personal_buffers))
        if has_states(stage):
            main = main_state(stage, messages.received, {})
            forwards = stage.phase.algorithm.forwards().values()
            states = {stage.main_model: main} | {one.model: state_of(stage, one, main, {}) for one in forwards}
            kept += stored_states(stage, states).values()
        if stage.phase.local.keep_optimizer:
            kept += [group for state in self.optimizer for group in state.values()]
        return sum(_bytes(tensors) for tensors in kept)

    def step(self) -> int | None:
        """Return the bytes that a micro-step holds at its peak beyond the weights: activations, gradients, temporaries.

        That of the largest micro-step. None if examples cannot be built from shapes, or the model depends on values.
        """
        for traced in (False, True):
            with suppress(SimflError, NotImplementedError, RuntimeError, DataDependentOutputException):
                return self._step(traced)
        return None

    def _step(self, traced: bool) -> int:
        batch, algorithm = self.batch(), self.messages.stage.phase.algorithm
        return max(self._peak(micro.forwards, batch, traced) for micro in algorithm.micro_steps()) + self._casts()

    def _casts(self) -> int:
        """Return the bytes of the weights that autocast to bfloat16 keeps until the backward pass.

        The device meta has no autocast: activations are planned in float32, which the copies of both kinds come near.
        """
        if getattr(self.context.experiment.model, "precision", "") != "bf16":
            return 0
        layers = (layer for layer in self.context.module.modules() if isinstance(layer, CAST_LAYERS))
        return sum(layer.weight.numel() * torch.bfloat16.itemsize for layer in layers)

    def batch(self) -> Batch:
        """Return a batch of a local step, on the meta device."""
        stage = self.messages.stage
        rows = torch.zeros(stage.phase.local.batch_size, dtype=torch.int64, device="meta")
        return stage.load_examples().take(rows)

    def row(self) -> int:
        """Return the bytes of an example on the device, without tables that several share; 0 if it is not known."""
        try:
            return sum(t.nbytes // max(1, len(t)) for t in self.messages.stage.load_examples().rows.values())
        except (SimflError, NotImplementedError, RuntimeError):
            return 0

    def _peak(self, runs: Iterable[str], batch: Batch, traced: bool) -> int:
        """Return the peak of the forward passes of a micro-step and their backward pass."""
        module = self.messages.stage.network.module
        known = [*module.parameters(), *module.buffers(), *batch.values()]
        return step_peak(self.loss_of(runs, batch), self.leaves, known, traced)

    @property
    def leaves(self) -> Weights:
        """The trained tensors on the meta device."""
        return {name: t.detach().to("meta") for name, t in self.start.items()}

    def loss_of(self, runs: Iterable[str], batch: Batch) -> Callable[[Weights], Tensor]:
        """Return the loss of a micro-step with these forward passes, a function of the trained tensors."""
        stage, messages = self.messages.stage, self.messages

        def loss(leaves: Weights) -> Tensor:
            total = torch.zeros((), device="meta")
            for name in runs:
                forward = stage.phase.algorithm.forwards()[name]
                sources = stage.network_of(forward).sources(forward)
                weights = tensors_from(sources, leaves, messages.received, messages.state)
                out = run_forward(stage, forward, weights, model_inputs(stage, batch), messages.update.key.to("meta"))
                sums, _ = stage.phase.objective.loss(out, batch)
                total = total + sums.sum()
            return total

        return loss


def _model_bytes(module: nn.Module) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


def _bytes(tensors: Weights) -> int:
    return sum(t.nbytes for t in tensors.values())


def _bytes_of(states: State | list[State]) -> int:
    return sum(
        _bytes(group) for state in (states if isinstance(states, list) else [states]) for group in state.values()
    )
