"""The command `simfl submit`; each target is a dataclass whose fields are the options that it accepts."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simfl.commands import options
from simfl.errors import ConfigError

if TYPE_CHECKING:
    from simfl.submit.request import Target


@dataclass(frozen=True)
class FileOptions:
    """Files, variables and interpreter of the job."""

    working_dir: Path
    exclude: tuple[str, ...]
    environment: tuple[str, ...]
    python: str | None


@dataclass(frozen=True)
class TargetOptions:
    """The target and its options; None or empty if not given."""

    target: str
    nodes: int | None
    cpus: int | None
    gpus: int | None
    time: str | None
    sbatch: tuple[str, ...]
    image: str | None
    memory: str | None
    claim: str | None
    secret: str | None
    token: bool | None


file_options = options.combine(
    click.option(
        "--working-dir",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        help="Folder whose files are sent, except those that git ignores.  [default: the current folder]",
    ),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Files that are not sent."),
    click.option("--env", "environment", multiple=True, metavar="NAME", help="Environment variable to pass on."),
    click.option(
        "--python", help="Python of the cluster, with simfl installed.  [slurm: this interpreter; else: python]"
    ),
    options.collect(FileOptions, "job_files"),
)
target_options = options.combine(
    click.option(
        "--to",
        "target",
        required=True,
        metavar="TARGET",
        help="ray://HOST or http://HOST:8265 (a running Ray cluster), slurm, or kuberay.",
    ),
    click.option("--nodes", type=click.IntRange(1), help="Slurm: nodes; kuberay: worker pods.  [default: 1]"),
    click.option("--cpus", type=click.IntRange(1), help="Slurm, kuberay: CPUs per node or pod."),
    click.option("--gpus", type=click.IntRange(1), help="Slurm, kuberay: GPUs per node or worker pod."),
    click.option("--time", help="Slurm: time limit, in the format of sbatch."),
    click.option("--sbatch", multiple=True, metavar="OPTION", help="Slurm: another option, e.g. --partition=gpu."),
    click.option("--image", help="kuberay: image of the pods, with simfl installed."),
    click.option("--memory", help="kuberay: memory per pod.  [default: 8Gi]"),
    click.option("--claim", metavar="NAME=/PATH", help="kuberay: PersistentVolumeClaim and its mount path."),
    click.option("--secret", help="kuberay: Secret with the variables of --env.  [default: simfl]"),
    click.option("--token/--no-token", default=None, help="kuberay: require a token for Ray.  [default: token]"),
    options.collect(TargetOptions, "target"),
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@target_options
@click.option("--out", help="Folder of the run or sweep, on the cluster.  [slurm: runs/NAME, or NAME-2, …]")
@click.option("--resume", is_flag=True, help="Resume the run or sweep in --out.")
@options.overrides("As with `run` and `sweep`.")
@file_options
@click.option("--follow/--no-follow", default=True, show_default=True, help="Print the log until the job ends.")
@click.option("--dry-run", is_flag=True, help="Print the job without submitting it.")
def submit(
    file: Path,
    target: TargetOptions,
    out: str | None,
    resume: bool,
    overrides: tuple[str, ...],
    job_files: FileOptions,
    follow: bool,
    dry_run: bool,
) -> int:
    """Run the experiment or sweep in FILE on a cluster."""
    destination = _target(target)
    from simfl.submit.request import read

    if resume and out is None:
        raise ConfigError("--out: needed with --resume: the folder of the run or sweep")
    request = read(file, job_files.working_dir, out, overrides, resume, job_files.environment, job_files.exclude)
    own_python = sys.executable if target.target == "slurm" else "python"
    request = replace(request, python=job_files.python or own_python)
    for path in request.required_paths:
        _log(f"{path} must exist on every machine of the cluster")
    if dry_run:
        click.echo(destination.shown(request).rstrip("\n"))
        return 0
    return destination.submit(request, _log, follow)


def _target(chosen: TargetOptions) -> Target:
    """Build the target; ConfigError for an unknown one, and for an option that it does not accept."""
    from simfl.submit.kuberay import KubeRay
    from simfl.submit.ray_job import RunningRay
    from simfl.submit.slurm import Slurm

    kinds: dict[str, type] = {"slurm": Slurm, "kuberay": KubeRay}
    given = {key: value for key, value in asdict(chosen).items() if value not in (None, ())}
    name = given.pop("target")
    if name not in kinds and name != "auto" and "://" not in name:
        raise ConfigError(f"--to: unknown {name!r}; allowed: ray://HOST, http://HOST:8265, auto, slurm, kuberay")
    kind = kinds.get(name, RunningRay)
    for key in given.keys() - {field.name for field in fields(kind)}:
        raise ConfigError(f"--{key}: has no effect with --to {name}")
    found: Target = kind(name) if kind is RunningRay else kind(**given)
    return found


def _log(text: str) -> None:
    print(f"simfl: {text}", file=sys.stderr, flush=True)
