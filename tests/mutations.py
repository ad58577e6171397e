"""Single bytes of a run folder are altered, and everything that reads the folder is compared with the original."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fakes import Stopping, run, traces
from rich.console import Console

from simfl.debug.diff import compare, diff_lines
from simfl.debug.replay import replay, replay_lines
from simfl.errors import SimflError
from simfl.experiment import Experiment
from simfl.reports import report
from simfl.reports.formats import markdown
from simfl.reports.results import results_of
from simfl.reports.table import compare as compare_rows
from simfl.runs.results import Run
from simfl.runs.tables import TABLES
from simfl.tracking.watch import current_view, render
from simfl.weights import sha256

SIGNS = {  # of what a text reports -> the file
    "is incomplete": "log.jsonl",
    "log.jsonl: this file is missing": "log.jsonl",
    "there is no summary.json": "summary.json",
    "interrupted": "summary.json",  # a run without a summary has not ended
    "one run, not finished yet": "summary.json",
    "|  |  |  |": "summary.json",  # a row of a table without results
}

Reader = Callable[[Path], object]
UNREAD = (".lock", "error.txt", "noise.key", "privacy.md")  # nothing reads a number from these


def load_ended(folder: Path) -> object:
    """Return everything that `simfl.load` gives of a run that has ended."""
    return load(folder), Run(folder).summary


def load(folder: Path) -> object:
    """Return everything that `simfl.load` gives, except the summary."""
    found = Run(folder)
    tables = {name: found.table(name).to_pylist() for name in TABLES}
    facts: list[Any] = [tables, found.stored_partition.order.tolist(), found.experiment, found.manifest]
    facts.append(sha256({name: t.detach() for name, t in found.model().state_dict().items()}))
    return repr(facts)


def resume(case: Experiment) -> Reader:
    """Return a reader that resumes the run in a copy and returns its results, and what it reported."""

    def resumed(folder: Path) -> object:
        display = Stopping()
        run(case, folder, resume=True, display=display)
        if display.messages:
            raise Noticed("; ".join(display.messages))
        assert not list(folder.rglob(".tmp-*"))
        return traces(folder)

    return resumed


def replayed(folder: Path) -> object:
    """Repeat the first client update of the last recorded round."""
    found = Run(folder)
    update = found.clients().to_pylist()[-1]
    messages: list[str] = []
    done = replay(found, update["round"], update["client"], on_message=messages.append)
    noticed = [text for text in messages if "older checkpoint" in text]
    if noticed:
        raise Noticed(noticed[0])
    return replay_lines(done)


def compared(original: Path) -> Reader:
    """Return a reader that compares a folder with the original."""
    return lambda folder: diff_lines(compare(Run(folder), Run(original), again=False))


def watched(folder: Path) -> object:
    """Return what `simfl watch` shows of a run."""
    console, view = Console(file=io.StringIO(), width=500), current_view(folder)
    console.print(render(view, folder, view.last))
    return _unless_noticed(console.file.getvalue().replace(str(folder), ""), folder)  # type: ignore[attr-defined]


def _unless_noticed(text: str, folder: Path) -> str:
    """Return a text, or raise Noticed if it says what is wrong with a file."""
    for sign, name in SIGNS.items():
        if sign in text:
            raise Noticed(f"{folder / name}: {sign}")
    return text


def reported(folder: Path) -> object:
    """Return the report on a run, without the name of its folder."""
    text = _unless_noticed(report.report(results_of([folder]), "title"), folder)
    return hashlib.sha256(text.replace(str(folder), "").encode()).hexdigest()


def tabled(folder: Path) -> object:
    """Return the row of a run in a table."""
    return _unless_noticed(markdown(compare_rows(results_of([folder]))), folder)


class Noticed(SimflError):
    """A damaged file was reported in a message, and the results are right."""


@dataclass
class Verdicts:
    """What came of the altered bytes: by reader, the number of those noticed and of those without effect."""

    noticed: dict[str, int] = field(default_factory=dict)
    harmless: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def mutated_paths(folder: Path) -> list[Path]:
    """Return the files of a run folder that hold what a reader shows."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNREAD)
    return [path for path in found if path.parent != folder or path.suffix != ".parquet"]


def mutations(folder: Path, draws: Random, per_file: int) -> Iterator[tuple[Path, int, int]]:
    """Yield some bytes of every file, with the bits to flip: the first, the last, and others at random."""
    for path in mutated_paths(folder):
        size = path.stat().st_size
        places = {0, size - 1, *(draws.randrange(size) for _ in range(per_file - 2))} if size else set()
        for at in sorted(places):
            yield path.relative_to(folder), at, 1 << draws.randrange(8)


def altered(name: Path, at: int, bits: int) -> Callable[[Path], object]:
    """Return a function that flips bits of one byte of a file in a folder."""

    def alter(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[at] ^= bits
        (folder / name).write_bytes(content)

    return alter


def without(name: Path) -> Callable[[Path], object]:
    """Return a function that deletes a file in a folder."""
    return lambda folder: (folder / name).unlink()


def cut(name: Path) -> Callable[[Path], object]:
    """Return a function that deletes the second half of a file in a folder."""
    return lambda folder: (folder / name).write_bytes(
        (folder / name).read_bytes()[: (folder / name).stat().st_size // 2]
    )


Change = tuple[str, Path, Callable[[Path], object]]  # description, file, function that alters the file in a folder


def byte_changes(original: Path, draws: Random, per_file: int) -> list[Change]:
    """Return changes of single bytes of every file."""
    return [
        (f"{name}, byte {at} ^ {bits}", name, altered(name, at, bits))
        for name, at, bits in mutations(original, draws, per_file)
    ]


def file_changes(original: Path) -> list[Change]:
    """Return for every file that it is missing, and that it is cut."""
    names = [path.relative_to(original) for path in mutated_paths(original)]
    return [(f"{name} missing", name, without(name)) for name in names] + [
        (f"{name} cut", name, cut(name)) for name in names
    ]


def try_changes(original: Path, scratch: Path, readers: dict[str, Reader], changes: list[Change]) -> Verdicts:
    """Alter a copy of a run folder, and call one of the readers, in turn, for each change."""
    verdicts, expected = Verdicts(), dict[str, object]()
    for number, (text, name, alter) in enumerate(changes):
        kind = list(readers)[number % len(readers)]
        if kind not in expected:
            expected[kind] = _in_copy(original, scratch, readers[kind], name, bool)
        try:
            found = _in_copy(original, scratch, readers[kind], name, alter)
        except SimflError as error:
            named = name.parts[1] if name.parts[0] == "checkpoints" else name.name
            if "\n" in str(error) or named not in str(error):
                verdicts.wrong.append(f"{kind}: {text}: {error}")
            verdicts.noticed[kind] = verdicts.noticed.get(kind, 0) + 1
        except Exception as error:
            verdicts.wrong.append(f"{kind}: {text}: {type(error).__name__}: {error}")
        else:
            verdicts.harmless[kind] = verdicts.harmless.get(kind, 0) + 1
            if found != expected[kind]:
                verdicts.wrong.append(f"{kind}: {text}: other results, without an error")
    return verdicts


def _in_copy(original: Path, scratch: Path, reader: Reader, name: Path, alter: Callable[[Path], object]) -> object:
    """Call a reader for a copy of a folder that is altered; the copy is made again only for readers that write."""
    folder = scratch / "run"
    if not folder.exists():
        shutil.copytree(original, folder)
    alter(folder)
    try:
        return reader(folder)
    finally:
        if reader.__name__ == "resumed":
            shutil.rmtree(folder)
        else:
            shutil.copyfile(original / name, folder / name)
