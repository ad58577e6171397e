"""Jobs on a real head that asks for a token, with the files, variables and refusals of Ray's own API."""

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
    """A head that takes jobs from those who know its token."""

    address: str
    token: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Of somebody who knows it."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH") and k != "RAY_ADDRESS"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token), **more}

    def submit(self, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """`simfl submit`, in a folder."""
        command = [sys.executable, "-m", "simfl", "submit", *words]
        return subprocess.run(
            command, cwd=folder, env=self.environment(**more), capture_output=True, text=True, timeout=200
        )


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    folder = tmp_path_factory.mktemp("head")
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    temp = tempfile.mkdtemp(prefix="ray-")  # its own: a Ray in the usual place would be found by everybody else here
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
        '    """One of my own, which lies beside the experiment."""\n'
    )
    return tmp_path


def summary(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "summary.json").read_text())
    return found


def test_an_experiment_runs_there_with_a_module_beside_it(head: Head, folder: Path) -> None:
    out = folder / "there"
    done = head.submit(
        folder, "small.yaml", "--to", head.address, "--out", str(out), "--env", "SAID",
        "--set", "phases.0.algorithm={name: 'idea:Mine'}", SAID="very-secret",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(out)["status"] == "completed"
    assert "round" in done.stdout  # the log was followed
    assert "very-secret" not in done.stdout + done.stderr


def test_a_sweep_runs_there(head: Head, folder: Path) -> None:
    (folder / "many.yaml").write_text("experiment: small.yaml\nseeds: [1, 2]\n")
    out = folder / "there"
    done = head.submit(folder, "many.yaml", "--to", head.address.replace("http", "ray"), "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [summary(out / "runs" / f"seed-{k}")["status"] for k in (1, 2)] == ["completed"] * 2


def test_a_run_that_fails_there_fails_here(head: Head, folder: Path) -> None:
    out = folder / "there"
    out.mkdir()
    (out / "experiment.yaml").write_text("name: another\n")
    done = head.submit(folder, "small.yaml", "--to", head.address, "--out", str(out))
    assert done.returncode == 1
    assert "holds a run already" in done.stdout
    assert done.stderr.rstrip().endswith("failed")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"RAY_AUTH_TOKEN": "another" * 5}, "its token is another"),
        ({"RAY_AUTH_MODE": "disabled"}, "set RAY_AUTH_MODE=token"),
    ],
)
def test_another_token_is_one_line(head: Head, folder: Path, more: dict[str, str], why: str) -> None:
    done = head.submit(folder, "small.yaml", "--to", head.address, "--out", "/tmp/never", **more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"simfl: --to {head.address}: the cluster asks for a token; {why};")
    assert done.stderr.count("\n") == 1


def test_an_address_in_the_environment_does_not_win(head: Head, folder: Path) -> None:
    done = head.submit(
        folder, "small.yaml", "--to", head.address, "--out", str(folder / "there"), "--no-follow",
        RAY_ADDRESS="http://127.0.0.1:9",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ray job logs --follow" in done.stderr
