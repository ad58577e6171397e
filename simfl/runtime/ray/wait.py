"""Waiting for workers: for what comes first, and no longer than the watchdog allows."""

from __future__ import annotations

import math
import time
from typing import Any

from simfl.errors import RunError
from simfl.runtime.ray.calls import Calls
from simfl.runtime.ray.staff import Staff

PATIENCE = 30.0  # seconds without a word while workers start
RETHINK = 1.0  # seconds after which work that was held back for a busy worker is dealt anew
START = 600.0  # seconds that the first worker has to start, if the watchdog has no more


class Lookout:
    """The pool's eyes on its workers."""

    def __init__(self, staff: Staff, calls: Calls) -> None:
        self.staff, self.calls, self.setup = staff, calls, staff.setup
        self.limit = staff.setup.experiment.watchdog_seconds or math.inf
        self.heard = 0.0  # when something last came back

    def begin(self) -> None:
        """Nobody was waited for until now."""
        self.heard = time.monotonic()

    def first(self, held: bool) -> Any:
        """The first call that is ready; None, if work is held back, after a while.

        While workers alone are waited for, says so: the cluster may be full. RunError when the watchdog's time is up.
        """
        limit = self.limit if self.calls.by_ref else max(self.limit, START)
        while (left := self.heard + limit - time.monotonic()) > 0:
            calls = [*self.calls.by_ref, *self.staff.starting]
            ready, _ = self.staff.ray.wait(calls, num_returns=1, timeout=min(RETHINK if held else PATIENCE, left))
            if ready:
                self.heard = time.monotonic()
                return ready[0]
            if held:
                return None
            if not self.calls.by_ref:
                absent = f"{len(self.staff.starting)} of {self.staff.size} workers are not ready"
                self.staff.say(f"{absent}; Ray has free: {self.staff.free()}")
        if not self.calls.by_ref:
            raise RunError(f"no worker was ready after {limit:g} s; Ray has free: {self.staff.free()}")
        silent = "; ".join(f"worker {call.place} on {call.name}" for call in self.calls.at_work)
        raise RunError(
            f"no result for {self.limit:g} s from {silent}; where they stand is in {self.setup.stacks}; the run can"
            " go on with --resume, and if a cohort may take so long, with a larger watchdog_seconds"
        )
