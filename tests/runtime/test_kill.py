"""kill -9 at any instant: 20 times at random points, and the run ends as one that was never touched."""

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
    """The traces of a run that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    run(CASE, folder)
    return traces(folder)


def command(folder, *arguments):
    """`simfl run`, going on where there is something to go on with."""
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
    """How often the log has this event."""
    log = folder / "log.jsonl"
    return log.read_text().count(f'"event": "{event}"') if log.exists() else 0


def killed(folder, chance, *arguments):
    """Start, let up to 4 rounds go by, kill in the midst of the next; whether there was something to kill.

    One time in ten the kill comes before the rounds begin, when files are made or read.
    """
    event, more = ("round", chance.randrange(5)) if chance.random() < 0.9 else ("started", 0)
    before = count(folder, "started"), count(folder, event)
    process, deadline = command(folder, *arguments), time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if event == "started" or (count(folder, "started") > before[0] and count(folder, event) >= before[1] + more):
            break
        time.sleep(0.003)
    time.sleep(chance.uniform(0, 4.0 if event == "started" else 0.2))
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def kill_and_finish(folder, number, *arguments):
    """The rounds gone on from, after this many kills."""
    (folder.parent / "experiment.yaml").write_text(config.dump(CASE))
    chance = random.Random(20)
    kills = sum(killed(folder, chance, *arguments) for _ in range(number))
    process = command(folder, *arguments)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return kills, json.loads((folder / "summary.json").read_text())["resumed_at"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_twenty_times_at_random_points(whole, tmp_path):
    kills, resumed_at = kill_and_finish(tmp_path / "r", 20, "--backend", "inline")
    assert traces(tmp_path / "r") == whole
    assert kills > 12  # the others found the run finished
    assert len(resumed_at) >= kills - 3  # a kill before anything was written leaves nothing to go on with
    assert resumed_at == sorted(resumed_at)
    assert len(set(resumed_at)) > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_on_ray_with_all_its_workers(whole, tmp_path):
    """The group is killed: driver, and with it the workers; on a cluster they would die with their driver."""
    kills, resumed_at = kill_and_finish(tmp_path / "r", 3, "--backend", "ray", "--workers", "2")
    assert traces(tmp_path / "r") == whole
    assert kills == 3
    assert len(resumed_at) >= 2
