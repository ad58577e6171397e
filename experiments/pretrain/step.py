"""One training step, captured once per shape as a CUDA graph: the tiny model is bound by kernel launches otherwise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Step:
    """Forward, backward, clipping and AdamW; the same arithmetic captured or not."""

    def __init__(self, trained: list[nn.Parameter], loss: Callable[[dict[str, Tensor]], Tensor], decay: float, clip: float) -> None:
        self.trained, self.loss, self.clip = trained, loss, clip
        self.cuda = trained[0].is_cuda
        self.rate = torch.zeros((), device=trained[0].device)
        self.optimizer = torch.optim.AdamW(
            trained, lr=self.rate if self.cuda else 0.0, weight_decay=decay, fused=self.cuda, capturable=self.cuda
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: dict[str, Tensor] = {}
        self.value = self.rate

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps to come."""
        if self.cuda:
            self.rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate

    def shape(self, inputs: dict[str, Tensor]) -> None:
        """Make ready for inputs of these shapes; on CUDA this takes three steps on them."""
        self.graph, self.inputs = None, {name: tensor.clone() for name, tensor in inputs.items()}
        self.optimizer.zero_grad(set_to_none=True)
        if not self.cuda:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._eager()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.value = self._eager()

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Take a step; the loss before it (overwritten by the next step)."""
        if self.graph is None:
            return self._eager(inputs)
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor)
        self.graph.replay()
        return self.value

    def _eager(self, inputs: dict[str, Tensor] | None = None) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.inputs if inputs is None else inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, self.clip, foreach=True)
        self.optimizer.step()
        return loss.detach()
