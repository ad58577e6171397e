"""Batches of one example, dropped last batches, runs of skipped updates alone, and rounds with too few uploads."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import simfl
from simfl.algorithms.base import Algorithm
from simfl.errors import ClientError, ConfigError, RunError

DATA = np.random.default_rng(0)
X = DATA.normal(size=(64, 5)).astype("float32")
Y = (X @ DATA.normal(size=(5, 3))).argmax(1)
ROWS = [list(range(16 * k, 16 * k + 16)) for k in range(4)]


def normalised() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


class Squeezed(nn.Module):
    """A model that loses the axis of the examples in a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x).squeeze()


class Branching(nn.Module):
    """A model that reads its values, and so cannot run without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.body = normalised()

    def forward(self, x):
        return self.body(x) if float(x.sum()) < 1e9 else x


class Failing(nn.Module):
    """A model whose training fails for clients with more than `most` examples in a batch."""

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self.most, self.head = most, nn.Linear(5, 3)

    def forward(self, x):
        if self.training and len(x) > self.most:
            raise ValueError("training failed")
        return self.head(x)


def run(folder, model, rows=None, algorithm="fedavg", phase=None, **settings):
    rows = ROWS if rows is None else rows
    local = {"optimizer": "sgd", "learning_rate": 0.1, **settings.pop("local", {})}
    phases = {"objective": "classification", "algorithm": algorithm, "rounds": 2, "local": local}
    phases |= phase or {"clients_per_round": len(rows)}
    case = {"name": "batches", "data": {"train": (X, Y), "valid": (X, Y)}, "partition": rows, "model": model}
    return simfl.run({**case, "phases": [phases], **settings}, folder / "r")


@pytest.mark.parametrize("model", [normalised, Squeezed, Branching])
@pytest.mark.parametrize("size", [5, 3])
def test_a_last_batch_of_one_that_the_model_refuses_is_named_before_the_run(model, size, tmp_path):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, model(), local={"batch_size": size}, on_error="skip")
    assert "phases.0.local.batch_size: client 0 has 16 examples, whose last batch has one example" in str(caught.value)
    assert "allowed: phases.0.local.drop_last: true" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_batches_of_one_are_refused_for_the_models_that_refuse_them_alone(tmp_path):
    with pytest.raises(ConfigError, match="whose batches have one example, which the model refuses"):
        run(tmp_path, normalised(), local={"batch_size": 1})
    assert run(tmp_path, nn.Linear(5, 3), local={"batch_size": 5}).summary["status"] == "completed"


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_drop_last_leaves_out_partial_batches(mode, tmp_path):
    """16 and 9 examples in batches of 5 are 3 batches and 1 batch in each of two epochs."""
    local = {"batch_size": 5, "epochs": 2, "drop_last": True}
    model = normalised() if mode == "sequential" else nn.Linear(5, 3)
    found = run(tmp_path, model, [ROWS[0], ROWS[1][:9]], local=local, execution={"mode": mode})
    assert [(row["client"], row["steps"], row["examples"]) for row in found.clients().to_pylist()[:2]] == [
        (1, 2, 9),
        (0, 6, 16),
    ]
    assert found.summary["plan"] == "matches"


def test_drop_last_refuses_a_client_without_a_batch(tmp_path):
    with pytest.raises(
        ConfigError, match="drop_last: client 1 has 4 examples, fewer than batch_size 5, and would have"
    ):
        run(tmp_path, nn.Linear(5, 3), [ROWS[0], ROWS[1][:4]], local={"batch_size": 5, "drop_last": True})


@pytest.mark.parametrize("phase", [None, {"participation": 0.5}])
def test_a_run_of_skipped_updates_alone_fails(phase, tmp_path):
    with pytest.raises(RunError) as caught:
        run(tmp_path, Failing(), on_error="skip", phase=phase)
    assert str(caught.value).startswith(f"phase 0: all {4 if phase else 8} client updates failed and were skipped")
    assert "ValueError: training failed" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert json.loads((tmp_path / "r/summary.json").read_text())["status"] == "failed"


def test_a_run_with_some_skipped_updates_completes(tmp_path):
    found = run(tmp_path, Failing(most=9), [ROWS[0], ROWS[1][:9]], on_error="skip", local={"batch_size": 16})
    assert found.summary["status"] == "completed"
    assert [row["skipped"] for row in found.rounds().to_pylist()] == [1, 1]


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_a_client_without_examples_has_no_loss(mode, tmp_path):
    rows = {"by": "rows", "rows": [[], ROWS[0], ROWS[1]], "empty_clients": True}
    found = run(
        tmp_path, nn.Linear(5, 3), rows, phase={"participation": 1.0}, execution={"mode": mode, "clients_per_batch": 4}
    )
    rows = found.clients().to_pylist()
    assert [row["loss"] is None for row in rows] == [row["examples"] == 0 for row in rows]
    first = [row for row in rows if row["round"] == 1 and row["examples"]]
    assert found.rounds().to_pylist()[0]["loss"] == pytest.approx(np.mean([row["loss"] for row in first]))


KRUM = {"name": "krum", "attackers": 1}


@dataclass(frozen=True)
class NeedsThree(Algorithm):
    """An algorithm that is defined for three uploads or more."""

    def least_uploads(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("algorithm", "phase", "message"),
    [
        (KRUM, {"clients_per_round": 4}, "phases.0.algorithm: Krum needs at least 5 clients per round, but 4 are"),
        (KRUM, {"participation": 1.0}, "Krum needs at least 5 clients per round, but 4 are sampled"),
        ({**KRUM, "attackers": 0, "keep": 3}, {"clients_per_round": 4}, "Krum needs at least 5 clients per round"),
        (KRUM, {"poisson": 0.9}, "phases.0.poisson: a round can have any number of clients, but Krum needs at least 5"),
        (NeedsThree(), {"participation": 0.5}, "NeedsThree needs at least 3 clients per round, but 2 are sampled"),
    ],
)
def test_rounds_with_too_few_clients_are_refused(algorithm, phase, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, nn.Linear(5, 3), algorithm=algorithm, phase=phase)
    assert not (tmp_path / "r").exists()


def test_a_round_with_too_few_uploads_ends_the_run(tmp_path):
    """Three clients are sampled, and one of them fails and is skipped."""
    rows = [ROWS[0], ROWS[1][:9], ROWS[2][:9]]
    with pytest.raises(RunError, match="round 1 of phase 0: 2 uploads, but NeedsThree needs 3; others were skipped"):
        run(tmp_path, Failing(most=9), rows, NeedsThree(), on_error="skip", local={"batch_size": 16})


def test_a_failing_client_stops_the_run_by_default(tmp_path):
    with pytest.raises(ClientError, match="training failed"):
        run(tmp_path, Failing())
