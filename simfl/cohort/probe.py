"""Ways, widths and programs tried for seconds on the real model, before the first round of a phase.

The longest visits of that round, cut to a few local steps, are trained in one manner after the other. Each is held to
`loop`: a manner whose clients end elsewhere, that fails, or that does not fit is left out, and says why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from simfl.cohort.attempts import brief, starved
from simfl.cohort.plan import Manner, VisitPlan
from simfl.cohort.stage import Stage
from simfl.cohort.trial import COMPARED, PASSES, Bench, Trial, freed, gap, longest, untouched
from simfl.memory import Memory
from simfl.protocol import Parts
from simfl.timing import Clock
from simfl.weights import Weights

STEPS = 4  # local steps of a visit, at most: what TF32 rounds grows with each (a CNN at rate 0.1: 0.4 % in 2, 2 % in 3)
WIDEST = 1024  # clients side by side
SHARE = 0.1  # of the time that the phase would take in the manner of the rules: other manners may take that much
BETTER = 0.97  # of the time before: by so much a next width has to be faster for the one after it to be tried


@dataclass(frozen=True)
class Question:
    """What is to be tried, and on what."""

    visits: tuple[VisitPlan, ...]  # of the round that comes, in canonical order
    round: int  # its number in the phase
    programs: tuple[str, ...]  # of `batch`, the likeliest first
    width: int  # the first to be tried
    fixed: bool  # no other width is asked for
    workers: int  # that share a round
    rounds: int  # that the phase still has
    tolerance: float  # how far from `loop` a client may end, over how far it moved
    seconds: float = 10.0  # that trying may take, without what the first passes load, compile and capture


@dataclass
class Findings:
    """What a worker answers."""

    trials: list[Trial]
    steps: int  # that each visit was cut to
    seconds: float  # that it took in all
    loading: float = 0.0  # of these, that first passes took, in which the run, too, would have loaded and compiled
    kind: str = ""  # of the processor that it was found on
    others: float | None = None  # share of the second before in which it worked for others; None: not known
    clock: Clock = field(default_factory=Clock)


def probe(stage: Stage, store: Memory, question: Question, received: Parts) -> Findings:
    """Try what is asked for; a manner that fails is a finding, not an error."""
    began = time.perf_counter()
    with untouched(stage.device):
        bench = Bench.of(stage, store, received, question.visits, question.round, question.workers)
        trying = _Trying(bench, question)
        trying.all()
    return Findings(trying.trials, trying.steps, time.perf_counter() - began, trying.loading)


class _Trying:
    """One probe under way."""

    def __init__(self, bench: Bench, question: Question) -> None:
        self.bench, self.question = bench, question
        self.trials: list[Trial] = []
        self.until = time.perf_counter() + question.seconds
        self.loading = 0.0  # seconds that are not counted
        self.steps, self.slow = 1, 0.0  # steps of a visit, and seconds of one in `loop`
        self.start: list[Weights] = []  # of the compared clients: where they begin
        self.end: list[Weights] = []  # and where `loop` leads them

    def all(self) -> None:
        """`loop`, then `batch`: its first program at the first width and at others, the others at the fastest."""
        self.trials.append(self._loop())
        if self.trials[0].why:
            return
        program, *others = self.question.programs
        best = self._fitting(Manner("batch", self.question.width, program))
        if best.round is not None:
            self.until = min(self.until, time.perf_counter() + SHARE * self.question.rounds * best.round)
        for factor in () if self.question.fixed or best.why else (2.0, 0.5):
            best = self._walk(best, factor)
        for other in () if best.starving else others:
            self.trials.append(self._trial(replace(best.manner, program=other)))

    def _loop(self) -> Trial:
        """The reference, on the compared clients alone; its pace says how many steps a visit may have."""
        manner, bench = Manner("loop", 1, self.question.programs[0]), self.bench
        try:
            one = bench.cut(COMPARED, 1)
            with self._unhurried():
                bench.seconds(manner, one)
            self.slow = bench.seconds(manner, one) / max(1, bench.num_steps(one))
            self.steps = self._affordable()
            visits = bench.cut(COMPARED, self.steps)
            self.start = bench.ends(manner, [replace(visit, steps=0) for visit in visits])
            self.end = bench.ends(manner, visits)
            return bench.measured(manner, visits, self.until)
        except Exception as error:
            return Trial(manner, why=brief(error))

    def _affordable(self) -> int:
        """Steps with which the first width of `batch` takes half of the time, were it no faster than `loop`."""
        most = max(longest(visit, self.bench.stage.phase.local) for visit in self.question.visits)
        units = max(len(visit.units) for visit in self.question.visits)
        items = units if self.bench.stage.mechanism else 1
        items *= min(self.question.width, len(self.question.visits))
        return max(2, min(STEPS, most, int(self.question.seconds / 2 / max(1e-9, self.slow * items * (PASSES + 2)))))

    def _fitting(self, manner: Manner) -> Trial:
        """A manner, or what is left of it when it is halved until it fits. The run would have to load it, too."""
        found = self._trial(manner, first=True)
        self.trials.append(found)
        if found.starving and manner.width > 1 and not self.question.fixed:
            return self._fitting(replace(manner, width=manner.width // 2))
        return found

    def _walk(self, best: Trial, factor: float) -> Trial:
        """The fastest of the widths on one side, up to the first that is not faster."""
        most = min(WIDEST, 1 << (len(self.question.visits) - 1).bit_length())
        while 1 <= (width := int(best.manner.width * factor)) <= most:
            manner = replace(best.manner, width=width)
            if any(trial.manner == manner for trial in self.trials):
                return best
            found = self._trial(manner)
            self.trials.append(found)
            if found.round is None or best.round is None or found.round > BETTER * best.round:
                return best
            best = found
        return best

    def _trial(self, manner: Manner, first: bool = False) -> Trial:
        visits = self.bench.cut(manner.width, self.steps)
        if not first and time.perf_counter() + self._guess(manner, visits) > self.until:
            return Trial(manner, why="not tried: it may take longer than is left for trying, or is worth it")
        bench = self.bench.under(manner.program)
        programs = bench.stage.programs
        try:
            with self._unhurried(first):
                bench.ends(manner, visits)
            ends = bench.ends(manner, visits)  # captured by now, if it can be
            far = float(np.max([*map(gap, ends, self.end[-len(ends) :], self.start[-len(ends) :])]))  # NaN if any is
            if not far <= self.question.tolerance:
                text = f"its clients end {far:.2g} of their way from where loop leads them, more than"
                return Trial(manner, gap=far, why=f"{text} {self.question.tolerance:g}")
            why = "; ".join(programs.news()) if programs is not None else ""
            return replace(bench.measured(manner, visits, self.until), gap=far, why=why)
        except Exception as error:
            return Trial(manner, why=brief(error), starving=starved(error))
        finally:
            if programs is not None:
                programs.known.clear()
            freed(bench.stage.device)

    def _guess(self, manner: Manner, visits: list[VisitPlan]) -> float:
        """Seconds that a trial takes: as long a step as the slowest of `batch` so far, or as `loop`."""
        known = [trial.step for trial in self.trials if trial.step and trial.manner.way == "batch"]
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
