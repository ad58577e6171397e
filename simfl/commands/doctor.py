"""Checks of this machine for problems that would stop or slow a run, each with a fix; nothing is changed."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

import torch

from simfl import __version__
from simfl.commands.machine import OK, PROBLEM, WARNING, MachineFinding, cpus, disks, gpus, memory, open_files
from simfl.formatting import format_bytes, format_duration
from simfl.runtime.gpus import shared_with_others, visible_view
from simfl.runtime.ray.cluster import resolve_address, survey

View = Mapping[str, str | int]  # versions and GPUs of a process
LIBRARIES = ("torch", "ray", "transformers", "peft", "pyarrow", "opacus")
OPTIONAL = ("wandb", "tensorboard", "scikit-learn")  # needed only by runs that use them
HUB, HUB_SECONDS = "https://huggingface.co", 2.0  # the hub, and the limit for connecting to it
VERSIONS = ("python", "torch", "simfl")  # must be equal on all machines


def examine(out: Path, ray: bool = True, address: str | None = None) -> list[MachineFinding]:
    """Run all checks, in the order of the output; `out` is the folder of runs, `address` that of a Ray cluster."""
    checks: list[Iterable[MachineFinding]] = [
        versions(),
        cpus(),
        memory(),
        open_files(),
        gpus(),
        disks(out),
        accounts(),
    ]
    found = [finding for check in checks for finding in check]
    return found + (list(ray_view(address)) if ray else [])


def versions() -> Iterator[MachineFinding]:
    """Check the versions of Python, simfl and its dependencies."""
    yield MachineFinding("versions", "python", platform.python_version())
    yield MachineFinding("versions", "simfl", __version__)
    for name in LIBRARIES:
        try:
            yield MachineFinding("versions", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield MachineFinding("versions", name, "missing", PROBLEM, f"pip install {name}")
    found = {d.metadata["Name"]: d.version for d in map(_distribution, OPTIONAL) if d is not None}
    yield MachineFinding("versions", "optional", ", ".join(f"{n} {found.get(n, 'missing')}" for n in OPTIONAL))


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def accounts() -> Iterator[MachineFinding]:
    """Check the settings of Weights & Biases and the Hugging Face hub."""
    mode, key = os.environ.get("WANDB_MODE"), "WANDB_API_KEY" in os.environ or _in_netrc("api.wandb.ai")
    text = f"WANDB_MODE {mode}" if mode else "WANDB_MODE not set"
    yield MachineFinding("accounts", "W&B", f"{text}; {'API key found' if key else 'no API key, runs stay offline'}")
    yield MachineFinding("accounts", "Hugging Face", _hub_state())


def _hub_state() -> str:
    """Return whether the Hugging Face hub is used and answers, by one connection of at most two seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0", "false", "False"):
        return "offline (HF_HUB_OFFLINE)"
    address = urlsplit(os.environ.get("HF_ENDPOINT") or HUB)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=HUB_SECONDS).close()
    except OSError as error:
        return f"{host} is not reachable ({error.strerror or error}); weights and data must be folders or in the cache"
    return f"online ({host})"


def _in_netrc(host: str) -> bool:
    try:
        return netrc().authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False


def ray_view(address: str | None) -> Iterator[MachineFinding]:
    """Check Ray's resources, and compare the versions of a worker with those of this process."""
    start = time.monotonic()
    try:
        resources, workers = survey(address, torch_view)
    except Exception as error:  # any failure of Ray is a finding
        cause = f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
        yield MachineFinding("Ray", "start", cause, PROBLEM, "fix the cause, or run with --backend inline")
        return
    yield MachineFinding("Ray", "start", f"in {format_duration(time.monotonic() - start)}")
    own = torch_view()
    cpu, gpu, store = (resources.get(kind, 0.0) for kind in ("CPU", "GPU", "object_store_memory"))
    fix = "" if cpu >= 1 else "Ray has no CPU for a worker: start it with --num-cpus"
    yield MachineFinding("Ray", "CPUs", f"{cpu:g}", PROBLEM if fix else OK, fix)
    yield from _gpu_view(int(own["gpus"]), gpu, workers, joined=resolve_address(address) is not None)
    yield MachineFinding("Ray", "object store", format_bytes(store))
    unequal = list(
        dict.fromkeys(
            f"{name} {own[name]} here, {worker[name]} on a worker"
            for worker in workers
            for name in VERSIONS
            if own[name] != worker[name]
        )
    )
    fix = "install the same versions on every machine of the cluster" if unequal else ""
    yield MachineFinding(
        "Ray", "worker versions", "; ".join(unequal) or "equal to those of this process", PROBLEM if fix else OK, fix
    )


def _gpu_view(own: int, of_ray: float, workers: Sequence[View], joined: bool) -> Iterator[MachineFinding]:
    """Compare the GPUs that torch sees here, that Ray offers, and that torch and the driver see on each worker."""
    grade, fix = OK, ""
    if own and of_ray < 1:
        grade = PROBLEM
        fix = "torch sees GPUs and Ray none, so no worker could start: start Ray with --num-gpus, or hide the GPUs"
    elif own > of_ray:
        grade = WARNING
        fix = f"torch sees {own} GPUs and Ray {of_ray:g}, so some stay idle: start Ray with --num-gpus={own}"
    yield MachineFinding("Ray", "GPUs", f"{of_ray:g}", grade, fix)
    if of_ray < 1:
        return
    for number, worker in enumerate(workers):
        yield _gpu_of_worker(number, worker)
    if len(workers) < int(of_ray):
        fix = (
            "other jobs have these GPUs; wait, or run with --workers" if joined else "look into Ray's log for the cause"
        )
        text = f"{len(workers)} of {int(of_ray)} workers with a GPU answered"
        yield MachineFinding("Ray", "workers", text, WARNING, fix)


def _gpu_of_worker(number: int, worker: View) -> MachineFinding:
    """Compare what torch and the driver see on a worker that has a GPU of Ray's."""
    item, seen = f"GPUs of worker {number}", int(worker["gpus"])
    text = f"torch sees {seen} on {worker['machine']}" + (f"; driver: {worker['driver']}" if worker["driver"] else "")
    if not seen:
        fix = "install torch with CUDA on every machine, and check CUDA_VISIBLE_DEVICES and the driver"
        return MachineFinding("Ray", item, text, PROBLEM, fix)
    fix = f"others use its GPU: {worker['shared']}" if worker["shared"] else ""
    return MachineFinding("Ray", item, text, WARNING if fix else OK, fix)


def torch_view() -> View:
    """Return versions and GPUs of a process, for comparison with another."""
    states = visible_view() or ()
    shared = shared_with_others()  # before torch uses the GPU
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "simfl": __version__,
        "gpus": gpus,
        "machine": platform.node(),
        "driver": "; ".join(f"{state.label}, {state.memory}" for state in states),
        "shared": shared,
    }


def lines(findings: list[MachineFinding]) -> list[str]:
    """Format the findings, with the problems and their fixes at the end."""
    width = max(len(finding.item) for finding in findings)
    out, topic = [], ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            out.append(f"{topic}:")
        mark = {OK: "  ", WARNING: "! ", PROBLEM: "X "}[finding.grade]
        out.append(f"  {mark}{finding.item:<{width}}  {finding.found}")
    out += [f"{f.grade}: {f.item}: {f.found}\n  {f.fix}" for f in findings if f.fix]
    problems = sum(finding.grade == PROBLEM for finding in findings)
    return [*out, f"{problems} problem{'s' * (problems > 1)} would stop a run" if problems else "no problem found"]
