"""Which pool does a run's work, from before its first cohort to after its last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simfl.errors import ConfigError, nearest
from simfl.run_context import RunContext
from simfl.runtime import watchdog
from simfl.runtime.inline import InlinePool, WorkerPool
from simfl.runtime.ray.crew import Crew
from simfl.runtime.ray.pool import RayPool
from simfl.runtime.worker import WorkerConfig


@contextmanager
def open_pool(
    backend: str,
    setup: WorkerConfig,
    setting: RunContext,
    crew: Crew | None,
    on_message: Callable[[str], None],
) -> Iterator[WorkerPool]:
    """The pool of this backend, on Ray with a crew; its workers end with the block."""
    pool: WorkerPool
    if backend == "inline":
        if setup.experiment.evaluate.overlap:
            on_message(
                "evaluate.overlap: without workers beside this process, rounds are scored before the next begins"
            )
        pool = InlinePool(setup, setting)
        try:
            yield pool
        finally:
            pool.close()
            watchdog.tidy(setup.stacks)
    elif crew is not None:
        pool = RayPool(crew, setup, on_message)
        try:
            yield pool
        finally:
            pool.close()
            watchdog.tidy(setup.stacks)
    else:
        raise ConfigError(f"--backend: unknown {backend!r}; {nearest(backend, ['inline', 'ray'])}")
