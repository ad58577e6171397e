"""Ctrl-C and SIGTERM: the run writes a checkpoint and shows how to resume; further signals are harmless."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fakes import Stopping, experiment, run, traces
from nodes import SlowScaffold

from simfl import config
from simfl.runs import checkpoint
from simfl.runs.record import Record
from simfl.session import session
from simfl.session.signals import Interrupted, Signals
from simfl.simulation import Simulation

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])


def send(number):
    os.kill(os.getpid(), number)


@BOTH
def test_signal_is_raised_in_the_main_thread(number):
    with pytest.raises(Interrupted, match=signal.Signals(number).name), Signals().caught():
        send(number)


@BOTH
def test_held_signal_is_raised_at_the_end_of_the_block(number):
    signals, reached = Signals(), []

    def hold():
        with signals.held():
            send(number)
            reached.append("end of the block")
        reached.append("beyond")

    with signals.caught(), pytest.raises(Interrupted):
        hold()
    assert reached == ["end of the block"]


def test_second_signal_does_not_interrupt_the_handling_of_the_first():
    signals = Signals()
    with signals.caught():
        with pytest.raises(Interrupted):
            send(signal.SIGINT)
        send(signal.SIGINT)
        send(signal.SIGTERM)


def test_signal_that_did_not_stop_the_run_is_raised_at_the_end_of_the_next_held_block():
    """The first exception may be lost, as in a finalizer."""
    signals = Signals()
    with signals.caught():
        with pytest.raises(Interrupted):
            send(signal.SIGINT)
        with pytest.raises(Interrupted), signals.held():
            pass


def test_signals_are_ignored_after_close():
    signals = Signals()
    with signals.caught():
        signals.close()
        send(signal.SIGINT)
        with signals.held():
            send(signal.SIGTERM)


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Signals().caught():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


CASE = experiment("scaffold")
LONG = experiment("scaffold", rounds=5000)
SLOW = experiment(SlowScaffold(seconds=0.2), rounds=5000)  # the driver waits for Ray nearly all the time


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(CASE, folder)
    return traces(folder)


@BOTH
def test_interrupted_run_is_resumed_to_the_same_results(number, whole, tmp_path, monkeypatch):
    at_step(monkeypatch, 2, lambda: send(number))
    summary = run(CASE, tmp_path)
    assert (summary["status"], summary["rounds"]) == ("interrupted", 2)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert checkpoint.latest(tmp_path / "checkpoints").step == 2
    assert run(CASE, tmp_path, resume=True)["resumed_at"] == [2]
    assert traces(tmp_path) == whole


def test_signal_that_a_library_turned_into_a_keyboard_interrupt_interrupts_the_run(whole, tmp_path, monkeypatch):
    """Ray does this when the signal arrives while it waits: it raises KeyboardInterrupt instead."""
    train_round, rounds = Simulation._train_round, []

    def waiting(*given):
        rounds.append(1)
        if len(rounds) == 2:
            with suppress(Interrupted):
                send(signal.SIGINT)
            raise KeyboardInterrupt
        return train_round(*given)

    monkeypatch.setattr(Simulation, "_train_round", waiting)
    assert run(CASE, tmp_path)["status"] == "interrupted"
    run(CASE, tmp_path, resume=True)
    assert traces(tmp_path) == whole


def at_step(monkeypatch, step, act, after=False):
    """Call `act` once, before (or right after) the checkpoint of this step is written."""
    write, acted = checkpoint.write, []

    def watched(folder, at, *rest):
        early = at == step and not acted
        if early:
            acted.append(at)
        if early and not after:
            act()
        digest = write(folder, at, *rest)
        if early and after:
            act()
        return digest

    monkeypatch.setattr(checkpoint, "write", watched)


@pytest.mark.parametrize("after", [False, True], ids=["before it is written", "after it is written"])
def test_signal_while_a_checkpoint_is_written_is_deferred(after, tmp_path, monkeypatch):
    at_step(monkeypatch, 1, lambda: send(signal.SIGINT), after)
    assert run(CASE, tmp_path)["status"] == "interrupted"
    found = checkpoint.latest(tmp_path / "checkpoints")
    assert found.step == 1
    assert {path.name for path in (tmp_path / "tables" / "rounds").iterdir()} == {"000001.parquet"}


def test_signals_while_the_run_finishes_change_nothing(whole, tmp_path, monkeypatch):
    finish, sent = Record.finish, []

    def hammered(*args):
        send(signal.SIGINT)
        summary = finish(*args)
        send(signal.SIGTERM)
        sent.append(summary)
        return summary

    with monkeypatch.context() as patch:
        patch.setattr(Record, "finish", hammered)
        assert run(CASE, tmp_path, display=Stopping(1))["status"] == "interrupted"
        assert run(CASE, tmp_path, resume=True)["status"] == "completed"
    assert len(sent) == 2
    assert traces(tmp_path) == whole


def test_sigterm_handler_of_the_backend_is_replaced(tmp_path, monkeypatch):
    """Ray installs a handler when it starts, which would end the process without a checkpoint."""
    open_pool, before = session.open_pool, signal.getsignal(signal.SIGTERM)

    @contextmanager
    def greedy(*args):
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the backend's handler was called"))
        with open_pool(*args) as pool:
            yield pool

    monkeypatch.setattr(session, "open_pool", greedy)
    at_step(monkeypatch, 1, lambda: send(signal.SIGTERM))
    assert run(CASE, tmp_path)["status"] == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == before


def test_run_works_outside_the_main_thread(whole, tmp_path):
    thread = threading.Thread(target=run, args=(CASE, tmp_path))
    thread.start()
    thread.join()
    assert traces(tmp_path) == whole


class Command:
    """`simfl run` in a process group of its own, which gets signals as from a terminal."""

    def __init__(self, folder, *arguments, case=LONG):
        self.folder = folder
        (folder.parent / "experiment.yaml").write_text(config.dump(case))
        words = ["run", str(folder.parent / "experiment.yaml"), "--out", str(folder), *arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simfl", *words],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def rounds(self):
        log = self.folder / "log.jsonl"
        return log.read_text().count('"event": "round"') if log.exists() else 0

    def interrupted(self, *numbers, after):
        """Send the signals when more rounds than `after` are done; return the exit code and the output."""
        deadline = time.monotonic() + 200
        while self.rounds() <= after and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        for number in numbers:
            os.killpg(self.process.pid, number)
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, out, errors


def test_interrupted_command_shows_how_to_resume_and_exits_with_130(tmp_path):
    code, out, errors = Command(tmp_path / "r", "--backend", "inline").interrupted(signal.SIGINT, after=1)
    assert code == 130
    assert "Traceback" not in errors
    assert "interrupted" in out
    assert "the same command and --resume" in out
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["rounds"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT] * 3], ids=str)
def test_interrupted_command_on_ray_is_resumed(numbers, tmp_path):
    """Ctrl-C reaches every process of the terminal, and may be pressed three times."""
    first = Command(tmp_path / "r", "--workers", "1").interrupted(*numbers, after=0)
    assert (first[0], "Traceback" in first[2]) == (130, False), first
    done = json.loads((tmp_path / "r" / "summary.json").read_text())["rounds"]
    second = Command(tmp_path / "r", "--workers", "1", "--resume")
    again = second.interrupted(*numbers, after=second.rounds())
    assert again[0] == 130, again
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["resumed_at"] == [done]
    assert summary["rounds"] > done


@pytest.mark.slow
def test_command_that_is_interrupted_while_it_waits_for_ray_writes_a_checkpoint(tmp_path):
    code, out, errors = Command(tmp_path / "r", "--workers", "1", case=SLOW).interrupted(signal.SIGINT, after=2)
    assert (code, "Traceback" in errors) == (130, False), errors
    assert "the same command and --resume" in out
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["rounds"] >= 3
