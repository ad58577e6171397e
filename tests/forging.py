"""Run folders as another run would have written them: rows with other values, and every hash that covers them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simfl.json_files import body_of
from simfl.runs.folder import read_json, write_json
from simfl.runs.parts import INDEX, Coverage, TableParts
from simfl.runs.tables import TableRow


def forge_rows(folder: Path, name: str, step: int, change: Callable[[list[TableRow]], None]) -> list[TableRow]:
    """Change the rows of one part of a table, and return them."""
    summary = read_json(folder / "summary.json")
    old = TableParts.open(folder / "tables", Coverage.from_json(summary["table_parts"]))
    rows = [(part, old.read(part).to_pylist()) for part in sorted(old.all(), key=lambda part: part.step)]
    ((_, changed),) = [one for one in rows if (one[0].table, one[0].step) == (name, step)]
    change(changed)
    (folder / "tables" / INDEX).unlink()
    new, covered = TableParts(folder / "tables"), {0: Coverage()}
    for part, found in rows:
        new.write(part.step, {part.table: found})
        covered[new.lines] = new.coverage
    write_json(folder / "summary.json", {**body_of(summary), "table_parts": new.coverage.to_json()})
    for path in (folder / "checkpoints").glob("*/digests.json"):
        digests = body_of(read_json(path))
        write_json(path, {**digests, "table_parts": covered[digests["table_parts"]["parts"]].to_json()})
    return changed
