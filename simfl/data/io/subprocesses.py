"""Parallel generation of splits in Python subprocesses.

Each task runs in a new interpreter that does not import the caller's main module, so a script, a notebook and a Ray
actor can all build a benchmark.

    python -m simfl.data.io.subprocesses < {"function": "module:function", "task": ...} (JSON) > tables (Arrow streams)
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from simfl.data.base import Split
from simfl.errors import DataError


def run_tasks(function: str, tasks: Sequence[object], num_processes: int) -> list[Split]:
    """Call a function on each task and return the splits in order; the result does not depend on `num_processes`.

    Args:
        function: `module:function`, which takes a task and returns a Split.
        tasks: Values that JSON can represent; tuples arrive as lists.
        num_processes: Number of subprocesses; 1 runs all tasks in this process.

    Raises:
        DataError: a subprocess failed.
    """
    if num_processes == 1:
        make = _import(function)
        return [make(task) for task in tasks]
    with ThreadPoolExecutor(num_processes) as pool:
        return list(pool.map(lambda task: _run_in_subprocess(function, task), tasks))


def default_num_processes(num_items: int, threshold: int) -> int:
    """Return one process a core, up to 8, for more than `threshold` items; otherwise 1."""
    return min(8, os.cpu_count() or 1) if num_items > threshold else 1


def _import(name: str) -> Callable[[object], Split]:
    module, _, attribute = name.partition(":")
    function: Callable[[object], Split] = getattr(importlib.import_module(module), attribute)
    return function


def _run_in_subprocess(function: str, task: object) -> Split:
    done = subprocess.run(
        [sys.executable, "-m", "simfl.data.io.subprocesses"],
        input=json.dumps({"function": function, "task": task}).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise DataError(f"{function}: a subprocess exited with code {done.returncode}: {last[0]}")
    source, tables = pa.BufferReader(done.stdout), []
    while source.tell() < source.size():
        tables.append(pa.ipc.open_stream(source).read_all())
    return Split(*tables)


def main() -> None:
    """Read one task from stdin, run it, and write the examples and then the documents, if any, to stdout."""
    request = json.load(sys.stdin)
    split = _import(request["function"])(request["task"])
    for table in (split.examples, split.documents):
        if table is not None:
            with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
                stream.write_table(table)


if __name__ == "__main__":
    main()
