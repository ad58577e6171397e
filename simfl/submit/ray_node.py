"""The Ray of one node of a Slurm job: `python -m simfl.submit.ray_node`, started by `slurm_job.sh`.

The process starts `ray start --block` as its child and prints one line when it is ready. SIGTERM, SIGHUP and SIGINT are
blocked here and in all processes of Ray, which inherit this: Slurm sends the end of a job to every process, and the
driver needs its workers until it has saved a checkpoint. SIGUSR2 ends Ray on the head, and the other nodes end when the
head refuses connections: srun passes no signal on once the job was signalled.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from simfl.errors import ConfigError, RunError
from simfl.runtime.descendants import adopt_orphans, end_with_parent, kill_descendants

SHIELDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
STOP = signal.SIGUSR2
GET_ADDRESS, FAMILY_OFFSET = 0x8915, 20  # of ioctl: SIOCGIFADDR, and the position of the address in its answer
READY = "Ray runtime started"  # in the output of `ray start`, once the node has joined
POLL_SECONDS = 0.5
ATTEMPTS = 3  # to start Ray
NUM_SHOWN = 20  # last lines of Ray's log that an error shows


class _NotStarted(RunError):
    """`ray start` ended before the node was ready."""


class _Stopped(Exception):
    """SIGUSR2 arrived."""


def address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface, such as `ib0`; the one that Ray chooses for an empty name.

    Raises:
        ConfigError: The interface does not exist or has no address.
    """
    if not interface:
        import ray

        return str(ray.util.get_node_ip_address())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            answer = fcntl.ioctl(one.fileno(), GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigError(
                f"--interface: {interface!r} has no IPv4 address on {socket.gethostname()}; interfaces: {known}"
            ) from None
    return socket.inet_ntoa(answer[FAMILY_OFFSET : FAMILY_OFFSET + 4])


def main(arguments: list[str]) -> int:
    """Start Ray on this node, and wait until it ends or SIGUSR2 arrives; return the exit code."""
    given = _parser().parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    signal.signal(STOP, _raise_stopped)
    adopt_orphans()
    try:
        address = address_of(given.interface)
        given.folder.mkdir(mode=0o700, exist_ok=True)  # Ray lets everyone read and write its own folder below it
        _start(given, address)
    except _Stopped:
        return 0
    except (ConfigError, RunError) as error:
        print(f"simfl: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        signal.signal(STOP, signal.SIG_IGN)
        kill_descendants()
        shutil.rmtree(given.folder, ignore_errors=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--join", default="", help="address of the head; empty: this node becomes the head")
    parser.add_argument("--folder", type=Path, required=True, help="folder of Ray's session, removed at the end")
    parser.add_argument("--interface", default="", help="network interface; empty: chosen by Ray")
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    return parser


def _start(given: argparse.Namespace, address: str) -> None:
    """Run Ray; on a machine with much load it may give up its start, which is repeated.

    Raises:
        RunError: Ray did not start in any attempt, or has ended.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return _live(given, address)
        except _NotStarted:
            kill_descendants()
    return _live(given, address)


def _live(given: argparse.Namespace, address: str) -> None:
    """Run Ray until it ends, and print a line once it is ready: the address of the head, or the name of the node.

    Raises:
        _NotStarted: Ray did not start.
        RunError: Ray has ended.
    """
    head = f"{address}:{_free_port()}"
    log = given.folder / "ray.log"
    with open(log, "w") as output:
        ray = subprocess.Popen(
            _command(given, address, head),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
        )
    is_ready = False
    while ray.poll() is None:
        if is_ready and given.join and _has_ended(given.join):
            return
        if not is_ready and READY in log.read_text(errors="replace"):
            is_ready = True
            print(f"ready {given.join or head} {_node_name()}", flush=True)
        time.sleep(POLL_SECONDS)
    lines = "\n".join(log.read_text(errors="replace").splitlines()[-NUM_SHOWN:])
    where = f"on {_node_name()} (exit code {ray.returncode}):\n{lines}"
    if is_ready:
        raise RunError(f"Ray has ended {where}")
    raise _NotStarted(f"Ray did not start {where}")


def _has_ended(head: str) -> bool:
    """Return whether the head refuses connections, twice in a row; one that does not answer is left to Ray."""
    host, _, port = head.rpartition(":")
    for _ in range(2):
        try:
            socket.create_connection((host, int(port)), timeout=POLL_SECONDS).close()
            return False
        except ConnectionRefusedError:
            time.sleep(1.0)
        except OSError:
            return False
    return True


def _command(given: argparse.Namespace, address: str, head: str) -> list[str]:
    """Return the command of `ray start`; all ports are free ones, because jobs may share a machine."""
    role = [
        "--head", f"--port={head.rpartition(':')[2]}", "--include-dashboard=false",
        f"--ray-client-server-port={_free_port()}",
    ]  # fmt: skip
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
        *([f"--address={given.join}"] if given.join else role),
        f"--node-ip-address={address}", f"--temp-dir={given.folder / 'ray'}",
        "--min-worker-port=0", "--max-worker-port=0",
        f"--num-cpus={given.cpus}", f"--num-gpus={given.gpus}",
    ]  # fmt: skip


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    raise _Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
