"""Settings of synchronous rounds under virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from simfl.constraints import Constraint, NonNegativeFloat, PositiveFloat
from simfl.errors import ConfigError
from simfl.virtual_time.selection import Selection, Uniform

AtLeastOne = Annotated[float, Constraint("a number of at least 1", lambda x: 1 <= x < 1e9)]


@dataclass(frozen=True)
class RoundTime:
    """Rules of a round that does not wait for everyone."""

    over_selection: AtLeastOne = 1.0  # K' / K: so many clients start, and the first K uploads are aggregated
    deadline: PositiveFloat | None = None  # seconds after which a round ends with the uploads that arrived; null: none
    partial_work: bool = False  # true: a client that would miss the deadline takes fewer local steps (FedProx)
    stragglers: NonNegativeFloat = 0.0  # fraction of clients that stop after a random part of their steps (FedProx)
    selection: Selection = field(default_factory=Uniform)  # which of the available clients start
    late: Literal["cancel", "upload"] = "cancel"  # clients still at work at the end stop, or finish and upload in vain

    def __post_init__(self) -> None:
        """Check settings that have no effect."""
        if self.stragglers > 1.0:
            raise ConfigError(f"stragglers: {self.stragglers:g} given; allowed: a fraction from 0 to 1")
        if self.partial_work and self.deadline is None and not self.stragglers:
            raise ConfigError("partial_work: true has no effect without a deadline or stragglers")

    @property
    def loses_updates(self) -> bool:
        """True if the rules can leave out or shorten the update of a client that is available and does not fail."""
        return self.over_selection > 1.0 or self.deadline is not None or self.stragglers > 0.0
