"""The experiment that a script becomes, while its parts are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Remark:
    """A line of the script, and what became of it."""

    line: int
    text: str


@dataclass
class Draft:
    """An experiment in the making."""

    name: str
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    seed: int | None = None
    wandb: bool = False
    functions: list[str] = field(default_factory=list)  # sources of functions of the module of parts
    carried: list[Remark] = field(default_factory=list)
    left: list[Remark] = field(default_factory=list)

    def carry(self, line: int, text: str) -> None:
        """Note a setting that the experiment has."""
        self.carried.append(Remark(line, text))

    def leave(self, line: int, text: str) -> None:
        """Note what the experiment does not have, with the reason or the way to add it."""
        if Remark(line, text) not in self.left:
            self.left.append(Remark(line, text))

    def mapping(self) -> dict[str, Any]:
        """Return the experiment as plain values, with IID clients where the script has none."""
        optimizer = self.optimizer if len(self.optimizer) > 1 else self.optimizer.get("name", "adamw")
        local = {"epochs": 1, "batch_size": 16, "optimizer": optimizer, "learning_rate": 1e-3, **self.local}
        if "steps" in local:
            local.pop("epochs")
        phase = {
            "objective": _short(self.objective), "algorithm": "fedavg", "rounds": self.epochs or 3,
            "participation": 1.0, "local": local,
        }  # fmt: skip
        found: dict[str, Any] = {"name": self.name}
        found |= {"seed": self.seed} if self.seed is not None else {}
        found |= {"data": self.data, "partition": {"by": "iid", "clients": 10}, "model": self.model, "phases": [phase]}
        return found | ({"tracking": {"wandb": {"project": self.name}}} if self.wandb else {})


def _short(component: Mapping[str, Any]) -> Any:
    return component["name"] if list(component) == ["name"] else dict(component)
