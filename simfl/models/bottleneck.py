"""Bottleneck adapters with a shared and a client path (Houlsby et al. 2019; FedDAT, Chen et al. 2024, sec. 3).

    A(h) = W_up relu(W_down h)          shared: h + A_s(h)     client: h + A_c(h)     dual: h + ½ A_s(h) + ½ A_c(h)

The path is the `branch` of the pass under way; "" is "shared". In FedDAT's dual pass the engine puts the received,
frozen weights of A_s in the place of the trained ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from simfl.errors import ConfigError
from simfl.models.adapters_base import Adapter
from simfl.passing import current
from simfl.ranges import Count


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
    """Two small bottlenecks after each feed-forward's residual, one shared and one the client's own."""

    reduction: Count = 16  # width of the layer over width of the bottleneck

    def attach(self, module: nn.Module) -> None:
        """Hang the adapters at `module.adapter_places()`, named `adapter_shared` and `adapter_client` there."""
        places: list[tuple[Any, int]] = getattr(module, "adapter_places", list)()
        if not places:
            raise ConfigError(f"adapters.kind: {type(module).__name__} has no place for a bottleneck; allowed: lora")
        for place, width in places:
            place.adapter_shared = BottleneckAdapter(width, self.reduction)
            place.adapter_client = BottleneckAdapter(width, self.reduction)
            place.register_forward_hook(_adapt)

    def trains(self) -> tuple[str, ...]:
        """Both paths."""
        return ("*.adapter_*",)


def _adapt(place: Any, inputs: tuple[Tensor, ...], h: Tensor) -> Tensor:
    return PATHS[current().branch](place, h)


PATHS = {
    "": lambda place, h: h + place.adapter_shared(h),
    "shared": lambda place, h: h + place.adapter_shared(h),
    "client": lambda place, h: h + place.adapter_client(h),
    "dual": lambda place, h: h + 0.5 * place.adapter_shared(h) + 0.5 * place.adapter_client(h),
}
