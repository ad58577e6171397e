"""Jobs on a real Slurm with two nodes: signals, restarts, limits, missing nodes and arrays, bit-identical each time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import traces
from local_slurm import LocalSlurm, missing_packages

pytest.importorskip("sklearn", reason="the digits need simfl[digits]")
pytestmark = [pytest.mark.clusters, pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = 80
EXPERIMENT = f"""
name: small
seed: 1
data: digits
partition: {{by: dirichlet, column: label, alpha: 0.5, clients: 20}}
model: {{name: mlp, hidden_sizes: [16]}}
phases:
  - objective: classification
    algorithm: scaffold
    rounds: {ROUNDS}
    participation: 0.5
    local: {{epochs: 2, batch_size: 16, optimizer: sgd, learning_rate: 0.1}}
evaluate: {{every: 40, splits: [test]}}
"""
ENDLESS = ("--set", "rounds=100000")
PATIENCE = 480.0  # seconds; the processors may be shared


def wait_until(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.3)


@dataclass
class Job:
    """A submitted job, and the command that follows it."""

    slurm: LocalSlurm
    folder: Path
    out: Path
    words: tuple[str, ...] = ()
    command: subprocess.Popen[str] | None = None
    said: list[str] = field(default_factory=list)

    def start(self) -> Job:
        words = ["submit", "small.yaml", "--to", "slurm", "--out", str(self.out), "--cpus", "1", *self.words]
        errors = open(self.folder / "said", "w")  # noqa: SIM115  (open for the process)
        self.command = subprocess.Popen(
            [sys.executable, "-m", "simfl", *words], cwd=self.folder, env=self.slurm.environment,
            stdout=errors, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        wait_until(lambda: "submitted" in self.output() or self.command.poll() is not None, "submission")
        return self

    def output(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def number(self) -> str:
        found = re.search(r"Slurm job (\d+) submitted", self.output())
        assert found is not None, self.output()
        return found.group(1)

    @property
    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.out.glob("slurm-*.log")))

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.out / "log.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == kind]

    def wait_for_round(self, number: int) -> None:
        def is_there() -> bool:
            assert self.command is not None
            assert self.command.poll() is None, self.output()
            return any(one["step"] >= number for one in self.events("round"))

        wait_until(is_there, f"round {number}")

    def wait(self) -> int:
        assert self.command is not None
        return self.command.wait(PATIENCE)

    def has_trained_after_start(self, number: int) -> bool:
        """Return whether the log shows a round after so many starts."""
        parts = self.log.split("backend ray")
        return len(parts) > number and re.search(r"^round \d", parts[number], re.MULTILINE) is not None

    def has_left(self) -> bool:
        """Return whether Slurm runs nothing of the job."""
        return not self.slurm.ask("squeue", "--noheader", "--jobs", self.number).strip()

    def committed(self) -> int:
        return max(int(path.name) for path in (self.out / "checkpoints").iterdir() if path.name.isdecimal())


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    """Slurm with two nodes; the tests are skipped where its packages are missing."""
    if reason := missing_packages():
        pytest.skip(reason)
    found = LocalSlurm()
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def submit(slurm: LocalSlurm, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    folder, jobs = tmp_path / "a folder", []
    folder.mkdir()
    (folder / "small.yaml").write_text(EXPERIMENT)

    def start(*words: str) -> Job:
        jobs.append(Job(slurm, folder, folder / "the run", words).start())
        return jobs[-1]

    yield start
    for job in jobs:
        slurm.ask("scancel", job.number)
        job.command.kill()
        wait_until(job.has_left, "end of the job")
        assert not list(Path("/tmp").glob(f"ray-*-{job.number}")), "the folder of the head remains"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of the same run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "small.yaml").write_text(EXPERIMENT)
    words = ["run", "small.yaml", "--backend", "inline", "--out", "run"]
    subprocess.run([sys.executable, "-m", "simfl", *words], cwd=folder, check=True, capture_output=True)
    return traces(folder / "run")


def test_a_job_on_two_nodes_gives_the_same_bits_without_a_line_of_ray(
    submit: Callable[..., Job], alone: dict[str, str]
) -> None:
    job = submit("--nodes", "2", "--interface", "lo", "--setup", "export SAID='a b'", "--setup", 'test "$SAID" = "a b"')
    assert job.wait() == 0, job.output()
    assert traces(job.out) == alone
    assert job.events("started")[0]["workers"] == 2
    assert not re.search(r"(?i)raylet|\bray (start|runtime|stop)|gcs|dashboard|--address=", job.log), job.log
    assert job.log.rstrip().endswith("simfl: exit code 0")
    assert f"Slurm job {job.number}: completed" in job.output()


CANCEL = ("scancel",)
SIGNALS = [CANCEL, *((*CANCEL, f"--signal={name}", how) for how in ("--full", "--batch") for name in ("TERM", "HUP"))]


@pytest.mark.parametrize("words", SIGNALS, ids=" ".join)
def test_a_signal_to_a_job_commits_the_newest_round(submit: Callable[..., Job], words: tuple[str, ...]) -> None:
    job = submit("--nodes", "2", *ENDLESS)
    job.wait_for_round(10)
    job.slurm.ask(*words, job.number)
    assert job.wait() == 130, job.output()
    assert job.committed() == job.events("round")[-1]["step"] >= 10
    assert "simfl: exit code 130" in job.log
    assert "requested" not in job.log


@pytest.mark.parametrize("cause", ["requeue", "preemption", "limit"])
def test_a_restarted_job_continues_to_the_same_bits(
    submit: Callable[..., Job], alone: dict[str, str], cause: str
) -> None:
    job = submit("--nodes", "2", "--sbatch", "partition=low")
    job.wait_for_round(10)
    if cause == "requeue":
        job.slurm.ask("scontrol", "requeue", job.number)
    elif cause == "preemption":
        words = ["--partition=high", "--nodelist=n2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"]
        assert job.slurm.ask("sbatch", *words)
    else:
        job.slurm.ask("scancel", "--signal=USR1", "--batch", job.number)  # what Slurm sends before the time limit
    assert job.wait() == 0, job.output()
    assert traces(job.out) == alone
    assert "restart 1 of at most 20" in job.log
    assert job.log.count("resumed after round") == 1


def test_restarts_at_the_time_limit_are_bounded(submit: Callable[..., Job]) -> None:
    job = submit("--requeues", "1", *ENDLESS)
    for starts in (1, 2):
        wait_until(partial(job.has_trained_after_start, starts), f"start {starts}")
        job.slurm.ask("scancel", "--signal=USR1", "--batch", job.number)
    assert job.wait() == 130, job.output()
    assert "not restarted again, after 1 of at most 1 restarts" in job.log


def test_slurm_ends_a_job_at_its_time_limit_and_it_continues(submit: Callable[..., Job]) -> None:
    """The limit of Slurm itself, two minutes, of which the job uses at least twenty seconds."""
    job = submit("--time", "2:00", *ENDLESS)
    wait_until(lambda: "restart 1 of at most 20 requested" in job.log, f"the limit: {job.log}")
    wait_until(lambda: "resumed after round" in job.log, "the restart")
    resumed = int(re.findall(r"resumed after round (\d+)", job.log)[0])
    assert resumed >= 1
    assert resumed == max(one["step"] for one in job.events("round") if one["step"] <= resumed)


def test_a_deadline_of_slurm_ends_a_job_after_a_checkpoint(submit: Callable[..., Job]) -> None:
    """Slurm signals the end of the time as usual, and then restarts no job that cannot end before the deadline."""
    job = submit("--time", "4:00", "--sbatch", "deadline=now+5minutes", *ENDLESS)
    assert job.wait() == 130, job.output()
    assert job.committed() == job.events("round")[-1]["step"] >= 1
    assert "deadline" in job.output().lower()


def test_a_controller_that_is_away_ends_neither_the_job_nor_the_command(
    submit: Callable[..., Job], alone: dict[str, str]
) -> None:
    """`squeue` fails as long as slurmctld does not run; the job continues."""
    job = submit("--nodes", "2")
    job.wait_for_round(5)
    job.slurm.stop_controller()
    try:
        assert subprocess.run(["squeue"], env=job.slurm.environment, capture_output=True).returncode != 0
        trained = len(job.events("round"))
        wait_until(lambda: len(job.events("round")) > trained, "a round without the controller")
        assert job.command.poll() is None, job.output()
    finally:
        job.slurm.start_controller()
    assert job.wait() == 0, job.output()
    assert traces(job.out) == alone


def test_a_restart_is_requested_until_the_controller_answers(submit: Callable[..., Job], alone: dict[str, str]) -> None:
    job = submit("--nodes", "2")
    job.wait_for_round(10)
    job.slurm.stop_controller()
    try:
        os.kill(script_of(job), signal.SIGUSR1)  # as Slurm does before the time limit
        wait_until(lambda: "restart 1 of at most 20 requested" in job.log, f"the request: {job.log}")
        time.sleep(3.0)
    finally:
        job.slurm.start_controller()
    assert job.wait() == 0, job.output()
    assert traces(job.out) == alone


def script_of(job: Job) -> int:
    """Return the process of the batch script; a subshell of it has a higher number."""
    name = f"job{job.number}/slurm_script\0".encode()
    return min(int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if name in content_of(path))


def content_of(path: Path) -> bytes:
    """Return the content of a file of a process that may have ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def broken_on(node: str, folder: Path) -> str:
    """Write a command that starts nothing on a node, in place of a container."""
    path = folder / "container"
    path.write_text(f'#!/bin/bash\n[ "$SLURMD_NODENAME" != {node} ] || exit 7\nexec "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_missing_node_is_an_error_or_named_and_counted(
    submit: Callable[..., Job], tmp_path: Path, alone: dict[str, str]
) -> None:
    container = broken_on("n2", tmp_path)
    job = submit("--nodes", "2", "--container", container)
    assert job.wait() == 1, job.output()
    assert "simfl: 1 of 2 nodes did not join: n2; --min-nodes allows fewer nodes" in job.log
    job = submit("--nodes", "2", "--container", container, "--min-nodes", "1")
    assert job.wait() == 0, job.output()
    assert "simfl: 1 of 2 nodes did not join: n2; the run uses the other 1" in job.log
    assert traces(job.out) == alone


def test_a_node_that_fails_during_the_run_changes_no_bit(submit: Callable[..., Job], alone: dict[str, str]) -> None:
    job = submit("--nodes", "2")
    job.wait_for_round(5)
    (node,) = processes_with(f"ray-{Path.home().owner()}-{job.number}-0-n")
    os.kill(node, signal.SIGKILL)
    assert job.wait() == 0, job.output()
    assert traces(job.out) == alone


def processes_with(text: str) -> list[int]:
    """Return the processes `ray_node` whose arguments contain the text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().decode(errors="replace").split("\0") if path.exists() else []
        if "simfl.submit.ray_node" in words and any(text in word for word in words):
            found.append(int(path.parent.name))
    return found


def test_failing_setup_ends_the_job_with_its_line(submit: Callable[..., Job]) -> None:
    job = submit("--setup", "module load nothing")
    assert job.wait() == 1
    assert "simfl: setup failed: module load nothing" in job.log


def test_an_array_runs_a_sweep_one_run_an_element(
    submit: Callable[..., Job], slurm: LocalSlurm, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    (folder / "many.yaml").write_text("experiment: small.yaml\nset: {rounds: 5}\nseeds: [1, 2, 3]\n")
    words = ["submit", "many.yaml", "--to", "slurm", "--out", "swept", "--array", "2", "--cpus", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "simfl", *words], cwd=folder, env=slurm.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = [one["label"] for one in json.loads((folder / "swept" / "sweep.json").read_text())["runs"]]
    assert listed == ["seed-1", "seed-2", "seed-3"]
    for label in listed:
        assert json.loads((folder / "swept" / "runs" / label / "summary.json").read_text())["status"] == "completed"
    assert len(list((folder / "swept").glob("slurm-*-[012].log"))) == 3
