"""The schedule of a synchronous round: who starts, what arrives when, and when the round ends.

A round starts once a client is available. The server sends the model to K' clients, each trains and uploads, and the
round ends with the K-th upload, at the deadline, or when every client has arrived or was lost, whichever is first. Of
uploads that arrive at one instant, that of the client with the lower number is first. The server notices the loss of a
client at the moment at which it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simfl.errors import RunError
from simfl.seeds import SeedName, rng
from simfl.virtual_time.instants import FOREVER, draws, nanoseconds
from simfl.virtual_time.profiles import Durations, failures
from simfl.virtual_time.selection import History, Pool
from simfl.virtual_time.settings import RoundTime
from simfl.virtual_time.times import ClientTimes

OUTCOMES = ("applied", "late", "unavailable", "failed", "unfinished")
APPLIED, LATE, UNAVAILABLE, FAILED, UNFINISHED = range(len(OUTCOMES))


class Request(NamedTuple):
    """The number of clients that a round asks for.

    Attributes:
        wanted: K; None under Poisson sampling.
        rate: Probability of each client under Poisson sampling.
        seed: Seed of the sampling.
        number: The round, from 0.
    """

    wanted: int | None
    rate: float
    seed: SeedName
    number: int


class Start(NamedTuple):
    """The start of a round."""

    instant: int  # nanoseconds
    clients: np.ndarray  # ascending, int64 [n]


@dataclass(frozen=True)
class RoundSchedule:
    """A round in time. Instants and durations are nanoseconds, int64 [n], in the order of `clients`.

    Attributes:
        asked: Instant at which the server was ready for the round.
        start: Instant at which the clients start, once one is available.
        end: Instant at which the server aggregates.
        clients: Clients that start, ascending.
        steps: Local steps that each takes.
        outcome: Position in `OUTCOMES`.
        durations: Durations of download, compute and upload, as if nothing interrupted them.
        stopped: Instant at which each client arrives, is lost, or stops because the round has ended.
        uploads: Whether the bytes of the upload are sent: it is applied, or had begun when it was in vain.
    """

    asked: int
    start: int
    end: int
    clients: np.ndarray
    steps: np.ndarray
    outcome: np.ndarray
    durations: Durations
    stopped: np.ndarray
    uploads: np.ndarray

    @property
    def applied(self) -> np.ndarray:
        """Positions of the clients whose uploads are aggregated, int64."""
        return np.flatnonzero(self.outcome == APPLIED)

    @property
    def wasted(self) -> np.ndarray:
        """Positions of the clients that upload in vain, int64."""
        return np.flatnonzero(self.uploads & (self.outcome != APPLIED))

    @property
    def compute(self) -> np.ndarray:
        """Nanoseconds that each client computed until it stopped, int64 [n]."""
        began = self.start + self.durations.download
        return np.clip(self.stopped - began, 0, self.durations.compute)

    @property
    def parts(self) -> dict[str, int]:
        """Parts of the round's duration along the client that ended it, in nanoseconds; they add up to the whole.

        `waiting` is the time until a client is available, and that between the last applied upload and the end.
        """
        applied, whole = self.applied, self.end - self.asked
        if len(applied) == 0:
            return {"download": 0, "compute": 0, "upload": 0, "waiting": whole}
        last = applied[np.lexsort((self.clients[applied], self.stopped[applied]))[-1]]
        own = {name: int(getattr(self.durations, name)[last]) for name in Durations._fields}
        return own | {"waiting": whole - sum(own.values())}


def start_round(
    times: ClientTimes, settings: RoundTime, request: Request, clock: int, history: History | None
) -> Start:
    """Return when a round starts and with which clients.

    Where fewer clients are available than requested, all of them start; where none is, the server waits for the first.

    Raises:
        RunError: No client is ever available again.
    """
    everyone = np.arange(len(times.profiles), dtype=np.int64)
    instant, pool = clock, everyone
    if not times.profiles.always:
        following = times.profiles.availability.next_available(everyone, clock)
        instant = int(following.min())
        if instant >= FOREVER:
            raise RunError(f"round {request.number + 1} of phase {times.phase}: no client is available any more")
        pool = everyone[following <= instant]
    generator_name = (request.seed, times.phase, request.number)
    if request.wanted is None:
        drawn = rng(request.seed, "clients", times.phase, request.number).random(len(everyone)) < request.rate
        return Start(instant, pool[drawn[pool]])
    count = min(len(pool), num_started(request.wanted, settings.over_selection))
    return Start(instant, settings.selection.select(Pool(pool, count, times.seconds, generator_name, history)))


def num_started(count: int, over_selection: float) -> int:
    """Return K', the number of clients that start where K uploads are aggregated: K·over_selection, rounded up."""
    return int(np.ceil(count * over_selection - 1e-9))


def schedule_round(
    times: ClientTimes,
    settings: RoundTime,
    request: Request,
    clock: int,
    start: Start,
    download: np.ndarray | None = None,
) -> RoundSchedule:
    """Return the schedule of a round.

    Args:
        times: Times of the phase's clients.
        settings: Rules of the round.
        request: How many uploads the server waits for.
        clock: Instant at which the server was ready.
        start: Its start and its clients.
        download: Bytes that each client receives, [n]; None: those of a whole model.
    """
    clients, number = start.clients, request.number
    deadline = FOREVER if settings.deadline is None else start.instant + int(nanoseconds(settings.deadline))
    steps = times.steps[clients]
    if settings.stragglers:
        steps = _straggling(times, settings, clients, number)
    unfinished = (steps < times.steps[clients]) & (not settings.partial_work)
    whole = times.durations(clients, number, steps, download)
    if settings.partial_work and settings.deadline is not None:
        steps = _fitting(times, number, clients, steps, whole, deadline - start.instant, download)
        whole = times.durations(clients, number, steps, download)
    arrival = start.instant + whole.total
    lost_at, failed = _losses(times, clients, number, start.instant, whole.total)
    lost = lost_at < arrival
    ready = np.flatnonzero(~lost & ~unfinished & (arrival <= deadline))
    order = ready[np.lexsort((clients[ready], arrival[ready]))]
    wanted = len(clients) if request.wanted is None else request.wanted
    if len(order) >= wanted:
        order = order[:wanted]
        end = int(arrival[order[-1]]) if wanted else start.instant
    else:
        known = np.where(lost, lost_at, arrival)
        end = min(deadline, int(known.max())) if len(clients) else start.instant
    outcome = np.full(len(clients), LATE, np.int64)
    outcome[unfinished] = UNFINISHED
    gone = lost & (lost_at <= end)
    outcome[gone] = np.where(failed[gone], FAILED, UNAVAILABLE)
    outcome[order] = APPLIED
    cut = arrival if settings.late == "upload" else np.minimum(arrival, end)
    stopped = np.where(
        gone, lost_at, np.where(outcome == APPLIED, arrival, np.minimum(cut, np.where(lost, lost_at, cut)))
    )
    began = start.instant + whole.download + whole.compute
    uploads = (outcome == APPLIED) | ((outcome == LATE) & (began < stopped))
    return RoundSchedule(clock, start.instant, end, clients, steps, outcome, whole, stopped, uploads)


def _straggling(times: ClientTimes, settings: RoundTime, clients: np.ndarray, number: int) -> np.ndarray:
    """Return the local steps of clients, of which some stop early: after 1 to all of them, uniformly, int64 [n]."""
    steps, seed = times.steps[clients], times.profiles.seed
    slow = draws((seed, "straggler", times.phase), clients, number) < settings.stragglers
    part = (draws((seed, "straggler work", times.phase), clients, number) * steps).astype(np.int64)
    return np.where(slow, np.minimum(part + 1, steps), steps)


def _fitting(
    times: ClientTimes,
    number: int,
    clients: np.ndarray,
    steps: np.ndarray,
    whole: Durations,
    limit: int,
    download: np.ndarray | None,
) -> np.ndarray:
    """Return the local steps of clients, int64 [n]: as many as let the upload arrive by the deadline, at least 1."""
    fixed = times.durations(clients, number, np.zeros_like(steps), download)
    each = np.maximum(whole.compute - fixed.compute, 1)
    room = np.maximum(limit - fixed.total, 0)
    found = np.clip(np.floor(room / each * steps).astype(np.int64), np.minimum(steps, 1), steps)
    over = times.durations(clients, number, found, download).total > limit  # the quotient may be rounded up
    return np.where(over, np.maximum(found - 1, np.minimum(steps, 1)), found)


def _losses(
    times: ClientTimes, clients: np.ndarray, number: int, start: int, total: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return when each client is lost, int64 [n] or `FOREVER`, and whether by a failure, bool [n]."""
    fraction = failures(times.profiles, clients, times.phase, number)
    fails = np.isfinite(fraction)
    at = start + np.floor(np.where(fails, fraction, 0.0) * total).astype(np.int64)
    failed_at = np.where(fails, at, FOREVER)
    if times.profiles.always:
        return failed_at, fails
    until = times.profiles.availability.available_until(clients, start)
    return np.minimum(failed_at, until), failed_at <= until
