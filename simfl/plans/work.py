"""Numbers of examples of the clients, from published sizes or from the data, and the resulting local steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from simfl.data.base import Dataset, Published
from simfl.data.partition.holdout import assign, expected_sizes
from simfl.data.partition.manifest import Partition
from simfl.data.placeholder import placeholder_dataset
from simfl.errors import DataError
from simfl.experiment import Experiment
from simfl.plans.messages import RoundMessages
from simfl.run_context import RunContext
from simfl.sampling import sample_groups
from simfl.training.plan import num_steps


@dataclass(frozen=True)
class ClientSizes:
    """Numbers of examples and of named groups of each client."""

    sizes: np.ndarray  # [K] examples; NaN if unknown
    groups: np.ndarray  # [K] named groups
    exact: bool  # false: the sizes are expected values
    source: str  # origin of the sizes
    partition: Partition | None = None  # if the data were read

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def typical(self) -> int:
        """Number of examples of a typical client, at least 1."""
        return max(1, round(float(np.nan_to_num(self.sizes).mean())))


def client_sizes(experiment: Experiment, cache: Path) -> tuple[Dataset, ClientSizes]:
    """Return an outline of the data set and the sizes of the clients; read or build the data if nothing is published.

    Raises:
        DataError: The data cannot be read and the experiment does not give the number of clients.
    """
    published = experiment.data.published()
    sizes = None if published is None else expected_sizes(experiment.partition, published)
    if published is not None and sizes is not None:
        exact = tuple(sizes) == published.clients
        groups = np.array(published.groups if exact and published.groups else [0] * len(sizes))
        return placeholder_dataset(published), ClientSizes(sizes, groups, exact, f"published sizes{_cap(experiment)}")
    context, clients = RunContext(experiment, cache), experiment.partition.clients
    try:
        partition = assign(experiment.partition, context.split("train"), experiment.seed)
    except DataError as error:
        if clients is None:
            raise
        return placeholder_dataset(Published(0)), ClientSizes(
            np.full(clients, np.nan), np.zeros(clients, int), False, str(error)
        )
    return placeholder_dataset(context.dataset), ClientSizes(
        partition.sizes, partition.num_groups, True, f"the data{_cap(experiment)}", partition
    )


def _cap(experiment: Experiment) -> str:
    """Return the cap of a client's examples, for the source of the sizes; empty without one."""
    most = experiment.partition.max_examples
    return "" if most is None else f" (at most {most:,} examples of a client)"


@dataclass(frozen=True)
class LocalSteps:
    """Numbers of local steps in a phase."""

    experiment: Experiment
    index: int
    client_sizes: ClientSizes

    @property
    def is_known(self) -> bool:
        """Return whether the sizes of the clients are known."""
        return not bool(np.isnan(self.client_sizes.sizes).any())

    @cached_property
    def each(self) -> np.ndarray:
        """Local steps of one update of each client, [K], without sampling of groups."""
        local, privacy = self.experiment.phases[self.index].local, self.experiment.privacy
        public = None if privacy is None else privacy.min_examples
        return np.array([num_steps(public or int(np.ceil(size)), local) for size in self.client_sizes.sizes])

    def in_round(self, messages: RoundMessages) -> int:
        """Return the local steps of all client updates of a round."""
        privacy = self.experiment.privacy
        if privacy is None or privacy.unit != "group":
            return int(self.each[messages.clients].sum()) if messages.clients else 0
        return sum(
            _steps_of_groups(self.experiment, self.index, messages.round - 1, client, self.client_sizes)
            for client in messages.clients
        )


def _steps_of_groups(experiment: Experiment, index: int, round_number: int, client: int, sizes: ClientSizes) -> int:
    """Return the steps of an update that trains sampled groups one after another; unknown sizes count as equal."""
    local, privacy, partition = experiment.phases[index].local, experiment.privacy, sizes.partition
    assert privacy is not None
    count = int(sizes.groups[client]) or privacy.min_groups or 1
    repeatable = replace(privacy, secure=False)  # a typical sample of a run whose own is secret
    chosen = sample_groups(count, repeatable, experiment.seed, index, round_number, client)
    if partition is None:
        return len(chosen) * num_steps(int(np.ceil(sizes.sizes[client] / count)), local)
    groups = partition.groups(client)
    return sum(num_steps(len(groups[k][1]), local) for k in chosen)
