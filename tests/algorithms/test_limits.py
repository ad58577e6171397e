"""Limits at which an algorithm is FedAvg, besides those that the contract tests (`Algorithm.fedavg_settings`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from fakes import Toy, experiment, run

from simfl.algorithms.base import Algorithm
from simfl.algorithms.crd import Crd
from simfl.algorithms.dkd import Dkd
from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.fedp3 import FedP3
from simfl.algorithms.fedprox import FedProx
from simfl.algorithms.fedsam import FedSam
from simfl.algorithms.moon import Moon
from simfl.algorithms.per_fedavg import PerFedAvg
from simfl.algorithms.scaffold import Scaffold
from simfl.algorithms.soft_targets import SoftTargets
from simfl.protocol import Weights
from simfl.runs.results import Run

LIMITS: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedp3: before its second round": (FedP3(), {"rounds": 1}),
    "scaffold, option i: before any control": (Scaffold(option="i"), {"rounds": 1}),
    "per_fedavg, Hessian-free: alpha 0": (PerFedAvg(alpha=0.0, hessian="free"), {}),
}
DATA = Toy(sizes=(1, 12, 5, 17), valid=8)


def trained(algorithm: Algorithm, mode: str, settings: dict[str, Any]) -> Weights:
    with TemporaryDirectory() as folder:
        given: dict[str, Any] = {"rounds": 2, "participation": 1.0, "learning_rate": 0.125, "data": DATA} | settings
        run(experiment(algorithm, mode, clients_per_batch=4, **given), Path(folder))
        return Run(folder).snapshot().server.weights


@cache
def fedavg(mode: str, settings: tuple[tuple[str, Any], ...]) -> Weights:
    return trained(FedAvg(), mode, dict(settings))


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", LIMITS)
def test_further_limits_are_bit_identical_to_fedavg(name: str, mode: str) -> None:
    algorithm, settings = LIMITS[name]
    plain = fedavg(mode, tuple(settings.items()))
    found = trained(algorithm, mode, settings)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[tensor], plain[tensor]) for tensor in plain)


@pytest.mark.parametrize(
    "algorithm",
    [FedProx(mu=0.1), Moon(), SoftTargets(), FedP3(weight=5.0), Dkd(), Crd(), FedSam(), PerFedAvg()],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_away_from_its_limit_an_algorithm_differs_from_fedavg(algorithm: Algorithm) -> None:
    found, plain = trained(algorithm, "sequential", {}), fedavg("sequential", ())
    assert not all(torch.equal(found[tensor], plain[tensor]) for tensor in plain)
