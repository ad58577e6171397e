"""Pods of a RayJob on this machine: each a process tree with file system, network and process ids of its own.

The manifest of `simfl submit --to kuberay --dry-run` is executed as the KubeRay operator and Kubernetes do: the pods
run the operator's `ray start` as their first process, with the files of the ConfigMap and the claim mounted, and Ray's
Job API starts the entrypoint. A pod ends as in Kubernetes: first its preStop hook, then SIGTERM to its first process,
and SIGKILL to all after the grace period. Needs root and the programs `unshare`, `nsenter` and `ip`; no network.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

Json = dict[str, Any]
NETWORK, HEAD = "10.90.0", "10.90.0.2"  # addresses of the pods; the head is the first one
DASHBOARD, GCS = f"http://{HEAD}:8265", f"{HEAD}:6379"
START_SECONDS = 900.0  # the processors may be shared
STORE_BYTES = 80 << 20  # of each object store: the smallest size that Ray allows
PROGRAMS = ("unshare", "nsenter", "ip", "mount")
CHECKOUT = Path(__file__).parents[2]
HOLDER = "sleep infinity"  # keeps the network of all pods open

# A root with the files of this machine below and a layer of its own above them, as an image has; prints its process id.
ROOT = """
set -e
mount -t tmpfs tmpfs {folder}
mkdir {folder}/upper {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
cd {folder}/root
mount --rbind /dev dev
mount -t tmpfs -o size=512m tmpfs dev/shm
mount -t tmpfs tmpfs tmp
mount -t proc proc proc
mount -t sysfs sysfs sys || mount --rbind /sys sys
{mounts}
echo pod >&3
exec 3>&-
exec chroot . {environment} {command}
"""


def missing() -> str:
    """Return why no pods can be started here, or an empty string."""
    if os.geteuid() or not all(map(shutil.which, PROGRAMS)):
        return f"pods need root and the programs {', '.join(PROGRAMS)}"
    try:
        import aiohttp_cors  # noqa: F401
    except ImportError:
        return "Ray's Job API needs simfl[cluster]"
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    return "" if subprocess.run(words, capture_output=True).returncode == 0 else "no namespaces on this machine"


@dataclass
class Pod:
    """A pod: its template in the manifest, and the process outside of it that waits for its first process."""

    name: str
    spec: Json
    outer: subprocess.Popen[bytes]
    first: int  # process id, outside of the pod, of the first process

    @property
    def container(self) -> Json:
        """Return the container of Ray."""
        found: Json = self.spec["containers"][0]
        return found

    def inside(self, *words: str) -> list[str]:
        """Return a command that runs inside of the container, as `kubectl exec` does."""
        return ["nsenter", "--target", str(self.first), "--all", "--root", "--wd=/", *words]

    def terminate(self) -> None:
        """End the pod as Kubernetes does, in its order and times."""
        end = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        if hook := self.container.get("lifecycle", {}).get("preStop"):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(self.inside(*hook["exec"]["command"]), timeout=max(1.0, end - time.monotonic()))
        with suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.outer.wait(max(1.0, end - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill all processes of the pod; the kernel ends them with the first one."""
        with suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        self.outer.wait(60)


@dataclass
class LocalPods:
    """The RayCluster of a RayJob, from `start` until `stop`; `attempt` starts another one after it."""

    manifest: Json
    folder: Path  # for the files of the ConfigMap, logs and mount points
    claims: dict[str, Path]  # folder of each PersistentVolumeClaim
    environment: dict[str, str] = field(default_factory=dict)  # content of the Secret
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    holder: subprocess.Popen[bytes] | None = None
    pods: list[Pod] = field(default_factory=list)
    job: str = ""

    @property
    def ray_job(self) -> Json:
        """Return the RayJob."""
        found: Json = self.manifest["items"][1]
        return found

    @property
    def head(self) -> Pod:
        """Return the head pod."""
        return self.pods[0]

    def start(self) -> None:
        """Start the pod of the head, and those of all workers once it is healthy, as the operator's init container."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_files()
        if self.holder is None:
            self.start_network()
        spec = self.ray_job["spec"]["rayClusterSpec"]
        self._start_pod("head", spec["headGroupSpec"], 2)
        self._wait(self._is_healthy, "Ray's dashboard")
        for group in spec["workerGroupSpecs"]:
            for _ in range(group["replicas"]):
                self._start_pod(f"worker{len(self.pods)}", group, len(self.pods) + 2)

    def start_network(self) -> None:
        """Start the network of the pods, without one to this machine."""
        self.holder = subprocess.Popen(["unshare", "--net", "bash", "-c", f"ip link set lo up; exec {HOLDER}"])
        here, there = Path("/proc/self/ns/net").readlink(), Path(f"/proc/{self.holder.pid}/ns/net")
        self._wait(lambda: there.readlink() != here, "network")
        self._in_network(
            f"ip link add bridge type bridge; ip address add {NETWORK}.1/16 dev bridge; ip link set bridge up"
        ).check_returncode()

    def submit(self, output: IO[str]) -> subprocess.Popen[str]:
        """Run the command of the operator's submitter, which writes the log until the job has ended."""
        self.job = f"job-{secrets.token_hex(4)}"
        # As in the operator's shell script: the entrypoint is not quoted.
        ray = f"{sys.executable} -m ray.scripts.scripts job"
        script = (
            f"{ray} submit --address {DASHBOARD} --submission-id {self.job} --no-wait -- "
            f"{self.ray_job['spec']['entrypoint']} ; {ray} logs --address {DASHBOARD} --follow {self.job}"
        )
        words = [*self.network_prefix(), "bash", "-c", script]
        return subprocess.Popen(
            words, env={**os.environ, **self._variables()}, stdout=output, stderr=subprocess.STDOUT, text=True
        )

    def status(self) -> str:
        """Return the state of the job, as Ray's Job API gives it."""
        words = [*self.network_prefix(), sys.executable, "-m", "ray.scripts.scripts", "job", "status", self.job]
        done = subprocess.run(
            [*words, "--address", DASHBOARD], env={**os.environ, **self._variables()}, capture_output=True, text=True
        )
        found = re.search(
            rf"Job '{self.job}' (succeeded|failed|was stopped|is still running)", done.stdout + done.stderr
        )
        return found.group(1) if found else done.stdout + done.stderr

    def stop(self) -> None:
        """Kill all pods and the network."""
        for pod in self.pods:
            pod.kill()
        self.pods.clear()
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()
            self.holder = None

    def logs(self) -> str:
        """Return the last lines of the pods' output."""
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1500:]}" for file in self._log_files())

    def _log_files(self) -> Sequence[Path]:
        return sorted(self.folder.glob("*.log"))

    def _write_files(self) -> None:
        """Write the items of the ConfigMap as its volume shows them."""
        content = self.manifest["items"][0]
        values = {key: base64.b64decode(text) for key, text in content["binaryData"].items()}
        values |= {key: text.encode() for key, text in content["data"].items()}
        volumes = self.ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
        (items,) = [volume["configMap"]["items"] for volume in volumes if "configMap" in volume]
        for item in items:
            path = self.folder / "files" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(values[item["key"]])

    def _start_pod(self, name: str, group: Json, number: int) -> None:
        spec = group["template"]["spec"]
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        mounts = [*shown_programs(), *(self._mount(spec, one) for one in spec["containers"][0]["volumeMounts"])]
        variables = {**self._variables(), **self._secrets(spec), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        environment = " ".join(
            ["/usr/bin/env", "-i", *(f"{key}={shlex.quote(value)}" for key, value in variables.items())]
        )
        command = shlex.join(["/bin/bash", "-c", "--", ray_start(group, number)])
        script = ROOT.format(folder=folder, mounts="\n".join(mounts), environment=environment, command=command)
        reading, writing = os.pipe()
        network = f"ip link set lo up; ip link set eth0 up; ip address add {NETWORK}.{number}/16 dev eth0"
        waits = (
            f"until ip link show eth0 2>/dev/null >&2; do sleep 0.05; done; {network}; ip route add default dev eth0"
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            outer = subprocess.Popen(
                ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c",
                 f"hostname {name}; {waits}\nexec 3>&{writing} {writing}>&-\n{script}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[writing], start_new_session=True,
            )  # fmt: skip
        os.close(writing)
        here = Path("/proc/self/ns/net").readlink()
        self._wait(lambda: Path(f"/proc/{outer.pid}/ns/net").readlink() != here, f"network of pod {name}")
        self._in_network(
            f"ip link add pod{number} type veth peer name eth0 netns {outer.pid};"
            f" ip link set pod{number} master bridge; ip link set pod{number} up"
        ).check_returncode()
        with os.fdopen(reading) as ready:
            if not ready.readline():
                raise RuntimeError(f"pod {name} did not start: {self.logs()}")
        (first,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        self.pods.append(Pod(name, spec, outer, int(first)))

    def _mount(self, spec: Json, mount: Json) -> str:
        (volume,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        source = self.folder / "files" if claim is None else self.claims[claim]
        target = mount["mountPath"].lstrip("/")
        return f"mkdir -p {target}; mount --bind {shlex.quote(str(source))} {target}" + (
            f"; mount -o remount,bind,ro {target}" if mount.get("readOnly") else ""
        )

    def _variables(self) -> dict[str, str]:
        """Return variables that the operator sets, and those of the image."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PYTHONPATH") if name in os.environ}
        return {
            **kept, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_ADDRESS": GCS,
            "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def _secrets(self, spec: Json) -> dict[str, str]:
        names = [one["name"] for one in spec["containers"][0]["env"]]
        return {name: self.environment[name] for name in names}

    def network_prefix(self) -> list[str]:
        """Return the command prefix that runs a program in the network of the pods."""
        assert self.holder is not None
        return ["nsenter", "--target", str(self.holder.pid), "--net"]

    def _in_network(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.network_prefix(), "bash", "-c", script], capture_output=True, text=True)

    def _is_healthy(self) -> bool:
        """Ask as the operator's submitter does before it submits."""
        for pod in self.pods:
            if pod.outer.poll() is not None:
                raise RuntimeError(f"pod {pod.name} has ended: {self.logs()}")
        ask = f"import urllib.request as r; r.urlopen('{DASHBOARD}/api/gcs_healthz', timeout=30).read()"
        return self._in_network(shlex.join([sys.executable, "-c", ask])).returncode == 0

    def _wait(self, is_ready: Any, what: str) -> None:
        until = time.monotonic() + START_SECONDS
        while not is_ready():
            if time.monotonic() > until:
                raise RuntimeError(f"{what} did not start: {self.logs()}")
            time.sleep(0.2)


def shown_programs() -> list[str]:
    """Return commands that show the checkout and its Python in a pod if they are in /tmp, as a pod has its own one."""
    hidden = [path for path in dict.fromkeys((CHECKOUT, Path(sys.prefix))) if path.is_relative_to("/tmp")]
    quoted = [shlex.quote(str(path).lstrip("/")) for path in hidden]
    return [f"mkdir -p {path}; mount --rbind /{path} {path}" for path in quoted]


def ray_start(group: Json, number: int) -> str:
    """Return the command that the operator writes for a pod: all it adds, from resources and for head or worker."""
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    is_head = "replicas" not in group
    settings = {
        "num-cpus": limits["cpu"], "metrics-export-port": "8080", "block": "true",
        "dashboard-agent-listen-port": "52365", **({"dashboard-host": "0.0.0.0"} if is_head else {"address": GCS}),
        **group["rayStartParams"],
    }  # fmt: skip
    settings["object-store-memory"] = str(STORE_BYTES)  # of this machine, whose memory all pods share
    flags = [f"--{key}" if value == "true" else f"--{key}={value}" for key, value in sorted(settings.items())]
    start = "ray start --head" if is_head else "ray start"
    return f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {start} {' '.join(flags)}"


def manifest_of(folder: Path, *words: str) -> Json:
    """Return the manifest that `simfl submit --to kuberay --dry-run` prints in a folder."""
    command = [sys.executable, "-m", "simfl", "submit", *words, "--to", "kuberay", "--dry-run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    found: Json = json.loads(done.stdout)
    return found
