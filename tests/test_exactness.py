"""Results are bit-identical for every number of workers, and after every interruption."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import SIZES, Killed, Normalised, Stopping, Toy, experiment, run, scatter, then, traces

from simfl.algorithms.feddat import FedDat
from simfl.algorithms.flexlora import FlexLora
from simfl.codecs.nf4 import Nf4
from simfl.experiment import Buffers, Codecs, Evaluate, Privacy
from simfl.models.bottleneck import Bottleneck
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.optimizers.server import Adam

LOSSY = Codecs(download=Nf4(encode="update"), upload=Nf4(error_feedback=True))
PERSONAL = Evaluate(models=("global", "personal"))
EVEN = Toy(sizes=(2, 40, 6, 8, 27, 13, 3, 21, 10, 16))  # no batch of one, which batch normalisation refuses


def everything(mode):
    """Client state of all kinds: personal parameters, optimizer state, residuals; and downloads of changes."""
    momentum = {"optimizer": "adam", "learning_rate": 0.01, "keep_optimizer": True, "clip_norm": 1.0}
    return experiment("ditto", mode, personal_params=("head.*",), codec=LOSSY, evaluate=PERSONAL, epochs=2, **momentum)


def two_phases(mode):
    """The second phase carries over client state and has another server optimizer."""
    settings = {"optimizer": "adamw", "learning_rate": 0.01, "keep_optimizer": True, "codec": LOSSY, "rounds": 2}
    first = experiment("moon", mode, personal_params=("head.*",), **settings)
    keep = ("algorithm", "personal_params", "optimizer", "codec")
    return then(
        first, experiment("moon", mode, personal_params=("head.*",), server=Adam(), carry_over=keep, **settings)
    )


def lora(mode):
    return experiment("fedavg", mode, model=Mlp((16, 16), dropout=0.2, adapters=Lora(targets=("linear",))))


BOTH_MODES = {
    "scaffold": lambda mode: experiment("scaffold", mode),
    "everything": everything,
    "two phases": two_phases,
    "lora": lora,
}
CASES = {f"{name}, {mode}": make(mode) for name, make in BOTH_MODES.items() for mode in ("sequential", "vectorized")}
CASES |= {
    "feddat": experiment(FedDat(), "vectorized", model=Mlp((16,), dropout=0.2, adapters=Bottleneck())),
    "gathered": experiment("krum"),
    "changed base": experiment("fedex_lora", "vectorized"),
    "ranks": experiment(FlexLora(rank={1: 0.5, 2: 0.5}), "vectorized"),
    "groups": experiment("fedavg", "vectorized", privacy=Privacy(clip=0.5, groups_per_client=1), weighting="uniform"),
    "poisson": experiment("fedavg", "vectorized", poisson=0.15, rounds=5, weighting="uniform"),
    "running averages": experiment("scaffold", data=EVEN, model=Normalised()),
    "own averages": experiment(
        "fedavg", data=EVEN, model=Normalised(), buffers=Buffers(personal=("*",)), evaluate=PERSONAL
    ),
}
SELDOM = {
    "two phases, vectorized",
    "lora, sequential",
    "feddat",
    "gathered",
    "changed base",
    "ranks",
    "poisson",
    "own averages",
}  # in the slow tests
every_case = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SELDOM else []) for name in CASES]
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the traces of each case, run in this process without interruption; computed once."""
    made = {}

    def traces_of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("whole")
            run(CASES[name], folder)
            made[name] = traces(folder)
        return made[name]

    return traces_of


def run_in_sessions(case, folder, *stops, **settings):
    """Run in several sessions: one per display that stops it, and one to the end."""
    for display in stops:
        with suppress(Killed):
            assert run(case, folder, resume=display is not stops[0], display=display)["status"] == "interrupted"
    return run(case, folder, resume=True, **settings)


@every_case
def test_a_scattered_stopped_and_killed_run_is_bit_identical(name, whole, tmp_path, monkeypatch):
    scatter(monkeypatch)
    stops = [
        Stopping(0, scoring=True),  # at once
        Stopping(1),
        Stopping(2, scoring=True, error=Killed),  # in the middle of a round
        Stopping(2, error=Killed),
    ]
    summary = run_in_sessions(CASES[name], tmp_path, *stops)
    assert traces(tmp_path) == whole(name)
    assert summary["resumed_at"] == [0, 1, 1, 2]


@pytest.mark.parametrize("name", ["scaffold, sequential"])
def test_the_assignment_of_cohorts_to_workers_changes_no_bit(name, whole, tmp_path, monkeypatch):
    scatter(monkeypatch)
    run(CASES[name], tmp_path)
    assert traces(tmp_path) == whole(name)


@pytest.mark.parametrize("name", ["everything, sequential"])
def test_a_resumed_run_is_bit_identical(name, whole, tmp_path):
    run_in_sessions(CASES[name], tmp_path, Stopping(1), Stopping(2), Stopping(3))
    assert traces(tmp_path) == whole(name)


def test_rounds_since_the_last_checkpoint_are_repeated(whole, tmp_path):
    case = CASES["scaffold, sequential"]
    case = replace(case, checkpoint=replace(case.checkpoint, rounds=2))
    summary = run_in_sessions(case, tmp_path, Stopping(1, error=Killed), Stopping(3, error=Killed))
    assert summary["resumed_at"] == [0, 2]  # no checkpoint was written after rounds 1 and 3
    assert traces(tmp_path) == whole("scaffold, sequential")


def test_inline_and_ray_are_bit_identical(whole, tmp_path, ray_session):
    run(CASES["scaffold, sequential"], tmp_path, workers=3)
    assert traces(tmp_path) == whole("scaffold, sequential")


@pytest.mark.slow
def test_a_ray_run_resumed_with_other_workers_is_bit_identical(whole, tmp_path, ray_session):
    case = CASES["everything, vectorized"]
    assert run(case, tmp_path, workers=1, display=Stopping(1))["status"] == "interrupted"
    assert run(case, tmp_path, workers=2, resume=True)["resumed_at"] == [1]
    assert traces(tmp_path) == whole("everything, vectorized")


ON_RAY = [(name, 2) for name in CASES] + [
    (name, n) for name in ("scaffold, sequential", "everything, vectorized") for n in (1, 3)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "workers"), ON_RAY)
def test_every_case_is_bit_identical_on_ray(name, workers, whole, tmp_path, ray_session):
    run(CASES[name], tmp_path, workers=workers)
    assert traces(tmp_path) == whole(name)


def test_the_cases_have_several_uneven_cohorts_and_learn(whole, tmp_path):
    """At least 7 clients in 4 cohorts, of uneven sizes; dropout; a model that learns."""
    case = CASES["scaffold, sequential"]
    assert len(set(SIZES)) == len(SIZES)
    assert min(SIZES) == 1
    assert max(SIZES) > 4 * case.phases[0].local.batch_size
    summary = run(replace(case, model=replace(case.model, dropout=0.0)), tmp_path)
    assert traces(tmp_path)["weights_sha256"] != whole("scaffold, sequential")["weights_sha256"]
    assert summary["final"]["accuracy"] > summary["initial"]["accuracy"] + 0.1


def test_both_execution_modes_are_really_used(whole):
    """Batched products round differently, so equal hashes would mean that one mode was not used."""
    assert whole("scaffold, sequential")["weights_sha256"] != whole("scaffold, vectorized")["weights_sha256"]


def test_global_random_generators_are_not_used(whole, tmp_path):
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002
    before = torch.get_rng_state()
    run(CASES["scaffold, sequential"], tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert traces(tmp_path) == whole("scaffold, sequential")
