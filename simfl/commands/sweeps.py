"""Commands about several runs: sweep, table, fork, report and dashboard."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from simfl.commands import options
from simfl.commands.output import print_json
from simfl.errors import ConfigError

if TYPE_CHECKING:
    from simfl.reports.protocols import Protocol

FAILED, INTERRUPTED = 1, 130
FORMATS = ("markdown", "csv", "latex", "json")


@dataclass(frozen=True)
class TableTarget:
    """A text file and the name of the markers in it between which a table is written."""

    into: Path | None
    marker: str | None


def table_target(marker_default: str) -> options.Decorator:
    """Add --into and --marker, passed to the command as `target: TableTarget`."""
    return options.combine(
        click.option(
            "--into", type=click.Path(path_type=Path), metavar="FILE", help="Write the table between markers in FILE."
        ),
        click.option("--marker", help=f"Name of the markers.  [default: {marker_default}]"),
        options.collect(TableTarget, "target"),
    )


@dataclass(frozen=True)
class ProtocolOptions:
    """Options of `simfl table` that replace final scores by a protocol."""

    protocol: Literal["budget", "target", "robustness"] | None
    budget: tuple[str, ...]
    reach: float | None

    def rules(self) -> Protocol | None:
        """Return the protocol; None: the scores at the end of the runs."""
        from simfl.reports.protocols import Protocol, parse_budget

        if self.protocol is None:
            if self.budget or self.reach is not None:
                raise ConfigError("--budget and --reach: have no effect without --protocol")
            return None
        return Protocol(self.protocol, parse_budget(self.budget), self.reach)


protocol_options = options.combine(
    click.option(
        "--protocol", type=click.Choice(("budget", "target", "robustness")),
        help="budget: the last score within a budget; target: the cost until a score; robustness: against --against.",
    ),
    click.option("--budget", multiple=True, metavar="NAME=AMOUNT", help="seconds, MB, joules or rounds."),
    click.option("--reach", type=float, metavar="SCORE", help="Score that is to be reached, for --protocol target."),
    options.collect(ProtocolOptions, "protocol"),
)  # fmt: skip


@dataclass(frozen=True)
class ReportOptions:
    """Options of `simfl report` besides its paths."""

    title: str | None
    against: str | None
    pages: bool
    figures: Path | None
    forms: tuple[str, ...]
    open_page: bool


@dataclass(frozen=True)
class RunResources:
    """GPUs or CPUs of each run."""

    gpus_per_run: float
    cpus_per_run: int


resources_per_run = options.combine(
    click.option(
        "--gpus-per-run", type=float, default=1.0, show_default=True,
        help="GPUs of each run, with Ray: 0.5 for two runs per GPU; 2 for a run on two.",
    ),
    click.option(
        "--cpus-per-run", type=click.IntRange(1), default=1, show_default=True,
        help="CPUs of each run, with Ray and without GPUs.",
    ),
    options.collect(RunResources, "resources"),
)  # fmt: skip


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", help="Folder of the sweep, or a URL, such as s3://bucket/NAME.  [default: runs/NAME, or NAME-2, …]"
)
@click.option("--resume", is_flag=True, help="Skip finished runs, resume interrupted runs, retry failed runs.")
@options.placement(
    "ray",
    "ray: one run per CPU or GPU; inline: one after another in this process; auto: as in `simfl run`.",
    "Concurrent runs, with Ray.",
)
@resources_per_run
@click.option("--profile", is_flag=True, help="Write trace.json, a timeline, in the folder of each run.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Only runs with these names, e.g. 'fedprox*'.")
@click.option("--list", "as_list", is_flag=True, help="List the names of the runs without running them.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
@table_target("the name of FILE, as in bench for bench.yaml")
@options.overrides("Override a setting of all runs; also seeds=[1], grid.PATH=[…].")
def sweep(
    file: Path,
    out: str | None,
    resume: bool,
    placement: options.BackendOptions,
    resources: RunResources,
    profile: bool,
    only: tuple[str, ...],
    as_list: bool,
    as_json: bool,
    target: TableTarget,
    overrides: tuple[str, ...],
) -> int:
    """Run every combination in FILE: an experiment with grid, variants, experiments or seeds."""
    if as_list:
        from simfl.sweeps.file import load

        labels = list(load(file, overrides, only).labels)
        if as_json:
            print_json("sweep-list", {"runs": labels})
        else:
            click.echo("\n".join(labels))
        return 0
    if as_json:
        raise ConfigError("--json: has no effect without --list; `simfl table FOLDER --form json` prints the results")
    from simfl.runtime.ray import cluster

    with cluster.start_early(placement.backend, placement.address):
        from simfl.reports.formats import around, write_between
        from simfl.sweeps import sweep
        from simfl.sweeps.board import Board
        from simfl.sweeps.file import load
        from simfl.sweeps.pool import SweepPlacement

        found, marker = load(file, overrides, only), target.marker or file.stem
        if target.into is not None:
            around(target.into, marker)  # report missing markers before any run starts
        folder = out or sweep.folder_of(found.name, resume)
        with Board() as board:
            for text in (*filter(None, [placement.message]), *placement.gpus):
                board.message(text)
            per_run = (resources.gpus_per_run, resources.cpus_per_run)
            where = SweepPlacement(placement.backend, placement.workers, placement.address, *per_run, profile)
            outcomes = sweep.run(found, folder, where, resume, board)
    click.echo(board.table)
    if board.best:
        click.echo(board.best)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        click.echo(f"{outcome.label} failed: {outcome.error}; see {board.folder}/runs/{outcome.label}/error.txt")
    interrupted = any(outcome.status == "interrupted" for outcome in outcomes)
    if target.into is not None and not failed and not interrupted:
        write_between(target.into, marker, board.table)
        click.echo(f"{target.into}: table {marker} written")
    click.echo(f"results in {board.folder}" + ("; resume with the same command and --resume" if interrupted else ""))
    return INTERRUPTED if interrupted else FAILED if failed else 0


@click.command()
@click.argument("paths", nargs=-1, required=True, type=options.RunFolder(options.NOT_READ))
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Metric, e.g. anls or test.personal.anls.")
@click.option("--against", metavar="VALUE", help="Row that the others are tested against.  [default: the first]")
@click.option("--form", "format_", type=click.Choice(FORMATS), default="markdown", show_default=True)
@protocol_options
@table_target("the name of the first folder")
def table(
    paths: tuple[Path, ...],
    metrics: tuple[str, ...],
    against: str | None,
    format_: str,
    protocol: ProtocolOptions,
    target: TableTarget,
) -> None:
    """Compare runs and sweeps in a table: mean ± standard deviation over seeds, bytes, the best in bold."""
    from simfl.reports.formats import csv, latex, markdown, write_between
    from simfl.reports.protocols import compare_by
    from simfl.reports.results import results_of
    from simfl.reports.table import compare, paired_test
    from simfl.reports.table_spec import read_spec, restrict_to_results

    if format_ == "json" and target.into is not None:
        raise ConfigError("--into: writes tables of text; use --form markdown, csv or latex")
    formats, found = {"markdown": markdown, "csv": csv, "latex": latex}, results_of(paths)
    if not metrics and against is None:
        spec = restrict_to_results(read_spec(paths), found)
        metrics, against = spec.metrics, spec.against
    rules = protocol.rules()
    if rules is None:
        comparison = compare(found, metrics, against, paired_test)
    else:
        comparison = compare_by(rules, found, metrics, against)
    if format_ == "json":
        print_json("table", comparison.json())
        return
    text = formats[format_](comparison)
    if target.into is None:
        click.echo(text, nl=False)
    else:
        marker = target.marker or paths[0].name
        write_between(target.into, marker, text)
        print(f"{target.into}: table {marker} written", file=sys.stderr)


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--at", "step", type=int, required=True, metavar="ROUND", help="Number of finished rounds to keep.")
@click.option("--out", help="Folder of the new run.  [default: RUN-at-ROUND]")
@options.overrides("Override a setting of the new run.")
def fork(run: Path, step: int, out: str | None, overrides: tuple[str, ...]) -> None:
    """Fork RUN after a round: a new run with the same rounds up to there and other settings afterwards."""
    from simfl import config
    from simfl.runs.results import Run
    from simfl.runs.storage import is_url
    from simfl.sweeps.fork import fork

    source, folder = Run(run), Path(out) if out else run.with_name(f"{run.name}-at-{step}")
    if is_url(out):
        raise ConfigError(f"--out: {out!r} is a URL; allowed: a folder on this machine")
    given = {**config.keys_of(run / "experiment.yaml"), "name": folder.name}
    experiment = config.parse(config.overridden(given, overrides))
    fork(source, folder, experiment, step, log=lambda text: print(text, file=sys.stderr))
    command = f"simfl run {folder / 'experiment.yaml'} --out {folder} --resume"
    click.echo(f"{folder} forked after round {step}; resume with: {command}")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=options.RunFolder(options.NOT_READ))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Path of the HTML file.  [default: report.html in the first folder; of a URL, in this folder]",
)
@click.option("--title", help="Title of the page.  [default: the names of the folders]")
@click.option("--against", metavar="VALUE", help="Row that the others are tested against.  [default: the first]")
@click.option("--pages", is_flag=True, help="Draw predictions on their pages; this reads the data.")
@click.option("--figures", type=click.Path(path_type=Path), metavar="FOLDER", help="Write each figure to a file, too.")
@click.option(
    "--form", "forms", multiple=True, type=click.Choice(("pdf", "png", "svg")), help="Of the figures.  [default: svg]"
)
@click.option("--open", "open_page", is_flag=True, help="Show the report in the browser.")
@options.collect(ReportOptions, "wanted")
def report(paths: tuple[Path, ...], out: Path | None, wanted: ReportOptions) -> None:
    """Write an HTML report on runs and sweeps: curves, bytes, clients, partitions, time, predictions, commands."""
    from simfl.reports import report
    from simfl.reports.export import write_figures
    from simfl.runs.mirror import is_copy

    if wanted.forms and wanted.figures is None:
        raise ConfigError("--form: has no effect without --figures FOLDER")
    target = out or (Path() if is_copy(paths[0]) else paths[0]) / "report.html"
    text = report.write(paths, target, wanted.title or "", wanted.against, wanted.pages)
    click.echo(f"{target} written")
    if wanted.figures is not None:
        written = write_figures(text, wanted.figures, wanted.forms or ("svg",))
        click.echo(f"{len(written)} files written to {wanted.figures}")
    if wanted.open_page and not webbrowser.open(target.resolve().as_uri()):
        raise ConfigError(f"--open: no browser was found; open {target.resolve()}")


@click.command()
@click.argument("sweep", type=options.RunFolder(options.NOT_READ))
@click.option("--entity", help="User or team.  [default: as in the sweep, or the account's default]")
@click.option("--project", help="Project.  [default: as in the sweep]")
@click.option("--json", "as_json", is_flag=True, help="Print the workspace without sending it.")
def dashboard(sweep: Path, entity: str | None, project: str | None, as_json: bool) -> None:
    """Create a Weights & Biases workspace for the runs of a SWEEP, with charts of the settings that vary."""
    from dataclasses import replace

    from simfl import config
    from simfl.runs.folder import SWEEP, read_json
    from simfl.tracking.workspace import build_workspace, workspace_json, workspace_spec

    path = sweep / SWEEP
    if not path.exists():
        raise ConfigError(f"{sweep}: the folder holds no sweep")
    found = read_json(path)
    files = [sweep / "runs" / run["label"] / "experiment.yaml" for run in found["runs"]]
    spec = workspace_spec(found["name"], found["runs"], [config.load(file) for file in files if file.exists()])
    spec = replace(spec, entity=entity or spec.entity, project=project or spec.project)
    workspace = build_workspace(spec)
    if as_json:
        click.echo(workspace_json(workspace))
    else:
        click.echo(workspace.save().url)


COMMANDS = (sweep, table, fork, report, dashboard)
