"""Draws of a user's module, loss or algorithm: keyed by client and local step, or the end of the run in one line."""

# ruff: noqa: NPY002  (users draw from numpy's global generator)

import random
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fakes import Killed, Stopping, Toy, experiment, run, scatter, traces
from torch import nn

from simfl.algorithms.ditto import Ditto
from simfl.algorithms.fedavg import FedAvg
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Execution, Privacy
from simfl.models.own import OwnModel
from simfl.objectives.classification import Classification
from simfl.session.prepare import prepare_run


class Net(nn.Module):
    """Draws by `draw(h, layer)` in its hidden layer while it trains."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.first, self.second, self.draw = nn.Linear(12, 8), nn.Linear(8, 5), draw
        self.own = np.random.default_rng()

    def forward(self, x):
        hidden = torch.relu(self.first(x.flatten(1)))
        return self.second(self.draw(hidden, self) if self.training else hidden)


def restored(h):
    """Draws from a generator that then returns to its state."""
    with torch.random.fork_rng():
        return nn.functional.dropout(h, 0.5)


SEEN: list[tuple[float, ...]] = []


def noted(h, _):
    """Draws two numbers and keeps them."""
    SEEN.append(tuple(torch.rand(2).tolist()))
    return h + sum(SEEN[-1])


def mask(numbers):
    return torch.as_tensor(np.asarray(numbers) < 0.5, dtype=torch.float32)


DRAWS = {
    "dropout": lambda h, _: nn.functional.dropout(h, 0.5),
    "bernoulli": lambda h, _: h * torch.bernoulli(torch.full_like(h, 0.5)),
    "normal": lambda h, _: h + torch.empty_like(h).normal_(),
    "numpy": lambda h, _: h * mask(np.random.rand(8)),
    "python": lambda h, _: h if random.random() < 0.5 else 2 * h,
    "own generator": lambda h, layer: h * mask(layer.own.random(8)),
    "restored": lambda h, _: restored(h),
    "in some branch": lambda h, _: nn.functional.dropout(h, 0.5) if h.sum() > 14 else h,
}


def drawing(name, mode="sequential", **settings):
    torch.manual_seed(1)
    return experiment("fedavg", mode, model=OwnModel(Net(DRAWS[name])), rounds=2, **settings)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_keyed_by_client_and_step(name, tmp_path, monkeypatch):
    run(drawing(name), tmp_path / "whole")
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # the state of the process does not matter
    scatter(monkeypatch)
    with suppress(Killed):
        run(drawing(name), tmp_path / "cut", display=Stopping(1, error=Killed))
    run(drawing(name), tmp_path / "cut", resume=True)
    assert traces(tmp_path / "cut") == traces(tmp_path / "whole")


@pytest.mark.slow
def test_draws_are_equal_on_workers_of_ray(tmp_path, ray_session):
    run(drawing("in some branch"), tmp_path / "inline")
    run(drawing("in some branch"), tmp_path / "ray", workers=3)
    assert traces(tmp_path / "ray") == traces(tmp_path / "inline")


def test_draws_differ_between_clients_and_steps(tmp_path):
    torch.manual_seed(1)
    SEEN.clear()
    run(experiment(model=OwnModel(Net(noted)), rounds=1, steps=2), tmp_path)
    assert len(set(SEEN[-7 * 2 :])) == 7 * 2


@pytest.mark.parametrize("on_error", ["stop", "retry", "skip"])
@pytest.mark.parametrize("name", ["dropout", "numpy", "python", "own generator", "in some branch"])
def test_draws_that_cannot_be_keyed_end_the_run(name, on_error, tmp_path):
    with pytest.raises(ConfigError, match=r"^phases\.0: training draws from .*allowed: sequential") as error:
        run(drawing(name, "vectorized", on_error=on_error), tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["dropout", "numpy", "python", "own generator", "restored"])
def test_draws_of_every_step_are_refused_before_the_run(name, tmp_path):
    with pytest.raises(ConfigError, match=r"^phases\.0: training draws from"):
        run(drawing(name, "vectorized"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_draws_is_trained_by_sequential_unless_a_mode_is_set():
    case = drawing("dropout", "auto", data=Toy(sizes=(2,) * 64), participation=1.0, clients_per_batch="auto")
    assert prepare_run(case, "inline", None, None).identity.mode == "sequential"
    plain = replace(case, model=OwnModel(Net(lambda h, _: h)))
    assert prepare_run(plain, "inline", None, None).identity.mode == "vectorized"


def test_draws_are_refused_with_micro_batches_and_with_single_examples(tmp_path):
    parts = Execution(mode="sequential", data_parallel=2)
    with pytest.raises(ConfigError, match=r"data_parallel: 2 .*allowed: 1"):
        run(drawing("numpy", execution=parts), tmp_path / "parts")
    records = Privacy(unit="record", clip=1.0, noise_multiplier=1.0)
    for name in ("dropout", "python"):
        with pytest.raises(ConfigError, match=r"privacy\.unit: record .*allowed: group"):
            run(drawing(name, privacy=records, poisson=0.5, weighting="uniform"), tmp_path / name)


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_an_unseeded_generator_is_refused(mode, tmp_path):
    model = OwnModel(Net(lambda h, _: h * mask(np.random.default_rng().random(8))))
    with pytest.raises(ConfigError, match=r"^(phases\.0|model): training draws from the randomness of the"):
        run(experiment("fedavg", mode, model=model), tmp_path)


@dataclass(frozen=True)
class Noisy(Classification):
    """Draws in its loss, and in its predictions."""

    def loss(self, outputs, batch):
        noise = torch.randn_like(outputs.logits)
        return super().loss(replace(outputs, logits=outputs.logits + noise), batch)

    def predict(self, module, batch):
        return {"label": random.sample(range(5), 1) * len(batch["x"]), "confidence": np.random.rand(len(batch["x"]))}


def test_draws_of_a_loss_and_of_predictions_are_keyed(tmp_path, monkeypatch):
    case = experiment(objective=Noisy(), rounds=2)
    run(case, tmp_path / "first")
    scatter(monkeypatch)
    run(case, tmp_path / "second")
    assert traces(tmp_path / "first") == traces(tmp_path / "second")
    with pytest.raises(ConfigError, match=r"^phases\.0: training draws from torch's global generator"):
        run(replace(case, execution=Execution(mode="vectorized")), tmp_path / "third")


@dataclass(frozen=True)
class DrawingState(FedAvg):
    """Draws in its state and in its upload."""

    def init_client(self, received, update):
        return {"noise": {"scale": torch.rand(1)}}

    def upload(self, trained, received, state, update):
        parts = super().upload(trained, received, state, update)
        return {
            "weights": {
                name: t * (1 + state["noise"]["scale"] * np.random.rand()) for name, t in parts["weights"].items()
            }
        }


def test_draws_of_an_algorithm_are_keyed(tmp_path, monkeypatch):
    case = experiment(DrawingState(), rounds=2)
    run(case, tmp_path / "first")
    scatter(monkeypatch)
    np.random.seed(9), torch.manual_seed(9)
    run(case, tmp_path / "second")
    assert traces(tmp_path / "first") == traces(tmp_path / "second")


def test_the_passes_of_a_step_have_equal_draws(tmp_path):
    """The global model of Ditto is that of FedAvg, although Ditto trains a second model in each step."""
    case = replace(drawing("dropout"), evaluate=Evaluate())
    ditto = replace(case, phases=(replace(case.phases[0], algorithm=Ditto()),))
    found = [run(one, tmp_path / str(k))["weights_sha256"] for k, one in enumerate((case, ditto))]
    assert found[0] == found[1]


def test_a_run_leaves_the_generators_of_its_process_alone(tmp_path):
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    case = drawing("dropout")
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    run(case, tmp_path)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected
