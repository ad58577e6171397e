"""Scores, computed by hand: of all examples, by group, of each client's own model, for every size of shards."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import Toy, experiment, model, run

from simfl import files
from simfl.client_state import FileClientStore
from simfl.data.partition.partitioners import Iid, Natural
from simfl.errors import ConfigError, RunError
from simfl.evaluation.headlines import Headline, headline, headlines
from simfl.evaluation.scoring import (
    EvaluationPlan,
    Scores,
    rows_of_clients,
    shards,
    summarise,
    tasks_of,
)
from simfl.experiment import Evaluate
from simfl.objectives.classification import Classification
from simfl.reports.significance import example_scores
from simfl.run_context import RunContext
from simfl.runs import checkpoint, tables
from simfl.runs.results import Run
from simfl.session.callbacks import NullDisplay

CASE = experiment("ditto", personal_params=("head.*",), evaluate=Evaluate(models=("global", "personal")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(CASE, folder)


@pytest.fixture(scope="module")
def setting():
    return RunContext(CASE, files.cache_folder())


def right(setting, weights, rows, split="valid"):
    """Return which of these rows the model with these weights classifies correctly, in plain torch."""
    module = CASE.model.build(setting.task)
    module.load_state_dict({**module.state_dict(), **weights})
    examples = setting.split(split).examples
    x = torch.from_numpy(np.stack(examples["features"].to_numpy(zero_copy_only=False))[rows])
    with torch.no_grad():
        return module(x).logits.argmax(1).numpy() == examples["label"].to_numpy()[rows]


def last(folder, **wanted):
    wanted = {"metric": "accuracy", **wanted}
    rows = tables.rows(folder / "evaluations.parquet")
    step = max(row["step"] for row in rows)
    return [row for row in rows if row["step"] == step and all(row[key] == value for key, value in wanted.items())]


def test_the_score_of_the_global_model_by_hand(finished, setting):
    folder, summary = finished
    expected = right(setting, model(folder), np.arange(60)).mean()
    assert summary["final"]["accuracy"] == pytest.approx(expected, abs=1e-12)
    (row,) = last(folder, model="global", by="all")
    assert (row["value"], row["count"], row["metric"]) == (summary["final"]["accuracy"], 60, "accuracy")


def test_the_loss_is_evaluated_by_hand(finished, setting):
    """In evaluation mode, as the mean over all examples; by client and by example too."""
    folder, summary = finished
    module = CASE.model.build(setting.task).eval()
    module.load_state_dict({**module.state_dict(), **model(folder)})
    examples = setting.split("valid").examples
    x = torch.from_numpy(np.stack(examples["features"].to_numpy(zero_copy_only=False)))
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(
            module(x).logits, torch.tensor(examples["label"].to_pylist()), reduction="none"
        )
    assert summary["final"]["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    rows = [row for row in tables.rows(folder / "scores.parquet") if row["model"] == "global"]
    assert [row["loss"] for row in rows] == pytest.approx(losses.tolist(), rel=1e-4)
    assert len(last(folder, metric="loss", model="personal", by="client")) == 10


def test_the_loss_can_be_left_out(tmp_path):
    summary = run(replace(CASE, evaluate=Evaluate(loss=False)), tmp_path)
    assert set(summary["final"]) == {"accuracy"}


def test_examples_without_weight_have_no_loss(setting):
    """The mean is weighted, as in training; an example or a group without weight is left out."""
    plan, nan = EvaluationPlan(0, "valid", "global", np.arange(4)), float("nan")
    scores = Scores(plan, {"loss": np.array([1.0, nan, 4.0, nan])}, loss_weights=np.array([1.0, 0.0, 3.0, 0.0]))
    found = {(row["by"], row["group"]): (row["value"], row["count"]) for row in summarise(setting, [scores], {})}
    assert found == {
        ("all", ""): (3.25, 2),
        ("group", "g0.0"): (1.0, 1),
        ("group", "g0.2"): (4.0, 1),
        ("group:two_step", ""): (2.5, 2),
    }
    nothing = replace(scores, loss_weights=np.zeros(4))
    assert summarise(setting, [nothing], {}) == []


class Untrainable(Classification):
    """An objective whose loss needs training mode."""

    def loss(self, outputs, batch):
        raise ValueError("no loss")


def test_a_loss_that_cannot_be_evaluated_is_one_line(tmp_path):
    with pytest.raises(RunError, match=r"evaluate.loss: the loss on split valid cannot be computed in evaluation mode"):
        run(experiment(objective=Untrainable()), tmp_path)


def test_the_initial_score_is_that_of_the_initial_model(finished, setting):
    _, summary = finished
    assert summary["initial"]["accuracy"] == pytest.approx(right(setting, {}, np.arange(60)).mean(), abs=1e-12)


def test_personal_models_are_evaluated_on_the_clients_own_groups(finished, setting):
    """With the body from DITTO's state and its own head; a client that was never sampled has the global model."""
    folder, summary = finished
    store, digests = (
        FileClientStore(folder / "client_states"),
        checkpoint.latest(folder / "checkpoints").values["client_states"],
    )
    client = setting.split("valid").examples["client"].to_numpy()
    values = []
    for k in range(10):
        known = store.get(digests[str(k)]) if str(k) in digests else {}
        own = {**model(folder), **known.get("algorithm:personal", {}), **known.get("personal_params:weights", {})}
        rows = np.flatnonzero(client == k)
        names = {f"g{k}.{n}" for n in range(3) if n < Toy().sizes[k]}  # a small client has fewer groups
        rows = rows[[name in names for name in setting.split("valid").examples["group"].take(rows).to_pylist()]]
        (row,) = last(folder, model="personal", by="client", group=str(k))
        assert row["count"] == len(rows)
        assert row["value"] == pytest.approx(right(setting, own, rows).mean(), abs=1e-12)
        values.append(row["value"])
    assert summary["final"]["personal.accuracy"] == pytest.approx(np.mean(values), abs=1e-12)
    assert len({round(value, 6) for value in values}) > 2


@pytest.mark.parametrize("size", [1, 7, 64])
def test_scores_do_not_depend_on_the_size_of_batches_and_shards(size, finished, tmp_path):
    folder, summary = finished
    again = run(replace(CASE, evaluate=replace(CASE.evaluate, batch_size=size)), tmp_path)
    assert again["final"] == pytest.approx(summary["final"], abs=1e-6)  # losses are rounded differently
    assert again["final"]["accuracy"] == summary["final"]["accuracy"]
    scores = [
        [row for row in tables.rows(path / "evaluations.parquet") if row["metric"] == "accuracy"]
        for path in (tmp_path, folder)
    ]
    assert scores[0] == scores[1]


def test_shards_cover_the_rows_in_order():
    rows = np.array([3, 5, 8, 9, 12])
    plans = shards("valid", "personal", rows, 2, client=4, state_digest="digest")
    assert [plan.rows.tolist() for plan in plans] == [[3, 5], [8, 9], [12]]
    assert {(plan.split, plan.model, plan.client, plan.state_digest) for plan in plans} == {
        ("valid", "personal", 4, "digest")
    }
    assert shards("valid", "global", rows[:0], 2) == []


def test_means_by_group_and_their_mean_by_hand(setting):
    """Rows 0 to 3 are client 0's, in groups g0.0, g0.1, g0.2 and g0.0 again: means ½, 1, 0, and ½ of these."""
    plans = [EvaluationPlan(0, "valid", "global", np.array(rows)) for rows in ([0, 1], [2, 3])]
    scores = [Scores(plans[0], {"m": np.array([1.0, 1.0])}), Scores(plans[1], {"m": np.array([0.0, 0.0])})]
    rows = summarise(setting, scores, {"step": 3})
    found = {(row["by"], row["group"]): (row["value"], row["count"]) for row in rows}
    assert found == {
        ("all", ""): (0.5, 4),
        ("group", "g0.0"): (0.5, 2),
        ("group", "g0.1"): (1.0, 1),
        ("group", "g0.2"): (0.0, 1),
        ("group:two_step", ""): (0.5, 3),
    }
    assert {(row["step"], row["split"], row["model"], row["metric"]) for row in rows} == {(3, "valid", "global", "m")}


def entry(split, model, by, value):
    return {"split": split, "model": model, "by": by, "metric": "anls", "value": value}


ROWS = [
    entry("valid", "global", "all", 0.5),
    entry("valid", "global", "provider", 0.9),
    entry("valid", "global", "provider:two_step", 0.8),
    entry("unseen", "global", "all", 0.25),
    entry("valid", "personal", "client", 0.2),
    entry("valid", "personal", "client", 0.6),
]


def test_headlines_by_name():
    """The score of clients' models is the mean over the two clients that were scored."""
    found = headlines(ROWS, "valid")
    assert found == {"anls": Headline(0.5), "unseen.anls": Headline(0.25), "personal.anls": Headline(0.4, clients=2)}


def test_with_two_step_the_headline_is_the_mean_of_group_means(setting):
    """Groups g0.0, g0.1 and g0.2 have the means 0, 1 and 1: 2/3, where half of the four rows are right."""
    chosen = replace(setting.experiment, evaluate=replace(setting.experiment.evaluate, two_step="group"))
    plan = EvaluationPlan(0, "valid", "global", np.array([0, 1, 2, 3]))
    scores = [Scores(plan, {"m": np.array([0.0, 1.0, 1.0, 0.0])})]
    rows = summarise(replace(setting, experiment=chosen), scores, {"step": 3})
    assert headlines(rows, "valid") == {"m": Headline(2 / 3)}
    assert headline(rows, "m", "valid", "global") == Headline(2 / 3)
    assert headlines(summarise(setting, scores, {"step": 3}), "valid") == {"m": Headline(0.5)}


def test_two_step_is_the_final_score_of_a_run_and_is_compared_like_it(tmp_path):
    made = experiment(rounds=1, evaluate=Evaluate(every=0, two_step="group"))
    summary = run(made, tmp_path / "r")
    means = {
        row["group"]: row["value"]
        for row in Run(tmp_path / "r").evaluations().to_pylist()
        if row["by"] == "group" and row["step"] == 1 and row["metric"] == "accuracy"
    }
    assert summary["final"]["accuracy"] == pytest.approx(np.mean(list(means.values())))
    scores = example_scores(Run(tmp_path / "r")).scores["accuracy"]
    assert {group for group, _ in scores} == set(means)


def test_two_step_by_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"evaluate\.two_step: split valid has no column 'grup'; did you"):
        run(experiment(evaluate=Evaluate(two_step="grup")), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_models_of_clients_share_calls_up_to_a_number_of_batches():
    """Shared models have a call for each shard; a call has models of one kind and split, of at most three batches."""
    plans = shards("valid", "global", np.arange(8), 4)
    plans += [EvaluationPlan(0, "valid", "personal", np.arange(n), k) for k, n in enumerate((4, 5, 1, 9, 1, 1))]
    plans += [EvaluationPlan(0, "test", "personal", np.arange(2), 0)]
    found = tasks_of(plans, batch_size=4, most_batches=3)
    assert [len(task.shards) for task in found] == [1, 1, 2, 1, 1, 2, 1]
    assert [shard for task in found for shard in task.shards] == plans
    assert found[2].name == "9 examples of split valid by 2 models of clients"


def test_calls_with_many_models_have_the_scores_of_single_ones(finished, tmp_path, monkeypatch):
    folder, summary = finished
    monkeypatch.setattr("simfl.session.evaluation.MAX_BATCHES", 1)
    assert run(CASE, tmp_path)["final"] == summary["final"]
    assert tables.rows(tmp_path / "evaluations.parquet") == tables.rows(folder / "evaluations.parquet")
    assert tables.rows(tmp_path / "scores.parquet") == tables.rows(folder / "scores.parquet")


def test_one_headline():
    assert headline(ROWS, "anls", "valid", "global") == Headline(0.5)
    assert headline(ROWS, "anls", "unseen", "global") == Headline(0.25)
    assert headline(ROWS, "anls", "valid", "personal") == Headline(0.4, clients=2)
    assert headline(ROWS, "anls", "unseen", "personal") is None
    assert headline(ROWS, "accuracy", "valid", "global") is None


def test_the_display_receives_scores_of_personal_models(tmp_path):
    received = []

    class Display(NullDisplay):
        def evaluated(self, row):
            received.append((row["step"], row["model"], row["value"]))

    summary = run(experiment("ditto", rounds=1, evaluate=CASE.evaluate), tmp_path, display=Display())
    assert received[2:] == [
        (1, "global", summary["final"]["accuracy"]),
        (1, "personal", summary["final"]["personal.accuracy"]),
    ]


@pytest.mark.parametrize(("every", "steps"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (0, [0, 5]), (9, [0, 5])])
def test_models_are_evaluated_first_last_and_at_the_requested_interval(every, steps, tmp_path):
    run(experiment(rounds=5, evaluate=Evaluate(every=every)), tmp_path)
    assert sorted({row["step"] for row in tables.rows(tmp_path / "evaluations.parquet")}) == steps


def test_several_splits_and_a_limit(tmp_path):
    """20 rows of each split, the same in every round and for every model."""
    requested = Evaluate(splits=("train", "valid"), models=("global", "personal"), limit=20)
    case = experiment("ditto", evaluate=requested)
    summary = run(case, tmp_path)
    scores = {name for name in summary["final"] if "loss" not in name}
    assert scores == {"accuracy", "valid.accuracy", "personal.accuracy", "valid.personal.accuracy"}
    assert {row["count"] for row in last(tmp_path, by="all")} == {20}
    assert sum(row["count"] for row in last(tmp_path, by="client", split="train")) == 20
    chosen = RunContext(case, files.cache_folder()).choose_rows("train", 20)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert chosen.tolist() == RunContext(case, files.cache_folder()).choose_rows("train", 20).tolist()
    assert chosen.tolist() != list(range(20))
    assert RunContext(case, files.cache_folder()).choose_rows("valid", 1000).tolist() == list(range(60))


def test_clients_are_evaluated_on_their_own_rows_alone(setting):
    """By the partition for train, by the column `client` for another split, or not at all."""
    train, official = setting.split("train"), replace(setting.experiment.partition, groups=None)
    own = rows_of_clients(setting, official.split(train, 42), "train", np.arange(len(train)))
    assert [len(rows) for rows in own] == list(Toy().sizes)
    case = RunContext(replace(CASE, partition=official), files.cache_folder())
    own = rows_of_clients(case, official.split(train, 42), "valid", np.arange(60))
    client = setting.split("valid").examples["client"].to_numpy()
    assert [rows.tolist() for rows in own] == [np.flatnonzero(client == k).tolist() for k in range(10)]
    case = RunContext(replace(CASE, partition=Iid(clients=4)), files.cache_folder())
    assert rows_of_clients(case, case.experiment.partition.split(train, 42), "valid", np.arange(60)) is None


def test_clients_of_a_natural_column_are_evaluated_on_the_rows_of_their_value(setting):
    """Each of the 10 clients holds the training rows of one value of `client`, and its rows among 60 of valid."""
    case = replace(CASE, partition=Natural(column="client"))
    setting = RunContext(case, files.cache_folder())
    partition = case.partition.split(setting.split("train"), 42)
    own = rows_of_clients(setting, partition, "valid", np.arange(60))
    held = setting.split("valid").examples["client"].to_numpy()
    assert [rows.tolist() for rows in own] == [np.flatnonzero(held == k).tolist() for k in range(10)]
    (scores,) = shards("valid", "global", np.arange(60), 60)
    rows = summarise(setting, [Scores(scores, {"accuracy": (held == 3).astype(float)})], {})
    assert {row["group"]: row["value"] for row in rows if row["by"] == "client"} == {str(k): k == 3 for k in range(10)}


def test_an_unknown_split_or_model_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"^evaluate\.splits: toy has no split 'vaild'; did you mean 'valid'\?$"):
        run(experiment(evaluate=Evaluate(splits=("vaild",))), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"^evaluate\.models: .*'personnal'; did you mean 'personal'\?$"):
        run(experiment(evaluate=Evaluate(models=("personnal",))), tmp_path / "b")


def test_evaluation_changes_no_result(tmp_path):
    often = run(experiment("scaffold", evaluate=Evaluate(every=1)), tmp_path / "often")
    seldom = run(experiment("scaffold", evaluate=Evaluate(every=0)), tmp_path / "seldom")
    assert often["weights_sha256"] == seldom["weights_sha256"]
    assert often["state_sha256"] == seldom["state_sha256"]


def test_each_model_scores_its_examples_once_however_many_groups_they_have(tmp_path, monkeypatch):
    calls, predict = [], Classification.predict

    def counted(self, module, batch):
        calls.append(1)
        return predict(self, module, batch)

    monkeypatch.setattr(Classification, "predict", counted)
    counts = []
    for groups in (1, 50):
        data = Toy(sizes=(6, 6, 6), groups=groups, valid=150)
        case = experiment("ditto", rounds=1, data=data, evaluate=Evaluate(models=("global", "personal"), samples=0))
        calls.clear()
        run(case, tmp_path / str(groups))
        counts.append(len(calls))
    assert counts[0] == counts[1] <= 20
