"""The data, partition, model and encoded examples of an experiment, as one process holds them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from simfl.data.base import HELD_OUT, TRAIN, Dataset, Split
from simfl.data.partition.holdout import assign
from simfl.data.partition.ranks import by_client, by_column, by_device, by_share, client_values
from simfl.errors import ConfigError, DataError, nearest
from simfl.experiment import Experiment, Phase
from simfl.low_rank import LowRankPair
from simfl.models.base import Model, tied_names
from simfl.models.low_rank import low_rank_pairs
from simfl.models.meta_device import build_on_meta
from simfl.models.module_state import StepEffects, tensors_elsewhere
from simfl.models.placement import check_divisible, local_gpus, place
from simfl.models.versions import check_versions
from simfl.objectives.base import Objective
from simfl.parameter_groups import ATTRIBUTE, ParameterGroups, group_parameters, with_buffers
from simfl.privacy.correlated import Correlation
from simfl.privacy.deployment import deployed_phases
from simfl.privacy.discrete import discrete_noise
from simfl.privacy.mechanism import Mechanism
from simfl.privacy.randomness import Randomness
from simfl.protocol import Batch, Examples, Task, Weights
from simfl.sampling import expected_clients
from simfl.secure_aggregation.channel import DistributedNoise, SecureChannel, mask_note, weighted_parts
from simfl.seeds import rng
from simfl.training.augmentation import augmentation
from simfl.training.context import LOCAL, Network, PhaseContext
from simfl.training.executor import sample_outputs
from simfl.training.step_probe import probe_on_meta, probe_step
from simfl.transport.ledger import TiedWeights
from simfl.transport.low_rank import LowRankMessages
from simfl.transport.upload import MessageSpec
from simfl.virtual_time.profiles import client_devices
from simfl.virtual_time.times import ClientTimes
from simfl.weights import select_names

FEW = 2  # examples of a batch of the probe; more are tried where a model refuses so few
META_ROWS = torch.zeros(FEW, dtype=torch.int64, device="meta")

Value = TypeVar("Value")


@dataclass
class RunContext:
    """The parts of a run that follow from the experiment alone, so that every process builds the same.

    On the device `meta`, networks are names and shapes without memory, and missing weights are not downloaded.

    Attributes:
        experiment: The experiment.
        cache: Folder of built data sets.
        device: Device of model and examples.
        shared: Data and model that consecutive runs of one process share; None: nothing is shared.
    """

    experiment: Experiment
    cache: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shared: dict[str, Any] | None = None
    effects: dict[tuple[object, ...], StepEffects] = field(default_factory=dict)  # of probes; see `_effects`
    known_ranks: dict[int, np.ndarray] = field(default_factory=dict)  # of clients, by phase; see `ranks`
    client_times: dict[int, ClientTimes] = field(default_factory=dict)  # by phase, on the driver; see `plans`
    _noted: set[tuple[str, str]] = field(default_factory=set)  # objectives and splits whose notes were taken
    _notes: list[str] = field(default_factory=list)

    def _share(self, kind: str, key: object, make: Callable[[], Value]) -> Value:
        """Return what `make` returns, or what an earlier run made for an equal key; the newest of each kind is kept."""
        if self.shared is None:
            return make()
        if self.shared.get(kind, (None,))[0] != key:
            self.shared.pop(kind, None)  # freed before the next is made
            self.shared[kind] = (key, make())
        value: Value = self.shared[kind][1]
        return value

    @cached_property
    def dataset(self) -> Dataset:
        """The data set, read or built on first use."""
        return self._share("dataset", repr(self.experiment.data), lambda: self.experiment.data.load(self.cache))

    @cached_property
    def module(self) -> nn.Module:
        """The model, with its initial weights until `overwrite`."""
        model, task = self.experiment.model, self.task
        key = (repr(model), task, str(self.device))
        module, originals = self._share("module", key, lambda: (self._build(model), dict[str, torch.Tensor]()))
        _set_tensors(module, originals)
        self._originals = originals
        return module

    def overwrite(self, weights: Weights) -> None:
        """Write what earlier phases trained into the model; originals are kept if another run may follow."""
        if self.shared is not None:
            own = _tensors(self.module)
            for name in weights.keys() - self._originals.keys():
                self._originals[name] = own[name].detach().clone()
        _set_tensors(self.module, weights)

    @cached_property
    def mentor(self) -> Network | None:
        """The second network; None if the experiment has none. Clients keep its state besides parameters.

        Raises:
            ConfigError: Training changes what no client can keep.
        """
        model = self.experiment.mentor
        if model is None:
            return None
        module = self._build(model)
        names = [name for name, _ in module.named_parameters()]
        frozen = set(select_names(names, model.frozen_params(module), where="mentor"))
        trained = select_names(names, model.trainable_params(module), where="mentor")
        network = Network(module, tuple(name for name in trained if name not in frozen))
        phases = self.experiment.phases
        uses = (one for one in phases if any(forward.mentor for forward in one.algorithm.forwards().values()))
        effects = self._effects("mentor", network, next(uses, phases[0]))
        for name, reason in (*effects.faults, *((name, ATTRIBUTE) for name in effects.attributes)):
            raise ConfigError(f"mentor: {name}: {reason}")
        return Network(module, network.trained, effects.tensors)

    def _build(self, model: Model) -> nn.Module:
        check_versions()
        count = self.experiment.execution.model_parallel
        if self.device.type == "meta":
            module = build_on_meta(model, self.task)
            check_divisible(module, count)
            return module
        module = model.build(self.task)
        if count == 1 or self.device.type == "cpu":  # of a driver, whose workers divide it
            check_divisible(module, count)
            return module.to(self.device)
        return place(module, local_gpus(count))

    @cached_property
    def task(self) -> Task:
        """Facts about the data that models are built from."""
        card: Mapping[str, Any] = self.dataset.card
        shape = tuple(card["shape"]) if card.get("shape") else None
        train, objective = self.dataset.splits.get("train"), self.experiment.phases[0].objective
        if train is not None:
            shape = objective.input_shape(train, shape)
        classes = self.experiment.phases[0].objective.num_classes(card.get("num_classes"))
        return Task(self.experiment.seed, classes, shape)

    @cached_property
    def tied_names(self) -> dict[str, str]:
        """The further names of tied tensors, each with the tensor's own name."""
        return tied_names(self.module)

    def split(self, name: str) -> Split:
        """Return a split by name; the examples of `heldout` are among those of `train`.

        Raises:
            ConfigError: The data set has no such split.
        """
        splits, name = self.dataset.splits, self.stored_split(name)
        if name not in splits:
            raise ConfigError(f"evaluate.splits: {self.dataset.name} has no split {name!r}; {nearest(name, splits)}")
        return splits[name]

    def stored_split(self, name: str) -> str:
        """Return the split of the data set that holds the examples of an evaluated split."""
        return TRAIN if name == HELD_OUT and name not in self.dataset.splits else name

    def examples(self, objective: Objective, split: str) -> Examples:
        """Return a split as the objective encodes it, on the device; encoded once.

        Raises:
            DataError: The split cannot be encoded, or its encoding has numbers that are not finite.
        """
        split = self.stored_split(split)
        key = (repr(objective), split)
        if key not in self._encoded:
            try:
                encoded = objective.encode(self.split(split), self.experiment.model.tokenizer())
                _check_finite(encoded)
            except DataError as error:
                raise DataError(f"data, split {split}: {error}") from error
            self._encoded[key] = encoded.to(self.device)
        if key not in self._noted:
            self._noted.add(key)
            self._notes += [f"data, split {split}: {note}" for note in self._encoded[key].notes]
        return self._encoded[key]

    def new_notes(self) -> tuple[str, ...]:
        """Return the notes of splits that were encoded since the last call."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes

    @cached_property
    def _encoded(self) -> dict[tuple[str, str], Examples]:
        key = (repr(self.experiment.data), repr(self.experiment.model), str(self.device))
        return self._share("examples", key, dict[tuple[str, str], Examples])

    def parameter_groups(self, phase: int) -> ParameterGroups:
        """Return the groups of the model's tensors in a phase.

        Raises:
            ConfigError: A glob matches nothing, or a training step changes what has no owner.
        """
        settings, where = self.experiment.phases[phase], f"phases.{phase}"
        groups = group_parameters(self.experiment.model, self.module, settings, where)
        effects = self._effects("model", Network(self.module, groups.trained), settings)
        return with_buffers(groups, effects, self.module, settings, where)

    def draws(self, phase: int) -> tuple[str, ...]:
        """Return the names of the random generators from which a training step of a phase draws."""
        settings = self.experiment.phases[phase]
        groups = group_parameters(self.experiment.model, self.module, settings, f"phases.{phase}")
        return self._effects("model", Network(self.module, groups.trained), settings).draws

    def _effects(self, kind: str, network: Network, phase: Phase) -> StepEffects:
        """Return what training steps of a phase change in the model or the mentor besides its trained parameters.

        It is probed once, by the driver; workers are given what it found.
        """
        key = (kind, repr(phase.objective), network.trained)
        if key not in self.effects:
            self.effects[key] = self._probe(network, phase)
        return self.effects[key]

    def _probe(self, network: Network, phase: Phase) -> StepEffects:
        objective = phase.objective
        if self.device.type == "meta":
            return probe_on_meta(network, objective, lambda: self.examples(objective, TRAIN).take(META_ROWS))
        for size in sorted({FEW, phase.local.batch_size}):
            try:
                batches = self._first_batches(objective, size)
                return probe_step(network, objective, batches)
            except ConfigError:
                raise
            except Exception:  # the run will fail likewise, with a traceback
                if elsewhere := tensors_elsewhere(network.module, self.device):
                    raise ConfigError(
                        f"model: {elsewhere[0]} is a tensor in a plain attribute, which is not moved to the device"
                        f" {self.device.type}; make it a buffer: self.register_buffer(name, tensor)"
                    ) from None
        return StepEffects()

    def check_transform(self, phase: int) -> None:
        """Transform the first training example once.

        Raises:
            ConfigError: The transform of the phase cannot be built, fails, or returns anything but such an example.
        """
        settings = self.experiment.phases[phase]
        found = augmentation(settings, phase, self.task)
        if found is not None and self.device.type != "meta":
            found.check(self._first_batches(settings.objective, 1)[0])

    def check_features(self, phase: int) -> None:
        """Raise ConfigError if the algorithm of a phase needs features that the model or the mentor does not return."""
        settings = self.experiment.phases[phase]
        if not settings.algorithm.needs_features or self.device.type == "meta":
            return
        try:
            sample_outputs(self.phase_context(phase, 1), self._first_batches(settings.objective, 1)[0])
        except ConfigError:
            raise
        except Exception:  # of the user's code; the run will fail likewise, with a traceback
            return

    def _first_batches(self, objective: Objective, size: int) -> list[Batch]:
        """Return the first two batches of the training split; where it has fewer examples, they share some."""
        split = self.split(TRAIN)
        rows = np.arange(2 * size) % len(split) if len(split) < 2 * size else np.arange(2 * size)
        encoded = objective.encode(split.first(int(rows.max()) + 1), self.experiment.model.tokenizer()).to(self.device)
        halves = torch.from_numpy(rows).to(self.device).split(size)
        return [encoded.take(half) for half in halves]

    def phase_context(
        self, phase: int, num_clients: int, noise_multiplier: float = math.nan, randomness: Randomness | None = None
    ) -> PhaseContext:
        """Return the context of training in a phase. Without a noise multiplier, private updates cannot be released."""
        experiment, settings = self.experiment, self.experiment.phases[phase]
        groups, pairs = self.parameter_groups(phase), self.pairs(phase)
        messages = self._message_spec(phase, num_clients, noise_multiplier, randomness)
        if settings.algorithm.needs_pairs:
            messages = replace(
                messages, low_rank=LowRankMessages(settings.algorithm, pairs, self.ranks(phase, num_clients))
            )
        return PhaseContext(
            phase=settings,
            index=phase,
            seed=experiment.seed,
            task=self.task,
            network=self._network(groups, settings),
            parameter_groups=groups,
            load_examples=partial(self.examples, settings.objective, "train"),
            device=self.device,
            num_clients=num_clients,
            messages=messages,
            mechanism=self._mechanism(phase, num_clients, noise_multiplier, randomness or Randomness.fresh()),
            mentor=self.mentor,
            keeps_local_model=LOCAL in experiment.evaluate.models,
            data_parallel=experiment.execution.data_parallel,
            draws=self.draws(phase),
            pairs=pairs,
            ranks=None if messages.low_rank is None else messages.low_rank.ranks,
            times=self.client_times.get(phase),
        )

    def pairs(self, phase: int) -> tuple[LowRankPair, ...]:
        """Return the low-rank pairs whose factors a phase trains and shares, if its algorithm needs pairs.

        Raises:
            ConfigError: The model has none, a layer's adapter is no plain product, or the algorithm needs products of
                which the phase trains and shares one factor alone.
        """
        algorithm, where = self.experiment.phases[phase].algorithm, f"phases.{phase}"
        if not algorithm.needs_pairs:
            return ()
        found = low_rank_pairs(self.module, f"{where}.algorithm", algorithm.changes_base)
        shared = set(self.parameter_groups(phase).shared)
        for pair in found if algorithm.products() == "needed" else ():
            if len(shared.intersection(pair.names)) == 1:
                (absent,) = set(pair.names) - shared
                raise ConfigError(
                    f"{where}.algorithm: {type(algorithm).__name__} aggregates products B A, but {absent} is frozen or"
                    " personal; allowed with one factor: fedit, ffa_lora, fedsa_lora"
                )
        return tuple(pair for pair in found if shared.issuperset(pair.names))

    def assigned_ranks(self, phase: int, num_clients: int) -> np.ndarray:
        """Return the rank that the algorithm's setting gives each client, int64 [K]; ConfigError if it does not fit."""
        setting, where = self.experiment.phases[phase].algorithm.client_ranks(), f"phases.{phase}.algorithm.rank"
        if isinstance(setting, str):
            partition = assign(self.experiment.partition, self.split(TRAIN), self.experiment.seed)
            return by_column(setting, self.split(TRAIN), partition, where)
        if not isinstance(setting, Mapping):
            return by_client(setting or (), num_clients, where)
        devices = {name: rank for name, rank in setting.items() if isinstance(name, str)}
        if devices:
            return self.device_ranks(devices, phase, num_clients)
        shares = {rank: share for rank, share in setting.items() if isinstance(rank, int)}
        return by_share(shares, num_clients, self.experiment.seed, where)

    def rank_column(self, phase: int) -> str | None:
        """Return the column of the data from which the ranks of the clients follow; None if there is none."""
        setting, profile = self.experiment.phases[phase].algorithm.client_ranks(), self.experiment.clients.profile
        if isinstance(setting, str):
            return setting
        by_name = isinstance(setting, Mapping) and any(isinstance(name, str) for name in setting)
        return profile.device_column if by_name and profile is not None else None

    def device_ranks(self, setting: Mapping[str, float], phase: int, num_clients: int) -> np.ndarray:
        """Return the rank of each client, int64 [K], by the device of its profile."""
        where, profile = f"phases.{phase}.algorithm.rank", self.experiment.clients.profile
        if profile is None:
            raise ConfigError(f"{where}: {next(iter(setting))!r} given; names of devices need clients.profile")
        columns: dict[str, list[str]] = {}
        if (name := self.rank_column(phase)) is not None:
            partition = assign(self.experiment.partition, self.split(TRAIN), self.experiment.seed)
            found = client_values(name, self.split(TRAIN), partition, "clients.profile")
            columns[name] = [str(value) for value in found]
        devices = client_devices(profile, num_clients, self.experiment.seed, columns)
        return by_device(setting, devices, profile.known_devices, where)

    def ranks(self, phase: int, num_clients: int) -> np.ndarray | None:
        """Return the rank of each client's adapters, int64 [K]; None: all clients have the same.

        Raises:
            ConfigError: The setting does not fit the clients or the model.
        """
        setting, where = self.experiment.phases[phase].algorithm.client_ranks(), f"phases.{phase}.algorithm.rank"
        if setting is None or phase in self.known_ranks:
            return self.known_ranks.get(phase)
        found = self.assigned_ranks(phase, num_clients)
        most = max((pair.rank for pair in self.pairs(phase)), default=0)
        if most and int(found.max()) > most:
            raise ConfigError(
                f"{where}: {int(found.max())} given, but the largest adapter of the model has rank {most}"
            )
        self.known_ranks[phase] = found
        return found

    def _network(self, groups: ParameterGroups, phase: Phase) -> Network:
        """Return the model for a phase, watched for changes that the probe has not found."""
        buffers = groups.buffers, groups.frozen_buffers, groups.frozen_attributes
        network = Network(self.module, groups.trained, *buffers)
        if self.device.type != "meta":
            effects = self._effects("model", network, phase)
            network.watch((*effects.changed, *effects.caches))
        return network

    def _message_spec(
        self, phase: int, num_clients: int, noise_multiplier: float, randomness: Randomness | None
    ) -> MessageSpec:
        experiment, settings, owners = self.experiment, self.experiment.phases[phase], self.tied_names
        groups = self.parameter_groups(phase)
        sizes = {name: parameter.numel() for name, parameter in self.module.named_parameters()} if owners else {}
        tied_weights = TiedWeights(experiment.ledger.tied_weights, owners, sizes, frozenset(groups.trained))
        secure = self._secure_channel(phase, num_clients, noise_multiplier, randomness)
        return MessageSpec(settings.codec, experiment.seed, phase, settings.rounds, tied_weights, secure)

    @property
    def num_values(self) -> tuple[int, ...]:
        """Numbers that a client uploads in each phase, by which integer noise is accounted; empty without it."""
        privacy = self.experiment.privacy
        if privacy is None or privacy.noise != "distributed":
            return ()
        return tuple(self._num_shared(index) for index in range(len(self.experiment.phases)))

    def mask_note(self, phase: int, num_clients: int) -> str:
        """Return a line if the masks of a phase's rounds are left out; see `simfl.secure_aggregation.channel`."""
        channel = self._secure_channel(phase, num_clients, math.nan, None)
        if channel is None:
            return ""
        clients = round(expected_clients(self.experiment.phases[phase], num_clients))
        return mask_note(channel.settings, clients, channel.num_integers("weights", self._num_shared(phase)))

    def _num_shared(self, phase: int) -> int:
        groups = self.parameter_groups(phase)
        return sum(t.numel() for t in Network(self.module, groups.trained).tensors(groups.shared).values())

    def _secure_channel(
        self, phase: int, num_clients: int, noise_multiplier: float, randomness: Randomness | None
    ) -> SecureChannel | None:
        """Return the encoding of uploads under secure aggregation; None without it.

        Without a noise multiplier, uploads can be counted and not encoded.
        """
        experiment, settings = self.experiment, self.experiment.phases[phase]
        secure, privacy = experiment.secure_aggregation, experiment.privacy
        if secure is None:
            return None
        weighted = weighted_parts(settings.algorithm.reduce, settings.weighting)
        noise = None
        if privacy is not None and privacy.noise == "distributed":
            assert privacy.clip is not None
            spec = discrete_noise(privacy, secure, settings, num_clients, self._num_shared(phase))
            noise = DistributedNoise(spec, noise_multiplier, privacy.clip, randomness or Randomness.fresh())
        return SecureChannel(secure, weighted, noise)

    def _mechanism(
        self, phase: int, num_clients: int, noise_multiplier: float, randomness: Randomness
    ) -> Mechanism | None:
        privacy = self.experiment.privacy
        if privacy is None:
            return None
        copies = Counter(self.tied_names.values()) if privacy.tied_weights == "always" else {}
        sampled = num_clients if privacy.deployment is None else privacy.deployment.clients
        phases = deployed_phases(self.experiment.phases, privacy.deployment)
        correlation = Correlation.of(privacy, phases, phase, sampled)
        return Mechanism(privacy, noise_multiplier, randomness, copies, correlation)

    def choose_rows(self, split: str, limit: int | None, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the evaluated rows of a split in file order: all, or `limit` of them, sampled once.

        `rows`, ascending, are those to choose from; None: the whole split.
        """
        rows = np.arange(len(self.split(split))) if rows is None else rows
        if limit is None or limit >= len(rows):
            return rows
        return rows[np.sort(rng(self.experiment.seed, "evaluate", split).choice(len(rows), size=limit, replace=False))]


def _check_finite(examples: Examples) -> None:
    """Raise DataError if an example has a number that is not finite."""
    for name, values in examples.rows.items():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            row = int((~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[0])
            raise DataError(f"row {row}: the encoded {name!r} has a number that is not finite")


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _set_tensors(module: nn.Module, values: Weights) -> None:
    own = _tensors(module)
    with torch.no_grad():
        for name, tensor in values.items():
            own[name].copy_(tensor)
