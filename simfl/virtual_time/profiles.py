"""Profiles of clients: compute speed, bandwidths, latency, failure rate and power, drawn by hashes of names.

    download = latency + bytes / bandwidth      compute = overhead + FLOPs / (peak · efficiency)      upload likewise

The profile of a client depends on the seed and its number alone, not on how many clients there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from simfl.constraints import Fraction, NonNegativeFloat, PositiveFloat
from simfl.errors import ConfigError, DataError, nearest
from simfl.virtual_time.availability import Always, Availability, AvailabilitySchedule
from simfl.virtual_time.devices import DEVICES, NETWORKS, Device, Network
from simfl.virtual_time.instants import draws, factors, nanoseconds
from simfl.virtual_time.traces import assigned, read_capacities

COLUMN = "column"  # key of a mapping that names a column of the data
TOLERANCE = 1e-6  # of the sum of fractions
Columns = Mapping[str, Sequence[str]]  # value of each client in the columns of the data that a profile names


@dataclass(frozen=True)
class Capacity:
    """Measured seconds per example and bandwidths of each client, from a file."""

    file: str  # CSV with client,seconds_per_example,download,upload, or FedScale's client_device_capacity
    assign: Literal["number", "random"] = "number"  # client k has the k-th line, or one drawn by a hash of k
    sha256: str | None = None  # hash of the file, which is then checked; null: any


@dataclass(frozen=True)
class Profile:
    """Devices, networks and availability of the clients."""

    devices: str | Mapping[str, object] = "phone_mid"  # one for all, {name: fraction}, or {column: NAME of the data}
    networks: str | Mapping[str, object] = "4g"  # one for all, {name: fraction}, or {column: NAME of the data}
    own_devices: Mapping[str, Device] = field(default_factory=dict)  # further devices by name
    own_networks: Mapping[str, Network] = field(default_factory=dict)  # further networks by name
    capacity: Capacity | None = None  # measured speeds, which replace those of devices and networks
    efficiency: Fraction = 0.1  # fraction of a device's peak that training reaches; an assumption
    overhead: NonNegativeFloat = 0.0  # seconds of a client update besides its local steps
    device_spread: NonNegativeFloat = 0.0  # a client's speed is the device's times 1/(1 + spread) to 1 + spread
    network_spread: NonNegativeFloat = 0.0  # the same for its bandwidths
    jitter: NonNegativeFloat = 0.0  # the same for the durations of each single update
    failure_rate: NonNegativeFloat = 0.0  # below 1: probability that an update fails, at a uniform moment
    availability: Availability = field(default_factory=Always)  # when clients can take part
    flops_per_example: PositiveFloat | None = None  # of one training step; null: counted on the model

    def __post_init__(self) -> None:
        """Check names and fractions."""
        if self.failure_rate >= 1.0:
            raise ConfigError(f"failure_rate: {self.failure_rate:g} given; allowed: at least 0 and below 1")
        for where, given, known in self._tables():
            _check_assignment(where, given, known)
        if self.capacity is not None and self.flops_per_example is not None:
            raise ConfigError("flops_per_example: has no effect with capacity, which has seconds per example")

    def _tables(self) -> list[tuple[str, str | Mapping[str, object], Mapping[str, object]]]:
        return [
            ("devices", self.devices, {**DEVICES, **self.own_devices}),
            ("networks", self.networks, {**NETWORKS, **self.own_networks}),
        ]

    @property
    def known_devices(self) -> Mapping[str, Device]:
        """Bundled devices and those of the profile."""
        return {**DEVICES, **self.own_devices}

    @property
    def device_column(self) -> str | None:
        """Column of the data that names the clients' devices; None if there is none."""
        return str(self.devices[COLUMN]) if isinstance(self.devices, Mapping) and COLUMN in self.devices else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that name devices or networks."""
        given = (one for _, one, _ in self._tables() if isinstance(one, Mapping) and COLUMN in one)
        return tuple(dict.fromkeys(str(one[COLUMN]) for one in given))


def _check_assignment(where: str, given: str | Mapping[str, object], known: Mapping[str, object]) -> None:
    """Raise ConfigError for an unknown name, or fractions that do not add up to 1."""
    if isinstance(given, Mapping) and COLUMN in given:
        if set(given) != {COLUMN} or not isinstance(given[COLUMN], str):
            raise ConfigError(f"{where}: {dict(given)} given; write {{column: NAME}} without other keys")
        return
    fractions: Mapping[str, object] = {given: 1.0} if isinstance(given, str) else given
    for name, fraction in fractions.items():
        if name not in known:
            raise ConfigError(f"{where}: unknown {name!r}; {nearest(name, known)}")
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
            raise ConfigError(f"{where}: {name}: {fraction!r} is not a fraction above 0 and at most 1")
    total = sum(float(str(fraction)) for fraction in fractions.values())
    if abs(total - 1.0) > TOLERANCE:
        raise ConfigError(f"{where}: the fractions add up to {total:g}; allowed: a sum of 1")


@dataclass(frozen=True)
class ClientProfiles:
    """Profiles of K clients as arrays.

    Attributes:
        devices: Names of the kinds of devices.
        device: Position of each client's device in `devices`, int64 [K].
        networks: Names of the kinds of networks.
        network: Position of each client's network in `networks`, int64 [K].
        flops: FLOP/s that training reaches, float64 [K].
        seconds_per_example: Measured seconds, float64 [K], which replace FLOPs; None: there are none.
        download: Bytes per second, float64 [K].
        upload: Bytes per second, float64 [K].
        latency: Seconds in each direction, float64 [K].
        watts: Power while the device computes, float64 [K]; 0: not known.
        overhead: Seconds of an update besides its local steps.
        jitter: Spread of the durations of single updates.
        failure_rate: Probability that an update fails.
        availability: Times at which clients are available.
        always: Whether every client is available at any time.
        seed: Seed of the draws of single updates.
    """

    devices: tuple[str, ...]
    device: np.ndarray
    networks: tuple[str, ...]
    network: np.ndarray
    flops: np.ndarray
    seconds_per_example: np.ndarray | None
    download: np.ndarray
    upload: np.ndarray
    latency: np.ndarray
    watts: np.ndarray
    overhead: float
    jitter: float
    failure_rate: float
    availability: AvailabilitySchedule
    always: bool
    seed: int

    def __len__(self) -> int:
        return len(self.device)


def client_devices(
    profile: Profile, num_clients: int, seed: int, columns: Columns, where: str = "clients.profile"
) -> list[str]:
    """Return the name of each client's device, [K]; the arguments are those of `client_profiles`."""
    clients = np.arange(num_clients, dtype=np.int64)
    names, device = _assign(f"{where}.devices", profile.devices, profile.known_devices, clients, seed, columns)
    return [names[place] for place in device]


class Work(NamedTuple):
    """Work of client updates, before devices and networks are known; each [n].

    Attributes:
        download: Bytes received.
        upload: Bytes sent.
        examples: Examples of all local steps, float64.
        flops: Floating-point operations of one example in training; one number for all.
    """

    download: np.ndarray
    upload: np.ndarray
    examples: np.ndarray
    flops: float


class Durations(NamedTuple):
    """Durations of the parts of client updates, int64 [n] in nanoseconds."""

    download: np.ndarray
    compute: np.ndarray
    upload: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Time from the dispatch to the arrival of the upload."""
        found: np.ndarray = self.download + self.compute + self.upload
        return found


def client_profiles(
    profile: Profile, num_clients: int, seed: int, columns: Columns | None = None, where: str = "clients.profile"
) -> ClientProfiles:
    """Return the profiles of K clients.

    Args:
        profile: The settings.
        num_clients: K.
        seed: Seed of the experiment.
        columns: The value of each client in the columns that the profile names, [K].
        where: Path of the settings, for error messages.

    Raises:
        ConfigError, DataError: A column names an unknown device, or a file misses clients.
    """
    clients = np.arange(num_clients, dtype=np.int64)
    known = {**DEVICES, **profile.own_devices}, {**NETWORKS, **profile.own_networks}
    devices, device = _assign(f"{where}.devices", profile.devices, known[0], clients, seed, columns or {})
    networks, network = _assign(f"{where}.networks", profile.networks, known[1], clients, seed, columns or {})
    speed = factors(profile.device_spread, draws((seed, "device speed"), clients))
    width = factors(profile.network_spread, draws((seed, "bandwidth"), clients))
    flops = np.array([known[0][name].flops for name in devices])[device] * profile.efficiency * speed
    download = np.array([known[1][name].download for name in networks])[network] * width
    upload = np.array([known[1][name].upload for name in networks])[network] * width
    per_example = None
    try:
        if profile.capacity is not None:
            per_example, download, upload = _capacities(profile.capacity, num_clients, seed)
    except (ConfigError, DataError) as error:
        raise type(error)(f"{where}.capacity.{error}") from None
    try:
        availability = profile.availability.schedule(num_clients, seed)
    except (ConfigError, DataError) as error:
        raise type(error)(f"{where}.availability.{error}") from None
    return ClientProfiles(
        devices=devices,
        device=device,
        networks=networks,
        network=network,
        flops=flops,
        seconds_per_example=per_example,
        download=download,
        upload=upload,
        latency=np.array([known[1][name].latency for name in networks])[network],
        watts=np.array([known[0][name].watts for name in devices])[device],
        overhead=profile.overhead,
        jitter=profile.jitter,
        failure_rate=profile.failure_rate,
        availability=availability,
        always=profile.availability.is_always,
        seed=seed,
    )


def _assign(
    where: str,
    given: str | Mapping[str, object],
    known: Mapping[str, object],
    clients: np.ndarray,
    seed: int,
    columns: Columns,
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names in use and the position of each client's name among them, int64 [K]."""
    if isinstance(given, str):
        return (given,), np.zeros(len(clients), np.int64)
    if COLUMN in given:
        column = str(given[COLUMN])
        values = np.array(columns[column])
        names, found = np.unique(values, return_inverse=True)
        for name in names.tolist():
            if name not in known:
                client = int(np.flatnonzero(values == name)[0])
                raise ConfigError(
                    f"{where}: column {column!r} has {name!r} for client {client}; {nearest(name, known)}"
                )
        return tuple(names.tolist()), found.astype(np.int64)
    until = np.cumsum([float(str(fraction)) for fraction in given.values()])
    drawn = draws((seed, "profile", where.rpartition(".")[2]), clients)
    return tuple(given), np.minimum(np.searchsorted(until, drawn, side="right"), len(until) - 1).astype(np.int64)


def _capacities(capacity: Capacity, num_clients: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return seconds per example and both bandwidths of each client, float64 [K]."""
    found = read_capacities(capacity.file, capacity.sha256)
    names = sorted(found.seconds_per_example)
    which = assigned(names, capacity.assign, num_clients, seed, capacity.file)
    tables = (np.array([table[name] for name in names]) for table in found)
    per_example, download, upload = (table[which] for table in tables)
    return per_example, download, upload


def durations(
    profiles: ClientProfiles, clients: np.ndarray, work: Work, phase: int, index: np.ndarray | int
) -> Durations:
    """Return the durations of client updates.

    Args:
        profiles: Profiles of all clients.
        clients: Clients, int64 [n].
        work: Their work, [n].
        phase: Number of the phase, which names the jitter.
        index: Round, or number of each client's update, int64 [n] or one for all; names the jitter.
    """
    if profiles.seconds_per_example is None:
        training = work.examples * work.flops / profiles.flops[clients]
    else:
        training = work.examples * profiles.seconds_per_example[clients]
    latency = profiles.latency[clients]
    parts = {
        "download": np.where(work.download > 0, latency + work.download / profiles.download[clients], 0.0),
        "compute": profiles.overhead + training,
        "upload": np.where(work.upload > 0, latency + work.upload / profiles.upload[clients], 0.0),
    }
    if profiles.jitter:
        for name, own in parts.items():
            drawn = draws((profiles.seed, "jitter", name, phase), clients, index)
            parts[name] = own * factors(profiles.jitter, drawn)
    return Durations(*(nanoseconds(own) for own in parts.values()))


def failures(profiles: ClientProfiles, clients: np.ndarray, phase: int, index: np.ndarray | int) -> np.ndarray:
    """Return the fraction of its duration after which each update fails, float64 [n]; infinity for one that does not.

    `index` is the round, or the number of each client's update.
    """
    if profiles.failure_rate == 0.0:
        return np.full(len(clients), np.inf)
    failed = draws((profiles.seed, "failure", phase), clients, index) < profiles.failure_rate
    return np.where(failed, draws((profiles.seed, "failure time", phase), clients, index), np.inf)
