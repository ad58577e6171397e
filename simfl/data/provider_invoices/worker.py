"""Pages made by other Python processes, started as commands.

Nothing is imported from the caller's main module, so a script, a notebook and an actor can all build the benchmark.

    python -m simfl.data.provider_invoices.worker < job (JSON) > documents (two Arrow streams)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import pyarrow as pa

from simfl.data.base import Split
from simfl.data.provider_invoices.documents import NAMESPACE, Recipe, benchmark_providers, make_document
from simfl.data.provider_invoices.plan import Place
from simfl.data.provider_invoices.provider import BENCHMARK
from simfl.data.provider_invoices.tables import pages, to_split
from simfl.errors import DataError

MODULE = "simfl.data.provider_invoices.worker"


@dataclass(frozen=True)
class Job:
    """Documents to make."""

    providers: int
    unseen: int
    recipe: Recipe
    places: tuple[Place, ...]


def make(job: Job) -> Split:
    """The documents of a job, made here."""
    seen, unseen = benchmark_providers(job.recipe.seed, job.providers, job.unseen, job.recipe.groups)
    providers = seen + unseen
    return to_split(
        [make_document(providers[p.provider], p.page, NAMESPACE, BENCHMARK, job.recipe) for p in job.places]
    )


def make_all(jobs: Sequence[Job], processes: int) -> list[Split]:
    """The documents of every job, in order, the same with any number of processes; 1: made here."""
    if processes == 1:
        return [make(job) for job in jobs]
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(_elsewhere, jobs))


def _elsewhere(job: Job) -> Split:
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=json.dumps(asdict(job)).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise DataError(f"provider_invoices: a process that makes pages ended with {done.returncode}: {last[0]}")
    source = pa.BufferReader(done.stdout)
    examples, documents = (pa.ipc.open_stream(source).read_all() for _ in range(2))
    return Split(examples, documents)


def main() -> None:
    """Reads one job, makes it, writes its tables."""
    body = json.load(sys.stdin)
    places = tuple(Place(*place) for place in body["places"])
    split = make(Job(body["providers"], body["unseen"], Recipe(**body["recipe"]), places))
    for table in (split.examples, pages(split)):
        with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
            stream.write_table(table)


if __name__ == "__main__":
    main()
