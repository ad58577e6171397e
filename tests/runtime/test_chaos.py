"""Fault injection at random points: the run ends bit-identical to an undisturbed one, or fails with the right line.

After a failure, the cause is removed, the run is resumed, and it ends with the undisturbed results too.
`SIMFL_CHAOS_ROUNDS` repeats all faults (default 1), `SIMFL_CHAOS_SEED` chooses other points (default 1), and
`SIMFL_CHAOS_RECORD` names a file for a table of the faults and their outcomes.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Stopping, experiment, run, traces
from faults import FaultyData, FaultyScaffold, num_met, order

from simfl import config
from simfl.errors import ClientError, OutOfMemory, RunError, SimflError
from simfl.experiment import Evaluate, Experiment
from simfl.runs import checkpoint, tables
from simfl.runs.folder import CLIENT_STATES

ROUNDS, SEED = int(os.environ.get("SIMFL_CHAOS_ROUNDS", 1)), int(os.environ.get("SIMFL_CHAOS_SEED", 1))


@dataclass
class Disturbed:
    """A run in its folder, and how it is disturbed."""

    folder: Path
    draws: random.Random
    whole: dict[str, str]  # traces of the undisturbed run
    updates: list[tuple[int, int]]  # (round, client) of all its client updates
    overlap: bool  # whether each round is evaluated while the next one is trained
    messages: list[str] = field(default_factory=list)

    @property
    def faults(self) -> Path:
        """Return the folder that lists the faults."""
        return self.folder / "faults"

    @property
    def out(self) -> Path:
        """Return the run's folder."""
        return self.folder / "run"

    def case(self, **settings: Any) -> Experiment:
        """Return the experiment; `settings` must not change results."""
        case = case_of(self.faults)
        return replace(case, evaluate=replace(case.evaluate, overlap=self.overlap), **settings)

    def order(self, kind: str, times: int = 1) -> str:
        """Order a fault at a random client update, and return a description of it."""
        number, client = self.draws.choice(self.updates)
        order(self.faults, kind, client, number - 1, times)
        return f"client {client} in round {number}"

    def start(self, resume: bool = False, **settings: Any) -> None:
        """Run on two workers, in this process."""
        display = Stopping()
        try:
            run(self.case(**settings), self.out, workers=2, display=display, resume=resume)
        finally:
            self.messages += display.messages

    def resume(self, **settings: Any) -> None:
        """Remove the cause and resume the run; check its results."""
        shutil.rmtree(self.faults, ignore_errors=True)
        self.start(resume=True, **settings)
        self.check()

    def check(self) -> None:
        """Check that the results are those of the undisturbed run."""
        assert traces(self.out) == self.whole

    def fail(self, kind: type[SimflError], line: str, **settings: Any) -> str:
        """Run, check that it fails with this one line, and return the line."""
        with pytest.raises(kind, match=line) as failed:
            self.start(**settings)
        text = str(failed.value)
        assert "\n" not in text
        return text.replace(str(self.folder), "…")

    def process(self, resume: bool = False) -> subprocess.Popen[str]:
        """Start `simfl run` in a process of its own, with a Ray of its own."""
        (self.folder / "experiment.yaml").write_text(config.dump(self.case()))
        words = ["run", str(self.folder / "experiment.yaml"), "--out", str(self.out), "--workers", "2"]
        return subprocess.Popen(
            [sys.executable, "-m", "simfl", *words, *(["--resume"] if resume else [])],
            cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def send_signal(self, number: int) -> tuple[str, int]:
        """Start the run and send a signal after some rounds; return the time of the signal and the exit code."""
        process, rounds = self.process(), self.draws.randrange(4)
        log, deadline = self.out / "log.jsonl", time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if log.exists() and log.read_text().count('"event": "round"') >= rounds and "started" in log.read_text():
                break
            time.sleep(0.005)
        pause = self.draws.uniform(0, 0.2)
        time.sleep(pause)
        os.kill(process.pid, number) if number == signal.SIGTERM else os.killpg(process.pid, number)
        process.communicate(timeout=240)
        return f"{pause * 1000:.0f} ms after round {rounds}", process.returncode


def case_of(faults: Path) -> Experiment:
    """Return an experiment of seven clients per round in four cohorts, with control variates and dropout."""
    evaluate = Evaluate(batch_size=16)  # four shards
    data = FaultyData(folder=str(faults))
    return experiment(FaultyScaffold(folder=str(faults)), data=data, rounds=5, on_error="retry", evaluate=evaluate)


# Each function disturbs a run, and returns where the fault struck and the outcome.


def worker_dies_during_a_client_update(case: Disturbed) -> tuple[str, str]:
    times = case.draws.randint(1, 3)
    where = case.order("die", times)
    case.start()
    case.check()
    assert num_met(case.faults) == times
    return f"{where}, {times} times", "bit-identical"


def worker_is_killed_at_any_moment(case: Disturbed) -> tuple[str, str]:
    import threading

    import psutil

    killed: list[str] = []
    over = threading.Event()

    def watch() -> None:
        time.sleep(case.draws.uniform(0, 5))
        while not over.is_set() and not killed:
            found = [
                process
                for process in psutil.process_iter(["name", "cmdline"])
                if "ray::WorkerActor" in " ".join(process.info["cmdline"] or [])
            ]
            own = [process for process in found if process.ppid() in family]
            if own:
                victim = case.draws.choice(own)
                killed.append(" ".join(victim.info["cmdline"]).strip())
                victim.kill()
            time.sleep(0.01)

    family = {process.pid for process in psutil.Process().children(recursive=True)}
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        case.start()
    finally:
        over.set()
        thread.join()
    case.check()
    return f"in {killed[0]}" if killed else "after its end", "bit-identical"


def worker_dies_while_it_starts(case: Disturbed) -> tuple[str, str]:
    order(case.faults, "start: die", times=1)
    case.start()
    case.check()
    assert num_met(case.faults) == 1
    return "reading its data, once", "bit-identical"


def worker_cannot_start(case: Disturbed) -> tuple[str, str]:
    order(case.faults, "start: raise")
    line = case.fail(RunError, r"^a worker cannot start: \w*Error: no such disk on this machine; --backend inline")
    stacks = [text for text in case.messages if "no such disk on this machine" in text and "in load" in text]
    assert len(stacks) == 1
    case.resume()
    return "reading its data, always", f"`{line}`; resumed, bit-identical"


def reader_is_flaky(case: Disturbed) -> tuple[str, str]:
    times = case.draws.randint(1, 2)
    where = case.order("flaky", times)
    case.start()
    case.check()
    assert num_met(case.faults) == times
    return f"{where}, {times} times", "bit-identical"


def client_raises(case: Disturbed) -> tuple[str, str]:
    where = case.order("broken", 1000)
    with pytest.raises(ClientError) as failed:
        case.start()
    first, *_, last = str(failed.value).splitlines()
    assert re.match(r"^client \d, phase 0, round \d, seed \d+ failed:$", first)
    assert last == "ZeroDivisionError: an error in the client's code"
    case.resume()
    return where, f"`{first}` … `{last}`; resumed, bit-identical"


def out_of_memory_once(kind: str) -> Callable[[Disturbed], tuple[str, str]]:
    def once(case: Disturbed) -> tuple[str, str]:
        where = case.order(kind)
        case.start()
        case.check()
        assert sum("alone on a fresh worker" in text for text in case.messages) == 1
        return f"{where}, once", "bit-identical"

    return once


def out_of_memory_always(case: Disturbed) -> tuple[str, str]:
    where = case.order("no GPU memory", 1000)
    line = case.fail(OutOfMemory, r"^out of memory on clients .*local.batch_size")
    case.resume()
    return f"{where}, always", f"`{line}`; resumed, bit-identical"


def worker_hangs(case: Disturbed) -> tuple[str, str]:
    where = case.order("hang")
    line = case.fail(RunError, r"^no result for 20 s from worker \d on clients ", watchdog_seconds=20.0)
    assert "_hang" in "".join(path.read_text() for path in (case.out / "stacks").iterdir())
    case.resume(watchdog_seconds=300.0)
    return where, f"`{line}`; resumed, bit-identical"


def driver_is_killed(case: Disturbed) -> tuple[str, str]:
    where, _ = case.send_signal(signal.SIGKILL)
    case.start(resume=(case.out / "experiment.yaml").exists())
    case.check()
    return where, "resumed, bit-identical"


def driver_is_interrupted(case: Disturbed) -> tuple[str, str]:
    where, code = case.send_signal(signal.SIGTERM)
    assert code in (130, 0)  # 0 if the run had completed before
    case.start(resume=(case.out / "experiment.yaml").exists())
    case.check()
    return where, f"exit code {code}; resumed, bit-identical"


def newest_checkpoint_is_damaged(case: Disturbed) -> tuple[str, str]:
    display = Stopping(case.draws.randint(2, 4))
    run(case.case(), case.out, workers=2, display=display)
    newest = case.out / "checkpoints" / f"{checkpoint.steps(case.out / 'checkpoints')[-1]:06d}"
    path = case.draws.choice(sorted(newest.iterdir()))
    data = bytearray(path.read_bytes())
    place = case.draws.randrange(len(data))
    data[place] ^= 1 << case.draws.randrange(8)
    path.write_bytes(bytes(data))
    case.start(resume=True)
    case.check()
    assert any("using the previous checkpoint" in text for text in case.messages)
    return (
        f"a bit of byte {place} of {path.parent.name}/{path.name}",
        "reported, round repeated, bit-identical",
    )


def disk_is_full(case: Disturbed) -> tuple[str, str]:
    """Fill a file system that only the run uses after some rounds."""
    case.out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", case.out], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        full = Filling(case.draws.randint(1, 4), case.out / "filler")
        with pytest.raises(RunError, match=r"^[^\n]*: No space left on device$") as failed:
            run(case.case(), case.out, workers=2, display=full)
        (case.out / "filler").unlink()
        case.start(resume=True)
        case.check()
    finally:
        subprocess.run(["umount", "--lazy", case.out], check=True)  # a worker may still be exiting
    line = str(failed.value).replace(str(case.folder), "…")
    return f"after round {full.step}", f"`{line}`; resumed with free space, bit-identical"


class Filling(Stopping):
    """A display that fills the disk after a round."""

    def __init__(self, step: int, path: Path) -> None:
        super().__init__()
        self.step, self.path = step, path

    def round_done(self, row: dict[str, Any]) -> None:
        """Fill the disk if it is the round."""
        if row["step"] == self.step:
            with suppress(OSError), self.path.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))


def folder_cannot_be_written(case: Disturbed) -> tuple[str, str]:
    """Put a file in place of the folder of client states, which workers write to."""

    class Blocking(Stopping):
        def round_done(self, row: dict[str, Any]) -> None:
            if row["step"] == step:
                states.rename(case.folder / "away")
                states.write_text("")

    states, step = case.out / CLIENT_STATES, case.draws.randint(1, 4)
    with pytest.raises(RunError, match=rf"^[^\n]*{CLIENT_STATES}[^\n]*: [^\n]+$") as failed:
        run(case.case(), case.out, workers=2, display=Blocking())
    states.unlink()
    (case.folder / "away").rename(states)
    case.resume()
    line = str(failed.value).replace(str(case.folder), "…")
    return f"a file in place of the folder of client states, after round {step}", f"`{line}`; resumed, bit-identical"


FAULTS: dict[str, Callable[[Disturbed], tuple[str, str]]] = {
    "a worker dies during a client update": worker_dies_during_a_client_update,
    "a worker is killed at any moment": worker_is_killed_at_any_moment,
    "a worker dies while it starts": worker_dies_while_it_starts,
    "a worker cannot start": worker_cannot_start,
    "a reader is flaky, on_error: retry": reader_is_flaky,
    "a client raises an exception": client_raises,
    "a GPU is out of memory once": out_of_memory_once("no GPU memory"),
    "a machine is out of memory once": out_of_memory_once("no memory"),
    "memory is always too small": out_of_memory_always,
    "a worker hangs": worker_hangs,
    "the driver is killed with kill -9": driver_is_killed,
    "the driver gets SIGTERM": driver_is_interrupted,
    "the newest checkpoint is damaged": newest_checkpoint_is_damaged,
    "the disk is full": disk_is_full,
    "a folder cannot be written": folder_cannot_be_written,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[tuple[int, int]]]:
    """The traces of an undisturbed run, and its client updates."""
    folder = tmp_path_factory.mktemp("whole")
    run(case_of(folder / "faults"), folder / "run")
    updates = [(row["round"], row["client"]) for row in tables.rows(folder / "run" / "clients.parquet")]
    return traces(folder / "run"), updates


@pytest.fixture(scope="module")
def record() -> Any:
    """Rows of the record, written at the end if the environment asks for it."""
    rows: list[tuple[str, str, str]] = []
    yield rows
    if path := os.environ.get("SIMFL_CHAOS_RECORD"):
        lines = ["| fault | where it struck | outcome |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in sorted(rows)]
        Path(path).write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("repeat", range(ROUNDS))
@pytest.mark.parametrize("name", FAULTS)
def test_disturbed_run_ends_with_the_results_of_an_undisturbed_one(
    name: str,
    repeat: int,
    whole: tuple[dict[str, str], list[tuple[int, int]]],
    record: list[tuple[str, str, str]],
    tmp_path: Path,
    ray_session: None,
) -> None:
    overlap = random.Random(f"{SEED}.{repeat}.{name}.overlap").random() < 0.5
    case = Disturbed(tmp_path, random.Random(f"{SEED}.{repeat}.{name}"), *whole, overlap)
    record.append((name, *FAULTS[name](case)))
