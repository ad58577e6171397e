"""Bit for bit the same, whoever does the work and however often it stops."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import SIZES, Killed, Normalised, Stopping, Toy, experiment, run, scatter, then, traces

from simfl.algorithms.feddat import FedDat
from simfl.codecs.nf4 import Nf4
from simfl.experiment import Codecs, Evaluate, Privacy
from simfl.models.bottleneck import Bottleneck
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.optimizers.server import Adam

LOSSY = Codecs(download=Nf4(encode="update"), upload=Nf4(error_feedback=True))
PERSONAL = Evaluate(models=("global", "personal"))
EVEN = Toy(sizes=(2, 40, 6, 8, 27, 13, 3, 21, 10, 16))  # no batch of one, which batch normalisation refuses


def everything(mode):
    """Memory of all kinds: private tensors, optimizer state, what encoding lost; and downloads of changes."""
    momentum = {"optimizer": "adam", "learning_rate": 0.01, "keep_optimizer": True, "clip_norm": 1.0}
    return experiment("ditto", mode, personal_params=("head.*",), codec=LOSSY, evaluate=PERSONAL, epochs=2, **momentum)


def two_phases(mode):
    """The second phase keeps memory of the first and has another server optimizer."""
    settings = {"optimizer": "adamw", "learning_rate": 0.01, "keep_optimizer": True, "codec": LOSSY, "rounds": 2}
    first = experiment("moon", mode, personal_params=("head.*",), **settings)
    keep = ("algorithm", "personal_params", "optimizer", "codec")
    return then(first, experiment("moon", mode, personal_params=("head.*",), server=Adam(), carry_over=keep, **settings))


def lora(mode):
    return experiment("fedavg", mode, model=Mlp((16, 16), dropout=0.2, adapters=Lora(targets=("linear",))))


BOTH_WAYS = {
    "scaffold": lambda mode: experiment("scaffold", mode),
    "everything": everything,
    "two phases": two_phases,
    "lora": lora,
}
CASES = {f"{name}, {mode}": make(mode) for name, make in BOTH_WAYS.items() for mode in ("sequential", "vectorized")}
CASES |= {
    "feddat": experiment(FedDat(), "vectorized", model=Mlp((16,), dropout=0.2, adapters=Bottleneck())),
    "gathered": experiment("krum"),
    "groups": experiment("fedavg", "vectorized", privacy=Privacy(clip=0.5, groups_per_client=1), weighting="uniform"),
    "poisson": experiment("fedavg", "vectorized", poisson=0.15, rounds=5, weighting="uniform"),
    "running averages": experiment("scaffold", data=EVEN, model=Normalised()),
    "own averages": experiment("fedavg", data=EVEN, model=Normalised(), buffers="local", evaluate=PERSONAL),
}
SELDOM = {"two phases, batch", "lora, loop", "feddat", "gathered", "poisson", "own averages"}  # in the slow tests
every_case = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SELDOM else []) for name in CASES]
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The traces of each case, run here without a stop; made once."""
    made = {}

    def traces_of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("whole")
            run(CASES[name], folder)
            made[name] = traces(folder)
        return made[name]

    return traces_of


def sittings(case, folder, *stops, **settings):
    """Run, stopped as each display says, and go on to the end."""
    for display in stops:
        with suppress(Killed):
            assert run(case, folder, resume=display is not stops[0], display=display)["status"] == "interrupted"
    return run(case, folder, resume=True, **settings)


@every_case
def test_scattered_stopped_killed_and_resumed_is_the_same(name, whole, tmp_path, monkeypatch):
    scatter(monkeypatch)
    stops = [
        Stopping(0, scoring=True),  # at once
        Stopping(1),
        Stopping(2, scoring=True, error=Killed),  # in the middle of a round
        Stopping(2, error=Killed),
    ]
    summary = sittings(CASES[name], tmp_path, *stops)
    assert traces(tmp_path) == whole(name)
    assert summary["resumed_at"] == [0, 1, 1, 2]


@pytest.mark.parametrize("name", ["scaffold, loop"])
def test_who_trains_what_in_which_order_changes_no_bit(name, whole, tmp_path, monkeypatch):
    scatter(monkeypatch)
    run(CASES[name], tmp_path)
    assert traces(tmp_path) == whole(name)


@pytest.mark.parametrize("name", ["everything, loop"])
def test_stopped_and_resumed_is_never_stopped(name, whole, tmp_path):
    sittings(CASES[name], tmp_path, Stopping(1), Stopping(2), Stopping(3))
    assert traces(tmp_path) == whole(name)


def test_rounds_since_the_last_commit_are_repeated(whole, tmp_path):
    case = CASES["scaffold, loop"]
    case = replace(case, checkpoint=replace(case.checkpoint, rounds=2))
    summary = sittings(case, tmp_path, Stopping(1, error=Killed), Stopping(3, error=Killed))
    assert summary["resumed_at"] == [0, 2]  # of rounds 1 and 3, neither had been committed
    assert traces(tmp_path) == whole("scaffold, loop")


def test_inline_is_ray(whole, tmp_path, ray_session):
    run(CASES["scaffold, loop"], tmp_path, workers=3)
    assert traces(tmp_path) == whole("scaffold, loop")


@pytest.mark.slow
def test_inline_is_ray_interrupted_and_resumed_with_another_number_of_workers(whole, tmp_path, ray_session):
    case = CASES["everything, batch"]
    assert run(case, tmp_path, workers=1, display=Stopping(1))["status"] == "interrupted"
    assert run(case, tmp_path, workers=2, resume=True)["resumed_at"] == [1]
    assert traces(tmp_path) == whole("everything, batch")


ON_RAY = [(name, 2) for name in CASES] + [(name, n) for name in ("scaffold, loop", "everything, batch") for n in (1, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "workers"), ON_RAY)
def test_every_case_is_the_same_on_ray(name, workers, whole, tmp_path, ray_session):
    run(CASES[name], tmp_path, workers=workers)
    assert traces(tmp_path) == whole(name)


def test_cases_are_what_they_should_be(whole, tmp_path):
    """At least 7 clients in 4 cohorts, of uneven sizes; dropout; a model that learns."""
    case = CASES["scaffold, loop"]
    assert len(set(SIZES)) == len(SIZES)
    assert min(SIZES) == 1
    assert max(SIZES) > 4 * case.phases[0].local.batch_size
    summary = run(replace(case, model=replace(case.model, dropout=0.0)), tmp_path)
    assert traces(tmp_path)["weights_sha256"] != whole("scaffold, loop")["weights_sha256"]
    assert summary["final"]["accuracy"] > summary["initial"]["accuracy"] + 0.1


def test_the_width_and_the_way_are_part_of_the_identity(whole):
    """Batched products round otherwise, so equal hashes of both modes would mean that one of them was not used."""
    assert whole("scaffold, loop")["weights_sha256"] != whole("scaffold, batch")["weights_sha256"]


def test_nothing_draws_from_the_global_generators(whole, tmp_path):
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002
    before = torch.get_rng_state()
    run(CASES["scaffold, loop"], tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert traces(tmp_path) == whole("scaffold, loop")
