"""The command `simfl audit`: attacks on a run, and lower bounds on its epsilon."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

VIOLATED = 1  # exit code: a lower bound exceeds the claimed epsilon

folder = click.Path(exists=True, file_okay=False, path_type=Path)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def audit() -> None:
    """Attack a run with what an attacker sees, and compare the success with the claimed epsilon."""


@audit.command()
@click.argument("run", type=folder)
@click.option("--canaries", type=int, help="Number of canaries.  [default: one per participation, at most 1000]")
@click.option("--rounds", type=int, help="Rounds of the first phase to audit.  [default: all]")
@click.option("--width", type=int, default=1, show_default=True, help="Coordinates of a canary's update.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the canaries' coins and directions.")
@as_json_option
def canaries(run: Path, canaries: int | None, rounds: int | None, width: int, seed: int, as_json: bool) -> int:
    """Repeat rounds of RUN with canaries and compute lower bounds on epsilon; exit code 1 if one exceeds its claim."""
    from simfl.audit import one_run, report
    from simfl.runs.results import Run

    found = one_run.audit(Run(run), one_run.AuditSettings(canaries, rounds, width, seed), _log)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"holds": found.holds}, indent=1))
    else:
        click.echo("\n".join(report.canary_lines(found)))
    return 0 if found.holds else VIOLATED


@audit.command()
@click.argument("run", type=folder)
@click.option("--unit", type=click.Choice(["provider", "document"]), default="provider", show_default=True)
@click.option("--members", default="train", show_default=True, help="Split with units of providers trained on.")
@click.option("--others", help="Split with units not trained on.  [default: unseen, test or valid, the first there is]")
@click.option("--shadow", "shadows", multiple=True, type=folder, help="Run with other units; may be repeated.")
@click.option("--examples", type=click.IntRange(1), default=16, show_default=True, help="Examples of a unit, at most.")
@click.option("--limit", type=click.IntRange(2), help="Units of each kind, at most.  [default: all]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choice of examples and units.")
@as_json_option
def membership(
    run: Path,
    unit: str,
    members: str,
    others: str | None,
    shadows: tuple[Path, ...],
    examples: int,
    limit: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Infer from the final model of RUN which providers or documents it was trained on."""
    from simfl.audit import membership, report
    from simfl.runs.results import Run

    runs = [Run(shadow) for shadow in shadows]
    settings = membership.MembershipSettings(unit, members, others, runs, examples, limit, seed)
    found = membership.attack(Run(run), settings, _log)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=1))
    else:
        click.echo("\n".join(report.membership_lines(found)))


@audit.command()
@click.argument("run", type=folder)
@click.option(
    "--others", help="Split with documents not trained on.  [default: unseen, test or valid, the first there is]"
)
@click.option("--shadow", "shadows", multiple=True, type=folder, help="Run on other documents; may be repeated.")
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="Fields of each kind, at most.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choice of fields.")
@as_json_option
def extraction(run: Path, others: str | None, shadows: tuple[Path, ...], limit: int, seed: int, as_json: bool) -> None:
    """Ask the final model of RUN for fields that are erased from their pages."""
    from simfl.audit import extraction, report
    from simfl.runs.results import Run

    settings = extraction.ExtractionSettings(others, [Run(shadow) for shadow in shadows], limit, seed)
    found = extraction.extract(Run(run), settings, _log)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"leaks": found.leaks}, indent=1))
    else:
        click.echo("\n".join(report.extraction_lines(found)))


@audit.command()
@click.argument("run", type=folder)
@click.option("--round", "round_", type=int, required=True, help="Round of the first phase, from 1.")
@click.option("--client", type=int, required=True, help="Client, from 0.")
@as_json_option
def inversion(run: Path, round_: int, client: int, as_json: bool) -> None:
    """Infer from one upload of RUN which tokens the questions contain that the client trained on."""
    from simfl.audit import inversion, report
    from simfl.runs.results import Run

    found = inversion.invert(Run(run), client, round_, _log)
    click.echo(json.dumps(asdict(found), indent=1) if as_json else "\n".join(report.inversion_lines(found)))


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
