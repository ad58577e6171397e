"""The bare PyTorch loop: the same start, clients, batches and steps as the engine, and nothing else.

One process trains a share of a round's clients (largest first, to whoever has least to do), adds up their weighted
changes and hands over one sum through shared memory. No memory of clients, no messages, no ledger, no commits: what a
person would write who needs only this one experiment. `python -m benchmarks.bare FILE RESULT PROCESSES`.
"""

from __future__ import annotations

import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.plain import ClientUpdate, Work, flat, read
from benchmarks.result import Stopwatch, write_result


def train(work: Work, start: list[Tensor], visits: list[ClientUpdate], total: Tensor) -> None:
    """Train these clients one after the other; `total` becomes the sum of their weighted changes, flat."""
    sums = [torch.zeros_like(p) for p in start]
    for visit in visits:
        work.train(visit, start)
        with torch.no_grad():
            for s, p, w in zip(sums, work.parameters, start, strict=True):
                s.add_(p - w, alpha=visit.weight)
    total.copy_(flat(sums))


def shares(visits: list[ClientUpdate], processes: int) -> list[list[ClientUpdate]]:
    """Largest first, each to the process with the fewest steps so far."""
    out: list[list[ClientUpdate]] = [[] for _ in range(processes)]
    load = [0] * processes
    for visit in sorted(visits, key=lambda v: -len(v.steps)):
        least = load.index(min(load))
        out[least].append(visit)
        load[least] += len(visit.steps)
    return out


def run(work: Work, processes: int) -> Stopwatch:
    """All rounds. The parameters end as the final weights."""
    weights = flat(work.parameters).share_memory_()
    sums = torch.zeros(processes, len(weights)).share_memory_()
    pieces = weights.split([p.numel() for p in work.parameters])
    start = [piece.view(p.shape) for piece, p in zip(pieces, work.parameters, strict=True)]
    work.optimizer()  # the first one imports for a second: once, before the fork
    parts = [shares(visits, processes) for visits in work.rounds]
    crew = [] if processes == 1 else [_fork(work, start, [p[k] for p in parts], sums[k]) for k in range(processes)]
    watch = Stopwatch()
    watch.mark()
    for number, visits in enumerate(work.rounds):
        for _, pipe in crew:
            pipe.send(number)
        for _, pipe in crew:
            pipe.recv()
        if not crew:
            train(work, start, visits, sums[0])
        weights += sums.sum(0) / sum(visit.weight for visit in visits)
        watch.mark(last=number + 1 == len(work.rounds))
    for process, pipe in crew:
        pipe.send(None)
        process.join()
    with torch.no_grad():
        torch._foreach_copy_(work.parameters, start)
    return watch


def _fork(work: Work, start: list[Tensor], rounds: list[list[ClientUpdate]], total: Tensor) -> tuple[Any, Any]:
    context = get_context("fork")
    here, there = context.Pipe()

    def serve() -> None:
        while (number := there.recv()) is not None:
            train(work, start, rounds[number], total)
            there.send(number)

    process = context.Process(target=serve, daemon=True)
    process.start()
    return process, here


def main(file: str, result: str, processes: int) -> None:
    """Run a work and write what was measured."""
    torch.set_num_threads(1)
    work = read(Path(file))
    start = flat(work.parameters)
    watch = run(work, processes)
    write_result(Path(result), watch, flat(work.parameters), start)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
