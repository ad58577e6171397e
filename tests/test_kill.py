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
    "batch",
    rounds=60,
    private=("head.*",),
    optimizer="adam",
    learning_rate=0.003,
    keep_optimizer=True,
    codec=Codecs(download=Nf4(of="delta"), upload=Nf4(error_feedback=True)),
    evaluate=Evaluate(every=3, models=("generic", "personal")),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The traces of a run that nobody stops, and the seconds it takes in this process."""
    folder, began = tmp_path_factory.mktemp("whole"), time.monotonic()
    run(CASE, folder)
    return traces(folder), time.monotonic() - began


def command(folder, *arguments):
    """`simfl run`, going on where there is something to go on with."""
    words = ["run", str(folder.parent / "experiment.yaml"), "--out", str(folder), *arguments]
    resume = ["--resume"] if (folder / "experiment.yaml").exists() else []
    return subprocess.Popen(
        [sys.executable, "-m", "simfl", *words, *resume],
        cwd=Path(__file__).parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def begun(folder, sittings):
    """Whether this sitting has got to its rounds."""
    log = folder / "log.jsonl"
    return log.exists() and log.read_text().count('"event": "started"') > sittings


def killed(folder, chance, longest, *arguments):
    """Start, wait for the rounds to begin in most cases, kill a little later; whether there was something to kill."""
    before = (folder / "log.jsonl").read_text().count('"event": "started"') if (folder / "log.jsonl").exists() else 0
    process, deadline = command(folder, *arguments), time.monotonic() + 200
    early = chance.random() < 0.1
    while not early and not begun(folder, before) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, longest))
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def kill_and_finish(folder, number, longest, *arguments):
    """The rounds gone on from, after this many kills."""
    (folder.parent / "experiment.yaml").write_text(config.dump(CASE))
    chance = random.Random(20)
    kills = sum(killed(folder, chance, longest, *arguments) for _ in range(number))
    process = command(folder, *arguments)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return kills, json.loads((folder / "summary.json").read_text())["resumed_at"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_twenty_times_at_random_points(whole, tmp_path):
    expected, seconds = whole
    kills, resumed_at = kill_and_finish(tmp_path / "r", 20, seconds / 10, "--backend", "inline")
    assert traces(tmp_path / "r") == expected
    assert kills > 12  # the others found the run finished
    assert len(resumed_at) >= kills - 3  # a kill before anything was written leaves nothing to go on with
    assert resumed_at == sorted(resumed_at)
    assert len(set(resumed_at)) > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_on_ray_with_all_its_workers(whole, tmp_path):
    """The group is killed: driver, and with it the workers; on a cluster they would die with their driver."""
    expected, seconds = whole
    kills, resumed_at = kill_and_finish(tmp_path / "r", 3, seconds / 3, "--backend", "ray", "--workers", "2")
    assert traces(tmp_path / "r") == expected
    assert kills == 3
    assert len(resumed_at) >= 2
