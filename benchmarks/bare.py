"""The bare PyTorch loop: the initial weights, clients, batches and steps of simfl, and nothing else.

Each process trains a share of the clients of a round (largest first, to the process with the fewest steps), sums their
weighted deltas and returns one sum through shared memory. There are no client states, messages, ledger or checkpoints:
this is the program that one would write for a single experiment. `python -m benchmarks.bare FILE RESULT PROCESSES`.
"""

from __future__ import annotations

import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.plain import PlannedUpdate, Work, flat, read
from benchmarks.result import Stopwatch, write_result


def train(work: Work, start: list[Tensor], updates: list[PlannedUpdate], total: Tensor) -> None:
    """Train clients one after the other and write the flat sum of their weighted deltas to `total`."""
    sums = [torch.zeros_like(p) for p in start]
    for update in updates:
        work.train(update, start)
        with torch.no_grad():
            for s, p, w in zip(sums, work.parameters, start, strict=True):
                s.add_(p - w, alpha=update.weight)
    total.copy_(flat(sums))


def shares(updates: list[PlannedUpdate], processes: int) -> list[list[PlannedUpdate]]:
    """Assign client updates to processes: largest first, each to the process with the fewest steps."""
    out: list[list[PlannedUpdate]] = [[] for _ in range(processes)]
    load = [0] * processes
    for update in sorted(updates, key=lambda update: -len(update.steps)):
        least = load.index(min(load))
        out[least].append(update)
        load[least] += len(update.steps)
    return out


def run(work: Work, processes: int) -> Stopwatch:
    """Train all rounds; the parameters end as the final weights."""
    weights = flat(work.parameters).share_memory_()
    sums = torch.zeros(processes, len(weights)).share_memory_()
    parts = weights.split([p.numel() for p in work.parameters])
    start = [part.view(p.shape) for part, p in zip(parts, work.parameters, strict=True)]
    work.optimizer()  # the first optimizer imports for a second: do it before the fork
    plan = [shares(updates, processes) for updates in work.rounds]
    num_forks = processes if processes > 1 else 0
    forks = [_fork(work, start, [shared[k] for shared in plan], sums[k]) for k in range(num_forks)]
    watch = Stopwatch()
    watch.mark()
    for number, updates in enumerate(work.rounds):
        for _, pipe in forks:
            pipe.send(number)
        for _, pipe in forks:
            pipe.recv()
        if not forks:
            train(work, start, updates, sums[0])
        weights += sums.sum(0) / sum(update.weight for update in updates)
        watch.mark(last=number + 1 == len(work.rounds))
    for process, pipe in forks:
        pipe.send(None)
        process.join()
    with torch.no_grad():
        torch._foreach_copy_(work.parameters, start)
    return watch


def _fork(work: Work, start: list[Tensor], rounds: list[list[PlannedUpdate]], total: Tensor) -> tuple[Any, Any]:
    context = get_context("fork")
    parent, child = context.Pipe()

    def serve() -> None:
        while (number := child.recv()) is not None:
            train(work, start, rounds[number], total)
            child.send(number)

    process = context.Process(target=serve, daemon=True)
    process.start()
    return process, parent


def main(file: str, result: str, processes: int) -> None:
    """Run the work in `file` and write its measurements to `result`."""
    torch.set_num_threads(1)
    work = read(Path(file))
    start = flat(work.parameters)
    watch = run(work, processes)
    write_result(Path(result), watch, flat(work.parameters), start)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
