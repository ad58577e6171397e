"""Commands that let others trust a result: card writes a run into one file, verify checks a run or a card."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from simfl.commands import options
from simfl.commands.inspection import DIFFERENT, experiment_option, open_run, print_message
from simfl.commands.output import json_option, print_json

RUN_OR_CARD = "RUN|CARD"


@click.command()
@click.argument("run", type=options.RunFolder())
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@experiment_option
def card(run: Path, file: Path, experiment: str | None) -> None:
    """Write what RUN claims, and all that is needed to verify it, to FILE."""
    from simfl.cards.card import write_card

    content = write_card(open_run(run, experiment), file)
    click.echo(
        f"{file}: {len(content['files'])} files, {file.stat().st_size:,} bytes; check it with: simfl verify {file}"
    )


@click.command()
@click.argument("source", metavar=RUN_OR_CARD, type=click.Path(exists=True, path_type=Path))
@click.option("--updates", type=click.IntRange(min=0), default=3, show_default=True, help="Client updates to repeat.")
@click.option("--whole", is_flag=True, help="Repeat every round, and not only those after the last checkpoint but one.")
@click.option("--seed", type=int, help="Seed of the choice of client updates.  [default: drawn from the system]")
@json_option
@experiment_option
def verify(source: Path, updates: int, whole: bool, seed: int | None, as_json: bool, experiment: str | None) -> int:
    """Compute again what RUN or CARD claims: bytes, epsilon, scores, client updates, the last aggregation."""
    from simfl.cards.card import open_card
    from simfl.cards.verify import Verification, check_line, verdict_of

    with tempfile.TemporaryDirectory(prefix="simfl-card-") as scratch:
        if source.is_dir():
            run, claims = open_run(source, experiment), None
        else:
            folder, content = open_card(source, Path(scratch))
            run, claims = open_run(folder, experiment), content["claims"]
        checks = []
        for check in Verification(run, claims, updates, whole, seed, print_message).checks():
            checks.append(check)
            if not as_json:
                click.echo(check_line(check))
    verdict = verdict_of(checks)
    if as_json:
        print_json("verify", {"verdict": verdict, "checks": [asdict(check) for check in checks]})
    else:
        click.echo(f"{source}: {verdict}")
    return 0 if verdict == "holds" else DIFFERENT


COMMANDS = (card, verify)
