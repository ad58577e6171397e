"""The program that Ray starts as a worker: it asks the fork server for a fork, and exits when the fork does.

Without an answer it becomes a worker in the usual way. It imports almost nothing, and nothing of simfl.
"""

import os
import socket
import sys
from importlib.util import find_spec
from json import dumps
from pathlib import Path

FORK_SERVER = "SIMFL_FORK_SERVER"  # environment variable: the socket of the fork server


def main() -> None:
    """Ask for a fork and wait until it ends."""
    sys.path.pop(0)  # this folder, whose modules have short names
    spec = find_spec("ray")
    assert spec is not None, "Ray starts this program"
    program = Path(str(spec.origin)).parent / "_private" / "workers" / "default_worker.py"
    arguments = [str(program), *sys.argv[1:]]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(os.environ[FORK_SERVER])
            body = dumps([arguments, dict(os.environ), os.getcwd()]).encode()
            socket.send_fds(connection, [len(body).to_bytes(8, "big")], [0, 1, 2])
            connection.sendall(body)
            accepted = connection.recv(1)
        except OSError:
            accepted = b""
        if accepted:
            exit_code = connection.recv(1)
            os._exit(exit_code[0] if exit_code else 1)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
