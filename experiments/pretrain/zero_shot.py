"""Scores of pretrained weights on the validation questions of the quickstart, before any federated round.

    python experiments/pretrain/zero_shot.py [vt5_tiny] [COUNT]

The weights are bundled ones or a folder. COUNT questions are sampled as in an evaluation with that limit; default: all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from simfl import config
from simfl.data.base import Split
from simfl.models.vt5 import VT5
from simfl.objectives.base import Objective
from simfl.protocol import Task
from simfl.seeds import rng

QUICKSTART = Path(__file__).resolve().parents[1] / "quickstart.yaml"
CACHE = Path("build/pretrain/data")
BATCH = 16


def zero_shot(weights: str, split: Split, objective: Objective, rows: np.ndarray) -> dict[str, float]:
    """Return the mean of each metric over these rows of `split`."""
    model = VT5(weights=weights, dropout=0.0)
    network = model.build(Task(seed=0))
    examples = objective.encode(split, model.tokenizer())
    found: list[dict[str, np.ndarray]] = []
    with torch.no_grad():
        for part in np.array_split(rows, max(1, len(rows) // BATCH)):
            predictions = objective.predict(network, examples.take(torch.from_numpy(part)))
            found.append(objective.score(predictions, split, part))
    return {name: float(np.concatenate([part[name] for part in found]).mean()) for name in found[0]}


def main(weights: str = "vt5_tiny", count: str = "") -> None:
    """Print the scores of the weights."""
    experiment = config.load(QUICKSTART)
    split = experiment.data.load(CACHE).splits["valid"]
    rows = np.arange(len(split))
    if count:
        rows = np.sort(rng(experiment.seed, "evaluate", "valid").choice(rows, size=int(count), replace=False))
    scores = zero_shot(weights, split, experiment.phases[0].objective, rows)
    print(f"{weights}: {', '.join(f'{name} {value:.3f}' for name, value in scores.items())} on {len(rows)} questions")


if __name__ == "__main__":
    main(*sys.argv[1:])
