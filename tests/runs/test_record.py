"""The files of a run: tables without clock times, a log with them, a manifest and a summary."""

import gc
import json
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from fakes import Stopping, Toy, experiment, model, run, traces

from simfl import config, simulation
from simfl.codecs.nf4 import Nf4
from simfl.data.partition.manifest import Partition
from simfl.experiment import Checkpoint, Codecs, Evaluate
from simfl.json_files import seal
from simfl.models.mlp import Mlp
from simfl.runs import checkpoint, tables
from simfl.runs.folder import FORMAT
from simfl.runs.manifest import RunManifest
from simfl.runs.record import Record
from simfl.runs.results import Run
from simfl.runs.tables import TABLES, TIMES
from simfl.session.options import RunOptions
from simfl.weights import sha256

CASE = experiment("scaffold")
TABLE_COLUMNS = {
    "rounds": {
        "phase", "round", "step", "sampled", "skipped", "examples", "local_steps", "loss",
        "download_bytes", "upload_bytes", "total_bytes",
        "charged_download_bytes", "charged_upload_bytes", "charged_total_bytes",
    },
    "ledger": {
        "phase", "round", "client", "direction", "part", "floats", "logical_bytes", "payload_bytes", "charged_bytes",
    },
    "clients": {"phase", "round", "client", "examples", "units", "steps", "weight", "loss"},
    "evaluations": {"phase", "round", "step", "split", "model", "by", "group", "metric", "value", "count"},
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(CASE, folder)


def test_the_run_folder_has_all_files(finished):
    folder, _ = finished
    names = {path.name for path in folder.iterdir()}
    tables_of_it = {f"{name}.parquet" for name in TABLES if name != TIMES}
    assert names >= tables_of_it | {
        "experiment.yaml",
        "manifest.json",
        "partition.json",
        "checkpoints",
        "log.jsonl",
        "summary.json",
    }


def test_the_resolved_experiment_is_stored_and_can_be_read(finished):
    folder, _ = finished
    assert config.load(folder / "experiment.yaml") == CASE


def test_the_manifest_has_identity_versions_and_hashes(finished):
    folder, _ = finished
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["identity"]["mode"] == "sequential"
    assert manifest["identity"]["clients_per_batch"] == 2
    assert manifest["libraries"]["torch"] == torch.__version__
    partition = (folder / "partition.json").read_bytes()
    assert manifest["partition_sha256"] == json.loads(partition)["sha256"]
    assert Partition.read(partition, manifest["data_sha256"]).sizes.tolist() == list(Toy().sizes)
    assert manifest["resumes"] == []
    assert manifest["format"] == FORMAT
    assert seal(RunManifest.read(folder).to_json(), FORMAT) == manifest


def test_the_summary_has_all_keys(finished):
    folder, summary = finished
    assert summary == json.loads((folder / "summary.json").read_text())
    keys = "name status rounds resumed_at clients final baselines bytes seconds weights_sha256 state_sha256 charged"
    assert set(keys.split()) <= summary.keys()
    assert (summary["name"], summary["status"], summary["rounds"], summary["resumed_at"]) == ("toy", "completed", 3, [])
    assert summary["clients"] == 10
    assert set(summary["seconds"]) >= {"total", "startup", "per_round_median"}
    assert set(summary["bytes"]) == {"download", "upload", "total"}


def test_the_summary_has_the_hashes_of_the_model_and_of_the_last_checkpoint(finished):
    folder, summary = finished
    assert summary["weights_sha256"] == sha256(model(folder))
    assert summary["state_sha256"] == checkpoint.latest(folder / "checkpoints").state_sha256


@pytest.mark.parametrize("name", TABLE_COLUMNS)
def test_tables_have_all_columns_and_no_clock_times(name, finished):
    folder, _ = finished
    found = set(tables.read(folder / f"{name}.parquet").column_names)
    assert found >= TABLE_COLUMNS[name]
    assert not [column for column in found if "second" in column or "time" in column]


def test_the_tables_have_every_round_client_update_and_message(finished):
    folder, _ = finished
    rounds, clients, ledger = (tables.rows(folder / f"{name}.parquet") for name in ("rounds", "clients", "ledger"))
    assert [(row["round"], row["step"], row["sampled"]) for row in rounds] == [(1, 1, 7), (2, 2, 7), (3, 3, 7)]
    assert len(clients) == 21
    assert len(ledger) == 21 * 2 * 2
    sizes = Toy().sizes
    for row in clients:
        assert row["examples"] == sizes[row["client"]]
        assert row["steps"] == -(-row["examples"] // 8)
        assert row["weight"] == row["examples"]
    for row in rounds:
        updates = [update for update in clients if update["round"] == row["round"]]
        assert row["examples"] == sum(update["examples"] for update in updates)
        assert row["local_steps"] == sum(update["steps"] for update in updates)
        assert row["loss"] == pytest.approx(sum(u["loss"] * u["examples"] for u in updates) / row["examples"])


def test_the_log_has_a_line_with_a_time_for_each_event(finished):
    folder, _ = finished
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert events[0] == "started"
    assert events[-1] == "finished"
    assert events.count("round") == 3
    assert events.count("evaluated") == 4
    assert all(a["time"] <= b["time"] for a, b in pairwise(lines))
    assert all(line["seconds"] > 0 for line in lines if line["event"] == "round")


def test_the_time_of_every_client_update_is_logged(finished):
    folder, _ = finished
    found, rows = Run(folder).client_times().to_pylist(), tables.rows(folder / "clients.parquet")
    assert [(t["phase"], t["round"], t["client"]) for t in found] == [
        (r["phase"], r["round"], r["client"]) for r in rows
    ]
    assert all(0 < time["seconds"] < 60 and time["worker"] == 0 for time in found)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in (line for line in lines if line["event"] == "round"):
        assert sum(time["seconds"] for time in found if time["round"] == line["round"]) < line["seconds"]


def test_equal_runs_have_equal_tables_and_another_seed_different_ones(finished, tmp_path):
    folder, _ = finished
    run(CASE, tmp_path / "again")
    run(replace(CASE, seed=43), tmp_path / "other")
    assert traces(tmp_path / "again") == traces(folder)
    same = [name for name, value in traces(tmp_path / "other").items() if value == traces(folder)[name]]
    assert same == []


def test_rows_wait_in_memory_until_the_next_checkpoint(tmp_path, monkeypatch):
    """With a checkpoint every second round, rows of at most two rounds wait in memory."""
    waiting, add = [], Record.add

    def watched(self, rows, step):
        add(self, rows, step)
        waiting.append(len(self.waiting.rows("rounds")))

    monkeypatch.setattr(Record, "add", watched)
    run(replace(CASE, checkpoint=Checkpoint(rounds=2, seconds=0.0)), tmp_path)
    assert max(waiting) == 2


@pytest.mark.parametrize(
    ("rounds", "seconds", "steps"), [(1, 0.0, [0, 1, 2, 3, 4]), (3, 0.0, [0, 3, 4]), (1, 3600.0, [0, 4])]
)
def test_a_checkpoint_is_due_when_both_rounds_and_seconds_have_passed(rounds, seconds, steps, tmp_path, monkeypatch):
    written, write = [], checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *args: (written.append(args[1]), write(*args))[1])
    run(experiment(rounds=4, checkpoint=Checkpoint(rounds, seconds)), tmp_path)
    assert sorted(set(written)) == steps


def test_the_display_receives_all_events_in_order(tmp_path):
    events = []

    class Display(Stopping):
        def started(self, plan):
            events.append(("started", plan["rounds"], plan["clients"], plan["workers"], plan["resumed_at"]))

        def round_done(self, row):
            events.append(("round", row["step"], row["seconds"] > 0))

        def evaluated(self, row):
            events.append(("evaluated", row["step"], row["metric"]))

        def finished(self, summary):
            events.append(("finished", summary["status"]))

    run(experiment(rounds=2), tmp_path, display=Display())
    assert events == [
        ("started", 2, 10, 1, None),
        ("evaluated", 0, "accuracy"),
        ("evaluated", 1, "accuracy"),
        ("round", 1, True),
        ("evaluated", 2, "accuracy"),
        ("round", 2, True),
        ("finished", "completed"),
    ]


def test_simulation_run_returns_the_summary(tmp_path):
    summary = simulation.run(experiment(rounds=1), RunOptions(tmp_path, backend="inline"))
    assert summary == json.loads((tmp_path / "summary.json").read_text())


class MemoryMeter(Stopping):
    """A display that measures the memory of the process after some rounds."""

    def __init__(self, *steps):
        super().__init__()
        self.at, self.bytes = steps, []

    def round_done(self, row):
        if row["step"] in self.at:
            gc.collect()
            self.bytes.append(tracemalloc.get_traced_memory()[0])


@pytest.mark.slow
def test_the_memory_of_the_driver_does_not_grow_with_the_rounds(tmp_path):
    """Broadcast updates of a 4.6 kB model; if each round kept a copy, 80 rounds would need 370 kB."""
    case = experiment(
        data=Toy(sizes=(3, 9, 2, 4), valid=8),
        model=Mlp((64,)),
        rounds=200,
        clients_per_round=2,
        codec=Codecs(download=Nf4(encode="update")),
        evaluate=Evaluate(every=20),
        checkpoint=Checkpoint(rounds=10, seconds=0.0),
    )
    display = MemoryMeter(40, 120, 200)
    tracemalloc.start()
    try:
        run(case, tmp_path, display=display)
    finally:
        tracemalloc.stop()
    first, middle, last = display.bytes
    assert middle - first < 120_000, display.bytes
    assert last - middle < 120_000, display.bytes
