"""The execution mode of a phase is chosen once, kept in the manifest, and gives the same bits as if it were given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_ray import use_fake_ray
from fakes import Stopping, experiment, run, scatter, then, traces
from faults import FaultyScaffold, order

from simfl import config, files
from simfl.autotune import probe, trial
from simfl.autotune.cache import TuningCache
from simfl.autotune.probe import ProbeResult
from simfl.autotune.trial import Trial
from simfl.autotune.tuner import Tuner, describe_choice
from simfl.debug.rerun import Rerun
from simfl.errors import ConfigError, RunError
from simfl.experiment import Execution, Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.runs.manifest import RunIdentity
from simfl.runs.results import Run
from simfl.runtime import worker
from simfl.sweeps.fork import fork
from simfl.training.plan import ExecutionMode

IDENTITY = RunIdentity("vectorized", 8, threads=1, device="cuda", products="tf32")
SEQUENTIAL, EIGHT, FOUR = (
    ExecutionMode("sequential", 1, "graph"),
    ExecutionMode("vectorized", 8, "graph"),
    ExecutionMode("vectorized", 4, "graph"),
)
CASE = experiment("scaffold", execution=Execution(autotune="always"))
FORCED = experiment("scaffold", "vectorized", 4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trial, "ENOUGH_SECONDS", 0.0)


def answered(monkeypatch: pytest.MonkeyPatch, *trials: Trial) -> list[object]:
    """Make workers return these trials; return the list that collects their requests."""
    asked: list[object] = []

    def found(stage, store, question, received):
        asked.append(question)
        return ProbeResult(list(trials), 2, 0.75, 0.25)

    monkeypatch.setattr(worker, "probe", found)
    return asked


def of(execution_mode: ExecutionMode, seconds: float | None, why: str = "") -> Trial:
    return Trial(execution_mode, seconds, seconds, None if execution_mode.mode == "sequential" else 1e-3, None, why)


def choice(identity=IDENTITY, **cohort) -> Tuner:
    case = experiment(execution=Execution(**cohort))
    groups = SimpleNamespace(changed_in_passes=(), mixes_examples=False)
    context: Any = SimpleNamespace(phase=case.phases[0], num_clients=10, parameter_groups=groups, draws=())
    record: Any = SimpleNamespace(manifest=SimpleNamespace(identity=identity))
    unused: Any = None
    pool: Any = SimpleNamespace(num_workers=1)
    return Tuner(case, record, context, unused, pool)


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize(("trials", "expected"), [
    ([of(SEQUENTIAL, 9.0), of(EIGHT, 3.0), of(FOUR, 2.0)], FOUR),
    ([of(SEQUENTIAL, 9.0), of(EIGHT, 3.0), of(FOUR, 2.8)], EIGHT),  # not a tenth faster than what the rules say
    ([of(SEQUENTIAL, 1.0), of(EIGHT, 3.0)], ExecutionMode("sequential", 1, "graph")),
    ([of(SEQUENTIAL, 9.0), of(EIGHT, None, "starved"), of(FOUR, 2.8)], FOUR),
    ([of(SEQUENTIAL, 9.0), of(EIGHT, 3.0), of(FOUR, 1.0, "it ends elsewhere")], EIGHT),
    ([of(SEQUENTIAL, 9.0), of(EIGHT, None, "fails")], ExecutionMode("sequential", 1, "graph")),
])  # fmt: skip
def test_the_fastest_mode_is_chosen_unless_the_mode_of_the_rules_is_as_fast(trials, expected):
    assert choice().best(trials)[0] == expected


def test_a_given_mode_is_kept_even_if_the_other_is_faster():
    assert choice(mode="vectorized").best([of(SEQUENTIAL, 1.0), of(EIGHT, 3.0), of(FOUR, 2.0)])[0] == FOUR
    assert choice(mode="vectorized").best([of(SEQUENTIAL, 1.0), of(EIGHT, None, "fails")])[0] == EIGHT


@pytest.mark.parametrize(("device", "program", "optimizer", "expected"), [
    ("cuda", "auto", "sgd", ("graph", "eager")),
    ("cuda", "eager", "sgd", ("eager",)),
    ("cuda", "auto", "adafactor", ("eager",)),  # it has no form that a GPU could replay
    ("cpu", "auto", "sgd", ("eager",)),
    ("cpu", "compiled", "sgd", ("compiled",)),
])  # fmt: skip
def test_candidate_programs_depend_on_device_and_optimizer(device, program, optimizer, expected):
    one = choice(replace(IDENTITY, device=device), program=program)
    phase = experiment(optimizer=optimizer).phases[0]
    assert replace(one, context=SimpleNamespace(phase=phase)).programs == expected


FIXED = "always, but mode and clients_per_batch are fixed"


@pytest.mark.parametrize(("given", "problem"), [
    ({"autotune": "always", "mode": "sequential"}, FIXED),
    ({"autotune": "always", "mode": "vectorized", "clients_per_batch": 8}, FIXED),
    ({"autotune": "sometimes"}, "'sometimes' is not one of auto, always, never"),
])  # fmt: skip
def test_autotune_always_without_anything_to_choose_is_refused_in_one_line(given, problem):
    mapping = config.to_mapping(experiment())
    with pytest.raises(ConfigError, match=f"^execution.autotune: [^\n]*{problem}[^\n]*$"):
        config.parse(mapping | {"execution": given})


def test_deterministic_refuses_autotune_always():
    mapping = config.to_mapping(experiment()) | {"execution": {"autotune": "always"}, "deterministic": True}
    with pytest.raises(ConfigError, match=r"^execution.autotune: always, but deterministic is true[^\n]*$"):
        config.parse(mapping)


def test_on_a_cpu_nothing_is_measured_by_default(tmp_path, monkeypatch):
    asked = answered(monkeypatch, of(SEQUENTIAL, 9.0))
    run(experiment(clients_per_batch="auto", mode="auto"), tmp_path / "auto")
    run(experiment(execution=Execution(autotune="never")), tmp_path / "never")
    assert asked == []
    assert "choices" not in manifest(tmp_path / "auto")
    assert traces(tmp_path / "auto") == traces(tmp_path / "never")


@pytest.mark.parametrize(("settings", "why"), [
    (
        {"privacy": Privacy(unit="record", clip=1.0, noise_multiplier=1.0)},
        "with privacy.unit: record clients train one at a time",
    ),
    ({"execution": Execution(autotune="always", data_parallel=2)}, "micro-batches belong to a single client"),
])  # fmt: skip
def test_nothing_is_measured_where_only_one_mode_can_train_and_the_manifest_gives_the_reason(
    tmp_path, monkeypatch, settings, why
):
    asked = answered(monkeypatch, of(SEQUENTIAL, 9.0))
    name = "dp_sgd" if "privacy" in settings else "fedavg"
    run(
        experiment(name, **{"execution": Execution(autotune="always"), "weighting": "uniform", "rounds": 1} | settings),
        tmp_path,
    )
    assert asked == []
    assert manifest(tmp_path)["choices"]["0"]["why"] == f"by rules: {why}"


def test_a_chosen_mode_gives_the_same_bits_as_the_mode_given_in_the_experiment(tmp_path, monkeypatch):
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0), of(EIGHT, 3.0, "it ends elsewhere"))
    display = Stopping()
    run(CASE, tmp_path / "chosen", display=display)
    run(FORCED, tmp_path / "forced")
    assert traces(tmp_path / "chosen") == traces(tmp_path / "forced")
    kept = manifest(tmp_path / "chosen")["choices"]["0"]
    assert (kept["mode"], kept["clients_per_batch"], kept["why"]) == ("vectorized", 4, "the fastest of the modes tried")
    assert [(one["mode"], one["clients_per_batch"], one["why"]) for one in kept["trials"]] == [
        ("sequential", 1, ""),
        ("vectorized", 4, ""),
        ("vectorized", 8, "it ends elsewhere"),
    ]
    logged = [json.loads(line) for line in (tmp_path / "chosen" / "log.jsonl").read_text().splitlines()]
    assert [event["trials"] for event in logged if event["event"] == "chosen"] == [kept["trials"]]
    assert display.messages == [
        f"execution mode: {FOUR} (the fastest of the modes tried): 2e+03 ms per client step, 9e+03 ms if sequential;"
        " 3 modes tried in 0.5 s without loading, 1 excluded (reasons in manifest.json)"
    ]


def test_a_real_measurement_does_not_change_the_bits_of_the_chosen_mode(tmp_path):
    run(CASE, tmp_path / "chosen")
    kept = manifest(tmp_path / "chosen")["choices"]["0"]
    run(
        replace(CASE, execution=Execution(mode=kept["mode"], clients_per_batch=kept["clients_per_batch"])),
        tmp_path / "forced",
    )
    assert traces(tmp_path / "chosen") == traces(tmp_path / "forced")
    assert len(kept["trials"]) > 1


@pytest.mark.slow
def test_on_ray_one_worker_measures_and_all_workers_use_the_mode(tmp_path, ray_session):
    run(CASE, tmp_path / "chosen", workers=2)
    kept = manifest(tmp_path / "chosen")["choices"]["0"]
    assert len(kept["trials"]) > 1
    assert [one["why"] for one in kept["trials"][:2]] == ["", ""]
    run(
        replace(CASE, execution=Execution(mode=kept["mode"], clients_per_batch=kept["clients_per_batch"])),
        tmp_path / "forced",
    )
    assert traces(tmp_path / "chosen") == traces(tmp_path / "forced")


def test_a_resumed_run_keeps_its_choice_without_a_new_measurement(tmp_path, monkeypatch):
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    run(CASE, tmp_path / "parts", display=Stopping(0, scoring=True))  # before anything was chosen
    run(CASE, tmp_path / "parts", resume=True, display=Stopping(1))
    asked = answered(monkeypatch, of(SEQUENTIAL, 1.0), of(FOUR, 2.0))
    run(CASE, tmp_path / "parts", resume=True)
    run(FORCED, tmp_path / "forced")
    assert asked == []
    assert traces(tmp_path / "parts") == traces(tmp_path / "forced")


def test_a_worker_that_joins_later_uses_the_chosen_mode(tmp_path, monkeypatch):
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    with monkeypatch.context() as patched:
        scatter(patched)
        run(CASE, tmp_path / "scattered")
    run(FORCED, tmp_path / "forced")
    assert traces(tmp_path / "scattered") == traces(tmp_path / "forced")


def test_each_phase_has_its_choice_and_a_rerun_uses_them(tmp_path, monkeypatch):
    both = then(CASE, replace(CASE, phases=(replace(CASE.phases[0], carry_over=("algorithm",)),)))
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    run(both, tmp_path / "run", display=Stopping(2))
    answered(monkeypatch, of(SEQUENTIAL, 1.0), of(FOUR, 2.0))
    run(both, tmp_path / "run", resume=True)
    choices = manifest(tmp_path / "run")["choices"]
    assert [(choices[k]["mode"], choices[k]["clients_per_batch"]) for k in "01"] == [
        ("vectorized", 4),
        ("sequential", 1),
    ]
    again = Rerun(Run(tmp_path / "run"), tmp_path / "scratch", use_checkpoints=False)
    again.go_to(1, 2)
    again.rerun_round()
    assert again.snapshot.step == 5
    assert again.differences == []


def test_a_chosen_batch_that_does_not_fit_into_memory_is_halved(tmp_path, monkeypatch):
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    order(tmp_path / "faults", "no GPU memory", client=None, round=1, times=2)
    run(
        experiment(FaultyScaffold(folder=str(tmp_path / "faults")), execution=Execution(autotune="always")),
        tmp_path / "run",
    )
    assert manifest(tmp_path / "run")["clients_per_batch"] == [[0, 4], [1, 2]]


def test_rules_choose_where_the_measuring_worker_fails(tmp_path, monkeypatch):
    def lost(*_):
        raise RunError("a worker died 4 times on execution modes: SIGSEGV\nand more")

    monkeypatch.setattr(worker, "probe", lost)
    run(CASE, tmp_path / "run")
    why = "by rules: autotuning failed (a worker died 4 times on execution modes: SIGSEGV)"
    assert manifest(tmp_path / "run")["choices"]["0"] == {
        "mode": "sequential",
        "clients_per_batch": 1,
        "program": "eager",
        "why": why,
    }


def test_a_worker_that_hangs_while_measuring_is_replaced_and_the_run_continues(tmp_path, monkeypatch):
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    case = replace(CASE, execution=Execution(autotune="always", clients_per_batch=1), watchdog_seconds=8.0)
    ray = use_fake_ray(monkeypatch, silent=frozenset({("probe", 0)}))
    display = Stopping()
    run(case, tmp_path / "run", display=display)
    why = manifest(tmp_path / "run")["choices"]["0"]["why"]
    assert why == "by rules: autotuning failed (no result for 8 s from worker 0 on execution modes)"
    assert display.messages == [f"execution mode: sequential ({why})"]
    assert ray.count["begin"] == 3
    assert {who for who, method, _ in ray.sent if method == "train"} == {0, 1}
    run(experiment("scaffold", clients_per_batch=1), tmp_path / "alone")
    assert traces(tmp_path / "run")["weights_sha256"] == traces(tmp_path / "alone")["weights_sha256"]


def test_a_fork_uses_the_choice_of_its_source(tmp_path, monkeypatch):
    asked = answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    longer = replace(CASE, phases=(replace(CASE.phases[0], rounds=5),))
    run(CASE, tmp_path / "source")
    fork(Run(tmp_path / "source"), tmp_path / "fork", longer, 3)
    run(longer, tmp_path / "fork", resume=True)
    assert len(asked) == 1
    assert manifest(tmp_path / "fork")["choices"] == manifest(tmp_path / "source")["choices"]
    run(longer, tmp_path / "whole")
    assert traces(tmp_path / "fork")["weights_sha256"] == traces(tmp_path / "whole")["weights_sha256"]


@pytest.mark.parametrize("changed", [
    {"deterministic": True, "execution": Execution()},
    {"execution": Execution(autotune="never", threads=2)},
    {"model": Mlp(hidden_sizes=(16,), dropout=0.3)},
])  # fmt: skip
def test_a_fork_that_changes_the_basis_of_the_choice_drops_it(tmp_path, monkeypatch, changed):
    """With `deterministic` a measured choice would make the fork differ from another fork of the same experiment."""
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    run(CASE, tmp_path / "source")
    longer = replace(
        CASE, **{"execution": Execution(autotune="never")} | changed, phases=(replace(CASE.phases[0], rounds=5),)
    )
    messages: list[str] = []
    fork(Run(tmp_path / "source"), tmp_path / "fork", longer, 2, log=messages.append)
    assert [line for line in messages if "execution mode" in line] == [
        f"{next(iter(changed))} changed: the execution mode is chosen again"
    ]
    run(longer, tmp_path / "fork", resume=True)
    assert manifest(tmp_path / "fork").get("choices", {}) == {}
    assert manifest(tmp_path / "fork").get("clients_per_batch", []) == []


def test_a_fork_with_another_learning_rate_uses_the_choice_of_its_source(tmp_path, monkeypatch):
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    run(CASE, tmp_path / "source")
    phase = CASE.phases[0]
    slower = replace(CASE, phases=(replace(phase, local=replace(phase.local, learning_rate=0.01)),))
    fork(Run(tmp_path / "source"), tmp_path / "fork", slower, 2)
    assert manifest(tmp_path / "fork")["choices"] == manifest(tmp_path / "source")["choices"]


def test_a_fork_with_another_algorithm_measures_again(tmp_path, monkeypatch):
    asked = answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    run(CASE, tmp_path / "source")
    other = replace(CASE, phases=(replace(experiment("fedavg").phases[0], rounds=4),))
    fork(Run(tmp_path / "source"), tmp_path / "fork", other, 2)
    answered(monkeypatch, of(SEQUENTIAL, 1.0), of(FOUR, 2.0))
    run(other, tmp_path / "fork", resume=True)
    assert len(asked) == 1
    assert manifest(tmp_path / "fork")["choices"]["0"]["mode"] == "sequential"
    assert manifest(tmp_path / "fork")["clients_per_batch"] == [[0, 4], [2, 1]]


def test_a_cached_result_serves_equal_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(Tuner, "_measures", property(lambda self: True))  # as on a GPU
    asked = answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    case = replace(CASE, execution=Execution(), name="first")
    run(case, tmp_path / "first")
    run(replace(case, seed=7, name="second"), tmp_path / "second")
    assert len(asked) == 1
    kept = manifest(tmp_path / "second")["choices"]["0"]
    assert (kept["clients_per_batch"], kept["recalled"]) == (4, True)
    assert "tried by an earlier run" in describe_choice(kept)
    run(replace(case, phases=(replace(case.phases[0], rounds=1, participation=1.0),)), tmp_path / "third")
    assert len(asked) == 2


class Waiting(Stopping):
    """A display that ends the other run when its own run reports that it waits."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self.end = end

    def message(self, text: str) -> None:
        super().message(text)
        if "waiting for another run" in text:
            self.end()


def test_of_runs_that_start_together_one_measures_and_the_others_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(Tuner, "_measures", property(lambda self: True))
    asked, case = answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0)), replace(CASE, execution=Execution())
    run(case, tmp_path / "first")
    (found,) = (tmp_path / "cache" / "autotune").glob("*.json")
    text = found.read_bytes()
    for name, ends, tried in (("second", lambda: found.write_bytes(text), 1), ("third", lambda: None, 2)):
        found.unlink()  # as while the first one tries
        with ExitStack() as first:
            first.enter_context(files.in_turn(found.with_suffix(".lock"), lambda: None))
            display = Waiting(lambda ends=ends, first=first: (ends(), first.close()))
            run(case, tmp_path / name, display=display)
        assert display.messages[0] == "waiting for another run that is autotuning an equal experiment"
        assert manifest(tmp_path / name)["choices"]["0"]["recalled"] == (tried == 1)
        assert len(asked) == tried  # of the first that ended without an answer, the next one tries
    display = Stopping()
    run(case, tmp_path / "fourth", display=display)
    assert len(display.messages) == 1


def test_without_write_access_to_the_cache_no_run_waits(tmp_path):
    (tmp_path / "autotune").write_text("no folder")
    with (
        TuningCache(tmp_path / "autotune" / "one.json").lock(pytest.fail),
        TuningCache(tmp_path / "autotune" / "one.json").lock(pytest.fail),
    ):
        assert TuningCache(tmp_path / "autotune" / "one.json").read() is None


def test_a_measurement_on_a_busy_gpu_is_reported_until_it_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(Tuner, "_measures", property(lambda self: True))
    monkeypatch.setattr("simfl.runtime.gpu_monitor.GpuMonitor.others", lambda self: 0.63)
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    case, doubt = replace(CASE, execution=Execution()), "other processes used the GPU for 63% of the second before"
    for name in ("first", "second"):
        display = Stopping()
        run(case, tmp_path / name, display=display)
        assert doubt in display.messages[0]
        assert manifest(tmp_path / name)["choices"]["0"]["others"] == 0.63
    assert re.search(r"tried by an earlier run on \d{4}-\d\d-\d\d; other processes used", display.messages[0])
    monkeypatch.setattr("simfl.runtime.gpu_monitor.GpuMonitor.others", lambda self: 0.0)
    answered(monkeypatch, of(SEQUENTIAL, 1.0), of(FOUR, 2.0))
    run(CASE, tmp_path / "anew")  # execution.autotune is always
    display = Stopping()
    run(case, tmp_path / "third", display=display)
    assert manifest(tmp_path / "third")["choices"]["0"]["mode"] == "sequential"
    assert "other processes" not in display.messages[0]


def test_the_measuring_worker_is_reported_where_workers_differ(tmp_path, monkeypatch):
    answered(monkeypatch, of(SEQUENTIAL, 9.0), of(FOUR, 2.0))
    monkeypatch.setattr(worker, "processor", lambda device: "small")
    monkeypatch.setattr("simfl.runtime.inline.processor", lambda device: "large, small")
    display = Stopping()
    run(CASE, tmp_path, display=display)
    assert display.messages[0].endswith("; measured on one worker (small) for all (large, small)")


def likes(case: Experiment, **changed: Any) -> Path:
    given = {"phase": 0, "data": "rows", "workers": 1, "kind": "card", "folder": Path("cache")} | changed
    return TuningCache.of(case, **given).path  # type: ignore[arg-type]


def test_runs_share_a_result_if_a_measurement_would_be_the_same():
    phase = CASE.phases[0]
    local = phase.local
    same = [
        replace(CASE, name="other", seed=9),
        replace(CASE, phases=(replace(phase, local=replace(local, learning_rate=0.5)),)),
        replace(CASE, execution=Execution()),  # asked to try always, or not
    ]
    other = [
        replace(CASE, phases=(replace(phase, local=replace(local, batch_size=3)),)),
        replace(CASE, model=replace(CASE.model, hidden_sizes=(17,))),
        replace(CASE, deterministic=True),
    ]
    assert {likes(case) for case in same} == {likes(CASE)}
    elsewhere = {likes(CASE, workers=2), likes(CASE, kind="new"), likes(CASE, data="other rows")}
    assert len({likes(case) for case in [CASE, *other]} | elsewhere) == 7


def test_a_damaged_memory_of_it_is_none(tmp_path):
    known = TuningCache(tmp_path / "there" / "one.json")
    assert known.read() is None
    known.write({"steps": 3})
    assert known.read() == {"steps": 3}
    whole = known.path.read_text()
    for damaged in ('{"steps":', whole.replace("3", "4"), "[]"):
        known.path.write_text(damaged)
        assert known.read() is None


@pytest.mark.gpu
def test_on_a_gpu_auto_tries_and_ends_as_if_its_choice_had_been_written(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "MAX_SHARE", 1e6)  # as for many rounds
    case = experiment("scaffold", execution=Execution())
    run(case, tmp_path / "auto")
    kept = manifest(tmp_path / "auto")["choices"]["0"]
    assert len(kept["trials"]) >= 3
    assert {one["program"] for one in kept["trials"]} == {"graph", "eager"}
    assert [one["why"] for one in kept["trials"][:2]] == ["", ""]
    forced = Execution(mode=kept["mode"], clients_per_batch=kept["clients_per_batch"], program=kept["program"])
    run(replace(case, execution=forced), tmp_path / "forced")
    assert traces(tmp_path / "auto") == traces(tmp_path / "forced")
    run(case, tmp_path / "again")
    assert manifest(tmp_path / "again")["choices"]["0"]["recalled"]
    assert traces(tmp_path / "again") == traces(tmp_path / "auto")
