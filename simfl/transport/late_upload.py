"""Ledger rows of uploads that arrive after their round has ended, or stop on the way: they cost bytes for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simfl.transport.ledger import Row
from simfl.virtual_time.rounds import RoundSchedule
from simfl.virtual_time.times import ClientTimes, Message

LATE = "late:"  # before the name of the part


def late_message(message: Message) -> tuple[Row, ...]:
    """Return the rows of an upload as those of a late one."""
    return tuple({**row, "part": f"{LATE}{row['part']}"} for row in message)


def late_rows(times: ClientTimes, schedule: RoundSchedule, round_number: int) -> Iterator[Row]:
    """Yield the ledger rows of a round's uploads in vain; `round_number` counts from 0."""
    yield from refused_rows(times, schedule.clients[schedule.wasted].tolist(), round_number)


def refused_rows(times: ClientTimes, clients: Iterable[int], round_number: int) -> Iterator[Row]:
    """Yield the ledger rows of the uploads of these clients, which are not applied."""
    for client in clients:
        for row in late_message(times.late_upload(client)):
            yield {**row, "round": round_number + 1, "client": client}
