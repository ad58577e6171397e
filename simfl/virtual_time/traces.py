"""Availability and capacities from trace files: plain CSV, and the pickles of FedScale.

CSV files have a header. Availability: `client,start,end`, in seconds, a line per interval. Capacities:
`client,seconds_per_example,download,upload`, with bytes per second.

FedScale (Lai et al. 2022, arXiv 2105.11367): availability is a dictionary of clients, each with lists `active` and
`inactive` of seconds and the period `finish_time`; capacities are a dictionary of clients, each with `computation`
(milliseconds of inference per example, of which training takes three times as many) and `communication` (kbit/s in
both directions). Pickles are read without running their code.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from simfl.constraints import PositiveFloat
from simfl.data.io.restricted_pickle import UNPICKLE_ERRORS, loads
from simfl.errors import ConfigError, DataError
from simfl.virtual_time.availability import (
    Availability,
    AvailabilitySchedule,
    IntervalSchedule,
    IntervalTable,
    check_intervals,
)
from simfl.virtual_time.instants import draws

TRAINING = 3.0  # times the inference of FedScale's capacities: a backward pass costs two forward passes
FEW = 5  # missing clients that an error names
Intervals = Sequence[tuple[float, float]]


class TraceFile(NamedTuple):
    """Intervals of availability by client, in seconds, and the period of each."""

    intervals: dict[int, Intervals]
    periods: dict[int, float] | None  # None: no trace repeats


class Capacities(NamedTuple):
    """Capacities by client."""

    seconds_per_example: dict[int, float]  # of training
    download: dict[int, float]  # bytes per second
    upload: dict[int, float]  # bytes per second


@dataclass(frozen=True)
class Trace(Availability):
    """Intervals of each client from a file: CSV with `client,start,end`, or a pickle of FedScale."""

    example: ClassVar[Mapping[str, object]] = {"file": "trace.csv", "assign": "random"}

    file: str  # path; .csv, or a pickle of FedScale
    period: PositiveFloat | None = None  # seconds after which a CSV trace repeats; null: never; FedScale has its own
    assign: Literal["number", "random"] = "number"  # client k has the k-th trace, or one drawn by a hash of k
    sha256: str | None = None  # hash of the file, which is then checked; null: any

    def schedule(self, num_clients: int, seed: int) -> AvailabilitySchedule:
        """Return the intervals of K clients.

        Raises:
            DataError: The file cannot be read.
            ConfigError: It misses clients.
        """
        found = read_availability(self.file, self.period, self.sha256)
        names = sorted(found.intervals)
        table = IntervalTable.of(
            [found.intervals[name] for name in names],
            None if found.periods is None else [found.periods[name] for name in names],
        )
        traces = assigned(names, self.assign, num_clients, seed, self.file)
        return IntervalSchedule(table, traces, np.zeros(num_clients, np.int64))


def assigned(names: Sequence[int], assign: str, num_clients: int, seed: int, file: str) -> np.ndarray:
    """Return the position of each client's trace in `names`, int64 [K].

    Raises:
        ConfigError: Traces are assigned by number, and a client has none.
    """
    if assign == "random":
        drawn = draws((seed, "trace"), np.arange(num_clients, dtype=np.int64))
        return np.minimum((drawn * len(names)).astype(np.int64), len(names) - 1)
    if file.endswith(".csv"):
        missing = [client for client in range(num_clients) if client not in set(names)] if num_clients else []
        if missing:
            few = ", ".join(map(str, missing[:FEW])) + (", …" if len(missing) > FEW else "")
            raise ConfigError(
                f"file: {file} has no trace of {len(missing):,} of {num_clients:,} clients ({few}); add them, or set"
                " assign: random"
            )
        return np.searchsorted(np.array(names, np.int64), np.arange(num_clients, dtype=np.int64))
    if len(names) < num_clients:
        raise ConfigError(
            f"file: {file} has {len(names):,} traces, but there are {num_clients:,} clients; allowed: assign: random"
        )
    return np.arange(num_clients, dtype=np.int64)


def read_availability(file: str, period: float | None, sha256: str | None = None) -> TraceFile:
    """Return the intervals of a trace file.

    Raises:
        DataError: The file cannot be read, or has other content.
    """
    content = _content(file, sha256)
    return _csv_intervals(file, content, period) if file.endswith(".csv") else _fedscale_intervals(file, content)


def read_capacities(file: str, sha256: str | None = None) -> Capacities:
    """Return the capacities in a file.

    Raises:
        DataError: The file cannot be read, or has other content.
    """
    content = _content(file, sha256)
    return _csv_capacities(file, content) if file.endswith(".csv") else _fedscale_capacities(file, content)


@lru_cache(4)
def _content(file: str, sha256: str | None) -> bytes:
    try:
        content = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise DataError(f"file: {file}: {error.strerror or error}") from error
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise DataError(f"file: {file}: its SHA-256 is {found}, but {sha256} is given")
    return content


def _rows(file: str, content: bytes, columns: Sequence[str]) -> list[list[float]]:
    """Return the rows of a CSV file as numbers, in the order of `columns`."""
    try:
        reader = csv.DictReader(content.decode("utf-8-sig").splitlines())
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"file: {file}: no column {missing[0]!r}; needed: {', '.join(columns)}")
        rows = []
        for number, row in enumerate(reader, start=2):
            try:
                rows.append([float(row[name]) for name in columns])
            except (TypeError, ValueError):
                raise DataError(f"file: {file}, line {number}: {', '.join(columns)} are not all numbers") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"file: {file}: not a CSV file ({error})") from error
    if not rows:
        raise DataError(f"file: {file}: no rows")
    return rows


def _csv_intervals(file: str, content: bytes, period: float | None) -> TraceFile:
    intervals: dict[int, list[tuple[float, float]]] = {}
    for client, start, end in _rows(file, content, ("client", "start", "end")):
        intervals.setdefault(int(client), []).append((start, end))
    for client, own in intervals.items():
        own.sort()
        _check(own, period, file, client)
    return TraceFile(dict(intervals), None if period is None else dict.fromkeys(intervals, period))


def _check(intervals: Intervals, period: float | None, file: str, client: int) -> None:
    try:
        check_intervals(intervals, period, f"file: {file}, client {client}")
    except ConfigError as error:
        raise DataError(str(error)) from None


def _fedscale_intervals(file: str, content: bytes) -> TraceFile:
    """Return the intervals of FedScale's `client_behave_trace`; an end is inclusive there, to the second."""
    intervals: dict[int, Intervals] = {}
    periods: dict[int, float] = {}
    for client, one in _fedscale(file, content, ("active", "inactive", "finish_time")).items():
        active, inactive = one["active"], one["inactive"]
        if not isinstance(active, list) or not isinstance(inactive, list) or len(active) != len(inactive):
            raise DataError(f"file: {file}, client {client}: active and inactive are not two lists of equal length")
        own = [(_number(a, file, client), _number(b, file, client)) for a, b in zip(active, inactive, strict=True)]
        own = [(start, end) for start, end in own if end > start]
        periods[client] = _number(one["finish_time"], file, client)
        if own:
            _check(own, periods[client], file, client)
        intervals[client] = own
    return TraceFile(intervals, periods)


def _fedscale_capacities(file: str, content: bytes) -> Capacities:
    found = Capacities({}, {}, {})
    for client, one in _fedscale(file, content, ("computation", "communication")).items():
        milliseconds, kilobits = (_number(one[key], file, client) for key in ("computation", "communication"))
        if milliseconds <= 0 or kilobits <= 0:
            raise DataError(f"file: {file}, client {client}: {milliseconds:g} ms and {kilobits:g} kbit/s; allowed: > 0")
        found.seconds_per_example[client] = TRAINING * milliseconds / 1000.0
        found.download[client] = found.upload[client] = kilobits * 1000.0 / 8.0
    return found


def _csv_capacities(file: str, content: bytes) -> Capacities:
    found, columns = Capacities({}, {}, {}), ("client", "seconds_per_example", "download", "upload")
    for client, seconds, download, upload in _rows(file, content, columns):
        if min(seconds, download, upload) <= 0:
            raise DataError(f"file: {file}, client {int(client)}: {', '.join(columns[1:])} must be above 0")
        found.seconds_per_example[int(client)] = seconds
        found.download[int(client)], found.upload[int(client)] = download, upload
    return found


def _fedscale(file: str, content: bytes, keys: Sequence[str]) -> dict[int, Mapping[str, object]]:
    """Return a dictionary of clients from a pickle of FedScale."""
    try:
        found = loads(content)
    except UNPICKLE_ERRORS as error:
        raise DataError(
            f"file: {file}: not a plain pickle ({error}); allowed: .csv, or a pickle of FedScale"
        ) from error
    if not isinstance(found, dict) or not found:
        raise DataError(f"file: {file}: contains {type(found).__name__}, expected a dictionary of clients")
    for client, one in found.items():
        missing = [key for key in keys if not isinstance(one, dict) or key not in one]
        if not isinstance(client, (int, np.integer)) or missing:
            raise DataError(f"file: {file}, client {client!r}: no {missing[0] if missing else 'number'!r}")
    return {int(client): one for client, one in found.items()}


def _number(value: object, file: str, client: int) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise DataError(f"file: {file}, client {client}: {value!r} is not a finite number")
    return float(value)
