"""Evaluation during the training of the next round changes only the time of a run, not its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_ray import ActorDied, FakeRay, TaskError, use_fake_ray
from fakes import Faulty, Killed, Stopping, experiment, run, then, traces
from faults import FaultyScaffold, order

from simfl.client_state.packs import Pack
from simfl.errors import ClientError, OutOfMemory, RunError
from simfl.experiment import AdaptiveClip, Checkpoint, Evaluate, Execution, Experiment, Privacy
from simfl.runs import checkpoint
from simfl.runs.folder import CLIENT_STATES
from simfl.runs.snapshot import Snapshot
from simfl.session.signals import Interrupted

EVERY = Evaluate(batch_size=8)  # 60 examples are 8 shards
OVERLAPPED = replace(EVERY, overlap=True)
NO_MEMORY = OutOfMemory("no memory for a shard")


def scaffold(**settings: Any) -> Experiment:
    usual: dict[str, Any] = {"rounds": 4, "evaluate": OVERLAPPED}
    return experiment("scaffold", **usual | settings)


def plain(case: Experiment) -> Experiment:
    return replace(case, evaluate=replace(case.evaluate, overlap=False))


def events(folder: Path) -> list[tuple[str, int]]:
    """Return the logged evaluations and rounds, in order."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(line["event"], line["step"]) for line in lines if line["event"] in ("evaluated", "round")]


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


PERSONAL = replace(OVERLAPPED, models=("global", "personal"), every=2)
PERSONAL_PHASE: dict[str, Any] = {"personal_params": ("head.*",), "evaluate": PERSONAL, "rounds": 3}
CASES: dict[str, Callable[[], Experiment]] = {
    "client states": scaffold,
    "few checkpoints": lambda: scaffold(checkpoint=Checkpoint(rounds=3, seconds=0.0)),
    "personal models in two phases": lambda: then(
        experiment("ditto", **PERSONAL_PHASE), experiment("ditto", **PERSONAL_PHASE)
    ),
    "one round": lambda: scaffold(rounds=1),
    "differential privacy": lambda: experiment(
        mode="vectorized",
        weighting="uniform",
        privacy=Privacy(clip=0.5, noise_multiplier=1.0, noise_seed=0, adaptive=AdaptiveClip()),
        evaluate=OVERLAPPED,
    ),
    "data parallel": lambda: experiment(
        execution=Execution(mode="sequential", clients_per_batch=1, data_parallel=2),
        clients_per_round=1,
        evaluate=OVERLAPPED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_overlapped_run_has_the_same_tables_and_log_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]()
    run(plain(case), tmp_path / "plain")
    use_fake_ray(monkeypatch, slow={1: 3.0})
    run(case, tmp_path / "overlapped")
    assert traces(tmp_path / "overlapped") == traces(tmp_path / "plain")
    assert events(tmp_path / "overlapped") == events(tmp_path / "plain")


def test_cohorts_are_sent_before_shards_of_the_round_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round begins when at most one shard per worker of the last model is running."""
    ray = use_fake_ray(monkeypatch, workers=2)
    run(scaffold(rounds=3), tmp_path)
    methods = "".join("t" if method == "train" else "e" for _, method, _ in ray.sent)
    first = methods.lstrip("e")  # training waits for the scores before the first round
    assert len(methods) - len(first) == 8
    cohorts = methods.count("t") // 3
    assert first.startswith("t" * cohorts + "ee" + "t" * cohorts)  # two shards are sent when the first round ends
    assert first.endswith("e" * 8)


def test_without_overlap_each_round_waits_for_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = use_fake_ray(monkeypatch)
    run(plain(scaffold(rounds=2)), tmp_path)
    methods = "".join("t" if method == "train" else "e" for _, method, _ in ray.sent)
    cohorts = methods.count("t") // 2
    assert methods == "e" * 8 + ("t" * cohorts + "e" * 8) * 2


def test_overlap_shortens_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the simulated clock; it saves the time in which one of three workers waited for the others."""
    ends = []
    for name, case in {"plain": plain(scaffold()), "overlapped": scaffold()}.items():
        with monkeypatch.context() as patched:
            ray = use_fake_ray(patched, workers=3, row_seconds=0.5)
            run(case, tmp_path / name)
            ends.append(ray.now)
    assert ends[1] < 0.93 * ends[0]


@pytest.mark.parametrize("error", [Killed, Interrupted])
def test_round_that_was_not_scored_does_not_count_and_is_repeated(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while round 2 is scored and round 3 is trained already: the run resumes after round 1."""
    run(plain(scaffold()), tmp_path / "plain")
    use_fake_ray(monkeypatch)
    with suppress(Killed):
        run(scaffold(), tmp_path / "parts", display=Stopping(2, scoring=True, error=error))
    assert checkpoint.steps(tmp_path / "parts" / "checkpoints")[-1] == 1
    assert run(scaffold(), tmp_path / "parts", resume=True)["resumed_at"] == [1]
    assert traces(tmp_path / "parts") == traces(tmp_path / "plain")


def test_run_may_be_resumed_with_or_without_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plain(scaffold()), tmp_path / "plain")
    use_fake_ray(monkeypatch)
    run(scaffold(), tmp_path / "parts", display=Stopping(1))
    run(plain(scaffold()), tmp_path / "parts", resume=True, display=Stopping(2))
    run(scaffold(), tmp_path / "parts", resume=True)
    assert traces(tmp_path / "parts") == traces(tmp_path / "plain")


def test_run_that_is_stopped_waits_for_its_last_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake_ray(monkeypatch)
    statuses = iter(["", "", "stopped"])
    found = run(scaffold(), tmp_path / "stopped", until=lambda: next(statuses))
    assert (found["status"], found["rounds"]) == ("stopped", 2)
    assert events(tmp_path / "stopped")[-2:] == [("evaluated", 2), ("round", 2)]
    run(plain(scaffold()), tmp_path / "plain", until=iter(["", "", "stopped"]).__next__)
    assert traces(tmp_path / "stopped") == traces(tmp_path / "plain")


# Failures


def resume_and_check(case: Experiment, folder: Path, ray: FakeRay) -> None:
    """Resume the failed run without faults, and compare it with the plain run."""
    ray.faults.clear()
    run(case, folder / "failed", resume=True)
    assert traces(folder / "failed") == traces(folder / "plain")


SECOND = 8 + 8 + 3  # the fourth shard of the evaluation after round 2: one is before the first round


def test_failed_evaluation_ends_the_run_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plain(scaffold()), tmp_path / "plain")
    ray = use_fake_ray(
        monkeypatch, faults={("evaluate", SECOND): TaskError(ZeroDivisionError("an error in the objective"))}
    )
    with pytest.raises(TaskError, match="an error in the objective"):
        run(scaffold(), tmp_path / "failed")
    assert (summary(tmp_path / "failed")["status"], summary(tmp_path / "failed")["rounds"]) == ("failed", 1)
    resume_and_check(scaffold(), tmp_path, ray)


def test_failed_client_ends_the_run_and_the_unscored_round_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = experiment(Faulty(client=3, round=2), rounds=4, evaluate=OVERLAPPED)
    use_fake_ray(monkeypatch)
    with pytest.raises(ClientError, match="client 3, phase 0, round 3"):
        run(case, tmp_path / "failed")
    assert (summary(tmp_path / "failed")["status"], summary(tmp_path / "failed")["rounds"]) == ("failed", 1)


def test_shard_out_of_memory_is_retried_alone_and_does_not_change_the_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = scaffold(mode="vectorized", clients_per_batch=4)
    run(plain(case), tmp_path / "plain")
    ray = use_fake_ray(monkeypatch, faults={("evaluate", SECOND): NO_MEMORY})
    display = Stopping()
    run(case, tmp_path / "retried", display=display)
    assert sum("retried alone on a fresh worker" in text for text in display.messages) == 1
    assert traces(tmp_path / "retried") == traces(tmp_path / "plain")
    assert ray.count["begin"] == 3
    ray.count.clear()
    ray.faults |= {("evaluate", number): NO_MEMORY for number in range(SECOND, 100)}
    with pytest.raises(
        OutOfMemory, match=r"^out of memory on \d examples of split valid, also alone on a fresh worker"
    ):
        run(case, tmp_path / "failed")
    assert "clients_per_batch" not in json.loads((tmp_path / "failed" / "manifest.json").read_text())
    assert summary(tmp_path / "failed")["rounds"] == 1
    resume_and_check(case, tmp_path, ray)


def test_workers_that_die_during_a_shard_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plain(scaffold()), tmp_path / "plain")
    ray = use_fake_ray(
        monkeypatch, faults={("evaluate", SECOND): ActorDied("gone"), ("evaluate", 9): ActorDied("gone")}
    )
    run(scaffold(), tmp_path / "died")
    assert traces(tmp_path / "died") == traces(tmp_path / "plain")
    ray.count.clear()
    ray.faults = {("evaluate", number): ActorDied("gone") for number in range(SECOND, 100)}
    with pytest.raises(RunError, match=r"^a worker died 4 times on \d examples of split valid: gone$"):
        run(scaffold(), tmp_path / "failed")
    resume_and_check(scaffold(), tmp_path, ray)


def test_cohorts_are_halved_while_the_round_before_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cohort of 4 clients is out of memory twice in round 2; shards of round 1 run next to the cohorts of 2."""

    def faulty(name: str) -> Experiment:
        order(tmp_path / f"faults {name}", "no GPU memory", client=8, round=1, times=2)
        return experiment(
            FaultyScaffold(folder=str(tmp_path / f"faults {name}")),
            "vectorized",
            clients_per_batch=4,
            rounds=4,
            evaluate=OVERLAPPED,
        )

    run(plain(faulty("plain")), tmp_path / "plain")
    use_fake_ray(monkeypatch, workers=1)
    display = Stopping()
    run(faulty("overlapped"), tmp_path / "overlapped", display=display)
    assert any("from round 2 on, 2 clients train per batch" in text for text in display.messages)
    assert traces(tmp_path / "overlapped") == traces(tmp_path / "plain")


def test_inline_backend_reports_that_overlap_has_no_effect(tmp_path: Path) -> None:
    display = Stopping()
    run(scaffold(rounds=2), tmp_path / "overlapped", display=display)
    assert [text for text in display.messages if text.startswith("evaluate.overlap has no effect")]
    run(plain(scaffold(rounds=2)), tmp_path / "plain")
    assert traces(tmp_path / "overlapped") == traces(tmp_path / "plain")


def test_client_states_of_newer_rounds_are_kept_and_old_ones_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake_ray(monkeypatch)
    run(scaffold(), tmp_path)
    newest = [Snapshot.restore(checkpoint.read(tmp_path / "checkpoints", step)) for step in (3, 4)]
    named = {digest for snapshot in newest for digest in snapshot.client_states.values()}
    packs = [Pack.open(path) for path in (tmp_path / CLIENT_STATES).glob("*.pack")]
    assert named <= set().union(*(pack.names for pack in packs))
    assert all(named & pack.names for pack in packs)


def test_times_are_logged_with_the_round_in_which_they_were_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluating 60 examples takes 60 s, a local step one. Nothing is evaluated in round 1, the model after round 1 in
    round 2, and those after rounds 2 and 3 in round 3."""
    use_fake_ray(monkeypatch, row_seconds=1.0)
    run(scaffold(rounds=3), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    scored = [sum(line["busy"]) - line["local_steps"] for line in rounds]
    assert scored == pytest.approx([0.0, 60.0, 120.0])
    assert [line["timings"]["train"] for line in rounds] == pytest.approx([line["local_steps"] for line in rounds])
    assert [line["timings"]["evaluate"] > 0 for line in rounds] == [False, True, True]  # time spent waiting


@pytest.mark.slow
def test_overlapped_run_on_ray_has_the_same_results(tmp_path: Path, ray_session: None) -> None:
    run(plain(scaffold(rounds=3)), tmp_path / "plain")
    run(scaffold(rounds=3), tmp_path / "overlapped", workers=2)
    assert traces(tmp_path / "overlapped") == traces(tmp_path / "plain")
    assert events(tmp_path / "overlapped") == events(tmp_path / "plain")
