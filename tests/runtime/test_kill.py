"""Runs killed with `kill -9` at random points and resumed give the results of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import experiment, run, traces

from simfl import config
from simfl.codecs.nf4 import Nf4
from simfl.experiment import Codecs, Evaluate

CASE = experiment(
    "ditto",
    "vectorized",
    rounds=80,
    personal_params=("head.*",),
    optimizer="adam",
    learning_rate=0.003,
    keep_optimizer=True,
    codec=Codecs(download=Nf4(encode="update"), upload=Nf4(error_feedback=True)),
    evaluate=Evaluate(every=3, models=("global", "personal")),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The traces of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    run(CASE, folder)
    return traces(folder)


def start_run(folder, *arguments):
    """Start `simfl run`, with --resume if the folder exists."""
    words = ["run", str(folder.parent / "experiment.yaml"), "--out", str(folder), *arguments]
    resume = ["--resume"] if (folder / "experiment.yaml").exists() else []
    return subprocess.Popen(
        [sys.executable, "-m", "simfl", *words, *resume],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def count(folder, event):
    """Return how often the log has this event."""
    log = folder / "log.jsonl"
    return log.read_text().count(f'"event": "{event}"') if log.exists() else 0


def start_and_kill(folder, random_draws, *arguments):
    """Start the run, let up to 4 rounds finish and kill it during the next one; return whether it was still running.

    One kill in ten comes before the rounds begin, while files are made or read.
    """
    event, more = ("round", random_draws.randrange(5)) if random_draws.random() < 0.9 else ("started", 0)
    before = count(folder, "started"), count(folder, event)
    process, deadline = start_run(folder, *arguments), time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if event == "started" or (count(folder, "started") > before[0] and count(folder, event) >= before[1] + more):
            break
        time.sleep(0.003)
    time.sleep(random_draws.uniform(0, 4.0 if event == "started" else 0.2))
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def kill_and_finish(folder, number, *arguments):
    """Kill the run so many times, finish it, and return the number of kills and the rounds it was resumed at."""
    (folder.parent / "experiment.yaml").write_text(config.dump(CASE))
    random_draws = random.Random(20)
    kills = sum(start_and_kill(folder, random_draws, *arguments) for _ in range(number))
    process = start_run(folder, *arguments)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return kills, json.loads((folder / "summary.json").read_text())["resumed_at"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_run_killed_twenty_times_at_random_points_gives_the_same_results(whole, tmp_path):
    kills, resumed_at = kill_and_finish(tmp_path / "r", 20, "--backend", "inline")
    assert traces(tmp_path / "r") == whole
    assert kills > 12  # the other times the run had finished
    assert len(resumed_at) >= kills - 3  # after a kill before the first checkpoint, there is nothing to resume
    assert resumed_at == sorted(resumed_at)
    assert len(set(resumed_at)) > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_run_killed_on_ray_with_all_its_workers_gives_the_same_results(whole, tmp_path):
    """The process group is killed: the driver and its workers; on a cluster they would die with their driver."""
    kills, resumed_at = kill_and_finish(tmp_path / "r", 3, "--backend", "ray", "--workers", "2")
    assert traces(tmp_path / "r") == whole
    assert kills == 3
    assert len(resumed_at) >= 2
