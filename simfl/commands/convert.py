"""The command `simfl convert`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from simfl.commands.output import json_option, print_json


@click.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Experiment file.  [default: SCRIPT with .yaml]")
@json_option
def convert(script: Path, out: Path | None, as_json: bool) -> None:
    """Turn a training SCRIPT of transformers' Trainer or plain torch into an experiment, without executing it."""
    from simfl.convert.convert import convert, write

    found = convert(script, out)
    write(found)
    names = [str(path) for path in found.files]
    if as_json:
        remarks = {"carried": [asdict(one) for one in found.carried], "left": [asdict(one) for one in found.left]}
        print_json("convert", {"files": names, **remarks})
        return
    for one in found.carried:
        click.echo(f"  line {one.line:<4} {one.text}")
    if found.left:
        click.echo("not carried:")
    for one in found.left:
        click.echo(f"  line {one.line:<4} {one.text}")
    click.echo(f"{' and '.join(names)} written; look at it, then: simfl plan {names[0]}")
