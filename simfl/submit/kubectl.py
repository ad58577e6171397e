"""Calls of kubectl, and the following of a RayJob: its states with their reasons, its log, and its end."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from simfl.errors import ConfigError
from simfl.safe_text import printable

POLL_SECONDS = 5.0
MAX_FAILURES = 24  # of kubectl in a row, two minutes
UNSEEN_SECONDS = 60.0  # time without any state after which the operator seems to be missing
EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}  # by the state of Ray's job
ENDED = ("Complete", "Failed", "ValidationFailed")  # states of a RayJob that do not change again
MEANING = {
    "Initializing": "the operator creates the pods",
    "Running": "Ray runs the job",
    "Retrying": "another attempt follows",
    "Suspended": "the job waits to be admitted, as by Kueue",
}
HARMLESS = ("ContainerCreating", "PodInitializing")  # reasons for which a container waits in a good start
NOT_FOUND = "(NotFound)"


def call(arguments: list[str], text: str | None = None) -> str:
    """Return what kubectl prints.

    Args:
        arguments: Arguments of kubectl.
        text: Its standard input.

    Raises:
        ConfigError: kubectl is not installed, or fails.
    """
    try:
        done = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError("--to kuberay: kubectl is not installed; --dry-run prints the manifest") from None
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["no error message"]
        raise ConfigError(f"--to kuberay: kubectl failed: {errors[-1]}")
    return done.stdout


@dataclass
class RayJobFollower:
    """The observation of one RayJob until it ends."""

    name: str
    namespace: list[str]  # arguments of kubectl
    log: Callable[[str], None]
    failures: int = 0  # of kubectl in a row
    shown: set[str] = field(default_factory=set)  # lines that were printed
    state: str = ""  # the last one that was printed
    begun: float = field(default_factory=time.monotonic)
    printer: subprocess.Popen[bytes] | None = None  # `kubectl logs --follow`
    printed_until: str = ""  # last time at which the log was being printed

    def follow(self) -> int:
        """Print states, problems and the log until the RayJob ends; return the exit code of the job."""
        try:
            while (state := self._state()) not in ENDED:
                self._show_state(state)
                self._show_log(state)
                time.sleep(POLL_SECONDS)
            return self._end(state)
        except KeyboardInterrupt:
            stop = " ".join(["kubectl", *self.namespace, "delete rayjob", self.name])
            self.log(f"RayJob {self.name} is still running; stop it with: {stop}")
            return 130
        finally:
            if self.printer is not None and self.printer.poll() is None:
                self.printer.terminate()

    def _state(self) -> str:
        """Return the state of the RayJob; the last known one if kubectl fails for a while.

        Raises:
            ConfigError: The RayJob does not exist any more, or kubectl has failed too often in a row.
        """
        try:
            found = self._get("rayjob", self.name, "-o", "jsonpath={.status.jobDeploymentStatus}").strip()
        except ConfigError as error:
            self.failures += 1
            if NOT_FOUND in str(error):
                raise ConfigError(f"RayJob {self.name} was deleted") from None
            if self.failures > MAX_FAILURES:
                raise ConfigError(f"{error}; RayJob {self.name} may still be running") from None
            return self.state
        self.failures = 0
        return found

    def _get(self, *words: str) -> str:
        return call([*self.namespace, "get", *words])

    def _json(self, *words: str) -> dict[str, Any]:
        """Return an object of Kubernetes; an empty one if it is not there, or not yet."""
        try:
            found = json.loads(self._get(*words, "-o", "json") or "{}")
        except ConfigError:
            return {}
        return found if isinstance(found, dict) else {}

    def _show_state(self, state: str) -> None:
        """Print a new state, and what keeps the pods from starting, each once."""
        if state != self.state:
            self.state = state
            meaning = MEANING.get(state, "")
            self.log(f"RayJob {self.name}: {state.lower()}" + (f" ({meaning})" if meaning else ""))
            self._show_reason()
        if state == "" and time.monotonic() - self.begun > UNSEEN_SECONDS:
            self._once(f"RayJob {self.name}: no state after {UNSEEN_SECONDS:g} s; is the KubeRay operator running?")
        if state not in ("Running", "Suspended"):
            for line in self._problems():
                self._once(line)

    def _once(self, line: str) -> None:
        if line not in self.shown:
            self.shown.add(line)
            self.log(printable(line))

    def _show_reason(self) -> None:
        """Print the operator's reason and message, if there are any."""
        status = self._json("rayjob", self.name).get("status", {})
        if reason := ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key)):
            self._once(f"RayJob {self.name}: {reason}")
        if failed := status.get("failed"):
            self._once(f"RayJob {self.name}: {failed} failed attempts so far")

    def _problems(self) -> Iterator[str]:
        """Yield warnings of the operator, and why pods wait."""
        selector = f"involvedObject.kind=RayJob,involvedObject.name={self.name},type=Warning"
        for event in self._json("events", "--field-selector", selector).get("items", []):
            yield f"RayJob {self.name}: {event.get('reason', '')}: {event.get('message', '')}"
        cluster = self._json("rayjob", self.name).get("status", {}).get("rayClusterName", "")
        for selector in (f"ray.io/cluster={cluster}" if cluster else "", f"job-name={self.name}"):
            if selector:
                for pod in self._json("pods", "--selector", selector).get("items", []):
                    yield from problems_of(pod)

    def _show_log(self, state: str) -> None:
        """Start to print the log while the job runs, and again if the connection was lost or a new attempt runs."""
        if state != "Running":
            return
        if self.printer is not None and self.printer.poll() is None:
            self.printed_until = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return
        since = [f"--since-time={self.printed_until}"] if self.printed_until else []
        command = ["kubectl", *self.namespace, "logs", "--follow", *since, f"job/{self.name}"]
        self.printer = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def _end(self, state: str) -> int:
        """Print how the RayJob ended, and return the exit code."""
        if self.printer is None and state != "ValidationFailed":  # it ended between two polls
            self._show_log("Running")
        if self.printer is not None:
            try:
                self.printer.wait(2 * POLL_SECONDS)  # the rest of the log
            except subprocess.TimeoutExpired:
                self.printer.terminate()
        for line in self._problems() if state != "Complete" else ():
            self._once(line)
        status = self._json("rayjob", self.name).get("status", {})
        job = str(status.get("jobStatus") or "")
        self._show_reason()
        self.log(f"RayJob {self.name}: {(job or state).lower()}")
        return EXIT_CODES.get(job, 1)


def problems_of(pod: dict[str, Any]) -> Iterator[str]:
    """Yield why a pod is not scheduled, and why its containers wait or ended."""
    name, status = pod.get("metadata", {}).get("name", "pod"), pod.get("status", {})
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield f"pod {name}: {condition.get('reason', 'not scheduled')}: {condition.get('message', '')}"
    if status.get("reason"):  # such as Evicted
        yield f"pod {name}: {status['reason']}: {status.get('message', '')}"
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        state = container.get("state", {})
        waiting, ended = state.get("waiting", {}), state.get("terminated", {})
        if waiting.get("reason") and waiting["reason"] not in HARMLESS:
            yield f"pod {name}: {waiting['reason']}: {waiting.get('message', '')}"
        if ended.get("reason") and ended["reason"] != "Completed":
            yield f"pod {name}: {ended['reason']} (exit code {ended.get('exitCode', '?')})"
