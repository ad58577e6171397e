"""Sweep files: the runs, their names and settings, and refused files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, then

from simfl import config
from simfl.algorithms.fedprox import FedProx
from simfl.errors import ConfigError
from simfl.models.mlp import Mlp
from simfl.objectives.classification import Classification
from simfl.reports.table_spec import TableSpec
from simfl.sweeps.file import EarlyStopping, MedianStopping, Sweep, load

ONE = config.to_mapping(experiment())


def swept(folder: Path, given: dict[str, Any], *overrides: str, base: Any = ONE, only: tuple[str, ...] = ()) -> Sweep:
    (folder / "base.yaml").write_text(json.dumps(base))
    named = given if "experiments" in given else {"experiment": "base.yaml", **given}
    (folder / "kinds.yaml").write_text(json.dumps(named))
    return load(folder / "kinds.yaml", overrides, only)


def labels(sweep: Sweep) -> list[str]:
    return [point.label for point in sweep.points]


def test_every_combination_is_a_run_and_the_last_axis_varies_fastest(tmp_path: Path) -> None:
    sweep = swept(tmp_path, {"grid": {"phases.0.rounds": [1, 2], "local.learning_rate": [0.1]}, "seeds": [7, 8]})
    assert labels(sweep) == [f"rounds-{t}_learning_rate-0.1_seed-{s}" for t in (1, 2) for s in (7, 8)]
    last = sweep.points[-1]
    assert last.varied == {"rounds": 2, "learning_rate": 0.1, "seed": 8}
    assert (last.experiment.phases[0].rounds, last.experiment.seed, last.experiment.name) == (2, 8, last.label)
    assert sweep.name == "kinds"


def test_a_sweep_file_may_contain_the_experiment(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps({**ONE, "seeds": [1, 2]}))
    sweep = load(path)
    assert (labels(sweep), sweep.name) == (["seed-1", "seed-2"], "toy")


def test_variants_are_settings_files_or_empty(tmp_path: Path) -> None:
    (tmp_path / "prox.yaml").write_text("algorithm: {name: fedprox, mu: 0.5}\nlocal.epochs: 2\n")
    sweep = swept(tmp_path, {"variants": {"plain": None, "prox": "prox.yaml", "moon": {"algorithm": "moon"}}})
    assert labels(sweep) == ["plain", "prox", "moon"]
    phase = sweep.points[1].experiment.phases[0]
    assert (phase.algorithm, phase.local.epochs) == (FedProx(mu=0.5), 2)
    assert [point.varied for point in sweep.points] == [{"variant": "plain"}, {"variant": "prox"}, {"variant": "moon"}]


def test_a_variant_file_that_extends_an_experiment_adds_only_its_changes(tmp_path: Path) -> None:
    (tmp_path / "prox.yaml").write_text("experiment: other.yaml\nname: p\nalgorithm: {name: fedprox, mu: 0.5}\n")
    (tmp_path / "long.yaml").write_text("experiment: prox.yaml\nlocal.epochs: 9\n")
    (tmp_path / "other.yaml").write_text(json.dumps({**ONE, "seed": 77}))
    sweep = swept(tmp_path, {"variants": ["prox.yaml", "long.yaml"], "seeds": [1, 2]})
    assert labels(sweep) == ["prox_seed-1", "prox_seed-2", "long_seed-1", "long_seed-2"]
    (tmp_path / "base2.yaml").write_text("experiment: base.yaml\nlocal.batch_size: 3\n")
    again = load(tmp_path / "kinds.yaml", ["experiment=base2.yaml"])  # the same variants with another experiment
    for whole, size in ((sweep, config.parse(ONE).phases[0].local.batch_size), (again, 3)):
        (phase,) = whole.points[-1].experiment.phases
        found = (phase.algorithm, phase.local.epochs, phase.local.batch_size)
        assert found == (FedProx(mu=0.5), 9, size)


def test_zipped_paths_vary_together(tmp_path: Path) -> None:
    sweep = swept(tmp_path, {"grid": {"local.epochs, local.batch_size": [[1, 8], [2, 4]]}})
    found = [(p.experiment.phases[0].local.epochs, p.experiment.phases[0].local.batch_size) for p in sweep.points]
    assert found == [(1, 8), (2, 4)]
    assert sweep.points[0].varied == {"epochs": 1, "batch_size": 8}


def test_a_grid_axis_may_have_named_settings(tmp_path: Path) -> None:
    sweep = swept(
        tmp_path, {"grid": {"size": {"small": {"model.hidden_sizes": [4]}, "large": {"model.hidden_sizes": [8, 8]}}}}
    )
    assert [(p.varied["size"], p.experiment.model) for p in sweep.points] == [
        ("small", Mlp(hidden_sizes=(4,), dropout=0.2)),
        ("large", Mlp(hidden_sizes=(8, 8), dropout=0.2)),
    ]


def test_experiments_are_files_patterns_or_named_files(tmp_path: Path) -> None:
    for name, rate in (("a", 0.1), ("b", 0.2)):
        (tmp_path / f"run_{name}.yaml").write_text(json.dumps(config.to_mapping(experiment(learning_rate=rate))))
    for given in (["run_a.yaml", "run_b.yaml"], ["run_*.yaml"]):
        assert labels(swept(tmp_path, {"experiments": given})) == ["run_a", "run_b"]
    sweep = swept(tmp_path, {"experiments": {"x": "run_a.yaml", "y": "run_b.yaml"}, "set": {"rounds": 1}})
    assert [(p.label, p.experiment.phases[0].local.learning_rate) for p in sweep.points] == [("x", 0.1), ("y", 0.2)]
    assert all(p.experiment.phases[0].rounds == 1 for p in sweep.points)


def test_a_run_name_contains_the_name_and_settings_of_a_component(tmp_path: Path) -> None:
    sweep = swept(tmp_path, {"grid": {"algorithm": ["fedavg", {"name": "fedprox", "mu": 0.5}]}})
    assert labels(sweep) == ["algorithm-fedavg", "algorithm-fedprox-mu-0.5"]


def test_paths_with_equal_ends_have_distinct_columns(tmp_path: Path) -> None:
    sweep = swept(tmp_path, {"grid": {"local.learning_rate": [0.1], "server.learning_rate": [1.0, 0.5]}})
    assert sweep.points[0].varied == {"local.learning_rate": 0.1, "server.learning_rate": 1.0}


def test_a_wildcard_path_sets_all_phases(tmp_path: Path) -> None:
    two = config.to_mapping(then(experiment(), experiment()))
    sweep = swept(tmp_path, {"grid": {"phases.*.rounds": [1, 2]}}, base=two)
    assert [[phase.rounds for phase in p.experiment.phases] for p in sweep.points] == [[1, 1], [2, 2]]
    with pytest.raises(
        ConfigError, match=r"rounds: there are 2 phases; write phases\.0\.rounds, or phases\.\*\.rounds"
    ):
        swept(tmp_path, {"grid": {"rounds": [1]}}, base=two)


def test_overrides_apply_to_all_runs_and_replace_axes(tmp_path: Path) -> None:
    given = {"grid": {"phases.0.rounds": [5, 6]}, "seeds": [1, 2, 3]}
    sweep = swept(tmp_path, given, "local.epochs=2", "seeds=[9]", "grid.phases.0.rounds=[1]")
    assert labels(sweep) == ["rounds-1_seed-9"]
    assert sweep.points[0].experiment.phases[0].local.epochs == 2


def test_overrides_change_sections_of_the_sweep_file(tmp_path: Path) -> None:
    given = {"variants": {"a": None, "b": {"algorithm": "fedprox"}}, "set": {"seed": 1}, "table": {"metrics": []}}
    reached = ["stop.median.least=7", "table.against=b", "set.seed=9", "set.local.epochs=3", "variants.c={rounds: 5}"]
    sweep = swept(tmp_path, given, *reached)
    assert sweep.stop == EarlyStopping(MedianStopping(least=7))
    assert sweep.table == TableSpec((), "b")
    assert labels(sweep) == ["a", "b", "c"]
    last = sweep.points[-1].experiment
    assert (last.seed, last.phases[0].local.epochs, last.phases[0].rounds) == (9, 3, 5)
    with pytest.raises(ConfigError, match=r"^--set seeds.x: seeds is \[1\], which has no entry 'x'$"):
        swept(tmp_path, {"seeds": [1]}, "seeds.x=3")


def test_a_null_key_equals_a_missing_key(tmp_path: Path) -> None:
    empty = dict.fromkeys(("stop", "table", "set", "variants", "grid"))
    assert labels(swept(tmp_path, {"seeds": [1], **empty})) == ["seed-1"]


def test_a_sweep_file_without_an_experiment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nseeds: [1]\n")
    with pytest.raises(ConfigError, match=r"s.yaml: experiment: missing; give an experiment file, or write the"):
        load(path)


def test_patterns_select_runs(tmp_path: Path) -> None:
    assert labels(swept(tmp_path, {"seeds": [1, 2, 11]}, only=("seed-1*",))) == ["seed-1", "seed-11"]
    with pytest.raises(ConfigError, match="--only sed-1: no run has this name; did you mean 'seed-1'"):
        swept(tmp_path, {"seeds": [1, 2]}, only=("sed-1",))


def test_the_table_drops_metrics_that_the_selected_runs_lack(tmp_path: Path) -> None:
    """Both runs evaluate the split `valid`, one of them the model `local`."""
    variants = {"plain": None, "own": {"evaluate.models": ["global", "local"]}}
    wanted = {"metrics": ["local.accuracy:worst", "accuracy"], "against": "own"}
    given = {"variants": variants, "table": wanted, "seeds": [1]}
    for only, metrics, against in (
        ((), ("local.accuracy:worst", "accuracy"), "own"),
        (("own*",), ("local.accuracy:worst", "accuracy"), "own"),
        (("plain*",), ("accuracy",), None),
    ):
        assert swept(tmp_path, given, only=only).table == TableSpec(metrics, against)


def test_metrics_of_an_objective_without_declared_metrics_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classification, "metrics", ())
    assert swept(tmp_path, {"seeds": [1], "table": {"metrics": ["f1"]}}).table.metrics == ("f1",)


def test_runs_of_a_sweep_share_a_group_in_weights_and_biases(tmp_path: Path) -> None:
    sweep = swept(tmp_path, {"seeds": [1]}, "tracking={wandb: {project: p}}")
    tracked = sweep.points[0].experiment.tracking.wandb
    assert tracked is not None
    assert (tracked.project, tracked.group) == ("p", "kinds")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "kinds.yaml: no setting varies; give grid, variants, experiments, seeds or search, or use simfl run"),
        ({"gird": {}}, "kinds.yaml: a sweep has no key 'gird'; did you mean 'grid'?"),
        ({"seed": 3}, "a sweep has no key 'seed'; write it under set, as seed"),
        ({"grid": {"rounds": 3}}, r"grid.rounds: 3 is not a list of values; write \[a, b\]"),
        ({"grid": {"rounds": []}}, r"grid.rounds: \[\] is not a list of values"),
        ({"grid": {"rounds": [1, 1]}}, "grid.rounds: 1 is a duplicate"),
        ({"grid": {"a, b": [[1]]}}, r"grid.a, b: \[1\] is not a list of 2, one for each of a, b"),
        (
            {"grid": {"rouns": [1]}},
            "run rouns-1: rouns: neither an experiment nor a phase has the key 'rouns'; did you mean 'r",
        ),
        ({"grid": {"rounds": [1, 0]}}, "run rounds-0: phases.0.rounds: 0 is not a whole number of at least 1"),
        (
            {"grid": {"phases.3.rounds": [1]}},
            "run rounds-1: phases.3: '3' is not an index of the list; allowed: 0 to 0",
        ),
        ({"variants": {"a": {"algorithm": "fedprx"}}}, "run a: phases.0.algorithm: unknown 'fedprx'; did you mean 'fe"),
        ({"variants": {"a": 3}}, "variants.a: 3 is not a mapping of dotted paths to values"),
        ({"variants": {"a": "bas.yaml"}}, "variants.a: .*/bas.yaml does not exist; did you mean 'base.yaml'"),
        ({"experiments": {"a": "bas.yaml"}}, "experiments.a: .*/bas.yaml does not exist; did you mean 'base.yaml'"),
        (
            {"grid": {"": [1]}},
            "kinds.yaml: run 1: '': neither an experiment nor a phase has the key ''; allowed: algorithm",
        ),
        ({"experiments": ["*.yml"]}, r"experiments: no file matches '\*.yml'"),
        ({"seeds": [1], "grid": {"seed": [1]}}, "seeds: the grid has a seed axis too; give one of them"),
        (
            {"seeds": [1], "set": {"seed": 2}},
            "set.seed: has no effect, because it varies in this sweep",
        ),
        ({"seeds": [1], "stop": {"medain": {}}}, "stop.medain: unknown key"),
        ({"seeds": [1], "table": {"metric": []}}, "table.metric: unknown key .*'metrics'"),
        (
            {"seeds": [1], "table": {"metrics": ["acuracy"]}},
            "kinds.yaml: table.metrics: no run will have a score 'acuracy'; did you mean 'accuracy'",
        ),
        (
            {"seeds": [1], "table": {"metrics": ["local.accuracy"]}},  # the model `local` is not evaluated
            "kinds.yaml: table.metrics: no run will have a score 'local.accuracy'; did you mean 'accuracy'",
        ),
        (
            {"seeds": [1], "table": {"metrics": ["accuracy:wurst"]}},
            "kinds.yaml: table.metrics: no run will have a score 'accuracy:wurst'; did you mean 'accuracy:worst'",
        ),
        (
            {
                "seeds": [1],
                "variants": {"plain": None, "prox": {"algorithm": "fedprox"}},
                "table": {"against": "plane"},
            },
            "kinds.yaml: table.against: no row has 'plane'; did you mean 'plain'",
        ),
        ({"seeds": [1, 2], "table": {"against": "2"}}, "table.against: no row has '2'; allowed: seed-1, seed-2"),
        ({"seeds": [1], "experiment": "bse.yaml"}, "experiment: .*bse.yaml does not exist; did you mean 'base.yaml'"),
        ({"variants": {"a b": None, "a-b": None}}, "two runs have the name a-b; name them with variants"),
        (
            {"grid": {"local.epochs": [1, 2], "phases.0.local.epochs": [3]}},
            "grid.local.epochs: has no effect, because grid.phases.0.local.epochs sets the same",
        ),
        (
            {"grid": {"algorithm.mu": [1.0, 2.0], "algorithm": ["fedprox"]}},
            "grid.algorithm.mu: has no effect, because grid.algorithm sets the same",
        ),
        (
            {"set": {"phases.0.rounds": 9}, "grid": {"rounds": [1]}},
            "set.phases.0.rounds: has no effect, because it var",
        ),
        ({"grid": {"name": ["a", "b"]}}, "grid.name: has no effect, because each run is named by its values"),
        ({"set": {"name": "a"}, "seeds": [1]}, "set.name: has no effect, because each run is named by its values"),
    ],
)
def test_a_wrong_sweep_file_is_refused_in_one_line(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        swept(tmp_path, given)
    assert "\n" not in str(raised.value)
