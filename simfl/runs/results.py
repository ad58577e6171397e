"""Results of a run, read from its folder: summary, tables, experiment, states and models."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from simfl import config, files
from simfl.algorithms import ALGORITHMS
from simfl.client_state import FileClientStore
from simfl.data.partition.manifest import Partition
from simfl.errors import DamagedFile, RunError
from simfl.evaluation.scoring import EvaluationPlan, evaluated_weights
from simfl.experiment import Experiment
from simfl.models.base import Model
from simfl.models.own import release
from simfl.protocol import Weights
from simfl.run_context import RunContext
from simfl.runs import checkpoint
from simfl.runs.export import card_lines, require_empty, write_model
from simfl.runs.folder import (
    CHECKPOINTS,
    CLIENT_STATES,
    RUN,
)
from simfl.runs.manifest import read_experiment
from simfl.runs.snapshot import Snapshot
from simfl.runs.stored import StoredRun
from simfl.runs.summary import read_summary, summary_lines
from simfl.training.context import PhaseContext
from simfl.transport.upload import BUFFERS

NO_ROWS = np.empty(0, np.int64)


class Run(StoredRun):
    """The results in a run folder, with its experiment, states and models; printing a run shows its summary."""

    def __init__(self, folder: Path | str, experiment: Experiment | None = None) -> None:
        """Open a run folder.

        Args:
            folder: The run folder.
            experiment: The experiment of the run; needed only if it used Python objects that the folder cannot store.

        Raises:
            DamagedFile: The experiment, the manifest, the summary or the index of the tables was altered, or a part of
                a table is missing.
            RunError: The folder holds no run, a run of another experiment, or files of another format.
        """
        super().__init__(folder)
        if experiment is not None:
            self._refuse_another(experiment)
            self.experiment = experiment

    def _refuse_another(self, experiment: Experiment) -> None:
        stored = read_experiment(self.folder).splitlines()
        imported = False  # a function of `__main__`, stored with the hash of its source, can be imported by name now
        for there, here in zip(stored, config.dump(experiment).splitlines(), strict=False):
            pattern = re.sub(r"<__main__:(\w+)>", r"<?[\\w.]+:\1>?", re.escape(there)).replace("__main__:", r"[\w.]+:")
            if not re.fullmatch(pattern, here) and not (imported and here.strip() == "sha256: null"):
                raise RunError(f"{self.folder}: the run has {there.strip()!r}, the experiment given {here.strip()!r}")
            imported = imported or ("<__main__:" in there and "<" not in here)

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment. ConfigError if it used Python objects and they were not given to `load`."""
        read_experiment(self.folder)  # verifies the file
        return config.parse(config.read_yaml(self.folder / RUN))

    @cached_property
    def partition(self) -> Partition:
        """The training rows of each client. DataError if the data are no longer those of the run."""
        return Partition.read(self.partition_manifest, self.context.dataset.sha256)

    @cached_property
    def context(self) -> RunContext:
        """The data set and the model of the experiment, on the CPU."""
        return RunContext(self.experiment, files.cache_folder())

    @property
    def steps(self) -> list[int]:
        """The numbers of finished rounds after which there is a checkpoint."""
        return checkpoint.steps(self.folder / CHECKPOINTS)

    def snapshot(self, step: int | None = None) -> Snapshot:
        """Return the state of a checkpoint.

        Args:
            step: Finished rounds of the run, see `steps`; None: the newest checkpoint.

        Raises:
            DamagedFile: The checkpoint is damaged, or is not the one that the summary names.
            RunError: There is no such checkpoint.
        """
        folder = self.folder / CHECKPOINTS
        found = checkpoint.newest(folder) if step is None else checkpoint.read(folder, step)
        summary = read_summary(self.folder) if step is None else None
        if summary is not None and (found is None or found.state_sha256 != summary["state_sha256"]):
            raise DamagedFile(f"{folder}: the checkpoint after round {summary['rounds']}, the last one, is missing")
        if found is None:
            raise RunError(f"{self.folder}: there is no checkpoint yet")
        return Snapshot.restore(found)

    def model(self, step: int | None = None) -> nn.Module:
        """Return a new module in evaluation mode with the global weights of a checkpoint, by default the newest.

        Personal parameters have their initial values; `client_model` returns those of a client.

        Args:
            step: Finished rounds of the run, see `steps`; None: the newest checkpoint.

        Raises:
            RunError: There is no such checkpoint.
        """
        return self._build(self.snapshot(step).model)

    def client_model(self, client: int, step: int | None = None) -> nn.Module:
        """Return a new module with the personal model of a client, from the global weights and the client's state.

        Args:
            client: The client, from 0.
            step: Finished rounds of the run, see `steps`; None: the newest checkpoint.

        Raises:
            RunError: There is no such client or checkpoint.
        """
        if not 0 <= client < len(self.partition):
            raise RunError(f"{self.folder}: there is no client {client}; clients are 0 to {len(self.partition) - 1}")
        snapshot = self.snapshot(step)
        phases = self.experiment.phases
        context = self._phase_context(min(snapshot.phase, len(phases) - 1), snapshot)
        stored = FileClientStore(self.folder / CLIENT_STATES).get(snapshot.client_state(client))
        received = {"weights": snapshot.server.weights, BUFFERS: snapshot.buffers}
        weights = evaluated_weights(context, EvaluationPlan(0, "", "personal", NO_ROWS, client), received, stored)
        if context.phase.algorithm.eval_models["personal"].mentor and self.experiment.mentor is not None:
            return self._build(weights, self.experiment.mentor)
        return self._build({**snapshot.model, **weights})

    def export(
        self, folder: Path | str, step: int | None = None, client: int | None = None, merge: bool = False
    ) -> list[str]:
        """Write a trained model of transformers, its tokenizer and a model card to a folder.

        Args:
            folder: The folder, for `from_pretrained` of transformers; it is created.
            step: Finished rounds of the run, see `steps`; None: the newest checkpoint.
            client: The client whose personal model is written; None: the global model.
            merge: Whether adapters are merged into the weights, and not written next to them as peft stores them.

        Returns:
            The names of the files.

        Raises:
            RunError: The model is none of transformers, the folder is not empty, or there is no such checkpoint or
                client.
        """
        require_empty(Path(folder))
        module = self.model(step) if client is None else self.client_model(client, step)
        which = "The global model" if client is None else f"The personal model of client {client}"
        card = card_lines(self.experiment.name, which, self._facts(step), "privacy" in self.summary)
        return write_model(Path(folder), module, self.experiment.model.tokenizer(), merge, card)

    def _facts(self, step: int | None) -> dict[str, object]:
        """Return the facts of the run for a model card."""
        summary, stored = self.summary, self.manifest
        algorithms = [type(phase.algorithm) for phase in self.experiment.phases]
        facts: dict[str, object] = {
            "initial weights": getattr(self.experiment.model, "weights", None) or "drawn from the seed",
            "algorithm": ", ".join(ALGORITHMS.name_of(one) or one.__name__ for one in algorithms),
            "clients": len(self.stored_partition),
            "rounds": self.steps[-1] if step is None else step,
            "bytes sent in the whole run": f"{summary['bytes']['total']:,}",
            "seed": self.experiment.seed,
            "data (SHA-256)": stored.data_sha256,
            "partition (SHA-256)": stored.partition_sha256,
        }
        final = summary.get("final") if step is None else None
        return facts | {f"final {name} of the global model": f"{value:.4f}" for name, value in (final or {}).items()}

    def _phase_context(self, phase: int, snapshot: Snapshot) -> PhaseContext:
        """Return the context of a phase, with the model as earlier phases have left it."""
        self.context.overwrite(snapshot.base_weights)
        return self.context.phase_context(phase, len(self.partition))

    def _build(self, weights: Weights, model: Model | None = None) -> nn.Module:
        module = (model or self.experiment.model).build(self.context.task)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        return release(module).eval()

    def __repr__(self) -> str:
        summary = read_summary(self.folder)
        if summary is None:
            return f"{self.folder}: a run with {len(self.rounds())} rounds so far"
        return "\n".join(summary_lines(summary))
