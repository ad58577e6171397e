"""Bottleneck adapters with a shared and a client path (Houlsby et al. 2019; FedDAT, Chen et al. 2024, sec. 3).

    A(h) = W_up relu(W_down h)          shared: h + A_s(h)     client: h + A_c(h)     dual: h + ½ A_s(h) + ½ A_c(h)

The path is the `branch` of the current model call: a name, "dual" for the mean of all paths, or "" for the first. A
single name gives the plain adapter. In FedDAT's dual pass, training substitutes the received, frozen A_s for the
trained one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.models.adapters import Adapter
from simfl.models.call_context import current_call


class BottleneckAdapter(nn.Module):
    """A(h) without the residual. Weights are drawn from N(0, 0.02²), biases start at 0."""

    def __init__(self, width: int, reduction: PositiveInt) -> None:
        super().__init__()
        self.down = nn.Linear(width, max(width // reduction, 1))
        self.up = nn.Linear(max(width // reduction, 1), width)
        for layer in (self.down, self.up):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, h: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        return self.up(nn.functional.relu(self.down(h)))


@dataclass(frozen=True)
class Bottleneck(Adapter):
    """A small bottleneck after each feed-forward's residual; by default one is shared and one is the client's own."""

    reduction: PositiveInt = 16  # width of the layer over width of the bottleneck
    names: tuple[str, ...] = ("shared", "client")  # the paths; the first is used where a pass names none

    def attach(self, module: nn.Module) -> None:
        """Add the adapters at `module.adapter_places()`, named `adapter_<path>`; raise ConfigError if it has none."""
        places: list[tuple[Any, int]] = getattr(module, "adapter_places", list)()
        if not places:
            raise ConfigError(f"adapters.kind: {type(module).__name__} has no place for a bottleneck; allowed: lora")
        if not self.names or len(set(self.names)) < len(self.names) or not all(map(str.isidentifier, self.names)):
            raise ConfigError(f"adapters.names: {list(self.names)} given; allowed: different words, at least one")
        for place, width in places:
            for name in self.names:
                setattr(place, f"adapter_{name}", BottleneckAdapter(width, self.reduction))
            place.adapter_names = self.names
            place.register_forward_hook(_add_adapters)

    def own_params(self) -> tuple[str, ...]:
        """Return globs of all paths."""
        return ("*.adapter_*",)


def _add_adapters(place: Any, inputs: tuple[Tensor, ...], h: Tensor) -> Tensor:
    """Add the mean of the selected paths to the output `h` of a layer; a forward hook."""
    branch = current_call().branch
    names = place.adapter_names if branch == "dual" else (branch or place.adapter_names[0],)
    paths = [place.get_submodule(f"adapter_{name}") for name in names]
    return h + sum(path(h) for path in paths) / len(paths)
