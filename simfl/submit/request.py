"""Description of a job: its command, files, output folder, and the paths that the cluster must provide."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simfl import config
from simfl.config.inheritance import SWEEP
from simfl.errors import ConfigError
from simfl.safe_text import has_secret, mask_secrets
from simfl.submit.execution import ExecutionOptions
from simfl.submit.package import Package, gather
from simfl.sweeps import file as sweeps

PATH_KEYS = ("path", "images", "weights")  # settings that may contain a path
URL = re.compile(r"^[a-z][a-z0-9+]*://")
VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True)
class Request:
    """An experiment or a sweep, ready to be submitted."""

    name: str
    command: str  # run or sweep
    file: str  # relative to the folder of the package
    package: Package
    out: str  # folder of the run on the cluster
    overrides: tuple[str, ...] = ()
    resume: bool = False
    environment: tuple[str, ...] = ()  # names of environment variables; their values are never written to a file
    required_paths: tuple[str, ...] = ()  # files and folders that must exist on every machine
    python: str = "python"  # command of the Python interpreter on the cluster
    labels: tuple[str, ...] = ()  # names of the runs of a sweep that --only selects
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    is_search: bool = False  # a sweep whose runs follow from one another

    @property
    def arguments(self) -> list[str]:
        """Arguments of `simfl`, without the address of Ray."""
        overrides = [argument for text in self.overrides for argument in ("--set", text)]
        resume = ["--resume"] if self.resume else []
        return [self.command, self.file, "--out", self.out, *resume, *self.execution.arguments, *overrides]

    @property
    def command_line(self) -> str:
        """Shell command that runs on a machine of the cluster and joins its Ray."""
        return shlex.join([self.python, "-m", "simfl", *self.arguments, "--address", "auto"])


def read(
    file: Path,
    folder: Path,
    out: str | None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    environment: Sequence[str] = (),
    exclude: Sequence[str] = (),
    execution: ExecutionOptions | None = None,
) -> Request:
    """Read the experiment or sweep in `file`, collect its files and check that it can run on the cluster.

    Raises:
        ConfigError: The file is invalid, a file it needs is not in `folder` or not sent, or a path is missing.
    """
    if out is not None and has_secret(out):
        raise ConfigError(
            f"--out: {mask_secrets(out)} holds a user or a password, which everyone with access to the cluster could"
            " read; use variables of the environment, with --env"
        )
    folder, execution = folder.resolve(), execution or ExecutionOptions()
    is_sweep = not config.keys_of(file).keys().isdisjoint(SWEEP)
    execution.check(is_sweep)
    labels, is_search = tuple[str, ...](), False
    if is_sweep:
        sweep = sweeps.load(file, overrides, execution.only)
        labels, is_search = tuple(sweep.labels), sweep.search is not None
        name, experiments, needed = sweep.name, sweep.experiments, list(sweep.files)
    else:
        experiment = config.load(file, overrides)
        name, experiments, needed = experiment.name, [experiment], config.files(file)
    for path in needed:
        if not path.resolve().is_relative_to(folder):
            raise ConfigError(f"{path}: is not in the working directory {folder}; give --working-dir a folder above it")
    package = gather(folder, exclude)
    relative = {path: str(path.resolve().relative_to(folder)) for path in needed}
    for path, name_in_package in relative.items():
        if name_in_package not in package.files:
            raise ConfigError(f"{path}: is not sent, because of --exclude or .gitignore")
    paths = dict.fromkeys(path for one in experiments for path in _paths(config.to_mapping(one)))
    return Request(
        name, "sweep" if is_sweep else "run", relative[file], package, out or "", tuple(overrides), resume,
        _variables(environment), tuple(_required_paths(paths, package)), labels=labels,
        execution=execution, is_search=is_search,
    )  # fmt: skip


def _variables(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not VARIABLE.match(name):
            raise ConfigError(f"--env: {name.partition('=')[0]!r} is not the name of a variable; give only the name")
    return tuple(dict.fromkeys(names))


def values(names: Sequence[str]) -> dict[str, str]:
    """Return the values of environment variables; ConfigError if one is not set."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(f"--env: {name} is not set")
    return {name: os.environ[name] for name in names}


def _paths(given: object) -> Iterator[str]:
    """Yield every path in an experiment."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if key in PATH_KEYS and isinstance(value, str):
                yield value
            else:
                yield from _paths(value)
    elif isinstance(given, list):
        for value in given:
            yield from _paths(value)


def _required_paths(paths: Mapping[str, None], package: Package) -> Iterator[str]:
    """Yield the absolute paths; ConfigError for a relative path that exists here and is not sent."""
    for path in paths:
        if not path or URL.match(path):
            continue
        if path.startswith(("/", "~", "$")):
            yield path
        elif (package.folder / path).exists() and not package.contains(path):
            raise ConfigError(f"{path}: is not sent; give an absolute path that exists on every machine of the cluster")


def check_out(request: Request, target: str) -> None:
    """Raise ConfigError if the results would be deleted with the machines of the job."""
    if not request.out:
        raise ConfigError(f"--out: needed with --to {target}: a folder of the cluster that persists after the job")
    if not request.out.startswith("/") and not URL.match(request.out):
        raise ConfigError(
            f"--out: {request.out!r} is in the folder of the job, which is deleted when it ends; give an absolute path"
        )
