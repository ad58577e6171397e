"""The workers of a run on Ray: they start, join, enter a phase, die and are replaced, while others work."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simfl.errors import RunError, SimflError
from simfl.protocol import Weights
from simfl.runtime.ray.actor import WorkerLocation
from simfl.runtime.ray.berths import Berths
from simfl.runtime.ray.cluster import cause
from simfl.runtime.ray.crew import Crew
from simfl.runtime.ray.errands import RETRIES
from simfl.runtime.worker import WorkerConfig

PATIENCE = 30.0  # seconds that idle workers have to give memory back
LOOK = 5.0  # seconds between two looks for machines that have joined


@dataclass(frozen=True)
class Start:
    """A worker on its way into the phase."""

    place: int
    tries: int = 0  # workers that died here on the way


class Staff:
    """Long-lived actors, one a CPU or GPU, each at its place; `starting` are the calls that bring some into a phase."""

    def __init__(self, crew: Crew, setup: WorkerConfig, on_message: Callable[[str], None]) -> None:
        crew.wait()
        self.crew, self.ray, self.say = crew, crew.ray, on_message
        self.setup = replace(setup, sitting=uuid.uuid4().hex)
        found = self.ray.exceptions
        self.lost = (found.RayActorError, found.ObjectLostError, found.OutOfMemoryError)  # work that can be done again
        self.actors = crew.actors  # its own list: those in the place of others end with it too
        self.told = self.ray.cloudpickle.dumps(self.setup)
        self.phase: tuple[int, Any] = (-1, None)  # its number, and a reference to its base
        self.starting: dict[Any, Start] = {}
        self.berths = Berths(self.setup, self.ray.put, on_message)
        self.next_look = 0.0
        self.entered: list[int] = []  # places, in the order in which their workers came into the phase

    @property
    def size(self) -> int:
        """Workers, those that start included."""
        return len(self.actors)

    @property
    def there(self) -> list[int]:
        """The places of those that are in the phase."""
        absent = {start.place for start in self.starting.values()}
        return [place for place in range(self.size) if place not in absent]

    def enter(self, phase: int, base: Weights) -> None:
        """Send everybody into a phase."""
        self.phase = (phase, self.ray.put(base))
        self.starting = {}
        for place in range(self.size):
            self._begin(place)

    def _begin(self, place: int, tries: int = 0) -> None:
        self.starting[self.actors[place].begin.remote(self.told, *self.phase)] = Start(place, tries)

    def welcome(self) -> None:
        """Hire for machines that have joined, or become free, since the last look."""
        now = time.monotonic()
        if not self.crew.grows or self.starting or now < self.next_look:
            return
        self.next_look = now + LOOK
        more = self.crew.free(self.ray)
        for _ in range(more):
            self.actors.append(self.crew.actor())
            self._begin(self.size - 1)
        if more:
            self.say(f"Ray has room for {more} worker{'s' if more > 1 else ''} more: {self.size} from now on")

    def replace(self, place: int, tries: int = 0) -> None:
        """A new worker in the place of one that died, or is out of reach and yet alive."""
        self.ray.kill(self.actors[place])
        self.actors[place] = self.crew.actor()
        self._begin(place, tries)

    def started(self, ready: Any) -> None:
        """A worker is now in the phase, or died on the mode and another takes its place; RunError if none can start."""
        start = self.starting.pop(ready)
        try:
            berth: WorkerLocation = self.get(ready)
        except self.lost as error:
            if getattr(error, "actor_init_failed", False) or start.tries == RETRIES:
                raise self._cannot_start(error) from None
            self.say(f"a worker died while it started ({cause(error)}); it is replaced")
            self.replace(start.place, start.tries + 1)
            return
        except self.ray.exceptions.RayTaskError as error:
            raise self._cannot_start(error) from None
        self.berths.note(start.place, berth)
        self.entered = [place for place in self.entered if place != start.place] + [start.place]

    def _cannot_start(self, error: Exception) -> RunError:
        self.say(str(error).strip())
        return RunError(f"a worker cannot start: {cause(error)}; --backend inline shows it in this process")

    def spare(self, places: Sequence[int]) -> None:
        """Have idle workers give back the memory that they keep for later."""
        calls = [self.actors[place].spare.remote() for place in places]
        self.ray.wait(calls, num_returns=len(calls), timeout=PATIENCE)

    def free(self) -> str:
        """What Ray has left, for a message."""
        free = self.ray.available_resources()
        return ", ".join(f"{free.get(kind, 0):g} of {n:g} {kind}s" for kind, n in self.crew.machines(self.ray).items())

    def get(self, ref: Any) -> Any:
        """A result; an error inside a worker rises as what it was there."""
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SimflError):
                raise error.cause from None
            raise

    def close(self) -> None:
        """End the actors."""
        self.crew.close()
        self.berths.close()
        self.starting, self.phase = {}, (-1, None)
