"""The privacy account of a run: each round is charged, on the disk, before anything of it is released."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simfl import files
from simfl.privacy.budget import Budget
from simfl.privacy.scheme import VIEWS
from simfl.privacy.statement import statement

CHARGES, STATEMENT = "privacy.jsonl", "privacy.md"

Columns = dict[str, float | None]  # of a row of `rounds.parquet`


@dataclass(frozen=True)
class Account:
    """The charges of a run by phase. Without a budget (`privacy: null`) nothing is charged and no file is written.

    A round that is repeated after a crash is a bit-identical release and is charged once. With `secure: true` it is a
    different release, so every line of the file counts.
    """

    budget: Budget | None
    folder: Path | None = None  # the run folder; None: no file is written

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier sigma; 0 without a budget."""
        return 0.0 if self.budget is None else self.budget.noise_multiplier

    def charge(self, charged: Mapping[int, int], phase: int, round: int) -> Mapping[int, int]:
        """Charge a round and return the charged rounds by phase. PrivacyError if the budget does not allow it."""
        if self.budget is None:
            return charged
        before = self._charges_on_disk() if self.budget.privacy.secure else charged
        after = {**before, phase: before.get(phase, 0) + 1}
        self.budget.check(after)
        self._write({"phase": phase, "round": round + 1, "epsilon": self.budget.epsilon(after)})
        return after

    def _charges_on_disk(self) -> Mapping[int, int]:
        assert self.folder is not None
        path = self.folder / CHARGES
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(json.loads(line)["phase"] for line in lines if line.endswith("}"))

    def _write(self, line: Mapping[str, object]) -> None:
        if self.folder is None:
            return
        path = self.folder / CHARGES
        try:
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise files.disk_error(path, error) from error

    def row(self, charged: Mapping[int, int], clip: float | None) -> Columns:
        """Return the privacy columns of a round: epsilon spent so far in every view, delta, noise multiplier, clip."""
        if self.budget is None:
            return {}
        spent = {view: self.budget.epsilon(charged, view) for view in VIEWS}
        columns: Columns = {"epsilon": spent[self.budget.view], "delta": self.budget.privacy.delta}
        columns |= {f"epsilon_{view}": value for view, value in spent.items()}
        return columns | {
            "noise_multiplier": self.noise_multiplier,
            "clip": self.budget.privacy.clip if clip is None else clip,
        }

    def announce(self) -> None:
        """Write the statement for all rounds, before the first one."""
        if self.budget is not None:
            self._write_statement(statement(self.budget, self.budget.everything, ahead=True))

    def _write_statement(self, text: str) -> None:
        if self.folder is not None:
            files.write(self.folder / STATEMENT, lambda file: file.write(text.encode()))

    def summary(self, charged: Mapping[int, int]) -> dict[str, object]:
        """Write the statement for the charged rounds, and return the privacy section of the summary."""
        if self.budget is None:
            return {}
        text = statement(self.budget, charged)
        self._write_statement(text)
        multipliers = self.budget.scheme.multipliers(self.noise_multiplier)
        limit = self.budget.privacy.epsilon
        return {"privacy": self.row(charged, None) | {"limit": limit, **multipliers, "statement": text}}
