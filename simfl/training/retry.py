"""Failed client updates: they end the run, are skipped, or are retried. Out-of-memory errors propagate."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch

from simfl.errors import ClientError, ConfigError, OutOfMemory
from simfl.seeds import seed_for
from simfl.training.plan import ClientPlan, CohortPlan

Outcome = TypeVar("Outcome")
PAUSES = {"stop": (), "skip": (), "retry": (0.1, 1.0, 10.0)}  # seconds before each retry, which a reader may need
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")  # in torch's untyped errors


class SkippedClient(NamedTuple):
    """The outcome of a client that was skipped."""

    client: int


@dataclass(frozen=True)
class FailureHandler:
    """The policy for failed client updates of a cohort.

    Attributes:
        seed: Seed of the experiment, for messages.
        plan: The cohort.
        on_error: `stop`, `skip` or `retry`.
        messages: Receives a message for each retry and each skipped client.
    """

    seed: int
    plan: CohortPlan
    on_error: str
    messages: list[str] = field(default_factory=list)

    def handle(
        self,
        failure: Exception,
        clients: Sequence[ClientPlan],
        task: Callable[[Sequence[ClientPlan]], Sequence[Outcome]],
    ) -> list[Outcome | SkippedClient]:
        """Retry a task of these clients, which has failed; return its outcomes.

        Client updates are pure functions, so a retry gives bit-identical results. Clients that fail together are tried
        one by one, to find the one at fault.

        Raises:
            ClientError: The task fails and the run is to stop.
            ConfigError: The algorithm breaks its contract.
            OutOfMemory: The task does not fit into memory.
        """
        for pause in PAUSES[self.on_error]:
            _raise_if_fatal(failure)
            self.messages.append(f"{_names(clients)} failed ({brief(failure)}); retrying after {pause:g} s")
            time.sleep(pause)
            try:
                return list(task(clients))
            except Exception as error:
                failure = error
        _raise_if_fatal(failure)
        if len(clients) > 1:
            return [outcome for client in clients for outcome in self._single(client, task)]
        where = self._where(clients[0].client)
        if self.on_error == "skip":
            self.messages.append(f"{where} failed and was skipped: {brief(failure)}")
            return [SkippedClient(clients[0].client)]
        text = str(failure) if isinstance(failure, ClientError) else "".join(traceback.format_exception(failure))
        raise ClientError(f"{where} failed:\n{text}") from failure

    def _single(
        self, client: ClientPlan, task: Callable[[Sequence[ClientPlan]], Sequence[Outcome]]
    ) -> list[Outcome | SkippedClient]:
        try:
            return list(task((client,)))
        except Exception as error:
            return self.handle(error, (client,), task)

    def _where(self, client: int) -> str:
        plan = self.plan
        seed = seed_for(self.seed, "visit", plan.phase, plan.round, client, 0)
        return f"client {client}, phase {plan.phase}, round {plan.round + 1}, seed {seed}"


def _raise_if_fatal(failure: Exception) -> None:
    if isinstance(failure, ConfigError):
        raise failure
    if is_out_of_memory(failure):
        raise OutOfMemory(brief(failure)) from failure


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a GPU or the host."""
    if isinstance(error, (MemoryError, OutOfMemory, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


def brief(error: BaseException) -> str:
    """Return the error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _names(clients: Sequence[ClientPlan]) -> str:
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(str(client.client) for client in clients)}"
