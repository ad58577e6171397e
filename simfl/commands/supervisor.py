"""A parent process of `simfl run` and `simfl sweep` that reports an end which the run itself cannot report.

The kernel kills a process when memory is short, and Ray ends a driver whose raylet has died, both without a word. The
parent is a fork from before anything is imported; it passes signals on, waits, and prints one line if the run ended
without its last word, as by a signal that comes before the run can save a checkpoint. Processes that the run leaves, as
agents of a Ray whose raylet was killed, become children of the parent, which ends them. If the parent is killed, the
run is killed too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from simfl.runtime.descendants import adopt_orphans, end_descendants, end_with_parent

COMMANDS = ("run", "sweep")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOST, INTERRUPTED = 3, 130  # exit codes
ORPHAN_SECONDS = 5.0  # that processes which the run leaves have to end: Ray stops in order meanwhile
SUPERVISED = "SIMFL_SUPERVISED"  # environment variable, which `simfl.runtime.ray.monitor` reads: the run's process
RESUME = "what its last checkpoint holds is saved; resume it with the same command and --resume"

_last_word: int | None = None  # the pipe to the parent


def is_supervised(arguments: list[str]) -> bool:
    """Return whether a command is run under a parent: on Linux, outside of a debugger."""
    return sys.platform == "linux" and sys.gettrace() is None and arguments[:1] in [[name] for name in COMMANDS]


def supervised(command: Callable[[], int]) -> int:
    """Run a command in a fork, and return its exit code; report it in a line if it ended without a word."""
    ended, last_word = os.pipe()
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until both processes can handle them
    process = os.fork()
    if process == 0:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports it better than a KeyboardInterrupt
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        os.close(ended)
        return _run(command, last_word, parent)
    os.close(last_word)
    adopt_orphans()
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _forward_to(process))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    word = os.read(ended, 1)  # at the end of the command or of its process, whose forks do not hold the pipe
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not word:
        print(f"simfl: {_describe(status)}; {RESUME}", file=sys.stderr, flush=True)
    end_descendants(ORPHAN_SECONDS)
    if not word:
        return INTERRUPTED if -status in FORWARDED else LOST
    return status if status >= 0 else 128 - status


@contextmanager
def reported_signals() -> Iterator[None]:
    """End this process with a line and exit code 130 on a signal in the block, or one that was blocked before it.

    For the imports of a command that has no parent. An ignored signal, as SIGHUP under nohup, stays ignored.
    """
    numbers = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _end) for number in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    """Print a line and end this process, which holds nothing yet."""
    os.write(2, f"simfl: interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(INTERRUPTED)


def _run(command: Callable[[], int], last_word: int, parent: int) -> int:
    """Run the command in the fork, which ends with its parent."""
    end_with_parent()
    if os.getppid() != parent:
        os._exit(LOST)
    os.set_inheritable(last_word, False)
    os.register_at_fork(after_in_child=_forget)
    os.environ[SUPERVISED] = str(os.getpid())
    global _last_word
    _last_word = last_word
    try:
        return command()
    finally:
        say_last_word()


def say_last_word() -> None:
    """Tell the parent, if there is one, that this process has reported how it ends."""
    if _last_word is not None:
        os.write(_last_word, b".")


def _forget() -> None:
    """Close the pipe in a fork of the run, which could outlive it."""
    global _last_word
    if _last_word is not None:
        os.close(_last_word)
    _last_word = None


def _forward_to(process: int) -> Callable[[int, FrameType | None], None]:
    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(process, number)

    return forward


def _describe(status: int) -> str:
    """Describe an end without a word."""
    if status == -signal.SIGKILL:
        return "the process of the run was killed (SIGKILL, as the system does when memory is short)"
    if -status in FORWARDED:  # it came before the run could handle it, as while it imports
        return f"interrupted by {signal.Signals(-status).name}"
    if status < 0:
        return f"the process of the run was ended by {signal.Signals(-status).name}"
    if status == LOST:  # as `simfl.runtime.ray.monitor` ends it
        return "the process of the run waited in a call to a Ray that is lost, and was ended"
    return f"the process of the run was ended with exit code {status}, as Ray does when its raylet or its GCS ends"
