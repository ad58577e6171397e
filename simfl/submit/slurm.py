"""Slurm: an sbatch script that starts a Ray of its own on the nodes it is given, runs the driver and ends with it.

The batch script itself runs on the first node, which becomes Ray's head. The cluster's token is made in the job and
lives in its environment alone. Shortly before its time is up Slurm sends SIGTERM, which the driver answers with a
commit; a job that Slurm starts again goes on from the last one.
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
from simfl.submit.request import ELSEWHERE, Request, values
from simfl.sweeps import sweep

WARNING = 120  # seconds before the end of its time that a job is told
TICK = 2.0  # seconds between two looks at a log
OVER = re.compile(r"^simfl: exit code (\d+)$", re.MULTILINE)  # the script's last line
RECORDS = {"run": "experiment.yaml", "sweep": "sweep.json"}  # what a folder holds that can be resumed
UNDER_WAY = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "SUSPENDED", "RESIZING", "STAGE_OUT")

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
  --temp-dir="$temp" --include-dashboard=false --num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" &
head=$!
until (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; do
  kill -0 "$head" || exit 1
  sleep 1
done

# the other nodes, which the driver takes in when they are there
others=
if [ "$SLURM_NNODES" -gt 1 ]; then
  export python address port
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --ntasks-per-node=1 --exclude="$SLURMD_NODENAME" \
    bash -c 'exec "$python" -m ray.scripts.scripts start --block --address="$address:$port" \
      --num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="${SLURM_GPUS_ON_NODE:-0}"' &
  others=$!
fi

# the driver; a job that Slurm starts again goes on
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$record" ]; then arguments+=(--resume); fi
"$python" -m simfl "${arguments[@]}" --address "$address:$port" &
driver=$!
trap 'kill -TERM "$driver"' TERM INT
wait "$driver"
code=$?
while kill -0 "$driver" 2>/dev/null; do  # a signal had ended the wait
  wait "$driver"
  code=$?
done

trap '' TERM
kill -TERM $others "$head" 2>/dev/null
wait
rm -rf "$temp"
echo "simfl: exit code $code"
exit "$code"
"""


@dataclass(frozen=True)
class Slurm:
    """A job of Slurm's, with a Ray of its own."""

    nodes: int = 1
    cpus: int | None = None  # of each node; null: what Slurm gives
    gpus: int | None = None  # of each node
    time: str | None = None  # the limit, as sbatch takes it; null: the partition's own
    sbatch: tuple[str, ...] = ()  # further options of sbatch, such as `--partition=gpu`

    def shown(self, request: Request) -> str:
        """The sbatch script."""
        request, folder = placed(request)
        options = [
            f"--job-name={request.name}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            *([f"--cpus-per-task={self.cpus}"] if self.cpus else []),
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            *([f"--time={self.time}"] if self.time else []),
            f"--signal=B:TERM@{WARNING}",
            "--requeue",
            "--open-mode=append",
            "--export=ALL",
            f"--chdir={request.parcel.folder}",
            f"--output={folder / 'slurm-%j.log'}",
            *(option if option.startswith("-") else f"--{option}" for option in self.sbatch),
        ]
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            "",
            *(f': "${{{name}:?is not set}}"' for name in request.environment),
            f"python={shlex.quote(request.python)}",
            f"record={shlex.quote(str(folder / RECORDS[request.command]))}",
            f"arguments=({shlex.join(request.words)})",
        ]
        return "\n".join(lines) + SCRIPT

    def submit(self, request: Request, say: Callable[[str], None], follow: bool) -> int:
        """Hand the script to sbatch."""
        values(request.environment)
        request, folder = placed(request)
        folder.mkdir(parents=True, exist_ok=True)
        job = _call(["sbatch", "--parsable"], self.shown(request)).strip().split(";")[0]
        log = folder / f"slurm-{job}.log"
        say(f"Slurm job {job} is submitted; its log: {log}; to end it: scancel {job}")
        return _follow(job, log, say) if follow else 0


def placed(request: Request) -> tuple[Request, Path]:
    """The request with a folder to write to, and where the job's log goes: beside what the run leaves."""
    if not request.out:
        free = {"run": api.folder_of, "sweep": sweep.folder_of}[request.command](request.name, False)
        request = replace(request, out=str(request.parcel.folder / free))
    if ELSEWHERE.match(request.out):
        return request, request.parcel.folder
    return request, request.parcel.folder / request.out


def _follow(job: str, log: Path, say: Callable[[str], None]) -> int:
    """The job's log as it grows, until Slurm knows the job no more; its exit code, 1 if the log does not tell."""
    place, text = 0, ""
    try:
        while True:
            ended = _state(job) not in UNDER_WAY
            if log.exists():
                with log.open(errors="replace") as file:
                    file.seek(place)
                    more = file.read()
                    place = file.tell()
                print(more, end="", flush=True)
                text = (text + more)[-4096:]
            if ended:
                codes = OVER.findall(text)
                return int(codes[-1]) if codes else 1
            time.sleep(TICK)
    except KeyboardInterrupt:
        say(f"Slurm job {job} goes on; its log: {log}; to end it: scancel {job}")
        return 130


def _state(job: str) -> str:
    words = ["squeue", "--noheader", "--jobs", job, "--format=%T"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip().split("\n")[0]


def _call(words: list[str], text: str) -> str:
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError(f"--to slurm: there is no {words[0]} here; submit from a login node of the cluster") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise ConfigError(f"--to slurm: {words[0]} refuses: {said[-1]}")
    return done.stdout
