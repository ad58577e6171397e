"""Commands inside the pods of a RayJob: `python -m simfl.submit.kuberay_pod run | stop`.

`run` is the entrypoint of the job. It has no arguments of its own, because the operator puts the entrypoint into a
shell script unquoted; those of simfl are in a file of the ConfigMap. `stop` is the hook before the head pod ends, as
when it is evicted: the driver saves a checkpoint before Kubernetes ends Ray.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FILES = Path("/simfl")  # folder of the files of the job in every pod
JOB = ".simfl-job.json"
COMMANDS = ("run", "sweep")
POLL_SECONDS = 0.2


def run(files: Path = FILES) -> None:
    """Replace this process by the driver, in the folder of the job's files."""
    job = json.loads((files / JOB).read_text())
    os.chdir(files)
    if job["bundles"]:
        _request(job["bundles"])
    os.execv(sys.executable, [sys.executable, "-m", "simfl", *job["arguments"]])


def _request(bundles: list[dict[str, float]]) -> None:
    """Ask Ray's autoscaler for machines with these resources; simfl uses each as it joins."""
    import ray
    from ray.autoscaler.sdk import request_resources

    ray.init(address="auto", log_to_driver=False, configure_logging=False)
    request_resources(bundles=bundles)
    ray.shutdown()


def stop(seconds: float) -> None:
    """Send SIGTERM to the drivers of this pod, and wait until they have ended, for so many seconds at most."""
    found = list(_drivers())
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    end = time.monotonic() + seconds
    while time.monotonic() < end and set(found) & set(_drivers()):
        time.sleep(POLL_SECONDS)


def _drivers() -> Iterator[int]:
    """Yield the processes `python -m simfl run` and `python -m simfl sweep`."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if words[1:3] == ["-m", "simfl"] and words[3] in COMMANDS:
                yield int(path.parent.name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(float(sys.argv[2]))
    else:
        run()
