"""Who is told what happens inside visits. The engine's own is deaf; a replay listens closely."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from simfl.protocol import Parts, Weights

if TYPE_CHECKING:
    from simfl.training.context import TrainingUnit


class Observer:
    """Hears of every optimizer step and every upload, and changes nothing: tensors it keeps are to be copied."""

    listens: ClassVar[bool] = True  # false: it need not be told, and steps may be replayed without Python

    def stepped(
        self,
        items: list[TrainingUnit],
        step: int,
        micro: int,
        sums: Tensor,
        counts: Tensor,
        gradients: Weights,
        weights: Weights,
    ) -> None:
        """After an optimizer step of these items: task loss sums and counts [n]; gradients, stepped weights [n, …]."""

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """A client's upload as it left, and as the server got it."""


class NullObserver(Observer):
    """The engine's own."""

    listens = False
