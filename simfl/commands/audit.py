"""The command `simfl audit`: attacks on a run, and lower bounds on its epsilon."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simfl.commands.output import json_option, print_json

if TYPE_CHECKING:
    from simfl.runs.results import Run

SAVED_POINTS = 8
VIOLATED = 1  # exit code: a lower bound exceeds the claimed epsilon

folder = click.Path(exists=True, file_okay=False, path_type=Path)
shadows_option = click.option(
    "--shadows", "sweep", type=folder, help="Sweep whose runs with other seeds and partitions are shadow runs."
)


@click.group()
def audit() -> None:
    """Attack a run with what an attacker sees, and compare the success with the claimed epsilon."""


@audit.command()
@click.argument("run", type=folder)
@click.option("--canaries", type=int, help="Number of canaries.  [default: one per participation, at most 1000]")
@click.option("--rounds", type=int, help="Rounds of the first phase to audit.  [default: all]")
@click.option("--width", type=int, default=1, show_default=True, help="Coordinates of a canary's update.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the canaries' coins and directions.")
@click.option(
    "--points",
    type=click.IntRange(1),
    help="Rounds after which bounds are computed, at most.  [default: 8 with --save, else the last one]",
)
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    help="Probability with which no bound of the audit is above epsilon.",
)
@click.option("--documents", is_flag=True, help="Canaries are crafted documents, which are trained on like others.")
@click.option("--save", is_flag=True, help="Keep the audit in RUN for `simfl report`, and log it to the W&B run.")
@json_option
def canaries(
    run: Path,
    canaries: int | None,
    rounds: int | None,
    width: int,
    seed: int,
    points: int | None,
    confidence: float,
    documents: bool,
    save: bool,
    as_json: bool,
) -> int:
    """Repeat rounds of RUN with canaries and compute lower bounds on epsilon; exit code 1 if one exceeds its claim."""
    from simfl.audit import one_run, report, saved
    from simfl.runs.results import Run

    target = Run(run)
    if save:
        saved.require_writable(target)
    points = points or (SAVED_POINTS if save else 1)
    settings = one_run.AuditSettings(
        canaries, rounds, width, seed, points=points, documents=documents, confidence=confidence
    )
    found = one_run.audit(target, settings, _log)
    if save:
        saved.save(target, found, _log)
    if as_json:
        print_json("audit-canaries", asdict(found) | {"holds": found.holds})
    else:
        click.echo("\n".join(report.canary_lines(found)))
    return 0 if found.holds else VIOLATED


@audit.command()
@click.argument("run", type=folder)
@click.option("--unit", type=click.Choice(["provider", "document"]), default="provider", show_default=True)
@click.option("--members", default="train", show_default=True, help="Split with units of providers trained on.")
@click.option(
    "--others",
    help="Split with units not trained on.  [default: those of train left out, else unseen, test or valid]",
)
@click.option("--shadow", "shadows", multiple=True, type=folder, help="Run with other units; may be repeated.")
@shadows_option
@click.option("--examples", type=click.IntRange(1), default=16, show_default=True, help="Examples of a unit, at most.")
@click.option("--limit", type=click.IntRange(2), help="Units of each kind, at most.  [default: all]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choice of examples and units.")
@click.option("--loss-only", is_flag=True, help="Leave out scores by metric and confidence, which take the most time.")
@json_option
def membership(
    run: Path,
    unit: str,
    members: str,
    others: str | None,
    shadows: tuple[Path, ...],
    sweep: Path | None,
    examples: int,
    limit: int | None,
    seed: int,
    loss_only: bool,
    as_json: bool,
) -> None:
    """Infer from the final model of RUN which providers or documents it was trained on."""
    from simfl.audit import membership, report
    from simfl.runs.results import Run

    target = Run(run)
    settings = membership.MembershipSettings(
        unit, members, others, _shadow_runs(target, shadows, sweep), examples, limit, seed, loss_only
    )
    found = membership.attack(target, settings, _log)
    if as_json:
        print_json("audit-extraction", asdict(found))
    else:
        click.echo("\n".join(report.membership_lines(found)))


@audit.command()
@click.argument("run", type=folder)
@click.option(
    "--others",
    help="Split with documents not trained on.  [default: those of train left out, else unseen, test or valid]",
)
@click.option("--shadow", "shadows", multiple=True, type=folder, help="Run on other documents; may be repeated.")
@shadows_option
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="Fields of each kind, at most.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choice of fields.")
@json_option
def extraction(
    run: Path, others: str | None, shadows: tuple[Path, ...], sweep: Path | None, limit: int, seed: int, as_json: bool
) -> None:
    """Ask the final model of RUN for fields that are erased from their pages."""
    from simfl.audit import extraction, report
    from simfl.runs.results import Run

    target = Run(run)
    settings = extraction.ExtractionSettings(others, _shadow_runs(target, shadows, sweep), limit, seed)
    found = extraction.extract(target, settings, _log)
    if as_json:
        print_json("audit-membership", asdict(found) | {"leaks": found.leaks})
    else:
        click.echo("\n".join(report.extraction_lines(found)))


@audit.command()
@click.argument("run", type=folder)
@click.option("--round", "round_", type=int, required=True, help="Round of the first phase, from 1.")
@click.option("--client", type=int, required=True, help="Client, from 0.")
@json_option
def inversion(run: Path, round_: int, client: int, as_json: bool) -> None:
    """Infer from one upload of RUN which tokens its questions contain and which pages they are about."""
    from simfl.audit import inversion, report
    from simfl.runs.results import Run

    found = inversion.invert(Run(run), client, round_, _log)
    if as_json:
        print_json("audit-inversion", asdict(found))
    else:
        click.echo("\n".join(report.inversion_lines(found)))


def _shadow_runs(target: Run, shadows: tuple[Path, ...], sweep: Path | None) -> list[Run]:
    """Return the runs of both options."""
    from simfl.audit.shadows import shadow_runs
    from simfl.runs.results import Run

    return [*(Run(shadow) for shadow in shadows), *(shadow_runs(target, sweep) if sweep else ())]


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
