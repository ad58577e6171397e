"""Compare predicted with measured durations: 16 throttled processes take part in rounds with real waiting.

    python benchmarks/time_reality.py --out reality.json

Each process is a client. It receives the weights from the server and sleeps in slices as long as its bandwidth needs
for them; trains real local steps of a small model, sleeping after each for the rest of the time that its device needs;
and uploads its weights through a pipe, in slices at its bandwidth. The server waits as the policy says, and averages.
The same profiles, bytes, steps and policies go through `simfl.virtual_time`, and the makespans are compared. Processes
are throttled by sleeping, so the work of 16 clients must fit into the processors of the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from simfl.virtual_time.instants import SECOND
from simfl.virtual_time.profiles import ClientProfiles, Profile, client_profiles
from simfl.virtual_time.rounds import Request, RoundSchedule, schedule_round, start_round
from simfl.virtual_time.settings import RoundTime
from simfl.virtual_time.times import ClientTimes

CLIENTS, ROUNDS, STEPS, SLICES = 16, 3, 5, 20
FEATURES, CLASSES, BATCH = 200, 10, 16
FLOPS = 6.0 * FEATURES * CLASSES  # of training on one example: three passes of a product
POLICIES = {
    "sync": RoundTime(),
    "over_selected": RoundTime(over_selection=1.5),
    "deadline": RoundTime(deadline=3.0),
    "partial_work": RoundTime(deadline=3.0, partial_work=True),
}
KEPT = {"sync": CLIENTS, "over_selected": 10, "deadline": CLIENTS, "partial_work": CLIENTS}
STOP = None


class Job(NamedTuple):
    """The times that a client keeps to in one round, in seconds, and its local steps."""

    download: float
    compute: float
    upload: float
    steps: int
    began: float  # on the monotonic clock of the machine


def main() -> None:
    """Run all policies, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    profile = Profile(
        devices={"phone_low": 0.4, "phone_mid": 0.4, "laptop": 0.2},
        networks={"3g": 0.3, "3g_good": 0.4, "4g": 0.3},
        device_spread=0.5,
        network_spread=0.5,
        efficiency=1e-6,  # so that steps take parts of a second
    )
    results = []
    for name, settings in POLICIES.items():
        times = _times(client_profiles(profile, CLIENTS, seed=7))
        predicted, measured, applied, arrived = _rounds(times, settings, KEPT[name])
        ratio = measured / predicted
        found = {"policy": name, "predicted": predicted, "measured": measured, "ratio": ratio}
        results.append({**found, "applied": applied, "arrived": arrived})
        seconds = f"predicted {predicted:7.3f} s, measured {measured:7.3f} s, ratio {ratio:.4f}"
        print(f"{name:14} {seconds}; uploads predicted {applied}, arrived {arrived}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def _times(profiles: ClientProfiles) -> ClientTimes:
    size = 4 * (FEATURES + 1) * CLASSES
    examples = np.full(CLIENTS, float(STEPS * BATCH))
    messages = np.full(CLIENTS, 10 * size)  # ten copies, for transfers of parts of a second
    return ClientTimes(profiles, 0, FLOPS, messages, messages, np.full(CLIENTS, STEPS), examples)


def _rounds(times: ClientTimes, settings: RoundTime, kept: int) -> tuple[float, float, int, int]:
    """Return predicted and measured seconds of all rounds, and predicted and measured numbers of uploads."""
    context, pipes, processes = multiprocessing.get_context("fork"), [], []
    for _ in range(CLIENTS):
        here, there = context.Pipe()
        process = context.Process(target=_client, args=(there,), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    weights, clock, measured = torch.zeros(FEATURES + 1, CLASSES), 0, 0.0
    applied = arrived = 0
    for number in range(ROUNDS):
        request = Request(kept, 0.0, 7, number)
        start = start_round(times, settings, request, clock, None)
        schedule = schedule_round(times, settings, request, clock, start)
        seconds, uploads = _real_round(settings, schedule, pipes, weights, kept)
        weights = torch.stack(uploads).mean(0) if uploads else weights
        measured += seconds
        applied, arrived = applied + len(schedule.applied), arrived + len(uploads)
        clock = schedule.end
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(STOP)
        process.join()
    return clock / SECOND, measured, applied, arrived


def _real_round(
    settings: RoundTime, schedule: RoundSchedule, pipes: Sequence[Connection], weights: torch.Tensor, kept: int
) -> tuple[float, list[torch.Tensor]]:
    """Let clients work in real time; return the seconds that the server waits, and the uploads in time."""
    clients, began = schedule.clients, time.monotonic()
    for k, client in enumerate(clients.tolist()):
        download, compute, upload = (int(part[k]) / SECOND for part in schedule.durations)
        pipes[client].send((weights, Job(download, compute, upload, int(schedule.steps[k]), began)))
    waiting = {pipes[client] for client in clients.tolist()}
    arrived: list[torch.Tensor] = []
    received: dict[Connection, bytes] = {}
    limit = None if settings.deadline is None else began + settings.deadline
    while waiting and len(arrived) < min(kept, len(clients)):
        rest = None if limit is None else max(0.0, limit - time.monotonic())
        ready = wait(list(waiting), rest)
        if not ready:
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            if (whole := _slice(pipe, received)) is not None:
                arrived.append(whole)
                waiting.discard(pipe)
    seconds = time.monotonic() - began
    for pipe in waiting:  # late uploads are received and dropped before the next round
        while _slice(pipe, received) is None:
            pass
    return seconds, arrived


def _slice(pipe: Connection, received: dict[Connection, bytes]) -> torch.Tensor | None:
    """Receive a slice of an upload; return the whole once it is complete."""
    received[pipe] = received.get(pipe, b"") + pipe.recv_bytes()
    if len(received[pipe]) < 4 * (FEATURES + 1) * CLASSES:
        return None
    return torch.frombuffer(bytearray(received[pipe]), dtype=torch.float32).reshape(FEATURES + 1, CLASSES)


def _client(pipe: Connection) -> None:
    """Take part in rounds until told to stop."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    while (message := pipe.recv()) is not STOP:
        weights, job = message
        at = job.began
        for _ in range(SLICES):
            at = _until(at + job.download / SLICES)
        for _ in range(job.steps):
            weights = _step(weights, generator)
            at = _until(at + job.compute / job.steps)
        content = weights.numpy().tobytes()
        size = -(-len(content) // SLICES)
        for first in range(0, len(content), size):
            at = _until(at + job.upload / SLICES)
            pipe.send_bytes(content[first : first + size])


def _step(weights: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the weights of a linear classifier after a step on a random batch."""
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    leaf = weights.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(inputs @ leaf[:-1] + leaf[-1], labels)
    (gradient,) = torch.autograd.grad(loss, [leaf])
    return weights - 0.1 * gradient


def _until(instant: float) -> float:
    """Sleep until an instant of the monotonic clock; return it, or now if it has passed."""
    now = time.monotonic()
    if instant > now:
        time.sleep(instant - now)
        return instant
    return now


if __name__ == "__main__":
    main()
