"""FLoRA: Wang et al. 2024, "FLoRA: federated fine-tuning LLMs with heterogeneous low-rank adaptations".

client   draws a new A_k, B_k = 0;   trains both;   sends A_k, B_k
server   sends the stacks [p_1 A_1; …; p_K A_K] and [B_1, …, B_K], whose product is Σ p_k B_k A_k
         W ← W + s Σ p_k B_k A_k        at every client and at the server

Clients may have any ranks: the stack has rank Σ r_k. Nothing of A and B is downloaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simfl.algorithms.low_rank import LowRank, is_factor
from simfl.errors import ConfigError
from simfl.keyed_random import step_uniform
from simfl.low_rank import is_down, truncated
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Server, State, Task, Weights


@dataclass(frozen=True)
class FLora(LowRank):
    """Exact aggregation by stacking: every round is merged into the frozen weights, and adapters start again.

    A is drawn uniformly from ±1/√in, as peft does. The server optimizer has no effect on the factors.
    """

    changes_base: ClassVar[bool] = True

    def products(self) -> Literal["", "logged", "needed"]:
        """Return that products are needed."""
        return "needed"

    def init_server(self, weights: Weights, task: Task) -> State:
        """Return the shapes of the factors, whose values clients draw; ConfigError unless B starts at zero."""
        for name, tensor in weights.items():
            if is_factor(name) and not is_down(name) and not tensor.is_meta and bool(tensor.any()):
                raise ConfigError(f"algorithm: flora merges adapters that start at zero, but {name} does not")
        return {}

    def downloads(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return the trained tensors other than factors, of which clients need the shapes alone."""
        return tuple(name for name in names if not is_factor(name))

    def start_weights(self, received: Parts, update: ClientUpdate) -> Weights:
        """Return a new A and zeros for B, cut to the client's rank."""
        factors = {name: w for name, w in received["weights"].items() if is_factor(name)}
        return {
            name: truncated(name, _drawn(w, number, update), update.rank) if is_down(name) else torch.zeros_like(w)
            for number, (name, w) in enumerate(factors.items())
        }

    def has_contributions(self) -> bool:
        """Return that the means of the factors, for the deviation, are not those of what clients send."""
        return True

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return zeros for the factors, which stay those of the start."""
        means = aggregated.means["weights"]
        return {name: torch.zeros_like(d) if is_factor(name) else d for name, d in means.items()}, server.state

    def base_change(self, server: Server, aggregated: AggregatedUpdates) -> Weights:
        """Return s Σ p_k B_k A_k of each pair."""
        return {pair.base: pair.change(aggregated.products[pair.layer]) for pair in server.pairs}


def _drawn(like: Tensor, number: int, update: ClientUpdate) -> Tensor:
    """Return numbers from ±1/√columns in the shape of A; `number` tells the tensors of one client update apart."""
    bound = 1.0 / math.sqrt(like[0].numel())
    name = torch.full((), number, dtype=torch.int64, device=like.device)
    drawn = step_uniform(update.key, torch.full_like(update.step, -1), name, like.numel())
    return ((2.0 * drawn - 1.0) * bound).reshape(like.shape).to(like.dtype)
