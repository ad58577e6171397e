"""A running Ray cluster: the job is submitted through Ray's Job API.

The token of the cluster is read where Ray reads it: RAY_AUTH_TOKEN, the file in RAY_AUTH_TOKEN_PATH, or
~/.ray/auth_token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from simfl.errors import ConfigError, RunError
from simfl.submit.cluster import Cluster
from simfl.submit.request import Request, check_out, values

EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers these to the given address
VERBOSE_LOGGERS = tuple(  # of interest to developers of Ray only
    f"ray.{name}"
    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging")
)
STARTING, START_TIMEOUT = "No available agent", 60.0  # error of a head node that is starting; seconds of retries
JOB_PORT, CLIENT_PORT = "8265", "10001"  # default ports of the dashboard, which accepts jobs, and of Ray Client


def address_of(target: str) -> str:
    """Return the address of the dashboard, which accepts jobs, for `ray://HOST` and `ray://HOST:PORT`.

    The default port of Ray Client stands for the dashboard of the same host. Ray Client itself is not used: its server
    forks while gRPC threads run, and did not always start (Ray 2.60).
    """
    scheme, _, rest = target.partition("://")
    if scheme != "ray":
        return target
    host, _, port = rest.partition(":")
    return f"http://{host}:{JOB_PORT if port in ('', CLIENT_PORT) else port}"


@dataclass(frozen=True)
class RunningRay(Cluster):
    """A running Ray cluster, through its Job API."""

    address: str  # ray://HOST, ray://HOST:PORT or http://HOST:PORT of the dashboard, or auto

    example: ClassVar[Mapping[str, object]] = {"address": "http://127.0.0.1:8265"}

    def shown(self, request: Request) -> str:
        """Return the job as JSON, in the format of the API."""
        check_out(request, self.address)
        variables = dict.fromkeys(request.environment, "value of this process")
        job = {
            "address": address_of(self.address),
            "entrypoint": request.command_line,
            "runtime_env": {"working_dir": list(request.package.files), "env_vars": variables},
            "metadata": {"simfl": request.name},
        }
        return json.dumps(job, indent=1)

    def submit(self, request: Request, log: Callable[[str], None], follow: bool) -> int:
        """Upload the files and submit the job."""
        check_out(request, self.address)
        variables, address = values(request.environment), address_of(self.address)
        client = _client(address)
        with tempfile.TemporaryDirectory(prefix="simfl-") as folder:
            request.package.copy(Path(folder))
            job = _submitted(
                lambda: client.submit_job(
                    entrypoint=request.command_line,
                    runtime_env={"working_dir": folder, "env_vars": variables},
                    metadata={"simfl": request.name},
                )
            )
        log(f"{job} submitted; results in {request.out}")
        if follow:
            return _follow(client, job, address, log)
        log(_commands(job, address))
        return 0


def _commands(job: str, address: str) -> str:
    return f"log: ray job logs --follow {job} --address {address}; stop: ray job stop {job} --address {address}"


def _follow(client: Any, job: str, address: str, log: Callable[[str], None]) -> int:
    async def tail() -> None:
        async for text in client.tail_job_logs(job):
            print(text, end="", flush=True)

    try:
        asyncio.run(tail())
    except KeyboardInterrupt:
        log(f"{job} is still running; {_commands(job, address)}")
        return 130
    status = str(_call(lambda: client.get_job_status(job)).value)
    log(f"{job}: {status.lower()}")
    return EXIT_CODES.get(status, 1)


def _client(address: str) -> Any:
    """Return Ray's job client; ConfigError if no cluster answers or it refuses the token."""
    _use_token()
    with _without(ADDRESS_VARIABLES):
        from ray.job_submission import JobSubmissionClient

        for name in VERBOSE_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        return _call(lambda: JobSubmissionClient(address), address)


def _call(request: Callable[[], Any], address: str = "") -> Any:
    """Return Ray's answer to a request; its errors become one line."""
    from ray.exceptions import AuthenticationError

    where = f"--to {address}: " if address else ""
    try:
        return request()
    except ConnectionError as error:
        raise ConfigError(f"{where}no Ray cluster accepts jobs at this address: {_first(error)}") from None
    except AuthenticationError:
        hint = "the token is wrong" if os.environ.get("RAY_AUTH_MODE") == "token" else "set RAY_AUTH_MODE=token"
        raise ConfigError(
            f"{where}the cluster requires a token; {hint}; RAY_AUTH_TOKEN_PATH is the path of its file"
        ) from None
    except RuntimeError as error:  # Ray raises it for every other answer than 200
        if "ray[default]" in str(error):
            raise ConfigError("--to: the job client of Ray is not installed; pip install 'simfl[cluster]'") from None
        raise RunError(f"{where}Ray failed: {_first(error)}") from None


def _submitted(request: Callable[[], Any]) -> str:
    """Submit the job and return its id; retry while the cluster is starting."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            return str(_call(request))
        except RunError as error:
            if STARTING not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _use_token() -> None:
    """Enable token authentication in Ray if there is a token and RAY_AUTH_MODE is not set."""
    known = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if known or (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Remove environment variables for the block."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
