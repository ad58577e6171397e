"""Copies and pickles of modules that torch refuses to copy or to pickle."""

from __future__ import annotations

import pytest
import torch
from fakes import Toy, experiment, model, run, scatter
from ray import cloudpickle
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize

from simfl.errors import ConfigError
from simfl.models.own import OwnModel
from simfl.models.portable import copied, make_picklable

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
KINDS = {
    "orthogonal": parametrizations.orthogonal,
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "old weight norm": utils.weight_norm,
    "old spectral norm": utils.spectral_norm,
}


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(KINDS[kind](nn.Linear(12, 12)), nn.Tanh(), nn.Linear(12, 5))


def sent(module: nn.Module) -> nn.Module:
    """Return a module as a Ray worker receives it."""
    received: nn.Module = cloudpickle.loads(cloudpickle.dumps(module))
    return received


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_and_a_pickle_compute_the_same_and_can_be_copied_again(kind):
    module, x = made(kind), torch.ones(2, 12)
    make_picklable(module)
    for other in (copied(module), sent(sent(module))):
        assert torch.equal(other.eval()(x), module.eval()(x))
        assert parametrize.is_parametrized(other) == parametrize.is_parametrized(module)
        other[0].bias.data.add_(1.0)
        assert not torch.equal(other(x), module(x))


@pytest.mark.parametrize("kind", ["orthogonal", "old weight norm"])
def test_a_parametrized_module_trains_on_several_workers(kind, tmp_path, monkeypatch):
    case = experiment(data=Toy(sizes=(6, 9)), model=OwnModel(made(kind)), batch_size=3, rounds=1, participation=1.0)
    run(case, tmp_path / "one")
    scatter(monkeypatch)
    run(case, tmp_path / "three")
    one, three = model(tmp_path / "one"), model(tmp_path / "three")
    assert all(torch.equal(one[name], three[name]) for name in one)


def test_a_lazy_layer_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"model.of: 0.weight has no shape before the first pass"):
        run(experiment(model=OwnModel(nn.Sequential(nn.LazyLinear(5)))), tmp_path / "run")
