"""The command `simfl submit`; the options of a cluster are the fields of its class in `simfl.submit`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simfl.commands import options
from simfl.errors import ConfigError
from simfl.submit.execution import ExecutionOptions

if TYPE_CHECKING:
    from simfl.submit.cluster import Cluster

NUMBER, COUNT = click.IntRange(1), click.IntRange(0)


@dataclass(frozen=True)
class FileOptions:
    """Files, variables and interpreter of the job."""

    working_dir: Path
    exclude: tuple[str, ...]
    environment: tuple[str, ...]
    python: str | None


@dataclass(frozen=True)
class ActionOptions:
    """Actions on the job."""

    follow: bool
    dry_run: bool


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
execution_options = options.combine(
    click.option("--workers", help="Ray workers, or concurrent runs of a sweep.  [default: auto]"),
    click.option("--only", multiple=True, metavar="PATTERN", help="Sweep: only runs with these names."),
    click.option("--gpus-per-run", type=float, help="Sweep: GPUs of each run, e.g. 0.5 or 2."),
    click.option("--cpus-per-run", type=NUMBER, help="Sweep: CPUs of each run, where there are no GPUs."),
    click.option("--profile", "trace", is_flag=True, help="Write trace.json, a timeline, in the folder of each run."),
    options.collect(ExecutionOptions, "execution"),
)
action_options = options.combine(
    click.option("--follow/--no-follow", default=True, show_default=True, help="Print the log until the job ends."),
    click.option("--dry-run", is_flag=True, help="Print the job without submitting it."),
    options.collect(ActionOptions, "action"),
)
CLUSTER_OPTIONS = {  # setting of one or several kinds of clusters -> its option
    "nodes": click.option("--nodes", type=NUMBER, help="Slurm: nodes; kuberay: worker pods.  [default: 1]"),
    "cpus": click.option("--cpus", type=NUMBER, help="Slurm, kuberay: CPUs per node or worker pod."),
    "gpus": click.option("--gpus", type=NUMBER, help="Slurm, kuberay: GPUs per node or worker pod."),
    "time": click.option("--time", help="Slurm: time limit, in the format of sbatch."),
    "min_nodes": click.option("--min-nodes", type=NUMBER, help="Slurm: start with fewer nodes if some do not join."),
    "join_seconds": click.option(
        "--join-seconds", type=NUMBER, help="Slurm: time that the nodes have to join.  [default: 300]"
    ),
    "requeues": click.option("--requeues", type=COUNT, help="Slurm: restarts at the time limit.  [default: 20]"),
    "no_kill": click.option(
        "--no-kill/--kill", default=None, help="Slurm: continue if a node fails.  [default: no-kill]"
    ),
    "array": click.option(
        "--array", type=NUMBER, metavar="N", help="Slurm: one job of an array for each run, N at a time."
    ),
    "interface": click.option("--interface", help="Slurm: network interface of Ray's traffic, e.g. ib0."),
    "setup": click.option(
        "--setup", multiple=True, metavar="LINE", help="Slurm: line of bash to run first, e.g. 'module load …'."
    ),
    "container": click.option(
        "--container", metavar="COMMAND", help="Slurm: e.g. 'apptainer exec --nv /shared/simfl.sif'."
    ),
    "sbatch": click.option(
        "--sbatch", multiple=True, metavar="OPTION", help="Slurm: another option, e.g. --partition=gpu."
    ),
    "image": click.option("--image", help="kuberay: image of the pods, with simfl installed."),
    "memory": click.option("--memory", help="kuberay: memory per worker pod.  [default: 8Gi]"),
    "max_nodes": click.option(
        "--max-nodes", type=NUMBER, help="kuberay: worker pods that Ray's autoscaler may request."
    ),
    "head_cpus": click.option(
        "--head-cpus", type=NUMBER, help="kuberay: CPUs of the head pod, which runs the driver.  [default: 1]"
    ),
    "head_memory": click.option("--head-memory", help="kuberay: memory of the head pod.  [default: that of a worker]"),
    "ephemeral_storage": click.option("--ephemeral-storage", help="kuberay: local disk per pod, e.g. 20Gi."),
    "claim": click.option("--claim", metavar="NAME=/PATH", help="kuberay: PersistentVolumeClaim and its mount path."),
    "secret": click.option("--secret", help="kuberay: Secret with the variables of --env.  [default: simfl]"),
    "token": click.option(
        "--token/--no-token", default=None, help="kuberay: require a token for Ray.  [default: token]"
    ),
    "ray_version": click.option(
        "--ray-version", help="kuberay: version of Ray in the image.  [default: the one installed here]"
    ),
    "namespace": click.option("--namespace", help="kuberay: namespace.  [default: that of kubectl's context]"),
    "labels": click.option(
        "--label", "labels", multiple=True, metavar="KEY=VALUE", help="kuberay: label, e.g. of a Kueue queue."
    ),
    "annotations": click.option(
        "--annotation", "annotations", multiple=True, metavar="KEY=VALUE", help="kuberay: annotation."
    ),
    "node_selector": click.option(
        "--node-selector", multiple=True, metavar="KEY=VALUE", help="kuberay: label of the workers' machines."
    ),
    "tolerations": click.option(
        "--toleration", "tolerations", multiple=True, metavar="KEY[=VALUE][:EFFECT]", help="kuberay: taint accepted."
    ),
    "service_account": click.option("--service-account", help="kuberay: service account of the pods."),
    "pull_secrets": click.option(
        "--pull-secret", "pull_secrets", multiple=True, metavar="NAME", help="kuberay: Secret for the image."
    ),
    "restarts": click.option(
        "--restarts", type=COUNT, help="kuberay: new attempts after a failure or eviction.  [default: 3]"
    ),
    "patch": click.option("--patch", metavar="FILE", help="kuberay: YAML that is merged into the RayJob."),
}
FLAGS = {  # options whose name is not that of the setting, because each gives one value of several
    "annotations": "annotation",
    "labels": "label",
    "pull_secrets": "pull_secret",
    "tolerations": "toleration",
}
PATH = "cluster"  # in errors of `cluster_of`
MAPPINGS = ("labels", "annotations", "node_selector")  # options whose values are KEY=VALUE


def cluster_options(command: options.Command) -> options.Command:
    """Add --to, --cluster and the options of all clusters, passed to the command as `cluster: Cluster`."""

    @wraps(command)
    def call(target: str | None, profile: Path | None, **given: Any) -> Any:
        settings = {key: given.pop(key) for key in CLUSTER_OPTIONS}
        chosen = {key: value for key, value in settings.items() if value not in (None, ())}
        return command(**given, cluster=_cluster(target, profile, chosen))

    return options.combine(
        click.option("--to", "target", metavar="TARGET", help="ray://HOST, http://HOST:8265, slurm, or kuberay."),
        click.option(
            "--cluster",
            "profile",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="YAML file with the options below, under the key `cluster`.",
        ),
        *CLUSTER_OPTIONS.values(),
    )(call)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@cluster_options
@click.option("--out", help="Folder of the run or sweep, on the cluster.  [slurm: runs/NAME, or NAME-2, …]")
@click.option("--resume", is_flag=True, help="Resume the run or sweep in --out.")
@options.overrides("As with `run` and `sweep`.")
@file_options
@execution_options
@action_options
def submit(
    file: Path,
    cluster: Cluster,
    out: str | None,
    resume: bool,
    overrides: tuple[str, ...],
    job_files: FileOptions,
    execution: ExecutionOptions,
    action: ActionOptions,
) -> int:
    """Run the experiment or sweep in FILE on a cluster."""
    from simfl.submit.request import read
    from simfl.submit.slurm import Slurm

    options.check_workers(execution.workers)
    if resume and out is None:
        raise ConfigError("--out: needed with --resume: the folder of the run or sweep")
    sent = (job_files.environment, job_files.exclude)
    request = read(file, job_files.working_dir, out, overrides, resume, *sent, execution)
    own_python = sys.executable if isinstance(cluster, Slurm) else "python"
    request = replace(request, python=job_files.python or own_python)
    for path in request.required_paths:
        _log(f"{path} must exist on every machine of the cluster")
    if action.dry_run:
        click.echo(cluster.shown(request).rstrip("\n"))
        return 0
    return cluster.submit(request, _log, action.follow)


def _cluster(target: str | None, profile: Path | None, chosen: dict[str, object]) -> Cluster:
    """Build the cluster from the profile and the options, which precede it.

    Raises:
        ConfigError: An option has no effect on this kind of cluster, or a value is refused.
    """
    from simfl.submit.cluster import KIND, cluster_of, fields_of, read_profile

    settings = {} if profile is None else read_profile(profile)
    settings |= {KIND: target} if target else {}
    known = fields_of(settings.get(KIND))
    for key in chosen:
        if key not in known:
            raise ConfigError(f"{_flag(key)}: has no effect with --to {settings[KIND]}")
    given = {key: _mapping(key, value) if key in MAPPINGS else value for key, value in chosen.items()}
    where = "" if profile is None else f"{profile}: "
    try:
        return cluster_of({**settings, **given})
    except ConfigError as error:
        raise ConfigError("\n".join(_located(line, given, where) for line in str(error).splitlines())) from None


def _located(line: str, given: Mapping[str, object], where: str) -> str:
    """Return the line of an error with the option or the file at fault in place of the path `cluster.KEY`."""
    key = re.match(rf"{PATH}\.(\w+)", line)
    if key is None:
        return line
    if key.group(1) in given:
        return _flag(key.group(1)) + line[key.end() :]
    return f"{where}{line}" if where else f"{_flag(key.group(1))}{line[key.end() :]}"


def _flag(key: str) -> str:
    """Return the option of a setting."""
    return f"--{FLAGS.get(key, key).replace('_', '-')}"


def _mapping(key: str, pairs: object) -> dict[str, str]:
    """Return the pairs KEY=VALUE of an option.

    Raises:
        ConfigError: One is no such pair.
    """
    assert isinstance(pairs, tuple)
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ConfigError(f"{_flag(key)}: {pair!r} given; allowed: KEY=VALUE")
        found[name] = value
    return found


def _log(text: str) -> None:
    print(f"simfl: {text}", file=sys.stderr, flush=True)
