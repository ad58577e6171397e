"""`sequential` and `vectorized` give the same update to 1e-5 of its length, in float32, with dropout."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Normalised, Toy, experiment, run, toy
from fakes_documents import Pages

from simfl.aggregation.tree import PartSums
from simfl.algorithms import ALGORITHMS
from simfl.algorithms.scaffold import Scaffold
from simfl.data.partition.partitioners import Provider
from simfl.errors import ConfigError
from simfl.experiment import Experiment
from simfl.models.bottleneck import Bottleneck
from simfl.models.cnn import Cnn
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import DocVqa
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.schedules import Cosine
from simfl.run_context import RunContext
from simfl.runs import checkpoint
from simfl.runs.snapshot import Snapshot
from simfl.training import cohort
from simfl.training.client_updates import UpdateGroup

TINY: dict[str, Any] = {
    "size": "tiny",
    "d_model": 32,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": 4000,
    "dropout": 0.1,
}
MODEL = {
    "mlp": lambda adapters: Mlp(hidden_sizes=(16,), dropout=0.2, adapters=adapters),
    "cnn": lambda adapters: Cnn(channels=(4, 4), hidden=8, dropout=0.2),
    "vt5": lambda adapters: VT5(**TINY, adapters=adapters or Lora(rank=2, dropout=0.1)),
}


PAIRS = {("mlp", name) for name, kind in ALGORITHMS.items() if not kind.needs_pairs}
PAIRS |= {("mlp", name) for name in ("flora", "rolora", "flexlora", "hetlora")}  # the contract runs all of them
PAIRS |= {("cnn", name) for name in ("fedavg", "moon", "ditto", "scaffold", "fedkd", "krum")}
# on VT5 the hardest, and those that read single pieces of an answer
PAIRS |= {("vt5", name) for name in ("fedavg", "moon", "ditto", "feddat", "fedkd", "crd", "dkd", "fedp3")}
BEGUN = {"crd": {"from_round": 1, "negatives": 8}, "dkd": {"from_round": 1}, "fedp3": {"from_round": 1}}


def small(kind: str, name: str, **settings: Any) -> Experiment:
    """One round pair of this algorithm on this model; clients of uneven sizes, so some finish before others."""
    adapters: Bottleneck | Lora | None = Bottleneck() if name == "feddat" else None
    adapters = Lora(rank=2, alpha=2, targets=("linear", "head")) if ALGORITHMS[name].needs_pairs else adapters
    options = BEGUN.get(name, {}) if kind == "vt5" else {}  # of which only one round is trained
    usual: dict[str, Any] = {"algorithm": ALGORITHMS[name](**options), "model": MODEL[kind](adapters), "rounds": 2}
    settings = usual | settings
    if kind == "vt5":
        pages: dict[str, Any] = {"data": Pages(), "partition": Provider(clients=3), "objective": DocVqa(max_tokens=64)}
        pages |= {
            "batch_size": 4,
            "participation": 1.0,
            "train": ("spatial_embedding.*", "visual_projection.*"),
            "rounds": 1,
        }
        settings = settings | pages | {key: settings[key] for key in ("train",) if key in settings}
    elif kind == "cnn":
        settings |= {"data": toy(shape=(1, 12, 12)), "participation": 0.5}
    return experiment(**settings)


def final(given: Experiment, folder: Path) -> Snapshot:
    run(given, folder)
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return Snapshot.restore(found)


def apart(given: Experiment, folder: Path) -> float:
    """Distance between the global models of the two modes, relative to the length of the path from the start."""
    models = {}
    for mode in ("sequential", "vectorized"):
        cohort = replace(given.execution, mode=mode, clients_per_batch=4)
        models[mode] = final(replace(given, execution=cohort), folder / mode).model
    setting = RunContext(given, folder / "cache")
    start = dict(setting.module.named_parameters()) | dict(setting.module.named_buffers())
    gap = torch.stack(
        [(models["vectorized"][n] - t).double().square().sum() for n, t in models["sequential"].items()]
    ).sum()
    path = torch.stack([(t - start[n]).double().square().sum() for n, t in models["sequential"].items()]).sum()
    assert path.detach() > 0, "nothing was learnt"
    return float((gap / path).sqrt().detach())


SLOW = {
    ("vt5", name) for name in ("ditto", "crd", "dkd", "fedkd", "fedp3", "moon")
}  # longer, and each also on a small model


@pytest.mark.parametrize(
    ("model", "name"), [pytest.param(*one, marks=pytest.mark.slow if one in SLOW else ()) for one in sorted(PAIRS)]
)
def test_both_execution_modes_agree_for_every_algorithm(model: str, name: str, tmp_path: Path) -> None:
    assert apart(small(model, name), tmp_path) < 1e-5


SETTINGS: dict[str, Any] = {
    "adamw": {"optimizer": LocalOptimizer("adamw"), "learning_rate": 1e-3},
    "momentum kept": {"optimizer": LocalOptimizer("sgd", {"momentum": 0.9}), "keep_optimizer": True},
    "adam kept": {"optimizer": LocalOptimizer("adam"), "learning_rate": 1e-3, "keep_optimizer": True},
    "clipped": {"clip_norm": 0.5, "clip_value": 0.05},
    "mixed entries": {"optimizer": LocalOptimizer("adafactor"), "learning_rate": 1e-2},
    "private head": {"personal_params": ("*head*",)},
    "rates of their own": {"schedule": Cosine(unit="client_update", warmup=0.2), "optimizer": LocalOptimizer("adamw")},
    "shampoo": {
        "optimizer": LocalOptimizer("shampoo", {"statistics_every": 1, "roots_every": 2}),
        "keep_optimizer": True,
    },
}


def test_both_execution_modes_agree_on_gradients_at_the_received_model(tmp_path: Path) -> None:
    given = small("mlp", "scaffold", algorithm=Scaffold(option="i"), rounds=3)
    assert apart(given, tmp_path) < 1e-5


@pytest.mark.parametrize("name", SETTINGS)
def test_both_execution_modes_agree_for_local_settings(name: str, tmp_path: Path) -> None:
    given = small("mlp", "fedavg", **{"participation": 0.8, "rounds": 3} | SETTINGS[name])
    assert apart(given, tmp_path) < 1e-5


def test_both_execution_modes_agree_on_a_fully_trained_vt5(tmp_path: Path) -> None:
    given = small("vt5", "fedavg", model=VT5(**TINY), train=())
    assert apart(given, tmp_path) < 1e-5


def test_vectorized_training_refuses_running_statistics(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="running statistics"):
        run(small("mlp", "fedavg", model=Normalised(), data=Toy(sizes=(2, 4, 6)), mode="vectorized"), tmp_path)


def test_sequential_training_holds_one_client_update_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update of a large model takes gigabytes."""
    born: list[weakref.ref[UpdateGroup]] = []
    alive: list[int] = []
    train, add = cohort.train_clients, PartSums.add

    def trained(*args: Any) -> list[UpdateGroup]:
        alive.append(1 + sum(one() is not None for one in born))
        groups = train(*args)
        born.extend(weakref.ref(one) for one in groups)
        return groups

    def added(*args: Any) -> None:
        alive.append(sum(one() is not None for one in born))
        add(*args)

    monkeypatch.setattr(cohort, "train_clients", trained)
    monkeypatch.setattr(PartSums, "add", added)
    given = small("mlp", "fedavg")
    run(replace(given, execution=replace(given.execution, mode="sequential", clients_per_batch=8)), tmp_path / "run")
    assert max(alive) == 1
    assert len(alive) > 8
