"""Who will hold what, and how many local steps come of it: by the sizes a data set is published with, else as read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from simfl.data.base import Dataset, Published
from simfl.data.io.outline import outline
from simfl.data.partition.manifest import Partition
from simfl.errors import DataError
from simfl.experiment import Experiment
from simfl.plans.messages import Exchange
from simfl.run_context import RunContext
from simfl.sampling import sample_groups
from simfl.training.plan import num_steps


@dataclass(frozen=True)
class Holdings:
    """Examples and named groups of each client, [K]; examples are NaN where nothing is known."""

    sizes: np.ndarray
    groups: np.ndarray
    exact: bool  # whether the sizes are known and not merely expected
    source: str  # where they are from
    partition: Partition | None = None  # where the data were read

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def typical(self) -> int:
        """Examples of a typical client, at least 1."""
        return max(1, round(float(np.nan_to_num(self.sizes).mean())))


def known(experiment: Experiment, cache: Path) -> tuple[Dataset, Holdings]:
    """An outline of the data, and who holds how much. DataError where not even the number of clients is known."""
    told = experiment.data.published()
    sizes = None if told is None else experiment.partition.expected(told)
    if told is not None and sizes is not None:
        exact = tuple(sizes) == told.clients
        groups = np.array(told.groups if exact and told.groups else [0] * len(sizes))
        return outline(told), Holdings(sizes, groups, exact, "published sizes")
    setting, clients = RunContext(experiment, cache), experiment.partition.clients
    try:
        partition = experiment.partition.split(setting.split("train"), experiment.seed)
    except DataError as error:
        if clients is None:
            raise
        return outline(Published(0)), Holdings(np.full(clients, np.nan), np.zeros(clients, int), False, str(error))
    return outline(setting.dataset), Holdings(partition.sizes, partition.num_groups, True, "the data", partition)


@dataclass(frozen=True)
class Work:
    """The local steps of a phase."""

    experiment: Experiment
    index: int
    holdings: Holdings

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the data."""
        return not bool(np.isnan(self.holdings.sizes).any())

    @cached_property
    def each(self) -> np.ndarray:
        """Of a visit to each client whose examples are trained together, [K]."""
        local = self.experiment.phases[self.index].local
        return np.array([num_steps(int(np.ceil(size)), local) for size in self.holdings.sizes])

    def of(self, exchange: Exchange) -> int:
        """Of all visits of a round."""
        privacy = self.experiment.privacy
        if privacy is None or privacy.unit != "group":
            return int(self.each[exchange.clients].sum()) if exchange.clients else 0
        return sum(
            _of_groups(self.experiment, self.index, exchange.round - 1, client, self.holdings)
            for client in exchange.clients
        )


def _of_groups(experiment: Experiment, index: int, round_number: int, client: int, holdings: Holdings) -> int:
    """Steps of a visit whose sampled groups are trained one by one; unknown sizes count as equal."""
    local, privacy, partition = experiment.phases[index].local, experiment.privacy, holdings.partition
    assert privacy is not None
    count = int(holdings.groups[client]) or privacy.min_groups or 1
    chosen = sample_groups(count, privacy, experiment.seed, index, round_number, client)
    if partition is None:
        return len(chosen) * num_steps(int(np.ceil(holdings.sizes[client] / count)), local)
    groups = partition.groups(client)
    return sum(num_steps(len(groups[k][1]), local) for k in chosen)
