"""Probe of a training step before the run: training steps and an evaluation of a few examples, and what they change.

Two steps and an evaluation are run on the driver's own module, which is then returned to its state. What differs is the
state that the module keeps besides its trained parameters: buffers, parameters that no optimizer steps, and values in
plain attributes. Layers are not looked at by type.

An attribute that changes is state only where a later pass depends on it: a step from the first values and the same step
from the later values are compared. Registered tensors that change are always state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from simfl.errors import ConfigError
from simfl.generators.process import global_states_kept
from simfl.generators.watched import SYSTEM_DRAWS, Generators
from simfl.models.call_context import ModelCall, call_context
from simfl.models.module_state import (
    BACKWARD,
    CREATED,
    EVALUATED,
    OVERWRITTEN,
    RESHAPED,
    ModuleSnapshot,
    StepEffects,
    digests,
    registered,
)
from simfl.models.own import to_outputs
from simfl.models.recomputation import recomputes
from simfl.objectives.base import Objective
from simfl.protocol import Batch
from simfl.training.context import Network

MOVED = 1.01  # factor by which parameters differ in a later step
MIXING = 1e-4  # relative change of an example's results from which it depends on the others; rounding is below
HALF = (torch.bfloat16, torch.float16)
HALF_STEPS = 4  # units in the last place of half precision, by which the results of a pass may differ
HIDDEN = (
    "the same training step gives another result the second time: the model depends on values outside of its buffers"
    " and attributes"
)

UNNOTICED = "a generator that it returns to its state (torch.random.fork_rng)"


class _Pass(NamedTuple):
    """The results of a training pass: tensors to compare, and trained parameters that it wrote to or replaced."""

    results: list[Tensor]
    written: set[str]
    replaced: set[str]


def probe_step(network: Network, objective: Objective, batches: Sequence[Batch]) -> StepEffects:
    """Return what training steps on two batches and an evaluation change in the network's module.

    The module is returned to its state.

    Raises:
        ConfigError: The same step from the same state gives two results.
        Exception: The module cannot run these batches.
    """
    with global_states_kept():
        return _Probe(network, objective, batches).effects()


def probe_on_meta(network: Network, objective: Objective, batch: Callable[[], Batch]) -> StepEffects:
    """Return what a training step changes in a module on the device `meta`, where tensors have no values.

    Tensors that operators write to in place or that are replaced count as changed. Nothing is found where the module
    cannot run without values; plans then lack what the run finds.
    """
    module, own = network.module, registered(network.module)
    versions, training = {name: t._version for name, t in own.items()}, module.training
    leaves = {
        name: t.clone().requires_grad_(t.is_floating_point()) for name, t in network.tensors(network.trained).items()
    }
    start = ModuleSnapshot(module, own)
    try:
        with (
            _Statistics() as statistics,
            call_context(ModelCall(torch.tensor(1, device="meta"))),
            network.swapped(leaves),
        ):
            module.train()
            given = batch()
            objective.run(module, {name: given[name] for name in objective.inputs if name in given})
            after = registered(module)
    except Exception:  # of the user's code, or of an operator without a form on this device
        return StepEffects()
    finally:
        start.restore()
        module.train(training)
    tensors = tuple(
        name
        for name, t in own.items()
        if name not in network.trained
        and (after.get(name) is not t or t._version != versions[name] or id(t) in statistics.written)
    )
    return StepEffects(tensors, tuple(name for name in tensors if not own[name].is_floating_point()))


class _Statistics(TorchDispatchMode):
    """Sees the running statistics that operators write to without counting it as a change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        if "batch_norm" in str(operator) and len(args) > 5 and args[5] is True:
            self.written |= {id(one) for one in args[3:5] if isinstance(one, Tensor)}
        return operator(*args, **(kwargs or {}))


@dataclass
class _Probe:
    """A network, the objective by which it is trained, and two batches."""

    network: Network
    objective: Objective
    batches: Sequence[Batch]

    def __post_init__(self) -> None:
        self.start = ModuleSnapshot(self.network.module, self.network.trained)
        self.training = self.network.module.training
        self.half = _half_precision(self.network.module)
        self.generators = Generators({"model": self.network.module, "objective": self.objective})
        self.draws: dict[str, None] = {}
        self.backward: dict[str, None] = {}  # changed by the first backward pass, and "" once it has been run
        if recomputes(self.network.module):
            self.backward[""] = None  # recomputed layers change their state again, which training drops
        self.key = 0  # of the state of the generators before each pass

    def effects(self) -> StepEffects:
        """Run the passes and return the module to its state."""
        try:
            with _deterministic():
                return self._effects()
        finally:
            self.start.restore()
            self.network.module.train(self.training)

    def _effects(self) -> StepEffects:
        module = self.network.module
        before, own = self._digests(), registered(module)
        kinds = {name: (t.shape, t.dtype) for name, t in own.items()}
        first, *later = self.batches
        passes = [self._train(first)]
        for batch in later:  # whose results, as large as the model, are not compared
            passes.append(self._train(batch, moved=True)._replace(results=[]))
        trained, created = self._digests(), set(registered(module)) - set(own)
        reshaped = {n for n, t in registered(module).items() if n in kinds and (t.shape, t.dtype) != kinds[n]}
        self._evaluate()
        evaluated, after = self._digests(), ModuleSnapshot(module, self.network.trained)
        changed = dict.fromkeys((*_differing(before, trained), *_differing(before, evaluated)))
        others = [name for name in changed if name not in own or name in reshaped]
        tensors = tuple(name for name in own if name in changed and name not in reshaped)
        self.start.restore()
        self._check_repeatable(passes[0])
        passes[0] = passes[0]._replace(results=[])
        state = self._influential(others, tensors, after) if others else []
        faults = {name: CREATED for name in state if name in created}
        faults |= {name: RESHAPED for name in state if name in reshaped}
        faults |= {name: CREATED for name in created if isinstance(registered(module).get(name), torch.nn.Parameter)}
        faults |= {name: EVALUATED for name in _differing(trained, evaluated) if name in (*tensors, *state)}
        faults |= {name: BACKWARD for name in self.backward if name in (*tensors, *state)}
        faults |= {name: OVERWRITTEN for one in passes for name in sorted(one.replaced)}
        return StepEffects(
            tensors=tensors,
            counters=tuple(name for name in tensors if not own[name].is_floating_point()),
            attributes=tuple(name for name in state if name not in faults or faults[name] == EVALUATED),
            caches=tuple(name for name in others if name not in state),
            written=tuple(sorted({name for one in passes for name in one.written})),
            faults=tuple(faults.items()),
            mixes_examples=self._mixes_examples(),
            draws=tuple(self.draws),
        )

    def _mixes_examples(self) -> bool:
        """Return whether the results of a batch's examples depend on which others follow in the same pass."""
        first, found = self.batches[0], []
        for second in self.batches:
            joined = {name: torch.cat([t, second[name]]) for name, t in first.items()}
            found.append(self._train(joined).results[0][: len(first["mask"])])
            self.start.restore()
        return float((found[0] - found[-1]).abs().max()) > max(MIXING, self.half) * float(found[0].abs().max())

    def _digests(self) -> dict[str, str]:
        return digests(self.network.module, set(self.network.trained))

    def _check_repeatable(self, first: _Pass) -> None:
        """Raise ConfigError if the first step, taken again from the same state, gives another result."""
        self.key = 0 if self.draws else 1  # from other states of the generators, where no draw was noticed
        again = self._train(self.batches[0])
        self.start.restore()
        self.key = 0
        if _close(first.results, again.results, self.half):
            return
        if not self.draws:
            again = self._train(self.batches[0])
            self.start.restore()
            self.draws[UNNOTICED] = None
        if not _close(first.results, again.results, self.half):
            raise ConfigError(f"model: {HIDDEN}")

    def _influential(self, names: list[str], tensors: tuple[str, ...], after: ModuleSnapshot) -> list[str]:
        """Return those of the changed values on which a training step or an evaluation depends.

        `tensors`: the registered tensors that are carried from step to step, which are the same in both comparisons.
        """
        found = []
        for others in (self.start, after):
            others.restore()
            self.start.restore_tensors(tensors)
            evaluated = self._forward(self.batches[0])
            others.restore()
            self.start.restore_tensors(tensors)
            found.append(([*evaluated, *self._train(self.batches[-1]).results], self._digests()))
            self.start.restore()
        (results, first), (results_after, second) = found
        if not _close(results, results_after, self.half):
            return names
        return [name for name in names if first.get(name) != second.get(name)]

    def _train(self, batch: Batch, moved: bool = False) -> _Pass:
        """Run a pass and its gradient with copies of the trained parameters, as a local step does.

        `moved`: the parameters are others than at first, as in a later step.
        """
        network = self.network
        values = network.tensors(network.trained)

        def start(t: Tensor) -> Tensor:
            return t * MOVED + (MOVED - 1) if moved and t.is_floating_point() else t.clone()

        leaves = {name: start(t).requires_grad_(t.is_floating_point()) for name, t in values.items()}
        with torch.enable_grad(), network.swapped(leaves):
            results, total = self._run(batch, train=True)
            results = [one.detach().clone() for one in results]
            before = self._digests() if not self.backward else {}
            if total.requires_grad:
                steppable = [t for t in leaves.values() if t.requires_grad]
                results += [g for g in torch.autograd.grad(total, steppable, allow_unused=True) if g is not None]
            if before:
                self.backward = dict.fromkeys(["", *_differing(before, self._digests())])
            replaced = {name for name, t in leaves.items() if not network.holds(name, t)}
        written = {name for name, t in leaves.items() if not torch.equal(t.detach(), start(values[name]))}
        return _Pass(results, written, replaced)

    def _forward(self, batch: Batch) -> list[Tensor]:
        """Return the results of a pass in evaluation mode."""
        with torch.no_grad():
            return [one.clone() for one in self._run(batch, train=False)[0]]

    def _run(self, batch: Batch, train: bool) -> tuple[list[Tensor], Tensor]:
        """Run a pass from one state of all random generators."""
        with self.generators.watched(self.key):
            found = self._pass(batch, train)
        if train:
            self.draws |= dict.fromkeys(self.generators.drawn())
        if self.generators.has_system_draws:
            raise ConfigError(f"model: {SYSTEM_DRAWS}")
        return found

    def _pass(self, batch: Batch, train: bool) -> tuple[list[Tensor], Tensor]:
        module, objective = self.network.module, self.objective
        module.train(train)
        key = torch.tensor(1, device=batch["mask"].device)
        inputs = {name: batch[name] for name in objective.inputs if name in batch}
        with call_context(ModelCall(key if train else None)):
            out = to_outputs(objective.run(module, inputs))
        sums, weights = objective.loss(out, batch)
        return [out.logits, sums, weights], sums.sum() / weights.sum().clamp_min(1e-12)

    def _evaluate(self) -> None:
        """Predict a batch, as an evaluation does."""
        self.network.module.eval()
        with torch.no_grad(), call_context(ModelCall()):
            self.objective.predict(self.network.module, self.batches[0])


def _differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names whose digests differ or that only one side has."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


@contextmanager
def _deterministic() -> Iterator[None]:
    """Use kernels that sum in a fixed order in the block, where torch has them.

    The usual ones of attention differ between two passes in bfloat16 by more than rounding. The debug mode is the same
    switch as `torch.use_deterministic_algorithms`, which would import torch's compiler.
    """
    before = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")  # of operators that have no such kernel
        torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)


def _half_precision(module: torch.nn.Module) -> float:
    """Return the relative error of results in half precision, if the module has such tensors; else 0."""
    kinds = {t.dtype for t in registered(module).values() if t.is_floating_point()}
    return max((HALF_STEPS * torch.finfo(kind).eps for kind in kinds if kind in HALF), default=0.0)


def _close(first: Sequence[Tensor], second: Sequence[Tensor], half: float) -> bool:
    """Return whether results agree: to the bit on a CPU, to rounding on a GPU, which may sum in any order.

    `half`: the relative error of half precision, in which the norm of a difference is judged on a GPU.
    """
    if len(first) != len(second):
        return False
    return all(
        a.shape == b.shape and (_near(a, b, half) if a.is_cuda else _equal(a, b))
        for a, b in zip(first, second, strict=True)
    )


def _near(a: Tensor, b: Tensor, half: float) -> bool:
    """Return whether two tensors agree to rounding."""
    if not half:
        return torch.allclose(a, b, 1e-3, 1e-4, equal_nan=True)
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return float((a - b).norm()) <= half * float(a.norm()) + 1e-6


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())
