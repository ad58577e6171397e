"""Clients whose durations are whole seconds, so that schedules can be computed by hand."""

from __future__ import annotations

import numpy as np

from simfl.virtual_time.availability import AlwaysSchedule, AvailabilitySchedule
from simfl.virtual_time.instants import SECOND
from simfl.virtual_time.profiles import ClientProfiles
from simfl.virtual_time.rounds import OUTCOMES, Request, RoundSchedule, Start, schedule_round, start_round
from simfl.virtual_time.settings import RoundTime
from simfl.virtual_time.times import ClientTimes


def seconds_of(
    download: list[int],
    compute: list[int],
    upload: list[int],
    availability: AvailabilitySchedule | None = None,
    failure_rate: float = 0.0,
    jitter: float = 0.0,
    seed: int = 1,
) -> ClientTimes:
    """Return clients with these durations in seconds; a client takes one local step per second of computing."""
    count = len(download)
    profiles = ClientProfiles(
        devices=("device",),
        device=np.zeros(count, np.int64),
        networks=("network",),
        network=np.zeros(count, np.int64),
        flops=np.ones(count),
        seconds_per_example=None,
        download=np.ones(count),
        upload=np.ones(count),
        latency=np.zeros(count),
        watts=np.full(count, 2.0),
        overhead=0.0,
        jitter=jitter,
        failure_rate=failure_rate,
        availability=availability or AlwaysSchedule(),
        always=availability is None,
        seed=seed,
    )
    steps = np.array(compute, np.int64)
    return ClientTimes(
        profiles, 0, 1.0, np.array(download), np.array(upload), steps, steps.astype(np.float64), uploads=()
    )


def round_of(
    times: ClientTimes, settings: RoundTime, wanted: int, clock: int = 0, clients: list[int] | None = None
) -> RoundSchedule:
    """Return the first round; `clock` in seconds; `clients`: those that start, in place of a selection."""
    request = Request(wanted, 0.0, 1, 0)
    start = start_round(times, settings, request, clock * SECOND, None)
    if clients is not None:
        start = Start(start.instant, np.array(clients))
    return schedule_round(times, settings, request, clock * SECOND, start)


def outcomes(schedule: RoundSchedule) -> dict[int, str]:
    """Return the outcome of each client."""
    pairs = zip(schedule.clients.tolist(), schedule.outcome.tolist(), strict=True)
    return {client: OUTCOMES[outcome] for client, outcome in pairs}


def in_seconds(instants: np.ndarray) -> list[float]:
    """Return nanoseconds as seconds."""
    return (instants / SECOND).tolist()
