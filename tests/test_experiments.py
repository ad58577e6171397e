"""Included experiments: every file is valid, and every row of the papers' benchmarks runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from simfl import config
from simfl.commands.templates import templates
from simfl.plans.plan import plan
from simfl.reports.results import results_of
from simfl.sweeps import file, sweep
from simfl.sweeps.pool import SweepPlacement

ROOT = Path(__file__).parent.parent / "experiments"
BENCHES = sorted(path.parent.name for path in ROOT.glob("*/bench.yaml"))
SWEEPS = sorted(set(ROOT.rglob("*.yaml")) - set(templates().values()))
PAPERS = {"fedvqa", "feddat", "fedocr", "pfl_docvqa", "fedocvqa"}
LONG = {"fedocvqa", "pfl_docvqa"}  # whose first row takes longer than the others'
SMALL = {  # settings with which a sweep's runs take seconds
    "fedvqa": ["data.train=16", "data.test=6", "data.valid=2", "data.test_novel=2"],
    "feddat": ["data.train=16", "data.test=6", "data.valid=2", "data.test_novel=2"],
    "pfl_docvqa": ["data.providers=10", "data.unseen=2", "data.train=20", "data.valid=4", "data.test=4"],
    "fedocr": ["data.train=16", "data.valid=2", "data.test=4", "data.test_font=2"],
    "fedocvqa": ["data.train=6", "data.valid=2", "data.test=4", "data.unseen=2"],
}


def test_every_paper_has_a_small_benchmark() -> None:
    assert set(BENCHES) == PAPERS == set(SMALL)


@pytest.mark.parametrize("name", templates())
def test_every_included_experiment_is_read_back_equal(name: str) -> None:
    experiment = config.load(templates()[name])
    assert config.parse(config.to_mapping(experiment)) == experiment


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_included_sweep_is_valid_and_compares_with_one_of_its_rows(path: Path) -> None:
    found = file.load(path)
    values = {str(value) for point in found.points for value in point.varied.values()}
    assert found.table.against is None or found.table.against in values


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, path in templates().items() if "data/" in path.read_text()])
def test_an_experiment_of_published_size_is_planned_without_data(name: str, tmp_path: Path) -> None:
    found = plan(config.load(templates()[name]), tmp_path).json()
    assert found["messages"] == 0 or found["message"]["download"]["bytes"] > 0


@pytest.mark.parametrize("folder", BENCHES)
def test_every_row_of_a_benchmark_has_the_same_three_seeds(folder: str) -> None:
    lines: dict[object, set[int]] = {}
    for point in file.load(ROOT / folder / "bench.yaml").points:
        lines.setdefault(point.varied["variant"], set()).add(point.experiment.seed)
    assert set(map(frozenset, lines.values())) == {frozenset({1, 2, 3})}


@pytest.mark.parametrize("folder", BENCHES)
def test_every_row_of_a_benchmark_equals_its_own_experiment_file(folder: str) -> None:
    for point in file.load(ROOT / folder / "bench.yaml", ["seeds=[1]"]).points:
        own = config.load(ROOT / folder / f"{point.varied['variant']}.yaml")
        assert own.name == f"{folder}_small_{point.varied['variant']}"
        assert replace(own, name=point.label) == point.experiment


@pytest.mark.parametrize(
    "folder", [pytest.param(one, marks=pytest.mark.slow if one in LONG else ()) for one in BENCHES]
)
def test_the_first_row_of_a_benchmark_runs(folder: str, tmp_path: Path) -> None:
    _run(folder, tmp_path, first=True)


@pytest.mark.parametrize("file", ["small_vault.yaml", "small_albef.yaml"])
def test_the_first_row_of_feddat_runs_with_its_other_models(file: str, tmp_path: Path) -> None:
    _run("feddat", tmp_path, first=True, also=(f"experiment={file}",))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["small_vault.yaml", "small_albef.yaml"])
def test_every_row_of_feddat_runs_with_its_other_models(file: str, tmp_path: Path) -> None:
    _run("feddat", tmp_path, first=False, also=(f"experiment={file}",))


@pytest.mark.slow
@pytest.mark.parametrize("folder", BENCHES)
def test_every_row_of_a_benchmark_runs(folder: str, tmp_path: Path) -> None:
    _run(folder, tmp_path, first=False)


def _run(folder: str, tmp_path: Path, first: bool, also: tuple[str, ...] = ()) -> None:
    """Run one or two rounds of one local step with seed 1, and check that every score is finite."""
    path = ROOT / folder / "bench.yaml"
    axes = {"rounds": 2, "local.steps": 1, "local.batch_size": 4}  # set in the grid, which overrides the row
    few = ["evaluate.limit=4", *(f"grid.phases.*.{name}=[{value}]" for name, value in axes.items())]
    settings = [*SMALL[folder], *few, *also]
    whole = file.load(path, [*settings, "seeds=[1]"])
    found = file.Sweep(whole.name, whole.points[:1] if first else whole.points)
    outcomes = sweep.run(found, tmp_path / "out", SweepPlacement("inline"))
    assert [(o.label, o.status, o.error) for o in outcomes] == [(p.label, "completed", "") for p in found.points]
    for result in results_of([tmp_path / "out"]):
        assert result.scores, result.label
        assert all(math.isfinite(value) for value in result.scores.values()), result.label
