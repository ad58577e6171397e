"""Tracking with W&B and TensorBoard: one tracked run per experiment, with the numbers of the tables."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import Stopping, Toy, experiment, run, traces
from fakes_asynchronous import case as timed
from fakes_documents import Pages

from simfl.algorithms.fedavg import FedAvg
from simfl.errors import ConfigError, DamagedFile
from simfl.experiment import Evaluate, Tracking, Wandb
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Server, State
from simfl.runs import tables
from simfl.runs.environment import commit_of_simfl
from simfl.timing import NAMES
from simfl.tracking import trackers as tracking
from simfl.tracking.events import MAX_GROUPS, TrackingEvent, evaluation_name, metrics

WANDB = Tracking(wandb=Wandb(project="toys", group="fakes", job_type="ablation", notes="a note", tags=("a", "b")))
BOTH_MODELS = Evaluate(models=("global", "personal"), samples=4)


def records(folder: Path) -> Iterator[Any]:
    """Yield every record of the .wandb files in a run folder, in order.

    A file is 7 bytes of header, then blocks of 32 KiB as LevelDB's logs have: a checksum (4 bytes), length (2), a kind
    (1: whole; 2, 3, 4: first, middle and last piece) and the data, a protocol buffer once put together.
    """
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, at, pieces = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if 32768 - at % 32768 < 7:
                at += 32768 - at % 32768
                continue
            _, length, kind = struct.unpack_from("<IHB", data, at)
            pieces = data[at + 7 : at + 7 + length] if kind in (1, 2) else pieces + data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(pieces)
                yield record


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the logged values, one mapping per log call."""
    found = [record.history for record in records(folder) if record.WhichOneof("record_type") == "history"]
    return [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in entry.item} for entry in found]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Return the folder of a finished run that was tracked by W&B offline."""
    folder = tmp_path_factory.mktemp("tracked")
    case = experiment("ditto", evaluate=BOTH_MODELS, rounds=3, tracking=WANDB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_DATA_DIR", str(folder / "staging"))
        run(case, folder)
    return folder


def test_every_value_of_every_round_is_logged(tracked):
    logged = {row["round"]: row for row in history(tracked) if "round" in row}
    for row in tables.rows(tracked / "rounds.parquet"):
        for name, value in row.items():
            assert logged[row["step"]][f"rounds/{name}"] == value, name


def test_password_in_the_command_line_is_not_stored_by_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    words = ["simfl", "run", "--out", "s3://user:PaSsW0rd@bucket/r"]
    monkeypatch.setattr(sys, "argv", words)
    run(experiment(rounds=1, tracking=WANDB), tmp_path / "r")
    stored = [one.environment for one in records(tmp_path / "r") if one.WhichOneof("record_type") == "environment"]
    assert ["run", "--out", "s3://***@bucket/r"] in [list(environment.args) for environment in stored]
    assert sys.argv is words
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"PaSsW0rd" in path.read_bytes()]


def test_every_score_of_every_evaluation_is_logged(tracked):
    logged = {row["round"]: row for row in history(tracked) if "round" in row}
    rows = tables.rows(tracked / "evaluations.parquet")
    assert {row["step"] for row in rows} == {0, 1, 2, 3}
    assert {row["by"] for row in rows} >= {"all", "client"}
    for row in rows:
        assert logged[row["step"]][evaluation_name(row)] == row["value"]


def test_timings_bytes_and_scores_over_bytes_are_logged(tracked):
    logged = [row for row in history(tracked) if "rounds/loss" in row]
    sent = np.cumsum([row["total_bytes"] for row in tables.rows(tracked / "rounds.parquet")])
    assert [row["bytes"] for row in logged] == sent.tolist()
    for row in logged:
        assert {f"timings/{name}" for name in NAMES} <= row.keys()
        assert row["busy/0"] > 0
        assert row["by_bytes/accuracy"] == row["evaluations/valid/global/accuracy"]
        assert "by_bytes/personal.accuracy" in row


def test_metrics_of_a_run_that_has_ended_are_added_to_its_tracked_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    case = experiment(tracking=Tracking(wandb=Wandb(mode="offline")))
    run(case, tmp_path / "run")
    rows = [{"audit/round": 1, "audit/model/bound": 0.5}, {"audit/round": 2, "audit/model/bound": 0.75}]
    tracking.log_afterwards(case, tmp_path / "run", "audit/round", rows, lambda text: None)
    added = [row for row in history(tmp_path / "run") if "audit/round" in row]
    assert [{name: row[name] for name in rows[0]} for row in added] == rows
    ids = {record.run.run_id for record in records(tmp_path / "run") if record.WhichOneof("record_type") == "run"}
    assert ids == {json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"]["id"]}
    run(experiment(), tmp_path / "untracked")
    tracking.log_afterwards(case, tmp_path / "untracked", "audit/round", rows, lambda text: None)
    assert not (tmp_path / "untracked" / "wandb").exists()


@pytest.mark.slow
def test_scores_of_a_run_in_virtual_time_are_logged_over_its_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    evaluate = Evaluate(every=1, batch_size=60)
    case = timed("fedavg", rounds=3, evaluate=evaluate, tracking=Tracking(wandb=Wandb(mode="offline")))
    run(case, tmp_path / "run")
    axes = {
        record.metric.name or record.metric.glob_name: record.metric.step_metric
        for record in records(tmp_path / "run")
        if record.WhichOneof("record_type") == "metric"
    }
    assert axes["by_time/*"] == "virtual_seconds"
    rounds = {row["round"]: row["virtual_seconds"] for row in tables.rows(tmp_path / "run/rounds.parquet")}
    scored = [row for row in history(tmp_path / "run") if "by_time/accuracy" in row]
    assert [row["virtual_seconds"] for row in scored] == [rounds[number] for number in (1, 2, 3)]
    assert [row["by_time/accuracy"] for row in scored] == [row["evaluations/valid/global/accuracy"] for row in scored]


def test_summary_shadows_no_metric(tracked):
    metrics = {name for row in history(tracked) for name in row if not name.startswith("_")}
    updates = [record.summary for record in records(tracked) if record.WhichOneof("record_type") == "summary"]
    names = {item.key or item.nested_key[0] for update in updates for item in update.update}
    own = {name for name in names if name.startswith("run/")}
    assert own >= {"run/bytes", "run/final", "run/rounds", "run/weights_sha256"}
    parts = {name.split("/", 1)[0] for name in metrics}
    assert "run" not in parts
    assert not own & metrics


def test_the_axes_of_metrics_are_declared(tracked):
    metrics = [record.metric for record in records(tracked) if record.WhichOneof("record_type") == "metric"]
    axes = {metric.glob_name: metric.step_metric for metric in metrics if metric.glob_name}
    assert axes["rounds/*"] == axes["evaluations/*"] == axes["timings/*"] == "round"
    assert (axes["by_bytes/*"], axes["by_epsilon/*"]) == ("bytes", "epsilon")


def test_the_tracked_run_has_the_name_settings_and_group_of_the_experiment(tracked):
    (start,) = [record.run for record in records(tracked) if record.WhichOneof("record_type") == "run"]
    assert (start.project, start.run_group, start.display_name) == ("toys", "fakes", "toy")
    assert list(start.tags) == ["a", "b"]
    settings = {item.key: json.loads(item.value_json) for item in start.config.update}
    assert settings["phases"]["0"]["rounds"] == 3
    assert settings["simfl"]["commit"] == commit_of_simfl()[0]
    assert (start.job_type, start.notes) == ("ablation", "a note")


def test_partition_and_last_checkpoint_are_artifacts(tracked):
    kept = [record.artifact for record in records(tracked) if record.WhichOneof("record_type") == "artifact"]
    files = {artifact.type: {entry.path for entry in artifact.manifest.contents} for artifact in kept}
    assert files["partition"] == {"partition.json"}
    assert files["checkpoint"] == {"state.safetensors", "state.json", "notes.json", "digests.json"}


def test_samples_and_scores_are_logged_as_tables(tracked):
    shown = [row for row in history(tracked) if "samples/valid/_type" in row]
    assert [row["round"] for row in shown] == [0, 1, 2, 3]
    assert {(row["samples/valid/_type"], row["samples/valid/nrows"]) for row in shown} == {("table-file", 4)}
    (scores,) = [row for row in history(tracked) if "evaluations_table/nrows" in row]
    assert scores["evaluations_table/nrows"] == len(tables.rows(tracked / "evaluations.parquet"))


def test_a_run_that_is_resumed_twice_is_one_tracked_run_with_every_round(tmp_path):
    case = experiment(rounds=4, tracking=WANDB)
    run(case, tmp_path, display=Stopping(1))
    run(case, tmp_path, display=Stopping(3), resume=True)
    run(case, tmp_path, resume=True)
    starts = [record.run.run_id for record in records(tmp_path) if record.WhichOneof("record_type") == "run"]
    assert len(starts) == 3
    assert len(set(starts)) == 1
    assert {row["round"] for row in history(tmp_path) if "round" in row} == {0, 1, 2, 3, 4}
    sent = np.cumsum([row["total_bytes"] for row in tables.rows(tmp_path / "rounds.parquet")])
    last = [row for row in history(tmp_path) if row.get("round") == 4]
    assert [row["bytes"] for row in last] == [sent[-1]]


def test_tracking_changes_no_result_and_may_change_when_a_run_is_resumed(tmp_path):
    run(experiment(), tmp_path / "plain")
    run(experiment(tracking=WANDB), tmp_path / "tracked", display=Stopping(1))
    run(experiment(watchdog_seconds=5.0), tmp_path / "tracked", resume=True)
    assert traces(tmp_path / "tracked") == traces(tmp_path / "plain")


def test_online_tracking_without_an_api_key_raises_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tracking, "_has_key", lambda: False)
    with pytest.raises(ConfigError, match=r"^tracking.wandb.mode: online, but there is no API key[^\n]*$"):
        run(experiment(tracking=Tracking(wandb=Wandb(mode="online"))), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_tracked_offline_if_the_site_cannot_be_reached(monkeypatch, tmp_path):
    import wandb

    init = wandb.init

    def unreachable(**settings):
        if settings["mode"] == "online":
            raise wandb.errors.CommError("no such host")
        return init(**settings)

    monkeypatch.setattr(tracking, "_has_key", lambda: True)
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(wandb, "init", unreachable)
    display = Stopping()
    run(experiment(rounds=1, tracking=WANDB), tmp_path, display=display)
    assert [text for text in display.messages if text.startswith("W&B cannot be reached (no such host)")]
    assert {row["round"] for row in history(tmp_path) if "round" in row} == {0, 1}


def test_a_package_that_is_not_installed_raises_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^tracking.tensorboard: the package is not installed; pip install [^\n]*$"):
        run(experiment(tracking=Tracking(tensorboard=True)), tmp_path / "run")


# metrics of an algorithm


@dataclass(frozen=True)
class Reporting(FedAvg):
    """FedAvg that reports the number of client updates of each round."""

    def metrics(self, server: Server, aggregated: AggregatedUpdates) -> dict[str, float]:
        return {"updates": float(aggregated.num_sampled)}


def test_metrics_of_an_algorithm_reach_table_log_and_tracker(tmp_path):
    run(experiment(Reporting(), rounds=2, tracking=WANDB), tmp_path)
    assert [row["metric:updates"] for row in tables.rows(tmp_path / "rounds.parquet")] == [7.0, 7.0]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["metric:updates"] for line in lines if line["event"] == "round"] == [7.0, 7.0]
    logged = {row["round"]: row for row in history(tmp_path) if "rounds/loss" in row}
    assert {step: row["rounds/metric:updates"] for step, row in logged.items()} == {1: 7.0, 2: 7.0}


# imports


@dataclass(frozen=True)
class ImportChecking(FedAvg):
    """FedAvg whose clients fail if the library of a tracker is loaded."""

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        found = {"wandb", "tensorboard"} & sys.modules.keys()
        if found:
            raise AssertionError(f"{found} is loaded here")
        return state


@pytest.mark.slow
def test_workers_import_no_tracker(tmp_path, ray_session):
    both = Tracking(wandb=Wandb(), tensorboard=True)
    run(experiment(ImportChecking(), rounds=2, tracking=both), tmp_path, workers=2)
    assert {row["round"] for row in history(tmp_path) if "round" in row} == {0, 1, 2}


# TensorBoard


def test_tensorboard_has_every_value_and_a_resumed_run_replaces_lost_rounds(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    case = experiment(rounds=3, tracking=Tracking(tensorboard=True))
    run(case, tmp_path, display=Stopping(1))
    run(case, tmp_path, resume=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for row in tables.rows(tmp_path / "rounds.parquet"):
        for name, value in row.items():
            found = {event.step: event.value for event in events.Scalars(f"rounds/{name}")}
            assert found[row["step"]] == np.float32(value)
    for row in tables.rows(tmp_path / "evaluations.parquet"):
        found = {event.step: event.value for event in events.Scalars(evaluation_name(row))}
        assert found[row["step"]] == np.float32(row["value"])
    assert "samples/valid/text_summary" in events.Tags()["tensors"]


# samples of predictions


def test_samples_are_the_same_rows_at_every_evaluation_with_label_and_prediction(tracked):
    rows = tables.rows(tracked / "samples.parquet")
    kept = {step: [row["row"] for row in rows if row["step"] == step] for step in range(4)}
    assert len(set(map(tuple, kept.values()))) == 1
    assert len(kept[0]) == 4
    labels = Toy().load(Path()).splits["valid"].examples["label"].to_pylist()
    for row in rows:
        assert row["label"] == labels[row["row"]]
        assert 0 <= row["predicted_label"] < 5
        assert 0 < row["predicted_confidence"] <= 1
        assert (row["split"], row["model"]) == ("valid", "global")


def test_no_samples_are_stored_if_none_are_requested(tmp_path):
    run(experiment(rounds=1, evaluate=Evaluate(samples=0)), tmp_path)
    assert tables.rows(tmp_path / "samples.parquet") == []


def test_the_image_of_a_question_is_the_page_that_it_asks_about():
    page = tracking.example_image(Pages().load(Path()).splits["valid"], 0)
    assert page is not None
    assert max(page.size) <= 512
    assert tracking.example_image(Toy().load(Path()).splits["valid"], 0) is None


# names


def test_scores_of_groups_are_logged_up_to_a_limit():
    def scores(count: int) -> tuple[dict[str, Any], ...]:
        row = {"split": "valid", "model": "global", "by": "provider", "metric": "anls", "value": 0.5}
        return tuple({**row, "group": str(number)} for number in range(count))

    assert "evaluations/valid/global/provider/7/anls" in metrics(
        TrackingEvent(1, 0, evaluations=scores(MAX_GROUPS)), "valid"
    )
    assert set(metrics(TrackingEvent(1, 0, evaluations=scores(MAX_GROUPS + 1)), "valid")) == {"round", "bytes"}


def test_epsilon_is_an_axis_if_the_round_has_it():
    row = {"split": "valid", "model": "global", "by": "all", "group": "", "metric": "anls", "value": 0.5}
    found = metrics(TrackingEvent(1, 8, {"epsilon": 0.25}, evaluations=(row,)), "valid")
    assert (found["epsilon"], found["by_epsilon/anls"]) == (0.25, 0.5)
    assert (found["bytes"], found["by_bytes/anls"]) == (8, 0.5)


def test_a_damaged_id_of_the_tracked_run_is_one_line(tmp_path: Path) -> None:
    first = tracking._run_id(tmp_path)
    assert tracking._run_id(tmp_path) == first
    path = tmp_path / tracking.STATE_FILE
    for content in (path.read_bytes().replace(first.encode(), b"another"), b"{", b""):
        path.write_bytes(content)
        with pytest.raises(DamagedFile, match=r"^[^\n]*tracking\.json: damaged: [^\n]*$"):
            tracking._run_id(tmp_path)
