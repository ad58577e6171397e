"""One tracked run for the whole experiment, from the driver alone; what is tracked is what the tables hold."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import Stopping, Toy, experiment, run, traces
from fakes_documents import Pages

from simfl.algorithms.fedavg import FedAvg
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Tracking, Wandb
from simfl.protocol import ClientUpdate, Parts, State
from simfl.runs import tables
from simfl.timing import NAMES
from simfl.tracking import trackers as tracking
from simfl.tracking.events import MOST_GROUPS, TrackingEvent, metrics, name_of
from simfl.tracking.pictures import picture

WANDB = Tracking(wandb=Wandb(project="toys", group="fakes", tags=("a", "b")))
BOTH_MODELS = Evaluate(models=("global", "personal"), samples=4)


def records(folder: Path) -> Iterator[Any]:
    """Every record of the .wandb files in a run's folder, in order.

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
    """What was logged, one mapping a round."""
    found = [record.history for record in records(folder) if record.WhichOneof("record_type") == "history"]
    return [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in entry.item} for entry in found]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A finished run with Weights & Biases offline."""
    folder = tmp_path_factory.mktemp("tracked")
    case = experiment("ditto", evaluate=BOTH_MODELS, rounds=3, tracking=WANDB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_DATA_DIR", str(folder / "staging"))
        run(case, folder)
    return folder


def test_every_number_of_every_round_is_in_the_offline_file(tracked):
    logged = {row["round"]: row for row in history(tracked) if "round" in row}
    for row in tables.rows(tracked / "rounds.parquet"):
        for name, value in row.items():
            assert logged[row["step"]][f"rounds/{name}"] == value, name


def test_every_score_of_every_evaluation_is_in_the_offline_file(tracked):
    logged = {row["round"]: row for row in history(tracked) if "round" in row}
    rows = tables.rows(tracked / "evaluations.parquet")
    assert {row["step"] for row in rows} == {0, 1, 2, 3}
    assert {row["by"] for row in rows} >= {"all", "client"}
    for row in rows:
        assert logged[row["step"]][name_of(row)] == row["value"]


def test_timings_and_bytes_are_there_and_scores_stand_over_bytes_too(tracked):
    logged = [row for row in history(tracked) if "rounds/loss" in row]
    sent = np.cumsum([row["total_bytes"] for row in tables.rows(tracked / "rounds.parquet")])
    assert [row["bytes"] for row in logged] == sent.tolist()
    for row in logged:
        assert {f"timings/{name}" for name in NAMES} <= row.keys()
        assert row["busy/0"] > 0
        assert row["by_bytes/accuracy"] == row["evaluations/valid/global/accuracy"]
        assert "by_bytes/personal.accuracy" in row


def test_axes_are_declared(tracked):
    metrics = [record.metric for record in records(tracked) if record.WhichOneof("record_type") == "metric"]
    axes = {metric.glob_name: metric.step_metric for metric in metrics if metric.glob_name}
    assert axes["rounds/*"] == axes["evaluations/*"] == axes["timings/*"] == "round"
    assert (axes["by_bytes/*"], axes["by_epsilon/*"]) == ("bytes", "epsilon")


def test_the_run_has_the_experiments_name_settings_and_group(tracked):
    (start,) = [record.run for record in records(tracked) if record.WhichOneof("record_type") == "run"]
    assert (start.project, start.run_group, start.display_name) == ("toys", "fakes", "toy")
    assert list(start.tags) == ["a", "b"]
    settings = {item.key: json.loads(item.value_json) for item in start.config.update}
    assert settings["phases"][0]["rounds"] == 3


def test_partition_and_final_checkpoint_are_artifacts(tracked):
    kept = [record.artifact for record in records(tracked) if record.WhichOneof("record_type") == "artifact"]
    files = {artifact.type: {entry.path for entry in artifact.manifest.contents} for artifact in kept}
    assert files["partition"] == {"partition.json"}
    assert files["checkpoint"] == {"state.safetensors", "state.json", "notes.json", "digests.json"}


def test_samples_and_scores_are_tables(tracked):
    shown = [row for row in history(tracked) if "samples/valid/_type" in row]
    assert [row["round"] for row in shown] == [0, 1, 2, 3]
    assert {(row["samples/valid/_type"], row["samples/valid/nrows"]) for row in shown} == {("table-file", 4)}
    (scores,) = [row for row in history(tracked) if "evaluations_table/nrows" in row]
    assert scores["evaluations_table/nrows"] == len(tables.rows(tracked / "evaluations.parquet"))


def test_a_run_in_three_sittings_is_one_run_with_every_round(tmp_path):
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


def test_tracking_changes_no_result_and_may_be_changed_when_a_run_goes_on(tmp_path):
    run(experiment(), tmp_path / "plain")
    run(experiment(tracking=WANDB), tmp_path / "tracked", display=Stopping(1))
    run(experiment(watchdog_seconds=5.0), tmp_path / "tracked", resume=True)
    assert traces(tmp_path / "tracked") == traces(tmp_path / "plain")


def test_a_key_that_is_asked_for_and_unknown_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tracking, "_has_key", lambda: False)
    with pytest.raises(ConfigError, match=r"^tracking.wandb.mode: online, but no API key [^\n]*$"):
        run(experiment(tracking=Tracking(wandb=Wandb(mode="online"))), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_site_out_of_reach_is_said_and_the_run_goes_on_offline(monkeypatch, tmp_path):
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


def test_a_package_that_is_not_installed_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^tracking.tensorboard: the package is not installed; pip install [^\n]*$"):
        run(experiment(tracking=Tracking(tensorboard=True)), tmp_path / "run")


# nobody imports what nobody asked for


@dataclass(frozen=True)
class Nosy(FedAvg):
    """FedAvg whose clients refuse to be trained where a tracker's library is loaded."""

    def prepare_state(self, received: Parts, state: State, visit: ClientUpdate) -> State:
        found = {"wandb", "tensorboard"} & sys.modules.keys()
        if found:
            raise AssertionError(f"{found} is loaded here")
        return state


def test_nothing_is_imported_unless_it_is_asked_for(tmp_path):
    code = (
        "import sys; from pathlib import Path; from fakes import experiment, run\n"
        "run(experiment(rounds=1), Path(sys.argv[1]))\n"
        "print(sorted({'wandb', 'tensorboard', 'ray'} & sys.modules.keys()))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert ended.stdout.split("\n")[-2] == "[]", ended.stderr


@pytest.mark.slow
def test_workers_never_load_it(tmp_path, ray_session):
    both = Tracking(wandb=Wandb(), tensorboard=True)
    run(experiment(Nosy(), rounds=2, tracking=both), tmp_path, workers=2)
    assert {row["round"] for row in history(tmp_path) if "round" in row} == {0, 1, 2}


# TensorBoard


def test_tensorboard_has_every_number_too_and_a_resumed_run_replaces_what_was_lost(tmp_path):
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
        found = {event.step: event.value for event in events.Scalars(name_of(row))}
        assert found[row["step"]] == np.float32(row["value"])
    assert "samples/valid/text_summary" in events.Tags()["tensors"]


# samples of predictions


def test_samples_are_the_same_rows_at_every_evaluation_with_truth_and_prediction(tracked):
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


def test_no_samples_are_kept_if_none_are_asked_for(tmp_path):
    run(experiment(rounds=1, evaluate=Evaluate(samples=0)), tmp_path)
    assert tables.rows(tmp_path / "samples.parquet") == []


def test_a_picture_is_the_page_that_is_asked_about():
    page = picture(Pages().load(Path()).splits["valid"], 0)
    assert page is not None
    assert max(page.size) <= 512
    assert picture(Toy().load(Path()).splits["valid"], 0) is None


# names


def test_a_kind_of_group_has_charts_up_to_a_limit():
    def scores(count: int) -> tuple[dict[str, Any], ...]:
        row = {"split": "valid", "model": "global", "by": "provider", "metric": "anls", "value": 0.5}
        return tuple({**row, "group": str(number)} for number in range(count))

    assert "evaluations/valid/global/provider/7/anls" in metrics(
        TrackingEvent(1, 0, evaluations=scores(MOST_GROUPS)), "valid"
    )
    assert set(metrics(TrackingEvent(1, 0, evaluations=scores(MOST_GROUPS + 1)), "valid")) == {"round", "bytes"}


def test_epsilon_is_an_axis_once_it_is_known():
    row = {"split": "valid", "model": "global", "by": "all", "group": "", "metric": "anls", "value": 0.5}
    found = metrics(TrackingEvent(1, 8, {"epsilon": 0.25}, evaluations=(row,)), "valid")
    assert (found["epsilon"], found["by_epsilon/anls"]) == (0.25, 0.5)
    assert (found["bytes"], found["by_bytes/anls"]) == (8, 0.5)
