"""Command line. An error that a user can cause is one line and exit code 2; heavy modules are imported late."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from simfl import __version__
from simfl.commands import (
    audit,
    cards,
    convert,
    data,
    explain,
    inspection,
    options,
    partitions,
    submit,
    sweeps,
    templates,
)
from simfl.commands.output import json_option, line_width, print_json
from simfl.commands.supervisor import LOST, say_last_word
from simfl.errors import ClientError, ClusterError, ConfigError, SimflError
from simfl.safe_text import printable, safe_streams

if TYPE_CHECKING:
    from rich.console import Console

    from simfl.config.catalogue import Entry

USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130
EXIT_CODES = """\b
Exit codes:
  0    done; a check found nothing
  1    a run failed, or a check found a difference or a problem
  2    a setting, an option or a file is wrong: one line says which
  3    Ray or its workers were lost; the run can be resumed
  130  interrupted; the run can be resumed
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default that of this process, and return its exit code."""
    sys.excepthook = _show_traceback
    with safe_streams(sys):
        code = _run_command(arguments)
    if "simfl.runtime.ray.cluster" in sys.modules:
        _leave_lost_ray(code)
    return code


def _leave_lost_ray(code: int) -> None:
    """Exit at once if this process is connected to a Ray that is lost, which its usual exit would wait for."""
    from simfl.runtime.ray import cluster

    if cluster.is_abandoned():
        sys.stdout.flush(), sys.stderr.flush()
        say_last_word()
        os._exit(code)


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected error, without secrets."""
    print(printable("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)


def _run_command(arguments: Sequence[str] | None) -> int:
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")  # simfl refuses such images itself
    sys.path.append(os.getcwd())  # components may be defined in a module of the working directory
    try:
        return commands.main(arguments, prog_name="simfl", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return USER_ERROR
    except click.ClickException as error:
        return _report(error.format_message(), USER_ERROR)
    except click.Abort:  # Ctrl-C before a run could handle it
        return _report("interrupted", INTERRUPTED)
    except ClientError as error:
        return _report(str(error), FAILED)  # the message ends with the traceback of the client
    except ClusterError as error:
        return _report(str(error), LOST)
    except SimflError as error:
        return _report(str(error).replace("\n", "\nsimfl: "), USER_ERROR)  # one line for each problem


def _report(text: str, code: int) -> int:
    print(f"simfl: {text}", file=sys.stderr)
    return code


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, message="simfl %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Simulate federated learning at scale, on Ray."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (
    *inspection.COMMANDS, *cards.COMMANDS, audit.audit, *sweeps.COMMANDS, data.data, partitions.partition,
    submit.submit, templates.new, explain.explain, explain.completion,
    convert.convert,
):  # fmt: skip
    commands.add_command(command)


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", help="Folder of the run, or a URL, such as s3://bucket/NAME.  [default: runs/NAME, or NAME-2, …]"
)
@options.placement(
    "auto",
    "inline: in this process; ray: on worker processes; auto: ray with 2 or more GPUs, or without a GPU with 4 or more"
    " CPUs, or if --workers or --address is given; else inline.",
    "Number of Ray workers.",
)
@click.option("--resume", is_flag=True, help="Resume from the last checkpoint in the folder of the run.")
@click.option("--profile", is_flag=True, help="Write trace.json, a timeline for chrome://tracing or Perfetto.")
@options.overrides("Override a setting, e.g. phases.0.rounds=2.")
def run(
    file: Path,
    out: str | None,
    placement: options.BackendOptions,
    resume: bool,
    profile: bool,
    overrides: tuple[str, ...],
) -> int:
    """Run the experiment in FILE."""
    from simfl.runtime.ray import cluster

    with cluster.start_early(placement.backend, placement.address):
        from simfl import config, simulation
        from simfl.api import folder_of
        from simfl.session.options import RunOptions
        from simfl.tracking.progress import Progress

        experiment = config.load(file, overrides)
        folder = out or folder_of(experiment.name, resume)
        with Progress() as display:
            if placement.message:
                display.message(placement.message)
            run_options = RunOptions(
                folder, placement.backend, placement.workers, placement.address, resume, display, profile,
                notes=placement.gpus,
            )  # fmt: skip
            summary = simulation.run(experiment, run_options)
    return {"completed": 0, "interrupted": INTERRUPTED}.get(summary["status"], FAILED)


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.option("--card", metavar="SIZE", help="Memory of a GPU, such as 80GB: show how many clients per batch fit.")
@click.option("--speed", type=click.Path(path_type=Path), help="Folder of a run whose speed is used to estimate time.")
@click.option("--build/--no-build", default=True, help="Build the data set if its sizes are needed.  [default: build]")
@options.overrides("Override a setting, as with `run`.")
def plan(
    file: Path, as_json: bool, card: str | None, speed: Path | None, build: bool, overrides: tuple[str, ...]
) -> None:
    """Compute bytes, memory and local steps of the experiment in FILE, without running it."""
    from simfl import config, files
    from simfl.data.io.arrow_store import building
    from simfl.plans import memory, table
    from simfl.plans import speed as speeds
    from simfl.plans.plan import plan as plan_of

    experiment = config.load(file, overrides)
    with building(_announce if build else _refuse_build):
        found = plan_of(experiment, files.cache_folder(), None if card is None else memory.card_bytes(card))
    measured = None if speed is None else speeds.measured_speed(speed, experiment)
    if as_json:
        print_json("plan", found.json())
    else:
        table.show(found, measured, _console())


def _announce(name: str) -> None:
    print(f"building data set {name} (needed once, then read from the cache)", file=sys.stderr, flush=True)


def _refuse_build(name: str) -> None:
    raise ConfigError(f"--no-build: the plan needs the data set {name}, which is not built; simfl data build {name}")


@commands.command("list")
@click.argument("name", required=False)
@json_option
def list_(name: str | None, as_json: bool) -> None:
    """List all components, or describe NAME with its settings.

    NAME is a registry such as algorithms, a component such as fedprox, or a class of yours as package.module:Class.
    """
    from simfl.config import catalogue

    found = catalogue.find(name) if name else {registry: catalogue.entries(registry) for registry in catalogue.NAMES}
    if as_json:
        print_json("list", {"registries": {kind: [asdict(one) for one in entries] for kind, entries in found.items()}})
    elif name:
        _print_settings([entry for entries in found.values() for entry in entries])
    else:
        _print_names(found)


def _print_names(found: dict[str, list[Entry]]) -> None:
    from rich.table import Table

    table = Table("registry", "name", "description", box=None, padding=(0, 2, 0, 0))
    for registry, entries in found.items():
        for i, entry in enumerate(entries):
            table.add_row("" if i else registry, entry.name, entry.summary)
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
    """Return a console as wide as the terminal or COLUMNS, or 160 columns wide if the output is not a terminal."""
    from simfl.tracking.console import SafeConsole

    return SafeConsole(width=line_width() or 160)
