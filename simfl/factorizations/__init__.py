"""Matrix factorizations for noise that is correlated over rounds. To add one, write it and a line in the table."""

from simfl.factorizations.base import Factor, Factorization, Participation, Workload
from simfl.registry import Registry

FACTORIZATIONS: Registry[Factorization] = Registry(
    {
        "banded": "simfl.factorizations.banded:Banded",
        "blt": "simfl.factorizations.blt:Blt",
    }
)

__all__ = ["FACTORIZATIONS", "Factor", "Factorization", "Participation", "Workload"]
