"""The commands `simfl data list`, `check` and `build`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simfl import files
from simfl.commands import options
from simfl.commands.output import json_option, print_json, print_table
from simfl.errors import ConfigError
from simfl.yaml_text import in_one_line

if TYPE_CHECKING:
    from simfl.data.base import Data, Dataset
    from simfl.data.check import ColumnUse

SUSPICIOUS = 1  # exit code: something in the data looks wrong
SHOWN_CLASSES = 8
settings = options.overrides("Override a setting, e.g. image_size=64.")


@click.group()
def data() -> None:
    """List, check and build data sets."""


@data.command("list")
@json_option
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
        print_json("data-list", {"data": rows})
    else:
        print_table(("name", "required", "description"), table)


@data.command()
@click.argument("target")
@click.option(
    "--as", "format_", metavar="FORMAT", help="Reader of a path, see simfl data list.  [default: by its files]"
)
@settings
@json_option
def check(target: str, format_: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Read the data set TARGET, count its contents and report what looks wrong. Nothing is stored.

    TARGET is a file or a folder of data, package.module:name in Python, or the file of an experiment.
    """
    import tempfile

    from simfl.data.check import check_dataset

    component = _target(target, format_, overrides)
    with tempfile.TemporaryDirectory() as folder:
        found = check_dataset(component.preview(Path(folder)))
    if as_json:
        columns = asdict(found.columns)
        content = {"counts": found.counts, "columns": columns, "findings": [asdict(f) for f in found.findings]}
        print_json("data-check", content | {"passed": found.passed})
        return 0 if found.passed else SUSPICIOUS
    names = list(dict.fromkeys(name for counts in found.counts.values() for name in counts))
    print_table(
        ("split", *names), [(s, *(f"{c[n]:,}" if n in c else "" for n in names)) for s, c in found.counts.items()]
    )
    click.echo("")
    print_columns(found.columns, component)
    if found.findings:
        click.echo("")
        rows = [("!" if f.is_error else "", f.split, f"{f.count:,}", f.message, f.example) for f in found.findings]
        print_table(("", "split", "count", "finding", "example"), rows)
    click.echo(f"\n{'no problem found' if found.passed else 'lines marked ! look wrong'}")
    return 0 if found.passed else SUSPICIOUS


def print_columns(use: ColumnUse, component: Data) -> None:
    """Print how the columns of a data set are used, and how an experiment file names it."""
    read = [name if name == theirs else f"{name} ({theirs})" for name, theirs in use.read.items()]
    lines = [("read", ", ".join(read))]
    if use.classes:
        shown = ", ".join(use.classes[:SHOWN_CLASSES]) + (", …" if len(use.classes) > SHOWN_CLASSES else "")
        lines.append(("classes", f"{len(use.classes)}: {shown}"))
    if use.kept:
        by = f"partition: {{by: natural, column: {use.kept[0]}}}"
        lines.append(("kept", f"{', '.join(use.kept)}; one client for each value: {by}"))
    lines += [
        ("hint", f"{role} could be {name!r}: --set columns.{role}={name}") for role, name in use.suggested.items()
    ]
    if written := _yaml(component):
        lines.append(("data", written))
    for name, text in lines:
        click.echo(f"{name:<9}{text}")


def _yaml(component: Data) -> str:
    """Return the key `data` of an experiment file in one line; empty for data from Python."""
    from simfl.config import fields

    try:
        given = fields.written(component)
    except ConfigError:
        return ""
    defaults = {f.name: fields.default(f) for f in dataclasses.fields(component)}
    defaults |= _quick(str(given.get("name")))  # settings of this command alone
    plain = {name: value for name, value in given.items() if name not in defaults or value != _plain(defaults[name])}
    return in_one_line(plain | ({"path": given["path"]} if "path" in given else {}))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@data.command("build")
@click.argument("name")
@settings
@click.option("--brief", is_flag=True, help="Print one line instead of the card.")
@json_option
def build_data(name: str, overrides: tuple[str, ...], brief: bool, as_json: bool) -> None:
    """Build or read the data set NAME, store it in the cache, and print its card."""
    import time

    start = time.monotonic()
    dataset = _component(name, {}, overrides).load(files.cache_folder())
    if as_json:
        examples = {split: len(part) for split, part in dataset.splits.items()}
        content = {"examples": examples, "folder": str(dataset.folder or ""), "sha256": dataset.sha256}
        print_json("data-build", content | {"card": dict(dataset.card)})
        return
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
    from simfl.data.readers.detect import detect_reader

    path = Path(os.path.expandvars(target)).expanduser()
    if format_ is not None or (path.exists() and path.suffix not in (".yaml", ".yml")):
        if not path.exists():
            raise click.BadParameter(f"Path {target!r} does not exist.", param_hint="'TARGET'")
        found = {"name": format_} if format_ is not None else detect_reader(path)
        name = str(found.pop("name"))
        return _component(name, {"path": target} | _quick(name) | found, overrides)
    if Path(target).suffix in (".yaml", ".yml"):
        from simfl import config

        return config.load(Path(target), overrides).data
    if ":" not in target:
        raise click.UsageError(
            f"{target!r} is no file or folder, no package.module:name, and no .yaml file of an experiment"
        )
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
