"""Splits made in pieces by other Python processes, started as commands.

Nothing is imported from the caller's main module, so a script, a notebook and an actor can all build a benchmark.

    python -m simfl.data.io.processes < {"make": "module:function", "job": ...} (JSON) > pieces (Arrow streams)
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from simfl.data.base import Split
from simfl.errors import DataError


def make_all(make: str, jobs: Sequence[Any], processes: int) -> list[Split]:
    """What `make` (`module:function`) makes of every job, in order, the same with any number of processes; 1: here.

    A job is of what JSON can say; tuples arrive as lists.
    """
    if processes == 1:
        function = _function(make)
        return [function(job) for job in jobs]
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(lambda job: _elsewhere(make, job), jobs))


def default_processes(things: int, worth: int) -> int:
    """One a core, up to 8, if there are more than `worth` things to make; else 1."""
    return min(8, os.cpu_count() or 1) if things > worth else 1


def _function(make: str) -> Callable[[Any], Split]:
    module, _, name = make.partition(":")
    function: Callable[[Any], Split] = getattr(importlib.import_module(module), name)
    return function


def _elsewhere(make: str, job: Any) -> Split:
    done = subprocess.run(
        [sys.executable, "-m", "simfl.data.io.processes"],
        input=json.dumps({"make": make, "job": job}).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise DataError(f"{make}: a process that draws ended with {done.returncode}: {last[0]}")
    source, tables = pa.BufferReader(done.stdout), []
    while source.tell() < source.size():
        tables.append(pa.ipc.open_stream(source).read_all())
    return Split(*tables)


def main() -> None:
    """Reads one job, makes it, writes its tables: examples, then documents if there are any."""
    told = json.load(sys.stdin)
    split = _function(told["make"])(told["job"])
    for table in (split.examples, split.documents):
        if table is not None:
            with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
                stream.write_table(table)


if __name__ == "__main__":
    main()
