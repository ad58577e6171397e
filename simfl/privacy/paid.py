"""The rounds that a run has paid for, in `privacy.jsonl`: a line for each, on the disk before the round is released.

A line names the phase, the round and the key of the noise. A round that is made again with its key is the same release
and is paid for once; a round that is made again with another key, or by the operating system's randomness, is another
release and is paid for again. A line that a crash cut off, or that is damaged, counts as a round that was paid for.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simfl import files

PAID = "privacy.jsonl"
PHASE = re.compile(r'"phase": (\d+)\b')


@dataclass(frozen=True)
class PaidRound:
    """A line of the file. `round` counts from 1; it is None in a damaged line."""

    phase: int
    round: int | None
    key: str = ""

    def is_later(self, other: PaidRound) -> bool:
        """Return whether this round follows another one in the run."""
        return (self.phase, self.round or 0) > (other.phase, other.round or 0)


def read(folder: Path) -> list[PaidRound]:
    """Return all rounds that were paid for, those of incomplete and damaged lines included."""
    path = folder / PAID
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    found: list[PaidRound] = []
    for line in text.splitlines():
        if line.strip("\0 "):
            found.append(_parse(line, found[-1].phase if found else 0))
    return found


def _parse(line: str, last_phase: int) -> PaidRound:
    """Return the round of a line; if that is damaged, a round of the phase that it names, else of the last phase."""
    try:
        values = json.loads(line)
        return PaidRound(int(values["phase"]), int(values["round"]), str(values["key"]))
    except (ValueError, KeyError, TypeError):
        named = PHASE.search(line)
        return PaidRound(int(named[1]) if named else last_phase, None)


def with_round(paid: list[PaidRound], now: PaidRound, charged: Mapping[int, int]) -> dict[int, int]:
    """Return the number of paid rounds by phase, once a round is paid for.

    Later rounds of the same key are left out: they will be the same releases again.

    Args:
        paid: The rounds paid for so far.
        now: The round to pay for.
        charged: The rounds that the state of the run was charged for, by phase; a lost file cannot lower them.
    """
    counted = [one for one in paid if not (one.key == now.key and one.round is not None and one.is_later(now))]
    if now.key:
        distinct = {one for one in counted if one.round is not None and one.key} | {now}
        counted = [*distinct, *(one for one in counted if one.round is None or not one.key)]
    else:
        counted = [*counted, now]
    found, least = Counter(one.phase for one in counted), Counter(charged) + Counter({now.phase: 1})
    return {phase: max(found[phase], least[phase]) for phase in sorted(found | least)}


def append(folder: Path, now: PaidRound, spent: Mapping[str, float]) -> None:
    """Write the line of a round, with what is spent, and wait until it is on the disk; RunError if the disk refuses."""
    path = folder / PAID
    line = json.dumps({"phase": now.phase, "round": now.round, "key": now.key, **spent})
    try:
        with open(path, "ab+") as file:
            start = b"" if _ends_in_newline(path) else b"\n"
            file.write(start + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        files.sync_folder(folder)
    except OSError as error:
        raise files.disk_error(path, error) from error


def _ends_in_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"
