"""Scores of clients' models on their own held-out rows, by hand; absent where there are none."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import SIZES, experiment, model, run

import simfl
from simfl import files
from simfl.client_state import FileClientStore
from simfl.config.rules import check
from simfl.data.partition.partitioners import Iid, Official
from simfl.errors import ConfigError
from simfl.experiment import Evaluate
from simfl.run_context import RunContext
from simfl.runs import checkpoint, tables
from simfl.runs.summary import summary_lines
from simfl.tracking.events import TrackingEvent, metrics

MODELS = Evaluate(models=("global", "personal", "local"))
CASE = experiment("ditto", partition=Official(groups="group", holdout=0.25), evaluate=MODELS)
SCORED = sum(size > 1 for size in SIZES)  # a client with one example has none to hold out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held_out")
    return folder, run(CASE, folder)


def last(folder, **wanted):
    wanted = {"metric": "accuracy", **wanted}
    rows = tables.rows(folder / "evaluations.parquet")
    step = max(row["step"] for row in rows)
    return [row for row in rows if row["step"] == step and all(row[key] == value for key, value in wanted.items())]


def accuracy(weights, rows):
    context = RunContext(CASE, files.cache_folder())
    module, examples = CASE.model.build(context.task), context.split("train").examples
    module.load_state_dict({**module.state_dict(), **weights})
    x = torch.from_numpy(np.stack(examples["features"].to_numpy(zero_copy_only=False))[rows])
    with torch.no_grad():
        return float((module(x).logits.argmax(1).numpy() == examples["label"].to_numpy()[rows]).mean())


def test_models_of_clients_are_scored_on_their_own_held_out_rows(finished):
    folder, summary = finished
    partition, store = simfl.load(folder).partition, FileClientStore(folder / "client_states")
    digests = checkpoint.latest(folder / "checkpoints").values["client_states"]
    for name, key in (("personal", "algorithm:personal"), ("local", "local:weights")):
        values = []
        for k in range(len(SIZES)):
            rows = last(folder, model=name, split="heldout", by="client", group=str(k), metric="accuracy")
            own = partition.held_out(k)
            assert [row["count"] for row in rows] == ([len(own)] if len(own) else [])
            if len(own):
                known = store.get(digests[str(k)]) if str(k) in digests else {}
                expected = accuracy({**model(folder), **known.get(key, {})}, own)
                assert rows[0]["value"] == pytest.approx(expected, abs=1e-12)
                values.append(expected)
        assert summary["final"][f"{name}.accuracy"] == pytest.approx(np.mean(values), abs=1e-12)
        assert len(set(values)) > 2


def test_the_mean_over_clients_says_over_how_many(finished):
    """In the table, the summary, the log and the trackers."""
    folder, summary = finished
    assert summary["scored_clients"]["personal.accuracy"] == SCORED
    (mean,) = last(folder, model="personal", split="heldout", by="client:two_step", metric="accuracy")
    assert (mean["value"], mean["count"]) == (summary["final"]["personal.accuracy"], SCORED)
    (line,) = (line for line in summary_lines(summary) if line.startswith("  personal.accuracy"))
    assert f"(mean over {SCORED} of {len(SIZES)} clients, before the first round" in line
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    scores = [event for event in events if event["event"] == "evaluated" and event["model"] == "personal"]
    assert {event["clients"] for event in scores if event["split"] == "heldout"} == {SCORED}
    found = metrics(TrackingEvent(3, 0, evaluations=tuple(last(folder))), "valid")
    assert found["evaluations/heldout/personal/accuracy"] == summary["final"]["personal.accuracy"]
    assert found["evaluations/heldout/personal/clients"] == SCORED


def test_the_global_model_is_scored_on_held_out_rows_too(finished):
    """Over all of them, and by their client."""
    folder, summary = finished
    partition = simfl.load(folder).partition
    rows = np.sort(partition.held_out_order)
    assert summary["final"]["heldout.accuracy"] == pytest.approx(accuracy(model(folder), rows), abs=1e-12)
    found = last(folder, model="global", split="heldout", by="client", metric="accuracy")
    assert {int(row["group"]): row["count"] for row in found} == {
        k: len(partition.held_out(k)) for k in range(len(SIZES)) if len(partition.held_out(k))
    }


def test_held_out_rows_are_never_trained_on(finished):
    folder, _ = finished
    held = simfl.load(folder).partition
    assert {row["client"]: row["examples"] for row in tables.rows(folder / "clients.parquet")}.items() <= dict(
        enumerate(held.sizes.tolist())
    ).items()
    assert json.loads((folder / "partition.json").read_text())["held_out"]


def test_a_split_without_examples_of_clients_gives_no_score(tmp_path):
    """One note instead, and no silent average over the rows of all clients."""
    summary = run(replace(CASE, partition=Iid(clients=10)), tmp_path)
    assert set(summary["final"]) == {"accuracy", "loss"}
    assert not last(tmp_path, model="personal")
    messages = [json.loads(line).get("text", "") for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [text for text in messages if text.startswith("evaluate: ")] == [
        "evaluate: no example of valid belongs to a client, so personal and local models have no score;"
        " hold out examples of each client by partition.holdout, or list the split in evaluate.all_clients"
    ]


def test_a_split_can_be_scored_by_all_clients_on_request(tmp_path):
    """Each personal model is scored on all 60 examples."""
    case = replace(CASE, partition=Iid(clients=10), evaluate=replace(MODELS, all_clients=("valid",)))
    assert run(case, tmp_path)["scored_clients"]["personal.accuracy"] == 10
    assert {row["count"] for row in last(tmp_path, model="personal", by="client", metric="accuracy")} == {60}
    with pytest.raises(ConfigError, match=r"evaluate.all_clients: 'vali' is not evaluated; did you mean 'valid'"):
        check(replace(CASE, evaluate=replace(MODELS, all_clients=("vali",))))


def test_the_column_client_of_another_split_holds_official_test_rows(tmp_path):
    summary = run(replace(CASE, partition=Official()), tmp_path)
    assert set(summary["scored_clients"]) == {"personal.accuracy", "local.accuracy", "personal.loss", "local.loss"}
    assert set(summary["scored_clients"].values()) == {10}
    assert {row["count"] for row in last(tmp_path, model="personal", by="client", metric="accuracy")} == {6}


def test_held_out_rows_can_be_the_only_evaluated_split(tmp_path):
    """As one split among others, with a limit; `train` is then what is trained on."""
    case = replace(CASE, evaluate=Evaluate(splits=("heldout", "train"), models=("global",), limit=20))
    summary = run(case, tmp_path)
    assert set(summary["final"]) == {"accuracy", "train.accuracy", "loss", "train.loss"}
    held = set(simfl.load(tmp_path).partition.held_out_order.tolist())
    rows = {
        split: {row["row"] for row in tables.rows(tmp_path / "scores.parquet") if row["split"] == split}
        for split in ("heldout", "train")
    }
    assert len(rows["heldout"]) == len(rows["train"]) == 20
    assert rows["heldout"] <= held
    assert not rows["train"] & held


def test_held_out_scores_without_held_out_rows_are_refused(tmp_path):
    case = replace(CASE, partition=Official(), evaluate=Evaluate(splits=("heldout",)))
    with pytest.raises(ConfigError, match=r"evaluate.splits: 'heldout' needs partition.holdout"):
        run(case, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_partition_in_python_holds_out_too(tmp_path):
    case = {
        "name": "rows",
        "data": {"train": (np.eye(6, dtype="float32").repeat(4, 0), np.arange(6).repeat(4) % 2)},
        "partition": {"rows": [list(range(12)), list(range(12, 24))], "holdout": {"fraction": 0.25}},
        "model": {"name": "mlp", "hidden_sizes": [4]},
        "phases": [
            {"objective": "classification", "rounds": 1, "clients_per_round": 2, "algorithm": "ditto"}
            | {"local": {"optimizer": "sgd", "learning_rate": 0.1}}
        ],
        "evaluate": {"splits": ["heldout"], "models": ["global", "personal"]},
    }
    found = simfl.run(case, tmp_path / "r")
    assert [len(found.partition.held_out(k)) for k in range(2)] == [3, 3]
    assert found.summary["scored_clients"] == {"personal.accuracy": 2, "personal.loss": 2}
