"""What a failed visit does: it ends the run, is left out, or is tried again. Want of memory rises."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from simfl.errors import ClientError, ConfigError, OutOfMemory
from simfl.seeds import seed_for
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, CohortPlan

Outcome = TypeVar("Outcome")
PAUSES = {"stop": (), "skip": (), "retry": (0.1, 1.0, 10.0)}  # seconds before each further try; a reader may need them
STARVED = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")  # as torch says it without a type


def attempt(
    stage: PhaseContext,
    plan: CohortPlan,
    visits: Sequence[ClientPlan],
    work: Callable[[Sequence[ClientPlan]], list[Outcome]],
    on_error: str,
    said: list[str],
) -> list[Outcome | None]:
    """The work of these visits, one outcome each, None for one that is skipped; `said` is told what went wrong.

    A visit is a pure function, so trying again changes no bit. Visits that fail together are tried one by one, to find
    the one at fault. ClientError if the run is to stop; OutOfMemory if memory was wanting.
    """
    failure: Exception | None = None
    for pause in (0.0, *PAUSES[on_error]):
        if failure is not None:
            said.append(f"{_names(visits)} failed ({brief(failure)}); tried again after {pause:g} s")
            time.sleep(pause)
        try:
            return list(work(visits))
        except ConfigError:
            raise
        except Exception as error:
            if starved(error):
                raise OutOfMemory(brief(error)) from error
            failure = error
    assert failure is not None
    if len(visits) > 1:
        return [outcome for v in visits for outcome in attempt(stage, plan, (v,), work, on_error, said)]
    where = _where(stage, plan, visits[0].client)
    if on_error == "skip":
        said.append(f"{where} failed and is left out: {brief(failure)}")
        return [None]
    inner = isinstance(failure, ClientError)
    text = str(failure) if inner else "".join(traceback.format_exception(failure))
    raise ClientError(f"{where} failed:\n{text}") from failure


def starved(error: BaseException) -> bool:
    """Whether it was memory that was wanting, on a GPU or the host."""
    if isinstance(error, (MemoryError, OutOfMemory, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in STARVED)


def brief(error: BaseException) -> str:
    """The error's kind and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _where(stage: PhaseContext, plan: CohortPlan, client: int) -> str:
    seed = seed_for(stage.seed, "visit", plan.phase, plan.round, client, 0)
    return f"client {client}, phase {plan.phase}, round {plan.round + 1}, seed {seed}"


def _names(visits: Sequence[ClientPlan]) -> str:
    return f"client{'s' if len(visits) > 1 else ''} {', '.join(str(visit.client) for visit in visits)}"
