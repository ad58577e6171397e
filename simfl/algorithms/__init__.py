"""Federated algorithms: one paper, one file."""

from __future__ import annotations

from simfl.algorithms.base import Algorithm
from simfl.algorithms.ditto import Ditto
from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.feddat import FedDat
from simfl.algorithms.feddc import FedDC
from simfl.algorithms.feddyn import FedDyn
from simfl.algorithms.fedprox import FedProx
from simfl.algorithms.moon import Moon
from simfl.algorithms.robust import Krum, Median
from simfl.algorithms.scaffold import Scaffold

ALGORITHMS: dict[str, type[Algorithm]] = {
    "ditto": Ditto,
    "fedavg": FedAvg,
    "feddat": FedDat,
    "feddc": FedDC,
    "feddyn": FedDyn,
    "fedprox": FedProx,
    "krum": Krum,
    "median": Median,
    "moon": Moon,
    "scaffold": Scaffold,
}
