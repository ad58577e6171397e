"""Ways, widths and programs tried for seconds on the real model, before the first round of a phase.

The longest visits of that round, cut to a few local steps, are trained in one execution_mode after the other. Each is held to
`sequential`: a execution_mode whose clients end elsewhere, that fails, or that does not fit is left out, and says why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from simfl.autotune.trial import COMPARED, PASSES, Trial, TrialBench, freed, gap, longest, untouched
from simfl.client_state import ClientStore
from simfl.protocol import Parts
from simfl.timing import Clock
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, ExecutionMode
from simfl.training.retry import brief, starved
from simfl.weights import Weights

STEPS = 4  # local steps of a visit, at most: what TF32 rounds grows with each (a CNN at rate 0.1: 0.4 % in 2, 2 % in 3)
WIDEST = 1024  # clients side by side
SHARE = 0.1  # of the time that the phase would take in the execution_mode of the rules: other execution_modes may take that much
BETTER = 0.97  # of the time before: by so much a next width has to be faster for the one after it to be tried


@dataclass(frozen=True)
class ProbeRequest:
    """What is to be tried, and on what."""

    visits: tuple[ClientPlan, ...]  # of the round that comes, in canonical order
    round: int  # its number in the phase
    programs: tuple[str, ...]  # of `vectorized`, the likeliest first
    clients_per_batch: int  # the first to be tried
    fixed: bool  # no other clients_per_batch is asked for
    workers: int  # that share a round
    rounds: int  # that the phase still has
    tolerance: float  # how far from `sequential` a client may end, over how far it moved
    seconds: float = 10.0  # that trying may take, without what the first passes load, compile and capture


@dataclass
class ProbeResult:
    """What a worker answers."""

    trials: list[Trial]
    steps: int  # that each visit was cut to
    seconds: float  # that it took in all
    loading: float = 0.0  # of these, that first passes took, in which the run, too, would have loaded and compiled
    kind: str = ""  # of the processor that it was found on
    others: float | None = None  # share of the second before in which it worked for others; None: not known
    clock: Clock = field(default_factory=Clock)


def probe(stage: PhaseContext, store: ClientStore, question: ProbeRequest, received: Parts) -> ProbeResult:
    """Try what is asked for; a execution_mode that fails is a finding, not an error."""
    began = time.perf_counter()
    with untouched(stage.device):
        bench = TrialBench.of(stage, store, received, question.visits, question.round, question.workers)
        trying = _Trying(bench, question)
        trying.all()
    return ProbeResult(trying.trials, trying.steps, time.perf_counter() - began, trying.loading)


class _Trying:
    """One probe under way."""

    def __init__(self, bench: TrialBench, question: ProbeRequest) -> None:
        self.bench, self.question = bench, question
        self.trials: list[Trial] = []
        self.until = time.perf_counter() + question.seconds
        self.loading = 0.0  # seconds that are not counted
        self.steps, self.slow = 1, 0.0  # steps of a visit, and seconds of one in `sequential`
        self.start: list[Weights] = []  # of the compared clients: where they begin
        self.end: list[Weights] = []  # and where `sequential` leads them

    def all(self) -> None:
        """`sequential`, then `vectorized`: its first program at the first clients_per_batch and at others, the others at the fastest."""
        self.trials.append(self._loop())
        if self.trials[0].why:
            return
        program, *others = self.question.programs
        best = self._fitting(ExecutionMode("vectorized", self.question.clients_per_batch, program))
        if best.round is not None:
            self.until = min(self.until, time.perf_counter() + SHARE * self.question.rounds * best.round)
        for factor in () if self.question.fixed or best.why else (2.0, 0.5):
            best = self._walk(best, factor)
        for other in () if best.starving else others:
            self.trials.append(self._trial(replace(best.execution_mode, program=other)))

    def _loop(self) -> Trial:
        """The reference, on the compared clients alone; its pace says how many steps a visit may have."""
        execution_mode, bench = ExecutionMode("sequential", 1, self.question.programs[0]), self.bench
        try:
            one = bench.cut(COMPARED, 1)
            with self._unhurried():
                bench.seconds(execution_mode, one)
            self.slow = bench.seconds(execution_mode, one) / max(1, bench.num_steps(one))
            self.steps = self._affordable()
            visits = bench.cut(COMPARED, self.steps)
            self.start = bench.ends(execution_mode, [replace(visit, steps=0) for visit in visits])
            self.end = bench.ends(execution_mode, visits)
            return bench.measured(execution_mode, visits, self.until)
        except Exception as error:
            return Trial(execution_mode, why=brief(error))

    def _affordable(self) -> int:
        """Steps with which the first width of `vectorized` takes half of the time, were it no faster than `sequential`."""
        most = max(longest(visit, self.bench.stage.phase.local) for visit in self.question.visits)
        units = max(len(visit.units) for visit in self.question.visits)
        items = units if self.bench.stage.mechanism else 1
        items *= min(self.question.clients_per_batch, len(self.question.visits))
        return max(2, min(STEPS, most, int(self.question.seconds / 2 / max(1e-9, self.slow * items * (PASSES + 2)))))

    def _fitting(self, execution_mode: ExecutionMode) -> Trial:
        """A execution_mode, or what is left of it when it is halved until it fits. The run would have to load it, too."""
        found = self._trial(execution_mode, first=True)
        self.trials.append(found)
        if found.starving and execution_mode.clients_per_batch > 1 and not self.question.fixed:
            return self._fitting(replace(execution_mode, clients_per_batch=execution_mode.clients_per_batch // 2))
        return found

    def _walk(self, best: Trial, factor: float) -> Trial:
        """The fastest of the widths on one side, up to the first that is not faster."""
        most = min(WIDEST, 1 << (len(self.question.visits) - 1).bit_length())
        while 1 <= (clients_per_batch := int(best.execution_mode.clients_per_batch * factor)) <= most:
            execution_mode = replace(best.execution_mode, clients_per_batch=clients_per_batch)
            if any(trial.execution_mode == execution_mode for trial in self.trials):
                return best
            found = self._trial(execution_mode)
            self.trials.append(found)
            if found.round is None or best.round is None or found.round > BETTER * best.round:
                return best
            best = found
        return best

    def _trial(self, execution_mode: ExecutionMode, first: bool = False) -> Trial:
        visits = self.bench.cut(execution_mode.clients_per_batch, self.steps)
        if not first and time.perf_counter() + self._guess(execution_mode, visits) > self.until:
            return Trial(execution_mode, why="not tried: it may take longer than is left for trying, or is worth it")
        bench = self.bench.under(execution_mode.program)
        programs = bench.stage.programs
        try:
            with self._unhurried(first):
                bench.ends(execution_mode, visits)
            ends = bench.ends(execution_mode, visits)  # captured by now, if it can be
            far = float(np.max([*map(gap, ends, self.end[-len(ends) :], self.start[-len(ends) :])]))  # NaN if any is
            if not far <= self.question.tolerance:
                text = f"its clients end {far:.2g} of their way from where loop leads them, more than"
                return Trial(execution_mode, gap=far, why=f"{text} {self.question.tolerance:g}")
            why = "; ".join(programs.news()) if programs is not None else ""
            return replace(bench.measured(execution_mode, visits, self.until), gap=far, why=why)
        except Exception as error:
            return Trial(execution_mode, why=brief(error), starving=starved(error))
        finally:
            if programs is not None:
                programs.known.clear()
            freed(bench.stage.device)

    def _guess(self, execution_mode: ExecutionMode, visits: list[ClientPlan]) -> float:
        """Seconds that a trial takes: as long a step as the slowest of `vectorized` so far, or as `sequential`."""
        known = [trial.step for trial in self.trials if trial.step and trial.execution_mode.mode == "vectorized"]
        return max(known or [self.slow]) * self.bench.num_steps(visits) * (PASSES + 2)

    @contextmanager
    def _unhurried(self, asked: bool = True) -> Iterator[None]:
        """A block whose time is not counted, if that is asked for."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began if asked else 0.0
            self.loading += spent
            self.until += spent
