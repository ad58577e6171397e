"""Slurm: an sbatch script that starts Ray on the allocated nodes, runs the driver, and stops Ray at its end.

The script (`slurm_job.sh` below the settings) runs on the first node, which becomes the head of Ray. The token of the
cluster is created in the job and exists only in its environment. Before the time limit Slurm sends SIGUSR1 to the
script, which stops the driver, so that it saves a checkpoint, and restarts the job. A restarted job resumes.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from simfl import api
from simfl.constraints import NonNegativeInt, PositiveInt
from simfl.errors import ConfigError
from simfl.submit.cluster import Cluster
from simfl.submit.request import URL, Request, values
from simfl.sweeps import sweep
from simfl.sweeps.file import load

WARNING_SECONDS = 120  # time between the signal and the time limit; less with a short limit
SIGNAL_RESOLUTION = 60  # seconds by which Slurm may send the signal earlier
MIN_LIMIT = 120  # seconds; with less, the signal could arrive before Ray has started
POLL_SECONDS = 2.0  # between two reads of a log
MAX_FAILURES = 60  # of squeue in a row, two minutes
GONE = "Invalid job id"  # error of squeue for a job that ended some time ago
EXIT_CODE = re.compile(r"^simfl: exit code (\d+)$", re.MULTILINE)  # the script's last line
ENDED = (  # states of a job that does not run again, unless Slurm restarts it
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")  # [days-]hours:minutes:seconds, or minutes:seconds
SCRIPT = Path(__file__).with_name("slurm_job.sh")


@dataclass(frozen=True)
class Slurm(Cluster):
    """A Slurm job that starts Ray on its nodes, runs the driver on the first one, and restarts itself at its limit."""

    nodes: PositiveInt = 1  # nodes of the job
    cpus: PositiveInt | None = None  # CPUs per node; null: Slurm's default
    gpus: PositiveInt | None = None  # GPUs per node
    time: str | None = None  # time limit, in the format of sbatch; null: the limit of the partition
    min_nodes: PositiveInt | None = None  # nodes that must have joined Ray before the run starts; null: all
    join_seconds: PositiveInt = 300  # seconds that the nodes have to join
    requeues: NonNegativeInt = 20  # restarts after which a job at its time limit is not restarted again
    no_kill: bool = True  # continue on the other nodes if one fails; false: Slurm ends or restarts the job
    array: PositiveInt | None = None  # runs of a sweep at the same time, each an element of a job array with one node
    interface: str = ""  # network interface of Ray's traffic, such as ib0; empty: chosen by Ray
    setup: tuple[str, ...] = ()  # lines of bash before anything else: `module load …`, `source …/activate`
    container: str = ""  # command before Python's on every node, such as `apptainer exec --nv /shared/simfl.sif`
    sbatch: tuple[str, ...] = ()  # more options of sbatch, such as `--partition=gpu`

    def __post_init__(self) -> None:
        limit = None if self.time is None else seconds_of(self.time)
        if limit is not None and limit < MIN_LIMIT:
            raise ConfigError(
                f"time: {self.time} is too short; give at least {MIN_LIMIT // 60} minutes: Slurm signals the end up to"
                f" {SIGNAL_RESOLUTION} s early, and Ray needs time to start"
            )
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ConfigError(f"min_nodes: {self.min_nodes} is more than nodes, {self.nodes}")
        if self.array is not None and (self.nodes > 1 or (self.gpus or 1) > 1):
            raise ConfigError("array: an element trains one run on one node and at most one GPU; remove nodes and gpus")
        for name in ("interface", "container"):
            if "\n" in getattr(self, name):
                raise ConfigError(f"{name}: holds a line break")

    def shown(self, request: Request) -> str:
        """Return the sbatch script."""
        request, folder = with_folder(request)
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {_quoted(option)}" for option in self._options(request, folder)),
            "",
            *(line for text in self.setup for line in _setup(text)),
            *(f': "${{{name}:?is not set}}"' for name in request.environment),
            f"run=({self.container} {shlex.join(shlex.split(request.python))})",
            f"arguments=({shlex.join(self._arguments(request))})",
            f"labels=({shlex.join(request.labels if self.array else ())})",
            f"interface={shlex.quote(self.interface)} min_nodes={self.min_nodes or self.nodes}"
            f" join_seconds={self.join_seconds} requeues={self.requeues}",
            "",
        ]
        return "\n".join(lines) + SCRIPT.read_text()

    def _options(self, request: Request, folder: Path) -> list[str]:
        """Return the options of sbatch."""
        number = "%A-%a" if self.array else "%j"
        return [
            f"--job-name={request.name}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            *([f"--cpus-per-task={self.cpus}"] if self.cpus else []),
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            *([f"--time={self.time}"] if self.time else []),
            *([f"--array=0-{len(request.labels) - 1}%{self.array}"] if self.array else []),
            *(["--no-kill"] if self.no_kill else []),
            f"--signal=B:USR1@{self._warning()}",
            "--requeue",
            "--open-mode=append",
            "--export=ALL",
            f"--chdir={request.package.folder}",
            f"--output={folder / f'slurm-{number}.log'}",
            *(option if option.startswith("-") else f"--{option}" for option in self.sbatch),
        ]

    def _warning(self) -> int:
        """Return the seconds between the signal and the time limit."""
        limit = None if self.time is None else seconds_of(self.time)
        return WARNING_SECONDS if limit is None else min(WARNING_SECONDS, limit // 3)

    def _arguments(self, request: Request) -> list[str]:
        """Return the arguments of simfl; the elements of an array resume the sweep that `submit` begins."""
        if self.array and request.command != "sweep":
            raise ConfigError("--array: needs a sweep, whose runs become the elements")
        if self.array and URL.match(request.out):
            raise ConfigError("--array: needs a folder as --out, which all nodes can access")
        if self.array and request.is_search:
            raise ConfigError("--array: has no effect on a search, whose trials follow from one another; give --nodes")
        execution = request.execution
        if self.array and (execution.workers or execution.gpus_per_run or execution.cpus_per_run):
            name = execution.arguments[0]
            raise ConfigError(f"{name}: has no effect with --array, whose elements train one run each; N of --array")
        if self.array:  # each element selects its run
            request = replace(request, resume=True, execution=replace(execution, only=()))
        return request.arguments

    def submit(self, request: Request, log: Callable[[str], None], follow: bool) -> int:
        """Submit the script with sbatch."""
        values(request.environment)
        request, folder = with_folder(request)
        script = self.shown(request)
        if self.array:
            found = load(request.package.folder / request.file, request.overrides, request.execution.only)
            sweep.begin(found, folder, request.resume)
        folder.mkdir(parents=True, exist_ok=True)
        job = _call(["sbatch", "--parsable"], script).strip().split(";")[0]
        log_file = folder / (f"slurm-{job}-*.log" if self.array else f"slurm-{job}.log")
        log(f"Slurm job {job} submitted; log: {log_file}; stop it with: scancel {job}")
        return _follow(job, log_file, log) if follow else 0


def seconds_of(limit: str) -> int | None:
    """Return a time limit of sbatch in seconds; None without a limit.

    Raises:
        ConfigError: It is none of the formats of sbatch.
    """
    if limit.upper() in ("UNLIMITED", "INFINITE", "0", "-1"):
        return None
    found = TIME_LIMIT.fullmatch(limit)
    if found is None:
        raise ConfigError(f"time: {limit!r} given; allowed: MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS:MINUTES:SECONDS")
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _setup(text: str) -> list[str]:
    """Return a line of the user's, and one that ends the job if it fails."""
    return [text, f'code=$?; [ "$code" = 0 ] || {{ echo simfl: setup failed: {shlex.quote(text)}; exit "$code"; }}']


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
    """Print the logs of a job and its changes of state until it ends; return the exit code, or 1 if no log holds it.

    Args:
        job: Number of the job.
        log_file: Its log; a pattern with `*` for the elements of an array.
        log: Prints a line.
    """
    queue, logs = Queue(job), dict[Path, LogFile]()
    try:
        while True:
            has_ended = queue.has_ended()
            for line in queue.news():
                log(line)
            for path in sorted(log_file.parent.glob(log_file.name)):
                print(logs.setdefault(path, LogFile(path)).more(), end="", flush=True)
            if has_ended:
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        log(f"Slurm job {job} is still running; log: {log_file}; stop it with: scancel {job}")
        return 130
    codes = [one.exit_code for one in logs.values()]
    if not codes or None in codes:
        log(f"Slurm job {job} ended without an exit code{_last_state(job)}; log: {log_file}")
        return 1
    return max(code or 0 for code in codes)


def _last_state(job: str) -> str:
    """Return the state and the reason that Slurm remembers of a job, in brackets; empty if it remembers none."""
    done = subprocess.run(["scontrol", "show", "job", "--oneliner", job], capture_output=True, text=True)
    found = re.search(r"JobState=(\S+) Reason=(\S+)", done.stdout)
    return "" if found is None else f" ({found.group(1)}, reason {found.group(2)})"


@dataclass
class LogFile:
    """A log that a job appends to."""

    path: Path
    position: int = 0
    exit_code: int | None = None  # as the script's last line gives it
    _end: str = ""

    def more(self) -> str:
        """Return the text that was added since the last call."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            content = file.read()
        self.position += len(content)
        text = content.decode(errors="replace")
        self._end = (self._end + text)[-4096:]
        codes = EXIT_CODE.findall(self._end)
        self.exit_code = int(codes[-1]) if codes else self.exit_code
        return text


@dataclass
class Queue:
    """The state of a job in Slurm's queue; a squeue that fails is asked again."""

    job: str
    failures: int = 0  # in a row
    ended: int = 0  # answers in a row that all of the job has ended; Slurm restarts a job after such an answer
    states: dict[str, str] = field(default_factory=dict)  # number of the job or element -> state and reason
    _news: list[str] = field(default_factory=list)

    def has_ended(self) -> bool:
        """Return whether the job has ended, as far as Slurm knows.

        Raises:
            ConfigError: squeue has failed too often in a row.
        """
        command = ["squeue", "--noheader", "--states=all", "--jobs", self.job, "--format=%T|%i|%r"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode and GONE not in done.stderr:
            self.failures += 1
            if self.failures > MAX_FAILURES:
                errors = done.stderr.strip().splitlines() or ["no error message"]
                raise ConfigError(f"--to slurm: squeue fails ({errors[-1]}); Slurm job {self.job} may still be running")
            return False
        self.failures = 0
        jobs = [line.strip().split("|") for line in done.stdout.splitlines() if line.strip()]
        for state, *more in jobs:
            self._note(state, *more)
        self.ended = 0 if any(state not in ENDED for state, *_ in jobs) else self.ended + 1
        return self.ended >= (2 if jobs else 1)

    def _note(self, state: str, number: str = "", reason: str = "") -> None:
        """Remember a state, and that it is news if it has changed."""
        number = number or self.job
        shown = state.lower() + ("" if reason in ("None", "") else f" ({reason})")
        if self.states.get(number) != shown:
            self.states[number] = shown
            self._news.append(f"Slurm job {number}: {shown}")

    def news(self) -> list[str]:
        """Return the changes since the last call."""
        found, self._news = self._news, []
        return found


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
