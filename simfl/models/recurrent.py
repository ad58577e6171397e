"""Recurrent layers written out step by step, with the parameters and names of torch's own.

torch's LSTM and GRU have no rule under `torch.func.vmap`, and cuDNN's are not the same to the bit from run to run.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class BiLstm(nn.LSTM):
    """A bidirectional LSTM over whole sequences of one length."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__(inputs, hidden, layers, batch_first=True, bidirectional=True)

    def flatten_parameters(self) -> None:
        """Nothing: this is for cuDNN, which is not used."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # a sequence alone, without states
        """[B, S, inputs] to [B, S, 2·hidden]."""
        for layer in range(self.num_layers):
            x = torch.cat([self._run(x, f"l{layer}"), self._run(x.flip(1), f"l{layer}_reverse").flip(1)], -1)
        return x

    def _run(self, x: Tensor, name: str) -> Tensor:
        kinds = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        weight_in, bias_in, weight, bias = (getattr(self, f"{kind}_{name}") for kind in kinds)
        given = functional.linear(x, weight_in, bias_in)
        h = c = torch.zeros_like(given[:, 0, : self.hidden_size], dtype=weight.dtype)  # float32 under autocast too
        states = []
        for step in given.unbind(1):
            take, keep, new, show = (step + functional.linear(h, weight, bias)).chunk(4, -1)
            c = torch.sigmoid(keep) * c + torch.sigmoid(take) * torch.tanh(new)
            h = torch.sigmoid(show) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, 1)


class GruStep(nn.GRU):
    """One step of a GRU."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden, batch_first=True)

    def flatten_parameters(self) -> None:
        """Nothing: this is for cuDNN, which is not used."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:  # type: ignore[override]  # one step, not a sequence
        """The state [B, hidden] after reading `x` [B, inputs] in state `h`."""
        given = functional.linear(x, self.weight_ih_l0, self.bias_ih_l0).chunk(3, -1)
        own = functional.linear(h, self.weight_hh_l0, self.bias_hh_l0).chunk(3, -1)
        reset, update = torch.sigmoid(given[0] + own[0]), torch.sigmoid(given[1] + own[1])
        return (1.0 - update) * torch.tanh(given[2] + reset * own[2]) + update * h
