"""Ray starts in a thread beside what the run needs anyway; errors do not wait for it and it is not left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from simfl.engine import boot, nursery
from simfl.engine.lean import PLAIN
from simfl.errors import ConfigError


def test_a_start_that_fails_is_told_to_whoever_waits_and_leaves_no_thread(monkeypatch):
    def refuse(address, nursery=None):
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

    def slowly(address, nursery=None):
        time.sleep(1.0)
        log.append("up")
        return Ray

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setattr(boot, "_up", slowly)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), boot.started(None):
        1 / 0  # noqa: B018
    assert time.monotonic() - began < 0.9
    with boot.started(None), boot.started(None):  # the inner one finds Ray on its way
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

    def init(self, *given, **settings):
        self.calls.append("init")

    def shutdown(self):
        self.calls.append("shutdown")


def test_where_the_lean_start_fails_ray_starts_as_usual(monkeypatch, caplog):
    @contextmanager
    def broken(nursery):
        raise OSError("no such port")
        yield

    ray = Counting()
    monkeypatch.delenv(PLAIN, raising=False)
    monkeypatch.setattr(boot, "lean", broken)
    boot._start(ray, None, {})
    assert ray.calls == ["shutdown", "init"]
    assert "no such port" in caplog.text


def test_ray_can_be_asked_to_start_as_usual(monkeypatch):
    ray = Counting()
    monkeypatch.setenv(PLAIN, "1")
    monkeypatch.setattr(boot, "lean", None)  # not to be called
    boot._start(ray, "/nowhere", {})
    assert ray.calls == ["init"]
    assert not nursery.possible()
