"""Sweeps: each run as it would be alone, what is done stays, failures are their own, fewer rounds are not run twice."""

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
from simfl.sweeps import sweep
from simfl.sweeps.early_stopping import behind
from simfl.sweeps.file import Median, Point, Stop, Sweep
from simfl.sweeps.folder import Place
from simfl.sweeps.job import Job, Outcome, Until, ask
from simfl.sweeps.pool import Here
from simfl.sweeps.status import Standing

BASE = experiment(rounds=2, evaluate=Evaluate(samples=0))


def of(*experiments: Experiment, stop: Stop | None = None, **shown: list[Any]) -> Sweep:
    """A sweep of these experiments, named a, b, c, …"""
    names = "abcdefgh"[: len(experiments)]
    points = [
        Point(name, {key: values[i] for key, values in shown.items()} or {"run": name}, replace(one, name=name))
        for i, (name, one) in enumerate(zip(names, experiments, strict=True))
    ]
    return Sweep("toys", tuple(points), stop or Stop())


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def with_rounds(rounds: int, of: Experiment = BASE) -> Experiment:
    return replace(of, phases=(*of.phases[:-1], replace(of.phases[-1], rounds=rounds)))


def test_each_run_is_bit_equal_to_the_run_alone(tmp_path: Path) -> None:
    """One process does all of them, with data and model shared; two phases leave the model changed between runs."""
    two = then(BASE, BASE)
    experiments = (
        BASE,
        two,
        BASE,
        replace(two, seed=7),
        replace(BASE, model=Normalised(), data=Toy(sizes=(8, 16, 8, 24))),
        two,
    )
    labelled = of(*experiments)
    assert statuses(sweep.run(labelled, tmp_path / "s", "inline")) == ["completed"] * len(experiments)
    for point in labelled.points:
        run(point.experiment, tmp_path / "alone" / point.label)
        assert traces(tmp_path / "s" / "runs" / point.label) == traces(tmp_path / "alone" / point.label), point.label


def test_on_ray_each_run_is_bit_equal_to_the_run_alone(tmp_path: Path, ray_session: None) -> None:
    labelled = of(BASE, replace(BASE, seed=2), experiment(Faulty(), rounds=2), with_rounds(3))
    outcomes = sweep.run(labelled, tmp_path / "s", "ray", workers=2)
    assert statuses(outcomes) == ["completed", "completed", "failed", "completed"]
    for label in "abd":
        run({p.label: p.experiment for p in labelled.points}[label], tmp_path / label)
        assert traces(tmp_path / "s" / "runs" / label) == traces(tmp_path / label)


def test_a_failure_is_the_runs_own(tmp_path: Path) -> None:
    outcomes = sweep.run(of(BASE, experiment(Faulty(), rounds=2), BASE), tmp_path / "s", "inline")
    assert statuses(outcomes) == ["completed", "failed", "completed"]
    assert outcomes[1].error.startswith("client 3, phase 0, round 2, seed ")
    error = (tmp_path / "s" / "runs" / "b" / "error.txt").read_text()
    assert error.splitlines()[0] == outcomes[1].error
    assert outcomes[1].error.endswith(" failed: ZeroDivisionError: the client's own words")
    assert "ZeroDivisionError: the client's own words" in error
    row = tables.rows(tmp_path / "s" / "results.parquet")[1]
    assert (row["status"], row["error"]) == ("failed", outcomes[1].error)
    assert f"- b failed: {outcomes[1].error}" in (tmp_path / "s" / "table.md").read_text()


def test_what_is_done_stays_and_what_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "met").mkdir()
    once = experiment(Faulty(folder=str(tmp_path / "met"), times=1), rounds=2)
    labelled, begun = of(BASE, once), list[str]()
    sweep.run(labelled, tmp_path / "s", "inline")
    whole = simulation.run
    monkeypatch.setattr(simulation, "run", lambda one, *a, **k: (begun.append(one.name), whole(one, *a, **k))[1])
    assert statuses(sweep.run(labelled, tmp_path / "s", "inline", resume=True)) == ["completed", "completed"]
    assert begun == ["b"]
    assert not (tmp_path / "s" / "runs" / "b" / "error.txt").exists()


def test_an_interrupted_sweep_goes_on_bit_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled, whole = of(BASE, replace(BASE, seed=3), replace(BASE, seed=4)), simulation.run

    def cut(one: Experiment, folder: Path, *rest: Any, **settings: Any) -> Any:
        calls = iter(["", "interrupted"])
        return whole(one, folder, *rest, **settings | ({"until": lambda: next(calls)} if one.name == "b" else {}))

    monkeypatch.setattr(simulation, "run", cut)
    outcomes = sweep.run(labelled, tmp_path / "s", "inline")
    assert statuses(outcomes) == ["completed", "interrupted", "interrupted"]
    assert not (tmp_path / "s" / "runs" / "c").exists()
    monkeypatch.setattr(simulation, "run", whole)
    assert statuses(sweep.run(labelled, tmp_path / "s", "inline", resume=True)) == ["completed"] * 3
    run(labelled.points[1].experiment, tmp_path / "b")
    assert traces(tmp_path / "s" / "runs" / "b") == traces(tmp_path / "b")


def test_a_sweep_that_is_interrupted_lets_runs_end_and_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray makes a KeyboardInterrupt of its own of a signal that finds it waiting."""
    ended, asked = Here.ended, list[float]()

    def interrupted(self: Here, seconds: float) -> list[Outcome]:
        asked.append(seconds)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return ended(self, seconds)

    monkeypatch.setattr(Here, "ended", interrupted)
    labelled = of(BASE, replace(BASE, seed=2))
    assert statuses(sweep.run(labelled, tmp_path / "s", "inline")) == ["completed", "interrupted"]
    assert [row["status"] for row in tables.rows(tmp_path / "s" / "results.parquet")] == ["completed", "waiting"]


def test_a_grid_over_rounds_costs_its_longest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated every 2 rounds: the run of 3 scores its end, round 3, which the run of 5 must not have."""
    base = replace(then(experiment(rounds=1), experiment("scaffold")), evaluate=Evaluate(every=2, samples=2))
    labelled = of(*(with_rounds(rounds, base) for rounds in (5, 3, 4)))
    count, one_round = [], simulation.one_round
    monkeypatch.setattr(simulation, "one_round", lambda *a: (count.append(1), one_round(*a))[1])
    assert statuses(sweep.run(labelled, tmp_path / "s", "inline")) == ["completed"] * 3
    assert len(count) == 1 + 5
    monkeypatch.undo()
    for point in labelled.points:
        run(point.experiment, tmp_path / point.label)
        assert traces(tmp_path / "s" / "runs" / point.label) == traces(tmp_path / point.label)
    manifest = json.loads((tmp_path / "s" / "runs" / "a" / "manifest.json").read_text())
    assert (manifest["forked"]["step"], Path(manifest["forked"]["folder"]).name) == (5, "c")


def test_a_schedule_over_the_horizon_has_no_common_rounds(tmp_path: Path) -> None:
    base = experiment(schedule=Cosine())
    labelled = of(with_rounds(2, base), with_rounds(3, base))
    sweep.run(labelled, tmp_path / "s", "inline")
    assert "forked" not in json.loads((tmp_path / "s" / "runs" / "b" / "manifest.json").read_text())
    run(labelled.points[1].experiment, tmp_path / "b")
    assert traces(tmp_path / "s" / "runs" / "b") == traces(tmp_path / "b")


def test_new_runs_join_a_sweep_and_another_experiment_is_refused(tmp_path: Path) -> None:
    sweep.run(of(BASE), tmp_path / "s", "inline")
    assert statuses(sweep.run(of(BASE, replace(BASE, seed=2)), tmp_path / "s", "inline", resume=True)) == [
        "completed",
        "completed",
    ]
    with pytest.raises(RunError, match="the run there has 'seed: 42' where this experiment has 'seed: 5'"):
        sweep.run(of(replace(BASE, seed=5)), tmp_path / "s", "inline", resume=True)
    with pytest.raises(RunError, match="holds a sweep already; go on with --resume, or give another --out"):
        sweep.run(of(BASE), tmp_path / "s", "inline")
    with pytest.raises(RunError, match="no sweep to resume here"):
        sweep.run(of(BASE), tmp_path / "t", "inline", resume=True)


def test_a_run_that_falls_behind_is_ended(tmp_path: Path) -> None:
    """Three learn, one has a learning rate of 0; it may finish 2 rounds of 6."""
    base = experiment(rounds=6, evaluate=Evaluate(samples=0))
    local = base.phases[0].local
    still = replace(base, phases=(replace(base.phases[0], local=replace(local, learning_rate=0.0)),))
    labelled = of(*(replace(base, seed=s) for s in (1, 2, 3)), still, stop=Stop(Median(after=2, least=3)))
    outcomes = sweep.run(labelled, tmp_path / "s", "inline")
    assert outcomes[-1].status == "stopped"
    assert len(tables.rows(tmp_path / "s" / "runs" / "d" / "rounds.parquet")) == 2
    assert statuses(sweep.run(labelled, tmp_path / "s", "inline", resume=True)) == statuses(outcomes)


def test_the_median_rule_by_hand() -> None:
    """At round 2 the others' means so far are .2, .4, .6 (that of the fourth, which is at round 1, does not count)."""
    others = [{0: 9.0, 1: 0.1, 2: 0.3}, {1: 0.4, 2: 0.4, 3: 0.9}, {1: 0.6, 2: 0.6}, {1: 0.9}]
    assert behind({0: 9.0, 1: 0.39, 2: 0.3}, others, Median())
    assert not behind({1: 0.4, 2: 0.1}, others, Median())
    assert not behind({1: 0.39, 2: 0.3}, others, Median(after=3))
    assert not behind({1: 0.39, 2: 0.3}, others, Median(least=4))
    assert not behind({0: 0.1}, others, Median())


def test_a_run_is_asked_to_end_by_a_file(tmp_path: Path) -> None:
    until = Until(Place(tmp_path))
    assert until() == ""
    ask(Place(tmp_path), "stopped")
    assert until() == "stopped"


def test_a_run_waits_for_the_one_that_it_goes_on_from(tmp_path: Path) -> None:
    long, short = Place(tmp_path / "long"), Place(tmp_path / "short")
    jobs = [Job("long", BASE, long, after=short), Job("short", BASE, short)]
    standing = Standing(of(BASE), Place(tmp_path), waiting=jobs)
    first = standing.next()
    assert first is not None
    assert first.label == "short"
    assert standing.next() is None
    standing.end(Outcome("short", "failed"))
    second = standing.next()
    assert second is not None
    assert second.label == "long"


def test_the_command_runs_lists_and_says_how_it_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_one_command_runs_a_sweep_and_writes_the_table_that_its_file_wants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert "differs from variant prox" in table
    assert table.strip() == (tmp_path / "s" / "table.md").read_text().strip()
    capsys.readouterr()
    assert main(["table", out]) == 0
    assert capsys.readouterr().out.strip() == table.strip()
    assert main(["sweep", str(file), "--out", f"{out}2", "--backend", "inline", "--only", "plain*"]) == 0
    assert "| plain | " in capsys.readouterr().out  # the line to hold others against is not there


def test_a_score_that_turns_out_not_to_be_there_costs_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under an iid partition nobody can say whose an example of `valid` is."""
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


NOBODY = """
import sys
from fakes import experiment
from simfl import simulation
from simfl.errors import ConfigError
from simfl.sweeps import sweep
from simfl.session.options import RunOptions
from simfl.sweeps.file import Point, Sweep
case, at, folder = experiment(), "127.0.0.1:1", sys.argv[1]
for start in (
    lambda: simulation.run(case, RunOptions(f"{folder}/run", "ray", 1, at)),
    lambda: sweep.run(Sweep("s", (Point("a", {}, case),)), f"{folder}/sweep", "ray", 1, at),
):
    try:
        start()
    except ConfigError as error:
        print(error)
"""


def test_where_no_ray_answers_nothing_is_left_behind(tmp_path: Path) -> None:
    """The same command works when the address is mended."""
    asked = [sys.executable, "-c", NOBODY, str(tmp_path)]
    shown = subprocess.run(
        asked, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1], timeout=100
    )
    assert shown.stdout == "--address: no Ray cluster answers at '127.0.0.1:1': Connection refused\n" * 2
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "sweep" / "sweep.json").exists()


def test_a_sweep_and_a_run_do_not_lie_in_one_folder(tmp_path: Path) -> None:
    run(BASE, tmp_path / "run")
    with pytest.raises(RunError, match=r"run: holds a run already; give another --out$"):
        sweep.run(of(BASE), tmp_path / "run", "inline")
    sweep.run(of(BASE), tmp_path / "sweep", "inline")
    for resume in (False, True):
        with pytest.raises(RunError, match=r"sweep: holds a sweep already; give another --out$"):
            run(BASE, tmp_path / "sweep", resume=resume)
    (tmp_path / "file").touch()
    for start in (lambda out: run(BASE, out), lambda out: sweep.run(of(BASE), out, "inline")):
        with pytest.raises(RunError, match=r"file: a file lies where a folder is needed$"):
            start(tmp_path / "file")


def test_a_failed_run_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = config.to_mapping(experiment(Faulty(), rounds=2)) | {"seeds": [1]}
    (tmp_path / "f.yaml").write_text(json.dumps(given))
    assert main(["sweep", str(tmp_path / "f.yaml"), "--out", str(tmp_path / "s"), "--backend", "inline"]) == 1
    assert "seed-1 failed: client 3, phase 0, round 2" in capsys.readouterr().out


URL = "memory://sweeps{}"


def test_a_sweep_at_a_url_goes_on_from_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine has a cache of its own; the first one fails in b, the second finds a done and does b again."""
    (tmp_path / "met").mkdir()
    url = URL.format(tmp_path)
    once = experiment(Faulty(folder=str(tmp_path / "met"), times=1), rounds=2)
    labelled, begun, whole = of(BASE, once, with_rounds(4)), list[str](), simulation.run
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "one"))
    assert statuses(sweep.run(labelled, url, "inline")) == ["completed", "failed", "completed"]
    assert Place(tmp_path, url).below("runs", "b").read("error.txt").startswith("client 3, phase 0, round 2")
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(simulation, "run", lambda one, *a, **k: (begun.append(one.name), whole(one, *a, **k))[1])
    assert statuses(sweep.run(labelled, url, "inline", resume=True)) == ["completed"] * 3
    assert begun == ["b"]
    with pytest.raises(RunError, match=f"{url}: holds a sweep already"):
        sweep.run(labelled, url, "inline")
    for label, alone in (("a", BASE), ("c", with_rounds(4))):
        run(replace(alone, name=label), tmp_path / "alone" / label)
        with Place(tmp_path / label, f"{url}/runs/{label}").opened() as folder:
            assert traces(folder) == traces(tmp_path / "alone" / label)
    with Place(tmp_path / "s", url).opened() as folder:
        rows = tables.rows(folder / "results.parquet")
        assert [(row["label"], row["status"], row["folder"]) for row in rows] == [
            (label, "completed", f"{url}/runs/{label}") for label in "abc"
        ]
        assert "\\begin{tabular}" in (folder / "table.tex").read_text()
        assert not (folder / "runs" / "b" / "error.txt").exists()
        forked = json.loads((folder / "runs" / "c" / "manifest.json").read_text())["forked"]
        assert (forked["folder"], forked["step"]) == (f"{url}/runs/a", 2)


def test_on_ray_workers_write_their_runs_to_the_url(tmp_path: Path, ray_session: None) -> None:
    url = f"file://{tmp_path}/copy"
    labelled = of(BASE, replace(BASE, seed=2))
    assert statuses(sweep.run(labelled, url, "ray", workers=2)) == ["completed"] * 2
    for point in labelled.points:
        run(point.experiment, tmp_path / point.label)
        assert traces(tmp_path / "copy" / "runs" / point.label) == traces(tmp_path / point.label)
    assert (tmp_path / "copy" / "table.md").exists()


def test_a_run_at_a_url_is_asked_to_end_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, clock = Place(tmp_path, URL.format(f"{tmp_path}/asked")), iter([0.0, 0.0, 1.0, 5.0, 5.0])
    until = Until(place)
    monkeypatch.setattr("simfl.sweeps.job.time.monotonic", lambda: next(clock))
    assert until() == ""
    ask(place, "stopped")
    assert until() == ""  # it looks again after five seconds
    assert until() == "stopped"


def test_the_command_takes_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, url = tmp_path / "toys.yaml", URL.format(f"{tmp_path}/command")
    file.write_text(json.dumps({**config.to_mapping(BASE), "seeds": [1]}))
    assert main(["sweep", str(file), "--out", url, "--backend", "inline"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("| run | accuracy |")
    assert said.out.endswith(f"everything is in {url}\n")
    assert "[1/1] seed-1: completed, valid accuracy " in said.err
