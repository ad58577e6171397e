"""Every fault at random points: a run ends bit-equal to one that nothing disturbed, or with the right line and goes on.

`SIMFL_CHAOS_ROUNDS` repeats the whole (1), `SIMFL_CHAOS_SEED` chooses other points (1), `SIMFL_CHAOS_RECORD` names a
file for the table of what was done and what came of it.
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
from faults import Moody, Troubled, met, order

from simfl import config
from simfl.errors import ClientError, OutOfMemory, RunError, SimflError
from simfl.experiment import Evaluate, Experiment
from simfl.runs import checkpoint, tables

ROUNDS, SEED = int(os.environ.get("SIMFL_CHAOS_ROUNDS", 1)), int(os.environ.get("SIMFL_CHAOS_SEED", 1))


@dataclass
class Trial:
    """One run in its folder, and how it is disturbed."""

    folder: Path
    chance: random.Random
    whole: dict[str, str]  # what a run that nothing disturbed leaves
    visits: list[tuple[int, int]]  # (round, client) of all of its visits
    overlap: bool  # whether each round is scored while the next is trained
    said: list[str] = field(default_factory=list)

    @property
    def faults(self) -> Path:
        return self.folder / "faults"

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def case(self, **settings: Any) -> Experiment:
        """The experiment; `settings` must change no number."""
        case = CASE(self.faults)
        return replace(case, evaluate=replace(case.evaluate, overlap=self.overlap), **settings)

    def order(self, kind: str, times: int = 1) -> str:
        """A fault at a random visit; says which."""
        number, client = self.chance.choice(self.visits)
        order(self.faults, kind, client, number - 1, times)
        return f"client {client} in round {number}"

    def start(self, resume: bool = False, **settings: Any) -> None:
        """Run on two workers, in this process."""
        display = Stopping()
        try:
            run(self.case(**settings), self.out, workers=2, display=display, resume=resume)
        finally:
            self.said += display.messages

    def goes_on(self, **settings: Any) -> None:
        """When the cause is gone the run goes on, to the same end."""
        shutil.rmtree(self.faults, ignore_errors=True)
        self.start(resume=True, **settings)
        self.is_whole()

    def is_whole(self) -> None:
        assert traces(self.out) == self.whole

    def fails(self, kind: type[SimflError], line: str, **settings: Any) -> str:
        """The run ends with this one line; gives it."""
        with pytest.raises(kind, match=line) as failed:
            self.start(**settings)
        text = str(failed.value)
        assert "\n" not in text
        return text.replace(str(self.folder), "…")

    def process(self, resume: bool = False) -> subprocess.Popen[str]:
        """`simfl run` in a process of its own, with a Ray of its own."""
        (self.folder / "experiment.yaml").write_text(config.dump(self.case()))
        words = ["run", str(self.folder / "experiment.yaml"), "--out", str(self.out), "--workers", "2"]
        return subprocess.Popen(
            [sys.executable, "-m", "simfl", *words, *(["--resume"] if resume else [])],
            cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def signalled(self, number: int) -> tuple[str, int]:
        """Start, and send a signal after some rounds; says when, and the exit code."""
        process, rounds = self.process(), self.chance.randrange(4)
        log, deadline = self.out / "log.jsonl", time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if log.exists() and log.read_text().count('"event": "round"') >= rounds and "started" in log.read_text():
                break
            time.sleep(0.005)
        pause = self.chance.uniform(0, 0.2)
        time.sleep(pause)
        os.kill(process.pid, number) if number == signal.SIGTERM else os.killpg(process.pid, number)
        process.communicate(timeout=240)
        return f"{pause * 1000:.0f} ms after round {rounds}", process.returncode


def CASE(faults: Path) -> Experiment:
    """Seven clients a round in four cohorts, with control variates in their memory and dropout."""
    evaluate = Evaluate(batch_size=16)  # four shards
    data = Moody(folder=str(faults))
    return experiment(Troubled(folder=str(faults)), data=data, rounds=5, on_error="retry", evaluate=evaluate)


# each trial says where the fault struck and what came of it


def worker_dies_at_a_visit(trial: Trial) -> tuple[str, str]:
    times = trial.chance.randint(1, 3)
    where = trial.order("die", times)
    trial.start()
    trial.is_whole()
    assert met(trial.faults) == times
    return f"{where}, {times} times", "bit-equal"


def worker_is_killed_at_any_moment(trial: Trial) -> tuple[str, str]:
    import threading

    import psutil

    killed, over = [], threading.Event()

    def watch() -> None:
        time.sleep(trial.chance.uniform(0, 5))
        while not over.is_set() and not killed:
            found = [
                p
                for p in psutil.process_iter(["name", "cmdline"])
                if "ray::Hosted" in " ".join(p.info["cmdline"] or [])
            ]
            mine = [p for p in found if p.ppid() in family]
            if mine:
                victim = trial.chance.choice(mine)
                killed.append(" ".join(victim.info["cmdline"]).strip())
                victim.kill()
            time.sleep(0.01)

    family = {p.pid for p in psutil.Process().children(recursive=True)}
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        trial.start()
    finally:
        over.set()
        thread.join()
    trial.is_whole()
    return f"in {killed[0]}" if killed else "after its end", "bit-equal"


def worker_dies_while_it_starts(trial: Trial) -> tuple[str, str]:
    order(trial.faults, "start: die", times=1)
    trial.start()
    trial.is_whole()
    assert met(trial.faults) == 1
    return "reading its data, once", "bit-equal"


def worker_cannot_start(trial: Trial) -> tuple[str, str]:
    order(trial.faults, "start: raise")
    line = trial.fails(RunError, r"^a worker cannot start: \w*Error: no such disk on this machine; --backend inline")
    assert sum("no such disk on this machine" in text and "in load" in text for text in trial.said) == 1  # its stack
    trial.goes_on()
    return "reading its data, always", f"`{line}`; mended, bit-equal"


def reader_is_flaky(trial: Trial) -> tuple[str, str]:
    times = trial.chance.randint(1, 2)
    where = trial.order("flaky", times)
    trial.start()
    trial.is_whole()
    assert sum("tried again" in text for text in trial.said) == times
    return f"{where}, {times} times", "bit-equal"


def client_is_broken(trial: Trial) -> tuple[str, str]:
    where = trial.order("broken", 1000)
    with pytest.raises(ClientError) as failed:
        trial.start()
    first, *_, last = str(failed.value).splitlines()
    assert re.match(r"^client \d, phase 0, round \d, seed \d+ failed:$", first)
    assert last == "ZeroDivisionError: the client's own words"
    trial.goes_on()
    return where, f"`{first}` … `{last}`; mended, bit-equal"


def memory_is_wanting_once(kind: str) -> Callable[[Trial], tuple[str, str]]:
    def once(trial: Trial) -> tuple[str, str]:
        where = trial.order(kind)
        trial.start()
        trial.is_whole()
        assert sum("alone on a fresh worker" in text for text in trial.said) == 1
        return f"{where}, once", "bit-equal"

    return once


def memory_is_always_wanting(trial: Trial) -> tuple[str, str]:
    where = trial.order("no GPU memory", 1000)
    line = trial.fails(OutOfMemory, r"^out of memory on clients .* give a smaller local.batch_size")
    trial.goes_on()
    return f"{where}, always", f"`{line}`; mended, bit-equal"


def worker_hangs(trial: Trial) -> tuple[str, str]:
    where = trial.order("hang")
    line = trial.fails(RunError, r"^no result for 8 s from worker \d on clients ", watchdog_seconds=8.0)
    assert "_hang" in "".join(path.read_text() for path in (trial.out / "stacks").iterdir())
    trial.goes_on(watchdog_seconds=300.0)
    return where, f"`{line}`; gone on, bit-equal"


def driver_is_killed(trial: Trial) -> tuple[str, str]:
    where, _ = trial.signalled(signal.SIGKILL)
    trial.start(resume=(trial.out / "experiment.yaml").exists())
    trial.is_whole()
    return where, "resumed, bit-equal"


def driver_is_asked_to_stop(trial: Trial) -> tuple[str, str]:
    where, code = trial.signalled(signal.SIGTERM)
    assert code in (130, 0)  # 0 where the run had ended before
    trial.start(resume=(trial.out / "experiment.yaml").exists())
    trial.is_whole()
    return where, f"exit code {code}; resumed, bit-equal"


def newest_commit_is_damaged(trial: Trial) -> tuple[str, str]:
    display = Stopping(trial.chance.randint(2, 4))
    run(trial.case(), trial.out, workers=2, display=display)
    newest = trial.out / "checkpoints" / f"{checkpoint.steps(trial.out / 'checkpoints')[-1]:06d}"
    path = trial.chance.choice(sorted(newest.iterdir()))
    data = bytearray(path.read_bytes())
    place = trial.chance.randrange(len(data))
    data[place] ^= 1 << trial.chance.randrange(8)
    path.write_bytes(bytes(data))
    trial.start(resume=True)
    trial.is_whole()
    assert any("falling back to the commit before" in text for text in trial.said)
    return f"a bit of byte {place} of {path.parent.name}/{path.name}", "said so, fell back, bit-equal"


def disk_is_full(trial: Trial) -> tuple[str, str]:
    """A file system of its own, which is filled when some rounds are done."""
    trial.out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", trial.out], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        full = Filling(trial.chance.randint(1, 4), trial.out / "filler")
        with pytest.raises(RunError, match=r"^[^\n]*: No space left on device$") as failed:
            run(trial.case(), trial.out, workers=2, display=full)
        (trial.out / "filler").unlink()
        trial.start(resume=True)
        trial.is_whole()
    finally:
        subprocess.run(["umount", "--lazy", trial.out], check=True)  # a worker may still be on its way out
    line = str(failed.value).replace(str(trial.folder), "…")
    return f"after round {full.step}", f"`{line}`; with room again, bit-equal"


class Filling(Stopping):
    """A display that fills the disk after a round."""

    def __init__(self, step: int, path: Path) -> None:
        super().__init__()
        self.step, self.path = step, path

    def round_done(self, row: dict[str, Any]) -> None:
        if row["step"] == self.step:
            with suppress(OSError), self.path.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))


def folder_cannot_be_written(trial: Trial) -> tuple[str, str]:
    """Client memory, which workers write: a file stands where its folder was."""

    class Blocking(Stopping):
        def round_done(self, row: dict[str, Any]) -> None:
            if row["step"] == step:
                memory.rename(trial.folder / "away")
                memory.write_text("")

    memory, step = trial.out / "memory", trial.chance.randint(1, 4)
    with pytest.raises(RunError, match=r"^[^\n]*memory[^\n]*: [^\n]+$") as failed:
        run(trial.case(), trial.out, workers=2, display=Blocking())
    memory.unlink()
    (trial.folder / "away").rename(memory)
    trial.goes_on()
    line = str(failed.value).replace(str(trial.folder), "…")
    return f"a file in the place of client memory's folder, after round {step}", f"`{line}`; mended, bit-equal"


TRIALS: dict[str, Callable[[Trial], tuple[str, str]]] = {
    "a worker dies at a visit": worker_dies_at_a_visit,
    "a worker is killed at any moment": worker_is_killed_at_any_moment,
    "a worker dies while it starts": worker_dies_while_it_starts,
    "a worker cannot start": worker_cannot_start,
    "a reader is flaky, on_error: retry": reader_is_flaky,
    "a client is broken": client_is_broken,
    "a GPU wants memory once": memory_is_wanting_once("no GPU memory"),
    "a machine wants memory once": memory_is_wanting_once("no memory"),
    "memory is always wanting": memory_is_always_wanting,
    "a worker hangs": worker_hangs,
    "the driver is killed -9": driver_is_killed,
    "the driver gets SIGTERM": driver_is_asked_to_stop,
    "the newest commit is damaged": newest_commit_is_damaged,
    "the disk is full": disk_is_full,
    "a folder cannot be written": folder_cannot_be_written,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run that nothing disturbs leaves, and its visits."""
    folder = tmp_path_factory.mktemp("whole")
    run(CASE(folder / "faults"), folder / "run")
    visits = [(row["round"], row["client"]) for row in tables.rows(folder / "run" / "clients.parquet")]
    return traces(folder / "run"), visits


@pytest.fixture(scope="module")
def record():
    """Rows of the record, written at the end where the environment says so."""
    rows: list[tuple[str, str, str]] = []
    yield rows
    if path := os.environ.get("SIMFL_CHAOS_RECORD"):
        lines = ["| fault | where it struck | what came of it |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in sorted(rows)]
        Path(path).write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("repeat", range(ROUNDS))
@pytest.mark.parametrize("name", TRIALS)
def test_a_disturbed_run_ends_as_if_nothing_had_been(name, repeat, whole, record, tmp_path, ray_session):
    overlap = random.Random(f"{SEED}.{repeat}.{name}.overlap").random() < 0.5
    trial = Trial(tmp_path, random.Random(f"{SEED}.{repeat}.{name}"), *whole, overlap)
    record.append((name, *TRIALS[name](trial)))
