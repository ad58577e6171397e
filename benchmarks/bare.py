"""The bare PyTorch loop: the same start, clients, batches and steps as the engine, and nothing else.

One process trains a share of a round's clients (largest first, to whoever has least to do), adds up their weighted
changes and hands over one sum through shared memory. No memory of clients, no messages, no ledger, no commits: what a
person would write who needs only this one experiment. `python -m benchmarks.bare WORK RESULT PROCESSES`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.result import Stopwatch, write_result
from benchmarks.works import WORKS
from simfl.cohort.plan import batches
from simfl.driver import CACHE
from simfl.experiment import Experiment
from simfl.sampling import sample_clients
from simfl.setting import Setting

Loss = Callable[[Tensor], Tensor]  # of rows of the training split


@dataclass(frozen=True)
class Program:
    """What is trained, on what, from where."""

    loss: Loss
    parameters: list[Tensor]
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]
    rounds: list[list[tuple[int, float, list[Tensor]]]]  # (client, weight, rows of each step) of every round


def program(experiment: Experiment) -> Program:
    """The experiment as a plain loop would hold it."""
    setting = Setting(experiment, CACHE)
    phase = experiment.phases[0]
    rows = setting.examples(phase.objective, "train").rows
    net, loss = NETWORKS[experiment.name](setting.module, rows)
    net.train()
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[phase.local.optimizer.name]
    parameters: list[Tensor] = [p for p in net.parameters() if p.requires_grad]
    return Program(loss, parameters, lambda tensors: make(tensors, lr=phase.local.learning_rate), _rounds(setting))


def _rounds(setting: Setting) -> list[list[tuple[int, float, list[Tensor]]]]:
    experiment, phase = setting.experiment, setting.experiment.phases[0]
    partition = experiment.partition.split(setting.split("train"), experiment.seed)
    rounds = []
    for number in range(phase.rounds):
        visits = []
        for client in sample_clients(phase, len(partition), experiment.seed, 0, number):
            rows = partition.rows(client)
            table = batches(rows, phase.local, experiment.seed, "visit", 0, number, client, 0)
            visits.append((client, float(len(rows)), [torch.from_numpy(step[step >= 0]) for step in table]))
        rounds.append(visits)
    return rounds


def _cnn(module: nn.Module, rows: dict[str, Tensor]) -> tuple[nn.Module, Loss]:
    m: Any = module
    net = nn.Sequential(
        m.conv1, nn.GELU(), m.conv2, nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), m.dense, nn.GELU(), m.head
    )
    return net, lambda index: functional.cross_entropy(net(rows["x"][index]), rows["label"][index])


def _mlp(module: nn.Module, rows: dict[str, Tensor]) -> tuple[nn.Module, Loss]:
    m: Any = module
    net = nn.Sequential(m.layers[0].linear, nn.GELU(), m.head)
    return net, lambda index: functional.cross_entropy(net(rows["x"][index]), rows["label"][index])


def _t5(module: nn.Module, rows: dict[str, Tensor]) -> tuple[nn.Module, Loss]:
    def loss(index: Tensor) -> Tensor:
        answer = rows["answer"][index]
        return functional.cross_entropy(module(rows["tokens"][index], answer).logits.flatten(0, 1), answer.flatten())

    return module, loss


NETWORKS = {"cnn": _cnn, "mlp": _mlp, "t5": _t5}


def train(this: Program, start: list[Tensor], visits: list[tuple[int, float, list[Tensor]]], total: Tensor) -> None:
    """Train these clients one after the other; `total` becomes the sum of their weighted changes, flat."""
    sums = [torch.zeros_like(p) for p in start]
    for _, weight, steps in visits:
        with torch.no_grad():
            torch._foreach_copy_(this.parameters, start)
        optimizer = this.optimizer(this.parameters)
        for rows in steps:
            optimizer.zero_grad()
            this.loss(rows).backward()
            optimizer.step()
        with torch.no_grad():
            for s, p, w in zip(sums, this.parameters, start, strict=True):
                s.add_(p - w, alpha=weight)
    total.copy_(torch.cat([s.flatten() for s in sums]))


def shares(
    visits: list[tuple[int, float, list[Tensor]]], processes: int
) -> list[list[tuple[int, float, list[Tensor]]]]:
    """Largest first, each to the process with the fewest steps so far."""
    out: list[list[Any]] = [[] for _ in range(processes)]
    load = [0] * processes
    for visit in sorted(visits, key=lambda v: -len(v[2])):
        least = load.index(min(load))
        out[least].append(visit)
        load[least] += len(visit[2])
    return out


def run(this: Program, processes: int) -> Stopwatch:
    """All rounds. The parameters end as the final weights."""
    flat = torch.cat([p.detach().flatten() for p in this.parameters]).share_memory_()
    sums = torch.zeros(processes, len(flat)).share_memory_()
    pieces = flat.split([p.numel() for p in this.parameters])
    start = [piece.view(p.shape) for piece, p in zip(pieces, this.parameters, strict=True)]
    this.optimizer(this.parameters)  # the first one imports for a second: once, before the fork
    parts = [shares(visits, processes) for visits in this.rounds]
    crew = [] if processes == 1 else [_fork(this, start, [p[k] for p in parts], sums[k]) for k in range(processes)]
    watch = Stopwatch()
    watch.mark()
    for number, visits in enumerate(this.rounds):
        if crew:
            for _, pipe in crew:
                pipe.send(number)
            for _, pipe in crew:
                pipe.recv()
        else:
            train(this, start, visits, sums[0])
        flat += sums.sum(0) / sum(weight for _, weight, _ in visits)
        watch.mark(last=number + 1 == len(this.rounds))
    for process, pipe in crew:
        pipe.send(None)
        process.join()
    with torch.no_grad():
        torch._foreach_copy_(this.parameters, start)
    return watch


def _fork(this: Program, start: list[Tensor], rounds: list[list[Any]], total: Tensor) -> tuple[Any, Any]:
    context = get_context("fork")
    here, there = context.Pipe()

    def work() -> None:
        torch.set_num_threads(1)
        while (number := there.recv()) is not None:
            train(this, start, rounds[number], total)
            there.send(number)

    process = context.Process(target=work, daemon=True)
    process.start()
    return process, here


def main(work: str, result: str, processes: int) -> None:
    """Run a work and write what was measured."""
    torch.set_num_threads(1)
    this = program(WORKS[work])
    start = torch.cat([p.detach().flatten() for p in this.parameters])
    watch = run(this, processes)
    end = torch.cat([p.detach().flatten() for p in this.parameters])
    write_result(Path(result), watch, end, start)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
