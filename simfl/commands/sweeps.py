"""The commands about many runs: sweep, table, fork and report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from simfl.commands import options
from simfl.errors import ConfigError

FAILED, INTERRUPTED = 1, 130
FORMS = ("markdown", "csv", "latex")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", help="Folder of the sweep, or a URL such as s3://bucket/NAME.  [default: runs/NAME, or NAME-2, …]"
)
@click.option("--resume", is_flag=True, help="Go on: what is done stays, what was cut goes on, what failed is retried.")
@options.placed(
    "ray: a run on each CPU or GPU; inline: one after the other in this process.", "Runs at a time, with Ray."
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Only the runs of this name, e.g. 'fedprox*'.")
@click.option("--list", "as_list", is_flag=True, help="Show the names of the runs, and run nothing.")
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="Write the table between markers there.")
@click.option("--marker", help="Name in the markers.  [default: the name of FILE, as in bench for bench.yaml]")
@options.overrides("For all runs; also seeds=[1], grid.PATH=[…].")
def sweep(
    file: Path,
    out: str | None,
    resume: bool,
    backend: str,
    workers: str | None,
    address: str | None,
    only: tuple[str, ...],
    as_list: bool,
    into: Path | None,
    marker: str | None,
    overrides: tuple[str, ...],
) -> int:
    """Run every combination in FILE: an experiment with grid, variants, experiments or seeds."""
    number = options.workers_of(backend, workers, address)
    from simfl.sweeps.file import load

    found = load(file, overrides, only)
    if as_list:
        click.echo("\n".join(point.label for point in found.points))
        return 0
    from simfl.reports.markers import around, write_between
    from simfl.sweeps import sweep
    from simfl.sweeps.board import Board

    if into is not None:
        around(into, marker or file.stem)  # a place that is not there is said before anything runs
    place = out or sweep.folder_of(found.name, resume)
    with Board() as board:
        outcomes = sweep.run(found, place, backend, number, address, resume, board)
    click.echo(board.table)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        click.echo(f"{outcome.label} failed: {outcome.error}; see {board.place}/runs/{outcome.label}/error.txt")
    interrupted = any(outcome.status == "interrupted" for outcome in outcomes)
    if into is not None and not failed and not interrupted:
        write_between(into, marker or file.stem, board.table)
        click.echo(f"{into}: the table {marker or file.stem} is written")
    click.echo(
        f"everything is in {board.place}" + ("; to go on: the same command with --resume" if interrupted else "")
    )
    return INTERRUPTED if interrupted else FAILED if failed else 0


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="A score, e.g. anls or test.personal.anls.")
@click.option("--against", metavar="VALUE", help="The line that others are tested against.  [default: the first]")
@click.option("--form", type=click.Choice(FORMS), default="markdown", show_default=True)
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="Write between the markers in a file.")
@click.option("--marker", help="Name in the markers.  [default: the name of the first folder]")
def table(
    paths: tuple[Path, ...],
    metrics: tuple[str, ...],
    against: str | None,
    form: str,
    into: Path | None,
    marker: str | None,
) -> None:
    """Put runs and sweeps side by side: mean ± deviation over seeds, bytes, the best in bold."""
    from simfl.reports.formats import csv, latex, markdown
    from simfl.reports.markers import write_between
    from simfl.reports.results import results_of
    from simfl.reports.table import compare, paired
    from simfl.reports.table_spec import met, wanted

    forms, found = dict(zip(FORMS, (markdown, csv, latex), strict=True)), results_of(paths)
    if not metrics and against is None:
        said = met(wanted(paths), found)
        metrics, against = said.metrics, said.against
    text = forms[form](compare(found, metrics, against, paired))
    if into is None:
        click.echo(text, nl=False)
    else:
        name = marker or paths[0].name
        write_between(into, name, text)
        print(f"{into}: the table {name} is written", file=sys.stderr)


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--at", "step", type=int, required=True, metavar="ROUND", help="After so many finished rounds.")
@click.option("--out", help="Folder of the new run.  [default: RUN-at-ROUND]")
@options.overrides("What the new run has otherwise.")
def fork(run: Path, step: int, out: str | None, overrides: tuple[str, ...]) -> None:
    """Branch RUN after a round: a new run that has the same rounds up to there, and other settings from there on."""
    from simfl import config
    from simfl.runs.mirror import is_url
    from simfl.runs.results import Run
    from simfl.sweeps.fork import fork

    source, folder = Run(run), Path(out) if out else run.with_name(f"{run.name}-at-{step}")
    if is_url(out):
        raise ConfigError(
            f"--out: {out!r} is a URL; a fork is made in a folder of this machine, which its run goes on in"
        )
    given = {**config.keys_of(run / "experiment.yaml"), "name": folder.name}
    fork(
        source,
        folder,
        config.parse(config.overridden(given, overrides)),
        step,
        say=lambda text: print(text, file=sys.stderr),
    )
    click.echo(
        f"{folder} stands after round {step}; to go on: simfl run {folder / 'experiment.yaml'} --out {folder} --resume"
    )


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The HTML file.  [default: report.html in the first folder]"
)
@click.option("--title", help="Heading of the page.  [default: the names of the folders]")
def report(paths: tuple[Path, ...], out: Path | None, title: str | None) -> None:
    """Write one HTML page about runs and sweeps: curves, bytes, clients, partitions, time, predictions, commands."""
    from simfl.reports import report

    target = out or paths[0] / "report.html"
    report.write(paths, target, title or "")
    click.echo(f"{target} is written")


@click.command()
@click.argument("sweep", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--entity", help="User or team.  [default: what the sweep says, or the account's own]")
@click.option("--project", help="[default: what the sweep says]")
@click.option("--json", "as_json", is_flag=True, help="Print the workspace, and send nothing.")
def dashboard(sweep: Path, entity: str | None, project: str | None, as_json: bool) -> None:
    """Lay out a workspace of Weights & Biases for a SWEEP's runs: charts by what varies, filtered and grouped."""
    from dataclasses import replace

    from simfl import config
    from simfl.reports.results import POINTS
    from simfl.tracking import workspace

    path = sweep / POINTS
    if not path.exists():
        raise ConfigError(f"{sweep}: no sweep lies here, whose runs a workspace could show")
    found = json.loads(path.read_bytes())
    files = [sweep / "runs" / run["label"] / "experiment.yaml" for run in found["runs"]]
    shown = workspace.shown(found["name"], found["runs"], [config.load(file) for file in files if file.exists()])
    shown = replace(shown, entity=entity or shown.entity, project=project or shown.project)
    made = workspace.workspace(shown)
    if as_json:
        click.echo(workspace.as_json(made))
    else:
        click.echo(made.save().url)


COMMANDS = (sweep, table, fork, report, dashboard)
