"""Stochastic depth (Huang et al. 2016), keyed like our dropout: an example loses a whole residual branch."""

from __future__ import annotations

from torch import Tensor, nn

from simfl.models.call_context import current
from simfl.models.dropout import keyed_keep


class KeyedDropPath(nn.Module):
    """Drops an example's branch `x` [g·B, …] with probability `p` while training, if the pass has a key."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.dropout_layer = 0  # numbered by `dropout.install`

    def forward(self, x: Tensor) -> Tensor:
        """`x` with some examples zeroed and the others scaled up."""
        step = current()
        if not self.training or self.p == 0.0 or step.key is None:
            return x
        keep, share = keyed_keep(step.keys, self.dropout_layer, x.shape[0] // step.groups, self.p)
        return x * (keep.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype) / share)

    def extra_repr(self) -> str:
        return f"p={self.p}"
