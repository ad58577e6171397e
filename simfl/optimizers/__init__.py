"""Optimizers of server and clients, and learning-rate schedules. To add one, write it and a line in its table."""

from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer
from simfl.optimizers.schedules import SCHEDULES, Schedule
from simfl.optimizers.server import ServerOptimizer
from simfl.registry import Registry

SERVER_OPTIMIZERS: Registry[ServerOptimizer] = Registry(
    {
        "sgd": "simfl.optimizers.server:Sgd",
        "sliding_window": "simfl.optimizers.sliding_window:SlidingWindow",
        "momentum": "simfl.optimizers.server:Momentum",
        "adam": "simfl.optimizers.server:Adam",
        "yogi": "simfl.optimizers.server:Yogi",
        "adagrad": "simfl.optimizers.server:Adagrad",
    }
)

__all__ = ["LOCAL_OPTIMIZERS", "SCHEDULES", "SERVER_OPTIMIZERS", "LocalOptimizer", "Schedule", "ServerOptimizer"]
