"""RoLoRA: Chen et al. 2025, "Robust federated finetuning of LLMs via alternating optimization of LoRA".

rounds 1, 3, …   clients train B with A fixed;   send B_k − B;   server B ← B̄
rounds 2, 4, …   clients train A with B fixed;   send A_k − A;   server A ← Ā

One factor is the same for all clients in each round, so that B̄ Ā = Σ p_k B_k A_k is exact. B comes first, since it
starts at zero, where A has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simfl.algorithms.low_rank import DOWN, UP, LowRank
from simfl.low_rank import rank_axis
from simfl.protocol import AggregatedUpdates, ClientUpdate, MicroStep, Server, State, Weights


@dataclass(frozen=True)
class RoLora(LowRank):
    """Alternating rounds of B and of A: exact, with half the bytes of FedIT and both factors trained.

    A client that was not sampled in the round before downloads both factors.
    """

    def travels(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return all tensors but the factor that is fixed in this round."""
        fixed = 0 if round % 2 == 0 else 1  # axis of the rank: of A, of B
        return tuple(name for name in names if rank_axis(name) != fixed)

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return a step without A and one without B; one of the two is active in a round."""
        passes = ("student",)
        return (
            MicroStep(passes, self.loss, active=self.trains_up, excludes=(DOWN,)),
            MicroStep(passes, self.loss, active=self.trains_down, excludes=(UP,)),
        )

    def trains_up(self, update: ClientUpdate) -> Tensor:
        """Return 1 in the first, third, … round."""
        return (update.round % 2 == 0).to(torch.float32)

    def trains_down(self, update: ClientUpdate) -> Tensor:
        """Return 1 in the second, fourth, … round."""
        return (update.round % 2 == 1).to(torch.float32)

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean delta; it does not name the fixed factor, which was not sent."""
        return self.mean_delta(aggregated), server.state
