"""A run's budget at work: a round is paid for, on the disk, before anything of it is released."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl import files
from simfl.privacy.budget import Budget
from simfl.privacy.scheme import VIEWS
from simfl.privacy.statement import statement

CHARGES, STATEMENT = "privacy.jsonl", "privacy.md"


@dataclass(frozen=True)
class Account:
    """What a run has paid, by phase. Without a budget (`privacy: null`) nothing is charged, noted or stated.

    A round that is made again after a crash is the same release to the bit, and is paid once. With `secure: true` it is
    another one: then every line of the file counts.
    """

    budget: Budget | None
    folder: Path | None = None  # of the run; None: nothing is written

    @property
    def noise_multiplier(self) -> float:
        """Sigma; 0 without a budget."""
        return 0.0 if self.budget is None else self.budget.noise_multiplier

    def charge(self, charged: Mapping[int, int], phase: int, round: int) -> Mapping[int, int]:
        """Rounds by phase with this one; PrivacyError if the budget does not allow it."""
        if self.budget is None:
            return charged
        before = self._on_disk() if self.budget.privacy.secure else charged
        after = {**before, phase: before.get(phase, 0) + 1}
        self.budget.afford(after)
        self._write({"phase": phase, "round": round + 1, "epsilon": self.budget.epsilon(after)})
        return after

    def _on_disk(self) -> Mapping[int, int]:
        assert self.folder is not None
        path = self.folder / CHARGES
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(json.loads(line)["phase"] for line in lines if line.endswith("}"))

    def _write(self, line: Mapping[str, Any]) -> None:
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

    def row(self, charged: Mapping[int, int], clip: float | None) -> dict[str, Any]:
        """Columns of a round: epsilon in every view, delta, noise multiplier, clip; all spent so far."""
        if self.budget is None:
            return {}
        spent = {view: self.budget.epsilon(charged, view) for view in VIEWS}
        facts: dict[str, Any] = {"epsilon": spent[self.budget.view], "delta": self.budget.privacy.delta}
        facts |= {f"epsilon_{view}": value for view, value in spent.items()}
        return facts | {
            "noise_multiplier": self.noise_multiplier,
            "clip": self.budget.privacy.clip if clip is None else clip,
        }

    def announce(self) -> None:
        """Write the statement of what the whole run will spend."""
        if self.budget is not None:
            self._publish(statement(self.budget, self.budget.everything, ahead=True))

    def _publish(self, text: str) -> None:
        if self.folder is not None:
            files.write(self.folder / STATEMENT, lambda file: file.write(text.encode()))

    def state(self, charged: Mapping[int, int]) -> dict[str, Any]:
        """For the summary: what was spent, and the statement, which is also written beside it."""
        if self.budget is None:
            return {}
        text = statement(self.budget, charged)
        self._publish(text)
        multipliers = self.budget.scheme.multipliers(self.noise_multiplier)
        limit = self.budget.privacy.epsilon
        return {"privacy": self.row(charged, None) | {"limit": limit, **multipliers, "statement": text}}
