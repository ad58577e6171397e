"""A worker: a resident model and data. It trains cohorts and evaluates shards, in this process or in an actor."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from simfl.aggregation.round import CohortResult
from simfl.autotune.probe import ProbeRequest, ProbeResult, probe
from simfl.client_state import ClientStore, FileClientStore
from simfl.errors import OutOfMemory
from simfl.evaluation.scoring import EvaluationResult, EvaluationTask, evaluate
from simfl.experiment import Experiment
from simfl.models.module_state import StepEffects
from simfl.privacy.randomness import Randomness
from simfl.protocol import Examples, Parts, Weights
from simfl.run_context import RunContext
from simfl.runtime.gpu_monitor import GpuMonitor, peak_memory, processor
from simfl.runtime.watchdog import Watchdog
from simfl.stacking import on_host
from simfl.timing import Clock, clocked, timed
from simfl.training.cohort import train_cohort
from simfl.training.compiled import keep_programs
from simfl.training.context import PhaseContext
from simfl.training.data_parallel import MicroBatch, PartialGradient, SharedStepInputs
from simfl.training.executor import Executor, compiled_steps
from simfl.training.plan import CohortPlan, NextRound, no_next_round
from simfl.training.retry import brief, is_out_of_memory

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker.

    Attributes:
        experiment: The experiment.
        cache: Folder of built data sets.
        client_states: Folder of client states.
        num_clients: K, all clients.
        device: `cpu` or `cuda`.
        stacks: Folder for the stack traces of workers that hang; None: they are not written.
        traced: Whether spans are kept for a trace.
        noise_multiplier: Noise multiplier of private updates.
        randomness: Source of the noise and the sampling of private updates.
        effects: Effects of training steps on the model besides its trained parameters, as the driver has found them.
        session_name: Unique name of the session. A file of that name tells which workers see the run's folder.
    """

    experiment: Experiment
    cache: Path
    client_states: Path
    num_clients: int
    device: str = "cpu"
    stacks: Path | None = None
    traced: bool = False
    noise_multiplier: float = math.nan
    randomness: Randomness = field(default_factory=Randomness.fresh)
    session_name: str = ""
    effects: Mapping[tuple[object, ...], StepEffects] = field(default_factory=dict)


class Worker:
    """A worker. Its number of threads is fixed, since sums on a CPU depend on it."""

    def __init__(
        self,
        config: WorkerConfig,
        run_context: RunContext | None = None,
        home: torch.device | None = None,
        store: ClientStore | None = None,
    ) -> None:
        """Set up threads, rounding, memory and client states.

        Args:
            config: The configuration.
            run_context: Data and model; None: they are built.
            home: Device on which results are returned; None: the CPU, through which they travel.
            store: Client states of a worker that does not see the run's folder; None: the run's folder is used.
        """
        torch.set_num_threads(config.experiment.execution.threads)
        keep_freed_memory()
        if config.device == "cuda":
            _set_gpu_precision(config.experiment.deterministic)
        if config.device == "cuda" or config.experiment.execution.program == "compiled":
            keep_programs(config.cache)
        self.config = config
        self.run_context = run_context or RunContext(config.experiment, config.cache, torch.device(config.device))
        self.run_context.effects.update(config.effects)
        self.home = home or torch.device("cpu")
        self.store: ClientStore = store or FileClientStore(config.client_states)
        self.executors: dict[int, Executor] = {}  # by phase
        local, limit = store is None, config.experiment.watchdog_seconds
        # stack traces go to the run's folder, or to this process's log, which Ray collects
        self.watchdog = Watchdog(config.stacks if local else None, limit, None if local else sys.__stderr__)
        self.phase, self.monitor = -1, GpuMonitor(self.run_context.device)
        self.peak = 0  # bytes at the peak before a probe, which resets the peak
        self.moved: tuple[list[int], Parts, Parts] | None = None  # addresses of a download, itself, its copy on the GPU
        self.steps_chosen = False  # whether the phase's first cohort has chosen compiled or eager steps

    def begin(self, phase: int, base: Weights) -> None:
        """Enter a phase. `base`: the model tensors that earlier phases have changed."""
        self.run_context.overwrite(base)
        self.phase, self.steps_chosen = phase, False
        config = self.config
        context = self.run_context.phase_context(phase, config.num_clients, config.noise_multiplier, config.randomness)
        self.executors[phase] = Executor(_time_reads(context))

    def train(self, plan: CohortPlan, received: Parts, next_round: NextRound = no_next_round) -> CohortResult:
        """Train a cohort. The batches of the next round are drawn while a GPU is busy."""
        executor = self._executor(plan)
        with self._task("train", f"clients {', '.join(map(str, plan.client_numbers))}") as clock:
            executor.examples  # noqa: B018  (an error of the data is not one of a client)
            parts, on_error = self._to_device(received), self.config.experiment.on_error
            result = train_cohort(executor, self.store, plan, parts, on_error, next_round)
            result.sums = {part: self._to_home(tensors) for part, tensors in result.sums.items()}
            result.gathered = {part: [self._to_home(t) for t in uploads] for part, uploads in result.gathered.items()}
        result.clock, result.notes = clock, self.run_context.new_notes()
        return result

    def _executor(self, plan: CohortPlan) -> Executor:
        """Return the executor of a plan's phase, whose first plan decides whether local steps are compiled."""
        executor = self.executors[plan.phase]
        if not self.steps_chosen:
            executor.compiled = compiled_steps(executor.context, plan.execution_mode.program)
            self.steps_chosen = True
        return executor

    def probe(self, request: ProbeRequest, received: Parts) -> ProbeResult:
        """Try execution modes of training, of which the phase's first round will use one."""
        self.peak = max(self.peak, peak_memory(self.run_context.device))
        others = self.monitor.others()
        with self._task("probe", f"{len(request.clients)} clients") as clock:
            result = probe(self.executors[self.phase], self.store, request, self._to_device(received))
        result.clock, result.kind, result.others = clock, processor(self.run_context.device), others
        return result

    def partial_gradient(self, micro_batch: MicroBatch, shared: SharedStepInputs, received: Parts) -> PartialGradient:
        """Return the contribution of a micro-batch to a gradient. `received` replaces what `shared` lacks of it."""
        with self._task("train", f"a micro-batch of client {micro_batch.client}") as clock:
            groups = {"trained": shared.trained, **{f"state:{key}": group for key, group in shared.state.items()}}
            groups = self._copied(groups)
            trained = groups.pop("trained")
            state = {key.removeprefix("state:"): group for key, group in groups.items()}
            own = replace(shared, trained=trained, state=state, received=self._to_device(received))
            found = self.executors[self.phase].partial_gradient(micro_batch, own)
            rest = None if found.rest is None else _to_cpu(found.rest)
            result = PartialGradient(_to_cpu(found.task), rest, found.loss_sum.cpu(), found.loss_weight.cpu())
        result.clock = clock
        return result

    def evaluate(self, task: EvaluationTask, received: Parts) -> EvaluationResult:
        """Evaluate the shards of a task."""
        size, context = self.config.experiment.evaluate.batch_size, self.executors[self.phase].context
        with self._task("evaluate", task.name) as clock:
            parts = self._to_device(received)
            scores = tuple(evaluate(self.run_context, context, self.store, shard, parts, size) for shard in task.shards)
        return EvaluationResult(scores, self.run_context.new_notes(), clock)

    def free_memory(self) -> None:
        """Free the memory that torch caches, and that of captured steps and of the last download."""
        self.moved = None
        for executor in self.executors.values():
            if executor.compiled is not None:
                executor.compiled.clear()
        gc.collect()
        if self.run_context.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def _task(self, name: str, about: str) -> Iterator[Clock]:
        """Watch and time a task; raise OutOfMemory if its memory runs out."""
        clock = Clock(traced=self.config.traced)
        try:
            with self.watchdog.over(), clocked(clock), clock.measure(name, about):
                yield clock
            clock.memory, clock.use = max(self.peak, self.monitor.memory()), self.monitor.use()
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(str(error) if isinstance(error, OutOfMemory) else brief(error)) from None
            raise

    def _to_home(self, weights: Weights) -> Weights:
        if self.home.type == "cpu":
            return on_host(weights)
        return {name: tensor.to(self.home) for name, tensor in weights.items()}

    @timed("decode")
    def _to_device(self, received: Parts) -> Parts:
        """Return what was received on the device; the calls of a round share the copy of one download.

        A download in the object store has the same addresses in each call, as long as one of them is kept.
        """
        if self.home.type == self.run_context.device.type:
            return self._copied(received)  # nothing is copied
        addresses = [t.data_ptr() for part in received.values() for t in part.values()]
        if self.moved is None or self.moved[0] != addresses or not _same_names(self.moved[1], received):
            self.moved = None  # free the old one first
            self.moved = addresses, received, self._copied(received)
        return {part: dict(own) for part, own in self.moved[2].items()}

    def _copied(self, parts: Parts) -> Parts:
        device = self.run_context.device
        return {part: {name: t.to(device) for name, t in own.items()} for part, own in parts.items()}


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of up to 32 MiB, since every local step allocates the same ones.

    Page faults took 6 % of a small CNN's time, and more of a stacked MLP's. Other C libraries lack the setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)


def _set_gpu_precision(deterministic: bool) -> None:
    """Make a GPU multiply in float32 with deterministic algorithms, or in TF32 with the fastest ones."""
    torch.set_float32_matmul_precision("highest" if deterministic else "high")
    torch.backends.cudnn.allow_tf32 = not deterministic
    torch.backends.cudnn.deterministic = deterministic


def _same_names(a: Parts, b: Parts) -> bool:
    """Return whether parts have the same tensors by name and shape."""
    shapes = [
        [(part, name, t.shape, t.dtype) for part, own in one.items() for name, t in own.items()] for one in (a, b)
    ]
    return shapes[0] == shapes[1]


def _time_reads(context: PhaseContext) -> PhaseContext:
    """Return the context with the reading of its examples timed."""
    load = timed("load")(context.load_examples)

    def load_timed() -> Examples:
        examples = load()
        return TimedExamples(examples.rows, examples.shared)

    return replace(context, load_examples=load_timed)


class TimedExamples(Examples):
    """Examples that time the reading of batches."""

    take = timed("load")(Examples.take)


def _to_cpu(weights: Weights) -> Weights:
    return {name: tensor.cpu() for name, tensor in weights.items()}
