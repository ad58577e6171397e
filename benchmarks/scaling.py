"""Measure equal rounds on 1 and 2 nodes, and on 1, 2, 4 GPUs: `python -m benchmarks.scaling [nodes] [gpus]`.

nodes   two Ray workers on one node and, in turn, one on each of two nodes of this machine
gpus    1,000 clients a round of `benchmarks.gpu_works`' femnist and million, one Ray worker per GPU, with
        `deterministic` false and true

Every run is a separate process with its own Ray. A row is the median round after the first few. `waiting`: the share of
a round in which the driver waits for workers or reads their results. `busiest worker`: the share in which the busiest
worker computes. Results go to benchmarks/scaling.json, row by row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from simfl.session.options import RunOptions

LATEST = Path(__file__).parent / "scaling.json"
SKIPPED = 3  # rounds before the median
STORE = 256 << 20  # bytes of each node's object store, where nodes are started here
CLIENTS_PER_ROUND = 1_000  # on GPUs
PROGRAM = "import sys; from benchmarks.scaling import child; child(sys.argv[1])"


@dataclass(frozen=True)
class Case:
    """One run to measure."""

    work: str
    rounds: int
    workers: int
    nodes: tuple[int, ...] = ()  # CPUs of each Ray node; empty: the run starts its own Ray
    deterministic: bool = False


def experiment_of(case: Case) -> Any:
    """Return the experiment of a case."""
    if case.nodes:
        from benchmarks.works import WORKS as CPU_WORKS

        found = CPU_WORKS[case.work]
        changes: dict[str, Any] = {}
    else:
        from benchmarks.gpu_works import WORKS as GPU_WORKS

        found = GPU_WORKS[case.work]
        changes = {"clients_per_round": CLIENTS_PER_ROUND}
    phase = replace(found.phases[0], rounds=case.rounds, **changes)
    return replace(found, phases=(phase,), deterministic=case.deterministic)


@contextmanager
def ray_of(nodes: Sequence[int]) -> Iterator[str | None]:
    """Start Ray nodes with these numbers of CPUs and yield the address of the cluster; yield None without nodes."""
    if not nodes:
        yield None
        return
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-") as temp:
        settings = [{"num_cpus": cpus, "num_gpus": 0, "object_store_memory": STORE} for cpus in nodes]
        head = {"include_dashboard": False, "temp_dir": temp, **settings[0]}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for node in settings[1:]:
                cluster.add_node(**node)
            yield cluster.address
        finally:
            cluster.shutdown()


@contextmanager
def time_waited() -> Iterator[list[float]]:
    """Yield a list that gets the seconds that the driver waits for results in each round of the block."""
    from simfl.runtime.ray.pool import RayPool

    original, seconds = RayPool.train, list[float]()

    def train(self: RayPool, *args: Any, **kwargs: Any) -> Iterator[Any]:
        began, spent = time.perf_counter(), 0.0
        for result in original(self, *args, **kwargs):
            spent += time.perf_counter() - began
            yield result
            began = time.perf_counter()
        seconds.append(spent + time.perf_counter() - began)

    RayPool.train = train  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        RayPool.train = original  # type: ignore[method-assign]


def child(text: str) -> None:
    """Run a case, given as JSON, and print its result as the last line."""
    given = json.loads(text)
    print(json.dumps(one(Case(**{**given, "nodes": tuple(given["nodes"])}))))


def one(case: Case) -> dict[str, Any]:
    """Run a case in this process and return its row."""
    from simfl import simulation

    experiment = experiment_of(case)
    with tempfile.TemporaryDirectory() as folder, ray_of(case.nodes) as address, time_waited() as waited:
        began = time.perf_counter()
        summary = simulation.run(experiment, RunOptions(Path(folder) / "run", workers=case.workers, address=address))
        total = time.perf_counter() - began
        lines = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    later = slice(min(SKIPPED, len(rounds) - 1), None)
    seconds = [row["seconds"] for row in rounds]
    return {
        "seconds": seconds,
        "seconds_per_round": median(seconds[later]),
        "clients_per_second": (experiment.phases[0].clients_per_round or 0) / median(seconds[later]),
        "calls_share": sum(waited[later]) / sum(seconds[later]),
        "work_share": median(max(row["busy"]) / row["seconds"] for row in rounds[later]),
        "workers_seen": len(rounds[-1]["busy"]),
        "gpu_use": _mean_gpu_use(rounds[later]),
        "first_round_seconds": total - sum(seconds[1:]),
        "total_seconds": total,
        "state_sha256": summary["state_sha256"],
        "device": _device(),
    }


def _mean_gpu_use(rounds: list[dict[str, Any]]) -> float | None:
    """Return the mean GPU utilization in [0, 1], or None if NVML does not report it."""
    known = [use for row in rounds for use in row.get("use", ()) if use is not None]
    return mean(known) if known else None


def _device() -> str:
    """Return the name of the device and the version of torch."""
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{card}, torch {torch.__version__}"


def measure(kind: str, case: Case, turn: int, limit: float) -> dict[str, Any] | None:
    """Run a case in a separate process and return its row; print its output and return None if it fails."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(asdict(case))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        output = (
            late.stderr.decode() if isinstance(late.stderr, bytes) else late.stderr
        )  # bytes on Linux, also with text
        print(f"{case}: did not finish within {limit:g} s\n{output or ''}", flush=True)
        return None
    if done.returncode:
        print(f"{case}: failed\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}", flush=True)
        return None
    return {"kind": kind, "turn": turn, **asdict(case), **json.loads(done.stdout.strip().splitlines()[-1])}


def node_cases(works: Sequence[str], rounds: int | None) -> list[Case]:
    """List the cases with two workers on one node and on two."""
    usual = {"W1": 10, "W2": 30}
    return [Case(w, rounds or usual.get(w, 10), 2, nodes) for w in works for nodes in ((2,), (1, 1))]


def gpu_cases(works: Sequence[str], rounds: int | None, gpus: Sequence[int]) -> list[Case]:
    """List the cases with `deterministic` true and false on each number of GPUs."""
    return [Case(w, rounds or 20, n, deterministic=d) for w in works for d in (True, False) for n in gpus]


def as_line(row: dict[str, Any]) -> str:
    """Format a row for a terminal."""
    deterministic = ", deterministic" if row["deterministic"] else ""
    where = f"{len(row['nodes'])} nodes" if row["nodes"] else f"{row['workers']} GPUs{deterministic}"
    return (
        f"{row['work']:8} {where:21} turn {row['turn']}  {row['seconds_per_round']:.3f} s/round"
        f" {row['clients_per_second']:8.0f} clients/s"
        f"  waiting {row['calls_share']:.0%}  busiest worker {row['work_share']:.0%}"
        f"  first round after {row['first_round_seconds']:.1f} s  total {row['total_seconds']:.1f} s"
        f"  {row['state_sha256'][:12]}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases in turn, and print and write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["nodes"], help="nodes or gpus; by default nodes")
    parser.add_argument("--turns", type=int, default=3, help="turns of the nodes; GPUs have one turn")
    parser.add_argument("--works", nargs="+", help="W1, W2 on nodes; femnist, million on GPUs")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--limit", type=float, default=280.0, help="time limit of a run, in seconds")
    parser.add_argument("--out", type=Path, default=LATEST)
    given = parser.parse_args(arguments)
    plans = {
        "nodes": lambda: (node_cases(given.works or ["W1", "W2"], given.rounds), given.turns),
        "gpus": lambda: (gpu_cases(given.works or ["femnist", "million"], given.rounds, given.gpus), 1),
    }
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    for kind in given.kinds:
        cases, turns = plans[kind]()
        works = {case.work for case in cases}
        rows = [row for row in rows if row["kind"] != kind or row["work"] not in works]
        for turn in range(turns):
            for case in cases:
                if (row := measure(kind, case, turn, given.limit)) is not None:
                    rows.append(row)
                    print(as_line(row), flush=True)
                    given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
