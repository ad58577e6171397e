"""The contract of availability over virtual time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from simfl.virtual_time.availability import Availability
from simfl.virtual_time.instants import FOREVER, SECOND
from simfl.virtual_time.selection import History, Pool, Selection

CLIENTS, STEP, INSTANTS = 7, 1_000 * SECOND, 100
TRACE = "client,start,end\n0,10,500\n0,900,4000\n1,2000,90000\n"


def check_availability(availability: Availability) -> Iterator[str]:
    """Yield one line for each rule that a process of availability breaks."""
    with tempfile.TemporaryDirectory(prefix="simfl-") as folder:
        if "file" in {field.name for field in fields(availability)}:
            (Path(folder) / "trace.csv").write_text(TRACE)
            given: Any = availability
            availability = replace(given, file=str(Path(folder) / "trace.csv"))
        schedule, again = availability.schedule(CLIENTS, 1), availability.schedule(CLIENTS, 1)
    clients = np.arange(CLIENTS, dtype=np.int64)
    for instant in range(0, INSTANTS * STEP, STEP):
        start, until = schedule.next_available(clients, instant), schedule.available_until(clients, instant)
        if start.dtype != np.int64 or until.dtype != np.int64:
            yield "instants are not int64 nanoseconds"
            return
        if (start < instant).any():
            yield f"`next_available` at {instant} returns an earlier instant"
        if not np.array_equal(until > instant, start == instant):
            yield f"at {instant} the two questions disagree about who is available"
        if [schedule.available_until_one(client, instant) for client in range(CLIENTS)] != until.tolist():
            yield f"`available_until_one` at {instant} differs from `available_until`"
        known = start < FOREVER
        if not np.array_equal(schedule.next_available(clients[known], start[known]), start[known]):
            yield f"a client is not available at the instant that `next_available` returns for {instant}"
        if not np.array_equal(start, again.next_available(clients, instant)):
            yield "two schedules of equal arguments differ"


def check_selection(selection: Selection) -> Iterator[str]:
    """Yield one line for each rule that a selection of clients breaks."""
    everyone = np.arange(20, dtype=np.int64)
    selection.check(len(everyone))
    history = History(np.where(everyone < 10, everyone + 1.0, 0.0), np.where(everyone < 10, 1, 0))
    for number, available in enumerate((everyone, everyone[3:15], everyone[:8])):
        pool = Pool(available, 4, 1.0 + everyone, (1, 0, number), history)
        found, again = selection.select(pool), selection.select(pool)
        if not np.array_equal(found, again):
            yield "two selections of equal arguments differ"
        if not 0 < len(found) <= pool.size or not np.isin(found, available).all():
            yield f"{len(found)} clients are selected, or others than the available ones; allowed: at most {pool.size}"
        if not np.array_equal(found, np.unique(found)):
            yield "the selected clients do not ascend"
