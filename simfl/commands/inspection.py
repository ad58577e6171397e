"""Commands that inspect runs and the machine: replay, diff, export, watch, grafana, check-privacy, doctor."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simfl.commands import options
from simfl.commands.output import json_option, print_json
from simfl.errors import ConfigError

if TYPE_CHECKING:
    from simfl.runs.results import Run

DIFFERENT = 1  # exit code: the result differs from the record, or a check failed

experiment_option = click.option(
    "--experiment",
    "experiment",
    metavar="MODULE:NAME",
    help="Mapping or Experiment of the run, if it used Python objects that its folder cannot store.",
)
folder = options.RunFolder()
URL_SECONDS = 5.0  # between two downloads of what has changed at a URL


@click.command()
@click.argument("run", type=folder)
@click.option("--round", "round_", type=int, required=True, help="Round, as in tables and error messages, from 1.")
@click.option("--client", type=int, required=True, help="Client, from 0.")
@click.option("--phase", type=int, help="Phase, from 0; needed if the run has several.")
@click.option("--pdb", "debug", is_flag=True, help="Start the debugger where the loss is computed and at an error.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every local step.")
@experiment_option
def replay(
    run: Path, round_: int, client: int, phase: int | None, debug: bool, as_json: bool, experiment: str | None
) -> int:
    """Repeat one client update of RUN in this process and compare it with the record."""
    from simfl.debug import replay

    result = replay.replay(open_run(run, experiment), round_, client, phase, debug, print_message)
    if as_json:
        print_json("replay", asdict(result) | {"equal": result.equal})
    else:
        click.echo("\n".join(replay.replay_lines(result)))
    return 0 if result.equal else DIFFERENT


@click.command()
@click.argument("a", type=folder)
@click.argument("b", type=folder)
@click.option(
    "--again/--no-again", default=True, help="Repeat both runs to find the first step and tensor that differ."
)
@json_option
def diff(a: Path, b: Path, again: bool, as_json: bool) -> int:
    """Compare two runs: settings, tables, checkpoints, and the first difference."""
    from simfl.debug import diff

    found = diff.compare(open_run(a), open_run(b), again, print_message)
    if as_json:
        print_json("diff", asdict(found) | {"equal": found.equal})
    else:
        click.echo("\n".join(diff.diff_lines(found)))
    return 0 if found.equal else DIFFERENT


@click.command()
@click.argument("run", type=folder)
@click.argument("to", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--round", "step", type=int, help="Finished rounds after which there is a checkpoint.  [default: all]")
@click.option("--client", type=int, help="Export the personal model of this client, from 0.")
@click.option("--merge", is_flag=True, help="Merge adapters into the weights.")
@experiment_option
def export(run: Path, to: Path, step: int | None, client: int | None, merge: bool, experiment: str | None) -> None:
    """Write the trained model of RUN to FOLDER, which `from_pretrained` of transformers loads."""
    files = open_run(run, experiment).export(to, step, client, merge)
    click.echo(f"{to}: {', '.join(files)}")


@click.command()
@click.argument("run", metavar="RUN|SWEEP")
@click.option("--once", is_flag=True, help="Print the current state and exit.")
def watch(run: str, once: bool) -> None:
    """Show the progress of a run, or of all runs of a sweep, until it ends. Ctrl-C stops watching, not the run."""
    from simfl.runs.folder import SWEEP
    from simfl.runs.mirror import is_copy
    from simfl.tracking.sweep_table import watch_sweep
    from simfl.tracking.watch import POLL_SECONDS, watch

    current = partial(options.RunFolder(options.NOT_READ).convert, run, None, None)
    with suppress(KeyboardInterrupt):
        folder = current()
        every, refresh = (URL_SECONDS, current) if is_copy(folder) else (POLL_SECONDS, lambda: None)
        shown = watch_sweep if (folder / SWEEP).exists() else watch
        shown(folder, once, every=every, refresh=refresh)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder of runs.")
@click.option("--ray/--no-ray", default=True, help="Also check Ray: start it, or join the cluster at --address.")
@options.address
@json_option
def doctor(out: Path, ray: bool, address: str | None, as_json: bool) -> int:
    """Check this machine for problems that would stop or slow a run, and suggest fixes."""
    from simfl.commands import doctor

    if address and not ray:
        raise ConfigError("--address: has no effect with --no-ray")
    found = doctor.examine(out, ray, address)
    if as_json:
        print_json("doctor", {"findings": [asdict(one) for one in found]})
    else:
        click.echo("\n".join(doctor.lines(found)))
    return DIFFERENT if any(finding.grade == doctor.PROBLEM for finding in found) else 0


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def grafana(folder: Path) -> None:
    """Write a Grafana dashboard and settings of Prometheus to FOLDER, for runs with tracking.prometheus."""
    from simfl.tracking.grafana import dashboard, scrape_settings

    written = {"simfl.json": json.dumps(dashboard(), indent=2) + "\n", "prometheus.yml": scrape_settings()}
    if taken := [name for name in written if (folder / name).exists()]:
        raise ConfigError(f"{folder / taken[0]}: this file exists; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).write_text(text)
        click.echo(f"{folder / name} written")


@click.command("check-privacy")
@click.argument("file", type=click.Path(path_type=Path))
@options.overrides("Override a setting, e.g. privacy.epsilon=4.")
@click.option("--seed", type=int, help="Seed to use instead of the experiment's.")
@json_option
def check_privacy(file: Path, overrides: tuple[str, ...], seed: int | None, as_json: bool) -> int:
    """Test the privacy mechanism of the experiment in FILE: units, samples, sensitivity, noise and account."""
    from simfl import config, files
    from simfl.debug import privacy_check

    found = privacy_check.check(config.load(file, overrides), files.cache_folder(), seed)
    if as_json:
        print_json("check-privacy", {"findings": [asdict(one) for one in found]})
    else:
        click.echo("\n".join(privacy_check.check_lines(found)))
    return 0 if all(one.holds for one in found) else DIFFERENT


def open_run(folder: Path, experiment: str | None = None) -> Run:
    """Open a run; `experiment` names the Python object that it was made from."""
    from simfl.runs.results import Run

    if experiment is None:
        return Run(folder)
    module, _, name = experiment.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--experiment: {experiment!r} cannot be imported: {error}") from None
    from simfl import config

    return Run(folder, config.parse(found))


def print_message(text: str) -> None:
    """Print a message about the progress to the standard error stream."""
    print(text, file=sys.stderr, flush=True)


COMMANDS = (replay, diff, export, watch, grafana, check_privacy, doctor)
