"""An object store on this machine: moto's server, and a port of it inside another network namespace.

Needs s3fs and moto with its server (`make test-clusters` installs them). Listens on loopback alone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

BUCKET = "runs"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
NAMES = (*CREDENTIALS, "AWS_ENDPOINT_URL")  # variables that a job needs
SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server._server.server_port, flush=True)
sys.stdin.read()
"""
LISTENER = """
import socket, sys
listener = socket.create_server((sys.argv[2], 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"!"], [listener.fileno()])
"""


def missing() -> str:
    """Return why no object store can be started here, or an empty string."""
    try:
        import flask_cors  # noqa: F401
        import moto  # noqa: F401
        import s3fs  # noqa: F401
    except ImportError as error:
        return f"no {error.name}: needs pip install s3fs 'moto[s3]' flask flask-cors"
    return ""


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Start the server with one bucket; yield the environment variables with which clients find it."""
    words = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        variables = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(server.stdout.readline())}"}
        make = f"import s3fs; s3fs.S3FileSystem().mkdir({BUCKET!r})"
        try:
            subprocess.run([sys.executable, "-c", make], env={**os.environ, **variables}, check=True)
            yield variables
        finally:
            server.kill()


@contextmanager
def port_inside(network: list[str], address: str, variables: dict[str, str]) -> Iterator[dict[str, str]]:
    """Serve the object store in another network namespace, too; yield the variables for clients there.

    Args:
        network: Command prefix that runs a program in the namespace.
        address: One of its addresses.
        variables: Those of `object_store`.
    """
    port = int(variables["AWS_ENDPOINT_URL"].rpartition(":")[2])
    here, there = socket.socketpair()
    subprocess.run(
        [*network, sys.executable, "-c", LISTENER, str(there.fileno()), address], pass_fds=[there.fileno()], check=True
    )
    _, (number,), _, _ = socket.recv_fds(here, 1, 1)
    with socket.socket(fileno=number) as listener, here, there:
        threading.Thread(target=_serve, args=(listener, port), daemon=True).start()
        yield {**variables, "AWS_ENDPOINT_URL": f"http://{address}:{listener.getsockname()[1]}"}
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, port: int) -> None:
    """Connect each client with the server."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        server = socket.create_connection(("127.0.0.1", port))
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
