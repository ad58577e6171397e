"""Small experiments that run in a second: a toy data set, tiny models, an algorithm with faults.

Workers import this module by name, so all components of these experiments are defined here.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from simfl import simulation
from simfl.algorithms import ALGORITHMS
from simfl.algorithms.base import Algorithm
from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.classification import feature_split
from simfl.data.partition.partitioners import Official
from simfl.experiment import Checkpoint, Execution, Experiment, Local, Phase
from simfl.models.base import Model, seeded, shape_and_classes
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.objectives.classification import Classification
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import ClientUpdate, Outputs, Parts, State, Task, Weights
from simfl.run_context import RunContext
from simfl.runs import checkpoint, tables
from simfl.runs.snapshot import Snapshot
from simfl.runs.tables import TABLES
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session import session
from simfl.session.callbacks import NullDisplay
from simfl.session.options import RunOptions
from simfl.session.signals import Interrupted
from simfl.tracking.events import PoolLoad

SIZES = (1, 40, 5, 8, 27, 13, 2, 21, 9, 16)  # examples per client: one, a full batch of 8, partial and several ones


@dataclass(frozen=True)
class Toy(Data):
    """Five classes around random centres; client k holds the next `sizes[k]` examples, in at most `groups` groups."""

    sizes: tuple[int, ...] = SIZES
    groups: int = 3  # per client, named g<client>.<number>
    valid: int = 60  # examples, in the same groups
    shape: tuple[int, ...] = (12,)
    seed: int = 0

    def load(self, cache: Path) -> Dataset:
        even = [-(-(self.valid - k) // len(self.sizes)) for k in range(len(self.sizes))]
        splits = {"train": self._split(1, list(self.sizes)), "valid": self._split(2, even)}
        return Dataset("toy", splits, content_sha256(splits), {"shape": list(self.shape), "num_classes": 5})

    def _split(self, stream: int, sizes: list[int]) -> Split:
        num_features, count = int(np.prod(self.shape)), sum(sizes)
        centres = np.random.default_rng([self.seed, 0]).normal(size=(5, num_features))
        rng = np.random.default_rng([self.seed, stream])
        labels = rng.integers(0, 5, count)
        features = centres[labels] + rng.normal(size=(count, num_features))
        client = np.repeat(np.arange(len(sizes)), sizes)
        number = np.concatenate([np.arange(n) for n in sizes]) % self.groups
        names = pa.array([f"g{c}.{n}" for c, n in zip(client, number, strict=True)])
        return feature_split(features, labels, client=pa.array(client, pa.int32()), group=names)


def toy(**settings: Any) -> Toy:
    """Return the toy data set with these fields."""
    return Toy(**settings)


def experiment(
    algorithm: Algorithm | str = "fedavg",
    mode: str = "sequential",
    clients_per_batch: int | str = 2,
    rounds: int = 3,
    **settings: Any,
) -> Experiment:
    """Return a small experiment with 7 of 10 clients per round: by default 4 cohorts of uneven clients, with dropout.

    `settings` are fields of `Local`, `Phase` or `Experiment`.
    """
    local: dict[str, Any] = {"optimizer": LocalOptimizer("sgd"), "learning_rate": 0.1, "batch_size": 8} | _taken(
        Local, settings
    )
    local["optimizer"] = _optimizer(local["optimizer"])
    phase: dict[str, Any] = {"objective": Classification(), "local": Local(**local), "rounds": rounds}
    phase |= _taken(Phase, settings)
    phase["algorithm"] = ALGORITHMS[algorithm]() if isinstance(algorithm, str) else algorithm
    if not {"participation", "clients_per_round", "poisson"} & phase.keys():
        phase["participation"] = 0.7
    adapters = Lora(rank=2, alpha=2, targets=("linear", "head")) if phase["algorithm"].needs_pairs else None
    if phase["algorithm"].needs_pairs and "train" in phase["algorithm"].example:
        phase.setdefault("train", tuple(phase["algorithm"].example["train"]))
    execution: dict[str, Any] = {"mode": mode, "clients_per_batch": clients_per_batch}
    whole: dict[str, Any] = {
        "name": "toy",
        "data": Toy(),
        "partition": Official(groups="group"),
        "model": Mlp(hidden_sizes=(16,), dropout=0.2, adapters=adapters),
        "phases": (Phase(**phase),),
        "execution": Execution(**execution),
        "checkpoint": Checkpoint(rounds=1, seconds=0.0),
    }
    return Experiment(**whole | settings)


def _taken(kind: type, settings: dict[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(kind) if f.name in settings and f.name != "name"]
    return {name: settings.pop(name) for name in names}


def _optimizer(given: LocalOptimizer | str) -> LocalOptimizer:
    return LocalOptimizer(given) if isinstance(given, str) else given


def then(first: Experiment, second: Experiment) -> Experiment:
    """Return an experiment with the phases of both experiments."""
    return replace(first, phases=first.phases + second.phases)


def run(experiment: Experiment, folder: Path, **settings: Any) -> dict[str, Any]:
    """Run an experiment and return its summary; inline unless `backend` or `workers` are given."""
    backend = "ray" if "workers" in settings else "inline"
    return simulation.run(experiment, RunOptions(folder, **{"backend": backend} | settings))


def traces(folder: Path) -> dict[str, str]:
    """Return the hash of each table and both hashes of the summary, which are equal for equal runs."""
    summary = json.loads((folder / "summary.json").read_text())
    files = {name: folder / f"{name}.parquet" for name in TABLES}
    hashes = {name: tables.sha256(tables.read(file)) for name, file in files.items() if file.exists()}
    return hashes | {key: summary[key] for key in ("weights_sha256", "state_sha256")}


@dataclass(frozen=True)
class Normalised(Model):
    """A layer, batch normalisation with running statistics, a head."""

    hidden_size: int = 8

    def build(self, task: Task) -> nn.Module:
        shape, classes = shape_and_classes(task, "normalised")
        with seeded(task.seed):
            return NormalisedNetwork(int(np.prod(shape)), self.hidden_size, classes).eval()


class NormalisedNetwork(nn.Module):
    """The network of `Normalised`."""

    def __init__(self, inputs: int, hidden_size: int, classes: int) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(inputs, hidden_size), nn.BatchNorm1d(hidden_size)
        self.head = nn.Linear(hidden_size, classes)

    def forward(self, x: Tensor) -> Outputs:
        h = torch.tanh(self.norm(self.body(x)))
        return Outputs(self.head(h), h)


@dataclass(frozen=True)
class Faulty(Algorithm):
    """FedAvg in which one client fails in one round."""

    fault: str = "raise"  # raise | nan | die | sleep
    client: int = 3
    round: int = 1
    folder: str = ""  # where workers leave a file named by their pid for each fault
    times: int = 1000  # number of faults

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        if self.fault == "nan" or (int(update.client), int(update.round)) != (self.client, self.round):
            return {}
        num_faults = len(list(Path(self.folder).iterdir())) if self.folder else 0
        if num_faults < self.times:
            if self.folder:
                (Path(self.folder) / f"{os.getpid()}.{num_faults}").touch()
            FAULTS[self.fault]()
        return {}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        delta = {name: trained[name] - w for name, w in received["weights"].items()}
        if self.fault == "nan":
            hit = (update.client == self.client) & (update.round == self.round)
            delta["head.bias"] = torch.where(hit, torch.nan, delta["head.bias"])
        return {"weights": delta}


def _raise() -> None:
    raise ZeroDivisionError("the client's own words")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {"raise": _raise, "die": _die, "sleep": lambda: time.sleep(60)}


class Stopping(NullDisplay):
    """A display that stops the run after some rounds, or while their model is evaluated, before they are committed."""

    def __init__(self, *steps: int, scoring: bool = False, error: type[BaseException] = Interrupted) -> None:
        self.steps, self.scoring, self.error, self.messages = steps, scoring, error, list[str]()

    def round_done(self, row: dict[str, Any]) -> None:
        if not self.scoring and row["step"] in self.steps:
            raise self.error

    def evaluated(self, row: dict[str, Any]) -> None:
        if self.scoring and row["step"] in self.steps:
            raise self.error

    def message(self, text: str) -> None:
        self.messages.append(text)


class Killed(BaseException):
    """A simulated kill of the process: no handler runs after it."""


class Scattered:
    """Three workers in one process, each with a model and data of its own, that run cohorts in random order."""

    num_workers, overlaps, kind = 3, True, "toy"

    def __init__(self, setup: WorkerConfig) -> None:
        self.workers = [Worker(setup, RunContext(setup.experiment, setup.cache)) for _ in range(3)]
        self.clocks: list[Any] = []
        self.random = np.random.default_rng(7)

    def load(self) -> PoolLoad:
        return PoolLoad(0, 0, 0, 3)

    def raise_if_lost(self) -> None:
        pass

    def begin(self, phase: int, base: Weights) -> None:
        for worker in self.workers:
            worker.begin(phase, base)

    def train(self, plans: Sequence[Any], received: Parts, costs: Sequence[float], ahead: Any) -> list[Any]:
        return self._scatter("train", plans, received)

    def evaluate(self, plans: Sequence[Any], received: Parts) -> Any:
        return lambda: self._scatter("evaluate", plans, received)

    def probe(self, question: Any, received: Parts) -> Any:
        return self.workers[0].probe(question, received)

    def partial_gradients(self, micro_batches: Sequence[Any], shared: Any) -> list[Any]:
        return self._scatter("partial_gradient", micro_batches, shared, shared.received)

    def _scatter(self, method: str, plans: Sequence[Any], *shared: Any) -> list[Any]:
        results = {}
        for i in self.random.permutation(len(plans)):
            results[i] = getattr(self.workers[self.random.integers(3)], method)(plans[i], *shared)
        return [results[i] for i in range(len(plans))]


def scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the inline pool by `Scattered`."""

    @contextmanager
    def opened(backend: str, setup: WorkerConfig, *rest: Any) -> Iterator[Scattered]:
        yield Scattered(setup)

    monkeypatch.setattr(session, "open_pool", opened)


def model(folder: Path) -> Weights:
    """Return the global model of the newest checkpoint."""
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return Snapshot.restore(found).model
