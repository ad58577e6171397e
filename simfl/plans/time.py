"""Virtual time of a planned phase: makespan, its parts, outcomes of updates, and when uploads arrive in a round."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

import numpy as np

from simfl.plans.messages import RoundMessages
from simfl.runs.folder import JsonObject
from simfl.runs.round_times import energy
from simfl.virtual_time.instants import SECOND, seconds
from simfl.virtual_time.profiles import Durations
from simfl.virtual_time.rounds import FAILED, OUTCOMES, UNAVAILABLE, UNFINISHED, RoundSchedule
from simfl.virtual_time.times import ClientTimes

CURVE = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)  # fractions of a round's uploads


@dataclass(frozen=True)
class TimePlan:
    """Virtual time of a phase.

    Attributes:
        seconds: Makespan of the phase.
        start: Seconds from the start of the run to that of the phase.
        rounds: Rounds that were counted one by one; the makespan of a longer phase is scaled up from them.
        parts: Seconds of the makespan by `download`, `compute`, `upload` and `waiting`, along the clients that ended
            the rounds; empty for asynchronous rounds.
        outcomes: Updates by outcome, in the counted rounds.
        curve: Mean seconds from the start of a round until fractions (`CURVE`) of its uploads have arrived; of all
            clients that are not lost, also those for which a round does not wait.
        joules: Energy of computing, where the power of devices is known.
        flops: Floating-point operations of training on one example; 0 where seconds are given.
    """

    seconds: float
    start: float = 0.0
    rounds: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    curve: tuple[float, ...] = ()
    joules: float = 0.0
    flops: float = 0.0

    def json(self) -> JsonObject:
        """Return the output of `simfl plan --json`."""
        return asdict(self) | {"curve": {f"{q:g}": value for q, value in zip(CURVE, self.curve, strict=False)}}


class PhaseTimes:
    """Sums over the rounds of a phase in virtual time."""

    def __init__(self, times: ClientTimes, clock: int) -> None:
        """Start without rounds. `clock`: instant at the start of the phase, in nanoseconds."""
        self.times, self.start, self.end = times, clock, clock
        self.rounds = 0
        self.parts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.joules = 0.0
        self._curves: list[np.ndarray] = []

    def add(self, in_round: RoundMessages) -> None:
        """Add a round."""
        self.rounds += 1
        self.end = in_round.end
        schedule, events = in_round.schedule, in_round.events
        if events is not None:
            ended = {"applied": len(events.clients), "late": len(events.refused), "lost": len(events.lost)}
            self.outcomes.update(ended)
            self.outcomes["in flight at the end"] = events.in_flight
        if schedule is None:
            return
        self.parts.update(schedule.parts)
        counts = np.bincount(schedule.outcome, minlength=len(OUTCOMES)).tolist()
        self.outcomes.update(dict(zip(OUTCOMES, counts, strict=True)))
        self.joules += energy(self.times, schedule)
        if len(curve := arrivals(schedule)):
            self._curves.append(curve)

    def plan(self, rounds: int) -> TimePlan:
        """Return the plan of a phase of this many rounds."""
        factor = rounds / self.rounds if self.rounds else 0.0
        curve = tuple(np.mean(self._curves, 0).tolist()) if self._curves else ()
        return TimePlan(
            seconds=(self.end - self.start) / SECOND * factor,
            start=self.start / SECOND,
            rounds=self.rounds,
            parts={name: self.parts[name] / SECOND * factor for name in (*Durations._fields, "waiting")}
            if self.parts
            else {},
            outcomes=dict(self.outcomes),
            curve=curve,
            joules=self.joules * factor,
            flops=self.times.flops,
        )


def arrivals(schedule: RoundSchedule) -> np.ndarray:
    """Return when fractions (`CURVE`) of a round's uploads would have arrived, in seconds after its start, float64."""
    lost = np.isin(schedule.outcome, (UNAVAILABLE, FAILED, UNFINISHED))
    ended = np.sort(seconds(schedule.durations.total[~lost]))
    if not len(ended):
        return ended
    at = np.ceil(np.array(CURVE) * len(ended) - 1e-9).astype(np.int64) - 1
    return ended[np.maximum(at, 0)]
