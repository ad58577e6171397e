"""Write a work to a file that other systems can read: data, initial weights, and the client updates of every round.

`python -m benchmarks.handover WORK FILE` writes a numpy archive; `benchmarks.plain` reads it without simfl.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.works import WORKS
from simfl import files
from simfl.data.partition.holdout import assign
from simfl.run_context import RunContext
from simfl.sampling import sample_clients
from simfl.training.batches import batches


def write(work: str, path: Path) -> None:
    """Write a work in the order in which simfl trains it, so that all systems do the same work."""
    experiment = WORKS[work]
    context, phase = RunContext(experiment, files.cache_folder()), experiment.phases[0]
    arrays: dict[str, Any] = {
        f"row:{name}": t.numpy() for name, t in context.examples(phase.objective, "train").rows.items()
    }
    for index, (name, p) in enumerate(context.module.named_parameters()):
        arrays[f"start:{index:03}:{name}"] = p.detach().numpy()
        arrays[f"trained:{index:03}"] = np.asarray(p.requires_grad)
    partition = assign(experiment.partition, context.split("train"), experiment.seed)
    updates, steps = [], []
    for number in range(phase.rounds):
        for client in sample_clients(phase, len(partition), experiment.seed, 0, number):
            rows = partition.rows(client)
            table = batches(rows, phase.local, experiment.seed, "visit", 0, number, client, 0)
            updates.append((number, client, len(rows), len(table)))
            steps.append(table)
    arrays["updates"], arrays["steps"] = np.asarray(updates), np.concatenate(steps)
    facts = (experiment.name, phase.local.optimizer.name, phase.local.learning_rate, phase.local.batch_size)
    np.savez(path, facts=np.asarray([*map(str, facts), str(len(partition))]), **arrays)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
