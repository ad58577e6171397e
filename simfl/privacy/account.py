"""The privacy account of a run: each round is charged, on the disk, before anything of it is released."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from simfl import files
from simfl.errors import PrivacyError
from simfl.privacy import paid
from simfl.privacy.budget import Budget
from simfl.privacy.deployment import prefix
from simfl.privacy.randomness import Randomness
from simfl.privacy.scheme import VIEWS
from simfl.privacy.statement import statement

STATEMENT = "privacy.md"

Columns = dict[str, float | None]  # of a row of `rounds.parquet`


@dataclass(frozen=True)
class Account:
    """The charges of a run by phase. Without a budget (`privacy: null`) nothing is charged and no file is written.

    Attributes:
        budget: The budget; None: nothing is charged.
        folder: The run folder; None: no file is written.
        randomness: The source of the noise. A round that is made again with its key is charged once; see
            `simfl.privacy.paid`.
        store: Called when a charge is on the disk and before the round is released, to copy it to another place.
    """

    budget: Budget | None
    folder: Path | None = None
    randomness: Randomness = field(default_factory=Randomness.fresh)
    store: Callable[[], None] = lambda: None

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier sigma; 0 without a budget."""
        return 0.0 if self.budget is None else self.budget.noise_multiplier

    def charge(self, charged: Mapping[int, int], phase: int, round: int) -> Mapping[int, int]:
        """Charge a round and return the charged rounds by phase. PrivacyError if the budget does not allow it."""
        if self.budget is None:
            return charged
        now = paid.PaidRound(phase, round + 1, self.randomness.key_id)
        before = [] if self.folder is None else paid.read(self.folder)
        if self.budget.privacy.factorization is not None:
            self._refuse_second_release(now, before)
        after = paid.with_round(before, now, charged)
        self.budget.check(after)
        if self.folder is not None and (not now.key or now not in before):
            paid.append(self.folder, now, {f"{prefix(self.budget.privacy)}epsilon": self.budget.epsilon(after)})
            self.store()
        return after

    def _refuse_second_release(self, now: paid.PaidRound, before: list[paid.PaidRound]) -> None:
        """Raise PrivacyError if a round with correlated noise was released with another key; no account covers both."""
        several_keys = len(self.randomness.stored) > 1
        for one in before:
            known = one.round is not None and (one.key == now.key or now.is_later(one))
            if one.phase == now.phase and not known and (one.round is not None or several_keys):
                raise PrivacyError(
                    f"privacy.factorization: round {one.round or '(a damaged line)'} of phase {one.phase} was paid for"
                    f" with a key of another platform and lost, and correlated noise cannot be drawn for it again;"
                    " resume where the run was interrupted"
                )

    def row(self, charged: Mapping[int, int], clip: float | None) -> Columns:
        """Return the privacy columns of a round: epsilon spent so far in every view, delta, noise multiplier, clip.

        With `privacy.deployment`, the names of the epsilons begin with `deployment_`: the run has none.
        """
        if self.budget is None:
            return {}
        spent = {view: self.budget.epsilon(charged, view) for view in VIEWS}
        name = f"{prefix(self.budget.privacy)}epsilon"
        columns: Columns = {name: spent[self.budget.view], "delta": self.budget.privacy.delta}
        columns |= {f"{name}_{view}": value for view, value in spent.items()}
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
        facts: dict[str, object] = {
            "limit": limit, "view": self.budget.view, "adjacency": self.budget.scheme.adjacency
        }  # fmt: skip
        if self.budget.privacy.deployment is not None:
            facts["deployment"] = asdict(self.budget.privacy.deployment)
        return {"privacy": self.row(charged, None) | facts | {**multipliers, "statement": text}}
