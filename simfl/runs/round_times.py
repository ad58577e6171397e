"""Table rows of virtual time: a row of `times` per client that started, and columns of `rounds`."""

from __future__ import annotations

import numpy as np

from simfl.asynchronous.events import ScheduledRound
from simfl.runs.tables import VIRTUAL_TIME, TableRow
from simfl.virtual_time.instants import SECOND, seconds
from simfl.virtual_time.rounds import OUTCOMES, RoundSchedule
from simfl.virtual_time.times import ClientTimes


def time_columns(times: ClientTimes, schedule: RoundSchedule) -> TableRow:
    """Return the columns that a round adds to its row of `rounds`.

    Times are seconds since the start of the run. The parts of the round's duration are those of the client that ended
    it, see `RoundSchedule.parts`. Energy is that of computing, where the power of a device is known.
    """
    outcomes = np.bincount(schedule.outcome, minlength=len(OUTCOMES)).tolist()
    parts = {f"time:{name}": value / SECOND for name, value in schedule.parts.items()}
    counts = {f"time:{name}": count for name, count in zip(OUTCOMES, outcomes, strict=True)}
    return {
        "sampled": len(schedule.clients),
        VIRTUAL_TIME: schedule.end / SECOND,
        **parts,
        **counts,
        "time:joules": energy(times, schedule),
    }


def energy(times: ClientTimes, schedule: RoundSchedule) -> float:
    """Return the energy in joules that the clients of a round spend on computing, where their power is known."""
    watts = times.profiles.watts[schedule.clients]
    return float(np.cumsum(watts * seconds(schedule.compute))[-1]) if len(watts) else 0.0


def event_columns(events: ScheduledRound) -> TableRow:
    """Return the columns that a round of asynchronous training adds to its row of `rounds`.

    Of every round, `time:started` plus the clients in flight before it equals the sum of `time:applied`, `time:late`
    (too stale), `time:lost` and `time:in_flight`.
    """
    ages = events.staleness
    return {
        VIRTUAL_TIME: events.end / SECOND,
        "time:started": len(events.sampled),
        "time:applied": len(events.clients),
        "time:late": len(events.refused),
        "time:lost": len(events.lost),
        "time:in_flight": events.in_flight,
        "time:staleness": float(ages.mean()) if len(ages) else 0.0,
        "time:max_staleness": int(ages.max(initial=0)),
    }


def time_rows(phase: int, round_number: int, schedule: RoundSchedule) -> list[TableRow]:
    """Return a row of `times` for each client of a round; instants and durations in nanoseconds."""
    parts = schedule.durations
    columns = zip(
        schedule.clients.tolist(),
        schedule.outcome.tolist(),
        schedule.steps.tolist(),
        parts.download.tolist(),
        parts.compute.tolist(),
        parts.upload.tolist(),
        schedule.stopped.tolist(),
        strict=True,
    )
    return [
        {
            "phase": phase,
            "round": round_number + 1,
            "client": client,
            "outcome": OUTCOMES[outcome],
            "steps": steps,
            "started": schedule.start,
            "download": download,
            "compute": compute,
            "upload": upload,
            "stopped": stopped,
        }
        for client, outcome, steps, download, compute, upload, stopped in columns
    ]
