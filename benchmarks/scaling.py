"""The same rounds on 1 and 2 nodes, and on 1, 2, 4 GPUs: `python -m benchmarks.scaling [nodes] [gpus]`.

nodes   two Ray workers on one node and, in turn, one on each of two nodes of this machine: what another node costs
gpus    1,000 clients a round of `benchmarks.gpu_works`' femnist and million, a Ray worker a GPU, fast and strict

Every run is a process of its own with a Ray of its own. A row is the median round after the first few; `same bits`:
the run ends in the state of its work's first row, all tensors and facts. `calls`: the share of a round in which the
driver waits for workers or reads their answers; `at work`: that in which the busiest worker is. Results go to
benchmarks/scaling.json, row by row.
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
from simfl.session.options import RunOptions
from typing import Any

LATEST = Path(__file__).parent / "scaling.json"
SKIPPED = 3  # rounds before the median
STORE = 256 << 20  # bytes of each node's object store, where nodes are started here
AT_ONCE = 1_000  # clients a round on GPUs
PROGRAM = "import sys; from benchmarks.scaling import child; child(sys.argv[1])"


@dataclass(frozen=True)
class Case:
    """One run."""

    work: str
    rounds: int
    workers: int
    nodes: tuple[int, ...] = ()  # CPUs of each Ray node; none: the run starts its own Ray
    exactness: str = "fast"


def experiment_of(case: Case) -> Any:
    """What is run."""
    if case.nodes:
        from benchmarks.works import WORKS as of_cpu

        found = of_cpu[case.work]
        changes: dict[str, Any] = {}
    else:
        from benchmarks.gpu_works import WORKS as of_gpu

        found = of_gpu[case.work]
        changes = {"clients_per_round": AT_ONCE}
    phase = replace(found.phases[0], rounds=case.rounds, **changes)
    return replace(found, phases=(phase,), exactness=case.deterministic)


@contextmanager
def ray_of(nodes: Sequence[int]) -> Iterator[str | None]:
    """The address of a Ray of nodes with so many CPUs; of no nodes none."""
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
def calls() -> Iterator[list[float]]:
    """Seconds that the driver waits in each round for its workers' results, as rounds are made inside the block."""
    from simfl.runtime.ray.pool import RayPool

    usual, seconds = RayPool.train, list[float]()

    def train(self: RayPool, *given: Any, **named: Any) -> Iterator[Any]:
        began, spent = time.perf_counter(), 0.0
        for result in usual(self, *given, **named):
            spent += time.perf_counter() - began
            yield result
            began = time.perf_counter()
        seconds.append(spent + time.perf_counter() - began)

    RayPool.train = train  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        RayPool.train = usual  # type: ignore[method-assign]


def child(text: str) -> None:
    """Run the case and print what came of it as the last line."""
    given = json.loads(text)
    print(json.dumps(one(Case(**{**given, "nodes": tuple(given["nodes"])}))))


def one(case: Case) -> dict[str, Any]:
    """Run it in this process."""
    from simfl import simulation

    experiment = experiment_of(case)
    with tempfile.TemporaryDirectory() as folder, ray_of(case.nodes) as address, calls() as waited:
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
        "gpu_use": _use(rounds[later]),
        "first_round_seconds": total - sum(seconds[1:]),
        "total_seconds": total,
        "state_sha256": summary["state_sha256"],
        "device": _device(),
    }


def _use(rounds: list[dict[str, Any]]) -> float | None:
    """The mean share of the time in which GPUs computed, where NVML tells."""
    known = [use for row in rounds for use in row.get("use", ()) if use is not None]
    return mean(known) if known else None


def _device() -> str:
    """On what it ran, and with which torch."""
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{card}, torch {torch.__version__}"


def measure(kind: str, case: Case, turn: int, limit: float) -> dict[str, Any] | None:
    """A row, from a process of its own; None, and what it said, if it failed."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(asdict(case))]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        print(f"{case}: not done after {limit:g} s\n{late.stderr or ''}", flush=True)
        return None
    if said.returncode:
        print(f"{case}: failed\n{said.stdout[-2000:]}\n{said.stderr[-4000:]}", flush=True)
        return None
    return {"kind": kind, "turn": turn, **asdict(case), **json.loads(said.stdout.strip().splitlines()[-1])}


def node_cases(works: Sequence[str], rounds: int | None) -> list[Case]:
    """Two workers on one node and on two."""
    usual = {"W1": 10, "W2": 30}
    return [Case(w, rounds or usual.get(w, 10), 2, nodes) for w in works for nodes in ((2,), (1, 1))]


def gpu_cases(works: Sequence[str], rounds: int | None, gpus: Sequence[int]) -> list[Case]:
    """Fast and strict on each number of GPUs."""
    return [Case(w, rounds or 20, n, exactness=how) for w in works for how in ("strict", "fast") for n in gpus]


def as_line(row: dict[str, Any]) -> str:
    """A row for a terminal."""
    where = f"{len(row['nodes'])} nodes" if row["nodes"] else f"{row['workers']} GPUs {row['exactness']}"
    return (
        f"{row['work']:8} {where:13} turn {row['turn']}  {row['seconds_per_round']:.3f} s/round"
        f" {row['clients_per_second']:8.0f} clients/s  calls {row['calls_share']:.0%}  at work {row['work_share']:.0%}"
        f"  first round after {row['first_round_seconds']:.1f} s  all {row['total_seconds']:.1f} s"
        f"  {row['state_sha256'][:12]}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in turn, show, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["nodes"], help="nodes, gpus; by default nodes")
    parser.add_argument("--turns", type=int, default=3, help="of nodes; GPUs have one")
    parser.add_argument("--works", nargs="+", help="W1, W2 on nodes; femnist, million on GPUs")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--limit", type=float, default=280.0, help="seconds that one run may take")
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
