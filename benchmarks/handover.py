"""A work as a file that needs no simfl to be read: data, first weights, and who trains what in which order.

`python -m benchmarks.handover WORK FILE` writes a numpy archive; `benchmarks.plain` reads it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.works import WORKS
from simfl import cache
from simfl.run_context import RunContext
from simfl.sampling import sample_clients
from simfl.training.plan import batches


def write(work: str, path: Path) -> None:
    """Everything in the order in which simfl has it, so that all systems do the same work."""
    experiment = WORKS[work]
    setting, phase = RunContext(experiment, cache.folder()), experiment.phases[0]
    arrays = {f"row:{name}": t.numpy() for name, t in setting.examples(phase.objective, "train").rows.items()}
    for place, (name, p) in enumerate(setting.module.named_parameters()):
        arrays[f"start:{place:03}:{name}"] = p.detach().numpy()
        arrays[f"trained:{place:03}"] = np.asarray(p.requires_grad)
    partition = experiment.partition.split(setting.split("train"), experiment.seed)
    visits, steps = [], []
    for number in range(phase.rounds):
        for client in sample_clients(phase, len(partition), experiment.seed, 0, number):
            rows = partition.rows(client)
            table = batches(rows, phase.local, experiment.seed, "visit", 0, number, client, 0)
            visits.append((number, client, len(rows), len(table)))
            steps.append(table)
    arrays["visits"], arrays["steps"] = np.asarray(visits), np.concatenate(steps)
    facts = (experiment.name, phase.local.optimizer.name, phase.local.learning_rate, phase.local.batch_size)
    np.savez(path, facts=np.asarray([*map(str, facts), str(len(partition))]), **arrays)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
