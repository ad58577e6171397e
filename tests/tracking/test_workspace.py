"""The W&B workspace of a sweep: runs filtered and grouped, charts of the settings that vary, without network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simfl import config
from simfl.cli import main
from simfl.runs.folder import write_json
from simfl.sweeps.file import load

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # wandb-workspaces, when it is imported
SWEEP = """
name: grid
seed: 1
data: digits
partition: {by: iid}
model: {name: mlp, hidden_sizes: [4]}
tracking: {wandb: {project: papers, entity: us, mode: offline}}
evaluate: {splits: [test], limit: 20}
phases:
  - objective: classification
    algorithm: fedavg
    rounds: 1
    participation: 1.0
    local: {steps: 1, batch_size: 8, optimizer: sgd, learning_rate: 0.1}
grid:
  partition.clients: [3, 10]
  participation: [0.5, 1.0]
seeds: [1, 2]
"""


def write_sweep(folder: Path, text: str) -> Path:
    """Write the folder of a sweep whose runs have not started, and return it."""
    (folder / "grid.yaml").write_text(text)
    sweep = load(folder / "grid.yaml")
    runs = [{"label": point.label, "varied": dict(point.varied)} for point in sweep.points]
    for point in sweep.points:
        own = folder / "out" / "runs" / point.label
        own.mkdir(parents=True)
        (own / "experiment.yaml").write_text(config.dump(point.experiment))
    write_json(folder / "out" / "sweep.json", {"name": sweep.name, "runs": runs})
    return folder / "out"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("swept"), SWEEP)


@pytest.fixture
def view(swept: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["dashboard", str(swept), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_workspace_belongs_to_the_project_of_the_runs(view: dict[str, Any]) -> None:
    assert (view["entity"], view["project"], view["displayName"]) == ("us", "papers", "grid")


def test_the_workspace_shows_only_the_runs_of_the_sweep_grouped_by_the_varied_settings(view: dict[str, Any]) -> None:
    (runs,) = view["spec"]["section"]["runSets"]
    (only,) = runs["filters"]["filters"]
    assert (only["key"]["name"], only["value"]) == ("group", "grid")
    # the site stores config entries under `value`; runs are not grouped by seed, since means are over seeds
    assert [by["name"] for by in runs["grouping"]] == ["sweep.value.clients", "sweep.value.participation"]


def test_the_charts_are_over_rounds_and_over_bytes(view: dict[str, Any]) -> None:
    text = json.dumps(view["spec"])
    for name in ("evaluations/test/global/accuracy", "by_bytes/accuracy", "rounds/loss", "timings/train"):
        assert name in text
    assert "by_epsilon" not in text


def test_each_run_logs_its_varied_settings(swept: Path) -> None:
    experiment = config.load(swept / "runs" / "clients-3_participation-0.5_seed-1" / "experiment.yaml")
    assert experiment.tracking.wandb is not None
    assert experiment.tracking.wandb.group == "grid"
    assert experiment.tracking.wandb.varied == {"clients": 3, "participation": 0.5, "seed": 1}


def test_options_override_entity_and_project(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["dashboard", str(swept), "--json", "--entity", "them", "--project", "other"])
    found = json.loads(capsys.readouterr().out)
    assert (found["entity"], found["project"]) == ("them", "other")


def test_a_sweep_without_tracking_raises_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, SWEEP.replace("tracking: {wandb", "# tracking: {wandb"))
    assert main(["dashboard", str(tmp_path / "out"), "--json"]) == 2
    assert capsys.readouterr().err == (
        "simfl: grid: none of its runs logs to W&B; set tracking: {wandb: {}} in its file\n"
    )


def test_a_folder_without_a_sweep_raises_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path)]) == 2
    assert "holds no sweep" in capsys.readouterr().err
