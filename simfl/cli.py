"""The command line. Errors that a user can cause are one line and exit code 2; everything heavy is imported late."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simfl import __version__
from simfl.commands import data, inspection, options, partitions, submit, sweeps
from simfl.errors import ClientError, SimflError

if TYPE_CHECKING:
    from rich.console import Console

    from simfl.config.catalogue import Entry

USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    sys.path.append(os.getcwd())  # components may live in a module beside the experiment
    try:
        return commands.main(arguments, prog_name="simfl", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return USER_ERROR
    except click.ClickException as error:
        return _say(error.format_message(), USER_ERROR)
    except click.Abort:
        return INTERRUPTED
    except ClientError as error:
        return _say(str(error), FAILED)  # it ends with the client's own traceback
    except SimflError as error:
        return _say(str(error), USER_ERROR)


def _say(text: str, code: int) -> int:
    print(f"simfl: {text}", file=sys.stderr)
    return code


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="simfl %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """simfl simulates federated learning at scale, on Ray."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (*inspection.COMMANDS, *sweeps.COMMANDS, data.data, partitions.partition, submit.submit):
    commands.add_command(command)


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out",
    help="Folder of the run, or a URL such as s3://bucket/NAME.  [default: runs/NAME, or NAME-2, …]",
)
@options.placed("inline: this process, without Ray.", "Number of Ray workers.")
@click.option("--resume", is_flag=True, help="Go on from the last commit in the folder of the run.")
@click.option("--profile", is_flag=True, help="Write trace.json, which chrome://tracing and Perfetto show.")
@options.overrides("Override a setting, e.g. phases.0.rounds=2.")
def run(
    file: Path,
    out: str | None,
    backend: str,
    workers: str | None,
    address: str | None,
    resume: bool,
    profile: bool,
    overrides: tuple[str, ...],
) -> int:
    """Run the experiment in FILE."""
    number = options.workers_of(backend, workers, address)
    from simfl.runtime.ray import cluster as boot

    with boot.ahead(backend, address):
        from simfl import config, simulation
        from simfl.api import folder_of
        from simfl.tracking.progress import Progress

        experiment = config.load(file, overrides)
        place = out or folder_of(experiment.name, resume)
        with Progress() as display:
            summary = simulation.run(experiment, place, backend, number, address, resume, display, profile)
    return {"completed": 0, "interrupted": INTERRUPTED}.get(summary["status"], FAILED)


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--card", metavar="SIZE", help="Memory of a GPU, such as 80GB, to be filled with clients side by side.")
@click.option(
    "--speed", type=click.Path(path_type=Path), help="Folder of a run whose pace tells how long it will take."
)
@options.overrides("Override a setting, as with `run`.")
def plan(file: Path, as_json: bool, card: str | None, speed: Path | None, overrides: tuple[str, ...]) -> None:
    """Count the bytes, memory and local steps of the experiment in FILE, without running it."""
    from simfl import cache, config
    from simfl.plans import memory, table
    from simfl.plans import speed as speeds
    from simfl.plans.plan import plan as planned

    experiment = config.load(file, overrides)
    found = planned(experiment, cache.folder(), None if card is None else memory.card_bytes(card))
    pace = None if speed is None else speeds.pace(speed, experiment)
    if as_json:
        click.echo(json.dumps(found.json(), indent=2))
    else:
        table.show(found, pace, _console())


@commands.command("list")
@click.argument("shelf", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(shelf: str | None, as_json: bool) -> None:
    """Show what there is to choose from; with a SHELF, every setting too."""
    from simfl.config import catalogue

    found = {name: catalogue.entries(name) for name in ([shelf] if shelf else catalogue.NAMES)}
    if as_json:
        click.echo(json.dumps({name: [asdict(e) for e in entries] for name, entries in found.items()}, indent=2))
    elif shelf:
        _print_settings(found[shelf])
    else:
        _print_names(found)


def _print_names(found: dict[str, list[Entry]]) -> None:
    from rich.table import Table

    table = Table("shelf", "name", "what it is", box=None, padding=(0, 2, 0, 0))
    for shelf, entries in found.items():
        for i, entry in enumerate(entries):
            table.add_row("" if i else shelf, entry.name, entry.summary)
    _console().print(table)


def _print_settings(entries: list[Entry]) -> None:
    from rich.table import Table

    console = _console()
    for entry in entries:
        console.print(f"{entry.name}: {entry.summary}", highlight=False, markup=False, style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for setting in entry.settings:
            value = "required" if setting.required else json.dumps(setting.default)
            table.add_row(f"  {setting.name}", value, setting.type, setting.meaning)
        console.print(table)


def _console() -> Console:
    """As wide as the terminal; wide enough for a line per setting elsewhere."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)
