"""Instants and durations as whole nanoseconds, and draws that are hashes of names.

Only operations that IEEE 754 rounds exactly (+, −, ·, /) lead from settings to instants: a logarithm or a power could
differ in its last bit between two machines, and with it the order of two events.
"""

from __future__ import annotations

import numpy as np
import torch

from simfl.keyed_random import NAME_MULTIPLIER, STEP_MULTIPLIER, uniform
from simfl.seeds import SeedName, seed_for

SECOND = 1_000_000_000  # nanoseconds
FOREVER = 1 << 62  # instant that is never reached, about 146 years


def nanoseconds(seconds: np.ndarray | float) -> np.ndarray:
    """Return seconds, float64 of any shape, as whole nanoseconds, rounded up; at most `FOREVER`."""
    exact = np.ceil(np.asarray(seconds, np.float64) * SECOND)
    found: np.ndarray = np.where(exact < FOREVER, exact, 0).astype(np.int64)
    return np.where(exact < FOREVER, found, FOREVER)


def seconds(instants: np.ndarray | int) -> np.ndarray:
    """Return nanoseconds as seconds, float64."""
    found: np.ndarray = np.asarray(instants, np.int64) / SECOND
    return found


def draws(names: tuple[SeedName, ...], clients: np.ndarray, index: np.ndarray | int = 0) -> np.ndarray:
    """Return a number in [0, 1) for each client, float64 [n], a hash of all names.

    Args:
        names: Names of the draw, such as seed and purpose.
        clients: Numbers of the clients, int64 [n].
        index: Number of the round or of the client's update, int64 [n] or one for all.
    """
    key = torch.tensor(seed_for(*names), dtype=torch.int64)
    own = torch.from_numpy(np.ascontiguousarray(clients, np.int64)) * STEP_MULTIPLIER
    which = torch.from_numpy(np.broadcast_to(np.asarray(index, np.int64), clients.shape).copy()) * NAME_MULTIPLIER
    found: np.ndarray = uniform(key + own + which, 1)[:, 0].to(torch.float64).numpy()
    return found


def factors(spread: float, drawn: np.ndarray) -> np.ndarray:
    """Return factors between 1/(1 + spread) and 1 + spread, float64 [n], with median 1, from numbers in [0, 1)."""
    away = 1.0 + spread * np.abs(2.0 * drawn - 1.0)
    return np.where(drawn < 0.5, 1.0 / away, away)
