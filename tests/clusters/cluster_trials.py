"""Trials of faults on clusters: jobs on a Slurm with two nodes and pods of a RayJob, struck at a random instant.

    PYTHONPATH=tests python tests/clusters/cluster_trials.py --out F --times 4    # root; 1 to 2 minutes a trial
    python docs/make_failures.py FILE …          # the table of docs/explanation/failures.md

Each trial submits the run of tests/runtime/fault_trials.py with `simfl submit` or its manifest, and has the same
measures: a job must survive, restart by itself, or end with one line and an exit code, and continue to the undisturbed
results. Slurm and the pods are real processes on this machine; see local_slurm.py and local_pods.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import local_pods
import local_slurm
from fakes import run, traces
from local_pods import LocalPods
from local_slurm import LocalSlurm
from runtime.fault_trials import AT_START, CASE, ROUNDS, STARTING, Outcome, kill, python_path, write

from simfl import config

PATIENCE = 300.0  # seconds for a job to start or to end
HUNG = 150.0  # seconds without progress after which a job is hung
EXIT_CODE = re.compile(r"^simfl: exit code (\d+)$", re.MULTILINE)


@dataclass
class Place:
    """The folder of a trial, and what is random in it."""

    folder: Path
    draws: random.Random

    @property
    def out(self) -> Path:
        """Return the folder of the run."""
        return self.folder / "shared" / "run"

    def num_rounds(self) -> int:
        """Return the number of rounds in the log."""
        log = self.out / "log.jsonl"
        return log.read_text().count('"event": "round"') if log.exists() else 0

    def wait_for_instant(self, has_ended: Callable[[], bool]) -> str:
        """Wait for a random instant of the run; return where it is, or an empty string if the run has ended."""
        starting = self.draws.random() < STARTING
        after = 0 if starting else self.draws.randint(1, ROUNDS - 2)
        deadline = time.monotonic() + PATIENCE
        while self.num_rounds() < after:
            if has_ended() or time.monotonic() > deadline:
                return ""
            time.sleep(0.02)
        time.sleep(self.draws.uniform(0, 8.0 if starting else 0.3))
        if has_ended():
            return ""
        rounds = self.num_rounds()
        return f"after round {rounds}" if rounds else AT_START


# Slurm


@dataclass
class SlurmJob:
    """A job of two nodes, submitted by `simfl submit`."""

    slurm: LocalSlurm
    place: Place
    number: str = ""

    def submit(self, *more: str) -> None:
        """Submit the job without following it."""
        words = ["submit", "e.yaml", "--to", "slurm", "--nodes", "2", "--cpus", "1", "--sbatch", "partition=low"]
        done = subprocess.run(
            [sys.executable, "-m", "simfl", *words, "--out", str(self.place.out), "--no-follow", *more],
            cwd=self.place.folder / "work", env=self.slurm.environment | {"PYTHONPATH": python_path()},
            capture_output=True, text=True,
        )  # fmt: skip
        found = re.search(r"Slurm job (\d+) submitted", done.stdout + done.stderr)
        if found is None:
            raise RuntimeError(done.stdout + done.stderr)
        self.number = found.group(1)

    def is_running(self) -> bool:
        """Return whether Slurm has started the job."""
        return self.slurm.job(self.number).get("JobState") == "RUNNING"

    def has_left(self) -> bool:
        """Return whether Slurm holds nothing of the job; one that is restarted is still held."""
        return not self.slurm.ask("squeue", "--noheader", "--jobs", self.number).strip()

    @property
    def log(self) -> str:
        """Return the log of the job, of all its starts."""
        path = self.place.out / f"slurm-{self.number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the job; return False if it makes no progress for this time, however slow it is."""
        seen, deadline = self._progress(), time.monotonic() + seconds
        while not self.has_left():
            if (now := self._progress()) != seen:
                seen, deadline = now, time.monotonic() + seconds
            elif time.monotonic() > deadline:
                return False
            time.sleep(0.3)
        return True

    def _progress(self) -> tuple[int, int, str]:
        """Return the length of the log, the number of rounds, and the number of restarts."""
        return len(self.log), self.place.num_rounds(), self.slurm.job(self.number).get("Restarts", "")

    def orphans(self) -> list[str]:
        """Return the processes of the job that are left 5 seconds after its end."""
        deadline = time.monotonic() + 5
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _processes(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"SLURM_JOB_ID={self.number}\0".encode() in path.read_bytes():
                    found.append((path.parent / "cmdline").read_text().replace("\0", " ")[:60])
            except OSError:  # it has ended
                continue
        return sorted(filter(None, found))

    def strike_process(self, pattern: str, number: int) -> None:
        """Signal a random process of the job with this text in its command line."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                words = (path.parent / "cmdline").read_text()
                if pattern in words and f"SLURM_JOB_ID={self.number}\0".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        if found:
            kill(self.place.draws.choice(sorted(found)), number)


def ask(*words: str) -> Callable[[SlurmJob], None]:
    """Return a fault that one of Slurm's commands causes, with the number of the job as its last word."""

    def strike(job: SlurmJob) -> None:
        job.slurm.ask(*words, job.number)

    return strike


def preempt(job: SlurmJob) -> None:
    """Submit a job of a partition with a higher priority, which needs one of the nodes."""
    words = ["--partition=high", "--nodelist=n2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"]
    job.slurm.ask("sbatch", *words)


SLURM: dict[str, Callable[[SlurmJob], None]] = {
    "Slurm: SIGTERM to the step (scancel --full)": ask("scancel", "--signal=TERM", "--full"),
    "Slurm: SIGHUP to the step (scancel --full)": ask("scancel", "--signal=HUP", "--full"),
    "Slurm: SIGHUP to the job (scancel --signal=HUP)": ask("scancel", "--signal=HUP", "--batch"),
    "Slurm: job cancelled": ask("scancel"),
    "Slurm: job requeued": ask("scontrol", "requeue"),
    "Slurm: job preempted by a partition of higher priority": preempt,
    "Slurm: signal of the time limit": ask("scancel", "--signal=USR1", "--batch"),
    "Slurm: driver, SIGKILL": lambda job: job.strike_process("simfl\0run", 9),
    "Slurm: raylet of a node, SIGKILL": lambda job: job.strike_process("raylet/raylet", 9),
    "Slurm: GCS, SIGKILL": lambda job: job.strike_process("gcs_server", 9),
}


def slurm_trial(slurm: LocalSlurm, fault: str, number: int, place: Place, whole: dict[str, str]) -> Outcome:
    """Run a job, strike it, wait for its end, resume it unless it completed, and compare."""
    job = SlurmJob(slurm, place)
    job.submit()
    deadline = time.monotonic() + PATIENCE
    while not job.is_running() and time.monotonic() < deadline:
        time.sleep(0.1)
    where = place.wait_for_instant(job.has_left)
    if not where:
        return Outcome(fault, number, struck=False)
    SLURM[fault](job)
    began = time.monotonic()
    ended = job.wait(HUNG)
    seconds = time.monotonic() - began
    codes = [int(code) for code in EXIT_CODE.findall(job.log)]
    lines = [text for text in job.log.splitlines() if text.startswith("simfl: ")]
    problems = [] if ended else ["hung"]
    if ended and not codes:
        problems.append("silent")
    if "Traceback" in job.log:
        problems.append("traceback")
    orphans = tuple(job.orphans()) if ended else ()
    problems += ["orphans"] if orphans else []
    code = codes[-1] if codes and ended else None
    outcome = Outcome(
        fault, number, where, code, round(seconds, 2), (lines or [""])[-1], tuple(problems), orphans=orphans,
        output=job.log if problems else "",
    )  # fmt: skip
    slurm.ask("scancel", job.number)
    before = place.num_rounds()
    output = job.log
    if code != 0:
        job.submit("--resume")
        job.wait(PATIENCE)
        output = job.log
    return compared(outcome, place, before, whole, output)


def compared(outcome: Outcome, place: Place, before: int, whole: dict[str, str], output: str) -> Outcome:
    """Return the outcome with `lost` if the results are not those of the undisturbed run."""
    try:
        same = traces(place.out) == whole
        resumed_at = json.loads((place.out / "summary.json").read_text()).get("resumed_at") or [before]
    except (OSError, ValueError, KeyError) as error:
        same, resumed_at, output = False, [before], f"{output}\n{error!r}"
    if same:
        return replace(outcome, repeated=max(0, before - resumed_at[-1]) if outcome.code != 0 else 0)
    return replace(outcome, problems=(*outcome.problems, "lost"), output=f"{outcome.output}\n---\n{output}")


# Pods


def evict(pods: LocalPods, draws: random.Random) -> None:
    """End the head pod as Kubernetes does: hook, SIGTERM, SIGKILL."""
    pods.head.terminate()


def end_without_hook(pods: LocalPods, draws: random.Random) -> None:
    """Send SIGTERM to the first process of the head pod alone, and kill the pod after ten seconds."""
    kill(pods.head.first, 15)
    try:
        pods.head.outer.wait(10)
    except subprocess.TimeoutExpired:
        pods.head.kill()


def kill_head(pods: LocalPods, draws: random.Random) -> None:
    """Kill all processes of the head pod, as the end of its machine does."""
    pods.head.kill()


def kill_worker(pods: LocalPods, draws: random.Random) -> None:
    """Kill all processes of a worker pod."""
    draws.choice(pods.pods[1:]).kill()


PODS: dict[str, Callable[[LocalPods, random.Random], None]] = {
    "head pod evicted: hook, SIGTERM, SIGKILL": evict,
    "head pod: SIGTERM to its first process, then SIGKILL": end_without_hook,
    "head pod, SIGKILL": kill_head,
    "worker pod, SIGKILL": kill_worker,
}


def pod_trial(fault: str, number: int, place: Place, whole: dict[str, str]) -> Outcome:
    """Run the pods of a RayJob, strike one, and let the next attempt continue, as the operator does."""
    words = [
        "--image",
        "x",
        "--claim",
        "results=/shared",
        "--out",
        "/shared/run",
        "--nodes",
        "2",
        "--env",
        "PYTHONPATH",
    ]
    os.environ["PYTHONPATH"] = python_path()
    manifest = local_pods.manifest_of(place.folder / "work", "e.yaml", "--python", sys.executable, *words)
    claims, secret = {"results": place.folder / "shared"}, {"PYTHONPATH": python_path()}
    pods = LocalPods(manifest, place.folder / "pods", claims, secret)
    with _running(pods, place.folder / "log") as job:
        where = place.wait_for_instant(lambda: job.poll() is not None)
        if not where:
            return Outcome(fault, number, struck=False)
        began = time.monotonic()
        PODS[fault](pods, place.draws)
        with _ignored(subprocess.TimeoutExpired):
            job.wait(HUNG)
        seconds, status = time.monotonic() - began, _status(place)
        outcome = _pod_outcome(
            fault, number, where, seconds, status, (place.folder / "log").read_text(errors="replace")
        )
    before, output = place.num_rounds(), ""
    for attempt in range(1, manifest["items"][1]["spec"]["backoffLimit"] + 1):
        if _status(place) == "completed":
            break
        again = LocalPods(manifest, place.folder / f"pods{attempt}", claims, secret)
        log = place.folder / f"log{attempt}"
        with _running(again, log) as job, _ignored(subprocess.TimeoutExpired):
            job.wait(PATIENCE)
        output = log.read_text(errors="replace")
    return compared(outcome, place, before, whole, output)


def _pod_outcome(fault: str, number: int, where: str, seconds: float, status: str, output: str) -> Outcome:
    """Return the outcome of the first attempt: its end is that of the driver, or that of the pod."""
    code = {"completed": 0, "interrupted": 130}.get(status, -9)  # killed with the pod, whose end Kubernetes reports
    problems = ["traceback"] if re.search(r"/simfl/\S+\.py\"", output) else []
    return Outcome(
        fault, number, where, code, round(seconds, 2), "", tuple(problems), output=output if problems else ""
    )


def _status(place: Place) -> str:
    """Return how the run ended, by its summary; an empty string if it had no time to write one."""
    path = place.out / "summary.json"
    return str(json.loads(path.read_text())["status"]) if path.exists() else ""


@contextmanager
def _running(pods: LocalPods, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Start pods and their job for a block."""
    try:
        pods.start()
        with log.open("w") as file:
            job = pods.submit(file)
        try:
            yield job
        finally:
            job.kill()
            job.wait()
    finally:
        pods.stop()


@contextmanager
def _ignored(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds:
        return


# All trials


def run_trial(slurm: LocalSlurm | None, fault: str, number: int, seed: int, whole: dict[str, str]) -> Outcome:
    """Run one trial in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as text:
        place = Place(Path(text), random.Random(f"{seed}.{fault}.{number}"))
        (place.folder / "work").mkdir()
        (place.folder / "shared").mkdir()
        (place.folder / "work" / "e.yaml").write_text(config.dump(CASE))
        try:
            if fault in SLURM:
                assert slurm is not None
                return slurm_trial(slurm, fault, number, place, whole)
            return pod_trial(fault, number, place, whole)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return Outcome(fault, number, struck=False, problems=("broken trial",), output=text)


def main() -> int:
    """Run the trials and write their outcomes; return 1 if one of them has a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the outcomes")
    parser.add_argument("--times", type=int, default=4, help="trials of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="time after which no more trials begin")
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N processes, which share the trials")
    parser.add_argument("--only", default="", help="regular expression of the faults")
    given = parser.parse_args()
    faults = [name for name in (*SLURM, *PODS) if re.search(given.only, name)]
    for kind, reason in ((SLURM, local_slurm.missing_packages()), (PODS, local_pods.missing())):
        if reason and set(faults) & set(kind):
            parser.error(reason)
    began, outcomes = time.monotonic(), list[Outcome]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run(CASE, folder / "run")
        whole = traces(folder / "run")
        slurm = None
        if set(faults) & set(SLURM):
            slurm = LocalSlurm()
            stack.callback(slurm.stop)
            slurm.start()
        part, parts = map(int, given.part.split("/"))
        for number, fault in enumerate(faults * given.times):
            if number % parts != part - 1:
                continue
            if time.monotonic() - began > given.seconds:
                break
            one = run_trial(slurm, fault, number, given.seed, whole)
            outcomes.append(one)
            print(one.fault, one.where, one.code, f"{one.seconds} s", *(one.problems or ["good"]), one.line, flush=True)
            write(given.out, outcomes, given.seed, parts, time.monotonic() - began)
    return int(any(one.problems for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
