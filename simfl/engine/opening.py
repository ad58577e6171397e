"""Which pool does a run's work, from before its first cohort to after its last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simfl.engine import watchdog
from simfl.engine.crew import Crew
from simfl.engine.inline import Inline, Pool
from simfl.engine.pool import RayPool
from simfl.engine.worker import Setup
from simfl.errors import ConfigError, nearest
from simfl.setting import Setting


@contextmanager
def open_pool(
    backend: str,
    setup: Setup,
    setting: Setting,
    crew: Crew | None,
    on_message: Callable[[str], None],
) -> Iterator[Pool]:
    """The pool of this backend, on Ray with a crew; its workers end with the block."""
    pool: Pool
    if backend == "inline":
        if setup.experiment.evaluate.overlap:
            on_message(
                "evaluate.overlap: without workers beside this process, rounds are scored before the next begins"
            )
        pool = Inline(setup, setting)
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
