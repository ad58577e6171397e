"""Contradictory combinations of algorithm, optimizer, schedule, adapters and privacy are refused in one line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from fakes import experiment

from simfl.algorithms.feddc import FedDC
from simfl.algorithms.scaffold import Scaffold
from simfl.config.rules import check
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Privacy
from simfl.models.bottleneck import Bottleneck
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.objectives.classification import Classification
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.schedules import Cosine
from simfl.optimizers.server import Adam, Sgd

PRIVATE = {"privacy": Privacy(clip=1.0), "weighting": "uniform"}


@dataclass(frozen=True)
class Blind(Classification):
    """An objective without target classes."""

    target: ClassVar[str] = ""


def error_of(given: Experiment) -> str:
    with pytest.raises(ConfigError) as caught:
        check(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"algorithm": "scaffold", "optimizer": "adamw"},
            "local.optimizer: 'adamw' given; scaffold is correct only with",
        ),
        ({"algorithm": "feddc", "optimizer": "adamw"}, "local.optimizer: 'adamw' given; feddc is correct only with"),
        (
            {"algorithm": "feddc", "optimizer": LocalOptimizer("sgd", {"momentum": 0.9})},
            "local.optimizer.momentum: 0.9 given; feddc is correct only with plain sgd",
        ),
        ({"algorithm": "scaffold", "clip_norm": 1.0}, "local.clip_norm: 1.0 given; scaffold is correct only with"),
        ({"algorithm": "feddc", "clip_value": 1.0}, "local.clip_value: 1.0 given; feddc is correct only with"),
        ({"algorithm": "scaffold", "communicate": False}, "algorithm: has no effect with communicate: false"),
        (
            {"algorithm": "feddat"},
            "algorithm: feddat needs model.adapters: {kind: bottleneck, names: ['client', 'shared']}",
        ),
        (
            {"algorithm": "feddat", "model": Mlp(adapters=Lora(targets=("linear",)))},
            "algorithm: feddat needs model.adapters: {kind: bottleneck",
        ),
        (
            {"algorithm": "feddat", "model": Mlp(adapters=Bottleneck(names=("shared",)))},
            "algorithm: feddat needs model.adapters: {kind: bottleneck",
        ),
        ({"algorithm": "dkd", "objective": Blind()}, "algorithm: dkd needs target classes, which Blind does not have"),
        (
            {"algorithm": "scaffold", **PRIVATE},
            "algorithm: Scaffold uploads 'control', which needs a clip norm",
        ),
        (
            {"algorithm": "fednova", **PRIVATE},
            "algorithm: FedNova uploads 'steps', which needs a clip norm",
        ),
        (
            {"algorithm": "krum", **PRIVATE},
            "algorithm: krum uploads single updates, which privacy does not sum",
        ),
        ({"algorithm": "crd", **PRIVATE}, "algorithm: crd keeps state per example, which privacy does not cover"),
        (
            {"server": Sgd(schedule=Cosine(unit="step"))},
            "server.schedule.unit: 'step' given; the server takes one step per round",
        ),
        ({"optimizer": "rprop", "schedule": Cosine()}, "local.schedule: has no effect with rprop"),
    ],
)
def test_a_contradictory_combination_is_refused(settings: dict, expected: str) -> None:
    assert error_of(experiment(**settings)).startswith(f"phases.0.{expected}")


def test_a_mentor_that_no_algorithm_uses_is_refused() -> None:
    given = replace(experiment("ditto"), mentor=Mlp())
    assert (
        error_of(given)
        == "mentor: has no effect, because no algorithm of a phase trains a second model; allowed with: fedkd"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {
            "algorithm": Scaffold(option="i"),
            "optimizer": "adamw",
        },  # its control is a gradient, independent of the steps
        {"algorithm": FedDC(control=False), "optimizer": "adamw"},
        {"algorithm": "feddc", "optimizer": LocalOptimizer("sgd", {"weight_decay": 1e-3}), "clip_norm": 10.0},
        {"algorithm": "fednova", "optimizer": LocalOptimizer("sgd", {"momentum": 0.9})},
        {"algorithm": "clgecl", **PRIVATE},
        {"algorithm": "fedkd", "mentor": Mlp(hidden_sizes=(64,))},
        {"algorithm": "feddyn", "server": Adam(), "schedule": Cosine(unit="client_update")},
        {"algorithm": "feddat", "model": Mlp(adapters=Bottleneck(names=("client", "shared")))},
    ],
)
def test_a_valid_combination_is_accepted(settings: dict) -> None:
    check(experiment(**settings))
