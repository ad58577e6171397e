"""The manifest of a run: the versions, data and hardware it was made with, and every choice that its results depend on.

The manifest describes a run so that it can be resumed, replayed, forked and compared. An experiment may resume a run
only if it agrees with the stored one in every setting that changes a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from simfl.errors import ConfigError, DamagedFile, RunError
from simfl.runs.environment import Environment
from simfl.runs.folder import MANIFEST, RUN, JsonObject, read_json

# settings that change no number, so a resumed run may have others
FREE = ("checkpoint", "tracking", "watchdog_seconds", "evaluate.overlap")


@dataclass(frozen=True)
class RunIdentity:
    """Choices at the start of a run that its results depend on, in addition to the experiment."""

    mode: str  # execution mode: sequential or vectorized
    clients_per_batch: int
    threads: int  # CPU threads of each worker
    device: str  # cpu or cuda
    program: str | None = None  # of a local step on a GPU; None on a CPU
    products: str | None = None  # precision in which a GPU multiplies float32: float32 or tf32; None on a CPU

    def to_json(self) -> JsonObject:
        """Return the identity as JSON; fields without a value are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def differences(self, other: RunIdentity) -> Iterator[str]:
        """Yield one line for each field in which a stored identity (this one) and that of today differ."""
        for name in (one.name for one in fields(self)):
            stored, now = getattr(self, name), getattr(other, name)
            if stored != now:
                yield f"{name} was {stored!r} at the start, now {now!r}"


@dataclass(frozen=True)
class Resume:
    """One resume of a run."""

    environment: Environment
    step: int | None = None  # finished rounds of the run at that time; None: not known yet


@dataclass(frozen=True)
class ForkOrigin:
    """The run and the state that a forked run started from."""

    folder: str  # folder or URL of the source
    step: int  # finished rounds
    weights_sha256: str


@dataclass(frozen=True)
class RunManifest:
    """The content of `manifest.json`."""

    environment: Environment
    data_sha256: str
    partition_sha256: str
    identity: RunIdentity
    experiment_sha256: str = ""  # of the text of `experiment.yaml`
    resumes: tuple[Resume, ...] = ()
    batch_sizes: tuple[tuple[int, int], ...] = ()  # (step, clients per batch in the rounds after it), in order
    choices: Mapping[int, JsonObject] = field(default_factory=dict)  # phase -> autotuned execution mode, with reasons
    forked: ForkOrigin | None = None

    @staticmethod
    def create(identity: RunIdentity, data_sha256: str, partition_sha256: str) -> RunManifest:
        """Return the manifest of a run that this process starts."""
        return RunManifest(Environment.current(), data_sha256, partition_sha256, identity)

    @staticmethod
    def read(folder: Path) -> RunManifest:
        """Read the manifest of a run folder.

        Raises:
            RunError: The manifest is missing, damaged or of another format.
        """
        path = folder / MANIFEST
        content = read_json(path)
        try:
            return _from_json(content)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path}: damaged: {type(error).__name__} {error}") from None

    def to_json(self) -> JsonObject:
        """Return the manifest as JSON; what the run does not have is left out."""
        content = {
            **asdict(self.environment),
            "data_sha256": self.data_sha256,
            "partition_sha256": self.partition_sha256,
            "experiment_sha256": self.experiment_sha256,
            "identity": self.identity.to_json(),
            "resumes": [_resume_to_json(resume) for resume in self.resumes],
        }
        if self.choices:
            content["choices"] = {str(phase): choice for phase, choice in self.choices.items()}
        if self.batch_sizes:
            content["clients_per_batch"] = [list(change) for change in self.batch_sizes]
        if self.forked is not None:
            content["forked"] = asdict(self.forked)
        return content

    def resume(self, now: RunManifest, folder: Path) -> RunManifest:
        """Return this stored manifest with one more resume; `now` is the manifest that a new run would have.

        Raises:
            RunError: Data, partition or identity are no longer those of the run.
        """
        for name in ("data_sha256", "partition_sha256"):
            stored, found = getattr(self, name), getattr(now, name)
            if stored != found:
                raise RunError(f"{folder}: {name} was {stored!r} at the start, now {found!r}")
        for line in self.identity.differences(now.identity):
            raise RunError(f"{folder}: {line}")
        return replace(self, resumes=(*self.resumes, Resume(now.environment)))

    def environment_change(self) -> str:
        """Describe how the environment of the newest resume differs from that of the start; empty if it does not.

        Only what may change results is compared: versions of libraries, and how the processor computes.
        """
        now = self.resumes[-1].environment
        return "; ".join(self.environment.differences(now, self.identity.device))

    def with_resume_step(self, step: int) -> RunManifest:
        """Return the manifest with the number of finished rounds at which the newest resume starts."""
        *earlier, newest = self.resumes
        return replace(self, resumes=(*earlier, replace(newest, step=step)))

    def clients_per_batch(self, step: int) -> int:
        """Return the clients per batch in the round after `step` finished rounds of the run."""
        changes = [size for since, size in self.batch_sizes if since <= step]
        return changes[-1] if changes else self.identity.clients_per_batch


def _from_json(content: JsonObject) -> RunManifest:
    return RunManifest(
        Environment.from_json(content),
        content["data_sha256"],
        content["partition_sha256"],
        RunIdentity(**content["identity"]),
        content["experiment_sha256"],
        tuple(Resume(Environment.from_json(resume), resume.get("step")) for resume in content["resumes"]),
        tuple((step, size) for step, size in content.get("clients_per_batch", ())),
        {int(phase): choice for phase, choice in content.get("choices", {}).items()},
        ForkOrigin(**content["forked"]) if "forked" in content else None,
    )


def _resume_to_json(resume: Resume) -> JsonObject:
    return asdict(resume.environment) | ({} if resume.step is None else {"step": resume.step})


def text_sha256(text: str) -> str:
    """Return the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_experiment(folder: Path) -> str:
    """Return the text of the resolved experiment in a run folder.

    Raises:
        DamagedFile: It is missing, or not what the run wrote.
        RunError: The run has another format.
    """
    manifest, path = RunManifest.read(folder), folder / RUN
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedFile(f"{path}: {error.strerror or error}") from None
    if hashlib.sha256(content).hexdigest() != manifest.experiment_sha256:
        raise DamagedFile(f"{path}: damaged: the content does not match its hash in {MANIFEST}")
    return content.decode()


def refuse_another(folder: Path, experiment_yaml: str) -> None:
    """Raise RunError if the experiment may not resume the run in a folder: a setting that changes numbers differs."""
    stored, given = read_experiment(folder), experiment_yaml
    if _binding_lines(stored) != _binding_lines(given):
        stored = _with_new_settings(folder / RUN, stored)
    pairs = zip_longest(_binding_lines(stored), _binding_lines(given), fillvalue="")
    for a, b in pairs:
        if a != b:
            raise RunError(f"{folder}: the stored run has {a.strip()!r}, this experiment has {b.strip()!r}")


def _with_new_settings(path: Path, stored: str) -> str:
    """Return a stored experiment with the defaults of settings that the simfl which stored it did not have."""
    from simfl import config  # which imports torch; to read a manifest does not need it

    try:
        return config.dump(config.parse(config.read_yaml(path)))
    except ConfigError:  # of a Python object that was not stored, or a setting of another version
        return stored


def binding_settings(experiment: Mapping[str, Any]) -> JsonObject:
    """Return the settings of an experiment that change numbers."""
    settings = {name: dict(value) if isinstance(value, Mapping) else value for name, value in experiment.items()}
    for path in FREE:
        top, _, name = path.partition(".")
        (settings[top] if name and top in settings else settings).pop(name or top, None)
    return settings


def _binding_lines(experiment_yaml: str) -> list[str]:
    """Return the lines of an experiment that are settings which change numbers."""
    lines, top = [], ""
    for line in experiment_yaml.splitlines():
        name = line.strip().partition(":")[0]
        if not line.startswith((" ", "-")):
            top = name
        if top not in FREE and f"{top}.{name}" not in FREE:
            lines.append(line)
    return lines
