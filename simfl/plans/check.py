"""A run held to its plan: every row of its ledger against what the plan says crosses the border.

Left out of the comparison: what a client that failed and was skipped did not send, rounds that were not run or that are
those of the run it was forked from, and bytes that depend on values, of which a plan knows only the most they can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from simfl.data.base import Dataset
from simfl.data.io.outline import outline
from simfl.errors import ConfigError
from simfl.experiment import Experiment
from simfl.models.meta import without_compiler
from simfl.plans.messages import Exchange, Messages
from simfl.plans.plan import messages_of, sketched
from simfl.runs import tables

MATCHES = "matches"
SIZES = ("floats", "payload_bytes", "charged_bytes")
Row = Mapping[str, Any]
Key = tuple[int, str, str]  # client, direction, part


@dataclass(frozen=True)
class Tables:
    """Rows of a run in the order of its rounds: `ledger` and `clients`, and how many rounds it has finished."""

    ledger: Iterable[Row]
    clients: Iterable[Row]
    rounds: int
    forked: int = 0  # rounds that another run made


@dataclass
class Notes:
    """What was left out."""

    forked: int = 0  # rounds
    skipped: int = 0  # visits
    bounded: int = 0  # rows

    def text(self) -> str:
        """Behind the word that all is well."""
        said = [f"the first {self.forked} rounds are another run's"] if self.forked else []
        said += [f"{self.skipped} skipped visits sent nothing"] if self.skipped else []
        said += (
            [f"bytes of {self.bounded:,} messages vary with their values, within its bounds"] if self.bounded else []
        )
        return "".join(f"; {one}" for one in said)


def compare(experiment: Experiment, data: Dataset, clients: int, made: Tables) -> str:
    """`matches`, or one line that names the first difference, or why there is no plan."""
    notes = Notes()
    try:
        with without_compiler():
            for line in differences(experiment, data, clients, made, notes):
                return f"differs: {line}"
    except ConfigError as error:
        return f"not made: {error}"
    except Exception as error:  # a network or an algorithm of anybody's; it must not cost a finished run its summary
        return f"not made: {type(error).__name__}: {error}".splitlines()[0]
    return MATCHES + notes.text()


def differences(experiment: Experiment, data: Dataset, clients: int, made: Tables, notes: Notes) -> Iterator[str]:
    """A line for each row that is not as planned, the first one first."""
    setting = sketched(experiment, outline(data))
    ledger, visits = _Rounds(made.ledger), _Rounds(made.clients)
    phases = (messages_of(setting, index, clients) for index in range(len(experiment.phases)))
    planned = ((plan, exchange) for plan in phases for exchange in plan.rounds())
    notes.forked = made.forked
    for number, (plan, exchange) in enumerate(islice(planned, made.rounds)):
        place = (plan.stage.index, exchange.round)
        came, rows = {row["client"] for row in visits.of(place)}, ledger.of(place)
        for line in _of_round(plan, exchange, rows, came, notes) if number >= made.forked else ():
            yield f"phase {place[0]}, round {place[1]}, {line}"


def _of_round(plan: Messages, exchange: Exchange, rows: list[Row], came: set[int], notes: Notes) -> Iterator[str]:
    sides = (("download", exchange.download), ("upload", exchange.upload))
    wanted: dict[Key, Row] = {
        (client, mode, str(row["part"])): row
        for mode, side in sides
        for client, message in side.items()
        for row in message
    }
    missed = [client for client in exchange.upload if client not in came]
    notes.skipped += len(missed)
    for client in missed:
        wanted = {key: row for key, row in wanted.items() if key[:2] != (client, "upload")}
    sent: dict[Key, Row] = {(row["client"], row["direction"], row["part"]): row for row in rows}
    for key in sorted(wanted.keys() | sent.keys()):
        where = f"client {key[0]}, {key[1]} of {key[2]}"
        if key not in sent or key not in wanted:
            yield f"{where}: " + ("planned and not sent" if key in wanted else "sent and not planned")
            continue
        if notes.forked and key[1] == "download" and key[2] in plan.changing:
            continue  # who missed how much before the fork is not in the plan
        varies = plan.varies(key[1], key[2])
        notes.bounded += varies
        for name in SIZES:
            real, said = int(sent[key][name]), int(wanted[key][name])
            if real > said or (real != said and (name == "floats" or not varies)):
                yield f"{where}: {real:,} {name.replace('_', ' ')}, planned {said:,}"


class _Rounds:
    """Rows read once, a round at a time, so that a long ledger is never held."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.groups = groupby(rows, lambda row: (row["phase"], row["round"]))
        self.ahead: tuple[tuple[int, int], list[Row]] | None = None

    def of(self, place: tuple[int, int]) -> list[Row]:
        """The rows of a phase's round, which is not before the last one asked for; empty if nobody was sampled."""
        if self.ahead is None:
            self.ahead = next(((key, list(rows)) for key, rows in self.groups), None)
        if self.ahead is None or self.ahead[0] != place:
            return []
        (_, rows), self.ahead = self.ahead, None
        return rows


def tables_of(folder: Path, rounds: int, forked: int = 0) -> Tables:
    """What a run has committed, after so many rounds; read part by part. `forked`: rounds that another run made."""
    return Tables(_rows(folder, "ledger"), _rows(folder, "clients"), rounds, forked)


def _rows(folder: Path, name: str) -> Iterator[Row]:
    for part in tables.parts(folder / "tables", name):
        yield from tables.read(part).to_pylist()
