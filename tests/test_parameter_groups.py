"""The inputs that a model requires are those that its phase's objective provides."""

from __future__ import annotations

import pytest
from fakes import experiment
from torch import Tensor, nn

from simfl.errors import ConfigError
from simfl.parameter_groups import group_parameters


class Reader(nn.Module):
    """A model with one required and one optional input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        return self.head(x) if more is None else self.head(x) + more


class Needy(Reader):
    """A model with a second required input."""

    def forward(self, x: Tensor, mask: Tensor, *rest: Tensor, **others: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(x) * mask


def test_a_model_with_an_input_that_the_objective_lacks_is_refused() -> None:
    case = experiment()
    phase = case.phases[0]
    assert group_parameters(case.model, Reader(), phase, "phases.0").trained == ("head.weight", "head.bias")
    line = r"^phases.0.objective: Classification provides the inputs x; the model also requires mask$"
    with pytest.raises(ConfigError, match=line):
        group_parameters(case.model, Needy(), phase, "phases.0")
