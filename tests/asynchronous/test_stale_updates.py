"""Server steps of asynchronous training against their formulas, computed by hand from the clients' own updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import model, run
from fakes_asynchronous import case, rows
from torch import nn

from simfl.asynchronous.staleness import STALENESS, Distance, Hinge, Polynomial, Unchanged
from simfl.experiment import Asynchronous, Experiment
from simfl.models.mlp import Mlp
from simfl.optimizers.server import Sgd
from simfl.optimizers.sliding_window import SlidingWindow
from simfl.runs.results import Run
from simfl.stacking import StackedParts
from simfl.training.plan import ClientPlan, Origin
from simfl.training.stale_updates import stale_terms
from simfl.weights import Weights


@pytest.mark.parametrize(
    ("function", "factors"),
    [
        (Unchanged(), [1.0, 1.0, 1.0, 1.0]),
        (Polynomial(), [1.0, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5]),
        (Polynomial(exponent=1.0), [1.0, 1 / 2, 1 / 3, 1 / 4]),
        (Hinge(slope=0.5, after=1), [1.0, 1.0, 1 / 1.5, 1 / 2]),
    ],
)
def test_factors_of_counts(function: Polynomial, factors: list[float]) -> None:
    assert [function.factor(age) for age in range(4)] == pytest.approx(factors)


def test_factors_of_distances() -> None:
    """γ = 6/3 = 2, so λ/(γ + ε) = 3/(2 + 1) = 1; a model that has not moved gives λ/ε."""
    function = Distance(scale=3.0, epsilon=1.0)
    assert function.factor_of_norms(5, 6.0, 3.0) == 1.0
    assert function.factor_of_norms(5, 0.0, 3.0) == 3.0
    assert function.factor_of_norms(5, 1.0, 0.0) == 0.0
    assert set(STALENESS) == {"constant", "distance", "hinge", "polynomial"}


def stale(version: int) -> ClientPlan:
    return ClientPlan(0, 1.0, (), "", origin=Origin(version, 3 - version, "" if version == 3 else "x"))


CURRENT = {"weights": {"w": torch.tensor([1.0, 1.0])}}
OLD = {"weights": {"w": torch.tensor([1.0, 4.0])}}
BOTH = StackedParts({"weights": {"w": torch.tensor([[1.0, 4.0], [1.0, 1.0]])}})
SENT = {"weights": {"w": torch.tensor([[3.0, 4.0], [0.5, 0.0]])}}


def test_models_are_mixed_against_the_current_one() -> None:
    settings = Asynchronous(2, mix="models", staleness=Unchanged())
    terms, factors, is_new = stale_terms(settings, SENT, BOTH, CURRENT, [stale(0), stale(3)])
    assert terms["weights"]["w"].tolist() == [[3.0, 7.0], [0.5, 0.0]]  # Δ + v − x
    assert (factors, is_new) == ([1.0, 1.0], True)
    shared, _, _ = stale_terms(settings, SENT, OLD, CURRENT, [stale(0), stale(0)])
    assert shared["weights"]["w"].tolist() == [[3.0, 7.0], [0.5, 3.0]]


def test_deltas_stay_and_distances_are_measured() -> None:
    settings = Asynchronous(2, staleness=Distance())
    terms, factors, is_new = stale_terms(settings, SENT, BOTH, CURRENT, [stale(0), stale(3)])
    assert terms is SENT
    assert not is_new
    assert factors == pytest.approx([1 / (3 / 5 + 1), 1.0])  # ‖x − v‖ = 3, ‖Δ‖ = 5


def test_updates_of_the_current_version_are_not_touched() -> None:
    settings = Asynchronous(2, mix="models", staleness=Polynomial())
    terms, factors, is_new = stale_terms(settings, SENT, CURRENT, CURRENT, [stale(3), stale(3)])
    assert terms is SENT
    assert (factors, is_new) == ([1.0, 1.0], False)


def plain(**settings: Any) -> Experiment:
    """Return an experiment with full batches in order and without dropout, which a few lines can repeat."""
    return case(rounds=6, shuffle=False, batch_size=64, model=Mlp((16,)), **settings)


def trained(folder: Path, this: Experiment, start: Weights, client: int) -> Weights:
    """Return the model after one step of gradient descent on all examples of a client."""
    run_ = Run(folder)
    context = run_.context
    examples = context.examples(this.phases[0].objective, "train")
    batch = examples.take(torch.from_numpy(run_.partition.rows(client)))
    leaves = {name: t.clone().requires_grad_() for name, t in start.items()}
    out = torch.func.functional_call(context.module, leaves, batch["x"])
    loss = nn.functional.cross_entropy(out.logits, batch["label"])
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    return {name: start[name] - 0.1 * slope for (name, _), slope in zip(leaves.items(), slopes, strict=True)}


Step = Callable[[list[Weights], Weights, list[tuple[float, int, Weights]]], Weights]


def difference(one: Weights, other: Weights) -> Weights:
    return {name: t - other[name] for name, t in one.items()}


def norm(weights: Weights) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in weights.values()))


def plus(start: Weights, *terms: tuple[float, Weights]) -> Weights:
    return {name: t + sum(factor * term[name] for factor, term in terms) for name, t in start.items()}


def fedbuff(past: list[Weights], x: Weights, updates: list[tuple[float, int, Weights]]) -> Weights:
    total, number = sum(weight for weight, _, _ in updates), len(past) - 1
    return plus(x, *((w / math.sqrt(1 + number - v) / total, difference(y, past[v])) for w, v, y in updates))


def fedasync(past: list[Weights], x: Weights, updates: list[tuple[float, int, Weights]]) -> Weights:
    ((_, version, y),) = updates
    alpha = 0.6 / math.sqrt(1 + len(past) - 1 - version)
    return plus({name: (1 - alpha) * t for name, t in x.items()}, (alpha, y))


def asyncfeded(past: list[Weights], x: Weights, updates: list[tuple[float, int, Weights]]) -> Weights:
    ((_, version, y),) = updates
    delta = difference(y, past[version])
    return plus(x, (0.5 / (norm(difference(x, past[version])) / norm(delta) + 2.0), delta))


class FedFa:
    """The mean of the last three models."""

    def __init__(self) -> None:
        self.window: list[Weights] = []

    def __call__(self, past: list[Weights], x: Weights, updates: list[tuple[float, int, Weights]]) -> Weights:
        ((_, _, y),) = updates
        self.window = [*(self.window or [past[0]] * 3), y][-3:]
        return {name: torch.stack([one[name] for one in self.window]).mean(0) for name in x}


METHODS: dict[str, tuple[dict[str, Any], Step]] = {
    "sequential": ({"concurrency": 1, "buffer": 1}, lambda past, x, updates: updates[0][2]),
    "fedbuff": ({"concurrency": 5, "buffer": 2}, fedbuff),
    "fedasync": ({"concurrency": 5, "buffer": 1, "mix": "models", "server": Sgd(learning_rate=0.6)}, fedasync),
    "asyncfeded": ({"concurrency": 5, "buffer": 1, "staleness": Distance(scale=0.5, epsilon=2.0)}, asyncfeded),
    "fedfa": (
        {"concurrency": 5, "buffer": 1, "mix": "models", "staleness": Unchanged(), "server": SlidingWindow(size=3)},
        FedFa(),
    ),
}


FAST = ("sequential", "fedbuff", "fedasync")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in METHODS]
)
def test_server_steps_by_hand(name: str, tmp_path: Path) -> None:
    settings, step = METHODS[name]
    this = plain(**settings)
    run(this, tmp_path)
    found = rows(tmp_path, "clients")
    past = [{n: t.detach().clone() for n, t in Run(tmp_path).context.module.named_parameters()}]
    for number in range(6):
        arrived = [row for row in found if row["round"] == number + 1]
        updates = [
            (row["weight"], row["version"], trained(tmp_path, this, past[row["version"]], row["client"]))
            for row in arrived
        ]
        past.append(step(past, past[-1], updates))
    if name != "sequential":
        assert max(row["staleness"] for row in found) > 1
    last = model(tmp_path)
    for tensor, expected in past[-1].items():
        torch.testing.assert_close(last[tensor], expected, rtol=1e-5, atol=1e-6)
