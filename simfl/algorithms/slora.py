"""SLoRA: Babakniya et al. 2023, "SLoRA: federated parameter efficient fine-tuning of language models".

stage 1   clients train a share of the values of W, the same random ones for all;   server averages their changes
between   W − W₀ = s U S Vᵀ        B ← U √S,   A ← √S Vᵀ,   cut to the rank of the adapters;   W ← W₀
stage 2   clients train A and B;   server   A ← Ā,   B ← B̄

Adapters so start from what the clients have learned together. List the frozen weights of the adapted layers under the
phase's `train`, as ["*.base_layer.weight"]. Which values are trained follows from the names of the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.low_rank import LowRank, is_factor
from simfl.constraints import Fraction, PositiveInt
from simfl.errors import ConfigError
from simfl.keyed_random import uniform
from simfl.low_rank import LowRankPair
from simfl.protocol import AggregatedUpdates, ClientUpdate, MicroStep, Parts, Server, State, Task, Weights
from simfl.seeds import seed_for

BASE_WEIGHTS, SUFFIX = "*.base_layer.weight", ".base_layer.weight"


@dataclass(frozen=True)
class SLora(LowRank):
    """Sparse training of the frozen weights first, whose result initializes the adapters that are trained then."""

    sparse_rounds: PositiveInt = 5  # rounds of stage 1
    density: Fraction = 0.01  # share of the values of each weight that stage 1 trains and sends

    assigns: ClassVar[bool] = True
    example: ClassVar[Mapping[str, object]] = {
        **LowRank.example,
        "train": [BASE_WEIGHTS],
        "algorithm.sparse_rounds": 1,
        "algorithm.density": 0.5,
    }

    def least_rounds(self) -> int:
        """Return the rounds of stage 1 and one of stage 2."""
        return self.sparse_rounds + 1

    def travels(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return the weights in stage 1, and all other tensors in stage 2."""
        return tuple(name for name in names if is_base(name) == (round < self.sparse_rounds))

    def downloads(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return all tensors in stage 1, and in stage 2 those other than the weights, which are those of the start."""
        return tuple(name for name in names if round < self.sparse_rounds or not is_base(name))

    def changes(self, names: Sequence[str], round: int) -> tuple[str, ...]:
        """Return what the server changes in a round: at the end of stage 1 the weights are those of the start again."""
        return self.travels(names, round + 1)

    def num_downloaded(self, name: str, count: int) -> int:
        """Return the number of values of a tensor that clients download."""
        return num_trained(count, self.density) if is_base(name) else count

    def init_server(self, weights: Weights, task: Task) -> State:
        """Return the weights of the start, and the number of finished rounds; ConfigError if no weight is trained."""
        start = {name: w.clone() for name, w in weights.items() if is_base(name)}
        if not start and any(map(is_factor, weights)):
            raise ConfigError(f"train: slora trains the frozen weights first; list them: train: ['{BASE_WEIGHTS}']")
        return {"start": start, "rounds": {"rounds": torch.zeros((), dtype=torch.int64)}}

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """Return the weights that the client has received."""
        return {"received": {name: w for name, w in received["weights"].items() if is_base(name)}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Return no state: clients keep nothing."""
        return {}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return a step of the weights and one of the other tensors; one of the two is active in a round."""
        passes = ("student",)
        return (
            MicroStep(passes, self.loss, trains=(BASE_WEIGHTS,), at=self.sparse_point, active=self.is_sparse),
            MicroStep(passes, self.loss, excludes=(BASE_WEIGHTS,), active=self.is_low_rank),
        )

    def is_sparse(self, update: ClientUpdate) -> Tensor:
        """Return 1 in stage 1."""
        return (update.round < self.sparse_rounds).to(torch.float32)

    def is_low_rank(self, update: ClientUpdate) -> Tensor:
        """Return 1 in stage 2."""
        return (update.round >= self.sparse_rounds).to(torch.float32)

    def sparse_point(
        self, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
    ) -> Weights:
        """Return the received weights with the trained values in the chosen places."""
        return {
            name: w.flatten().index_copy(0, own, trained[name].flatten()[own]).reshape(w.shape)
            for name, w in state["received"].items()
            for own in [chosen(name, w, self.density)]
        }

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return the delta, of the weights in the chosen places alone."""
        delta = super().upload(trained, received, state, update)["weights"]
        return {
            "weights": {
                name: d.flatten()[chosen(name, d, self.density)] if is_base(name) else d for name, d in delta.items()
            }
        }

    def known_weights(self, sent: Parts, received: Parts, update: ClientUpdate) -> Weights:
        """Return the tensors other than the weights."""
        start = {**received["weights"], **self.start_weights(received, update)}
        own = {name: w for name, w in start.items() if not is_base(name)}
        return {name: w + sent["weights"][name] if name in sent["weights"] else w for name, w in own.items()}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean delta, and at the end of stage 1 the way to the adapters that stand for the weights."""
        sent, finished = self.mean_delta(aggregated), int(server.state["rounds"]["rounds"])
        delta = {
            name: _scattered(name, server.weights[name], mean, self.density) if is_base(name) else mean
            for name, mean in sent.items()
        }
        state = {**server.state, "rounds": {"rounds": server.state["rounds"]["rounds"] + 1}}
        if finished + 1 == self.sparse_rounds:
            for pair in server.pairs:
                start, old = server.state["start"][pair.base], server.weights
                learned = old[pair.base].double() + delta[pair.base] - start
                for name, factor in _factors(pair, learned).items():
                    delta[name] = factor.reshape(old[name].shape).to(old[name]) - old[name]
                delta[pair.base] = start - old[pair.base]
        return delta, state


def is_base(name: str) -> bool:
    """Return whether a tensor with this name is the frozen weight of an adapted layer."""
    return name.endswith(SUFFIX) and not is_factor(name)


def num_trained(count: int, density: float) -> int:
    """Return how many of this many values stage 1 trains."""
    return max(1, round(density * count))


def chosen(name: str, like: Tensor, density: float) -> Tensor:
    """Return the places that stage 1 trains in a flattened tensor, int64, in ascending order."""
    count = num_trained(like.numel(), density)
    if like.is_meta:
        return torch.empty(count, dtype=torch.int64, device="meta")
    return _drawn(name, like.numel(), count).to(like.device)


@cache
def _drawn(name: str, size: int, count: int) -> Tensor:
    draws = uniform(torch.tensor(seed_for("slora", name) >> 1), size)
    return torch.sort(torch.argsort(draws, stable=True)[:count]).values


def _scattered(name: str, like: Tensor, values: Tensor, density: float) -> Tensor:
    """Return values in the trained places of a tensor, with zeros elsewhere."""
    zeros = torch.zeros_like(like)
    return zeros.flatten().index_copy(0, chosen(name, like, density), values).reshape(like.shape)


def _factors(pair: LowRankPair, change: Tensor) -> Weights:
    """Return A and B whose scaled product is the best approximation of a change of W."""
    product = change.reshape(pair.columns, pair.rows).T if pair.transposed else change.reshape(pair.rows, pair.columns)
    u, s, v = torch.linalg.svd(product / pair.scaling, full_matrices=False)
    kept, roots = min(pair.rank, len(s)), s.sqrt()
    down, up = product.new_zeros(pair.rank, pair.columns), product.new_zeros(pair.rows, pair.rank)
    down[:kept], up[:, :kept] = roots[:kept, None] * v[:kept], u[:, :kept] * roots[:kept]
    return {pair.down: down, pair.up: up}
