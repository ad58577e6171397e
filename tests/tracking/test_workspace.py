"""The workspace of a sweep: its runs found, grouped and charted by what varies, without the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simfl import config
from simfl.cli import main
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


def lay(folder: Path, text: str) -> Path:
    """A sweep's folder as it is before its runs are done."""
    (folder / "grid.yaml").write_text(text)
    sweep = load(folder / "grid.yaml")
    runs = [{"label": point.label, "shown": dict(point.shown)} for point in sweep.points]
    for point in sweep.points:
        own = folder / "out" / "runs" / point.label
        own.mkdir(parents=True)
        (own / "experiment.yaml").write_text(config.dump(point.experiment))
    (folder / "out" / "sweep.json").write_text(json.dumps({"name": sweep.name, "runs": runs}))
    return folder / "out"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay(tmp_path_factory.mktemp("swept"), SWEEP)


@pytest.fixture
def view(swept: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["dashboard", str(swept), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_belongs_where_the_runs_are(view: dict[str, Any]) -> None:
    assert (view["entity"], view["project"], view["displayName"]) == ("us", "papers", "grid")


def test_it_shows_the_runs_of_the_sweep_alone_grouped_by_what_varies(view: dict[str, Any]) -> None:
    (runs,) = view["spec"]["section"]["runSets"]
    (only,) = runs["filters"]["filters"]
    assert (only["key"]["name"], only["value"]) == ("group", "grid")
    # `value` is where the site keeps what a config holds; seeds are what means are taken over
    assert [by["name"] for by in runs["grouping"]] == ["sweep.value.clients", "sweep.value.participation"]


def test_its_charts_stand_over_rounds_and_over_bytes(view: dict[str, Any]) -> None:
    text = json.dumps(view["spec"])
    for name in ("evaluations/test/global/accuracy", "by_bytes/accuracy", "rounds/loss", "timings/train"):
        assert name in text
    assert "by_epsilon" not in text


def test_each_run_tells_what_it_has_of_what_varies(swept: Path) -> None:
    experiment = config.load(swept / "runs" / "clients-3_participation-0.5_seed-1" / "experiment.yaml")
    assert experiment.tracking.wandb is not None
    assert experiment.tracking.wandb.group == "grid"
    assert experiment.tracking.wandb.varied == {"clients": 3, "participation": 0.5, "seed": 1}


def test_another_project_may_be_named(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["dashboard", str(swept), "--json", "--entity", "them", "--project", "other"])
    found = json.loads(capsys.readouterr().out)
    assert (found["entity"], found["project"]) == ("them", "other")


def test_a_sweep_that_nobody_tracks_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay(tmp_path, SWEEP.replace("tracking: {wandb", "# tracking: {wandb"))
    assert main(["dashboard", str(tmp_path / "out"), "--json"]) == 2
    assert capsys.readouterr().err == (
        "simfl: grid: no run of it is told to W&B; set tracking: {wandb: {}} in its file\n"
    )


def test_a_folder_without_a_sweep_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path)]) == 2
    assert "holds no sweep" in capsys.readouterr().err
