"""Software and hardware of a process, as far as the results of a run may depend on them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path

from simfl import __version__
from simfl.runs.folder import JsonObject

LIBRARIES = ("torch", "numpy", "ray", "transformers", "peft", "pyarrow", "tokenizers")
MOVES_BYTES = ("ray",)  # libraries that compute no number
GIT_SECONDS = 5.0
GIT = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
DIRTY = "-dirty"


@dataclass(frozen=True)
class Environment:
    """Software and hardware of a process."""

    simfl: str
    commit: str | None  # of simfl; None where it is not known
    dirty: bool  # whether tracked files of simfl differ from the commit
    python: str
    libraries: Mapping[str, str | None]  # versions; None: not installed
    machine: JsonObject  # system, processor, its vector instructions (capability), hash of a probe (arithmetic), gpus

    @staticmethod
    def current() -> Environment:
        """Describe this process."""
        import torch  # not needed to read a stored environment

        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        machine = {
            "system": platform.platform(),
            "processor": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "arithmetic": arithmetic(),
            "gpus": gpus,
        }
        commit, dirty = commit_of_simfl()
        libraries = {name: _version(name) for name in LIBRARIES}
        return Environment(__version__, commit, dirty, platform.python_version(), libraries, machine)

    @staticmethod
    def from_json(content: JsonObject) -> Environment:
        """Return the environment in a manifest. KeyError if a value is missing."""
        return Environment(**{one.name: content[one.name] for one in fields(Environment)})

    def differences(self, now: Environment, device: str) -> Iterator[str]:
        """Yield what differs between a stored environment (this one) and that of today and may change results.

        Args:
            now: The environment of today.
            device: The device of the run, `cpu` or `cuda`.
        """
        for name in [one for one in LIBRARIES if one not in MOVES_BYTES]:
            yield from _difference(name, self.libraries.get(name), now.libraries.get(name))
        yield from _difference("simfl", self.simfl, now.simfl)
        yield from _difference("python", self.python, now.python)
        before, after = self.machine, now.machine
        named = list(_difference("capability of the processor", before.get("capability"), after.get("capability")))
        yield from named
        if before.get("arithmetic") != after.get("arithmetic") and not named:
            yield "the processor or its libraries round differently"
        if device == "cuda":
            yield from _difference("GPU", *(next(iter(machine.get("gpus", ())), None) for machine in (before, after)))

    def code_difference(self, now: Environment) -> str:
        """Describe another commit of simfl, which need not change results; empty if it is the same one."""
        if (self.commit, self.dirty) == (now.commit, now.dirty):
            return ""
        return next(_difference("commit of simfl", self._code(), now._code()), "")

    def _code(self) -> str | None:
        return None if self.commit is None else self.commit[:12] + (" with changes" if self.dirty else "")


def _difference(name: str, stored: object, now: object) -> Iterator[str]:
    if stored != now:
        yield f"{name} was {stored} at the start, now {now}"


@cache
def commit_of_simfl() -> tuple[str | None, bool]:
    """Return the commit of simfl, and whether its tracked files differ; None outside of a checkout.

    The commit of a package that pip has installed from a repository is known too.
    """
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
            text = subprocess.run(
                GIT, cwd=root, env=environment, capture_output=True, text=True, timeout=GIT_SECONDS, check=True
            ).stdout.strip()
            return text.removesuffix(DIRTY), text.endswith(DIRTY)
    with suppress(metadata.PackageNotFoundError, ValueError, KeyError):
        origin = json.loads(metadata.distribution("simfl").read_text("direct_url.json") or "{}")
        return str(origin["vcs_info"]["commit_id"]), False
    return None, False


def arithmetic() -> str:
    """Return a hash of the results of a few operations on this processor.

    Instruction sets, threads and settings of the numerical libraries decide in which order they add, and how they
    approximate functions; processors with equal hashes round equally in these operations.
    """
    import torch
    from torch.nn import functional

    count = torch.arange(64 * 120, dtype=torch.float32)
    a, b = torch.sin(count[: 64 * 96]).reshape(64, 96), torch.cos(count[: 96 * 80]).reshape(96, 80)
    product, kernel = a @ b, b.reshape(-1)[: 8 * 4 * 9].reshape(8, 4, 3, 3)
    results = (
        product,
        a.double() @ b.double(),
        torch.softmax(product, 1),
        functional.layer_norm(product, (80,)),
        functional.gelu(product),
        functional.conv2d(a.reshape(1, 4, 32, 48), kernel),
        product.exp().sum(0),
    )
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:  # Ray, for example, is not needed to run in one process
        return None
