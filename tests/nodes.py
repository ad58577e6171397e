"""Ray on several nodes of this machine, and runs on it in processes of their own.

`ray.cluster_utils` starts a node as a group of processes. `isolated_node` adds one with an address and file systems of
its own: a network namespace, and empty folders in place of the shared ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simfl import config
from simfl.algorithms.scaffold import Scaffold
from simfl.experiment import Experiment
from simfl.protocol import ClientUpdate, Parts, State

HERE = Path(__file__).parent
STORE_BYTES = 80 << 20  # of each node's object store: the smallest size that Ray allows
OWN_SESSION = {"RAY_ADDRESS": "", "OMP_NUM_THREADS": "1"}  # environment variables
LINK, PEER, NETWORK = "simflhost", "simflpeer", "10.213.7"


@dataclass(frozen=True)
class SlowScaffold(Scaffold):
    """SCAFFOLD whose client updates last, so that a test can act during a round."""

    seconds: float = 0.1

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """Sleep."""
        time.sleep(self.seconds)
        return state


@contextmanager
def cluster(*cpus: int, **head: Any) -> Iterator[Any]:
    """Start Ray on nodes with so many CPUs, the first one the head; `head` holds more settings of the head."""
    from ray.cluster_utils import Cluster

    temp = tempfile.mkdtemp(prefix="ray-")  # other processes here would find a Ray in the usual place
    first, *others = ({"num_cpus": n, "num_gpus": 0, "object_store_memory": STORE_BYTES} for n in cpus)
    found = Cluster(
        initialize_head=True, head_node_args={"include_dashboard": False, "temp_dir": temp, **first, **head}
    )
    try:
        for settings in others:
            found.add_node(**settings)
        yield found
    finally:
        found.shutdown()
        shutil.rmtree(temp, ignore_errors=True)


@dataclass
class RunProcess:
    """`simfl run` in a process of its own, on a Ray that is up."""

    experiment: Experiment
    out: Path | str
    address: str
    log: Path  # log.jsonl, as this process sees it
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path = HERE  # working directory
    process: Any = None

    def start(self, scratch: Path) -> RunProcess:
        """Start the process; `scratch` takes the experiment's file."""
        scratch.mkdir(parents=True, exist_ok=True)
        file = scratch / "experiment.yaml"
        file.write_text(config.dump(self.experiment))
        words = ["run", str(file), "--out", str(self.out), "--address", self.address, *self.arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simfl", *words], cwd=self.folder,
            env={**os.environ, **OWN_SESSION, "PYTHONPATH": str(HERE), **self.environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        return self

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log of one kind."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [row for row in map(json.loads, lines) if row["event"] == name]

    def wait_for(self, rounds: int, seconds: float = 240) -> None:
        """Wait until so many rounds are in the log."""
        deadline = time.monotonic() + seconds
        while len(self.events("round")) < rounds:
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, "too slow"
            time.sleep(0.05)

    def end(self, seconds: float = 240) -> str:
        """Wait for the end, check that the run completed, and return its output."""
        output, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, output
        return str(output)


@contextmanager
def isolated_node(address: str, hidden: list[Path], cpus: int = 1) -> Iterator[str]:
    """Add a node with an address of its own, and with an empty file system at each of the hidden folders.

    Yields the command prefix that runs a program inside it. The head must be at the first address of `NETWORK`.
    """
    name = "simflnode"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for words in (
            f"ip link set {PEER} netns {name}",
            f"ip netns exec {name} ip address add {NETWORK}.2/24 dev {PEER}",
            f"ip netns exec {name} ip link set {PEER} up",
            f"ip netns exec {name} ip link set lo up",
        ):
            subprocess.run(words.split(), check=True)
        mounts = " && ".join(f"mount -t tmpfs tmpfs {folder}" for folder in hidden)
        start = f"{sys.executable} -m ray.scripts.scripts start --address={address} --num-cpus={cpus}"
        more = f"--node-ip-address={NETWORK}.2 --object-store-memory={STORE_BYTES} --block"
        node = subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--mount", "bash", "-c", f"{mounts} && exec {start} {more}"],
            env={**os.environ, **OWN_SESSION}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield f"nsenter --target {node.pid} --mount"
        finally:
            node.terminate()
            node.wait(60)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


@contextmanager
def network() -> Iterator[str]:
    """Make a network link, and yield the address of this machine on it; an isolated node gets the other end."""
    subprocess.run(f"ip link add {LINK} type veth peer name {PEER}".split(), check=True)
    try:
        subprocess.run(f"ip address add {NETWORK}.1/24 dev {LINK}".split(), check=True)
        subprocess.run(f"ip link set {LINK} up".split(), check=True)
        yield f"{NETWORK}.1"
    finally:
        subprocess.run(f"ip link delete {LINK}".split(), check=False)


def can_isolate() -> bool:
    """Return whether this machine allows network namespaces and private mounts."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode == 0
