"""One sitting of a run: all that is opened before its first round, and closed after its last."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl import cache, files
from simfl.engine.audience import Audience, Silent
from simfl.engine.crew import crew_of
from simfl.engine.inline import Pool
from simfl.engine.opening import open_pool
from simfl.engine.preflight import Settled, account_of
from simfl.engine.signals import Signals
from simfl.experiment import Experiment
from simfl.following import tracking
from simfl.memory import Store
from simfl.privacy.account import Account
from simfl.runs import tables
from simfl.runs.mirror import is_url, mirrored
from simfl.runs.record import Record
from simfl.runs.snapshot import Snapshot
from simfl.timing import Stopwatch, Trace, clocked


@dataclass(frozen=True)
class Asked:
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
class Sitting:
    """What a run is made of, where its work is done, what it leaves and whom it tells."""

    settled: Settled
    record: Record
    store: Store
    pool: Pool
    signals: Signals
    audience: Audience
    stopwatch: Stopwatch
    account: Account
    startup: float  # seconds that opening took


def opened(stack: ExitStack, experiment: Experiment, asked: Asked) -> tuple[Sitting, Snapshot]:
    """A sitting that ends with the stack, and the state that its first round goes out from.

    Errors here are the user's; Ray starts meanwhile.
    """
    began, signals = time.monotonic(), Signals()
    crew = stack.enter_context(crew_of(asked.backend, asked.workers, asked.address))
    settled = Settled.of(experiment, asked.backend, crew, asked.shared)
    record = _record(stack, settled, asked)
    account = account_of(experiment, settled.partition, record.folder)
    stack.enter_context(files.locked(record.folder))
    found, warning = record.restore()
    audience, snapshot = Audience(asked.display or Silent(), record), (found or Snapshot()).on(settled.setting.device)
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
    stopwatch, store = Stopwatch(pool.num_workers, trace), Store(setup.memory)
    stack.enter_context(clocked(stopwatch.own))
    startup = time.monotonic() - began
    sitting = Sitting(settled, record, store, pool, signals, audience, stopwatch, account, startup)
    account.announce()
    _announce(sitting, None if found is None else snapshot.step)
    return sitting, snapshot


def _record(stack: ExitStack, settled: Settled, asked: Asked) -> Record:
    """The run's folder, or the one whose copy is kept at the URL."""
    mirror = stack.enter_context(mirrored(str(asked.out), cache.folder())) if is_url(asked.out) else None
    return settled.record(Path(asked.out) if mirror is None else mirror.folder, asked.resume, mirror)


def _announce(sitting: Sitting, resumed_at: int | None) -> None:
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
