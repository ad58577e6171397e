"""An evaluation that goes on while the next round is trained changes nothing but the time."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Faulty, Killed, Stopping, experiment, run, then, traces
from faults import Troubled, order
from pretended import ActorDied, Pretended, TaskError, pretend

from simfl.errors import ClientError, OutOfMemory, RunError
from simfl.experiment import AdaptiveClip, Checkpoint, Evaluate, Execution, Experiment, Privacy
from simfl.runs import checkpoint
from simfl.session.signals import Interrupted

EVERY = Evaluate(batch_size=8)  # 60 examples are 8 shards
OVERLAPPED = replace(EVERY, overlap=True)
STARVED = OutOfMemory("no room for a shard")


def scaffold(**settings: Any) -> Experiment:
    return experiment("scaffold", **{"rounds": 4, "evaluate": OVERLAPPED} | settings)


def plain(case: Experiment) -> Experiment:
    return replace(case, evaluate=replace(case.evaluate, overlap=False))


def events(folder: Path) -> list[tuple[str, int]]:
    """What the log says of scores and rounds, in order."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(line["event"], line["step"]) for line in lines if line["event"] in ("evaluated", "round")]


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


PERSONAL = replace(OVERLAPPED, models=("global", "personal"), every=2)
PRIVATE = {"personal_params": ("head.*",), "evaluate": PERSONAL, "rounds": 3}
CASES: dict[str, Callable[[], Experiment]] = {
    "memory": scaffold,
    "seldom committed": lambda: scaffold(checkpoint=Checkpoint(rounds=3, seconds=0.0)),
    "personal models in two phases": lambda: then(experiment("ditto", **PRIVATE), experiment("ditto", **PRIVATE)),
    "one round": lambda: scaffold(rounds=1),
    "personal_params": lambda: experiment(
        mode="vectorized",
        weighting="uniform",
        privacy=Privacy(clip=0.5, noise_multiplier=1.0, adaptive=AdaptiveClip()),
        evaluate=OVERLAPPED,
    ),
    "pieces of a batch": lambda: experiment(
        execution=Execution(mode="sequential", clients_per_batch=1, data_parallel=2),
        clients_per_round=1,
        evaluate=OVERLAPPED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_run_is_the_same_in_every_row_and_in_the_order_of_its_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]()
    run(plain(case), tmp_path / "plain")
    pretend(monkeypatch, slow={1: 3.0})
    run(case, tmp_path / "overlapped")
    assert traces(tmp_path / "overlapped") == traces(tmp_path / "plain")
    assert events(tmp_path / "overlapped") == events(tmp_path / "plain")


def test_shards_go_out_beside_the_next_round_and_cohorts_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one worker each, a round begins when at most one shard of the last model is under way."""
    ray = pretend(monkeypatch, workers=2)
    run(scaffold(rounds=3), tmp_path)
    methods = "".join("t" if method == "train" else "e" for _, method, _ in ray.sent)
    first = methods.lstrip("e")  # the scores before the first round are waited for
    assert len(methods) - len(first) == 8
    cohorts = methods.count("t") // 3
    assert first.startswith("t" * cohorts + "ee" + "t" * cohorts)  # two shards go out when the first round ends
    assert first.endswith("e" * 8)


def test_without_it_scores_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pretend(monkeypatch)
    run(plain(scaffold(rounds=2)), tmp_path)
    methods = "".join("t" if method == "train" else "e" for _, method, _ in ray.sent)
    cohorts = methods.count("t") // 2
    assert methods == "e" * 8 + ("t" * cohorts + "e" * 8) * 2


def test_overlapped_rounds_end_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pretended clock; what is saved is the time in which one of three workers waited for the others."""
    ends = []
    for name, case in {"plain": plain(scaffold()), "overlapped": scaffold()}.items():
        with monkeypatch.context() as patched:
            ray = pretend(patched, workers=3, row_seconds=0.5)
            run(case, tmp_path / name)
            ends.append(ray.now)
    assert ends[1] < 0.93 * ends[0]


@pytest.mark.parametrize("error", [Killed, Interrupted])
def test_a_round_that_was_not_scored_does_not_count_and_is_made_again(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when round 2 is scored, while round 3 has been trained: the run goes on after round 1."""
    run(plain(scaffold()), tmp_path / "plain")
    pretend(monkeypatch)
    with suppress(Killed):
        run(scaffold(), tmp_path / "parts", display=Stopping(2, scoring=True, error=error))
    assert checkpoint.steps(tmp_path / "parts" / "checkpoints")[-1] == 1
    assert run(scaffold(), tmp_path / "parts", resume=True)["resumed_at"] == [1]
    assert traces(tmp_path / "parts") == traces(tmp_path / "plain")


def test_a_run_may_go_on_with_or_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plain(scaffold()), tmp_path / "plain")
    pretend(monkeypatch)
    run(scaffold(), tmp_path / "parts", display=Stopping(1))
    run(plain(scaffold()), tmp_path / "parts", resume=True, display=Stopping(2))
    run(scaffold(), tmp_path / "parts", resume=True)
    assert traces(tmp_path / "parts") == traces(tmp_path / "plain")


def test_a_run_that_is_asked_to_end_waits_for_its_last_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    asked = iter(["", "", "stopped"])
    found = run(scaffold(), tmp_path / "stopped", until=lambda: next(asked))
    assert (found["status"], found["rounds"]) == ("stopped", 2)
    assert events(tmp_path / "stopped")[-2:] == [("evaluated", 2), ("round", 2)]
    run(plain(scaffold()), tmp_path / "plain", until=iter(["", "", "stopped"]).__next__)
    assert traces(tmp_path / "stopped") == traces(tmp_path / "plain")


# what goes wrong


def failed(case: Experiment, folder: Path, error: type[Exception], line: str, counted: int) -> None:
    """The run ends with this error, after so many rounds that count, and goes on to the end it would have had."""
    run(plain(case), folder / "plain")
    with pytest.raises(error, match=line):
        run(case, folder / "failed")
    assert (summary(folder / "failed")["status"], summary(folder / "failed")["rounds"]) == ("failed", counted)


def goes_on(case: Experiment, folder: Path, ray: Pretended) -> None:
    ray.faults.clear()
    run(case, folder / "failed", resume=True)
    assert traces(folder / "failed") == traces(folder / "plain")


SECOND = 8 + 8 + 3  # the fourth shard of the evaluation after round 2: one is before the first round


def test_an_evaluation_that_fails_ends_the_run_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plain(scaffold()), tmp_path / "plain")
    ray = pretend(monkeypatch, faults={("evaluate", SECOND): TaskError(ZeroDivisionError("the objective's own words"))})
    with pytest.raises(TaskError, match="the objective's own words"):
        run(scaffold(), tmp_path / "failed")
    assert (summary(tmp_path / "failed")["status"], summary(tmp_path / "failed")["rounds"]) == ("failed", 1)
    goes_on(scaffold(), tmp_path, ray)


def test_a_client_that_fails_ends_the_run_and_the_round_before_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = experiment(Faulty(client=3, round=2), rounds=4, evaluate=OVERLAPPED)
    pretend(monkeypatch)
    with pytest.raises(ClientError, match="client 3, phase 0, round 3"):
        run(case, tmp_path / "failed")
    assert (summary(tmp_path / "failed")["status"], summary(tmp_path / "failed")["rounds"]) == ("failed", 1)


def test_a_shard_that_starves_is_scored_alone_and_narrows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = scaffold(mode="vectorized", clients_per_batch=4)
    run(plain(case), tmp_path / "plain")
    ray = pretend(monkeypatch, faults={("evaluate", SECOND): STARVED})
    display = Stopping()
    run(case, tmp_path / "starved", display=display)
    assert sum("tried again alone on a fresh worker" in text for text in display.messages) == 1
    assert traces(tmp_path / "starved") == traces(tmp_path / "plain")
    assert ray.count["begin"] == 3
    ray.count.clear()
    ray.faults |= {("evaluate", number): STARVED for number in range(SECOND, 100)}
    with pytest.raises(
        OutOfMemory, match=r"^out of memory on \d examples of split valid, also alone on a fresh worker"
    ):
        run(case, tmp_path / "failed")
    assert "clients_per_batch" not in json.loads((tmp_path / "failed" / "manifest.json").read_text())
    assert summary(tmp_path / "failed")["rounds"] == 1
    goes_on(case, tmp_path, ray)


def test_workers_that_die_at_a_shard_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plain(scaffold()), tmp_path / "plain")
    ray = pretend(monkeypatch, faults={("evaluate", SECOND): ActorDied("gone"), ("evaluate", 9): ActorDied("gone")})
    run(scaffold(), tmp_path / "died")
    assert traces(tmp_path / "died") == traces(tmp_path / "plain")
    ray.count.clear()
    ray.faults = {("evaluate", number): ActorDied("gone") for number in range(SECOND, 100)}
    with pytest.raises(RunError, match=r"^a worker died 4 times on \d examples of split valid: gone$"):
        run(scaffold(), tmp_path / "failed")
    goes_on(scaffold(), tmp_path, ray)


def test_cohorts_are_halved_while_the_round_before_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cohort of 4 starves twice in round 2; shards of round 1 go on beside the cohorts of 2."""

    def troubled(name: str) -> Experiment:
        order(tmp_path / f"faults {name}", "no GPU memory", client=8, round=1, times=2)
        return experiment(
            Troubled(folder=str(tmp_path / f"faults {name}")),
            "vectorized",
            clients_per_batch=4,
            rounds=4,
            evaluate=OVERLAPPED,
        )

    run(plain(troubled("plain")), tmp_path / "plain")
    pretend(monkeypatch, workers=1)
    display = Stopping()
    run(troubled("overlapped"), tmp_path / "overlapped", display=display)
    assert any("from round 2 on cohorts are 2 clients wide" in text for text in display.messages)
    assert traces(tmp_path / "overlapped") == traces(tmp_path / "plain")


def test_in_one_process_it_is_said_that_there_is_nothing_to_overlap(tmp_path: Path) -> None:
    display = Stopping()
    run(scaffold(rounds=2), tmp_path / "asked", display=display)
    assert [text for text in display.messages if text.startswith("evaluate.overlap: ")]
    run(plain(scaffold(rounds=2)), tmp_path / "plain")
    assert traces(tmp_path / "asked") == traces(tmp_path / "plain")


def test_clients_memory_that_no_commit_names_yet_is_kept_and_what_is_old_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    run(scaffold(), tmp_path)
    newest = [checkpoint.read(tmp_path / "checkpoints", step).facts for step in (3, 4)]
    named = {digest for facts in newest for digest in facts["memory"].values()}  # type: ignore[attr-defined]
    assert {path.stem for path in (tmp_path / "memory").glob("*.safetensors")} == named


def test_clock_times_stand_with_the_stretch_in_which_they_were_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scoring 60 examples takes 60 s, a local step one. In round 1 nothing is scored, in round 2 the model after 1, in
    round 3 those after 2 and 3."""
    pretend(monkeypatch, row_seconds=1.0)
    run(scaffold(rounds=3), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    scored = [sum(line["busy"]) - line["local_steps"] for line in rounds]
    assert scored == pytest.approx([0.0, 60.0, 120.0])
    assert [line["timings"]["train"] for line in rounds] == pytest.approx([line["local_steps"] for line in rounds])
    assert [line["timings"]["evaluate"] > 0 for line in rounds] == [False, True, True]  # what was waited for


def test_on_ray_too(tmp_path: Path, ray_session: None) -> None:
    run(plain(scaffold(rounds=3)), tmp_path / "plain")
    run(scaffold(rounds=3), tmp_path / "overlapped", workers=2)
    assert traces(tmp_path / "overlapped") == traces(tmp_path / "plain")
    assert events(tmp_path / "overlapped") == events(tmp_path / "plain")
