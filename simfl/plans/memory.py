"""Memory before a run: what server, worker and client hold, in bytes, counted on the meta device.

A worker holds the network and what it received once, and for each client side by side its own trained tensors, their
gradients, optimizer and algorithm state, and what a pass keeps for the gradient. Not counted: the data, and what the
allocator loses between blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simfl.errors import ConfigError, SimflError
from simfl.parameter_groups import pick
from simfl.plans.messages import Messages
from simfl.protocol import EXTRA, Batch, ModelFacts, State, Weights
from simfl.run_context import RunContext
from simfl.training.context import call, inputs_of, tensors_for, with_task
from simfl.training.optimizer_step import StackedOptimizer
from simfl.transport.upload import codec_of
from simfl.weights import select

UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}
WIDEST = 1 << 16  # clients side by side


@dataclass(frozen=True)
class Memory:
    """Bytes. `clients_per_batch`: clients side by side on a worker, as many as fit the card where one is given."""

    server: int  # the driver: network, global state, optimizer, what it made public
    client: int  # what a client remembers between visits
    resident: int  # a worker, before anybody visits
    each: int  # and for each client side by side, besides
    activations: int | None  # of which for the gradient; None where no example could be made up
    clients_per_batch: int = 1
    card: int | None = None

    @property
    def worker(self) -> int:
        return self.resident + self.clients_per_batch * self.each

    def json(self) -> dict[str, int]:
        """As `simfl plan --json` shows it."""
        return {"server": self.server, "worker": self.worker, "client": self.client}


def memory(messages: Messages, setting: RunContext, index: int, card: int | None) -> Memory:
    """The memory of a phase."""
    local = _Local(messages, setting)
    trained = _bytes(local.start)
    activations = local.activations()
    each = 2 * trained + _bytes_of(local.optimizer) + _bytes_of(messages.state) + (activations or 0)
    resident = _network(setting.module) + (_network(setting.mentor.module) if setting.mentor else 0)
    resident += sum(_bytes(tensors) for tensors in messages.received.values())
    fixed = setting.experiment.execution.clients_per_batch
    clients_per_batch = _fitting(resident, each, card) if card is not None else fixed if isinstance(fixed, int) else 1
    return Memory(
        _server(messages, setting, index), local.client_state(), resident, each, activations, clients_per_batch, card
    )


def card_bytes(text: str) -> int:
    """The memory of a GPU, such as 80GB or 80 GiB; ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = found[2].upper() if found else "?"
    if found is None or unit not in UNITS or not float(found[1]):
        raise ConfigError(f"--card: {text!r} given; allowed: a number with MB, GB, MiB or GiB, such as 80GB")
    return int(float(found[1]) * UNITS[unit])


def _fitting(resident: int, each: int, card: int) -> int:
    """The widest cohort, a power of two, that fits; 0 where not even one client does."""
    widths = (1 << k for k in range(WIDEST.bit_length() - 1, -1, -1))
    return next((clients_per_batch for clients_per_batch in widths if resident + clients_per_batch * each <= card), 0)


def _server(messages: Messages, setting: RunContext, index: int) -> int:
    phase, server = messages.stage.phase, messages.server
    _, moments = phase.server.step(server.weights, server.weights, {})
    earlier = {name for i in range(index) for name in setting.roles(i).shared}
    base = pick(dict(setting.module.named_parameters()), sorted(earlier))
    public = {part: messages.received[part] for part in messages.changing}
    held = [base, server.weights, messages.buffers, *server.state.values(), *moments.values(), *public.values()]
    return _network(setting.module) + sum(_bytes(tensors) for tensors in held)


@dataclass(frozen=True)
class _Local:
    """A client at work."""

    messages: Messages
    setting: RunContext

    @property
    def start(self) -> Weights:
        """All it trains: its model, and what its algorithm trains besides."""
        stage, messages = self.messages.stage, self.messages
        mentor = messages.trained if stage.mentor is None else stage.mentor.binding.values(stage.mentor.trained)
        facts = ModelFacts(None, dict(mentor))
        if stage.phase.algorithm.needs_features:
            facts = ModelFacts(stage.samples[0], dict(mentor), stage.samples[1])
        extras = stage.phase.algorithm.extra(facts, messages.received, messages.state, messages.visit)
        more = {f"{EXTRA}/{group}/{name}": t for group, tensors in extras.items() for name, t in tensors.items()}
        return messages.trained | more

    @property
    def optimizer(self) -> list[State]:
        """The optimizers' states after a first step."""
        stage, start, states = self.messages.stage, self.start, list[State]()
        for micro in stage.phase.algorithm.micro_steps():
            if not micro.steps:
                continue
            names = select(start, micro.trains, micro.spares, where="algorithm")
            stacked = {name: torch.empty_like(start[name][None], device="meta") for name in names}
            stepper = StackedOptimizer(stage.phase.local, stacked, [{}])
            stepper.step({name: torch.empty_like(t) for name, t in stacked.items()}, [True], [0.0])
            states += stepper.states()
        return states

    def client_state(self) -> int:
        """What it finds at its next visit."""
        stage, messages, start = self.messages.stage, self.messages, self.start
        args = (messages.sent, start, messages.received, messages.state, messages.visit)
        kept = [*stage.phase.algorithm.update_state(*args).values(), pick(start, stage.roles.personal_params)]
        lost = [part for part in messages.sent if codec_of(stage, "upload", part).error_feedback]
        kept += [messages.sent[part] for part in lost]
        if stage.keep_local:
            kept.append(pick(start, stage.roles.shared))
        if stage.phase.buffers == "local":
            kept.append(stage.binding.values(stage.roles.buffers))
        if stage.phase.local.keep_optimizer:
            kept += [group for state in self.optimizer for group in state.values()]
        return sum(_bytes(tensors) for tensors in kept)

    def activations(self) -> int | None:
        """What the passes of one micro-step keep for the gradient, the most of any.

        None where no example could be made up, or a network of one's own looks at values.
        """
        stage = self.messages.stage
        leaves = {name: t.detach().to("meta").requires_grad_() for name, t in self.start.items()}
        try:
            batch = stage.examples.take(torch.zeros(stage.phase.local.batch_size, dtype=torch.int64, device="meta"))
            most = max(self._kept(micro.runs, leaves, batch) for micro in stage.phase.algorithm.micro_steps())
        except (SimflError, NotImplementedError, RuntimeError):
            return None
        halved = getattr(self.setting.experiment.model, "precision", "") == "bf16"
        return most // 2 if halved else most

    def _kept(self, runs: Iterable[str], leaves: Weights, batch: Batch) -> int:
        stage, messages = self.messages.stage, self.messages
        saved = _Saved([*leaves.values(), *stage.module.parameters()])
        with saved.hooks():
            for name in runs:
                forward = stage.phase.algorithm.forwards()[name]
                weights = tensors_for(stage.sources[name], leaves, messages.received, messages.state)
                out = call(stage, forward, weights, inputs_of(stage, batch), messages.visit.key.to("meta"))
                with_task(stage, out, batch)
        return saved.bytes


class _Saved:
    """Counts what autograd keeps, each piece of memory once, without what is there anyhow."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        self.seen = {t.untyped_storage()._cdata: t for t in known}
        self.bytes = 0

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen[storage._cdata] = tensor  # kept, so that no other takes its address
            self.bytes += storage.nbytes()
        return tensor


def _network(module: nn.Module) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


def _bytes(tensors: Weights) -> int:
    return sum(t.nbytes for t in tensors.values())


def _bytes_of(states: State | list[State]) -> int:
    return sum(
        _bytes(group) for state in (states if isinstance(states, list) else [states]) for group in state.values()
    )
