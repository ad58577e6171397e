"""Federated algorithms: one paper, one file."""

from __future__ import annotations

from simfl.algorithms.base import Algorithm
from simfl.algorithms.clgecl import Clgecl
from simfl.algorithms.crd import Crd
from simfl.algorithms.ditto import Ditto
from simfl.algorithms.dkd import Dkd
from simfl.algorithms.dp_clgecl import DpClgecl
from simfl.algorithms.dp_fedavg import DpFedAvg
from simfl.algorithms.dp_sgd import DpSgd
from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.feddat import FedDat
from simfl.algorithms.feddc import FedDC
from simfl.algorithms.feddyn import FedDyn
from simfl.algorithms.fedkd import FedKD
from simfl.algorithms.fednova import FedNova
from simfl.algorithms.fedp3 import FedP3
from simfl.algorithms.fedprox import FedProx
from simfl.algorithms.group_dp import GroupDp
from simfl.algorithms.moon import Moon
from simfl.algorithms.robust import Krum, Median
from simfl.algorithms.scaffold import Scaffold
from simfl.algorithms.similarity_preserving import SimilarityPreserving
from simfl.algorithms.soft_targets import SoftTargets

ALGORITHMS: dict[str, type[Algorithm]] = {
    "clgecl": Clgecl,
    "crd": Crd,
    "ditto": Ditto,
    "dkd": Dkd,
    "dp_clgecl": DpClgecl,
    "dp_fedavg": DpFedAvg,
    "dp_sgd": DpSgd,
    "fedavg": FedAvg,
    "feddat": FedDat,
    "feddc": FedDC,
    "feddyn": FedDyn,
    "fedkd": FedKD,
    "fednova": FedNova,
    "fedp3": FedP3,
    "fedprox": FedProx,
    "group_dp": GroupDp,
    "krum": Krum,
    "median": Median,
    "moon": Moon,
    "scaffold": Scaffold,
    "similarity_preserving": SimilarityPreserving,
    "soft_targets": SoftTargets,
}
