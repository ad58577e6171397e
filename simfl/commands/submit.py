"""The command `simfl submit`: a table of targets, whose fields are the options that they take."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simfl.commands import options
from simfl.errors import ConfigError

if TYPE_CHECKING:
    from simfl.submit.request import Target


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TARGET",
    help="ray://HOST or http://HOST:8265 (a running Ray cluster), slurm, or kuberay.",
)
@click.option("--out", help="Folder of the run or sweep, as the cluster sees it.  [slurm: runs/NAME, or NAME-2, …]")
@click.option("--resume", is_flag=True, help="Go on with what lies in --out.")
@options.overrides("As with `run` and `sweep`.")
@click.option(
    "--working-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Its files go along, but for those that git ignores.  [default: where you are]",
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Files that do not go along.")
@click.option("--env", "environment", multiple=True, metavar="NAME", help="A variable that goes along, by its name.")
@click.option("--python", help="Of the cluster, with simfl in it.  [slurm: the one that runs this; else: python]")
@click.option("--nodes", type=click.IntRange(1), help="Slurm: nodes; kuberay: worker pods.  [default: 1]")
@click.option("--cpus", type=click.IntRange(1), help="Slurm, kuberay: of each node or pod.")
@click.option("--gpus", type=click.IntRange(1), help="Slurm, kuberay: of each node or worker pod.")
@click.option("--time", help="Slurm: the time limit, as sbatch takes it.")
@click.option("--sbatch", multiple=True, metavar="OPTION", help="Slurm: a further option, e.g. --partition=gpu.")
@click.option("--image", help="kuberay: the pods' image, with simfl in it.")
@click.option("--memory", help="kuberay: of each pod.  [default: 8Gi]")
@click.option("--claim", metavar="NAME=/PATH", help="kuberay: a PersistentVolumeClaim, and where it is mounted.")
@click.option("--secret", help="kuberay: the Secret that holds what --env names.  [default: simfl]")
@click.option("--token/--no-token", default=None, help="kuberay: whether Ray asks for a token.  [default: it does]")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Show the log until it ends.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and submit nothing.")
def submit(
    file: Path,
    target: str,
    out: str | None,
    resume: bool,
    overrides: tuple[str, ...],
    working_dir: Path,
    exclude: tuple[str, ...],
    environment: tuple[str, ...],
    python: str | None,
    follow: bool,
    dry_run: bool,
    **chosen: Any,
) -> int:
    """Run the experiment or sweep in FILE on a cluster."""
    where = _target(target, chosen)
    from simfl.submit.request import read

    if resume and out is None:
        raise ConfigError("--out: needed with --resume: the folder to go on in")
    request = read(file, working_dir, out, overrides, resume, environment, exclude)
    request = replace(request, python=python or (sys.executable if target == "slurm" else "python"))
    for place in request.there:
        _say(f"every machine needs {place}")
    if dry_run:
        click.echo(where.shown(request).rstrip("\n"))
        return 0
    return where.submit(request, _say, follow)


def _target(name: str, chosen: dict[str, Any]) -> Target:
    """What `--to` means, with the options it takes; ConfigError for one that it does not take."""
    from simfl.submit.kuberay import KubeRay
    from simfl.submit.ray_job import RunningRay
    from simfl.submit.slurm import Slurm

    kinds: dict[str, type] = {"slurm": Slurm, "kuberay": KubeRay}
    if name not in kinds and name != "auto" and "://" not in name:
        raise ConfigError(f"--to: {name!r}; allowed: ray://HOST, http://HOST:8265, auto, slurm, kuberay")
    kind = kinds.get(name, RunningRay)
    given = {key: value for key, value in chosen.items() if value not in (None, ())}
    for key in given.keys() - {field.name for field in fields(kind)}:
        raise ConfigError(f"--{key}: has no effect with --to {name}")
    found: Target = kind(name) if kind is RunningRay else kind(**given)
    return found


def _say(text: str) -> None:
    print(f"simfl: {text}", file=sys.stderr, flush=True)
