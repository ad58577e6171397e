"""Entry point of `simfl` and `python -m simfl`: a run gets its parent process before anything heavy is imported."""

from __future__ import annotations

import sys

from simfl.commands.supervisor import is_supervised, supervised


def main() -> int:
    """Run the command of this process, a run or a sweep under a parent, and return its exit code."""
    return supervised(_run) if is_supervised(sys.argv[1:]) else _run()


def _run() -> int:
    """Import the command line and run it."""
    from simfl import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
