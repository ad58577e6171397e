"""A run as it lies on the disk, finished or not: summary, tables, experiment, models. Nothing here writes to it."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from simfl import cache, config
from simfl.client_state import FileClientStore
from simfl.data.partition.manifest import Partition
from simfl.errors import RunError
from simfl.experiment import Experiment
from simfl.models.base import Model
from simfl.protocol import Weights
from simfl.run_context import RunContext
from simfl.runs import checkpoint, tables
from simfl.runs.record import TABLES
from simfl.runs.snapshot import Snapshot
from simfl.stacking import namespace
from simfl.tracking.progress import report
from simfl.tracking.run_folder import require_run

if TYPE_CHECKING:
    import pyarrow as pa

ENDED = ("completed", "stopped")  # statuses of runs that are not repeated
ERROR = "error.txt"  # in the folder of a sweep's run: why it failed


class Run:
    """What a run left in its folder. Tables are Arrow's: `.to_pandas()` and `.to_pylist()` lead on."""

    def __init__(self, folder: Path | str, experiment: Experiment | None = None) -> None:
        """`experiment` is needed only for a run that was given Python objects, which its folder does not hold.

        RunError if no run lies there.
        """
        self.folder = Path(folder)
        require_run(self.folder)
        if experiment is not None:
            self._refuse_another(experiment)
            self.experiment = experiment

    def _refuse_another(self, experiment: Experiment) -> None:
        stored = (self.folder / "experiment.yaml").read_text().splitlines()
        imported = False  # a function that lived in the program itself, was known by its source, and now has a name
        for there, here in zip(stored, config.dump(experiment).splitlines(), strict=False):
            pattern = re.sub(r"<__main__:(\w+)>", r"<?[\\w.]+:\1>?", re.escape(there)).replace("__main__:", r"[\w.]+:")
            if not re.fullmatch(pattern, here) and not (imported and here.strip() == "sha256: null"):
                raise RunError(f"{self.folder}: the run has {there.strip()!r}, the experiment given {here.strip()!r}")
            imported = imported or ("<__main__:" in there and "<" not in here)

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment; ConfigError where Python objects stood in it and were not given again."""
        return config.parse(config.read_yaml(self.folder / "experiment.yaml"))

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds; RunError while there is none."""
        return self._json("summary.json", "the run has not ended yet")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the run was made of: versions, hashes, hardware, and what is part of its identity."""
        return self._json("manifest.json", "no run lies here")

    def _json(self, name: str, missing: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            raise RunError(f"{self.folder}: there is no {name}; {missing}") from None
        except ValueError as error:
            raise RunError(f"{self.folder / name}: damaged: {error}") from None
        return content

    def rounds(self) -> pa.Table:
        """One row a round: loss, clients, bytes."""
        return self.table("rounds")

    def ledger(self) -> pa.Table:
        """One row for each message part that crossed."""
        return self.table("ledger")

    def clients(self) -> pa.Table:
        """One row a visit: examples, steps, weight, loss."""
        return self.table("clients")

    def evaluations(self) -> pa.Table:
        """One row for each score: split, model, group, metric, value."""
        return self.table("evaluations")

    def samples(self) -> pa.Table:
        """One row for each prediction that was kept: what was asked, what is true, what was said."""
        return self.table("samples")

    def scores(self) -> pa.Table:
        """One row for each example that was scored at the end of the run: its own scores, and the groups it is of."""
        return self.table("scores")

    def table(self, name: str) -> pa.Table:
        """A table by name, with the rows that are committed so far."""
        assert name in TABLES, name
        return tables.joined(self.folder / "tables", name)

    @cached_property
    def partition(self) -> Partition:
        """Who holds which training rows; refused if the data are not those of the run."""
        return Partition.read(self.partition_manifest, self.setting.dataset.sha256)

    @cached_property
    def partition_alone(self) -> Partition:
        """The partition as the run wrote it down, without a look at the data."""
        return Partition.read(self.partition_manifest, self.manifest["data_sha256"])

    @property
    def partition_manifest(self) -> bytes:
        """The partition as the run wrote it down; RunError where it is gone."""
        path = self.folder / "partition.json"
        if not path.exists():
            raise RunError(f"{self.folder}: there is no {path.name}; the run is not whole")
        return path.read_bytes()

    @cached_property
    def setting(self) -> RunContext:
        """Data and model as the experiment describes them, on the CPU."""
        return RunContext(self.experiment, cache.folder())

    @property
    def steps(self) -> list[int]:
        """The rounds after which a commit is there."""
        return checkpoint.steps(self.folder / "checkpoints")

    def snapshot(self, step: int | None = None) -> Snapshot:
        """The state of a commit, by default of the newest whole one; RunError if there is none."""
        folder = self.folder / "checkpoints"
        found = checkpoint.latest(folder) if step is None else checkpoint.read(folder, step)
        if found is None:
            raise RunError(f"{self.folder}: no commit has been made yet")
        return Snapshot.restore(found.tensors, found.facts)

    def model(self) -> nn.Module:
        """A module of its own with the global weights of the newest commit; private tensors are as at the start."""
        return self._built(self.snapshot().model)

    def client_model(self, client: int) -> nn.Module:
        """The personal model of a client: what the algorithm makes of the global weights and the client's memory."""
        if not 0 <= client < len(self.partition):
            raise RunError(f"{self.folder}: no client {client}; there are 0 to {len(self.partition) - 1}")
        snapshot = self.snapshot()
        phases = self.experiment.phases
        algorithm = phases[min(snapshot.phase, len(phases) - 1)].algorithm
        memory = FileClientStore(self.folder / "memory").get(snapshot.client_state(client))
        state = namespace(memory, "algorithm")
        if algorithm.offered_models["personal"].mentor and self.experiment.mentor is not None:
            return self._built(algorithm.models({}, state)["personal"], self.experiment.mentor)
        weights = algorithm.models(snapshot.server.weights, state)["personal"]
        own = (namespace(memory, kind).get("weights", {}) for kind in ("buffers", "personal_params"))
        return self._built({**snapshot.model, **weights, **{n: t for group in own for n, t in group.items()}})

    def _built(self, weights: Weights, model: Model | None = None) -> nn.Module:
        module = (model or self.experiment.model).build(self.setting.task)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        vars(module).pop("forward", None)  # a module given from Python answers as its author wrote it
        return module.eval()

    def __repr__(self) -> str:
        try:
            return "\n".join(report(self.summary))
        except RunError:
            return f"{self.folder}: a run of {len(self.rounds())} rounds so far"


def summary_of(folder: Path) -> dict[str, Any] | None:
    """What `summary.json` holds; None while there is none."""
    path = folder / "summary.json"
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"{path}: damaged: {error}") from None
    return content
