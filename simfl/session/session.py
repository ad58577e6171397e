"""Resources that a run opens before its first round and closes after its last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from simfl import files
from simfl.client_state import FileClientStore
from simfl.errors import ConfigError, RunError, nearest
from simfl.experiment import Experiment
from simfl.privacy.account import Account
from simfl.privacy.deployment import ESTIMATED
from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.runs.folder import RUN, check_run_format
from simfl.runs.mirror import mirrored
from simfl.runs.record import Record
from simfl.runs.snapshot import Snapshot
from simfl.runs.storage import is_url
from simfl.runtime import watchdog
from simfl.runtime.inline import InlinePool, WorkerPool
from simfl.runtime.ray.metrics import metrics_push
from simfl.runtime.ray.pool import RayPool
from simfl.runtime.ray.worker_group import WorkerGroup, open_worker_group
from simfl.runtime.worker import WorkerConfig
from simfl.session.callbacks import Callbacks, NullDisplay
from simfl.session.noise_key import FOR_TESTS, open_randomness
from simfl.session.options import RunOptions
from simfl.session.prepare import PreparedRun, account_of, prepare_run
from simfl.session.signals import Signals
from simfl.timing import Stopwatch, Trace, clocked
from simfl.tracking import trackers
from simfl.tracking.prometheus import MetricSource


@dataclass(frozen=True)
class RunSession:
    """The open resources of a run."""

    prepared: PreparedRun
    record: Record
    client_store: FileClientStore
    pool: WorkerPool
    signals: Signals
    callbacks: Callbacks
    stopwatch: Stopwatch
    account: Account
    startup_seconds: float


def open_session(stack: ExitStack, experiment: Experiment, options: RunOptions) -> tuple[RunSession, Snapshot]:
    """Open a run; its resources close with `stack`. Return the session and the state that the first round starts from.

    Ray starts in the background while the data set is read and the model is built.

    Raises:
        ConfigError, DataError, RunError: A setting, the data or the run folder is wrong.
    """
    if options.resume and not is_url(options.out) and (Path(options.out) / RUN).exists():
        check_run_format(Path(options.out))  # before anything of the folder is read
    began, signals = time.monotonic(), Signals()
    workers = stack.enter_context(open_worker_group(options.backend, options.workers, options.address))
    prepared = prepare_run(experiment, options.backend, workers, options.shared)
    record = _open_record(stack, prepared, options)
    stack.enter_context(files.locked(record.folder))
    stack.callback(record.close)  # before the folder is unlocked
    messages = _environment_messages(record, experiment)
    restored, repairs = record.restore()
    account = _open_account(prepared, record, options, 0 if restored is None else restored.step)
    callbacks = Callbacks(options.display or NullDisplay(), record)
    state = (restored or Snapshot()).to(prepared.run_context.device)
    if experiment.privacy is not None and experiment.privacy.adds_noise and experiment.privacy.noise_seed is not None:
        callbacks.message(FOR_TESTS)
    if experiment.privacy is not None and experiment.privacy.deployment is not None:
        callbacks.message(ESTIMATED.format(**asdict(experiment.privacy.deployment)))
    if options.resume and not record.manifest.resumes:
        callbacks.message(f"there is no run to resume in {record.location}: it starts")
    for text in (*options.notes, *messages, *repairs):
        callbacks.message(text)
    callbacks.note(prepared.notes)
    stack.enter_context(signals.caught())
    config = prepared.worker_config(record.folder, account, options.profile)
    pool = stack.enter_context(open_pool(options.backend, config, prepared.run_context, workers, callbacks.message))
    tables.warm_up()  # while workers start
    if workers is not None:
        stack.enter_context(workers.monitored(signals.send))
    stack.enter_context(signals.caught())  # again: a Ray that was started here has replaced the handler of SIGTERM
    callbacks.trackers = stack.enter_context(
        trackers.opened(
            prepared.run_context, record.folder, state.step, MetricSource(pool.load, metrics_push()), callbacks.message
        )
    )
    trace = stack.enter_context(closing(Trace(record.folder / "trace.json"))) if options.profile else None
    stopwatch, store = Stopwatch(pool.num_workers, trace), FileClientStore(config.client_states)
    stack.enter_context(clocked(stopwatch.own))
    session = RunSession(
        prepared, record, store, pool, signals, callbacks, stopwatch, account, time.monotonic() - began
    )
    account.announce()
    _report_start(session, None if restored is None else state.step)
    return session, state


def _open_account(prepared: PreparedRun, record: Record, options: RunOptions, step: int) -> Account:
    """Return the privacy account of the run, with the source of its noise."""
    account = account_of(prepared.experiment, prepared.partition, prepared.run_context.num_values)
    on_cluster = options.address is not None
    randomness = open_randomness(prepared.experiment, record.manifest, record.folder, step, on_cluster)
    store = account.store if record.mirror is None else record.upload
    return replace(account, folder=record.folder, randomness=randomness, store=store)


def _environment_messages(record: Record, experiment: Experiment) -> list[str]:
    """Return a warning if a resumed run continues with other libraries, another processor or another commit of simfl.

    Raises:
        RunError: The experiment is deterministic, and results may differ.
    """
    manifest = record.manifest
    if not manifest.resumes:
        return []
    change = manifest.environment_change()
    if change and experiment.deterministic:
        raise RunError(
            f"{record.folder}: deterministic: true, but {change}; resume where the run started,"
            " or continue from its state in a new run with simfl fork"
        )
    warning = f"{change}: results may differ in their last bits from those of an uninterrupted run"
    code = manifest.environment.code_difference(manifest.resumes[-1].environment)
    return [warning] * bool(change) + [code] * bool(code)


@contextmanager
def open_pool(
    backend: str,
    config: WorkerConfig,
    context: RunContext,
    workers: WorkerGroup | None,
    on_message: Callable[[str], None],
) -> Iterator[WorkerPool]:
    """Open the worker pool of a backend for the block; `workers` are the Ray workers, None with `inline`."""
    pool: WorkerPool
    if backend == "inline":
        if config.experiment.evaluate.overlap:
            on_message(
                "evaluate.overlap has no effect with backend inline: each round is scored before the next starts"
            )
        pool = InlinePool(config, context)
    elif workers is not None:
        pool = RayPool(workers, config, on_message)
    else:
        raise ConfigError(f"--backend: unknown {backend!r}; {nearest(backend, ['inline', 'ray'])}")
    try:
        yield pool
    finally:
        pool.close()
        watchdog.remove_empty_dumps(config.stacks)


def _open_record(stack: ExitStack, prepared: PreparedRun, options: RunOptions) -> Record:
    """Open the run folder, or the local folder that is copied to the URL."""
    if not is_url(options.out):
        return prepared.record(Path(options.out), options.resume, None)
    display = options.display or NullDisplay()
    mirror = stack.enter_context(mirrored(str(options.out), files.cache_folder(), on_wait=display.message))
    return prepared.record(mirror.folder, options.resume, mirror)


def _report_start(session: RunSession, resumed_at: int | None) -> None:
    """Report what is run; `resumed_at` is the number of finished rounds of a resumed run, None for a new one."""
    experiment = session.prepared.experiment
    plan = {
        "name": experiment.name,
        "folder": session.record.location,
        "rounds": sum(phase.rounds for phase in experiment.phases),
        "clients": len(session.prepared.partition),
        "workers": session.pool.num_workers,
        "resumed_at": resumed_at,
        "metric": experiment.phases[0].objective.metric,
    }
    session.callbacks.started(plan, session.startup_seconds)
