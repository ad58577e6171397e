"""The base class of algorithms for low-rank adapters (LoRA, Hu et al. 2022): W is frozen, and W + s B A is used.

A_k, B_k   factors of client k after its update, zero beyond its rank r_k        p_k   its share of the round's weights
Ā, B̄       means Σ p_k A_k, Σ p_k B_k        s   scaling of the adapter

The mean of A and of B is not the mean of the products: Σ p_k B_k A_k − B̄ Ā = Σ p_k (B_k − B̄)(A_k − Ā). Its length over
that of Σ p_k B_k A_k is logged as `deviation` for every layer and round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.errors import ConfigError
from simfl.low_rank import LowRankPair, rank_axis, truncated
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Server, State, Weights

ClientRanks = Mapping[int | str, int | float] | tuple[int, ...] | str | None
DOWN, UP = "*.lora_*A.*", "*.lora_*B.*"  # globs of the factors A and B


@dataclass(frozen=True)
class LowRank(Algorithm):
    """Base of algorithms that see the factors of low-rank adapters as pairs; its defaults average A and B."""

    deviation: bool = True  # log how far the mean of the products is from the product of the means, in every round
    rank: ClientRanks = None  # {rank: share of clients}, {device: rank}, a list or a column; null: that of the model

    needs_pairs: ClassVar[bool] = True
    example: ClassVar[Mapping[str, object]] = {
        "model.adapters": {"kind": "lora", "targets": ["linear", "head"], "rank": 4, "dropout": 0.0},
        "personal_params": [],
    }

    def __post_init__(self) -> None:
        """Raise ConfigError for ranks or shares out of range."""
        check_ranks(self.rank)

    def products(self) -> Literal["", "logged", "needed"]:
        """Return whether products are logged."""
        return "logged" if self.deviation else ""

    def client_ranks(self) -> ClientRanks:
        """Return the setting `rank`."""
        return self.rank

    def has_contributions(self) -> bool:
        """Return whether clients differ in their ranks."""
        return self.rank is not None

    def start_weights(self, received: Parts, update: ClientUpdate) -> Weights:
        """Return the received factors, cut to the client's rank."""
        if self.rank is None:
            return {}
        return {name: truncated(name, w, update.rank) for name, w in received["weights"].items() if is_factor(name)}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return the delta from what the client started from."""
        start = {**received["weights"], **self.start_weights(received, update)}
        return {"weights": {name: trained[name] - w for name, w in start.items()}}

    def contribution(self, sent: Parts, received: Parts, update: ClientUpdate) -> Parts:
        """Return the client's factors, with zeros beyond its rank, minus those of the server."""
        known = self.known_weights(sent, received, update)
        own = {
            name: known[name] - received["weights"][name] if is_factor(name) else d
            for name, d in sent["weights"].items()
        }
        return {**sent, "weights": own}

    def mean_delta(self, aggregated: AggregatedUpdates) -> Weights:
        """Return the mean of what clients contribute to each tensor."""
        return aggregated.means["weights"]

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean delta."""
        return self.mean_delta(aggregated), server.state

    def next_factors(self, server: Server, aggregated: AggregatedUpdates, pair: LowRankPair) -> Weights:
        """Return Ā and B̄ of a pair by name."""
        delta, old = self.mean_delta(aggregated), server.weights
        return {name: old[name] + delta[name] if name in delta else old[name] for name in pair.names}

    def residual(self, server: Server, aggregated: AggregatedUpdates, pair: LowRankPair) -> Tensor:
        """Return Σ p_k B_k A_k − B̄ Ā of a pair, float64 [rows, columns]."""
        return aggregated.products[pair.layer] - pair.product(self.next_factors(server, aggregated, pair))

    def metrics(self, server: Server, aggregated: AggregatedUpdates) -> Mapping[str, float | Tensor]:
        """Return the deviation of each layer, and the mean over layers; empty where products are not known."""
        found: dict[str, float | Tensor] = {}
        for pair in server.pairs if self.deviation else ():
            if (mean := aggregated.products.get(pair.layer)) is not None:
                length = self.residual(server, aggregated, pair).norm() / mean.norm().clamp_min(1e-30)
                found[f"deviation/{pair.layer}"] = length
        if not found:
            return {}
        return {"deviation": torch.stack([torch.as_tensor(one) for one in found.values()]).mean(), **found}


def check_ranks(ranks: ClientRanks) -> None:
    """Raise ConfigError for ranks of clients that are no ranks, or shares of clients that are no shares."""
    by_key = ranks if isinstance(ranks, Mapping) else {}
    devices = {key: rank for key, rank in by_key.items() if isinstance(key, str)}
    if isinstance(ranks, Mapping) and (not ranks or 0 < len(devices) < len(ranks)):
        raise ConfigError(f"rank: {dict(ranks)} given; allowed: {{rank: share of clients}} or {{device: rank}}")
    for name, rank in devices.items():
        if rank != int(rank) or rank < 1:
            raise ConfigError(f"rank: {rank} given for {name!r}; allowed: ranks, whole numbers of at least 1")
    for key, share in by_key.items() if not devices else ():
        if not 0 < share <= 1:
            raise ConfigError(f"rank: {share:g} given as the share of rank {key}; allowed: above 0 up to 1")
    if isinstance(ranks, tuple) and (low := [rank for rank in ranks if rank < 1]):
        raise ConfigError(f"rank: {low[0]} is not a rank; allowed: whole numbers of at least 1")


def is_factor(name: str) -> bool:
    """Return whether a tensor with this name is a factor of a pair."""
    return rank_axis(name) is not None
