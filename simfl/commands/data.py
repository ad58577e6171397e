"""The commands `simfl data list`, `check` and `build`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simfl import files
from simfl.commands import options

if TYPE_CHECKING:
    from simfl.data.base import Data, Dataset

SUSPICIOUS = 1  # exit code: something in the data looks wrong
settings = options.overrides("Override a setting, e.g. image_size=64.")


@click.group()
def data() -> None:
    """List, check and build data sets."""


@data.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the data sets with their required settings and published sizes."""
    from simfl.config import catalogue
    from simfl.data import DATA

    rows: list[dict[str, object]] = []
    table: list[tuple[str, str, str]] = []
    for entry in catalogue.entries("data"):
        required = [setting.name for setting in entry.settings if setting.required]
        sizes = getattr(DATA[entry.name], "QUESTIONS", {})
        rows.append({"name": entry.name, "description": entry.summary, "required": required, "published": sizes})
        table.append((entry.name, ", ".join(required) or "nothing", entry.summary))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        print_table(("name", "required", "description"), table)


@data.command()
@click.argument("target")
@click.option("--as", "format_", metavar="FORMAT", help="Name of a data set, see simfl data list, if TARGET is a path.")
@settings
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(target: str, format_: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Read the data set TARGET, count its contents and report what looks wrong. Nothing is stored.

    TARGET is a path (with --as), package.module:name in Python, or the file of an experiment.
    """
    import tempfile

    from simfl.data.check import check_dataset

    component = _target(target, format_, overrides)
    with tempfile.TemporaryDirectory() as folder:
        found = check_dataset(component.preview(Path(folder)))
    if as_json:
        click.echo(json.dumps({"counts": found.counts, "findings": [asdict(f) for f in found.findings]}, indent=1))
        return 0 if found.passed else SUSPICIOUS
    names = list(dict.fromkeys(name for counts in found.counts.values() for name in counts))
    print_table(
        ("split", *names), [(s, *(f"{c[n]:,}" if n in c else "" for n in names)) for s, c in found.counts.items()]
    )
    if found.findings:
        click.echo("")
        rows = [("!" if f.is_error else "", f.split, f"{f.count:,}", f.message, f.example) for f in found.findings]
        print_table(("", "split", "count", "finding", "example"), rows)
    click.echo(f"\n{'no problem found' if found.passed else 'lines marked ! look wrong'}")
    return 0 if found.passed else SUSPICIOUS


@data.command("build")
@click.argument("name")
@settings
@click.option("--brief", is_flag=True, help="Print one line instead of the card.")
def build_data(name: str, overrides: tuple[str, ...], brief: bool) -> None:
    """Build or read the data set NAME, store it in the cache, and print its card."""
    import time

    start = time.monotonic()
    dataset = _component(name, {}, overrides).load(files.cache_folder())
    if brief:
        total = sum(map(len, dataset.splits.values()))
        seconds = time.monotonic() - start
        click.echo(
            f"{name}: {total:,} examples, {dataset.sha256[:16]}, {seconds:.0f} s, {dataset.folder or 'in memory'}"
        )
        return
    rows = [(split, f"{len(part):,}", _documents(dataset, split)) for split, part in dataset.splits.items()]
    print_table(("split", "examples", "documents"), rows)
    click.echo(f"\nfolder  {dataset.folder or 'in memory'}\nsha256  {dataset.sha256}")
    click.echo(json.dumps(dict(dataset.card), indent=1, ensure_ascii=False))


def _documents(dataset: Dataset, split: str) -> str:
    pages = dataset.splits[split].documents
    return "" if pages is None else f"{pages.num_rows:,}"


def _target(target: str, format_: str | None, overrides: tuple[str, ...]) -> Data:
    """Return the component that reads TARGET."""
    if format_ is not None:
        if not Path(target).exists():
            raise click.BadParameter(f"Path {target!r} does not exist.", param_hint="'TARGET'")
        return _component(format_, {"path": target} | _quick(format_), overrides)
    if Path(target).suffix in (".yaml", ".yml"):
        from simfl import config

        return config.load(Path(target), overrides).data
    if ":" not in target:
        raise click.UsageError(f"{target!r} is neither package.module:name nor a .yaml file; a path needs --as FORMAT")
    from simfl import imports
    from simfl.data.base import Data

    found = imports.import_object(target, "TARGET")
    if isinstance(found, type) and issubclass(found, Data):
        return _component(target, {}, overrides)
    return _component("own", {"of": target}, overrides)


def _component(name: str, given: Mapping[str, object], overrides: Iterable[str]) -> Data:
    from simfl import config
    from simfl.config import fields
    from simfl.data.base import Data

    mapping: dict[str, Any] = {"name": name, **given}
    for text in overrides:
        mapping = config.override(mapping, *config.assignment(text))
    component: Data = fields.read(Data, mapping, "data")
    return component


def _quick(name: str) -> dict[str, object]:
    """Return settings for reading a data set fast and completely: image paths only, missing images counted."""
    from typing import get_type_hints

    from simfl.constraints import NonNegativeInt
    from simfl.data import DATA

    hints = get_type_hints(DATA[name], include_extras=True) if name in DATA else {}
    quick: dict[str, object] = {"missing": "drop"} if "missing" in hints else {}
    if "image_size" in hints:
        quick["image_size"] = 0 if hints["image_size"] in (int, NonNegativeInt) else 16
    return quick


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with aligned columns."""
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
