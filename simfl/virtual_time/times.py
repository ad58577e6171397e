"""Durations of the updates of all clients in a phase, from their profiles and their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simfl.virtual_time.instants import FOREVER, nanoseconds, seconds
from simfl.virtual_time.profiles import ClientProfiles, Durations, Work, durations, failures

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

    # Times of asynchronous updates; `version` names the draws of an update, since a client takes part once per version

    @cached_property
    def fixed(self) -> np.ndarray | None:
        """Duration of any update of each client, int64 [K]; None if updates differ, fail, or clients come and go."""
        profiles = self.profiles
        if profiles.jitter or profiles.failure_rate or not profiles.always:
            return None
        return self.nominal.total

    def finish(self, clients: np.ndarray, start: int, version: int) -> tuple[np.ndarray, np.ndarray]:
        """Return when updates that start at `start` end, int64 [n], and whether they arrive, bool [n]."""
        total = self.durations(clients, version).total
        fraction = failures(self.profiles, clients, self.phase, version)
        fails = np.isfinite(fraction)
        failed_at = np.where(fails, start + np.floor(np.where(fails, fraction, 0.0) * total).astype(np.int64), FOREVER)
        until = self.profiles.availability.available_until(clients, start)
        lost_at = np.minimum(failed_at, until)
        arrival = start + total
        return np.minimum(arrival, lost_at), arrival <= lost_at

    def next_available(self, clients: np.ndarray, instant: int) -> np.ndarray:
        """Return the first instant from `instant` on at which each client is available, int64 [n]."""
        return self.profiles.availability.next_available(clients, instant)


def deadline_is_met(times: ClientTimes, deadline: float, partial_work: bool) -> bool:
    """Return whether any client can upload by a deadline in seconds, with one local step if partial work is allowed."""
    everyone = np.arange(len(times.profiles), dtype=np.int64)
    steps = np.minimum(times.steps, 1) if partial_work else times.steps
    return bool((times.durations(everyone, 0, steps).total <= nanoseconds(deadline)).any())
