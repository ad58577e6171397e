"""Sweeps: runs are independent, finished runs are skipped, a failure ends one run, shared rounds run once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Faulty, Normalised, Toy, experiment, run, then, traces

from simfl import config, simulation
from simfl.cli import main
from simfl.data.partition.partitioners import Iid
from simfl.errors import RunError
from simfl.experiment import Evaluate, Experiment
from simfl.optimizers.schedules import Cosine
from simfl.runs import tables
from simfl.session.options import RunOptions
from simfl.sweeps import sweep
from simfl.sweeps.file import EarlyStopping, MedianStopping, Point, Sweep
from simfl.sweeps.folder import RunLocation
from simfl.sweeps.job import Outcome, StopRequest, SweepJob, request_stop
from simfl.sweeps.pool import InlineRuns, SweepPlacement
from simfl.sweeps.status import SweepState, is_behind

INLINE, TWO_WORKERS = SweepPlacement("inline"), SweepPlacement("ray", 2)
BASE = experiment(rounds=2, evaluate=Evaluate(samples=0))


def sweep_of(*experiments: Experiment, stop: EarlyStopping | None = None, **shown: list[Any]) -> Sweep:
    """Return a sweep of these experiments, named a, b, c, …"""
    names = "abcdefgh"[: len(experiments)]
    points = [
        Point(name, {key: values[i] for key, values in shown.items()} or {"run": name}, replace(one, name=name))
        for i, (name, one) in enumerate(zip(names, experiments, strict=True))
    ]
    return Sweep("toys", tuple(points), stop or EarlyStopping())


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def with_rounds(rounds: int, base: Experiment = BASE) -> Experiment:
    return replace(base, phases=(*base.phases[:-1], replace(base.phases[-1], rounds=rounds)))


def test_each_run_of_a_sweep_is_bit_identical_to_a_single_run(tmp_path: Path) -> None:
    """One process executes all runs with a shared model, which runs of two phases leave changed."""
    two = then(BASE, BASE)
    experiments = (
        BASE,
        two,
        BASE,
        replace(two, seed=7),
        replace(BASE, model=Normalised(), data=Toy(sizes=(8, 16, 8, 24))),
        two,
    )
    labelled = sweep_of(*experiments)
    assert statuses(sweep.run(labelled, tmp_path / "s", INLINE)) == ["completed"] * len(experiments)
    for point in labelled.points:
        run(point.experiment, tmp_path / "alone" / point.label)
        assert traces(tmp_path / "s" / "runs" / point.label) == traces(tmp_path / "alone" / point.label), point.label


def test_each_run_of_a_sweep_on_ray_is_bit_identical_to_a_single_run(tmp_path: Path, ray_session: None) -> None:
    labelled = sweep_of(BASE, replace(BASE, seed=2), experiment(Faulty(), rounds=2), with_rounds(3))
    outcomes = sweep.run(labelled, tmp_path / "s", TWO_WORKERS)
    assert statuses(outcomes) == ["completed", "completed", "failed", "completed"]
    for label in "abd":
        run({p.label: p.experiment for p in labelled.points}[label], tmp_path / label)
        assert traces(tmp_path / "s" / "runs" / label) == traces(tmp_path / label)


def test_a_failed_run_does_not_affect_other_runs(tmp_path: Path) -> None:
    outcomes = sweep.run(sweep_of(BASE, experiment(Faulty(), rounds=2), BASE), tmp_path / "s", INLINE)
    assert statuses(outcomes) == ["completed", "failed", "completed"]
    assert outcomes[1].error.startswith("client 3, phase 0, round 2, seed ")
    error = (tmp_path / "s" / "runs" / "b" / "error.txt").read_text()
    assert error.splitlines()[0] == outcomes[1].error
    assert outcomes[1].error.endswith(" failed: ZeroDivisionError: the client's own words")
    assert "ZeroDivisionError: the client's own words" in error
    row = tables.rows(tmp_path / "s" / "results.parquet")[1]
    assert (row["status"], row["error"]) == ("failed", outcomes[1].error)
    assert f"- b failed: {outcomes[1].error}" in (tmp_path / "s" / "table.md").read_text()


def test_resuming_a_sweep_skips_finished_runs_and_retries_failed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "met").mkdir()
    once = experiment(Faulty(folder=str(tmp_path / "met"), times=1), rounds=2)
    labelled, begun = sweep_of(BASE, once), list[str]()
    sweep.run(labelled, tmp_path / "s", INLINE)
    whole = simulation.run
    monkeypatch.setattr(simulation, "run", lambda one, *a, **k: (begun.append(one.name), whole(one, *a, **k))[1])
    assert statuses(sweep.run(labelled, tmp_path / "s", INLINE, resume=True)) == ["completed", "completed"]
    assert begun == ["b"]
    assert not (tmp_path / "s" / "runs" / "b" / "error.txt").exists()


def test_a_resumed_sweep_is_bit_identical_to_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled, whole = sweep_of(BASE, replace(BASE, seed=3), replace(BASE, seed=4)), simulation.run

    def interrupted(one: Experiment, options: RunOptions) -> Any:
        calls = iter(["", "interrupted"])
        return whole(one, replace(options, until=lambda: next(calls)) if one.name == "b" else options)

    monkeypatch.setattr(simulation, "run", interrupted)
    outcomes = sweep.run(labelled, tmp_path / "s", INLINE)
    assert statuses(outcomes) == ["completed", "interrupted", "interrupted"]
    assert not (tmp_path / "s" / "runs" / "c").exists()
    monkeypatch.setattr(simulation, "run", whole)
    assert statuses(sweep.run(labelled, tmp_path / "s", INLINE, resume=True)) == ["completed"] * 3
    run(labelled.points[1].experiment, tmp_path / "b")
    assert traces(tmp_path / "s" / "runs" / "b") == traces(tmp_path / "b")


def test_an_interrupted_sweep_waits_for_running_rounds_and_writes_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray raises KeyboardInterrupt if a signal arrives while it waits."""
    ended, asked = InlineRuns.ended, list[float]()

    def interrupted(self: InlineRuns, seconds: float) -> list[Outcome]:
        asked.append(seconds)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return ended(self, seconds)

    monkeypatch.setattr(InlineRuns, "ended", interrupted)
    labelled = sweep_of(BASE, replace(BASE, seed=2))
    assert statuses(sweep.run(labelled, tmp_path / "s", INLINE)) == ["completed", "interrupted"]
    assert [row["status"] for row in tables.rows(tmp_path / "s" / "results.parquet")] == ["completed", "waiting"]


def test_a_grid_over_rounds_costs_only_its_longest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With evaluation every 2 rounds, the run of 3 rounds evaluates round 3, which the run of 5 rounds must not."""
    base = replace(then(experiment(rounds=1), experiment("scaffold")), evaluate=Evaluate(every=2, samples=2))
    labelled = sweep_of(*(with_rounds(rounds, base) for rounds in (5, 3, 4)))
    count, train_round = [], simulation.Simulation.train_round
    monkeypatch.setattr(simulation.Simulation, "train_round", lambda *a: (count.append(1), train_round(*a))[1])
    assert statuses(sweep.run(labelled, tmp_path / "s", INLINE)) == ["completed"] * 3
    assert len(count) == 1 + 5
    monkeypatch.undo()
    for point in labelled.points:
        run(point.experiment, tmp_path / point.label)
        assert traces(tmp_path / "s" / "runs" / point.label) == traces(tmp_path / point.label)
    manifest = json.loads((tmp_path / "s" / "runs" / "a" / "manifest.json").read_text())
    assert (manifest["forked"]["step"], Path(manifest["forked"]["folder"]).name) == (5, "c")


def test_runs_whose_schedule_depends_on_the_number_of_rounds_share_no_rounds(tmp_path: Path) -> None:
    base = experiment(schedule=Cosine())
    labelled = sweep_of(with_rounds(2, base), with_rounds(3, base))
    sweep.run(labelled, tmp_path / "s", INLINE)
    assert "forked" not in json.loads((tmp_path / "s" / "runs" / "b" / "manifest.json").read_text())
    run(labelled.points[1].experiment, tmp_path / "b")
    assert traces(tmp_path / "s" / "runs" / "b") == traces(tmp_path / "b")


def test_a_resumed_sweep_accepts_new_runs_and_refuses_changed_ones(tmp_path: Path) -> None:
    sweep.run(sweep_of(BASE), tmp_path / "s", INLINE)
    assert statuses(sweep.run(sweep_of(BASE, replace(BASE, seed=2)), tmp_path / "s", INLINE, resume=True)) == [
        "completed",
        "completed",
    ]
    with pytest.raises(RunError, match="the stored run has 'seed: 42', this experiment has 'seed: 5'"):
        sweep.run(sweep_of(replace(BASE, seed=5)), tmp_path / "s", INLINE, resume=True)
    with pytest.raises(RunError, match="holds a sweep; resume it with --resume, or give another --out"):
        sweep.run(sweep_of(BASE), tmp_path / "s", INLINE)


def test_sweep_that_has_not_begun_starts_when_it_is_resumed(tmp_path: Path) -> None:
    assert statuses(sweep.run(sweep_of(BASE), tmp_path / "t", INLINE, resume=True)) == ["completed"]


def test_a_run_below_the_median_is_stopped_early(tmp_path: Path) -> None:
    """Three runs learn, one has learning rate 0 and is stopped after 2 of 6 rounds."""
    base = experiment(rounds=6, evaluate=Evaluate(samples=0))
    local = base.phases[0].local
    still = replace(base, phases=(replace(base.phases[0], local=replace(local, learning_rate=0.0)),))
    labelled = sweep_of(
        *(replace(base, seed=s) for s in (1, 2, 3)), still, stop=EarlyStopping(MedianStopping(after=2, least=3))
    )
    outcomes = sweep.run(labelled, tmp_path / "s", INLINE)
    assert outcomes[-1].status == "stopped"
    assert len(tables.rows(tmp_path / "s" / "runs" / "d" / "rounds.parquet")) == 2
    assert statuses(sweep.run(labelled, tmp_path / "s", INLINE, resume=True)) == statuses(outcomes)


def test_median_stopping_matches_values_computed_by_hand() -> None:
    """At round 2 the means of the others are .2, .4, .6; the fourth, at round 1, does not count."""
    others = [{0: 9.0, 1: 0.1, 2: 0.3}, {1: 0.4, 2: 0.4, 3: 0.9}, {1: 0.6, 2: 0.6}, {1: 0.9}]
    assert is_behind({0: 9.0, 1: 0.39, 2: 0.3}, others, MedianStopping())
    assert not is_behind({1: 0.4, 2: 0.1}, others, MedianStopping())
    assert not is_behind({1: 0.39, 2: 0.3}, others, MedianStopping(after=3))
    assert not is_behind({1: 0.39, 2: 0.3}, others, MedianStopping(least=4))
    assert not is_behind({0: 0.1}, others, MedianStopping())


def test_a_stop_file_ends_a_run_with_its_text_as_status(tmp_path: Path) -> None:
    until = StopRequest(RunLocation(tmp_path))
    assert until() == ""
    request_stop(RunLocation(tmp_path), "stopped")
    assert until() == "stopped"


def test_a_run_waits_for_its_prefix(tmp_path: Path) -> None:
    long, short = RunLocation(tmp_path / "long"), RunLocation(tmp_path / "short")
    jobs = [SweepJob("long", BASE, long, prefix=short), SweepJob("short", BASE, short)]
    state = SweepState(sweep_of(BASE), RunLocation(tmp_path), waiting=jobs)
    first = state.next()
    assert first is not None
    assert first.label == "short"
    assert state.next() is None
    state.end(Outcome("short", "failed"))
    second = state.next()
    assert second is not None
    assert second.label == "long"


def test_the_sweep_command_lists_runs_and_prints_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "toys.yaml"
    file.write_text(
        json.dumps({**config.to_mapping(BASE), "variants": {"plain": None, "prox": {"algorithm": "fedprox"}}})
    )
    assert main(["sweep", str(file), "--list"]) == 0
    assert capsys.readouterr().out == "plain\nprox\n"
    out = str(tmp_path / "s")
    assert main(["sweep", str(file), "--out", out, "--backend", "inline", "--set", "seeds=[1,2]"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("| variant | seeds | accuracy |")
    assert "[4/4] prox_seed-2: completed, valid accuracy " in said.err
    assert main(["table", out, "--form", "csv", "--metric", "accuracy:worst", "--against", "prox"]) == 0
    assert capsys.readouterr().out.startswith("variant,seeds,accuracy:worst,accuracy:worst_deviation,accuracy:worst_p,")
    assert main(["table", out, "--metric", "acuracy"]) == 2
    assert capsys.readouterr().err == "simfl: --metric: no run has a score 'acuracy'; did you mean 'accuracy'?\n"
    assert main(["sweep", str(file), "--backend", "inline", "--workers", "2"]) == 2


def test_the_sweep_command_writes_its_table_between_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, readme, out = tmp_path / "toys.yaml", tmp_path / "README.md", str(tmp_path / "s")
    variants = {"plain": None, "prox": {"algorithm": {"name": "fedprox", "mu": 0.5}}}
    wanted = {"against": "prox", "metrics": ["accuracy:worst", "accuracy"]}
    file.write_text(json.dumps({**config.to_mapping(BASE), "variants": variants, "seeds": [1], "table": wanted}))
    readme.write_text("Before\n<!-- simfl: toy -->\n<!-- simfl: end -->\nafter\n")
    command = ["sweep", str(file), "--out", out, "--backend", "inline", "--into", str(readme)]
    assert main(command) == 2  # before anything runs
    assert capsys.readouterr().err == (f"simfl: {readme}: no marker <!-- simfl: toys -->; did you mean 'toy'?\n")
    assert not (tmp_path / "s").exists()
    assert main([*command, "--marker", "toy"]) == 0
    table = (
        readme.read_text().removeprefix("Before\n<!-- simfl: toy -->\n").removesuffix("<!-- simfl: end -->\nafter\n")
    )
    assert table.startswith("| variant | accuracy:worst | accuracy | download |")
    assert "no row is tested against variant prox" in table  # one seed
    assert table.strip() == (tmp_path / "s" / "table.md").read_text().strip()
    capsys.readouterr()
    assert main(["table", out]) == 0
    assert capsys.readouterr().out.strip() == table.strip()
    assert main(["sweep", str(file), "--out", f"{out}2", "--backend", "inline", "--only", "plain*"]) == 0
    assert "| plain | " in capsys.readouterr().out  # the reference row is not in the table


def test_a_missing_metric_is_reported_after_all_results_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an iid partition, examples of `valid` belong to no client."""
    file, out = tmp_path / "toys.yaml", tmp_path / "s"
    whole = replace(BASE, partition=Iid(clients=4))
    given = {**config.to_mapping(whole), "seeds": [1], "table": {"metrics": ["accuracy:worst"]}}
    file.write_text(json.dumps(given))
    command = ["sweep", str(file), "--out", str(out), "--backend", "inline"]
    assert main(command) == 2
    line = "simfl: table.metrics: no run has a score 'accuracy:worst'; did you mean 'accuracy'?\n"
    assert capsys.readouterr().err.endswith(line)
    assert tables.rows(out / "results.parquet")[0]["status"] == "completed"
    file.write_text(json.dumps({**given, "table": {"metrics": ["accuracy"]}}))
    assert main([*command, "--resume"]) == 0
    assert (out / "table.md").read_text().startswith("| run | accuracy | download |")


WRONG_ADDRESS = """
import sys
from fakes import experiment
from simfl import simulation
from simfl.errors import ConfigError
from simfl.sweeps import sweep
from simfl.session.options import RunOptions
from simfl.sweeps.file import Point, Sweep
from simfl.sweeps.pool import SweepPlacement
case, at, folder = experiment(), "127.0.0.1:1", sys.argv[1]
for start in (
    lambda: simulation.run(case, RunOptions(f"{folder}/run", "ray", 1, at)),
    lambda: sweep.run(Sweep("s", (Point("a", {}, case),)), f"{folder}/sweep", SweepPlacement("ray", 1, at)),
):
    try:
        start()
    except ConfigError as error:
        print(error)
"""


def test_where_no_ray_answers_nothing_is_left_is_behind(tmp_path: Path) -> None:
    """Nothing is written, so the same command works with the right address."""
    asked = [sys.executable, "-c", WRONG_ADDRESS, str(tmp_path)]
    shown = subprocess.run(
        asked, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1], timeout=100
    )
    assert shown.stdout == "--address: no Ray cluster answers at '127.0.0.1:1': Connection refused\n" * 2
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "sweep" / "sweep.json").exists()


def test_a_folder_cannot_hold_both_a_sweep_and_a_run(tmp_path: Path) -> None:
    run(BASE, tmp_path / "run")
    with pytest.raises(RunError, match=r"run: holds a run; give another --out$"):
        sweep.run(sweep_of(BASE), tmp_path / "run", INLINE)
    sweep.run(sweep_of(BASE), tmp_path / "sweep", INLINE)
    for resume in (False, True):
        with pytest.raises(RunError, match=r"sweep: the folder holds a sweep already; give another --out$"):
            run(BASE, tmp_path / "sweep", resume=resume)
    (tmp_path / "file").touch()
    for start in (lambda out: run(BASE, out), lambda out: sweep.run(sweep_of(BASE), out, INLINE)):
        with pytest.raises(RunError, match=r"file: a file is in the place of a folder$"):
            start(tmp_path / "file")


def test_a_sweep_with_a_failed_run_has_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = config.to_mapping(experiment(Faulty(), rounds=2)) | {"seeds": [1]}
    (tmp_path / "f.yaml").write_text(json.dumps(given))
    assert main(["sweep", str(tmp_path / "f.yaml"), "--out", str(tmp_path / "s"), "--backend", "inline"]) == 1
    assert "seed-1 failed: client 3, phase 0, round 2" in capsys.readouterr().out


URL = "memory://sweeps{}"


def test_a_sweep_at_a_url_can_be_resumed_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine has its own cache; on the first one b fails, the second one skips a and repeats b."""
    (tmp_path / "met").mkdir()
    url = URL.format(tmp_path)
    once = experiment(Faulty(folder=str(tmp_path / "met"), times=1), rounds=2)
    labelled, begun, whole = sweep_of(BASE, once, with_rounds(4)), list[str](), simulation.run
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "one"))
    assert statuses(sweep.run(labelled, url, INLINE)) == ["completed", "failed", "completed"]
    assert RunLocation(tmp_path, url).child("runs", "b").read("error.txt").startswith("client 3, phase 0, round 2")
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(simulation, "run", lambda one, *a, **k: (begun.append(one.name), whole(one, *a, **k))[1])
    assert statuses(sweep.run(labelled, url, INLINE, resume=True)) == ["completed"] * 3
    assert begun == ["b"]
    with pytest.raises(RunError, match=f"{url}: holds a sweep"):
        sweep.run(labelled, url, INLINE)
    for label, alone in (("a", BASE), ("c", with_rounds(4))):
        run(replace(alone, name=label), tmp_path / "alone" / label)
        with RunLocation(tmp_path / label, f"{url}/runs/{label}").reading() as folder:
            assert traces(folder) == traces(tmp_path / "alone" / label)
    with RunLocation(tmp_path / "s", url).reading() as folder:
        rows = tables.rows(folder / "results.parquet")
        assert [(row["label"], row["status"], row["folder"]) for row in rows] == [
            (label, "completed", f"{url}/runs/{label}") for label in "abc"
        ]
        assert "\\begin{tabular}" in (folder / "table.tex").read_text()
        assert not (folder / "runs" / "b" / "error.txt").exists()
        forked = json.loads((folder / "runs" / "c" / "manifest.json").read_text())["forked"]
        assert (forked["folder"], forked["step"]) == (f"{url}/runs/a", 2)


@pytest.mark.slow
def test_ray_workers_write_their_runs_to_the_url(tmp_path: Path, ray_session: None) -> None:
    url = f"file://{tmp_path}/copy"
    labelled = sweep_of(BASE, replace(BASE, seed=2))
    assert statuses(sweep.run(labelled, url, TWO_WORKERS)) == ["completed"] * 2
    for point in labelled.points:
        run(point.experiment, tmp_path / point.label)
        assert traces(tmp_path / "copy" / "runs" / point.label) == traces(tmp_path / point.label)
    assert (tmp_path / "copy" / "table.md").exists()


def test_a_stop_file_at_a_url_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, clock = RunLocation(tmp_path, URL.format(f"{tmp_path}/asked")), iter([0.0, 0.0, 1.0, 5.0, 5.0])
    until = StopRequest(place)
    monkeypatch.setattr("simfl.sweeps.job.time.monotonic", lambda: next(clock))
    assert until() == ""
    request_stop(place, "stopped")
    assert until() == ""  # it reads the file again after five seconds
    assert until() == "stopped"


def test_the_sweep_command_accepts_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, url = tmp_path / "toys.yaml", URL.format(f"{tmp_path}/command")
    file.write_text(json.dumps({**config.to_mapping(BASE), "seeds": [1]}))
    assert main(["sweep", str(file), "--out", url, "--backend", "inline"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("| run | accuracy |")
    assert said.out.endswith(f"results in {url}\n")
    assert "[1/1] seed-1: completed, valid accuracy " in said.err
