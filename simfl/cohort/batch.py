"""A cohort as one program: n clients side by side, a step of all of them at once.

Two programs, chosen by what is trained. `grouped`: one pass of the model over all clients' examples, a frozen base
shared by all, stacked weights in the layers that are trained (see `models.grouped`), and plain autograd; since every
client's loss reads only its own rows, the gradient of the sum is each client's own. `stacked`: the whole local step
under `torch.func.vmap` over stacked weights, where a trained layer has no grouped form.

Batches are padded here, and padding would enter the statistics of normalisation over a batch: such models are trained
one by one.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from simfl.algorithms.base import Algorithm
from simfl.cohort.stage import Item, Stage, Trained, call, inputs_of, step_key, tensors_for, with_task
from simfl.cohort.stepper import Stepper
from simfl.models.grouped import grouped, ungroupable
from simfl.protocol import Batch, MicroStep, Outputs, Parts, State, Visit, Weights

SMALL = 1 << 17  # values of a model
Carried = dict[str, dict[str, Tensor]]  # outputs of passes by name and field, [n, …]


def is_grouped(stage: Stage) -> bool:
    """Whether every trained layer has a grouped form."""
    networks = [stage.network] + ([stage.mentor] if stage.mentor is not None else [])
    return not any(ungroupable(net.module, net.trained) for net in networks)


def pays_on_cpu(module: nn.Module, trained: tuple[str, ...]) -> bool:
    """Whether a CPU trains clients side by side faster than one by one: where a local step is bound by its overhead.

    Perceptrons with batches of 10, cohorts of 16: 0.4 of the loop's time at 50,000 values, 0.6 at 190,000, and 1.5
    times it at 1,100,000, where the copies no longer fit the cache. Grouped convolutions are slow on CPUs.
    """
    values = sum(parameter.numel() for parameter in module.parameters())
    convolves = any(isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for layer in module.modules())
    return values <= SMALL and not convolves and not ungroupable(module, trained)


def train(
    stage: Stage,
    items: list[Item],
    start: Weights,
    buffers: Weights,
    received: Parts,
    state: State,
    visit: Visit,
    steppers: list[tuple[MicroStep, Stepper]],
) -> Trained:
    """Train all items; `start` is stepped in place by `steppers`."""
    algorithm, n, most = stage.phase.algorithm, len(items), max(item.steps for item in items)
    keys = torch.tensor([item.key for item in items], device=stage.device)
    batches = torch.stack([_padded(item.batches, most, -1) for item in items], 1).to(stage.device)  # [steps, n, B]
    places = _places(items, most, stage.device)
    rates = np.zeros((most, n))
    for k, item in enumerate(items):
        rates[: item.steps, k] = item.rates
    sums = counts = torch.zeros(n, device=stage.device)
    use_groups = is_grouped(stage)
    gradients_of = _grouped_gradients if use_groups else _stacked_gradients
    with ExitStack() as stack:
        for network in [stage.network, stage.mentor] if use_groups else []:
            if network is not None:
                stack.enter_context(grouped(network.module, network.trained))
        for step in range(most):
            batch = stage.batch(batches[step], None if places is None else places[step])
            active = [step < item.steps for item in items]
            now = visit._replace(step=visit.step + step)
            carried: Carried = {}
            seen: list[Weights] = []
            for number, (micro, stepper) in enumerate(steppers):
                gradients, task, carried = gradients_of(
                    stage,
                    micro,
                    stepper.weights,
                    start,
                    received,
                    state,
                    batch,
                    now,
                    step_key(keys, step),
                    carried,
                )
                if micro.steps:
                    stepper.step(gradients, active, rates[step])
                stage.observer.stepped(items, step, number, *task, gradients, stepper.weights)
                if algorithm.observes():
                    seen.append(gradients)
                del gradients  # the next ones take their place in memory, and in the cache
                if number == 0:
                    sums, counts = sums + task[0], counts + task[1]
            if algorithm.observes():
                state = _observed(stage, carried, tuple(seen), batch, start, received, state, now, active)
    optimizer = _optimizer_states(steppers, n) if stage.phase.local.keep_optimizer else []
    return Trained(start, buffers, sums, counts, state, optimizer)


def _padded(table: np.ndarray, steps: int, value: int) -> Tensor:
    padded = torch.full((steps, table.shape[1]), value, dtype=torch.int64)
    padded[: len(table)] = torch.from_numpy(table)
    return padded


def _places(items: list[Item], steps: int, device: torch.device) -> Tensor | None:
    """[steps, n, B], if the algorithm asks."""
    tables = [item.places for item in items if item.places is not None]
    return torch.stack([_padded(table, steps, 0) for table in tables], 1).to(device) if tables else None


def _observed(
    stage: Stage,
    carried: Carried,
    gradients: tuple[Weights, ...],
    batch: Batch,
    trained: Weights,
    received: Parts,
    state: State,
    visit: Visit,
    active: list[bool],
) -> State:
    """The algorithm's state after a step of each client that is still at work."""

    def client(
        fields: Carried, gradients: tuple[Weights, ...], batch: Batch, trained: Weights, state: State, visit: Visit
    ) -> State:
        outputs = {name: with_task(stage, Outputs(**tensors), batch) for name, tensors in fields.items()}
        return stage.phase.algorithm.observe(outputs, gradients, batch, trained, received, state, visit)

    after = torch.func.vmap(client)(carried, gradients, batch, trained, state, visit)
    working = torch.tensor(active, device=stage.device)

    def kept(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(working.reshape(-1, *[1] * (old.dim() - 1)), new, old)

    return {key: {name: kept(after[key][name], t) for name, t in group.items()} for key, group in state.items()}


def _optimizer_states(steppers: list[tuple[MicroStep, Stepper]], n: int) -> list[State]:
    return [s for _, stepper in steppers for s in stepper.states()]


def _stacked_gradients(
    stage: Stage,
    micro: MicroStep,
    stepped: Weights,
    start: Weights,
    received: Parts,
    state: State,
    batch: Batch,
    visit: Visit,
    keys: Tensor,
    carried: Carried,
) -> tuple[Weights, tuple[Tensor, Tensor], Carried]:
    forwards = stage.phase.algorithm.forwards()

    def client(
        mine: Weights, rest: Weights, state: State, batch: Batch, visit: Visit, key: Tensor, carried: Carried
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], Carried]]:
        trained = {**rest, **mine}
        outputs = {name: Outputs(**fields) for name, fields in carried.items()}
        for name in micro.runs:
            weights = tensors_for(stage.sources[name], trained, received, state)
            out = call(stage, forwards[name], weights, inputs_of(stage, batch), key, stacked=True)
            outputs[name] = with_task(stage, out, batch)
        loss = micro.loss(outputs, batch, trained, received, state, visit)
        kept = {name: out.detach().tensors() for name, out in outputs.items()}
        return loss.total(batch["mask"]), (loss.parts(), kept)

    rest = {name: t for name, t in start.items() if name not in stepped}
    step = torch.func.vmap(torch.func.grad(client, has_aux=True), randomness="error")
    gradients, (task, kept) = step(stepped, rest, state, batch, visit, keys, carried)
    return gradients, (task[0].detach(), task[1].detach()), kept


def _grouped_gradients(
    stage: Stage,
    micro: MicroStep,
    stepped: Weights,
    start: Weights,
    received: Parts,
    state: State,
    batch: Batch,
    visit: Visit,
    keys: Tensor,
    carried: Carried,
) -> tuple[Weights, tuple[Tensor, Tensor], Carried]:
    forwards, n = stage.phase.algorithm.forwards(), len(keys)
    leaves = {name: t.detach().requires_grad_() for name, t in stepped.items()}
    trained = {name: leaves.get(name, t) for name, t in start.items()}
    flat = {name: t.flatten(0, 1) for name, t in batch.items()}
    fields = dict(carried)
    for name in micro.runs:
        weights = tensors_for(stage.sources[name], trained, received, state)
        out = with_task(stage, call(stage, forwards[name], weights, inputs_of(stage, flat), keys, groups=n), flat)
        fields[name] = {key: t.unflatten(0, (n, -1)) for key, t in out.tensors().items()}

    def client(
        fields: Carried, batch: Batch, trained: Weights, state: State, visit: Visit
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs = {name: Outputs(**tensors) for name, tensors in fields.items()}
        loss = micro.loss(outputs, batch, trained, received, state, visit)
        return loss.total(batch["mask"]), *loss.parts()

    if _is_task_alone(micro):
        totals, sums, counts = _task(fields["student"])
    else:
        totals, sums, counts = torch.func.vmap(client)(fields, batch, trained, state, visit)
    gradients = torch.autograd.grad(totals.sum(), list(leaves.values()), materialize_grads=True)
    kept = {name: {key: t.detach() for key, t in tensors.items()} for name, tensors in fields.items()}
    return dict(zip(leaves, gradients, strict=True)), (sums.detach(), counts.detach()), kept


def _is_task_alone(micro: MicroStep) -> bool:
    """Whether the algorithm adds nothing to the task's loss."""
    return getattr(micro.loss, "__func__", None) is Algorithm.loss


def _task(student: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What `client` gives where the loss is the task's alone, [n] each; mapping costs more than a small pass."""
    sums, counts = student["sums"].sum(1), student["weights"].sum(1)
    return sums / counts.clamp_min(1e-12), sums, counts
