"""What would break or slow a run on this machine, and the mend. Each check says what it found; nothing is changed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from netrc import NetrcParseError, netrc
from pathlib import Path

import torch

from simfl import __version__
from simfl.commands.machine import OK, PROBLEM, WARNING, Finding, cpus, disks, gpus, memory, open_files
from simfl.runtime.ray.crew import survey
from simfl.tracking.progress import duration, size

LIBRARIES = ("torch", "ray", "transformers", "peft", "pyarrow", "opacus")
ASKED_FOR = ("wandb", "tensorboard", "scikit-learn")  # wanted only by runs that ask for them
VERSIONS = ("python", "torch", "simfl")  # that have to be the same everywhere


def examine(out: Path, ray: bool = True, address: str | None = None) -> list[Finding]:
    """Everything, in the order in which it is shown; `out` is the folder that runs are to be written to."""
    checks: list[Iterable[Finding]] = [versions(), cpus(), memory(), open_files(), gpus(), disks(out), accounts()]
    found = [finding for check in checks for finding in check]
    return found + (list(ray_view(address)) if ray else [])


def versions() -> Iterator[Finding]:
    """Python, simfl and the libraries it stands on."""
    yield Finding("versions", "python", platform.python_version())
    yield Finding("versions", "simfl", __version__)
    for name in LIBRARIES:
        try:
            yield Finding("versions", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding("versions", name, "missing", PROBLEM, f"pip install {name}")
    found = {d.metadata["Name"]: d.version for d in map(_distribution, ASKED_FOR) if d is not None}
    yield Finding("versions", "if asked for", ", ".join(f"{n} {found.get(n, 'missing')}" for n in ASKED_FOR))


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def accounts() -> Iterator[Finding]:
    """Weights & Biases and the Hugging Face hub: what a run that asks for them would find."""
    mode, key = os.environ.get("WANDB_MODE"), "WANDB_API_KEY" in os.environ or _in_netrc("api.wandb.ai")
    text = f"WANDB_MODE {mode}" if mode else "WANDB_MODE not set"
    yield Finding("accounts", "W&B", f"{text}; {'a key is known' if key else 'no key is known, runs stay offline'}")
    offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0", "false", "False")
    yield Finding("accounts", "Hugging Face", "offline (HF_HUB_OFFLINE)" if offline else "online")


def _in_netrc(host: str) -> bool:
    try:
        return netrc().authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False


def ray_view(address: str | None) -> Iterator[Finding]:
    """What Ray has and what one of its workers sees, against what this process sees."""
    start = time.monotonic()
    try:
        resources, seen = survey(address, torch_view)
    except Exception as error:  # whatever keeps Ray from working is what is to be found out
        cause = f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
        yield Finding("Ray", "start", cause, PROBLEM, "run with --backend inline, or mend what it says")
        return
    yield Finding("Ray", "start", f"in {duration(time.monotonic() - start)}")
    here = torch_view()
    cpu, gpu, store = (resources.get(kind, 0.0) for kind in ("CPU", "GPU", "object_store_memory"))
    mend = "" if cpu >= 1 else "Ray has no CPU for a worker: give it --num-cpus when it is started"
    yield Finding("Ray", "CPUs", f"{cpu:g}", PROBLEM if mend else OK, mend)
    mend = ""
    if here["gpus"] and gpu < 1:
        mend = "torch sees GPUs, Ray none, so no worker could start: start Ray with --num-gpus, or hide them"
    yield Finding("Ray", "GPUs", f"{gpu:g}", PROBLEM if mend else OK, mend)
    yield Finding("Ray", "object store", size(store))
    unlike = [f"{name} {here[name]} here, {seen[name]} there" for name in VERSIONS if here[name] != seen[name]]
    mend = "install the same versions on every machine of the cluster" if unlike else ""
    yield Finding(
        "Ray", "a worker", "; ".join(unlike) or "has the versions of this process", PROBLEM if mend else OK, mend
    )


def torch_view() -> dict[str, str | int]:
    """What a process sees, to be compared with another."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"python": platform.python_version(), "torch": torch.__version__, "simfl": __version__, "gpus": gpus}


def lines(findings: list[Finding]) -> list[str]:
    """The findings for a reader, and at the end what to mend."""
    width = max(len(finding.what) for finding in findings)
    out, topic = [], ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            out.append(f"{topic}:")
        mark = {OK: "  ", WARNING: "! ", PROBLEM: "X "}[finding.grade]
        out.append(f"  {mark}{finding.what:<{width}}  {finding.found}")
    mends = [finding for finding in findings if finding.mend]
    out += [f"{f.grade}: {f.what}: {f.found}\n  {f.mend}" for f in mends]
    problems = sum(finding.grade == PROBLEM for finding in findings)
    return [*out, f"{problems} would break a run" if problems else "nothing would break a run"]
