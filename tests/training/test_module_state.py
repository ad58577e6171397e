"""State that training changes besides trained parameters: its owner, and one state for each model of a client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Normalised, Toy, experiment, model, run
from torch import Tensor, nn

from simfl.algorithms import ALGORITHMS
from simfl.algorithms.base import Algorithm
from simfl.client_state import FileClientStore
from simfl.errors import ConfigError
from simfl.experiment import Buffers, Evaluate
from simfl.models.own import OwnModel
from simfl.runs import checkpoint, tables
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.transport.buffers import advanced_buffers, buffer_change

EVEN = Toy(sizes=(6, 9, 12, 6))
MEAN, COUNT = "norm.running_mean", "norm.num_batches_tracked"


class Kept(nn.Module):
    """A linear model with a value `kept` that changes in training as `change` says; training multiplies by it."""

    kept: Any

    def __init__(self, kept: Any = None, change: str = "add") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.change = nn.Linear(12, 5), change
        if isinstance(kept, nn.Parameter):
            self.kept = kept
        elif isinstance(kept, Tensor) and change != "attribute":
            self.register_buffer("kept", kept)
        elif kept is not None:
            self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.change == "evaluate":
            self._change(x)
        factor = getattr(self, "kept", 1.0)
        return self.linear(x) * (factor["n"] if isinstance(factor, dict) else factor)

    def _change(self, x: Tensor) -> None:
        if self.change == "create" and not hasattr(self, "kept"):
            self.register_buffer("kept", torch.ones(1))
        if self.change == "overwrite":
            self.linear.weight = nn.Parameter(self.linear.weight * 0.9)
        elif self.change == "recast":
            self.kept = self.kept.double()
        elif isinstance(self.kept, dict):
            self.kept["n"] += 1
        elif self.change in ("replace", "attribute"):
            self.kept = self.kept + 1
        else:
            self.kept += 1


def case(module: nn.Module, **settings: Any) -> Any:
    return experiment(**{"data": EVEN, "model": OwnModel(module), "batch_size": 3, "rounds": 2, **settings})


def normalised(algorithm: Any = "fedavg", **settings: Any) -> Any:
    return experiment(algorithm, **{"data": EVEN, "model": Normalised(), "batch_size": 3, "rounds": 2, **settings})


def last(folder: Path) -> Snapshot:
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return Snapshot.restore(found)


REFUSED = {
    "a tensor in an attribute": (
        Kept(torch.ones(1), "attribute"),
        "phases.0.buffers: kept: training steps",
    ),
    "a number": (Kept(1), "phases.0.buffers: kept: .*register it by register_buffer, or list it in frozen"),
    "a dictionary": (Kept({"n": 1}), "phases.0.buffers: kept: "),
    "a buffer made by the first step": (Kept(None, "create"), "model: kept: the first training step creates it"),
    "a buffer of another dtype": (Kept(torch.ones(1), "recast"), "model: kept: a training step changes its shape"),
    "a change in evaluation": (Kept(torch.ones(1), "evaluate"), "model: kept: evaluation changes it"),
    "a trained parameter in place of another": (
        Kept(1.0, "overwrite"),
        "model: linear.weight: a training step replaces",
    ),
}


class Teacher(nn.Module):
    """A linear model and a moving average of its weights, which equals them until the first step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.average = nn.Linear(12, 5), nn.Linear(12, 5).requires_grad_(False)
        self.average.load_state_dict(self.linear.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for mean, now in zip(self.average.parameters(), self.linear.parameters(), strict=True):
                    mean.mul_(0.5).add_(now, alpha=0.5)
        return self.linear(x)


class Backward(nn.Module):
    """A linear model with a buffer that the backward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.linear = nn.Linear(12, 12), nn.Linear(12, 5)
        self.register_buffer("mean", torch.zeros(5))
        self.linear.register_full_backward_hook(self._follow)

    def _follow(self, layer: nn.Module, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        self.mean += outputs[0].mean(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.first(x)) + self.mean


def test_what_follows_the_trained_parameters_is_found_before_the_first_step(tmp_path):
    run(case(Teacher()), tmp_path)
    assert {"average.weight", "average.bias"} <= model(tmp_path).keys()


def test_state_of_the_backward_pass_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="model: mean: the backward pass changes it"):
        run(case(Backward()), tmp_path / "run")


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_carries_is_refused_by_name_before_the_run(name, tmp_path):
    module, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        run(case(module), tmp_path / "run")
    assert not (tmp_path / "run").exists()


CARRIED = {
    "a buffer changed in place": (Kept(torch.ones(1)), 1.0),
    "a buffer that is replaced": (Kept(torch.ones(1), "replace"), 1.0),
    "an integer": (Kept(torch.tensor(1)), 1),
    "a parameter that is not trained": (Kept(nn.Parameter(torch.ones(1), requires_grad=False)), 1.0),
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_registered_tensor_that_steps_change_is_averaged(name, tmp_path):
    """Clients take 2, 3, 4 and 2 steps a round: 33 examples, weighted (6·2 + 9·3 + 12·4 + 6·2) / 33 = 3."""
    module, start = CARRIED[name]
    run(case(module, participation=1.0), tmp_path)
    assert model(tmp_path)["kept"].item() == pytest.approx(start + 2 * 3, rel=1e-6)
    assert Run(tmp_path, case(module, participation=1.0)).model().kept.item() == model(tmp_path)["kept"].item()


def test_integers_and_booleans_are_averaged_by_rule():
    received = {"n": torch.tensor(2**40), "on": torch.tensor(False), "least": torch.tensor(torch.inf)}
    own = {
        "n": torch.tensor([2**40 + 3, 2**40 + 4]),
        "on": torch.tensor([True, False]),
        "least": torch.tensor([1.0, 3.0]),
    }
    change = buffer_change(own, received)
    mean = {name: t.mean(0) for name, t in change.items()}
    after = advanced_buffers(received, mean)
    assert (int(after["n"]), bool(after["on"]), float(after["least"])) == (2**40 + 4, True, 2.0)


def test_a_personal_buffer_stays_on_the_client_and_a_frozen_one_keeps_its_value(tmp_path):
    own = Buffers(personal=("norm.*",))
    personal = Evaluate(models=("personal",))
    run(normalised(buffers=own, evaluate=personal), tmp_path / "own")
    assert {row["part"] for row in tables.rows(tmp_path / "own" / "ledger.parquet")} == {"weights"}
    states = last(tmp_path / "own").client_states.values()
    stored = [FileClientStore(tmp_path / "own" / "client_states").get(digest)["buffers:weights"] for digest in states]
    assert len({float(one[MEAN][0]) for one in stored}) == len(stored)
    run(normalised(buffers=Buffers(frozen=("norm.*",))), tmp_path / "frozen")
    assert MEAN not in model(tmp_path / "frozen")


@pytest.mark.parametrize("kept", [1, {"n": 1}])
def test_a_frozen_attribute_is_reset_before_each_pass(kept, tmp_path):
    """Training sees 1 + 1 = 2 in every step and evaluation sees 1, in this process and in every other."""
    frozen = case(Kept(kept), buffers=Buffers(frozen=("kept",)))
    doubled = case(Kept(torch.tensor([1.0]), "replace"), buffers=Buffers(frozen=("kept",)))
    run(frozen, tmp_path / "attribute")
    run(doubled, tmp_path / "buffer")
    assert torch.equal(model(tmp_path / "attribute")["linear.weight"], model(tmp_path / "buffer")["linear.weight"])


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        (Buffers(averaged=()), "phases.0.buffers: norm.running_mean changes in training; list it in"),
        (Buffers(averaged=("norm.running_*",)), "phases.0.buffers: norm.num_batches_tracked changes in training"),
        (Buffers(personal=("nrm.*",)), "phases.0.buffers.personal: 'nrm.\\*' matches no tensor; nearest: 'norm"),
        (Buffers(frozen=("head.*",)), "phases.0.buffers.frozen: 'head.\\*' matches no tensor"),
        (Buffers(personal=("*",)), "evaluate.models: global, but clients keep its norm.running_mean"),
    ],
)
def test_owners_that_do_not_fit_are_refused(buffers, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(normalised(buffers=buffers), tmp_path / "run")


def test_a_model_whose_examples_depend_on_their_batch_is_not_vectorized(tmp_path):
    """Padding would enter the statistics of the batch, though the layer keeps none."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 5))
    with pytest.raises(ConfigError, match=r"execution.mode: vectorized, but in training the model's results"):
        run(case(module, mode="vectorized"), tmp_path)


@pytest.mark.parametrize("name", [name for name, one in ALGORITHMS.items() if one.fedavg_settings is not None])
def test_algorithms_are_fedavg_at_their_limit_with_running_statistics_too(name, tmp_path):
    settings = dict(ALGORITHMS[name].fedavg_settings or {})
    if name == "feddat" or ALGORITHMS[name].needs_pairs:
        pytest.skip("needs adapters")
    values = {
        key.removeprefix("algorithm."): settings.pop(key) for key in list(settings) if key.startswith("algorithm.")
    }
    settings = {key.removeprefix("local."): value for key, value in settings.items()}
    more = {"head": ("head.*",)} if name == "fedrep" else {}
    algorithm: Algorithm = replace(ALGORITHMS[name](), **values, **more)
    personal = {"personal_params": algorithm.personal_params} if algorithm.personal_params else {}
    run(normalised(algorithm, **settings), tmp_path / "limit")
    run(normalised("fedavg", **settings, **personal), tmp_path / "fedavg")
    limit, fedavg = model(tmp_path / "limit"), model(tmp_path / "fedavg")
    assert {MEAN, COUNT} <= fedavg.keys()
    assert [n for n, t in fedavg.items() if not torch.equal(t, limit[n])] == []


def test_clients_that_train_alone_send_nothing_and_keep_their_own_statistics(tmp_path):
    run(normalised(communicate=False, evaluate=Evaluate(models=("personal",))), tmp_path)
    assert Run(tmp_path).summary["bytes"]["total"] == 0
    means = {float(client(tmp_path, k)[MEAN][0]) for k in last(tmp_path).client_states}
    assert len(means) == len(last(tmp_path).client_states)


def client(folder: Path, k: int) -> dict[str, Tensor]:
    return dict(Run(folder).client_model(k).state_dict())


def test_personal_models_of_ditto_and_mentors_have_their_own_statistics(tmp_path):
    """With strength 0 a personal model is that of a client that trains alone, statistics included."""
    both = {"participation": 1.0, "evaluate": Evaluate(models=("personal",))}
    run(normalised(ALGORITHMS["ditto"](strength=0.0), **both), tmp_path / "ditto")
    run(normalised(communicate=False, **both), tmp_path / "alone")
    run(normalised("fedkd", mentor=Normalised(5), **both), tmp_path / "fedkd")
    for k in range(len(EVEN.sizes)):
        personal, alone = client(tmp_path / "ditto", k), client(tmp_path / "alone", k)
        assert [name for name, t in personal.items() if not torch.equal(t, alone[name])] == []
    mentors = [client(tmp_path / "fedkd", k)[MEAN] for k in range(len(EVEN.sizes))]
    assert {len(mean) for mean in mentors} == {5}
    assert len({float(mean[0]) for mean in mentors}) == len(mentors)


def test_local_models_are_scored_with_the_statistics_of_their_last_update(tmp_path):
    local = Evaluate(models=("global", "local"))
    run(normalised(evaluate=local), tmp_path)
    state = last(tmp_path)
    stored = [FileClientStore(tmp_path / "client_states").get(digest) for digest in state.client_states.values()]
    assert all(not torch.equal(one["model_state:last"][MEAN], state.buffers[MEAN]) for one in stored)


class Late(nn.Module):
    """A linear model in which the fourth call in training changes what the first calls do not."""

    kept: Any
    calls: Tensor

    def __init__(self, kept: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(12, 5)
        self.register_buffer("calls", torch.tensor(0))
        if isinstance(kept, Tensor):
            self.register_buffer("kept", kept)
        else:
            self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            if self.calls > 3 and isinstance(self.kept, list):
                self.kept.append(1.0)
            elif self.calls > 3:
                self.kept += 1
        return self.linear(x) * (1.0 + len(self.kept) if isinstance(self.kept, list) else self.kept)


@pytest.mark.parametrize("kept", [torch.tensor(1.0), 1, [1.0]])
def test_what_changes_late_ends_the_run_unless_it_is_listed_by_name(kept, tmp_path):
    with pytest.raises(ConfigError, match=r"phases.0.buffers: kept changed in a client update, though"):
        run(case(Late(kept)), tmp_path / "run")
    owned = Buffers(personal=("kept",)) if isinstance(kept, Tensor) else Buffers(frozen=("kept",))
    settings = {"buffers": owned, "evaluate": Evaluate(models=("personal",)), "rounds": 1}
    assert run(case(Late(kept), **settings), tmp_path / "listed")["status"] == "completed"
