"""One sitting of a run: all that is open_session before its first round, and closed after its last."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl import cache, files
from simfl.client_state import FileClientStore
from simfl.experiment import Experiment
from simfl.privacy.account import Account
from simfl.runs import tables
from simfl.runs.mirror import is_url, mirrored
from simfl.runs.record import Record
from simfl.runs.snapshot import Snapshot
from simfl.runtime.inline import WorkerPool
from simfl.runtime.ray.crew import crew_of
from simfl.session.callbacks import Callbacks, NullDisplay
from simfl.session.opening import open_pool
from simfl.session.prepare import PreparedRun, account_of
from simfl.session.signals import Signals
from simfl.timing import Stopwatch, Trace, clocked
from simfl.tracking import trackers as tracking


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for beside its experiment."""

    out: Path | str  # a folder, or a URL, where a copy of the run's folder is kept
    backend: str  # ray or inline
    workers: int | str  # or auto
    address: str | None  # of a Ray that is up; none: one is started
    resume: bool
    display: Any  # none: nothing is shown
    profile: bool  # keep spans for a trace
    shared: dict[str, Any] | None  # what runs of this process have in common


@dataclass(frozen=True)
class RunSession:
    """What a run is made of, where its work is done, what it leaves and whom it tells."""

    settled: PreparedRun
    record: Record
    store: FileClientStore
    pool: WorkerPool
    signals: Signals
    audience: Callbacks
    stopwatch: Stopwatch
    account: Account
    startup: float  # seconds that opening took


def open_session(stack: ExitStack, experiment: Experiment, asked: RunOptions) -> tuple[RunSession, Snapshot]:
    """A sitting that ends with the stack, and the state that its first round goes out from.

    Errors here are the user's; Ray starts meanwhile.
    """
    began, signals = time.monotonic(), Signals()
    crew = stack.enter_context(crew_of(asked.backend, asked.workers, asked.address))
    settled = PreparedRun.of(experiment, asked.backend, crew, asked.shared)
    record = _record(stack, settled, asked)
    account = account_of(experiment, settled.partition, record.folder)
    stack.enter_context(files.locked(record.folder))
    found, warning = record.restore()
    audience, snapshot = (
        Callbacks(asked.display or NullDisplay(), record),
        (found or Snapshot()).on(settled.setting.device),
    )
    if warning:
        audience.message(warning)
    stack.enter_context(signals.caught())
    setup = settled.setup(record.folder, account, asked.profile)
    pool = stack.enter_context(open_pool(asked.backend, setup, settled.setting, crew, audience.message))
    tables.wake()  # while workers start
    stack.enter_context(signals.caught())  # once more: a Ray started here has taken SIGTERM for itself
    audience.trackers = stack.enter_context(
        tracking.opened(experiment, settled.setting, record.folder, snapshot.step, audience.message)
    )
    trace = stack.enter_context(closing(Trace(record.folder / "trace.json"))) if asked.profile else None
    stopwatch, store = Stopwatch(pool.num_workers, trace), FileClientStore(setup.memory)
    stack.enter_context(clocked(stopwatch.own))
    startup = time.monotonic() - began
    sitting = RunSession(settled, record, store, pool, signals, audience, stopwatch, account, startup)
    account.announce()
    _announce(sitting, None if found is None else snapshot.step)
    return sitting, snapshot


def _record(stack: ExitStack, settled: PreparedRun, asked: RunOptions) -> Record:
    """The run's folder, or the one whose copy is kept at the URL."""
    mirror = stack.enter_context(mirrored(str(asked.out), cache.folder())) if is_url(asked.out) else None
    return settled.record(Path(asked.out) if mirror is None else mirror.folder, asked.resume, mirror)


def _announce(sitting: RunSession, resumed_at: int | None) -> None:
    """Tell everybody what is run, and in which state it goes on; none: it begins."""
    experiment = sitting.settled.experiment
    plan = {
        "name": experiment.name,
        "folder": sitting.record.home,
        "rounds": sum(phase.rounds for phase in experiment.phases),
        "clients": len(sitting.settled.partition),
        "workers": sitting.pool.num_workers,
        "resumed_at": resumed_at,
        "metric": experiment.phases[0].objective.metric,
    }
    sitting.audience.started(plan, sitting.startup)
