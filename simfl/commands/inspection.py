"""Commands beside `run`: look at runs (replay, diff, watch), and what helps to start one (new, doctor)."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simfl.commands import options
from simfl.errors import ConfigError

if TYPE_CHECKING:
    from simfl.runs.results import Run

DIFFERENT = 1  # exit code: not as recorded, not equal, something would break a run

given = click.option(
    "--experiment",
    "experiment",
    metavar="MODULE:NAME",
    help="Of a run that was given Python objects: where the mapping or Experiment is that it was started with.",
)
folder = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("run", type=folder)
@click.option("--round", "round_", type=int, required=True, help="As in the tables and in errors: the first is 1.")
@click.option("--client", type=int, required=True, help="Its number.")
@click.option("--phase", type=int, help="Needed if the run has several.")
@click.option("--pdb", "debug", is_flag=True, help="Stop in the debugger where the loss begins and where it fails.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every step.")
@given
def replay(
    run: Path, round_: int, client: int, phase: int | None, debug: bool, as_json: bool, experiment: str | None
) -> int:
    """Run one client's visit of RUN again, alone, and hold it to the record."""
    from simfl.debug import replay

    done = replay.replay(_run(run, experiment), round_, client, phase, debug, _say)
    if as_json:
        click.echo(json.dumps(asdict(done) | {"equal": done.equal}, indent=1))
    else:
        click.echo("\n".join(replay.lines(done)))
    return 0 if done.equal else DIFFERENT


@click.command()
@click.argument("a", type=folder)
@click.argument("b", type=folder)
@click.option("--again/--no-again", default=True, help="Run both again to find the first step and tensor that differ.")
def diff(a: Path, b: Path, again: bool) -> int:
    """Compare two runs: settings, tables, commits, and where they first part."""
    from simfl.debug import diff

    found = diff.compare(_run(a), _run(b), again, _say)
    click.echo("\n".join(diff.lines(found)))
    return 0 if found.equal else DIFFERENT


@click.command()
@click.argument("run", type=folder)
@click.option("--once", is_flag=True, help="Show it as it stands and end.")
def watch(run: Path, once: bool) -> None:
    """Show RUN in the terminal until it ends. Ctrl-C ends the watching, not the run."""
    from simfl.tracking import watch

    with suppress(KeyboardInterrupt):
        watch.watch(run, once)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--from", "template", metavar="NAME", help="An experiment that comes with simfl.")
@click.option("--list", "as_list", is_flag=True, help="Show their names.")
def new(file: Path | None, template: str | None, as_list: bool) -> None:
    """Write an experiment to FILE, to be edited and run."""
    from simfl.commands.templates import summary, templates, write_new

    if as_list:
        width = max(len(name) for name in templates())
        for name, path in templates().items():
            click.echo(f"{name:<{width}}  {summary(path)}")
    elif file is None or template is None:
        raise ConfigError("new: write `simfl new FILE --from NAME`; `simfl new --list` shows the names")
    else:
        write_new(file, template)
        click.echo(f"{file} is written; edit it, then: simfl run {file}")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs go.")
@click.option("--ray/--no-ray", default=True, help="Start Ray, or join the one at --address, and look at it too.")
@options.address
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(out: Path, ray: bool, address: str | None, as_json: bool) -> int:
    """Look for what would break or slow a run on this machine, and say the mend."""
    from simfl.commands import doctor

    if address and not ray:
        raise ConfigError("--address: has no effect with --no-ray")
    found = doctor.examine(out, ray, address)
    click.echo(json.dumps([asdict(f) for f in found], indent=1) if as_json else "\n".join(doctor.lines(found)))
    return DIFFERENT if any(finding.grade == doctor.PROBLEM for finding in found) else 0


@click.command("check-privacy")
@click.argument("file", type=click.Path(path_type=Path))
@options.overrides("Override a setting, e.g. privacy.epsilon=4.")
@click.option("--seed", type=int, help="In place of the experiment's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check_privacy(file: Path, overrides: tuple[str, ...], seed: int | None, as_json: bool) -> int:
    """Measure the privacy mechanism of the experiment in FILE: sensitivity, scale and independence of the noise."""
    from simfl import cache, config
    from simfl.debug import privacy_check

    found = privacy_check.check(config.load(file, overrides), cache.folder(), seed)
    click.echo(json.dumps([asdict(f) for f in found], indent=1) if as_json else "\n".join(privacy_check.lines(found)))
    return 0 if all(one.holds for one in found) else DIFFERENT


def _run(folder: Path, experiment: str | None = None) -> Run:
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMANDS = (replay, diff, watch, new, check_privacy, doctor)
