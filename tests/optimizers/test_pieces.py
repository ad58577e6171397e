"""Server steps of a few tensors at a time are those of all tensors, bit for bit, and release what they have used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from simfl.aggregation.columns import Columns
from simfl.aggregation.round import CohortResult, RoundAggregator
from simfl.optimizers import SERVER_OPTIMIZERS, ServerOptimizer, server
from simfl.optimizers.server import Sgd, step_in_pieces
from simfl.protocol import State, Weights

SHAPES = {"a": (3, 5), "b": (), "c": (70,), "d": (2, 2, 2), "e": (1,)}


def tensors(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def bits(weights: Weights, state: State) -> Iterator[tuple[str, bytes]]:
    for group, own in {"weights": weights, **state}.items():
        yield from ((f"{group}/{name}", t.numpy().tobytes()) for name, t in own.items())


@pytest.mark.parametrize("name", sorted(SERVER_OPTIMIZERS))
@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_pieces_of_any_size_give_the_same_bits(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PIECE_BYTES", size)
    optimizer = SERVER_OPTIMIZERS[name](learning_rate=0.3)
    weights, state = {**tensors(0), "frozen": torch.ones(2)}, State()
    same, own = weights, State()
    for step in range(3):
        weights, state = optimizer.step(weights, tensors(step + 1), state)
        delta = tensors(step + 1)
        same, own = step_in_pieces(optimizer, same, delta, own)
        assert not delta
        assert list(bits(same, own)) == list(bits(weights, state))


def test_a_subclass_with_a_step_of_its_own_gets_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step may depend on all of them, as this one does on their norm."""
    monkeypatch.setattr(server, "PIECE_BYTES", 1)

    class Normalised(Sgd):
        def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
            return super().step(weights, {name: t / len(delta) for name, t in delta.items()}, state)

    optimizer: ServerOptimizer = Normalised()
    expected = optimizer.step(tensors(0), tensors(1), {})
    assert list(bits(*step_in_pieces(optimizer, tensors(0), tensors(1), {}))) == list(bits(*expected))


@pytest.mark.parametrize("owned", [True, False])
def test_a_mean_takes_the_memory_of_a_sum_that_no_one_else_reads(owned: bool) -> None:
    total = {"w": torch.tensor([2.0, 6.0])}
    result = CohortResult(0, 2, {"weights": total}, frozenset(["weights"] if owned else []))
    result.clients = Columns.of([{"weight": 1.0}, {"weight": 1.0}])
    aggregator = RoundAggregator({"weights": "weighting"}, 2)
    place = total["w"].data_ptr()
    aggregator.take(result)
    updates = aggregator.mean()
    assert updates is not None
    assert updates.means["weights"]["w"].tolist() == [1.0, 3.0]
    assert (updates.means["weights"]["w"].data_ptr() == place) == owned
