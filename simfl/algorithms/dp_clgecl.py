"""DP-CLGECL: Fukami et al. in Tito et al. 2024, Algorithm 2, with its slips mended.

    w     received model          G  a sampled group, M of them     S  privacy.clip     sigma  privacy.noise_multiplier
    λ_k   the client's dual       w'_k  what it last released: w as it was then + the update it sent

    update    λ_k ← λ_k + w − w'_k                                          (at first λ_k = 0, w'_k = w)
             for each G: Δ_G = LocalOpt(G, w) − w + λ_k, clipped to S;     send (ΣΔ_G + N(0, (sigma S)²)) / M
    server   w ← w + mean of what was sent

The paper clips w^G where Δ_G is meant, prints noise of variance sigma² for (sigma S)², writes t − 2 for the client's
last update, and starts λ at random, which is noise of no use to privacy. λ follows from what was released, so a group
still changes a sum by S at most.
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
    """As group_dp, each group's update corrected by how far the model has gone from what the client released."""

    reduce: ClassVar[Mapping[str, str]] = {"weights": "clients"}
    privacy_unit: ClassVar[str | None] = "group"

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        start = received["weights"]
        return {"dual": {name: torch.zeros_like(w) for name, w in start.items()}, "last": dict(start)}

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        moved = subtract(received["weights"], state["last"])
        return {"dual": add(state["dual"], moved), "last": state["last"]}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        dual = state["dual"]
        return {"weights": {name: trained[name] - w + dual[name] for name, w in received["weights"].items()}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        return {"dual": state["dual"], "last": add(received["weights"], sent["weights"])}
