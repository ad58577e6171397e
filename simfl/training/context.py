"""The data that describes training in one phase: settings, networks, tensor names and message formats.

Shapes in this package: n clients (or privacy units) lie along the first axis of every stacked tensor, written [n, …]; B
is the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from simfl.asynchronous.events import EventSchedule, Pace
from simfl.errors import ConfigError
from simfl.experiment import Phase
from simfl.generators.watched import Generators
from simfl.low_rank import FULL_RANK, LowRankPair
from simfl.models.grouped_layers import GroupedLayers, grouped_layers, ungrouped_params
from simfl.models.module_state import InitialAttributes, ModuleWatch
from simfl.models.placement import home_of
from simfl.parameter_groups import ParameterGroups
from simfl.privacy.mechanism import Mechanism
from simfl.protocol import Batch, Examples, Forward, Task, Weights
from simfl.sampling import sample_clients, sample_in_turns
from simfl.transport.upload import MessageSpec
from simfl.virtual_time.instants import nanoseconds
from simfl.virtual_time.times import ClientTimes

LOCAL = "local"  # the model of a client before its last upload; every algorithm offers it for evaluation

TensorSlot = tuple[dict[str, Tensor | None], str]  # the parameter or buffer table of a layer, and a name in it


class Network:
    """A module, the names of its trained tensors, and access to its tensors by name.

    `swapped` does what `torch.func.functional_call` does, without searching the module at each call.
    """

    def __init__(
        self,
        module: nn.Module,
        trained: tuple[str, ...],
        carried: tuple[str, ...] = (),
        frozen: tuple[str, ...] = (),
        frozen_attributes: tuple[str, ...] = (),
    ) -> None:
        """Store the module and the names of its tensors.

        Args:
            module: The module.
            trained: Parameters that local training changes.
            carried: Further tensors that passes change and that follow the model from step to step.
            frozen: Tensors that passes change and that are reset before each pass.
            frozen_attributes: Attributes of layers that are reset before each pass.
        """
        self.module, self.trained, self.carried, self.frozen = module, trained, carried, frozen
        self._attributes = InitialAttributes(module, frozen_attributes)
        self._watch: ModuleWatch | None = None
        self._slots = _tensor_slots(module)
        self._elsewhere = _elsewhere(module, self._slots)
        parameters = {name for name, _ in module.named_parameters()}
        self._kept_parameters = parameters.intersection((*carried, *frozen))
        self._sources: dict[Forward, dict[str, str]] = {}

    @contextmanager
    def swapped(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Make the module compute with `weights` inside the block; tensors that it does not name stay.

        Each is copied to the device of its layer, if that is another one; gradients return to the tensor given.
        """
        before: list[tuple[dict[str, Tensor | None], str, Tensor | None]] = []
        for name, tensor in weights.items():
            if name in self._elsewhere:
                tensor = tensor.to(self._elsewhere[name])
            for table, attribute in self._slots[name]:
                before.append((table, attribute, table[attribute]))
                table[attribute] = tensor
        try:
            yield
        finally:
            for table, attribute, old in before:
                table[attribute] = old

    def reset(self) -> Weights:
        """Reset the frozen attributes; return copies of the frozen tensors for a pass to change."""
        self._attributes.restore()
        if not self.frozen:
            return {}
        return self.as_registered({name: t.clone() for name, t in self.tensors(self.frozen).items()})

    def watch(self, known: Collection[str]) -> None:
        """Watch the module for changes other than those of `known`, from now on."""
        self._watch = ModuleWatch(self.module, {*known, *self.carried, *self.frozen, *self._attributes.names})

    def late_change(self) -> str:
        """Return the name of what has changed since `watch`, as no step before the run did; empty if nothing has."""
        return self._watch.changed() if self._watch is not None else ""

    def as_registered(self, tensors: Weights) -> Weights:
        """Return tensors in the form in which the module registers them: as parameters, to which passes may assign."""
        if not self._kept_parameters:
            return tensors
        return {
            name: nn.Parameter(t, requires_grad=False) if name in self._kept_parameters else t
            for name, t in tensors.items()
        }

    def tensors(self, names: tuple[str, ...]) -> Weights:
        """Return the module's own tensors, detached; copies on the home device of those on other devices."""
        found: Weights = {}
        for name in names:
            table, attribute = self._slots[name][0]
            tensor = table[attribute]
            assert tensor is not None
            found[name] = tensor.detach().to(home_of(self.module)) if name in self._elsewhere else tensor.detach()
        return found

    def holds(self, name: str, tensor: Tensor) -> bool:
        """Return whether the module's tensor of this name is `tensor` itself."""
        return all(table.get(attribute) is tensor for table, attribute in self._slots[name])

    def replaced(self, tensors: Weights) -> Weights:
        """Return the tensors, detached, that the module holds in place of some of these."""
        return self.tensors(tuple(name for name, t in tensors.items() if not self.holds(name, t)))

    def sources(self, forward: Forward) -> dict[str, str]:
        """Return the source from which a pass reads each trained tensor, such as `received`; see `Forward.sources`."""
        if forward not in self._sources:
            self._sources[forward] = {name: _source(forward, name) for name in self.trained}
        return self._sources[forward]

    @property
    def changes_in_passes(self) -> bool:
        """True if passes change tensors or attributes besides the trained parameters."""
        return bool(self.carried or self.frozen or self._attributes.names)

    @cached_property
    def has_grouped_form(self) -> bool:
        """True if every trained layer can run for several clients at once; see `simfl.models.grouped_layers`."""
        return not ungrouped_params(self.module, self.trained)

    @cached_property
    def grouped_layers(self) -> GroupedLayers:
        """The trained layers that have a grouped form."""
        return grouped_layers(self.module, self.trained)


def _tensor_slots(module: nn.Module) -> dict[str, list[TensorSlot]]:
    """Return all slots of each tensor; a tied tensor has several, under the first of its names."""
    first_names: dict[int, str] = {}
    slots: dict[str, list[TensorSlot]] = {}
    for path, child in module.named_modules():
        for table in (child._parameters, child._buffers):
            for attribute, tensor in table.items():
                if tensor is None:
                    continue
                name = f"{path}.{attribute}" if path else attribute
                first = first_names.setdefault(id(tensor), name)
                slots.setdefault(first, []).append((table, attribute))
    return slots


def _elsewhere(module: nn.Module, slots: Mapping[str, list[TensorSlot]]) -> dict[str, torch.device]:
    """Return the device of each tensor of a module over several devices that is not on its home device."""
    home = home_of(module)
    if home is None:
        return {}
    devices = {name: tensor.device for name, ((table, key), *_) in slots.items() if (tensor := table[key]) is not None}
    return {name: device for name, device in devices.items() if device != home}


def _source(forward: Forward, name: str) -> str:
    return next((source for glob, source in forward.sources if fnmatchcase(name, glob)), "trained")


@dataclass(frozen=True)
class PhaseContext:
    """A phase as a process holds it.

    Attributes:
        phase: Settings of the phase.
        index: Number of the phase, from 0.
        seed: Seed of the experiment.
        task: Facts about the data.
        network: The model and the names of its tensors that this phase trains.
        parameter_groups: Names of the trained, shared and personal tensors and of the buffers.
        load_examples: Returns the training split as the phase's objective encodes it.
        device: Device of the model and the examples.
        num_clients: K, all clients.
        messages: Codecs and byte accounting of the phase's messages.
        mechanism: The privacy mechanism; None without privacy.
        mentor: The experiment's second network; None without one.
        keeps_local_model: Whether clients store their last local model, to be evaluated.
        data_parallel: Number of micro-batches that each local batch is cut into; 1: batches stay whole.
        draws: Names of the random generators from which the first training steps draw.
        pairs: Low-rank pairs among the trained tensors, if the algorithm needs them.
        ranks: Rank of the adapters of each client, int64 [K]; None: all clients have the same.
        times: Virtual times of the clients, on the driver; None without profiles.
    """

    phase: Phase
    index: int
    seed: int
    task: Task
    network: Network
    parameter_groups: ParameterGroups
    load_examples: Callable[[], Examples]
    device: torch.device
    num_clients: int
    messages: MessageSpec
    mechanism: Mechanism | None = None
    mentor: Network | None = None
    keeps_local_model: bool = False
    data_parallel: int = 1
    draws: tuple[str, ...] = ()
    pairs: tuple[LowRankPair, ...] = ()
    ranks: np.ndarray | None = None
    times: ClientTimes | None = None

    def rank_of(self, client: int) -> int:
        """Return the rank of a client's adapters; one that exceeds every adapter where all have the same."""
        return FULL_RANK if self.ranks is None else int(self.ranks[client])

    @cached_property
    def full_length(self) -> int | None:
        """Tokens of the batches of the training split before padding is cut off; None if none is cut."""
        return self.phase.objective.full_length(self.load_examples)

    def cut(self, inputs: Batch) -> tuple[int, int] | None:
        """Return the length of a batch and that before padding was cut off; None if none was."""
        if self.full_length is None:
            return None
        length = self.phase.objective.length_of(inputs)
        return None if length == self.full_length else (length, self.full_length)

    @property
    def changed_base(self) -> tuple[str, ...]:
        """Names of the frozen tensors that the algorithm changes."""
        return tuple(pair.base for pair in self.pairs) if self.phase.algorithm.changes_base else ()

    @property
    def adds_products(self) -> bool:
        """True if the server computes the clients' products of low-rank pairs from their uploads."""
        use = self.phase.algorithm.products()
        return use == "needed" or (use == "logged" and self.mechanism is None and self.messages.secure is None)

    @property
    def has_secure_randomness(self) -> bool:
        """True if random draws come from the operating system, so that no run can repeat them (`privacy.secure`)."""
        return self.mechanism is not None and self.mechanism.privacy.secure

    @property
    def sampling_seed(self) -> int:
        """Seed of the sampling of clients, groups and records; secret where the guarantee rests on it."""
        mechanism = self.mechanism
        return self.seed if mechanism is None or not mechanism.adds_noise else mechanism.sampling_seed(self.seed)

    def sample_clients(self, round: int, repeatable: bool = False) -> list[int]:
        """Return the clients of a round, ascending: a random sample or, with correlated noise, those whose turn it is.

        Clients that stand for those of a larger deployment (`privacy.deployment`) take no turns.

        `repeatable`: also where a run samples from the operating system.
        """
        name = self.sampling_seed, self.index, round
        correlation = None if self.mechanism is None else self.mechanism.correlation
        if correlation is not None and self.mechanism is not None and self.mechanism.privacy.deployment is None:
            return sample_in_turns(self.phase, self.num_clients, *name, correlation.participation.separation)
        return sample_clients(self.phase, self.num_clients, *name, self.has_secure_randomness and not repeatable)

    @cached_property
    def _events(self) -> dict[int, EventSchedule]:
        """Schedules of events by their start."""
        return {}

    def events(self, start: int) -> EventSchedule:
        """Return the schedule of an asynchronous phase that begins at `start`, in nanoseconds of virtual time.

        Raises:
            ConfigError: There are fewer clients than slots or places in the buffer.
        """
        settings = self.phase.asynchronous
        assert settings is not None
        assert self.times is not None, "asynchronous training has profiles"
        if start not in self._events:
            deadline = None if settings.deadline is None else int(nanoseconds(settings.deadline))
            pace = Pace(settings.concurrency, settings.buffer, deadline, settings.max_staleness)
            seed = self.sampling_seed
            try:
                self._events[start] = EventSchedule(pace, self.num_clients, self.times, seed, self.index, start)
            except ConfigError as error:
                raise ConfigError(f"phases.{self.index}.{error}") from None
        return self._events[start]

    @property
    def public_examples(self) -> int | None:
        """Number of examples by which records are sampled, the same for every client; None: that of each client."""
        return None if self.mechanism is None else self.mechanism.privacy.min_examples

    @property
    def has_record_privacy(self) -> bool:
        """True if single examples are the privacy unit."""
        return self.mechanism is not None and self.mechanism.unit == "record"

    @cached_property
    def generators(self) -> Generators:
        """The random generators that the user's code may draw from in this phase."""
        modules = {"model": self.network.module} | ({} if self.mentor is None else {"mentor": self.mentor.module})
        owners = {**modules, "objective": self.phase.objective, "algorithm": self.phase.algorithm}
        return Generators(owners, keyed=bool(self.draws))

    @property
    def main_model(self) -> str:
        """Name of the model that is sent and aggregated; see `Forward.model`."""
        return self.phase.algorithm.eval_models.get("global", Forward()).model

    @property
    def has_model_state(self) -> bool:
        """True if passes of a network change more than its trained parameters, so that clients train one by one."""
        networks = [self.network] + ([self.mentor] if self.mentor is not None else [])
        return any(network.changes_in_passes for network in networks)

    def refuse_late_changes(self) -> None:
        """Raise ConfigError if a client update changed what the steps before the run did not."""
        for network, where in ((self.network, f"phases.{self.index}.buffers"), (self.mentor, "mentor")):
            if network is not None and (name := network.late_change()):
                raise ConfigError(
                    f"{where}: {name} changed in a client update, though not in the steps before the run, and would"
                    " pass from client to client; list it by its name in averaged, personal or frozen"
                )

    def network_of(self, forward: Forward) -> Network:
        """Return the network that a pass runs: the second one for `mentor` passes, if there is one."""
        return self.mentor if forward.mentor and self.mentor is not None else self.network
