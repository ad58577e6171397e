"""Optimizers: those of the server, and those a client steps with. To add one, write it and a line here."""

from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer
from simfl.optimizers.schedules import SCHEDULES, Schedule
from simfl.optimizers.server import ServerOptimizer
from simfl.registry import Registry

SERVER_OPTIMIZERS: Registry[ServerOptimizer] = Registry(
    {
        "sgd": "simfl.optimizers.server:Sgd",
        "momentum": "simfl.optimizers.server:Momentum",
        "adam": "simfl.optimizers.server:Adam",
        "yogi": "simfl.optimizers.server:Yogi",
        "adagrad": "simfl.optimizers.server:Adagrad",
    }
)

__all__ = ["LOCAL_OPTIMIZERS", "SCHEDULES", "SERVER_OPTIMIZERS", "LocalOptimizer", "Schedule", "ServerOptimizer"]
