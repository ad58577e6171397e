"""What every algorithm of the table keeps, in both modes of training, straight and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Stopping, Toy, experiment, run, traces

from simfl.algorithms import ALGORITHMS
from simfl.algorithms.crd import Crd
from simfl.algorithms.feddyn import FedDyn
from simfl.algorithms.similarity_preserving import SimilarityPreserving
from simfl.experiment import Evaluate
from simfl.models.bottleneck import Bottleneck
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.schedules import Cosine
from simfl.runs.results import Run
from simfl.transport.upload import UploadChannel

every_algorithm = pytest.mark.parametrize(  # those made for privacy need it, and have tests of their own
    "name", [name for name, algorithm in ALGORITHMS.items() if algorithm.hides is None]
)
every_way = pytest.mark.parametrize("mode", ["sequential", "vectorized"])

DATA = Toy(sizes=(1, 20, 5, 33, 9), valid=10)
PRIVATE = ("head.bias",)  # of the model, whatever the algorithm keeps private beside
SETTINGS: dict[str, dict[str, Any]] = {  # where the defaults are meant for larger models and more rounds
    "crd": {"algorithm": Crd(clients_per_batch=8, negatives=16)},
    "feddat": {
        "model": Mlp(hidden_sizes=(16,), dropout=0.2, adapters=Bottleneck()),
        "train": ("head.*",),
        "personal_params": ("head.*",),
    },
    "feddyn": {"algorithm": FedDyn(alpha=0.1)},
    "similarity_preserving": {"algorithm": SimilarityPreserving(weight=10.0)},
}
SHARED = 12 * 16 + 16 + 16 * 5  # values of the model but for PRIVATE
ADAPTERS = 2 * 16 + 1 + 16  # of FedDAT's shared one


def of(name: str, mode: str, **settings: Any) -> Any:
    """A run of an algorithm on a handful of uneven clients, four of five a round."""
    given = {"algorithm": ALGORITHMS[name](), "data": DATA, "participation": 0.8, "personal_params": PRIVATE}
    given |= {"rounds": 3, "learning_rate": 0.2, "evaluate": Evaluate(every=0)} | SETTINGS.get(name, {}) | settings
    return experiment(mode=mode, clients_per_batch=4, **given)


class Straight:
    """Runs without a stop, each made once for all tests, with the names of all tensors that crossed the border."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, dict[tuple[str, str], set[str]]()

    def of(self, name: str, mode: str) -> tuple[Run, set[str]]:
        key, folder = (name, mode), self.folder / f"{name}-{mode}"
        if key not in self.seen:
            with pytest.MonkeyPatch.context() as patch:
                self.seen[key] = _spied(patch)
                run(of(name, mode), folder)
        return Run(folder), self.seen[key]


def _spied(patch: pytest.MonkeyPatch) -> set[str]:
    seen: set[str] = set()
    send = UploadChannel.send

    def spy(wire: UploadChannel, clients: Any, uploads: Any, received: Any, *rest: Any) -> Any:
        seen.update(tensor for parts in (uploads, received) for tensors in parts.values() for tensor in tensors)
        return send(wire, clients, uploads, received, *rest)

    patch.setattr(UploadChannel, "send", spy)
    return seen


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return Straight(tmp_path_factory.mktemp("straight"))


@every_way
@every_algorithm
def test_a_stopped_and_resumed_run_is_the_straight_one_to_the_bit(
    name: str, mode: str, tmp_path: Path, straight: Straight
) -> None:
    given = of(name, mode)
    run(given, tmp_path, display=Stopping(2))
    run(given, tmp_path, resume=True)
    assert traces(tmp_path) == traces(straight.of(name, mode)[0].folder)


@every_way
@every_algorithm
def test_it_stays_finite_and_learns(name: str, mode: str, straight: Straight) -> None:
    found, _ = straight.of(name, mode)
    assert all(torch.isfinite(t).all() for t in found.snapshot().tensors().values() if t.is_floating_point())
    losses = [row["loss"] for row in found.rounds().to_pylist()]
    assert losses[-1] < losses[0]


@every_way
@every_algorithm
def test_it_pays_for_the_parts_it_declares(name: str, mode: str, straight: Straight) -> None:
    found, _ = straight.of(name, mode)
    ledger, algorithm = found.ledger().to_pylist(), found.experiment.phases[0].algorithm
    sent = {mode: {row["part"] for row in ledger if row["direction"] == mode} for mode in ("download", "upload")}
    assert sent["upload"] == set(algorithm.reduce)
    assert sent["download"] == set(algorithm.download(found.snapshot().server))
    expected = ADAPTERS if name == "feddat" else SHARED
    assert {row["floats"] for row in ledger if row["part"] in ("weights", "control")} == {expected}


@every_way
@every_algorithm
def test_private_tensors_are_in_no_packet(name: str, mode: str, straight: Straight) -> None:
    found, seen = straight.of(name, mode)
    assert seen
    assert seen <= set(found.snapshot().server.weights) | {"steps"}  # FedNova's number of steps is no tensor
    assert not any(tensor.startswith("extra/") or "adapter_client" in tensor for tensor in seen)
    assert "head.bias" not in seen


@every_algorithm
def test_every_offered_model_can_be_scored(name: str, tmp_path: Path) -> None:
    models = (*ALGORITHMS[name].offered_models, "local")
    given = of(name, "vectorized", evaluate=Evaluate(models=models, every=0), rounds=1)
    scores = run(given, tmp_path)["final"]
    assert {f"{model}.accuracy".removeprefix("generic.") for model in models} <= set(scores)


@pytest.mark.parametrize("name", ["fedprox", "ditto", "moon", "fedp3", "fedkd", "crd", "clgecl", "fednova", "feddat"])
def test_those_that_bear_any_optimizer_learn_with_adam_and_a_schedule(name: str, tmp_path: Path) -> None:
    assert ALGORITHMS[name]().sgd_with() is None
    adam = {"optimizer": LocalOptimizer("adamw"), "learning_rate": 0.02, "schedule": Cosine(unit="visit", floor=0.1)}
    run(of(name, "vectorized", **adam), tmp_path)
    losses = [row["loss"] for row in Run(tmp_path).rounds().to_pylist()]
    assert losses[-1] < losses[0]
