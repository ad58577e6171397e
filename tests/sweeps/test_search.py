"""Searches: trials are normal runs, a killed search loses and repeats none, and nothing wrong starts."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Faulty, Toy, experiment, run, then, traces

from simfl import config, simulation
from simfl.cli import main
from simfl.errors import ConfigError, RunError
from simfl.experiment import Evaluate
from simfl.runs.folder import read_json
from simfl.runs.results import Run
from simfl.session.options import RunOptions
from simfl.sweeps import sweep
from simfl.sweeps.file import Sweep, load
from simfl.sweeps.fork import fork
from simfl.sweeps.pool import SweepPlacement
from simfl.sweeps.study import Study

INLINE = SweepPlacement("inline")
FEW = Toy(sizes=(8, 16, 8, 24), valid=20)
BASE = config.to_mapping(experiment(rounds=2, evaluate=Evaluate(samples=0), data=FEW))
RATE = {"local.learning_rate": {"log_uniform": [0.001, 1]}}
SPACE = {**RATE, "local.batch_size": {"int": [4, 12], "step": 4}, "algorithm": {"choice": ["fedavg", "fednova"]}}


def search(folder: Path, trials: int = 3, base: dict[str, Any] = BASE, **settings: Any) -> Sweep:
    """Return the sweep of a file with this search."""
    (folder / "base.yaml").write_text(json.dumps(base))
    given = {"space": SPACE, "trials": trials, **settings}
    (folder / "found.yaml").write_text(json.dumps({"experiment": "base.yaml", "search": given}))
    return load(folder / "found.yaml")


def proposed(folder: Path) -> list[Any]:
    return [run["settings"] for run in read_json(folder / "sweep.json")["runs"]]


def test_each_trial_is_bit_identical_to_its_experiment_run_alone(tmp_path: Path) -> None:
    outcomes = sweep.run(search(tmp_path, 2), tmp_path / "s", INLINE)
    assert [(one.label, one.status) for one in outcomes] == [(f"trial-000{i}", "completed") for i in range(2)]
    for outcome in outcomes:
        run(config.load(tmp_path / "s" / "runs" / outcome.label / "experiment.yaml"), tmp_path / outcome.label)
        assert traces(tmp_path / "s" / "runs" / outcome.label) == traces(tmp_path / outcome.label)
    first = proposed(tmp_path / "s")[0]
    alone = config.with_settings(BASE, first) | {"name": "trial-0000"}
    assert (tmp_path / "s" / "runs" / "trial-0000" / "experiment.yaml").read_text() == config.dump(config.parse(alone))


def test_a_killed_search_continues_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposing: dict[str, Any] = {
        "sampler": {"name": "tpe", "random_trials": 1},
        "pruner": {"name": "asha", "reduction": 2},
    }
    found = search(tmp_path, 4, **proposing)
    sweep.run(found, tmp_path / "whole", INLINE)
    killed, whole, begun = tmp_path / "killed", simulation.run, list[str]()

    def interrupted(one: Any, options: RunOptions) -> Any:
        calls = iter(["", "interrupted"])
        begun.append(one.name)
        return whole(one, replace(options, until=lambda: next(calls)) if one.name == "trial-0002" else options)

    monkeypatch.setattr(simulation, "run", interrupted)
    assert [one.status for one in sweep.run(found, killed, INLINE)][-1] == "interrupted"
    assert begun == [f"trial-000{i}" for i in range(3)]
    monkeypatch.setattr(simulation, "run", lambda one, *rest: (begun.append(one.name), whole(one, *rest))[1])
    sweep.run(found, killed, INLINE, resume=True)
    assert begun[3:] == ["trial-0002", "trial-0003"]
    assert proposed(killed) == proposed(tmp_path / "whole")
    for label in ("trial-0002", "trial-0003"):
        assert traces(killed / "runs" / label) == traces(tmp_path / "whole" / "runs" / label)
    assert len(sweep.run(search(tmp_path, 5, **proposing), killed, INLINE, resume=True)) == 5
    assert begun[5:] == ["trial-0004"]


def test_a_pruned_trial_ends_between_rounds_and_can_be_completed(tmp_path: Path) -> None:
    """The third trial has learning rate 0 and is below the median after the first of 3 rounds."""
    base = config.to_mapping(experiment(rounds=3, evaluate=Evaluate(samples=0)))
    rates = [{"local.learning_rate": rate} for rate in (0.2, 0.3, 0.0)]
    space = {"local.learning_rate": {"uniform": [0, 1]}}
    pruner = {"name": "median", "trials": 2, "after": 0}
    found = search(tmp_path, base=base, space=space, first=rates, pruner=pruner)
    outcomes = sweep.run(found, tmp_path / "s", INLINE)
    assert [one.status for one in outcomes] == ["completed", "completed", "stopped"]
    pruned = tmp_path / "s" / "runs" / "trial-0002"
    assert len(Run(pruned).rounds()) == 1
    one = config.load(pruned / "experiment.yaml")
    assert run(one, pruned, resume=True)["status"] == "completed"
    run(one, tmp_path / "alone")
    assert traces(pruned) == traces(tmp_path / "alone")


def test_trials_start_from_the_state_of_a_run(tmp_path: Path) -> None:
    run(replace(experiment(rounds=2, evaluate=Evaluate(samples=0), data=FEW), name="source"), tmp_path / "source")
    base = config.to_mapping(experiment(rounds=3, evaluate=Evaluate(samples=0), data=FEW))
    given: dict[str, Any] = {"fork": {"run": "source", "at": 1}, "space": RATE, "base": base}
    sweep.run(search(tmp_path, 2, **given), tmp_path / "s", INLINE)
    trial = tmp_path / "s" / "runs" / "trial-0001"
    one = config.load(trial / "experiment.yaml")
    fork(Run(tmp_path / "source"), tmp_path / "alone", one, 1)
    run(one, tmp_path / "alone", resume=True)
    assert traces(trial) == traces(tmp_path / "alone")
    with pytest.raises(ConfigError, match=r"--at: 9 given; .*source has finished rounds 1 to 2"):
        sweep.run(search(tmp_path, **{**given, "fork": {"run": "source", "at": 9}}), tmp_path / "t", INLINE)
    assert not (tmp_path / "t").exists()


def test_a_failed_trial_is_repeated_by_resume_and_counts_once(tmp_path: Path) -> None:
    (tmp_path / "met").mkdir()
    base = config.to_mapping(experiment(Faulty(folder=str(tmp_path / "met"), times=1), rounds=2))
    found = search(tmp_path, 2, base=base, space=RATE)
    assert [one.status for one in sweep.run(found, tmp_path / "s", INLINE)] == ["failed", "completed"]
    assert [one.status for one in sweep.run(found, tmp_path / "s", INLINE, resume=True)] == ["completed"] * 2


def test_settings_are_tried_once_each(tmp_path: Path) -> None:
    plan = search(tmp_path, 9, space={"algorithm": {"choice": ["fedavg", "fednova"]}}).search
    assert plan is not None
    study = Study(plan)
    points = [study.propose() for _ in range(3)]
    assert sorted(str(p.settings["algorithm"]) for p in points if p is not None) == ["fedavg", "fednova"]
    assert points[2] is None
    assert study.left == 0


def test_proposals_do_not_depend_on_when_the_study_was_built(tmp_path: Path) -> None:
    """Two trials run at a time; the second study is restored while both are in progress."""
    plan = search(tmp_path, 20, sampler={"name": "tpe", "random_trials": 2}).search
    assert plan is not None
    first = Study(plan)
    for value in (0.2, 0.4, 0.3):
        point = first.propose()
        assert point is not None
        first.end(point.label, "completed", value)
    running = [first.propose(), first.propose()]
    again = Study(plan)
    for label, trial in first.trials.items():
        again.restore(label, trial.point.settings, trial.draw)
        if trial.value is not None:
            again.end(label, "completed", trial.value)
    assert None not in running
    assert first.propose() == again.propose()
    assert first.best is not None
    assert (first.best.point.label, first.best.value) == ("trial-0001", 0.4)


SPLITS = {**BASE, "evaluate": {"splits": ["test", "valid"]}}
WRONG = [
    ({"space": {}}, "search.space: {} is not a mapping of dotted paths to uniform, log_uniform, int, log_int, choice"),
    ({"space": {"seed": [1, 2]}}, "search.space.seed: [1, 2] has no kind; write {KIND: values}, KIND one of uniform"),
    ({"space": {"seed": {"ints": [1, 2]}}}, "search.space.seed: unknown 'ints'; did you mean 'int'?"),
    ({"space": {"seed": {"int": [2, 1]}}}, "search.space.seed: [2, 1] given; the first bound must be below the second"),
    ({"space": {"seed": {"int": [1, 2.5]}}}, "search.space.seed: 2.5 is not a whole number"),
    (
        {"space": {"seed": {"log_int": [0, 2]}}},
        "search.space.seed: [0, 2] given; the bounds of log_int must be above 0",
    ),
    ({"space": {"seed": {"int": [1, 3], "step": 5}}}, "search.space.seed: step: 5 given; allowed: above 0, at most 2"),
    ({"space": {"seed": {"choice": [1]}}}, "search.space.seed: [1] is not a list of at least 2 values"),
    ({"space": {"local.rate": {"int": [1, 3]}}}, "search.space.local.rate: with 1: phases.0.local.rate: unknown key"),
    (
        {"space": {"local.epochs": {"int": [0, 3]}}},
        "search.space.local.epochs: with 0: phases.0.local.epochs: 0 is not",
    ),
    ({"trials": 0}, "search.trials: 0 is not a whole number of at least 1"),
    ({"sampler": "tpee"}, "search.sampler: unknown 'tpee'; did you mean 'tpe'?"),
    ({"pruner": {"name": "asha", "reduction": 1}}, "search.pruner.reduction: 1 is not a whole number of at least 2"),
    ({"pruner": "asha", "metric": "loss"}, "search.pruner: loss is known at the end of a run alone; allowed: metric:"),
    ({"metric": "acuracy"}, "search.metric: no run will have a score 'acuracy'; did you mean 'accuracy'?"),
    ({"metric": "accuracy:worse"}, "search.metric: unknown 'worse' in 'accuracy:worse'; did you mean 'worst'?"),
    ({"first": [{"seed": 3}]}, "search.first.0: 'seed' is not in the space; allowed: algorithm, local.batch_size"),
    ({"first": [{"local.batch_size": 5}]}, "search.first.0.local.batch_size: 5 is not in the space"),
    ({"sampler": "TPE"}, "search.sampler: unknown 'TPE'; did you mean 'tpe'?"),
    (
        {"space": {"seed": {"int": [1, 3]}, "local.epochs": {"int": [1, 3]}, "phases.*.local.epochs": {"int": [1, 2]}}},
        "search.space.local.epochs: has no effect, because search.space.phases.*.local.epochs sets the same",
    ),
    ({"space": {"name": {"choice": ["a", "b"]}}}, "search.space.name: has no effect, because each run is named by"),
    ({"budget": 3}, "search.budget: unknown key (given 3); allowed: direction, first, fork, metric, pruner, sampler"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_wrong_search_is_refused_before_anything_starts(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        search(tmp_path, **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_test_split_is_optimized_only_if_it_is_named(tmp_path: Path) -> None:
    def objective(base: Any, metric: str | None) -> tuple[str, str, bool]:
        plan = search(tmp_path, base=base, metric=metric).search
        assert plan is not None
        return plan.objective.name, plan.objective.split, plan.objective.maximize

    assert objective(BASE, None) == ("accuracy", "valid", True)
    assert objective(SPLITS, None) == ("valid.accuracy", "valid", True)
    assert objective(SPLITS, "test.accuracy") == ("accuracy", "test", True)
    assert objective(SPLITS, "valid.loss") == ("valid.loss", "valid", False)
    with pytest.raises(ConfigError, match=r"'accuracy' is scored on test; name a validation score, or write 'test\.ac"):
        objective(SPLITS, "accuracy")
    with pytest.raises(ConfigError, match="the experiment is scored on test alone; add a validation split"):
        objective({**BASE, "evaluate": {"splits": ["test"]}}, None)


def test_a_pruner_needs_scores_between_rounds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no trial is scored between its rounds \(evaluate.every: 2, 2 rounds\)"):
        search(tmp_path, base={**BASE, "evaluate": {"every": 2}}, pruner="hyperband")


def test_keys_of_a_grid_are_refused_with_a_search(tmp_path: Path) -> None:
    search(tmp_path)
    for key, instead in (
        ("seeds=[1]", "set: {seed: N}"),
        ("grid={a: [1]}", "with choice"),
        ("stop={}", "search.pruner"),
    ):
        with pytest.raises(ConfigError, match=f"both search and {key.partition('=')[0]} given; .*{instead}"):
            load(tmp_path / "found.yaml", [key])
    with pytest.raises(ConfigError, match=r"--only a\*: has no effect on a search"):
        load(tmp_path / "found.yaml", only=["a*"])
    with pytest.raises(ConfigError, match=r"--set local.learning_rate: has no effect, because it varies in this sea"):
        load(tmp_path / "found.yaml", ["local.learning_rate=1"])


def test_without_optuna_the_search_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"^search: Optuna is not installed; pip install 'simfl\[search\]'$"):
        search(tmp_path)


def test_a_folder_keeps_its_search(tmp_path: Path) -> None:
    sweep.run(search(tmp_path, 1), tmp_path / "s", INLINE)
    with pytest.raises(RunError, match="the space of the search has changed; give another --out"):
        sweep.run(search(tmp_path, 1, space=RATE), tmp_path / "s", INLINE, resume=True)
    grid = load(tmp_path / "found.yaml", ["search=null", "seeds=[1]"])
    with pytest.raises(RunError, match="holds a search; give another --out"):
        sweep.run(grid, tmp_path / "s", INLINE, resume=True)


def test_the_sweep_command_shows_trials_and_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(tmp_path, 2)
    command = ["sweep", str(tmp_path / "found.yaml"), "--backend", "inline"]
    assert main([*command, "--list"]) == 0
    assert capsys.readouterr().out == "trial-0000\ntrial-0001\n"
    assert main([*command, "--out", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("| trial | learning_rate | batch_size | algorithm | accuracy |")
    assert f"; simfl run {tmp_path}/s/runs/trial-000" in shown
    assert main(["watch", str(tmp_path / "s"), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 trials: 2 completed" in shown
    assert "best: trial-000" in shown


@pytest.mark.slow
def test_two_workers_search_at_once(tmp_path: Path, ray_session: None) -> None:
    base = config.to_mapping(then(experiment(rounds=2), experiment(rounds=1)))
    found = search(tmp_path, 6, base=base, space={"phases.*.local.learning_rate": {"log_uniform": [0.001, 1]}})
    outcomes = sweep.run(found, tmp_path / "s", SweepPlacement("ray", 2))
    assert [one.status for one in outcomes] == ["completed"] * 6
    for label in ("trial-0000", "trial-0005"):
        run(config.load(tmp_path / "s" / "runs" / label / "experiment.yaml"), tmp_path / label)
        assert traces(tmp_path / "s" / "runs" / label) == traces(tmp_path / label)


@pytest.mark.slow
def test_runs_of_forked_workers_are_bit_identical(tmp_path: Path) -> None:
    """The command starts a Ray of its own, whose workers are forks of the process of the sweep."""
    (tmp_path / "seeds.yaml").write_text(json.dumps({**BASE, "seeds": [1, 2, 3]}))
    command = [sys.executable, "-m", "simfl", "sweep", "seeds.yaml", "--out", "s", "--workers", "2"]
    path = {"PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parents[1], Path(__file__).parents[2])))}
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | path, timeout=280)
    for seed in (1, 2, 3):
        label = f"seed-{seed}"
        run(config.load(tmp_path / "s" / "runs" / label / "experiment.yaml"), tmp_path / label)
        assert traces(tmp_path / "s" / "runs" / label) == traces(tmp_path / label)
