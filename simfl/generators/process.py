"""The global generators of a process, and the randomness of the operating system as Python and numpy read it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import torch


def is_for_simfl() -> bool:
    """Return whether simfl itself reads: numpy reads for each new generator, even if it then gets a key."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("random", "secrets"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("simfl.")


@contextmanager
def system_randomness(read: Callable[[int], bytes]) -> Iterator[None]:
    """Let Python and numpy read the operating system's randomness by `read` inside the block: that many bytes.

    They do so for `default_rng()` without a seed, for `secrets` and for `SystemRandom`.
    """
    original = getattr(random, "_urandom")  # noqa: B009
    setattr(random, "_urandom", read)  # noqa: B010
    try:
        yield
    finally:
        setattr(random, "_urandom", original)  # noqa: B010


@contextmanager
def global_states_kept() -> Iterator[None]:
    """Restore the states of the global generators of torch, numpy and Python at the end of the block."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python inside the block, and restore their states at the end.

    A generator that Python or numpy seed from the operating system, as `default_rng()` does, is seeded by `seed` too.
    """
    with global_states_kept(), system_randomness(random.Random(seed).randbytes):
        torch.manual_seed(seed)
        np.random.seed(seed % (1 << 32))  # noqa: NPY002
        random.seed(seed)
        yield
