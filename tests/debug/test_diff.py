"""Comparison of two runs: equal, or the first client, step and tensor that differ."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes import Stopping, experiment, run
from forging import forge_rows

from simfl.algorithms.fedprox import FedProx
from simfl.cli import main
from simfl.debug.diff import RowPosition, RunDiff, compare, diff_lines, differing_paths
from simfl.experiment import Evaluate, Experiment
from simfl.optimizers.server import Sgd
from simfl.protocol import Loss
from simfl.runs import checkpoint
from simfl.runs.results import Run

BASE = experiment("fedprox", participation=0.5, evaluate=Evaluate(samples=0))


@dataclass(frozen=True)
class Perturbed(FedProx):
    """FedProx that adds to the gradient of one bias of one client, from one step of one round on."""

    client: int = 99  # no client
    round: int = 1
    step: int = 0

    def loss(self, outputs, batch, trained, received, state, update):
        usual = super().loss(outputs, batch, trained, received, state, update)
        hit = (update.client == self.client) & (update.round == self.round) & (update.step >= self.step)
        return Loss(usual.sums, usual.weights, client_term=usual.client_term + 1e-3 * hit * trained["head.bias"][0])


def both(folder: Path, a: Experiment, b: Experiment, again: bool = True) -> RunDiff:
    run(a, folder / "a")
    run(b, folder / "b")
    return compare(Run(folder / "a"), Run(folder / "b"), again)


def with_algorithm(algorithm: FedProx) -> Experiment:
    """Without evaluated losses, which would show a difference before the next client update does."""
    evaluate = replace(BASE.evaluate, loss=False)
    return replace(BASE, phases=(replace(BASE.phases[0], algorithm=algorithm),), evaluate=evaluate)


def test_equal_runs_are_reported_as_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = both(tmp_path, BASE, replace(BASE, name="other"))
    assert found == RunDiff(settings=['name: "toy" | "other"'])
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the runs are equal"


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    run(BASE, tmp_path / "a")
    run(BASE, tmp_path / "b", display=Stopping(1))
    run(BASE, tmp_path / "b", resume=True)
    assert compare(Run(tmp_path / "a"), Run(tmp_path / "b")).equal


def test_the_first_client_step_and_tensor_that_differ_are_found(tmp_path: Path) -> None:
    run(with_algorithm(Perturbed()), tmp_path / "a")
    update = next(v for v in Run(tmp_path / "a").clients().to_pylist() if v["round"] == 2 and v["steps"] == 3)
    run(with_algorithm(Perturbed(client=update["client"], step=2)), tmp_path / "b")
    found = compare(Run(tmp_path / "a"), Run(tmp_path / "b"))
    assert found.first == RowPosition(
        0, 3, 1
    )  # the loss of a later client update: the tables show no trace of the last step of this one
    where, loss, gradient, weights = found.divergence
    assert where == f"phase 0, round 2, client {update['client']}, local step 2:"
    assert loss.startswith("  loss equal")
    assert gradient == "  gradient: head.bias: max |A − B| 0.001 at [0], 1 of 5 values differ"
    assert weights == "  weights after the step: head.bias: max |A − B| 0.0001 at [0], 1 of 5 values differ"  # eta 0.1


def test_a_server_setting_makes_a_difference_after_the_server_step(tmp_path: Path) -> None:
    slower = replace(BASE, phases=(replace(BASE.phases[0], server=Sgd(learning_rate=0.5)),))
    found = both(tmp_path, BASE, slower)
    assert found.settings == ["phases.0.server.learning_rate: 1.0 | 0.5"]
    assert found.divergence[0] == "phase 0, round 1, after the server step:"
    assert found.divergence[1].startswith("  weights/layers.0.linear.weight: max |A − B|")


def test_another_seed_makes_a_difference_in_the_initial_model(tmp_path: Path) -> None:
    found = both(tmp_path, BASE, replace(BASE, seed=7))
    assert found.first == RowPosition(0, 0, 4)  # the scores before the first round
    assert found.divergence[0] == "phase 0, round 1, before training:"


def test_different_sampled_clients_are_reported(tmp_path: Path) -> None:
    more = replace(BASE, phases=(replace(BASE.phases[0], participation=0.6),))
    found = both(tmp_path, BASE, more)
    assert found.divergence[1].startswith("  different clients are sampled: [")


def test_a_run_that_differs_from_its_record_is_reported(tmp_path: Path) -> None:
    run(BASE, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    rows = forge_rows(tmp_path / "b", "clients", 2, lambda rows: rows[2].update(loss=rows[2]["loss"] * 2))
    (line,) = compare(Run(tmp_path / "a"), Run(tmp_path / "b")).divergence
    client = rows[2]["client"]
    assert line.startswith(f"repeated run B differs from its record: clients phase 0, round 2, client {client}: loss")


def test_a_shorter_run_equals_the_first_rounds_of_a_longer_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = replace(BASE, phases=(replace(BASE.phases[0], rounds=4),))
    found = both(tmp_path, BASE, longer, again=False)
    assert found.first == RowPosition(0, 4, 0)
    assert found.rows[:2] == ["rounds: 1 rows differ, of 3 | 4", "  phase 0, round 4: only in B"]
    assert found.checkpoints == []  # the newest common checkpoint is that of round 3
    assert main(["diff", "--no-again", str(tmp_path / "a"), str(tmp_path / "b")]) == 1


def test_checkpoints_are_compared_by_tensor(tmp_path: Path) -> None:
    run(BASE, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    folder = tmp_path / "b" / "checkpoints"
    found = checkpoint.read(folder, 3)
    found.tensors["weights/head.bias"][3] += 0.5
    checkpoint.write(folder, 3, found.tensors, found.values, coverage=found.coverage)
    os.remove(tmp_path / "b" / "summary.json")
    compared = compare(Run(tmp_path / "a"), Run(tmp_path / "b"), again=False)
    assert compared.checkpoints[0] == "after round 3:"
    assert compared.checkpoints[1].startswith("  weights/head.bias: max |A − B| 0.5 at [3], 1 of 5 values differ")
    assert diff_lines(compared)[-1] == "the runs differ"


def test_predictions_are_compared(tmp_path: Path) -> None:
    kept = replace(BASE, evaluate=Evaluate(samples=2))
    found = both(tmp_path, kept, replace(kept, phases=(replace(BASE.phases[0], server=Sgd(learning_rate=0.5)),)), False)
    assert "samples: 6 rows differ, of 8 | 8" in found.rows  # two after each of three rounds


def test_nested_values_are_compared_leaf_by_leaf() -> None:
    a, b = {"x": {"y": [1, {"z": 2}]}, "same": 0, "gone": 1}, {"x": {"y": [1, {"z": 3}]}, "same": 0}
    assert list(differing_paths(a, b)) == ["x.y.1.z: 2 | 3", "gone: 1 | null"]
