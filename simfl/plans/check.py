"""Comparison of a run with its plan: every row of the ledger against the planned messages.

Not compared: uploads of clients that failed and were skipped, exact sizes of the changes of the base that follow such
updates, rounds that were not run or belong to the run that this one was forked from, and exact bytes that depend on
values; for sizes, the plan has an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any

from simfl.data.placeholder import placeholder_dataset
from simfl.errors import ConfigError
from simfl.models.meta_device import without_compiler
from simfl.plans.messages import PhaseMessages, RoundMessages
from simfl.plans.plan import messages_of, meta_context
from simfl.protocol import BASE
from simfl.run_context import RunContext
from simfl.runs.parts import TableParts
from simfl.sampling import num_sampled

MATCHES, NOT_COMPARED = "matches", "not compared"
SIZES = ("floats", "payload_bytes", "charged_bytes")
Row = Mapping[str, Any]
Key = tuple[int, str, str]  # client, direction, part


@dataclass(frozen=True)
class RunTables:
    """Rows of the tables `ledger` and `clients` of a run, in the order of its rounds."""

    ledger: Iterable[Row]
    clients: Iterable[Row]
    rounds: int  # number of finished rounds
    forked: int = 0  # number of rounds that belong to the run it was forked from


@dataclass
class NotCompared:
    """Counts of what was not compared."""

    forked: int = 0  # rounds
    skipped: int = 0  # client updates
    bounded: int = 0  # rows

    def text(self) -> str:
        """Describe the counts, to be appended to `matches`."""
        parts = [f"the first {self.forked} rounds belong to another run"] if self.forked else []
        parts += [f"{self.skipped} skipped client updates sent nothing"] if self.skipped else []
        parts += [f"bytes of {self.bounded:,} messages depend on values and are within the bounds"] * bool(self.bounded)
        return "".join(f"; {part}" for part in parts)


def compare(run_context: RunContext, clients: int, recorded: RunTables) -> str:
    """Return `matches`, or one line with the first difference or the reason why there is no plan."""
    notes = NotCompared()
    try:
        with without_compiler():
            for line in differences(run_context, clients, recorded, notes):
                return f"differs: {line}"
    except ConfigError as error:
        return f"{NOT_COMPARED}: {error}"
    except Exception as error:  # of a user-defined model or algorithm; a finished run must still get its summary
        return f"{NOT_COMPARED}: {type(error).__name__}: {error}".splitlines()[0]
    return MATCHES + notes.text()


def differences(run_context: RunContext, clients: int, recorded: RunTables, notes: NotCompared) -> Iterator[str]:
    """Yield a line for each row that differs from the plan, in the order of the rounds."""
    experiment = run_context.experiment
    context = meta_context(experiment, placeholder_dataset(run_context.dataset))
    context.effects.update(run_context.effects)
    context.known_ranks.update(run_context.known_ranks)
    context.client_times.update(run_context.client_times)
    ledger, updates = _RoundReader(recorded.ledger), _RoundReader(recorded.clients)
    phases = [messages_of(context, index, clients) for index in range(len(experiment.phases))]
    is_secret = experiment.privacy is not None and experiment.privacy.has_secret_sampling
    planned = _planned(phases, ledger, is_secret)
    notes.forked = recorded.forked
    for number, (phase, in_round) in enumerate(islice(planned, recorded.rounds)):
        position = (phase.stage.index, in_round.round)
        count = num_sampled(phase.stage.phase, clients)
        if is_secret and count not in (None, len(in_round.clients)):
            yield f"phase {position[0]}, round {position[1]}, {len(in_round.clients)} clients, planned {count}"
        returned, rows = {row["client"] for row in updates.read(position)}, ledger.read(position)
        for line in _in_round(phase, in_round, rows, returned, notes) if number >= recorded.forked else ():
            yield f"phase {position[0]}, round {position[1]}, {line}"


def _planned(
    phases: Iterable[PhaseMessages], ledger: _RoundReader, is_secret: bool
) -> Iterator[tuple[PhaseMessages, RoundMessages]]:
    """Yield the planned messages of all rounds; clients that no plan can know are those of the ledger."""
    clock = 0
    for phase in phases:
        settings = phase.stage.phase.time
        unknown = is_secret or (settings is not None and settings.selection.uses_losses)
        recorded = partial(_recorded_clients, ledger, phase.stage.index) if unknown else None
        for in_round in phase.rounds(recorded, clock):
            clock = in_round.end
            yield phase, in_round


def _recorded_clients(ledger: _RoundReader, phase: int, number: int) -> list[int]:
    """Return the clients that received a round's download: a secret key has sampled them, which no plan knows."""
    return sorted({row["client"] for row in ledger.peek((phase, number + 1)) if row["direction"] == "download"})


def _in_round(
    phase: PhaseMessages, in_round: RoundMessages, rows: list[Row], returned: set[int], notes: NotCompared
) -> Iterator[str]:
    planned = _planned_rows(in_round)
    skipped = [client for client in in_round.upload if client not in returned and client not in in_round.dropped]
    notes.skipped += len(skipped)
    for client in skipped:
        planned = {key: row for key, row in planned.items() if key[:2] != (client, "upload")}
    sent: dict[Key, Row] = {(row["client"], row["direction"], row["part"]): row for row in rows}
    for key in sorted(planned.keys() | sent.keys()):
        where = f"client {key[0]}, {key[1]} of {key[2]}"
        if key not in sent or key not in planned:
            yield f"{where}: " + ("planned and not sent" if key in planned else "sent and not planned")
            continue
        if notes.forked and key[1] == "download" and key[2] in phase.changing:
            continue  # the plan does not know which rounds before the fork a client missed
        varies = phase.varies(key[1], key[2])
        notes.bounded += varies
        smaller = key[2] == BASE and bool(notes.skipped)  # the change of the base lacks skipped clients' factors
        for name in SIZES:
            actual, expected = int(sent[key][name]), int(planned[key][name])
            if actual > expected or (actual != expected and not smaller and (name == "floats" or not varies)):
                yield f"{where}: {actual:,} {name.replace('_', ' ')}, planned {expected:,}"


def _planned_rows(in_round: RoundMessages) -> dict[Key, Row]:
    sides = (("download", in_round.download), ("upload", in_round.upload))
    return {
        (client, direction, str(row["part"])): row
        for direction, messages in sides
        for client, message in messages.items()
        for row in message
    }


class _RoundReader:
    """Reader of rows, one round at a time, so that a long ledger is never in memory."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.groups = groupby(rows, lambda row: (row["phase"], row["round"]))
        self.next_round: tuple[tuple[int, int], list[Row]] | None = None

    def read(self, position: tuple[int, int]) -> list[Row]:
        """Return the rows of a phase and round, which must not precede the last ones; empty without clients."""
        if self.next_round is None:
            self.next_round = next(((key, list(rows)) for key, rows in self.groups), None)
        if self.next_round is None or self.next_round[0] != position:
            return []
        (_, rows), self.next_round = self.next_round, None
        return rows

    def peek(self, position: tuple[int, int]) -> list[Row]:
        """Return the rows of a phase and round, which can be read again."""
        rows = self.read(position)
        if rows:
            self.next_round = position, rows
        return rows


def tables_of(parts: TableParts, rounds: int, forked: int = 0) -> RunTables:
    """Return the tables of a run after `rounds` rounds, of which `forked` belong to another run; read part by part."""
    return RunTables(parts.rows("ledger"), parts.rows("clients"), rounds, forked)
