"""Local steps as programs on a GPU: run eagerly, replayed from a CUDA graph, or compiled and replayed.

    eager      Python launches every kernel: for debugging
    graph      the first run for some shapes is eager; the next one captures the step as a graph and replays it
    compiled   the step, its gradient and the optimizers are traced as one, fused by torch's compiler, and replayed

A program is one local step over tensors of fixed shapes that is run again and again. It looks up the batch, the
learning rates and the active clients by a step counter that it increments, so a client update consists of replays.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

PROGRAM_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
MAX_PROGRAMS = 8  # kept at a time, each with the memory of its activations

StepFunction = Callable[..., list[Tensor]]  # takes tensors, changes some of them in place, and returns the changed ones


@dataclass
class CompiledSteps:
    """The programs of a phase, by the shapes that they are for. `mode`: eager, graph or compiled."""

    mode: str
    programs: OrderedDict[Hashable, CompiledStep] = field(default_factory=OrderedDict)
    _reported: set[str] = field(default_factory=set)

    def program(self, key: Hashable, make_step: Callable[[], StepFunction]) -> CompiledStep:
        """Return the program for a key; a new one is made of `make_step()`, and the least recently used is dropped."""
        if key not in self.programs:
            self.programs[key] = CompiledStep(make_step(), self.mode)
            while len(self.programs) > MAX_PROGRAMS:
                self.programs.popitem(last=False)
        self.programs.move_to_end(key)
        return self.programs[key]

    def clear(self) -> None:
        """Free all programs and their memory."""
        self.programs.clear()

    def new_messages(self) -> list[str]:
        """Return a message for each capture failure that was not reported before."""
        new = {program.failure for program in self.programs.values() if program.failure} - self._reported
        self._reported |= new
        return [f"local steps run eagerly, because they cannot be captured: {reason}" for reason in sorted(new)]


class CompiledStep:
    """One step for tensors of some shapes; nothing is captured or compiled before it runs."""

    def __init__(self, step: StepFunction, mode: str) -> None:
        self.eager_step, self.mode, self.num_runs = step, mode, 0
        self.step: StepFunction = step
        self.tensors: list[Tensor] = []  # the memory of the captured graph
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failure = ""  # the reason why it could not be captured and runs eagerly

    def run(self, tensors: list[Tensor], num_steps: int) -> list[Tensor]:
        """Run steps starting from these tensors; return all of them afterwards, valid until the next run."""
        if self.mode == "eager":
            for _ in range(num_steps):
                self.eager_step(*tensors)
            return tensors
        if self.mode == "compiled" and not self.num_runs:
            self.step = compile_step(self.step, tensors)
        self.num_runs += 1
        cuda = tensors[0].is_cuda
        if self.num_runs == 1 or not cuda:  # also warms up what must not be warmed up inside of a capture
            with _side_stream() if cuda else nullcontext():
                for _ in range(num_steps):
                    self.step(*tensors)
            return tensors
        if self.graph is None:
            try:
                self._capture(tensors)
            except RuntimeError as error:  # a component reads a value on the host, or copies one from it
                self.mode, self.graph, self.tensors = "eager", None, []
                self.failure = str(error).splitlines()[0]
                return self.run(tensors, num_steps)
        assert self.graph is not None
        torch._foreach_copy_(self.tensors, tensors)
        for _ in range(num_steps):
            self.graph.replay()
        return self.tensors

    def _capture(self, tensors: list[Tensor]) -> None:
        """Capture the kernels that the step launches; RuntimeError if it does more than launch kernels."""
        self.tensors, graph = [t.clone() for t in tensors], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(*self.tensors)
        self.graph = graph


@contextmanager
def _side_stream() -> Iterator[None]:
    """Run the block on a stream of its own, as CUDA requires of the warm-up before a capture."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


def keep_programs(cache: Path) -> None:
    """Let torch's compiler and Triton keep what they compile, by hash, below the cache folder, for later processes.

    Their defaults are a folder of temporary files and one of the user. Folders that the environment names stay. A graph
    that was captured cannot be kept: it consists of addresses. Capturing it again takes as long as a step.
    """
    own_default = str(Path(tempfile.gettempdir()) / "torchinductor_")  # torch sets the variable when it is imported
    for variable, folder in PROGRAM_FOLDERS.items():
        if os.environ.get(variable, own_default).startswith(own_default):
            os.environ[variable] = str(cache / "programs" / folder)


def trace_step(step: StepFunction, tensors: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Return the step as a graph of tensor operations, gradient and optimizer included, as it runs on such tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    make: Callable[..., Callable[..., torch.fx.GraphModule]] = make_fx
    return make(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def compile_step(step: StepFunction, tensors: Sequence[Tensor]) -> StepFunction:
    """Return the traced step, fused by torch's compiler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's advice on settings that are chosen here
        compiled: StepFunction = torch.compile(trace_step(step, tensors), dynamic=False)
    return compiled
