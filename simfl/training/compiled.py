"""Local steps as programs on a GPU: run as written, replayed from a CUDA graph, or compiled and replayed.

    eager      every kernel is launched by Python: for looking closely
    graph      the first visits of some shape run so; at the next ones their step is captured, and replayed from then on
    compiled   the step, its gradient and the optimizers are traced as one, fused by torch's compiler, and replayed

A program is one local step over tensors of fixed shapes that is run again and again: which batch, which rates and who
is still at work it looks up by a count of steps that it raises itself, so a visit is nothing but replays.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from simfl.protocol import MicroStep, State
from simfl.training.context import PhaseContext
from simfl.training.gradients import Gradients
from simfl.training.step import StepCallback, Work, local_step
from simfl.training.tensor_optimizer import TensorOptimizer, steppable
from simfl.weights import select_names

MOST = 8  # programs kept at a time, each with the memory of its activations


@dataclass(frozen=True)
class StepTables:
    """What differs from step to step, for S steps: the program reads its row."""

    rows: Tensor  # int64 [S, n, B]
    places: Tensor | None  # int64 [S, n, B]
    active: Tensor  # bool [S, n]
    rates: Tensor  # float32 [S, n]


@dataclass
class CompiledSteps:
    """The programs of a stage, by the shapes that they are for."""

    mode: str  # eager, graph or compiled
    known: OrderedDict[Any, CompiledStep] = field(default_factory=OrderedDict)
    _told: set[str] = field(default_factory=set)

    def news(self) -> list[str]:
        """What is to be said of steps that could not be captured, once."""
        fresh = {program.why for program in self.known.values() if program.why} - self._told
        self._told |= fresh
        return [f"local steps run as written, not from a captured graph: {why}" for why in sorted(fresh)]

    def run(
        self,
        stage: PhaseContext,
        gradients_of: Gradients,
        micro_steps: Sequence[MicroStep],
        work: Work,
        moments: list[State],
        tables: StepTables,
        steps: int,
        ragged: bool,
        hearing: Callable[[int], StepCallback] | None = None,
    ) -> tuple[Work, list[State]]:
        """Train for so many steps: `work` and `moments` as they are afterwards, to be read before the next call.

        `hearing`: who is told of each optimizer step of a local step; the program then runs as it is written.
        """
        _ = stage.examples  # read by now: what is made under tracing is part of the trace
        held = (work.weights, moments, work.state, work.sums, work.counts, _counter(stage))
        given = (work.received, tuple(work.visit), work.keys, tables.rows, tables.places, tables.active, tables.rates)
        leaves, shape = tree_flatten((held, given))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[k] for k in places]
        groups = [
            work.weights,
            *work.state.values(),
            *work.received.values(),
            *(g for m in moments for g in m.values()),
        ]
        names = tuple(tuple(group) for group in groups)
        key = (stage.index, ragged, names, tuple((t.shape, t.dtype) for t in tensors))
        if key not in self.known:
            step = _Step(stage, gradients_of, micro_steps, type(work.visit), leaves, places, shape, ragged)
            self.known[key] = CompiledStep(step, self.mode)
            while len(self.known) > MOST:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        after = self.known[key].visit(tensors, steps, hearing)
        (weights, moments, state, sums, counts, _), _ = tree_unflatten(_filled(leaves, places, after), shape)
        return Work(weights, state, sums, counts, work.received, work.visit, work.keys), moments


@dataclass(frozen=True)
class _Step:
    """The local step as a function of a list of tensors, those of `held` changed in place."""

    stage: PhaseContext
    gradients_of: Gradients
    micro_steps: Sequence[MicroStep]
    visit: Callable[..., Any]
    leaves: list[Any]
    places: list[int]
    shape: Any
    ragged: bool

    def __call__(self, *tensors: Tensor, hearing: StepCallback | None = None) -> list[Tensor]:
        """Take one step; returns what was changed."""
        held, given = tree_unflatten(_filled(self.leaves, self.places, tensors), self.shape)
        weights, moments, state, sums, counts, done = held
        received, visit, keys, rows, places, active, rates = given
        local = self.stage.phase.local
        work = Work(dict(weights), state, sums, counts, received, self.visit(*visit), keys)
        steppers = []
        for micro, own in zip(self.micro_steps, moments, strict=True):
            names = select_names(weights, micro.trains, micro.excludes, where="algorithm")
            steppers.append(
                (
                    micro,
                    TensorOptimizer(local, {n: weights[n] for n in names}, own, self.ragged, micro.active is not None),
                )
            )

        def now(table: Tensor) -> Tensor:
            return table.index_select(0, done)[0]

        batch = self.stage.batch(now(rows), None if places is None else now(places))
        local_step(self.stage, self.gradients_of, steppers, work, batch, done[0], now(active), now(rates), hearing)
        sums.copy_(work.sums)
        counts.copy_(work.counts)
        for key, group in work.state.items():
            for name, tensor in group.items():
                if state[key][name] is not tensor:
                    state[key][name].copy_(tensor)
        done.add_(1)
        return [leaf for leaf in tree_flatten(held)[0] if isinstance(leaf, Tensor)]


class CompiledStep:
    """One step for tensors of some shapes."""

    def __init__(self, step: _Step, mode: str) -> None:
        """Nothing is captured or compiled yet."""
        self.as_written, self.mode, self.visits = step, mode, 0
        self.step: Callable[..., Any] = step
        self.tensors: list[Tensor] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.why = ""  # it could not be captured and runs as written

    def visit(
        self, tensors: list[Tensor], steps: int, hearing: Callable[[int], StepCallback] | None = None
    ) -> list[Tensor]:
        """So many steps from these tensors on: all of them as they are afterwards, valid until the next visit."""
        if hearing is not None or self.mode == "eager":
            for step in range(steps):
                self.as_written(*tensors, hearing=None if hearing is None else hearing(step))
            return tensors
        if self.mode == "compiled" and not self.visits:
            self.step = compile_step(self.step, tensors)
        self.visits += 1
        cuda = tensors[0].is_cuda
        if self.visits == 1 or not cuda:  # also warms up what must not be warmed up inside of a capture
            with _beside() if cuda else nullcontext():
                for _ in range(steps):
                    self.step(*tensors)
            return tensors
        if self.graph is None:
            try:
                self._capture(tensors)
            except RuntimeError as error:  # a component that looks at a number, or copies one from the host
                self.mode, self.graph, self.tensors = "eager", None, []
                self.why = str(error).splitlines()[0]
                return self.visit(tensors, steps)
        assert self.graph is not None
        torch._foreach_copy_(self.tensors, tensors)
        for _ in range(steps):
            self.graph.replay()
        return self.tensors

    def _capture(self, tensors: list[Tensor]) -> None:
        """Keep the step as the kernels that it launches; RuntimeError if it does more than that."""
        self.tensors, graph = [t.clone() for t in tensors], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(*self.tensors)
        self.graph = graph


@contextmanager
def _beside() -> Iterator[None]:
    """On a stream of its own, as work before a capture must be."""
    here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        yield
    here.wait_stream(beside)


def traced(step: Callable[..., Any], tensors: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The step as a list of tensor operations, gradient and optimizer included, as it runs on such tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    make: Any = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)
    module: torch.fx.GraphModule = make(*tensors)
    return module


def compile_step(step: Callable[..., Any], tensors: Sequence[Tensor]) -> Callable[..., Any]:
    """The traced step, fused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's advice on settings that are chosen here
        compiled: Callable[..., Any] = torch.compile(traced(step, tensors), dynamic=False)
    return compiled


def with_programs(stage: PhaseContext, mode: str) -> PhaseContext:
    """The stage, its local steps as programs where device and optimizer allow; `auto`: graph."""
    if why_as_written(stage, mode):
        return stage
    return replace(stage, programs=CompiledSteps("graph" if mode == "auto" else mode))


def why_as_written(stage: PhaseContext, mode: str) -> str:
    """Why the stage's local steps are no programs; empty if they are. A CPU has them where they are compiled."""
    if stage.device.type != "cuda" and mode != "compiled":
        return "the device is no GPU"
    if not steppable(stage.phase.local):
        return f"the optimizer {stage.phase.local.optimizer.name} has no form of tensors alone with its settings"
    return ""


def _counter(stage: PhaseContext) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=stage.device)


def _filled(leaves: list[Any], places: list[int], tensors: Sequence[Tensor]) -> list[Any]:
    """The leaves of a tree with these tensors at their places."""
    filled = list(leaves)
    for place, tensor in zip(places, tensors, strict=True):
        filled[place] = tensor
    return filled
