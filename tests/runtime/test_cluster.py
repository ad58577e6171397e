"""Ray starts beside what the run needs anyway; errors do not wait for it and it is not left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from simfl.errors import ConfigError
from simfl.runtime.ray import cluster as boot
from simfl.runtime.ray.faststart.patches import PLAIN


def test_a_start_that_fails_is_told_to_whoever_waits_and_leaves_no_thread(monkeypatch):
    def refuse(address, head):
        raise ConfigError(f"nobody answers at {address}")

    monkeypatch.setattr(boot, "_up", refuse)
    with pytest.raises(ConfigError, match="nobody answers"), boot.started("1.2.3.4"):
        boot.ray("1.2.3.4")
    assert "ray" not in {thread.name for thread in threading.enumerate()}


def test_an_error_inside_does_not_wait_for_ray_and_the_next_start_waits_for_its_end(monkeypatch):
    """The first start takes a second and is given up at once; the second one begins when the first has ended."""
    log = []

    class Ray:
        @staticmethod
        def is_initialized():
            return False

        @staticmethod
        def shutdown():
            log.append("down")

    def slowly(address, head):
        time.sleep(1.0)
        log.append("up")
        return Ray

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setattr(boot, "_up", slowly)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), boot.started("1.2.3.4"):
        1 / 0  # noqa: B018
    assert time.monotonic() - began < 0.9
    with boot.started("1.2.3.4"), boot.started("1.2.3.4"):  # the inner one finds Ray on its way
        boot._current.wait()
        assert log == ["up", "down", "up"]
    assert log == ["up", "down", "up", "down"]


def test_a_wrong_experiment_is_one_line_and_leaves_nothing_though_ray_was_starting(tmp_path):
    (tmp_path / "wrong.yaml").write_text("nonsense: 1\n")
    command = [sys.executable, "-m", "simfl", "run", str(tmp_path / "wrong.yaml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nonsense" in done.stderr
    assert done.stdout == ""


class Counting:
    """In the place of ray: notes how it is started."""

    def __init__(self):
        self.calls = []

    def is_initialized(self):
        return False

    def init(self, address, **settings):
        self.calls.append(address)

    def shutdown(self):
        self.calls.append("shutdown")


class Broken:
    """In the place of a head: Ray does not come up."""

    closed = False

    def address(self):
        raise ConnectionError("no such port")

    def close(self, wait=True):
        self.closed = True


def test_where_the_lean_start_fails_ray_starts_as_usual(monkeypatch, caplog):
    ray, head = Counting(), Broken()
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert boot._up(None, head) is ray
    assert ray.calls == ["shutdown", "local"]
    assert head.closed
    assert "no such port" in caplog.text


def test_ray_can_be_asked_to_start_as_usual(monkeypatch):
    ray = Counting()
    monkeypatch.setenv(PLAIN, "1")
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(boot, "Head", None)  # not to be called
    with boot.ahead("ray", None):
        assert boot.running() is False
    with boot.started(None):
        assert boot.cradle() is None
        assert boot.ray(None) is ray
    assert ray.calls == ["local", "local", "shutdown"]  # joined once more, as this one never says that it is up


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("ray://127.0.0.1:1", "Connection refused"),
        ("ray://no-such-host.invalid", ""),
        ("x", "Invalid address format: x"),
    ],
)
def test_where_no_ray_answers_it_is_said_at_once(address: str, why: str) -> None:
    """In a process of its own, as no other test's Ray may be up; Ray alone takes a minute or more, and many lines."""
    asked = [sys.executable, "-c", ASK, address]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.startswith(f"--address: no Ray cluster answers at {address!r}: ")
    assert why in shown.stdout
    assert shown.stdout.count("\n") == 1


ASK = """
import sys
from simfl.runtime.ray import cluster as boot
from simfl.errors import ConfigError
try:
    boot.ray(sys.argv[1])
except ConfigError as error:
    print(error)
"""
