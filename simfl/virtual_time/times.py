"""Durations of the updates of all clients in a phase, from their profiles and their work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simfl.virtual_time.instants import FOREVER, nanoseconds, seconds
from simfl.virtual_time.profiles import ClientProfiles, Durations, Work, durations, failures

MOST_AHEAD = 1 << 16  # updates whose times are kept before they are asked for
Message = tuple[Mapping[str, int | str], ...]  # one ledger row per part


@dataclass(frozen=True)
class ClientTimes:
    """Times of client updates in a phase.

    Attributes:
        profiles: Profiles of all clients.
        phase: Number of the phase.
        flops: Floating-point operations of training on one example.
        download: Bytes that each client receives, int64 [K].
        upload: Bytes that each client sends, int64 [K]; an upper bound where a codec's bytes depend on values.
        steps: Local steps of one update of each client, int64 [K].
        examples: Examples of these steps, float64 [K].
        uploads: Distinct uploads, as ledger rows without client and round.
        upload_of: Position of each client's upload among them, int64 [K].
    """

    profiles: ClientProfiles
    phase: int
    flops: float
    download: np.ndarray
    upload: np.ndarray
    steps: np.ndarray
    examples: np.ndarray
    uploads: Sequence[Message] = ()
    upload_of: np.ndarray | None = None

    def durations(
        self,
        clients: np.ndarray,
        index: np.ndarray | int,
        steps: np.ndarray | None = None,
        download: np.ndarray | None = None,
    ) -> Durations:
        """Return the durations of updates.

        Args:
            clients: Clients, int64 [n].
            index: Round, or number of each client's update, which names jitter.
            steps: Local steps of each, int64 [n]; None: all.
            download: Bytes received by each, [n]; None: those of `download`.
        """
        examples = self.examples[clients]
        if steps is not None:
            examples = examples * (steps / np.maximum(self.steps[clients], 1))
        received = self.download[clients] if download is None else download
        work = Work(received, self.upload[clients], examples, self.flops)
        return durations(self.profiles, clients, work, self.phase, index)

    @cached_property
    def nominal(self) -> Durations:
        """Durations of an update of every client without jitter, int64 [K]."""
        everyone = np.arange(len(self.profiles), dtype=np.int64)
        work = Work(self.download, self.upload, self.examples, self.flops)
        return durations(replace(self.profiles, jitter=0.0), everyone, work, self.phase, 0)

    @cached_property
    def seconds(self) -> np.ndarray:
        """Predicted seconds of an update of every client, float64 [K]."""
        return seconds(self.nominal.total)

    def late_upload(self, client: int) -> Message:
        """Return the ledger rows of a client's upload."""
        if not self.uploads:
            return ()
        return self.uploads[0 if self.upload_of is None else int(self.upload_of[client])]

    # Times of asynchronous updates; the number of a client's update, from 0, names its draws

    @cached_property
    def fixed(self) -> np.ndarray | None:
        """Duration of any update of each client, int64 [K]; None if updates differ, fail, or clients come and go."""
        profiles = self.profiles
        if profiles.jitter or profiles.failure_rate or not profiles.always:
            return None
        return self.nominal.total

    @property
    def always(self) -> bool:
        """True if every client is available at any time."""
        return self.profiles.always

    def finish(self, clients: np.ndarray, start: int, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return when updates that start at `start` end, int64 [n], and whether they arrive, bool [n].

        `index` is the number of each client's update, int64 [n].
        """
        total, failed = self._spans(clients, index)
        until = self.profiles.availability.available_until(clients, start)
        lost_at = np.minimum(np.where(failed < FOREVER, start + failed, FOREVER), until)
        arrival = start + total
        return np.minimum(arrival, lost_at), arrival <= lost_at

    def finish_one(
        self, client: int, start: int, index: int, likely: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
    ) -> tuple[int, bool]:
        """Return when one update ends and whether it arrives.

        `likely` returns clients and numbers of updates that may be asked for next, both int64 [n]: if this one has not
        been computed, all of them are computed at once, since arrays of some hundreds take the time of a single number.
        """
        span = self._ahead.pop((client, index), None)
        if span is None:
            span = self._compute_ahead(client, index, likely)
        arrival, lost_at = start + span[0], FOREVER if span[1] == FOREVER else start + span[1]
        if not self.profiles.always:
            lost_at = min(lost_at, self.profiles.availability.available_until_one(client, start))
        return min(arrival, lost_at), arrival <= lost_at

    def _compute_ahead(
        self, client: int, index: int, likely: Callable[[], tuple[np.ndarray, np.ndarray]] | None
    ) -> tuple[int, int]:
        """Return the span of an update, and keep those of likely ones."""
        clients, numbers = np.array([client]), np.array([index])
        if likely is not None:
            others = likely()
            clients, numbers = np.concatenate([clients, others[0]]), np.concatenate([numbers, others[1]])
        if len(self._ahead) > MOST_AHEAD:
            self._ahead.clear()
        total, failed = self._spans(clients, numbers)
        names = zip(clients.tolist(), numbers.tolist(), strict=True)
        self._ahead.update(zip(names, zip(total.tolist(), failed.tolist(), strict=True), strict=True))
        return self._ahead.pop((client, index))

    @cached_property
    def _ahead(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Spans of updates that have not been asked for, by client and number of the update."""
        return {}

    def _spans(self, clients: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the duration of each update and the time after which it fails, int64 [n]; `FOREVER`: it does not."""
        total = self.durations(clients, index).total
        fraction = failures(self.profiles, clients, self.phase, index)
        fails = np.isfinite(fraction)
        failed = np.floor(np.where(fails, fraction, 0.0) * total).astype(np.int64)
        return total, np.where(fails, failed, FOREVER)

    def is_available(self, client: int, instant: int) -> bool:
        """Return whether a client is available."""
        return self.profiles.always or self.profiles.availability.available_until_one(client, instant) > instant

    def next_available(self, clients: np.ndarray, instant: int) -> np.ndarray:
        """Return the first instant from `instant` on at which each client is available, int64 [n]."""
        return self.profiles.availability.next_available(clients, instant)


def deadline_is_met(times: ClientTimes, deadline: float, partial_work: bool) -> bool:
    """Return whether any client can upload by a deadline in seconds, with one local step if partial work is allowed."""
    everyone = np.arange(len(times.profiles), dtype=np.int64)
    steps = np.minimum(times.steps, 1) if partial_work else times.steps
    return bool((times.durations(everyone, 0, steps).total <= nanoseconds(deadline)).any())
