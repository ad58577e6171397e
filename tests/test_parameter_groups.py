"""What a model reads is what its phase's objective gives."""

from __future__ import annotations

import pytest
from fakes import experiment
from torch import Tensor, nn

from simfl.errors import ConfigError
from simfl.parameter_groups import roles


class Reader(nn.Module):
    """It reads x, and more if there is more."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        return self.head(x) if more is None else self.head(x) + more


class Needy(Reader):
    """It cannot do without a mask."""

    def forward(self, x: Tensor, mask: Tensor, *rest: Tensor, **others: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(x) * mask


def test_a_model_that_needs_more_than_the_objective_gives_is_refused_before_it_is_run() -> None:
    case = experiment()
    phase = case.phases[0]
    assert roles(case.model, Reader(), phase, "phases.0").trained == ("head.weight", "head.bias")
    line = r"^phases.0.objective: Classification gives the model x; this one reads mask too$"
    with pytest.raises(ConfigError, match=line):
        roles(case.model, Needy(), phase, "phases.0")
