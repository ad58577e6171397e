"""What is to be run elsewhere: a command, the folder it runs in, where it writes, what it needs of the other side."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from simfl import config
from simfl.config.inheritance import SWEEP
from simfl.errors import ConfigError
from simfl.submit.package import Parcel, gather
from simfl.sweeps import file as sweeps

LOCATIONS = ("path", "images", "weights")  # settings that may name files or folders
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+]*://")  # a URL, which every machine reads alike
VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True)
class Request:
    """An experiment or a sweep, ready to be sent."""

    name: str
    command: str  # run | sweep
    file: str  # relative to the parcel's folder
    parcel: Parcel
    out: str  # folder of the run, on the other side
    overrides: tuple[str, ...] = ()
    resume: bool = False
    environment: tuple[str, ...] = ()  # names of variables that go along; their values are in no file
    there: tuple[str, ...] = ()  # files and folders that every machine must have
    python: str = "python"  # as the machines of the cluster find it

    @property
    def words(self) -> list[str]:
        """The arguments of `simfl`, but for the address of Ray."""
        sets = [word for text in self.overrides for word in ("--set", text)]
        resume = ["--resume"] if self.resume else []
        return [self.command, self.file, "--out", self.out, *resume, *sets]

    @property
    def line(self) -> str:
        """The command for a shell on a machine of the cluster: it joins the Ray that runs there."""
        return shlex.join([self.python, "-m", "simfl", *self.words, "--address", "auto"])


class Target(Protocol):
    """Where a request can be sent. Its fields are the options that it takes."""

    def shown(self, request: Request) -> str:
        """What would be submitted; no value of a variable is in it."""

    def submit(self, request: Request, say: Callable[[str], None], follow: bool) -> int:
        """Send it; with `follow`, show its log until it ends. The exit code: 0, 1 failed, 130 stopped or left alone."""


def read(
    file: Path,
    folder: Path,
    out: str | None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    environment: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Request:
    """The request for a file, which must lie in `folder`; ConfigError for what could only fail on the other side."""
    folder = folder.resolve()
    is_sweep = not config.keys_of(file).keys().isdisjoint(SWEEP)
    if is_sweep:
        sweep = sweeps.load(file, overrides)
        name, experiments, needed = sweep.name, [point.experiment for point in sweep.points], list(sweep.files)
    else:
        experiment = config.load(file, overrides)
        name, experiments, needed = experiment.name, [experiment], config.files(file)
    for path in needed:
        if not path.resolve().is_relative_to(folder):
            raise ConfigError(f"{path}: is not in the working directory {folder}; give --working-dir a folder above it")
    parcel = gather(folder, exclude)
    relative = {path: str(path.resolve().relative_to(folder)) for path in needed}
    for path, name_there in relative.items():
        if name_there not in parcel.files:
            raise ConfigError(f"{path}: is left out of what is sent, by --exclude or .gitignore")
    places = dict.fromkeys(place for one in experiments for place in _places(config.to_mapping(one)))
    return Request(
        name, "sweep" if is_sweep else "run", relative[file], parcel, out or "", tuple(overrides), resume,
        _variables(environment), tuple(_beyond(places, parcel)),
    )  # fmt: skip


def _variables(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not VARIABLE.match(name):
            raise ConfigError(f"--env: {name.partition('=')[0]!r} is not the name of a variable; give the name alone")
    return tuple(dict.fromkeys(names))


def values(names: Sequence[str]) -> dict[str, str]:
    """The variables as this process has them; ConfigError for one that it lacks."""
    for name in names:
        if name not in os.environ:
            raise ConfigError(f"--env: {name} is not set here")
    return {name: os.environ[name] for name in names}


def _places(given: Any) -> Iterator[str]:
    """Everything in an experiment that names a file or folder."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if key in LOCATIONS and isinstance(value, str):
                yield value
            else:
                yield from _places(value)
    elif isinstance(given, list):
        for value in given:
            yield from _places(value)


def _beyond(places: Mapping[str, None], parcel: Parcel) -> Iterator[str]:
    """The places that do not go along; ConfigError for a relative one that is here and would be missing there."""
    for place in places:
        if not place or ELSEWHERE.match(place):
            continue
        if place.startswith(("/", "~", "$")):
            yield place
        elif (parcel.folder / place).exists() and not parcel.holds(place):
            raise ConfigError(
                f"{place}: is not among the files that are sent; give the path that every machine of the cluster has"
            )


def lasting_out(request: Request, where: str) -> None:
    """ConfigError if what the run leaves would vanish with the machines it ran on."""
    if not request.out:
        raise ConfigError(f"--out: needed with --to {where}: a folder of the cluster that outlives the job")
    if not request.out.startswith("/") and not ELSEWHERE.match(request.out):
        raise ConfigError(
            f"--out: {request.out!r} would lie in the job's own folder, which goes when it ends; give an absolute path"
        )
