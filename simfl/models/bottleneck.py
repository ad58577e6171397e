"""Bottleneck adapters with a shared and a client path (Houlsby et al. 2019; FedDAT, Chen et al. 2024, sec. 3).

    A(h) = W_up relu(W_down h)          shared: h + A_s(h)     client: h + A_c(h)     dual: h + ½ A_s(h) + ½ A_c(h)

The path is the `branch` of the pass under mode: a name, "dual" for the mean of all, or "" for the first. One name makes
the plain adapter. In FedDAT's dual pass the engine puts the received, frozen A_s in the place of the trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.models.adapters_base import Adapter
from simfl.models.call_context import current


class BottleneckAdapter(nn.Module):
    """A(h), without the residual; [..., D] to [..., D]. Weights start at N(0, .02), biases at 0."""

    def __init__(self, width: int, reduction: Count) -> None:
        super().__init__()
        self.down = nn.Linear(width, max(width // reduction, 1))
        self.up = nn.Linear(max(width // reduction, 1), width)
        for layer in (self.down, self.up):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, h: Tensor) -> Tensor:
        """A(h)."""
        return self.up(nn.functional.relu(self.down(h)))


@dataclass(frozen=True)
class Bottleneck(Adapter):
    """Small bottlenecks after each feed-forward's residual, by default one shared and one the client's own."""

    reduction: Count = 16  # width of the layer over width of the bottleneck
    names: tuple[str, ...] = ("shared", "client")  # the paths; the first is taken where a pass names none

    def attach(self, module: nn.Module) -> None:
        """Hang the adapters at `module.adapter_places()`, named `adapter_<path>` there."""
        places: list[tuple[Any, int]] = getattr(module, "adapter_places", list)()
        if not places:
            raise ConfigError(f"adapters.kind: {type(module).__name__} has no place for a bottleneck; allowed: lora")
        if not self.names or len(set(self.names)) < len(self.names) or not all(map(str.isidentifier, self.names)):
            raise ConfigError(f"adapters.names: {list(self.names)} given; allowed: different words, at least one")
        for place, width in places:
            for name in self.names:
                setattr(place, f"adapter_{name}", BottleneckAdapter(width, self.reduction))
            place.adapter_names = self.names
            place.register_forward_hook(_adapt)

    def trains(self) -> tuple[str, ...]:
        """All paths."""
        return ("*.adapter_*",)


def _adapt(place: Any, inputs: tuple[Tensor, ...], h: Tensor) -> Tensor:
    branch = current().branch
    names = place.adapter_names if branch == "dual" else (branch or place.adapter_names[0],)
    paths = [place.get_submodule(f"adapter_{name}") for name in names]
    return h + sum(path(h) for path in paths) / len(paths)
