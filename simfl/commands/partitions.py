"""The commands `simfl partition build` and `show`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simfl import files
from simfl.commands.data import settings
from simfl.commands.output import json_option, print_json, print_table
from simfl.errors import ConfigError

if TYPE_CHECKING:
    from simfl.config.partitions import BuiltPartition
    from simfl.data.partition.heterogeneity import Heterogeneity

MAX_ROWS = 40  # clients in a table
spec_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def partition() -> None:
    """Build and show partitions of data sets among clients."""


@partition.command()
@click.argument("spec", type=spec_file)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Path of the manifest.  [default: NAME.json in the folder of the spec]",
)
@settings
def build(spec: Path, out: Path | None, overrides: tuple[str, ...]) -> None:
    """Partition the data set of SPEC among clients and write the manifest."""
    from simfl import files
    from simfl.data.partition.manifest import manifest_sha256

    built = _built(spec, overrides)
    out = out or spec.with_name(f"{built.spec.name}.json")
    manifest = built.manifest
    files.write(out, lambda file: file.write(manifest))
    sizes, held_out = built.partition.sizes, len(built.partition.held_out_order)
    more = f", and {held_out:,} held-out ones" if held_out else ""
    click.echo(f"{out}: {len(sizes):,} clients hold {sizes.sum():,} of {len(built.split):,} examples{more}")
    click.echo(f"sha256  {manifest_sha256(manifest)}")


@partition.command()
@click.argument("spec", type=spec_file, required=False)
@click.option("--compare", nargs=2, type=spec_file, metavar="A B", help="Compare two specs.")
@click.option("--of", "column", metavar="COLUMN", help="Column whose values are counted.  [default: `of` of the spec]")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="Also draw a figure; needs simfl[plots].")
@json_option
@settings
def show(
    spec: Path | None,
    compare: tuple[Path, Path] | None,
    column: str | None,
    png: Path | None,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Show the clients of SPEC: sizes, groups, entropy, distances between clients, and overlap with other splits."""
    if (spec is None) == (not compare):
        raise ConfigError("partition show: give one SPEC, or --compare A B")
    from simfl.data.partition.heterogeneity import known_values, measure

    built = {path.stem: _built(path, overrides) for path in (compare or (spec,)) if path}
    numbers = {name: measure(b.split, b.partition, column or b.spec.of) for name, b in built.items()}
    known = {
        name: known_values(b.dataset, b.partition, _columns(b, numbers[name].column), b.spec.split)
        for name, b in built.items()
    }
    if png:
        from simfl.data.partition import plot

        plot.save(png, numbers, known)
    if as_json:
        shown = {name: _summary(n) | {"seen": known[name]} for name, n in numbers.items()}
        print_json("partition-show", {"partitions": shown})
        return
    for name, b in built.items() if spec else ():
        print_table(
            ("client", "groups", "examples", "documents", "values", "entropy", "from all"), _clients(b, numbers[name])
        )
    _summaries(numbers, known)


def _built(path: Path, overrides: Iterable[str]) -> BuiltPartition:
    from simfl.config import partitions

    return partitions.build(partitions.load(path, overrides), files.cache_folder())


def _columns(built: BuiltPartition, column: str) -> list[str]:
    """Return the counted column, and the provider if pages have one."""
    pages = built.split.documents
    others = ["provider"] if pages is not None and "provider" in pages.column_names and column != "provider" else []
    return [column, *others]


def _clients(built: BuiltPartition, numbers: Heterogeneity) -> list[Sequence[str]]:
    """Return one row for each of the first clients."""
    rows: list[Sequence[str]] = []
    for client in range(min(len(built.partition), MAX_ROWS)):
        names = [name for name, _ in built.partition.groups(client)]
        shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        counts = [f"{values[client]:,}" for values in (numbers.sizes, numbers.documents, numbers.distinct)]
        rows.append(
            (str(client), shown, *counts, f"{numbers.entropy[client]:.2f}", f"{numbers.divergence[client]:.3f}")
        )
    if len(built.partition) > MAX_ROWS:
        rows.append(("…", f"{len(built.partition) - MAX_ROWS:,} more", "", "", "", "", ""))
    return rows


def _summary(numbers: Heterogeneity) -> dict[str, float | str]:
    sizes = numbers.sizes
    return {
        "clients": len(sizes),
        "examples": int(sizes.sum()),
        "smallest": int(sizes.min(initial=int(sizes.max(initial=0)))),
        "median": float(sorted(sizes.tolist())[len(sizes) // 2]) if len(sizes) else 0.0,
        "largest": int(sizes.max(initial=0)),
        "groups": int(numbers.groups.sum()),
        "of": numbers.column,
        "entropy": round(float(numbers.entropy.mean()), 4),
        "from_all": round(float(numbers.divergence.mean()), 4),
        "pairwise": round(numbers.mean_pairwise, 4),
    }


def _summaries(numbers: Mapping[str, Heterogeneity], known: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    summaries = {name: _summary(n) for name, n in numbers.items()}
    rows = [(key, *(_shown(summary[key]) for summary in summaries.values())) for key in next(iter(summaries.values()))]
    pairs = dict.fromkeys((split, key) for splits in known.values() for split, seen in splits.items() for key in seen)
    for split, key in pairs:
        shares = [known[name].get(split, {}).get(key) for name in summaries]
        rows.append((f"{split}: {key} seen", *("" if share is None else f"{share:.1%}" for share in shares)))
    click.echo("")
    print_table(("", *summaries), rows)


def _shown(value: float | str) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
