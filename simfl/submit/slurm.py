"""Slurm: an sbatch script that starts Ray on the allocated nodes, runs the driver, and stops Ray at its end.

The script runs on the first node, which becomes the head of Ray. The token of the cluster is created in the job and
exists only in its environment. Shortly before the time limit Slurm sends SIGTERM, on which the driver saves a
checkpoint; a job that Slurm restarts resumes from the last checkpoint.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from simfl import api
from simfl.errors import ConfigError
from simfl.submit.request import URL, Request, values
from simfl.sweeps import sweep

WARNING_SECONDS = 120  # time between SIGTERM and the time limit
POLL_SECONDS = 2.0  # between two reads of a log
MAX_FAILURES = 60  # of squeue in a row, two minutes
GONE = "Invalid job id"  # error of squeue for a job that ended some time ago
EXIT_CODE = re.compile(r"^simfl: exit code (\d+)$", re.MULTILINE)  # the script's last line
RECORDS = {"run": "experiment.yaml", "sweep": "sweep.json"}  # file of a folder that can be resumed
ACTIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "SUSPENDED", "RESIZING", "STAGE_OUT")

SCRIPT = r"""
set -u
unset RAY_ADDRESS
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 PYTHONUNBUFFERED=1 RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
address=$("$python" -c 'import ray; print(ray.util.get_node_ip_address())')
port=$((20000 + SLURM_JOB_ID % 10000))
temp=/tmp/ray-$(id -un)-$SLURM_JOB_ID

# the head: this node
"$python" -m ray.scripts.scripts start --head --block --node-ip-address="$address" --port="$port" \
  --temp-dir="$temp" --include-dashboard=false --num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" \
  > "$temp.log" 2>&1 &
head=$!
until (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; do
  kill -0 "$head" 2>/dev/null || { cat "$temp.log"; echo "simfl: Ray did not start on $SLURMD_NODENAME"; exit 1; }
  sleep 1
done

# the other nodes join the head when they are ready
others=
if [ "$SLURM_NNODES" -gt 1 ]; then
  export python address port
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --ntasks-per-node=1 --exclude="$SLURMD_NODENAME" \
    bash -c 'exec "$python" -m ray.scripts.scripts start --block --address="$address:$port" \
      --num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="${SLURM_GPUS_ON_NODE:-0}"' &
  others=$!
fi

# the driver; a restarted job resumes
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$record" ]; then arguments+=(--resume); fi
"$python" -m simfl "${arguments[@]}" --address "$address:$port" &
driver=$!
trap 'kill -TERM "$driver"' TERM INT
wait "$driver"
code=$?
while kill -0 "$driver" 2>/dev/null; do  # a signal interrupted the wait
  wait "$driver"
  code=$?
done

trap '' TERM
kill -TERM $others "$head" 2>/dev/null
wait
rm -rf "$temp" "$temp.log"
echo "simfl: exit code $code"
exit "$code"
"""


@dataclass(frozen=True)
class Slurm:
    """Options of a Slurm job with its own Ray."""

    nodes: int = 1
    cpus: int | None = None  # per node; null: Slurm's default
    gpus: int | None = None  # per node
    time: str | None = None  # time limit, in the format of sbatch; null: the limit of the partition
    sbatch: tuple[str, ...] = ()  # more options of sbatch, such as `--partition=gpu`

    def shown(self, request: Request) -> str:
        """Return the sbatch script."""
        request, folder = with_folder(request)
        options = [
            f"--job-name={request.name}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            *([f"--cpus-per-task={self.cpus}"] if self.cpus else []),
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            *([f"--time={self.time}"] if self.time else []),
            f"--signal=B:TERM@{WARNING_SECONDS}",
            "--requeue",
            "--open-mode=append",
            "--export=ALL",
            f"--chdir={request.package.folder}",
            f"--output={folder / 'slurm-%j.log'}",
            *(option if option.startswith("-") else f"--{option}" for option in self.sbatch),
        ]
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {_quoted(option)}" for option in options),
            "",
            *(f': "${{{name}:?is not set}}"' for name in request.environment),
            f"python={shlex.quote(request.python)}",
            f"record={shlex.quote(str(folder / RECORDS[request.command]))}",
            f"arguments=({shlex.join(request.arguments)})",
        ]
        return "\n".join(lines) + SCRIPT

    def submit(self, request: Request, log: Callable[[str], None], follow: bool) -> int:
        """Submit the script with sbatch."""
        values(request.environment)
        request, folder = with_folder(request)
        folder.mkdir(parents=True, exist_ok=True)
        job = _call(["sbatch", "--parsable"], self.shown(request)).strip().split(";")[0]
        log_file = folder / f"slurm-{job}.log"
        log(f"Slurm job {job} submitted; log: {log_file}; stop it with: scancel {job}")
        return _follow(job, log_file, log) if follow else 0


def _quoted(option: str) -> str:
    """Return an option of sbatch with its value quoted where it needs to be, as for a path with a space.

    Raises:
        ConfigError: It holds a line break, which would end it.
    """
    if "\n" in option or "\r" in option:
        raise ConfigError(f"--to slurm: {option!r} holds a line break")
    name, equals, value = option.partition("=")
    return f"{name}{equals}{shlex.quote(value)}" if value else option


def with_folder(request: Request) -> tuple[Request, Path]:
    """Return the request with an output folder, and the folder of the log: the same one, if it is not a URL."""
    if not request.out:
        free = {"run": api.folder_of, "sweep": sweep.folder_of}[request.command](request.name, False)
        request = replace(request, out=str(request.package.folder / free))
    if URL.match(request.out):
        return request, request.package.folder
    return request, request.package.folder / request.out


def _follow(job: str, log_file: Path, log: Callable[[str], None]) -> int:
    """Print the log of a job until it ends; return its exit code, or 1 if the log does not contain it."""
    position, text, queue = 0, "", Queue(job)
    try:
        while True:
            ended = queue.has_ended()
            if log_file.exists():
                with log_file.open(errors="replace") as file:
                    file.seek(position)
                    more = file.read()
                    position = file.tell()
                print(more, end="", flush=True)
                text = (text + more)[-4096:]
            if ended:
                codes = EXIT_CODE.findall(text)
                return int(codes[-1]) if codes else 1
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        log(f"Slurm job {job} is still running; log: {log_file}; stop it with: scancel {job}")
        return 130


@dataclass
class Queue:
    """The state of a job in Slurm's queue; a squeue that fails is asked again."""

    job: str
    failures: int = 0  # in a row

    def has_ended(self) -> bool:
        """Return whether the job has ended, as far as Slurm knows.

        Raises:
            ConfigError: squeue has failed too often in a row.
        """
        command = ["squeue", "--noheader", "--jobs", self.job, "--format=%T"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode and GONE not in done.stderr:
            self.failures += 1
            if self.failures > MAX_FAILURES:
                errors = done.stderr.strip().splitlines() or ["no error message"]
                raise ConfigError(f"--to slurm: squeue fails ({errors[-1]}); Slurm job {self.job} may still be running")
            return False
        self.failures = 0
        return done.stdout.strip().split("\n")[0] not in ACTIVE


def _call(command: list[str], text: str) -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError(
            f"--to slurm: {command[0]} is not installed; submit from a login node of the cluster"
        ) from None
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["no error message"]
        raise ConfigError(f"--to slurm: {command[0]} failed: {errors[-1]}")
    return done.stdout
