"""Trials of faults: runs that a fault strikes at a random instant, and that must end with the undisturbed results.

    PYTHONPATH=tests python tests/runtime/fault_trials.py --out docs/failures.json    # 216 trials
    python docs/make_failures.py    # the table of docs/explanation/failures.md

Each trial is a small SCAFFOLD run on a Ray of its own, in a process of its own. The fault strikes while the run starts
or in a random round. The run must survive it, or end within the limit of its watchdog with one line and an exit code;
it is then resumed. Every weight, state and table row is compared with the undisturbed run. A trial is `lost` if they
differ, `silent` if the run ended without a line, and `hung` if it did not end in time. The instants depend on the seed
and on the machine's speed.

With `--chain N` a trial is one run that is struck N times: after each end it is resumed, and struck again while it
starts or in one of the next rounds. Its results are compared once, so that a difference makes all N faults `lost`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fakes import experiment, run, traces
from nodes import OWN_SESSION, SlowScaffold, cluster

from simfl import config
from simfl.experiment import Experiment
from simfl.runtime.ray.cluster import START_SECONDS

TESTS = Path(__file__).parents[1]
ROUNDS, WATCHDOG, SLACK = 12, 15.0, 15.0  # rounds of a run; seconds
GRACE = 10.0  # seconds between SIGTERM and SIGKILL of a pod
HUNG = 120.0  # seconds after which a run that neither ends nor finishes a round is killed
AT_START = "during the start"
STARTING = 0.25  # share of the trials whose fault strikes before the first round
AHEAD = 3  # rounds between two faults of a chain, at most
# Small object stores; no worker is killed because other trials, or programs, need the memory of the machine
SHARED_MACHINE = {
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(80 << 20),
    "RAY_memory_monitor_refresh_ms": "0",
}
DISK = "160m"  # size of the file system in place of TMPDIR


def case_of(rounds: int) -> Experiment:
    """Return the experiment of a trial."""
    return experiment(SlowScaffold(seconds=0.03), rounds=rounds, watchdog_seconds=WATCHDOG)


CASE = case_of(ROUNDS)


@dataclass(frozen=True)
class Outcome:
    """What one trial showed; seconds count from the fault."""

    fault: str
    trial: int
    where: str = ""
    code: int | None = None  # exit code of the run; None: it was hung and killed
    seconds: float = 0.0
    line: str = ""  # the line that reports the end
    problems: tuple[str, ...] = ()  # of: lost, silent, hung, traceback, orphans
    repeated: int | None = 0  # rounds in the log that the resumed run trained again; None: not known in a chain
    orphans: tuple[str, ...] = ()  # processes of the run that were left 5 s after its end
    struck: bool = True  # False: the run was over before
    began: bool = True  # False: Python had not yet begun to run simfl, so that the system's default ended the process
    output: str = ""  # kept where there is a problem


@dataclass
class Trial:
    """A run in its folder, and the process of it that a fault strikes."""

    folder: Path
    draws: random.Random
    environment: dict[str, str]
    arguments: list[str]
    ahead: int = ROUNDS - 2  # rounds of this start of the run, at most, before the fault
    before: int = 0  # rounds in the log when the run was started the last time
    logs: list[Path] = field(default_factory=list)  # output of each start of the run
    process: subprocess.Popen[str] | None = None
    cluster: Any = None
    nodes: list[Any] = field(default_factory=list)  # nodes of the cluster besides its head
    where: str = ""
    began: float = 0.0  # when the fault struck
    is_listening: bool = True  # whether the process of the command handled or held SIGTERM then

    @property
    def out(self) -> Path:
        """Return the run's folder."""
        return self.folder / "run"

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start the run in a session of its own."""
        words = ["run", str(self.folder / "e.yaml"), "--out", str(self.out), *self.arguments, *more]
        (Path(self.environment["TMPDIR"]) / "filler").unlink(missing_ok=True)  # of a fault before
        self.before = self.num_rounds()
        self.logs.append(self.folder / f"output{len(self.logs)}")
        with self.logs[-1].open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "simfl", *words], cwd=TESTS, env=self.environment, stdout=log,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip

    def output(self) -> str:
        """Return what the newest start of the run printed."""
        return self.logs[-1].read_text(errors="replace")

    def add_node(self) -> None:
        """Add a node to the cluster."""
        self.nodes.append(self.cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=80 << 20))

    def replace_node(self) -> None:
        """Add a node if one was killed."""
        if not any(node.live_processes() for node in self.nodes):
            self.nodes.clear()
            self.add_node()

    def num_rounds(self) -> int:
        """Return the number of rounds in the log."""
        log = self.out / "log.jsonl"
        return log.read_text().count('"event": "round"') if log.exists() else 0

    def wait(self, what: Callable[[], object], seconds: float = 120) -> bool:
        """Wait until something is true; return False if the run ended before."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while not what():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def choose_instant(self, exists: Callable[[], object] = lambda: True) -> bool:
        """Wait for a random instant after `exists` is true; return False if the run ended before."""
        starting = self.draws.random() < STARTING
        after = self.num_rounds() + (0 if starting else self.draws.randint(1, self.ahead))
        pause = self.draws.uniform(0, 3.0 if starting else 0.3)
        if not self.wait(lambda: exists() and self.num_rounds() >= after):
            return False
        time.sleep(pause)
        assert self.process is not None
        rounds = self.num_rounds()
        self.where = f"after round {rounds}" if rounds > self.before else AT_START
        self.is_listening, self.began = is_listening(self.process.pid), time.monotonic()
        return self.process.poll() is None


# Processes


def processes_of(session: int) -> dict[int, str]:
    """Return the living processes of a session with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            state, _, _, sid = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state not in "ZX":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = command.strip() or (folder / "comm").read_text().strip()
    return found


def children_of(process: int) -> list[int]:
    """Return the direct children of a process."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def is_listening(process: int) -> bool:
    """Return whether a process handles or holds SIGTERM; until Python runs simfl, the default ends it."""
    with suppress(OSError):
        masks = re.findall(r"^Sig(?:Blk|Cgt):\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
        return any(int(mask, 16) & 1 << (signal.SIGTERM - 1) for mask in masks)
    return True


def kill(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, number)


# Faults: each waits for an instant, strikes, and returns whether the run was still going


def on_driver(number: int) -> Callable[[Trial], bool]:
    """Strike the process that runs the simulation, as the system does; its parent reports the end."""

    def strike(trial: Trial) -> bool:
        assert trial.process is not None
        parent = trial.process.pid
        if not trial.choose_instant(lambda: children_of(parent)):
            return False
        for child in children_of(parent)[:1]:
            kill(child, number)
        return True

    return strike


def on_command(number: int) -> Callable[[Trial], bool]:
    """Strike the process that the user started."""

    def strike(trial: Trial) -> bool:
        assert trial.process is not None
        if not trial.choose_instant():
            return False
        kill(trial.process.pid, number)
        return True

    return strike


def on_ray(pattern: str, number: int) -> Callable[[Trial], bool]:
    """Strike a process of Ray whose command line contains the pattern."""

    def strike(trial: Trial) -> bool:
        assert trial.process is not None
        session = os.getsid(0) if trial.cluster else trial.process.pid

        def victims() -> list[int]:
            return sorted(pid for pid, words in processes_of(session).items() if pattern in words)

        if not trial.choose_instant(victims):
            return False
        found = victims()
        if found:
            kill(trial.draws.choice(found), number)
        return bool(found)

    return strike


def on_pod(trial: Trial) -> bool:
    """End a pod: SIGTERM to the process group of the run, SIGKILL to all processes after the grace time."""
    assert trial.process is not None
    session = trial.process.pid
    if not trial.choose_instant():
        return False
    os.killpg(session, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while trial.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in processes_of(session):
        kill(pid, signal.SIGKILL)
    return True


def on_step(number: int) -> Callable[[Trial], bool]:
    """Signal all processes of a job step at once, as Slurm does: those of Ray as well."""

    def strike(trial: Trial) -> bool:
        assert trial.process is not None
        if not trial.choose_instant():
            return False
        for pid in processes_of(trial.process.pid):
            kill(pid, number)
        return True

    return strike


def on_node(head: bool) -> Callable[[Trial], bool]:
    """Kill all processes of a node of the cluster."""

    def strike(trial: Trial) -> bool:
        if not trial.choose_instant():
            return False
        node = trial.cluster.head_node if head else trial.nodes[0]
        node.kill_all_processes(check_alive=False, allow_graceful=False)
        return True

    return strike


def on_disk(trial: Trial) -> bool:
    """Fill the file system of TMPDIR."""
    if not trial.choose_instant():
        return False
    with suppress(OSError), (Path(trial.environment["TMPDIR"]) / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    return True


LAUNCHER, RAYLET, GCS, WORKER = "launcher.main", "raylet/raylet", "gcs_server", "ray::WorkerActor"
FAULTS: dict[str, Callable[[Trial], bool]] = {
    "driver, SIGKILL": on_driver(signal.SIGKILL),
    "driver, SIGTERM": on_command(signal.SIGTERM),
    "driver, SIGHUP": on_command(signal.SIGHUP),
    "driver and its parent, SIGKILL": on_command(signal.SIGKILL),
    "worker, SIGKILL": on_ray(WORKER, signal.SIGKILL),
    "worker, frozen (SIGSTOP)": on_ray(WORKER, signal.SIGSTOP),
    "raylet, SIGKILL": on_ray(RAYLET, signal.SIGKILL),
    "raylet, frozen (SIGSTOP)": on_ray(RAYLET, signal.SIGSTOP),
    "GCS, SIGKILL": on_ray(GCS, signal.SIGKILL),
    "GCS, frozen (SIGSTOP)": on_ray(GCS, signal.SIGSTOP),
    "process that starts Ray, SIGKILL": on_ray(LAUNCHER, signal.SIGKILL),
    "process that starts Ray, frozen (SIGSTOP)": on_ray(LAUNCHER, signal.SIGSTOP),
    "worker of a cluster, SIGKILL": on_ray(WORKER, signal.SIGKILL),
    "node of a cluster, SIGKILL": on_node(head=False),
    "head node of a cluster, SIGKILL": on_node(head=True),
    "pod: SIGTERM to the group, then SIGKILL": on_pod,
    "job step: SIGTERM to all processes": on_step(signal.SIGTERM),
    "TMPDIR full": on_disk,
}


SURVIVED = ("worker, SIGKILL", "worker of a cluster, SIGKILL", "node of a cluster, SIGKILL")


def uses_cluster(fault: str) -> bool:
    """Return whether the run joins a cluster that runs already."""
    return "cluster" in fault


# Trials


@dataclass(frozen=True)
class Whole:
    """The undisturbed run of all trials."""

    links: int  # faults in a run
    rounds: int
    traces: dict[str, str]

    @classmethod
    def train(cls, links: int) -> Whole:
        """Train it in this process."""
        rounds = ROUNDS if links == 1 else ROUNDS + 4 * links
        with tempfile.TemporaryDirectory() as folder:
            run(case_of(rounds), Path(folder) / "run")
            return cls(links, rounds, traces(Path(folder) / "run"))


def run_trial(fault: str, number: int, seed: int, whole: Whole) -> list[Outcome]:
    """Run one trial in this process, which ends with it: start a run, strike it, and resume it, once for each link."""
    found = list[Outcome]()
    with _opened(fault, number, seed) as trial:
        trial.ahead = trial.ahead if whole.links == 1 else AHEAD
        (trial.folder / "e.yaml").write_text(config.dump(case_of(whole.rounds)))
        for _ in range(whole.links):
            if trial.process is None or trial.process.poll() is not None:
                trial.process = trial.start(*(["--resume"] if found else []))
            survives = whole.links > 1 and fault in SURVIVED
            outcome = _strike(trial, fault, number, survives)
            if not outcome.struck:
                break
            found.append(outcome)
            if outcome.code == 0 and not survives:  # it completed
                break
        return _finish(trial, found, whole) if found else [Outcome(fault, number, struck=False)]


@contextmanager
def _opened(fault: str, number: int, seed: int) -> Iterator[Trial]:
    """Yield a trial whose cluster runs and whose run does not."""
    with suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # at the limit of all trials: end the run that was started
    _take_two_cores(number)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True)))
        temporary = stack.enter_context(_temporary_folder(folder, full=fault == "TMPDIR full"))
        os.environ |= OWN_SESSION | SHARED_MACHINE | {"PYTHONPATH": python_path(), "TMPDIR": str(temporary)}
        tempfile.tempdir = None
        trial = Trial(folder, random.Random(f"{seed}.{fault}.{number}"), dict(os.environ), ["--workers", "2"])
        if uses_cluster(fault):
            (temporary / "ray").mkdir()  # where Ray notes the address of a cluster
            trial.cluster = stack.enter_context(cluster(1))
            trial.add_node()
            trial.arguments = ["--address", trial.cluster.address]
        try:
            yield trial
        finally:
            for process in filter(None, [trial.process]):
                _end_session(process.pid)


def python_path() -> str:
    """Return PYTHONPATH with the folders of simfl and of the tests' modules before what it holds."""
    return os.pathsep.join(filter(None, [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH")]))


def _take_two_cores(number: int) -> None:
    """Run on two cores, as each Ray takes all that it may use."""
    cores = sorted(os.sched_getaffinity(0))
    first = 2 * number % len(cores)
    os.sched_setaffinity(0, {cores[first], cores[(first + 1) % len(cores)]})


@contextmanager
def _temporary_folder(folder: Path, full: bool) -> Iterator[Path]:
    """Yield a folder for temporary files, a file system of its own if it is to be filled."""
    temporary = folder / "m"
    temporary.mkdir()
    if full:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", temporary], check=True)
    try:
        yield temporary
    finally:
        if full:
            subprocess.run(["umount", "--lazy", temporary], check=False)


def _strike(trial: Trial, fault: str, number: int, survives: bool) -> Outcome:
    """Strike a run, and wait for its end; a run that survives the fault only has to finish two more rounds."""
    assert trial.process is not None
    if not FAULTS[fault](trial):
        _end_session(trial.process.pid)
        trial.process.wait()
        return Outcome(fault, number, struck=False)
    rounds = trial.num_rounds()
    if survives and trial.wait(lambda: trial.num_rounds() >= rounds + 2, HUNG):
        if uses_cluster(fault):
            trial.replace_node()
        return Outcome(fault, number, trial.where, 0, round(time.monotonic() - trial.began, 2), repeated=None)
    return _end(trial, fault, number)


def _end(trial: Trial, fault: str, number: int) -> Outcome:
    """Wait for the end of a run that was struck, and return what it showed."""
    process, problems = trial.process, list[str]()
    assert process is not None
    code = _wait(trial)
    seconds = time.monotonic() - trial.began
    orphans = tuple(_orphans(process.pid) if code is not None else [])
    _end_session(process.pid)
    process.wait()
    output = trial.output()
    lines = [text for text in output.splitlines() if text.startswith("simfl: ")]
    limit = START_SECONDS if trial.where == AT_START else WATCHDOG
    if code is None or (code == 3 and seconds > limit + SLACK):
        problems.append("hung")
    by_user = code == -signal.SIGKILL  # the process was killed itself and can say nothing
    began = trial.is_listening or code is None or code >= 0
    if began and code not in (0, None) and not by_user and not _is_reported(code, lines, output):
        problems.append("silent")
    if "Traceback" in output:
        problems.append("traceback")
    if orphans:
        problems.append("orphans")
    line = lines[-1] if lines else ""
    return Outcome(
        fault, number, trial.where, code, round(seconds, 2), line.replace(str(trial.folder), "…"), tuple(problems),
        orphans=orphans, began=began, repeated=None, output=output if problems else "",
    )  # fmt: skip


def _is_reported(code: int | None, lines: Sequence[str], output: str) -> bool:
    """Return whether the end was reported: in one line, or by the summary of an interrupted run."""
    return len(lines) == 1 or (code == 130 and not lines and "--resume" in output)


def _orphans(session: int) -> list[str]:
    """Return the processes of a run that are left 5 seconds after its end."""
    deadline = time.monotonic() + 5
    while (left := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return sorted(words.replace(f"{Path.cwd()}/", "")[:60] for words in left.values())


def _end_session(session: int) -> None:
    for pid in processes_of(session):
        kill(pid, signal.SIGKILL)


def _finish(trial: Trial, found: list[Outcome], whole: Whole) -> list[Outcome]:
    """Let the run complete, resumed unless it survived, and compare its results; if they differ, all faults lost."""
    assert trial.process is not None
    before, output, code = trial.num_rounds(), "", trial.process.poll()
    if code is None:  # it survived
        code = _wait(trial)
    if code != 0:
        trial.arguments = ["--backend", "inline"]  # the bits do not depend on it, and it needs less time
        trial.process = trial.start("--resume")
        code = _wait(trial)
        output = f"\n--- resumed, exit code {code} ---\n{trial.output()}"
    if code != 0 or traces(trial.out) != whole.traces:
        return [replace(one, problems=(*one.problems, "lost"), output=one.output + output) for one in found]
    resumed_at = json.loads((trial.out / "summary.json").read_text()).get("resumed_at") or [before]
    return [*found[:-1], replace(found[-1], repeated=max(0, before - resumed_at[-1]) if found[-1].code != 0 else 0)]


def _wait(trial: Trial) -> int | None:
    """Return the exit code of a run; None if it neither ends nor finishes a round."""
    assert trial.process is not None
    rounds = -1
    while (found := trial.num_rounds()) > rounds:
        rounds = found
        with suppress(subprocess.TimeoutExpired):
            return trial.process.wait(HUNG)
    return None


def _run_numbered(task: tuple[str, int, int, Whole]) -> list[Outcome]:
    try:
        return run_trial(*task)
    except Exception as error:  # the cluster of the trial could not be started: no fault struck
        text = f"{type(error).__name__}: {error}"
        return [Outcome(task[0], task[1], struck=False, problems=("broken trial",), output=text)]


def run_trials(tasks: Sequence[tuple[str, int]], given: argparse.Namespace, show: Callable[[Outcome], None]) -> None:
    """Run trials in parallel processes; after `given.seconds` no more are started or awaited."""
    whole = Whole.train(given.chain)
    deadline = time.monotonic() + given.seconds
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fakes", "nodes", "ray"])  # imported once for all trials
    with context.Pool(given.parallel, maxtasksperchild=1) as pool:
        results = pool.imap_unordered(_run_numbered, [(*task, given.seed, whole) for task in tasks], chunksize=1)
        for _ in tasks:
            try:
                for outcome in results.next(max(0.0, deadline - time.monotonic())):
                    show(outcome)
            except multiprocessing.TimeoutError:
                break


def main() -> int:
    """Run the trials and write their outcomes; return 1 if one of them has a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the outcomes")
    parser.add_argument("--times", type=int, default=12, help="trials of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--seconds", type=float, default=3600.0, help="time after which no more trials are awaited")
    parser.add_argument("--only", default="", help="regular expression of the faults")
    parser.add_argument("--chain", type=int, default=1, metavar="N", help="faults in each trial, one after the other")
    given = parser.parse_args()
    faults = [name for name in FAULTS if re.search(given.only, name)]
    tasks = [(fault, number * len(faults) + k) for number in range(given.times) for k, fault in enumerate(faults)]

    began, outcomes = time.monotonic(), list[Outcome]()

    def show(outcome: Outcome) -> None:
        outcomes.append(outcome)
        state = " ".join(outcome.problems) or "good"
        print(f"{outcome.fault} {outcome.where}: {outcome.code} {outcome.seconds} s {state} {outcome.line}", flush=True)
        write(given.out, outcomes, given.seed, given.parallel, time.monotonic() - began)

    run_trials(tasks, given, show)
    return int(any(outcome.problems for outcome in outcomes))


def write(file: Path, outcomes: Sequence[Outcome], seed: int, parallel: int, seconds: float) -> None:
    """Write the outcomes so far, for docs/make_failures.py."""
    found = {
        "seed": seed,
        "cores": len(os.sched_getaffinity(0)),
        "parallel": parallel,
        "seconds": round(seconds),
        "trials": [asdict(outcome) for outcome in sorted(outcomes, key=lambda one: (one.fault, one.trial))],
    }
    file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
