"""A training step in bfloat16 with float32 master weights, captured once per shape as a CUDA graph.

The tiny model is limited by kernel launches and memory traffic, not by arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class TrainingStep:
    """Forward and backward pass on the tensors of the network; clipping and AdamW on their float32 masters."""

    def __init__(
        self, trained: list[nn.Parameter], loss: Callable[[dict[str, Tensor]], Tensor], decay: float, clip: float
    ) -> None:
        """Convert `trained` to bfloat16 on CUDA; `masters` are the float32 weights, in the same order."""
        self.trained, self.loss, self.clip = trained, loss, clip
        self.cuda = trained[0].is_cuda
        self.masters = [parameter.detach().clone().float() for parameter in trained]
        for parameter, master in zip(trained, self.masters, strict=True):
            parameter.data = parameter.data.to(torch.bfloat16 if self.cuda else torch.float32)
            master.grad = torch.zeros_like(master)
        self.rate = torch.zeros((), device=trained[0].device)
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=self.rate if self.cuda else 0.0, weight_decay=decay, fused=self.cuda, capturable=self.cuda
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: dict[str, Tensor] = {}
        self.value = self.rate

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        if self.cuda:
            self.rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate

    def prepare(self, inputs: dict[str, Tensor]) -> None:
        """Prepare for inputs of these shapes. On CUDA this takes three steps on them and captures a graph."""
        self.graph, self.inputs = None, {name: tensor.clone() for name, tensor in inputs.items()}
        if not self.cuda:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._take(self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._clear_gradients()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.value = self._take(self.inputs)

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Take a step and return the loss before it; the next step overwrites the tensor."""
        if self.graph is None:
            return self._take(inputs)
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor)
        self.graph.replay()
        return self.value

    def _clear_gradients(self) -> None:
        for parameter in self.trained:
            parameter.grad = None

    def _take(self, inputs: dict[str, Tensor]) -> Tensor:
        self._clear_gradients()
        loss = self.loss(inputs)
        loss.backward()
        for parameter, master in zip(self.trained, self.masters, strict=True):
            if parameter.grad is not None:
                assert master.grad is not None
                master.grad.copy_(parameter.grad)
        nn.utils.clip_grad_norm_(self.masters, self.clip, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.trained, self.masters, strict=True):
                parameter.copy_(master)
        return loss.detach()
