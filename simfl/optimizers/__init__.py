"""Optimizers: those of the server, and those a client steps with. To add one, write it and a line here."""

from simfl.optimizers.local import LOCAL_OPTIMIZERS, LocalOptimizer
from simfl.optimizers.schedules import SCHEDULES, Schedule
from simfl.optimizers.server import Adagrad, Adam, Momentum, ServerOptimizer, Sgd, Yogi

SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}

__all__ = ["LOCAL_OPTIMIZERS", "SCHEDULES", "SERVER_OPTIMIZERS", "LocalOptimizer", "Schedule", "ServerOptimizer"]
