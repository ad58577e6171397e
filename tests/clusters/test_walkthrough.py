"""The walk-through of docs/how-to/clusters.md: one experiment on a laptop, Slurm, Kubernetes and S3, the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import local_pods
import local_s3
import local_slurm
import pytest
from fakes import traces
from local_pods import NETWORK, LocalPods, manifest_of
from local_slurm import LocalSlurm

pytest.importorskip("sklearn", reason="the digits need simfl[digits]")
pytestmark = [pytest.mark.clusters, pytest.mark.slow, pytest.mark.timeout(7200)]

EXPERIMENT = """
# that of the page, with more and shorter rounds
name: small
seed: 1
data: digits
partition: {by: dirichlet, column: label, alpha: 0.5, clients: 20}
model: {name: mlp, hidden_sizes: [64]}
phases:
  - objective: classification
    algorithm: scaffold
    rounds: 200
    participation: 0.2
    local: {epochs: 1, batch_size: 16, optimizer: sgd, learning_rate: 0.1}
evaluate: {every: 50, splits: [test]}
"""
URL = f"s3://{local_s3.BUCKET}/small"
IMAGE = ("--image", "registry/simfl:1", "--python", sys.executable)  # the pods see the files of this machine
OFTEN = ("--set", "checkpoint.seconds=0")  # of the run that moves, so that rounds are left for each place
PATIENCE = 1200.0  # seconds; the processors may be shared


def simfl(folder: Path, environment: dict[str, str], *words: str) -> str:
    """Run a command of simfl to its end, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "simfl", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_until(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """Variables of an object store with one bucket."""
    if reason := local_s3.missing():
        pytest.skip(reason)
    with local_s3.object_store() as variables:
        yield variables


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    if reason := local_slurm.missing_packages():
        pytest.skip(reason)
    found = LocalSlurm()
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory with the experiment; the claim of the pods is its folder `shared`."""
    found = tmp_path_factory.mktemp("walk")
    (found / "work").mkdir()
    (found / "shared").mkdir()
    (found / "work" / "small.yaml").write_text(EXPERIMENT)
    return found


@pytest.fixture(scope="module")
def laptop(folder: Path) -> dict[str, str]:
    """Hashes of the run in one process."""
    simfl(folder / "work", dict(os.environ), "run", "small.yaml", "--backend", "inline", "--out", "runs/laptop")
    return traces(folder / "work" / "runs" / "laptop")


def run_in_pods(folder: Path, *words: str, store: dict[str, str] | None = None, until: int | None = None) -> str:
    """Run the job of a manifest in pods, and return its log and how it ended.

    Args:
        folder: The fixture `folder`.
        words: Arguments of `simfl submit`.
        store: Variables of an object store, which then has a port in the network of the pods.
        until: Round after which the head pod is evicted.
    """
    if reason := local_pods.missing():
        pytest.skip(reason)
    manifest = manifest_of(folder / "work", "small.yaml", "--nodes", "2", *IMAGE, *words)
    pods = LocalPods(manifest, folder / "pods", {"results": folder / "shared"})
    log = folder / "pods.log"
    with ExitStack() as stack:
        stack.callback(pods.stop)
        pods.start_network()
        if store is not None:
            port = local_s3.port_inside(pods.network_prefix(), f"{NETWORK}.1", store)
            pods.environment = stack.enter_context(port)
        pods.start()
        with log.open("w") as file:
            job = pods.submit(file)
        if until is not None:
            events = folder / "shared" / "small" / "log.jsonl"
            wait_until(
                lambda: events.exists() and events.read_text().count('"event": "round"') >= until, f"round {until}"
            )
            pods.head.terminate()
        job.wait(PATIENCE)
        return log.read_text() + ("" if until is not None else pods.status())


def test_slurm_gives_the_bits_of_the_laptop(folder: Path, slurm: LocalSlurm, laptop: dict[str, str]) -> None:
    words = ("--to", "slurm", "--nodes", "2", "--cpus", "1", "--out", "runs/slurm")
    said = simfl(folder / "work", slurm.environment, "submit", "small.yaml", *words)
    assert "completed after 200 rounds" in said
    assert traces(folder / "work" / "runs" / "slurm") == laptop
    assert "the runs are equal" in simfl(folder / "work", dict(os.environ), "diff", "runs/laptop", "runs/slurm")


def test_kubernetes_gives_the_bits_of_the_laptop_after_an_eviction(folder: Path, laptop: dict[str, str]) -> None:
    """The operator would start the second attempt."""
    words = ("--claim", "results=/shared", "--out", "/shared/small")
    said = run_in_pods(folder, *words, until=5)
    assert "small: interrupted after" in said
    said = run_in_pods(folder, *words)
    assert "resumed after round" in said
    assert said.endswith("succeeded"), said
    assert traces(folder / "shared" / "small") == laptop


def test_a_run_moves_from_the_laptop_to_slurm_and_to_kubernetes_through_s3(
    folder: Path, slurm: LocalSlurm, store: dict[str, str], laptop: dict[str, str]
) -> None:
    names = [word for name in local_s3.NAMES for word in ("--env", name)]
    environment = os.environ | store
    run = subprocess.Popen(
        [sys.executable, "-m", "simfl", "run", "small.yaml", "--backend", "inline", "--out", URL, *OFTEN],
        cwd=folder / "work", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(lambda: committed(store) >= 3, "rounds on the laptop")
    run.send_signal(signal.SIGTERM)
    assert run.wait(PATIENCE) == 130, run.communicate()[0]
    before = committed(store)

    words = ("--to", "slurm", "--nodes", "2", "--cpus", "1", "--out", URL, "--resume", *names, *OFTEN)
    job = subprocess.Popen(
        [sys.executable, "-m", "simfl", "submit", "small.yaml", *words], cwd=folder / "work",
        env=slurm.environment | store, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(lambda: committed(store) >= before + 3, "rounds on Slurm")
    slurm.ask("scancel", "--user", Path.home().owner())
    assert job.wait(PATIENCE) == 130, job.communicate()[0]
    between = committed(store)
    assert before < between < 200

    said = run_in_pods(folder, "--out", URL, "--resume", *names, *OFTEN, store=store)
    assert "resumed after round" in said
    assert said.endswith("succeeded"), said
    copied = folder / "copied"
    copy = f"import s3fs; s3fs.S3FileSystem().get({URL!r}, {str(copied)!r}, recursive=True)"
    subprocess.run([sys.executable, "-c", copy], env=environment, check=True)
    assert traces(copied) == laptop
    places = json.loads((copied / "summary.json").read_text())["resumed_at"]
    assert places == [before, between]


def committed(store: dict[str, str]) -> int:
    """Return the newest checkpoint at the URL; 0 if there is none."""
    import s3fs

    system = s3fs.S3FileSystem(
        key=store["AWS_ACCESS_KEY_ID"], secret=store["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=store["AWS_ENDPOINT_URL"], use_listings_cache=False,
    )  # fmt: skip
    names = [path.rpartition("/")[2] for path in system.glob(f"{URL}/checkpoints/*")]
    return max([int(name) for name in names if name.isdecimal()], default=0)
