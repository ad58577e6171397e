"""Jobs on a real Ray head node that requires a token."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_request import RUN

pytest.importorskip("aiohttp", reason="jobs need simfl[cluster]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(frozen=True)
class Head:
    """A head node that accepts jobs with its token."""

    address: str
    token: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return an environment with the token."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH") and k != "RAY_ADDRESS"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token), **more}

    def submit(self, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `simfl submit` in a folder."""
        command = [sys.executable, "-m", "simfl", "submit", *words]
        return subprocess.run(
            command, cwd=folder, env=self.environment(**more), capture_output=True, text=True, timeout=200
        )


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    folder = tmp_path_factory.mktemp("head")
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    temp = tempfile.mkdtemp(prefix="ray-")  # other tests must not find this Ray
    ports = [free_port() for _ in range(4)]
    found = Head(f"http://127.0.0.1:{ports[0]}", token)
    words = [
        "start", "--head", "--block", f"--port={ports[1]}", "--num-cpus=2", "--include-dashboard=true",
        f"--dashboard-port={ports[0]}", f"--ray-client-server-port={ports[2]}", "--node-ip-address=127.0.0.1",
        f"--dashboard-agent-listen-port={ports[3]}",
        "--object-store-memory=100000000", f"--temp-dir={temp}",
    ]  # fmt: skip
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words], env=found.environment(), stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            assert process.poll() is None, (folder / "log").read_text()
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", ports[0])) == 0:
                    break
            time.sleep(0.5)
        yield found
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(temp, ignore_errors=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(RUN)
    (tmp_path / "idea.py").write_text(
        "from dataclasses import dataclass\n"
        "from simfl.algorithms.base import Algorithm\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Algorithm):\n"
        '    """An algorithm in the folder of the experiment."""\n'
    )
    return tmp_path


def summary(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "summary.json").read_text())
    return found


def test_an_experiment_runs_on_the_cluster_with_a_module_of_its_folder(head: Head, folder: Path) -> None:
    out = folder / "there"
    done = head.submit(
        folder, "small.yaml", "--to", head.address, "--out", str(out), "--env", "SAID",
        "--set", "phases.0.algorithm={name: 'idea:Mine'}", SAID="very-secret",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(out)["status"] == "completed"
    assert "round" in done.stdout  # the log was followed
    assert "very-secret" not in done.stdout + done.stderr


def test_a_sweep_runs_on_the_cluster(head: Head, folder: Path) -> None:
    (folder / "many.yaml").write_text("experiment: small.yaml\nseeds: [1, 2]\n")
    out = folder / "there"
    done = head.submit(folder, "many.yaml", "--to", head.address.replace("http", "ray"), "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [summary(out / "runs" / f"seed-{k}")["status"] for k in (1, 2)] == ["completed"] * 2


def test_a_failed_ray_job_fails_the_command(head: Head, folder: Path) -> None:
    out = folder / "there"
    out.mkdir()
    (out / "experiment.yaml").write_text("name: another\n")
    done = head.submit(folder, "small.yaml", "--to", head.address, "--out", str(out))
    assert done.returncode == 1
    assert "holds a run" in done.stdout
    assert done.stderr.rstrip().endswith("failed")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"RAY_AUTH_TOKEN": "another" * 5}, "the token is wrong"),
        ({"RAY_AUTH_MODE": "disabled"}, "set RAY_AUTH_MODE=token"),
    ],
)
def test_a_wrong_token_is_reported_in_one_line(head: Head, folder: Path, more: dict[str, str], why: str) -> None:
    done = head.submit(folder, "small.yaml", "--to", head.address, "--out", "/tmp/never", **more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"simfl: --to {head.address}: the cluster requires a token; {why};")
    assert done.stderr.count("\n") == 1


def test_the_address_option_precedes_the_environment(head: Head, folder: Path) -> None:
    done = head.submit(
        folder, "small.yaml", "--to", head.address, "--out", str(folder / "there"), "--no-follow",
        RAY_ADDRESS="http://127.0.0.1:9",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ray job logs --follow" in done.stderr
