"""The setting at which a method is FedAvg: the same global weights to the bit, in the same way."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from fakes import Toy, experiment, run

from simfl.algorithms import ALGORITHMS
from simfl.algorithms.base import Algorithm
from simfl.algorithms.clgecl import Clgecl
from simfl.algorithms.crd import Crd
from simfl.algorithms.ditto import Ditto
from simfl.algorithms.dkd import Dkd
from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.feddat import FedDat
from simfl.algorithms.fedkd import FedKD
from simfl.algorithms.fednova import FedNova
from simfl.algorithms.fedp3 import FedP3
from simfl.algorithms.fedprox import FedProx
from simfl.algorithms.moon import Moon
from simfl.algorithms.scaffold import Scaffold
from simfl.algorithms.similarity_preserving import SimilarityPreserving
from simfl.algorithms.soft_targets import SoftTargets
from simfl.protocol import Weights
from simfl.runs.results import Run

# FedDAT needs adapters: see test_feddat. FedDyn and FedDC have no limit and are shown by hand and at their minima.
LIMITS: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "clgecl: before any dual": (Clgecl(), {"rounds": 1, "weighting": "uniform"}),
    "crd: weight 0": (Crd(weight=0.0, embedding_size=4, negatives=4), {}),
    "ditto: the shared model": (Ditto(), {}),
    "dkd: alpha and beta 0": (Dkd(alpha=0.0, beta=0.0), {}),
    "fedkd: nothing is taught": (FedKD(distill=0.0, hidden=0.0), {}),
    "fednova: as many steps each": (FedNova(), {"steps": 4}),  # a power of two, so that dividing loses nothing
    "fedp3: weight 0": (FedP3(weight=0.0), {}),
    "fedp3: before its second round": (FedP3(), {"rounds": 1}),
    "fedprox: mu 0": (FedProx(mu=0.0), {}),
    "moon: mu 0": (Moon(mu=0.0), {}),
    "scaffold: before any control": (Scaffold(), {"rounds": 1}),
    "scaffold i: before any control": (Scaffold(option="i"), {"rounds": 1}),
    "similarity preserving: weight 0": (SimilarityPreserving(weight=0.0), {}),
    "soft targets: weight 0": (SoftTargets(weight=0.0), {}),
}
ELSEWHERE = {FedAvg, FedDat}
DATA = Toy(sizes=(1, 12, 5, 17), valid=8)


def trained(algorithm: Algorithm, mode: str, settings: dict[str, Any]) -> Weights:
    with TemporaryDirectory() as folder:
        # a rate that is a power of two, as FedNova divides by it
        given = {"rounds": 2, "participation": 1.0, "learning_rate": 0.125, "data": DATA} | settings
        run(experiment(algorithm, mode, clients_per_batch=4, **given), Path(folder))
        return Run(folder).snapshot().server.weights


@cache
def fedavg(mode: str, settings: tuple[tuple[str, Any], ...]) -> Weights:
    return trained(FedAvg(), mode, dict(settings))


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", LIMITS)
def test_at_its_limit_a_method_is_fedavg_to_the_bit(name: str, mode: str) -> None:
    algorithm, settings = LIMITS[name]
    plain = fedavg(mode, tuple(settings.items()))
    found = trained(algorithm, mode, settings)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[tensor], plain[tensor]) for tensor in plain)


@pytest.mark.parametrize("algorithm", [FedProx(mu=0.1), Moon(), SoftTargets(), FedP3(weight=5.0), Dkd(), Crd()])
def test_away_from_its_limit_it_is_not(algorithm: Algorithm) -> None:
    found, plain = trained(algorithm, "sequential", {}), fedavg("sequential", ())
    assert not all(torch.equal(found[tensor], plain[tensor]) for tensor in plain)


def test_every_limit_that_a_method_tells_of_is_shown() -> None:
    assert {kind for kind in ALGORITHMS.values() if kind.fedavg_limit} == {
        type(one) for one, _ in LIMITS.values()
    } | ELSEWHERE
