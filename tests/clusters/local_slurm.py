"""Slurm with two nodes on this machine: munged, slurmctld and two slurmd as processes of the test, on loopback.

Needs the Debian packages `slurm-wlm` and `munge`. Nothing outside of a temporary folder is written, and the processes
are ended by their ids.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo")
PACKAGES = "slurm-wlm munge"
START_SECONDS = 60.0

# A requeued job waits for `cred_expire` seconds, 120 by default. A node is this host under another name; jobs of a
# higher tier requeue those of a lower one, at once in `low` and after a grace time in `grace`.
CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
FirstJobId={first}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
KillWait=30
MinJobAge=600
SlurmdTimeout=20
SlurmctldTimeout=60
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=1:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
PartitionName=grace Nodes=n1,n2 MaxTime=1:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 State=UP
PartitionName=high Nodes=n1,n2 MaxTime=1:00:00 PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing_packages() -> str:
    """Return why Slurm cannot be started here, or an empty string."""
    missing = [name for name in PROGRAMS if program(name) is None]
    return f"no {missing[0]}: needs the Debian packages {PACKAGES}" if missing else ""


def program(name: str) -> str | None:
    """Return the path of a program, also of one for administrators."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def free_ports(number: int) -> list[int]:
    """Return ports of this machine that no process uses."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class LocalSlurm:
    """A Slurm cluster of two nodes, from `start` until `stop`."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="slurm-")))  # short, for sockets
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which Slurm's commands find this cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RAY_", "SBATCH"))}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start the processes, and wait until both nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (self.folder / "state").mkdir()
        first = secrets.randbelow(50_000_000) + 1_000_000  # folders of jobs are named by it
        settings = {"folder": self.folder, "host": socket.gethostname(), "user": getpass.getuser(), "first": first}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(ports=free_ports(3), **settings))
        files = {"key-file": key, "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        named = [f"--{name}={self.folder / value}" for name, value in {**files, "seed-file": "munged.seed"}.items()]
        self._run("munged", "--foreground", "--force", *named)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self._wait(lambda: self.ask("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * 6, "Slurm")

    def start_controller(self) -> None:
        """Start the controller, which knows its jobs again."""
        self._run("slurmctld", "-D")

    def stop_controller(self) -> None:
        """End the controller; the processes of its jobs remain, and Slurm's commands fail."""
        controller = self.processes.pop("slurmctld")
        controller.terminate()
        controller.wait(60)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._run("slurmd", "-D", "-N", node, key=node)

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node; the processes of its jobs remain."""
        self.processes.pop(node).kill()

    def _run(self, name: str, *words: str, key: str = "") -> None:
        path = program(name)
        assert path is not None
        with open(self.folder / f"{key or name}.out", "ab") as log:
            self.processes[key or name] = subprocess.Popen([path, *words], env=self.environment, stdout=log, stderr=log)

    def _wait(self, is_ready: object, name: str) -> None:
        assert callable(is_ready)
        until = time.monotonic() + START_SECONDS
        while not is_ready():
            if time.monotonic() > until:
                raise RuntimeError(f"{name} did not start: {self.logs()}")
            time.sleep(0.2)

    def logs(self) -> str:
        """Return the last lines of all logs."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-800:]}" for file in files)

    def ask(self, *words: str) -> str:
        """Return what one of Slurm's commands prints; an empty string if it fails."""
        return subprocess.run(words, env=self.environment, capture_output=True, text=True).stdout

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job."""
        words = self.ask("scontrol", "show", "job", "--oneliner", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def stop(self) -> None:
        """Cancel all jobs, end the processes and remove the folder."""
        self.ask("scancel", "--user", getpass.getuser())
        until = time.monotonic() + 45
        while self.ask("squeue", "--noheader").strip() and time.monotonic() < until:
            time.sleep(0.5)
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
