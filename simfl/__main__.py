"""Entry point of `simfl` and `python -m simfl`; signals wait from its first line on for code that reports them.

A run or a sweep then gets its parent process, and another command a handler, before anything heavy is imported.
"""

from __future__ import annotations

import signal
import sys

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the command of this process, a run or a sweep under a parent, and return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    from simfl.commands import supervisor

    if supervisor.is_supervised(sys.argv[1:]):
        return supervisor.supervised(_run)
    with supervisor.reported_signals():
        from simfl import cli
    return cli.main(sys.argv[1:])


def _run() -> int:
    """Import the command line and run it."""
    from simfl import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
