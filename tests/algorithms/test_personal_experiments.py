"""The included experiments with personal parameters: FedPer, FedBN and FedRep run, and keep their parameters local."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from simfl import config, simulation
from simfl.runs.results import Run
from simfl.session.options import RunOptions

FOLDER = Path(__file__).parent.parent.parent / "experiments" / "personal"
SMALL = {
    "fedper": ["data.train=20", "data.valid=4", "data.test=4"],
    "fedrep": ["data.train=20", "data.valid=4", "data.test=4"],
    "fedbn": ["data.train=20", "data.valid=4", "data.test=2", "data.test_font=2"],
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_experiment_with_personal_parameters_runs_and_keeps_them_on_the_client(name: str, tmp_path: Path) -> None:
    few = ["phases.0.rounds=1", "phases.0.local.steps=2", "phases.0.local.batch_size=4"]
    experiment = config.load(FOLDER / f"{name}.yaml", [*SMALL[name], *few])
    simulation.run(experiment, RunOptions(tmp_path, "inline"))
    run = Run(tmp_path)
    (phase,) = run.experiment.phases
    sent = run.snapshot().server.weights
    assert sent
    assert not [tensor for tensor in sent for glob in phase.personal_params if fnmatchcase(tensor, glob)]
    assert any(metric.startswith("personal.") for metric in run.summary["final"])


def test_every_experiment_of_the_folder_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(SMALL)
