"""DP-CLGECL: Fukami et al. in Tito et al. 2024, Algorithm 2, with corrections.

w     received model            G     a sampled group, M of them      S   privacy.clip     sigma   noise multiplier
λ_k   the client's dual         w'_k  the model that the client last released: w at that time + its upload

client   λ_k ← λ_k + w − w'_k                                          (initially λ_k = 0, w'_k = w)
         for each G: Δ_G = LocalOpt(G, w) − w + λ_k, clipped to S;     send (ΣΔ_G + N(0, (sigma S)²)) / M
server   w ← w + mean of the uploads

Corrections: the paper clips w^G where Δ_G is meant, prints noise of variance sigma² for (sigma S)², writes t − 2 for
the client's last update, and initialises λ at random, which is noise without a use for privacy. λ is a function of
released values, so one group still changes a sum by at most S.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from simfl.algorithms.base import Algorithm
from simfl.protocol import ClientUpdate, Parts, State, Weights
from simfl.weights import add, subtract


@dataclass(frozen=True)
class DpClgecl(Algorithm):
    """group_dp with a dual per client: how far the global model has moved from what the client released."""

    reduce: ClassVar[Mapping[str, str]] = {"weights": "clients"}
    privacy_unit: ClassVar[str | None] = "group"
    example: ClassVar[Mapping[str, object]] = {
        "privacy": {"unit": "group", "clip": 5.0, "noise_multiplier": 0.01, "noise_seed": 0, "groups_per_client": 2},
        "weighting": "uniform",
        "personal_params": [],
    }

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return a dual of zero and the received model as last release."""
        start = received["weights"]
        return {"dual": {name: torch.zeros_like(w) for name, w in start.items()}, "last": dict(start)}

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """Update the dual."""
        moved = subtract(received["weights"], state["last"])
        return {"dual": add(state["dual"], moved), "last": state["last"]}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return the delta plus the dual."""
        dual = state["dual"]
        return {"weights": {name: trained[name] - w + dual[name] for name, w in received["weights"].items()}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Keep the dual and the model that was released."""
        return {"dual": state["dual"], "last": add(received["weights"], sent["weights"])}
