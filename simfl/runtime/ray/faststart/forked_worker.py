"""What Ray starts as a worker where there is a nursery: it asks for a fork, and lives as long as that does.

Without an answer it becomes a worker as Ray starts them. It imports next to nothing, and nothing of simfl.
"""

import os
import socket
import sys
from importlib.util import find_spec
from json import dumps
from pathlib import Path

NURSERY = "SIMFL_NURSERY"  # environment variable: where the nursery listens


def main() -> None:
    """Ask, and wait for the end of what was born."""
    sys.path.pop(0)  # this folder, whose modules have short names
    spec = find_spec("ray")
    assert spec is not None, "Ray has started this"
    program = Path(str(spec.origin)).parent / "_private" / "workers" / "default_worker.py"
    arguments = [str(program), *sys.argv[1:]]
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(os.environ[NURSERY])
            body = dumps([arguments, dict(os.environ), os.getcwd()]).encode()
            socket.send_fds(line, [len(body).to_bytes(8, "big")], [0, 1, 2])
            line.sendall(body)
            born = line.recv(1)
        except OSError:
            born = b""
        if born:
            ended = line.recv(1)
            os._exit(ended[0] if ended else 1)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
