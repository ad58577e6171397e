"""The contract of every registered component, and of components that are written outside of simfl.

To register a component is enough to have it tested here. What it forgets fails with its name and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from fakes import experiment
from torch import Tensor

from simfl import contract
from simfl.algorithms.base import Algorithm
from simfl.algorithms.similarity_preserving import SimilarityPreserving
from simfl.codecs.base import Codec, MessageContext
from simfl.codecs.casts import Cast
from simfl.config import fields, rules
from simfl.config.registries import REGISTRIES
from simfl.contract import violations
from simfl.errors import ConfigError
from simfl.objectives.base import Objective
from simfl.optimizers.server import ServerOptimizer, apply_step, filled_like
from simfl.protocol import AggregatedUpdates, ClientUpdate, Parts, Server, State, Weights
from simfl.weights import squared_norm

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {  # by registry: the page that lists its components, how a component's line begins, how the page is written
    "algorithms": ("reference/algorithms.md", "| [{name}](#{name}) |", "run `python docs/make_algorithms.py`"),
    "availabilities": ("explanation/time.md", "| `{name}` |", "describe it there"),
    "codecs": ("reference/codecs.md", "### {name}\n", "run `python docs/make_codecs.py`"),
    "schedules": ("reference/algorithms.md", "### {name}\n", "run `python docs/make_algorithms.py`"),
    "server_optimizers": ("reference/algorithms.md", "### {name}\n", "run `python docs/make_algorithms.py`"),
    "factorizations": ("explanation/privacy.md", "| `{name}` |", "describe it there"),
    "objectives": ("reference/algorithms.md", "### {name}\n", "run `python docs/make_algorithms.py`"),
    "adapters": ("reference/models.md", "{name}", "describe it there"),
    "models": ("reference/models.md", "{name}", "describe it there"),
    "clusters": ("how-to/clusters.md", "{name}", "describe it there"),
    "data": ("reference/data.md", "`{name}`", "describe it there"),
    "selections": ("explanation/time.md", "| `{name}` |", "describe it there"),
    "staleness": ("explanation/time.md", "| `{name}` |", "describe it there"),
    "pruners": ("how-to/sweeps.md", "| `{name}` |", "describe it there"),
    "samplers": ("how-to/sweeps.md", "| `{name}` |", "describe it there"),
    "partitioners": ("reference/data.md", "`{name}`", "describe it there"),
}
REGISTERED = [(registry, name) for registry, spec in REGISTRIES.items() for name in spec.components]
every_component = pytest.mark.parametrize(("registry", "name"), REGISTERED, ids=[f"{r}-{n}" for r, n in REGISTERED])


# longer ones, whose formulas other tests compare with independent versions; `make test-all` checks their contracts too
LONG = {
    "clgecl", "crd", "dkd", "dp_clgecl", "fedkd", "similarity_preserving", "soft_targets",
    "domains", "multi_docqa",  # data
    "fedex_lora", "ffa_lora", "flora", "fedsa_lora", "hetlora", "lora_fair", "rbla", "rolora", "slora",
}  # fmt: skip
CHECKED = [pytest.param(*one, id="-".join(one), marks=pytest.mark.slow if one[1] in LONG else ()) for one in REGISTERED]


@pytest.mark.parametrize(("registry", "name"), CHECKED)
def test_a_registered_component_keeps_its_contract(registry: str, name: str) -> None:
    contract.check(REGISTRIES[registry].components[name])


@every_component
def test_a_registered_component_is_documented(registry: str, name: str) -> None:
    page, start, advice = PAGES[registry]
    text = (DOCS / page).read_text(encoding="utf-8")
    assert start.format(name=name) in text, f"{registry}: {name} has no entry in docs/{page}; {advice}"


# Components as a user writes them, outside of simfl


@dataclass(frozen=True)
class DeltaNorms(Algorithm):
    """FedAvg that also uploads the squared norm of each delta and keeps the last one on the client."""

    scale: float = 1.0  # factor of the pseudo-gradient

    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting", "norm": "clients"}
    fedavg_limit: ClassVar[str] = "scale = 1"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.scale": 1.0}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        return {"norm": {"squared": torch.zeros(())}}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        delta = {name: trained[name] - w for name, w in received["weights"].items()}
        return {"weights": delta, "norm": {"squared": squared_norm(delta)}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        return {"norm": sent["norm"]}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        return {name: self.scale * d for name, d in aggregated.means["weights"].items()}, server.state


@dataclass(frozen=True)
class WideFloat8(Cast):
    """8-bit float E5M2: relative error 2^-3, range of float16."""

    dtype: ClassVar[torch.dtype] = torch.float8_e5m2


@dataclass(frozen=True)
class Lion(ServerOptimizer):
    """w + eta·sign(beta1·m + (1 − beta1)·d), m ← beta2·m + (1 − beta2)·d (Chen et al. 2023)."""

    learning_rate: float = 0.001  # eta
    beta1: float = 0.9  # weight of the old m in the step
    beta2: float = 0.99  # weight of the old m in the new one
    num_moments: ClassVar[int] = 1

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        old = state["momentum"] if state else filled_like(delta, 0.0)
        mixed = {name: self.beta1 * old[name] + (1 - self.beta1) * d for name, d in delta.items()}
        step = {name: self.learning_rate * torch.sign(m) for name, m in mixed.items()}
        momentum = {name: self.beta2 * old[name] + (1 - self.beta2) * d for name, d in delta.items()}
        return apply_step(weights, step), {"momentum": momentum}


@pytest.mark.parametrize("component", [DeltaNorms, WideFloat8, Lion], ids=lambda component: component.__name__)
def test_a_component_outside_of_simfl_can_be_checked(component: type) -> None:
    contract.check(component)


# Components with mistakes


@dataclass(frozen=True)
class WithoutBound(Codec):
    """Raw values without an error bound."""

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        return Cast32().pack(values, shape, contexts)

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        return Cast32().unpack(packed, shape, contexts)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        return Cast32().packed_size(shape)


@dataclass(frozen=True)
class Cast32(Cast):
    """Raw float32 that is not declared lossless."""

    dtype: ClassVar[torch.dtype] = torch.float32


@dataclass(frozen=True)
class Undescribed(Algorithm):
    """An algorithm with a setting without a comment."""

    mu: float = 0.1


@dataclass(frozen=True)
class WrongLimit(Algorithm):
    """An algorithm that is not FedAvg at its declared limit."""

    factor: float = 0.5  # of the deltas

    fedavg_limit: ClassVar[str] = "always"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        return {name: self.factor * d for name, d in aggregated.means["weights"].items()}, server.state


@dataclass(frozen=True)
class Undeclared(SimilarityPreserving):
    """A loss over pairs of examples that does not declare that it needs the whole batch."""

    needs_whole_batch: ClassVar[bool] = False


@dataclass(frozen=True)
class InPlace(ServerOptimizer):
    """A server optimizer that changes the weights in place."""

    def step(self, weights: Weights, delta: Weights, state: State) -> tuple[Weights, State]:
        for name, d in delta.items():
            weights[name] += d
        return dict(weights), state


@dataclass(frozen=True)
class NoMetric(Objective):
    """An objective without declarations."""

    def encode(self, split, tokenizer): ...
    def loss(self, outputs, batch): ...
    def predict(self, module, batch): ...
    def score(self, predictions, split, rows): ...


@pytest.mark.parametrize(
    ("component", "line"),
    [
        (WithoutBound, "declares no error bound; override error_bound(values, shape, contexts)"),
        (Undescribed, "mu: has no description; write a comment behind the field"),
        (WrongLimit, "sequential: at fedavg_settings: the global weights are not bit-identical to FedAvg's"),
        (Undeclared, "needs_whole_batch: not declared, though a batch cannot be divided"),
        (InPlace, "step 0: changes weights or delta in place"),
        (NoMetric, "metric: must name the main metric"),
        (int, "is not a component: it needs one of these base classes"),
    ],
)
def test_a_broken_component_fails_with_its_name_and_what_to_do(component: type, line: str) -> None:
    with pytest.raises(contract.ContractError, match=f"^{component.__name__}: ") as error:
        contract.check(component)
    assert line in str(error.value)


def test_an_unknown_reduction_is_refused():
    @dataclass(frozen=True)
    class Averaged(Algorithm):
        """FedAvg with a misspelt reduction."""

        reduce: ClassVar[Mapping[str, str]] = {"weights": "mean"}

    given = experiment()
    given = replace(given, phases=(replace(given.phases[0], algorithm=Averaged()),))
    with pytest.raises(ConfigError, match=r"reduces 'weights' by 'mean'; allowed: clients, gather, weighting"):
        rules.check(given)


def test_a_default_that_its_own_setting_refuses_is_an_error():
    @dataclass(frozen=True)
    class Shifted(Algorithm):
        """FedAvg with a negative default."""

        shift: float = -0.5  # shift

    with pytest.raises(ConfigError, match=r"shift: -0\.5 is not a number of at least 0, but it is the default"):
        fields.build(Shifted, {}, "algorithm")


def test_a_misspelt_method_is_named():
    @dataclass(frozen=True)
    class Misspelt(Algorithm):
        """FedAvg with a misspelt method."""

        def aggregat(self, server, updates):
            return updates.means["weights"], server.state

    assert any("aggregat: never called; did you mean 'aggregate'?" in line for line in violations(Misspelt))
