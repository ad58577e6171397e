"""A running Ray cluster: the job is sent through Ray's Job API, its log followed, its end told by the exit code.

A cluster that asks for a token finds it where Ray looks for it: RAY_AUTH_TOKEN, the file in RAY_AUTH_TOKEN_PATH, or
~/.ray/auth_token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl.errors import ConfigError, RunError
from simfl.submit.request import Request, lasting_out, values

ALIKE = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}  # how a job ended -> exit code
OVERRIDING = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers these to an address that it is given
CHATTY = tuple(  # loggers that tell what only Ray's own developers need
    f"ray.{name}"
    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging")
)
NOT_YET, PATIENCE = "No available agent", 60.0  # what a head says that is still starting; seconds it is asked again
PORT, OF_CLIENT = "8265", "10001"  # where Ray's dashboard takes jobs, and where Ray Client listens, by default


def address_of(target: str) -> str:
    """Where jobs are taken: `ray://HOST` and `ray://HOST:PORT` are the dashboard's address.

    The usual address of Ray Client means the head that it is on. Nothing goes through Ray Client itself, whose server
    forks under gRPC's threads and did not always come up (Ray 2.60).
    """
    scheme, _, rest = target.partition("://")
    if scheme != "ray":
        return target
    host, _, port = rest.partition(":")
    return f"http://{host}:{PORT if port in ('', OF_CLIENT) else port}"


@dataclass(frozen=True)
class RunningRay:
    """A Ray cluster that is up."""

    target: str  # ray://HOST, ray://HOST:PORT or http://HOST:PORT of the dashboard, or auto

    def shown(self, request: Request) -> str:
        """The job as the API takes it, as JSON."""
        lasting_out(request, self.target)
        variables = dict.fromkeys(request.environment, "as it is here")
        job = {
            "address": address_of(self.target),
            "entrypoint": request.line,
            "runtime_env": {"working_dir": list(request.parcel.files), "env_vars": variables},
            "metadata": {"simfl": request.name},
        }
        return json.dumps(job, indent=1)

    def submit(self, request: Request, say: Callable[[str], None], follow: bool) -> int:
        """Send the files and the job."""
        lasting_out(request, self.target)
        variables, address = values(request.environment), address_of(self.target)
        client = _client(address)
        with tempfile.TemporaryDirectory(prefix="simfl-") as folder:
            request.parcel.copy(Path(folder))
            job = _taken(
                lambda: client.submit_job(
                    entrypoint=request.line,
                    runtime_env={"working_dir": folder, "env_vars": variables},
                    metadata={"simfl": request.name},
                )
            )
        say(f"{job} is submitted; its run is written to {request.out}")
        if follow:
            return _follow(client, job, address, say)
        say(_afterwards(job, address))
        return 0


def _afterwards(job: str, address: str) -> str:
    return (
        f"its log: ray job logs --follow {job} --address {address}; to end it: ray job stop {job} --address {address}"
    )


def _follow(client: Any, job: str, address: str, say: Callable[[str], None]) -> int:
    async def tail() -> None:
        async for text in client.tail_job_logs(job):
            print(text, end="", flush=True)

    try:
        asyncio.run(tail())
    except KeyboardInterrupt:
        say(f"{job} goes on; {_afterwards(job, address)}")
        return 130
    status = str(_asked(lambda: client.get_job_status(job)).value)
    say(f"{job}: {status.lower()}")
    return ALIKE.get(status, 1)


def _client(address: str) -> Any:
    """Ray's client for jobs; ConfigError where nobody takes them, or not from us."""
    _use_token()
    with _without(OVERRIDING):
        from ray.job_submission import JobSubmissionClient

        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
        return _asked(lambda: JobSubmissionClient(address), address)


def _asked(ask: Callable[[], Any], address: str = "") -> Any:
    """What Ray answers; its refusals as one line."""
    from ray.exceptions import AuthenticationError

    where = f"--to {address}: " if address else ""
    try:
        return ask()
    except ConnectionError as error:
        raise ConfigError(f"{where}no Ray cluster takes jobs here: {_first(error)}") from None
    except AuthenticationError:
        known = "its token is another" if os.environ.get("RAY_AUTH_MODE") == "token" else "set RAY_AUTH_MODE=token"
        raise ConfigError(
            f"{where}the cluster asks for a token; {known}; RAY_AUTH_TOKEN_PATH names the file that holds it"
        ) from None
    except RuntimeError as error:  # what Ray makes of any other answer that is not 200
        if "ray[default]" in str(error):
            raise ConfigError("--to: jobs need more of Ray than is installed; pip install 'simfl[cluster]'") from None
        raise RunError(f"{where}Ray refuses: {_first(error)}") from None


def _taken(ask: Callable[[], Any]) -> str:
    """The job's id; a cluster that has just come up is asked again until it takes jobs."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return str(_asked(ask))
        except RunError as error:
            if NOT_YET not in str(error) or time.monotonic() > until:
                raise
        time.sleep(1.0)


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _use_token() -> None:
    """Tell Ray to show its token where there is one, unless it is told already whether to."""
    known = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if known or (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """The environment without variables that would be obeyed in place of what was asked for."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
