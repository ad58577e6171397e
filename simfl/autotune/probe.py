"""Execution modes, batch sizes and programs, tried for seconds on the real model before the first round of a phase.

The longest client updates of that round, cut to a few local steps, are trained in one mode after the other. Each mode
is checked against `sequential`: a mode whose clients end elsewhere, that fails, or that does not fit into memory is
excluded with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from simfl.autotune.trial import (
    COMPARED,
    PASSES,
    ReadOnlyStore,
    Trial,
    TrialBench,
    free_memory,
    gap,
    isolated,
    longest_unit,
)
from simfl.client_state import ClientStore
from simfl.protocol import Parts
from simfl.timing import Clock
from simfl.training.executor import Executor
from simfl.training.plan import ClientPlan, ExecutionMode
from simfl.training.retry import brief, is_out_of_memory
from simfl.weights import Weights

# local steps of a client, at most: the error of TF32 grows with each (a CNN at rate 0.1: 0.4 % in 2, 2 % in 3)
MAX_STEPS = 4
MAX_CLIENTS = 1024  # clients per batch
MAX_SHARE = 0.1  # share of the phase's time by the rules' mode that trials of other modes may take
MIN_GAIN = 0.97  # share of the previous time that a batch size may take for the next size to be tried


@dataclass(frozen=True)
class ProbeRequest:
    """A request to try execution modes.

    Attributes:
        clients: Clients of the next round, in canonical order.
        round: Its number in the phase, from 0.
        programs: Programs of `vectorized`, the most promising first.
        clients_per_batch: The first batch size to try.
        fixed: Whether no other batch size is tried.
        workers: Workers that share a round.
        rounds: Remaining rounds of the phase.
        tolerance: The largest accepted `Trial.gap`.
        seconds: Time for trials, without what the first passes load, compile and capture.
    """

    clients: tuple[ClientPlan, ...]
    round: int
    programs: tuple[str, ...]
    clients_per_batch: int
    fixed: bool
    workers: int
    rounds: int
    tolerance: float
    seconds: float = 10.0


@dataclass
class ProbeResult:
    """The trials of a worker.

    Attributes:
        trials: One for each mode.
        steps: Local steps that each client was cut to.
        seconds: Total time.
        loading: Time of the first passes, in which the run would have loaded and compiled too.
        kind: Processor of the worker.
        others: Share of the second before in which the GPU worked for other processes; None: not known.
        clock: Time spent.
    """

    trials: list[Trial]
    steps: int
    seconds: float
    loading: float = 0.0
    kind: str = ""
    others: float | None = None
    clock: Clock = field(default_factory=Clock)


def probe(executor: Executor, store: ClientStore, request: ProbeRequest, received: Parts) -> ProbeResult:
    """Try the requested modes; a mode that fails is a result, not an error."""
    began, quiet = time.perf_counter(), Executor(executor.context)
    bench = TrialBench(quiet, ReadOnlyStore(store), received, request.clients, request.round, request.workers)
    with isolated(executor.context.device):
        search = _Search(bench, request)
        search.run()
    return ProbeResult(search.trials, search.steps, time.perf_counter() - began, search.loading)


class _Search:
    """A search for the fastest mode."""

    def __init__(self, bench: TrialBench, request: ProbeRequest) -> None:
        self.bench, self.request = bench, request
        self.trials: list[Trial] = []
        self.until = time.perf_counter() + request.seconds
        self.loading = 0.0  # seconds that do not count
        self.steps, self.step_seconds = 1, 0.0  # local steps of a client, and seconds of one in `sequential`
        self.start: list[Weights] = []  # initial weights of the compared clients
        self.reference: list[Weights] = []  # their final weights by `sequential`

    def run(self) -> None:
        """Try `sequential`, then `vectorized`: its first program in several batch sizes, the others in the fastest."""
        self.trials.append(self._try_sequential())
        if self.trials[0].why:
            return
        program, *others = self.request.programs
        best = self._largest_that_fits(ExecutionMode("vectorized", self.request.clients_per_batch, program))
        if best.round is not None:
            self.until = min(self.until, time.perf_counter() + MAX_SHARE * self.request.rounds * best.round)
        for factor in () if self.request.fixed or best.why else (2.0, 0.5):
            best = self._climb(best, factor)
        for other in () if best.out_of_memory else others:
            self.trials.append(self._try(replace(best.execution_mode, program=other)))

    def _try_sequential(self) -> Trial:
        """Try the reference on the compared clients; its speed decides how many steps each client has."""
        mode, bench = ExecutionMode("sequential", 1, self.request.programs[0]), self.bench
        try:
            clients = bench.longest_clients(COMPARED, 1)
            with self._uncounted():
                bench.seconds(mode, clients)
            self.step_seconds = bench.seconds(mode, clients) / max(1, bench.num_steps(clients))
            self.steps = self._affordable_steps()
            clients = bench.longest_clients(COMPARED, self.steps)
            self.start = bench.final_weights(mode, [replace(client, steps_per_unit=0) for client in clients])
            self.reference = bench.final_weights(mode, clients)
            return bench.measure(mode, clients, self.until)
        except Exception as error:
            return Trial(mode, why=brief(error))

    def _affordable_steps(self) -> int:
        """Return the steps with which the first batch takes half of the time if it is no faster than `sequential`."""
        request, context = self.request, self.bench.context
        most = max(longest_unit(client, context.phase.local) for client in request.clients)
        units = max(len(client.units) for client in request.clients) if context.mechanism else 1
        units *= min(request.clients_per_batch, len(request.clients))
        affordable = int(request.seconds / 2 / max(1e-9, self.step_seconds * units * (PASSES + 2)))
        return max(2, min(MAX_STEPS, most, affordable))

    def _largest_that_fits(self, mode: ExecutionMode) -> Trial:
        """Try a mode, and halve its batch until it fits into memory. The run would have to load it too."""
        trial = self._try(mode, first=True)
        self.trials.append(trial)
        if trial.out_of_memory and mode.clients_per_batch > 1 and not self.request.fixed:
            return self._largest_that_fits(replace(mode, clients_per_batch=mode.clients_per_batch // 2))
        return trial

    def _climb(self, best: Trial, factor: float) -> Trial:
        """Multiply the batch size by `factor` while that is faster; return the fastest trial."""
        most = min(MAX_CLIENTS, 1 << (len(self.request.clients) - 1).bit_length())
        while 1 <= (clients_per_batch := int(best.execution_mode.clients_per_batch * factor)) <= most:
            mode = replace(best.execution_mode, clients_per_batch=clients_per_batch)
            if any(trial.execution_mode == mode for trial in self.trials):
                return best
            trial = self._try(mode)
            self.trials.append(trial)
            if trial.round is None or best.round is None or trial.round > MIN_GAIN * best.round:
                return best
            best = trial
        return best

    def _try(self, mode: ExecutionMode, first: bool = False) -> Trial:
        clients = self.bench.longest_clients(mode.clients_per_batch, self.steps)
        if not first and time.perf_counter() + self._estimated_seconds(clients) > self.until:
            return Trial(mode, why="not tried: it may exceed the time left for trials, or cost more than it gains")
        bench = self.bench.with_program(mode.program)
        compiled = bench.executor.compiled
        try:
            with self._uncounted(first):
                bench.final_weights(mode, clients)
            final = bench.final_weights(mode, clients)  # captured by now, if that is possible
            n = len(final)
            largest = float(np.max([*map(gap, final, self.reference[-n:], self.start[-n:])]))  # NaN if any is
            if not largest <= self.request.tolerance:
                text = f"its clients end {largest:.2g} of their path away from those of sequential, more than"
                return Trial(mode, gap=largest, why=f"{text} {self.request.tolerance:g}")
            why = "; ".join(compiled.new_messages()) if compiled is not None else ""
            return replace(bench.measure(mode, clients, self.until), gap=largest, why=why)
        except Exception as error:
            return Trial(mode, why=brief(error), out_of_memory=is_out_of_memory(error))
        finally:
            if compiled is not None:
                compiled.clear()
            free_memory(bench.context.device)

    def _estimated_seconds(self, clients: list[ClientPlan]) -> float:
        """Return the seconds of a trial at the slowest pace of `vectorized` so far, or that of `sequential`."""
        known = [trial.step for trial in self.trials if trial.step and trial.execution_mode.mode == "vectorized"]
        return max(known or [self.step_seconds]) * self.bench.num_steps(clients) * (PASSES + 2)

    @contextmanager
    def _uncounted(self, applies: bool = True) -> Iterator[None]:
        """Do not count the time of the block, if that applies."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began if applies else 0.0
            self.loading += spent
            self.until += spent
