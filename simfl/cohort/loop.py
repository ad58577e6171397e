"""One client at a time, eager: the reference that the other ways are held to."""

from __future__ import annotations

import torch
from torch import Tensor

from simfl.cohort import pieces, records
from simfl.cohort.pieces import Step
from simfl.cohort.stage import Item, Stage, Trained, call, inputs_of, step_key, tensors_for, with_task
from simfl.cohort.stepper import steppers_of
from simfl.protocol import Batch, MicroStep, Outputs, Parts, State, Visit, Weights


def train(
    stage: Stage,
    items: list[Item],
    start: Weights,
    buffers: Weights,
    received: Parts,
    state: State,
    visit: Visit,
    kept: list[State],
) -> Trained:
    """Train one item, n = 1 in all arguments; `start` is stepped in place. `kept`: what the client remembers."""
    (item,), steppers = items, steppers_of(stage, start, kept)
    own = {name: t[0] for name, t in buffers.items()}
    mine = {key: {name: t[0] for name, t in group.items()} for key, group in state.items()}
    first = Visit(*(t[0] for t in visit))
    key = torch.tensor(item.key, device=stage.device)
    sums = counts = torch.zeros((), device=stage.device)
    batches = torch.from_numpy(item.batches).to(stage.device)
    places = None if item.places is None else torch.from_numpy(item.places).to(stage.device)
    real, algorithm, apart = (item.batches >= 0).sum(1).tolist(), stage.phase.algorithm, stage.pieces > 1
    micro_steps = [(micro, stepper, *_leaves(start, stepper.weights)) for micro, stepper in steppers]
    with stage.binding.swapped(own):
        for step in range(item.steps):
            here = slice(0, real[step])
            batch = {} if apart else stage.batch(batches[step, here], None if places is None else places[step, here])
            now = first._replace(step=first.step + step)
            carried: dict[str, Outputs] = {}
            seen: list[Weights] = []
            for number, (micro, stepper, trained, leaves) in enumerate(micro_steps):
                passes = (stage, micro, carried, batch, trained, received, mine, now, step_key(key, step))
                if apart:
                    names = tuple(leaves)
                    shared = Step(
                        {n: t.detach() for n, t in trained.items()}, names, received, mine, now, step_key(key, step)
                    )
                    task, gradients = pieces.gradients(stage, item, step, shared)
                elif records.hidden(stage):
                    task, gradients = records.gradients(*passes, leaves, item)
                else:
                    task, total = _loss(*passes)
                    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
                stacked = {n: g[None] for n, g in zip(leaves, gradients, strict=True)}
                if micro.steps:
                    stepper.step(stacked, [True], [item.rates[step]])
                stage.observer.stepped(items, step, number, task[0][None], task[1][None], stacked, stepper.weights)
                if algorithm.observes():
                    seen.append(dict(zip(leaves, gradients, strict=True)))
                del gradients, stacked  # the next ones take their place in memory, and in the cache
                carried = {name: outputs.detach() for name, outputs in carried.items()}
                if number == 0:
                    sums, counts = sums + task[0].detach(), counts + task[1].detach()
            if algorithm.observes():
                now_trained = {name: t[0] for name, t in start.items()}
                mine = algorithm.observe(carried, tuple(seen), batch, now_trained, received, mine, now)
    optimizer = (
        [state for _, stepper in steppers for state in stepper.states()] if stage.phase.local.keep_optimizer else []
    )
    after = {key: {name: t[None] for name, t in group.items()} for key, group in mine.items()}
    private_steps = item.steps if records.hidden(stage) else 0
    return Trained(
        start, {n: t[None] for n, t in own.items()}, sums[None], counts[None], after, optimizer, private_steps
    )


def _leaves(start: Weights, stepped: Weights) -> tuple[Weights, Weights]:
    """All tensors of the client, and those that a micro-step differentiates: views of `start`, so they follow it."""
    leaves = {name: t[0].detach().requires_grad_() for name, t in stepped.items()}
    return {name: leaves.get(name, t[0]) for name, t in start.items()}, leaves


def _loss(
    stage: Stage,
    micro: MicroStep,
    carried: dict[str, Outputs],
    batch: Batch,
    trained: Weights,
    received: Parts,
    state: State,
    visit: Visit,
    key: Tensor,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Run the passes of a micro-step and its loss; outputs stay in `carried` for the next one."""
    forwards = stage.phase.algorithm.forwards()
    for name in micro.runs:
        weights = tensors_for(stage.sources[name], trained, received, state)
        outputs = call(stage, forwards[name], weights, inputs_of(stage, batch), key)
        carried[name] = with_task(stage, outputs, batch)
    loss = micro.loss(carried, batch, trained, received, state, visit)
    return loss.parts(), loss.total(batch["mask"])
