"""What is left to do of a round's cohorts or an evaluation's shards: in which order, and how often each was tried."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simfl.errors import OutOfMemory, RunError

RETRIES = 3  # how often work is tried again when its worker died


class Errands:
    """The longest goes out first. Work whose worker starved or kept dying is done last, with nothing beside it."""

    def __init__(self, names: Sequence[str], costs: Sequence[float]) -> None:
        """`names`: what an error calls each piece of work; `costs`: in any unit."""
        self.names = names
        self.waiting = sorted(range(len(names)), key=lambda i: (-costs[i], i))  # in the order in which it is to go out
        self._alone: deque[int] = deque()
        self._deaths, self._starved = [0] * len(names), [False] * len(names)
        self._sent = self._done = self._again = 0  # dispatched = finished + retried

    def take(self, work: int) -> None:
        """Of what is waiting, this goes out."""
        self.waiting.remove(work)
        self._sent += 1

    def take_alone(self) -> int:
        """What goes out with nothing beside it; the caller sees to that."""
        self._sent += 1
        return self._alone.popleft()

    @property
    def solitary(self) -> bool:
        """Whether what goes out next has to be alone."""
        return not self.waiting and bool(self._alone)

    @property
    def over(self) -> bool:
        """Whether all is done; all that went out must have come back, each piece done once."""
        if self.waiting or self._alone or self._sent > self._done + self._again:
            return False
        assert self._sent == self._done + self._again, "work came back that was not sent out"
        assert self._done == len(self.names), "work was never done"
        return True

    def done(self) -> None:
        """Work came back done."""
        self._done += 1

    def died(self, work: int, cause: str) -> str:
        """The worker died over it: it is tried again, alone after the first time. Says so; RunError at last."""
        self._again += 1
        self._deaths[work] += 1
        if self._deaths[work] > RETRIES:
            raise RunError(f"a worker died {self._deaths[work]} times on {self.names[work]}: {cause}")
        if self._deaths[work] == 1:
            self.waiting.insert(0, work)
        else:
            self._alone.append(work)
        return f"a worker died on {self.names[work]} ({cause}); it is replaced and they are tried again"

    def unbegun(self, work: int) -> None:
        """It waited at a worker that is gone: it goes out again, and nothing is held against it."""
        self._again += 1
        self.waiting.insert(0, work)

    def starved(self, work: int, cause: str) -> str:
        """It wanted memory: it is tried again, alone on a fresh worker. Says so; OutOfMemory the second time."""
        self._again += 1
        if self._starved[work]:
            raise OutOfMemory(f"out of memory on {self.names[work]}, also alone on a fresh worker: {cause}")
        self._starved[work] = True
        self._alone.append(work)
        return f"out of memory on {self.names[work]} ({cause}); they are tried again alone on a fresh worker"
