"""What runs on a worker, in this process or in an actor: a resident model and data, given cohorts and shards."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from simfl.autotune.probe import ProbeRequest, ProbeResult, probe
from simfl.client_state import ClientStore, FileClientStore
from simfl.errors import OutOfMemory
from simfl.evaluation import EvaluationPlan, Scores, evaluate
from simfl.experiment import Experiment
from simfl.protocol import Examples, Parts, Weights
from simfl.run_context import RunContext
from simfl.runtime.gpu_monitor import GpuMonitor, most_memory, processor
from simfl.runtime.watchdog import Watchdog
from simfl.timing import Clock, clocked, timed
from simfl.training.cohort import CohortResult, train_cohort
from simfl.training.compiled import with_programs
from simfl.training.context import PhaseContext
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs, all_here, partial_gradient
from simfl.training.plan import CohortPlan, NextRound, no_next_round
from simfl.training.retry import brief, starved

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@dataclass(frozen=True)
class WorkerConfig:
    """All that a worker is made from."""

    experiment: Experiment
    cache: Path
    memory: Path
    num_clients: int
    device: str = "cpu"
    stacks: Path | None = None  # folder for the stacks of workers that hang
    traced: bool = False  # keep spans for a trace
    noise_multiplier: float = math.nan  # of private updates
    sitting: str = ""  # a name that no other sitting has; a file of that name tells who shares the driver's disk


class Worker:
    """One process's share of the work. Its threads are fixed, since sums on the CPU depend on their number."""

    def __init__(
        self,
        setup: WorkerConfig,
        setting: RunContext | None = None,
        home: torch.device | None = None,
        store: ClientStore | None = None,
    ) -> None:
        """`home`: where results are left, by default in the host's memory, through which they travel.

        `store`: client memory of a worker that does not see the run's folder.
        """
        torch.set_num_threads(setup.experiment.execution.threads)
        keep_memory()
        if setup.device == "cuda":
            _round(strict=setup.experiment.deterministic)
        self.setup = setup
        self.setting = setting or RunContext(setup.experiment, setup.cache, torch.device(setup.device))
        self.home = home or torch.device("cpu")
        self.store: ClientStore = store or FileClientStore(setup.memory)
        self.stages: dict[int, PhaseContext] = {}
        own, limit = store is None, setup.experiment.watchdog_seconds  # else this process's log, which Ray collects
        self.watch = Watchdog(setup.stacks if own else None, limit, None if own else sys.__stderr__)
        self.phase, self.gauge = -1, GpuMonitor(self.setting.device)
        self.peak = 0  # bytes at their highest before a probe, which begins to count anew
        self.ready = False  # whether the phase's local steps are programs, where they can be

    def begin(self, phase: int, base: Weights) -> None:
        """Enter a phase: `base` is what earlier phases made of the model."""
        self.setting.overwrite(base)
        self.phase = phase
        stage = self.setting.stage(phase, self.setup.num_clients, self.setup.noise_multiplier)
        self.stages[phase], self.ready = all_here(_timed_reads(stage)), False

    def train(self, plan: CohortPlan, received: Parts, ahead: NextRound = no_next_round) -> CohortResult:
        """Train a cohort; what is `ahead` is drawn while a GPU is at work."""
        stage = self._ready(plan)
        with self._at_work("train", f"clients {', '.join(str(v.client) for v in plan.visits)}") as clock:
            parts = self._here(received)
            result = train_cohort(
                stage, self.store, plan, parts, plan.execution_mode.mode, self.setup.experiment.on_error, ahead
            )
            result.sums = {part: self._home(tensors) for part, tensors in result.sums.items()}
            result.gathered = {part: [self._home(t) for t in uploads] for part, uploads in result.gathered.items()}
        result.clock = clock
        return result

    def _ready(self, plan: CohortPlan) -> PhaseContext:
        """The stage of a plan, its local steps as the programs that it asks for."""
        if not self.ready:
            self.stages[plan.phase] = with_programs(self.stages[plan.phase], plan.execution_mode.program)
            self.ready = True
        return self.stages[plan.phase]

    def probe(self, question: ProbeRequest, received: Parts) -> ProbeResult:
        """Try execution_modes of training, of which the phase's first round will take one."""
        stage, self.peak = self.stages[self.phase], max(self.peak, most_memory(self.setting.device))
        others = self.gauge.others()
        with self._at_work("probe", f"{len(question.visits)} clients") as clock:
            found = probe(stage, self.store, question, self._here(received))
        found.clock, found.kind, found.others = clock, processor(self.setting.device), others
        return found

    def partial_gradient(self, piece: MicroBatch, shared: SharedStepInputs, received: Parts) -> PartialGradient:
        """What a piece of a local batch adds to the gradient; `received` stands in for what `shared` lacks of it."""
        with self._at_work("train", f"a piece of client {piece.client}") as clock:
            here = {"trained": shared.trained, **{f"state:{key}": group for key, group in shared.state.items()}}
            here = self._here(here)
            trained, state = here.pop("trained"), {key.removeprefix("state:"): group for key, group in here.items()}
            own = replace(shared, trained=trained, state=state, received=self._here(received))
            found = partial_gradient(self.stages[self.phase], piece, own)
            rest = None if found.rest is None else _on_cpu(found.rest)
            found = PartialGradient(_on_cpu(found.task), rest, found.sums.cpu(), found.weights.cpu())
        found.clock = clock
        return found

    def evaluate(self, plan: EvaluationPlan, received: Parts) -> Scores:
        """Score a shard."""
        size, stage = self.setup.experiment.evaluate.batch_size, self.stages[self.phase]
        with self._at_work("evaluate", f"{len(plan.rows)} examples of {plan.split}") as clock:
            scores = evaluate(self.setting, stage, self.store, plan, self._here(received), size)
        return replace(scores, clock=clock)

    def spare(self) -> None:
        """Give back the memory that torch keeps for later, and that of captured steps."""
        for stage in self.stages.values():
            if stage.programs is not None:
                stage.programs.known.clear()
        gc.collect()
        if self.setting.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def _at_work(self, name: str, about: str) -> Iterator[Clock]:
        """A piece of work: watched, timed, and if it wants memory, OutOfMemory."""
        clock = Clock(traced=self.setup.traced)
        try:
            with self.watch.over(), clocked(clock), clock.measure(name, about):
                yield clock
            clock.memory, clock.use = max(self.peak, self.gauge.memory()), self.gauge.use()
        except Exception as error:
            if starved(error):
                raise OutOfMemory(str(error) if isinstance(error, OutOfMemory) else brief(error)) from None
            raise

    def _home(self, weights: Weights) -> Weights:
        return {name: tensor.to(self.home) for name, tensor in weights.items()}

    @timed("decode")
    def _here(self, received: Parts) -> Parts:
        device = self.setting.device
        return {part: {name: t.to(device) for name, t in tensors.items()} for part, tensors in received.items()}


def keep_memory() -> None:
    """Have glibc keep freed blocks up to 32 MiB: every local step asks for the same again.

    Page faults took 6 % of a small CNN's time, and more of a stacked MLP's. Other C libraries lack the switch.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)


def _round(strict: bool) -> None:
    """How a GPU multiplies: float32 and algorithms that give the same bits each time, or TF32 and the fastest ones."""
    torch.set_float32_matmul_precision("highest" if strict else "high")
    torch.backends.cudnn.allow_tf32 = not strict
    torch.backends.cudnn.deterministic = strict


def _timed_reads(stage: PhaseContext) -> PhaseContext:
    """The stage with the reading of its examples timed."""
    load = timed("load")(stage.load)

    def timed_examples() -> Examples:
        examples = load()
        return TimedExamples(examples.rows, examples.shared)

    return replace(stage, load=timed_examples)


class TimedExamples(Examples):
    """Examples whose batches are timed."""

    take = timed("load")(Examples.take)


def _on_cpu(weights: Weights) -> Weights:
    return {name: tensor.cpu() for name, tensor in weights.items()}
