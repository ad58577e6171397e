"""Modules in half precision: both execution modes, codecs, sums in float32, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

import simfl
from simfl.aggregation.columns import Columns
from simfl.aggregation.round import CohortResult, RoundAggregator
from simfl.aggregation.tree import PartSums
from simfl.errors import ConfigError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 5)).astype("float32")
Y = (X @ RANDOM.normal(size=(5, 3))).argmax(1)


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


class Mixed(nn.Module):
    """Layers in bfloat16 with a normalization in float32, which casts as it needs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.last = nn.Linear(5, 8).bfloat16(), nn.LayerNorm(8), nn.Linear(8, 3).bfloat16()

    def forward(self, x):
        return self.last(self.norm(self.first(x.bfloat16()).float()).bfloat16())


def run(folder, model, mode="sequential", **settings):
    local = {"optimizer": "sgd", "learning_rate": 0.2, "batch_size": 8, **settings.pop("local", {})}
    phase = {"objective": "classification", "rounds": 3, "clients_per_round": 4, "local": local, **settings}
    case = {"name": "half", "data": {"train": (X, Y), "valid": (X, Y)}, "partition": {"by": "iid", "clients": 8}}
    return simfl.run({**case, "model": model, "execution": {"mode": mode}, "phases": [phase]}, folder)


def moved(found, start: nn.Module) -> dict[str, torch.Tensor]:
    first = start.state_dict()
    return {name: value.float() - first[name].float() for name, value in found.model().state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_both_modes_train_a_module_in_its_own_precision(dtype, algorithm, tmp_path):
    """They agree to the precision, and with training in float32; float inputs are cast to the parameters' dtype."""
    runs = {m: run(tmp_path / m, network(dtype), m, algorithm=algorithm) for m in ("sequential", "vectorized")}
    exact = moved(run(tmp_path / "exact", network(torch.float32), algorithm=algorithm), network(torch.float32))
    length = torch.cat([t.flatten() for t in exact.values()]).norm()
    for found in runs.values():
        assert {p.dtype for p in found.model().parameters()} == {dtype}
        assert found.summary["plan"] == "matches"
        own = moved(found, network(dtype))
        distance = torch.cat([(own[name] - t).flatten() for name, t in exact.items()]).norm()
        assert distance < 0.1 * length


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_a_module_that_casts_itself_keeps_its_mixture(mode, tmp_path):
    found = run(tmp_path / mode, Mixed(), mode)
    assert [p.dtype for p in found.model().parameters()] == [p.dtype for p in Mixed().parameters()]
    assert found.rounds().to_pylist()[-1]["loss"] < found.rounds().to_pylist()[0]["loss"]


@pytest.mark.parametrize("codec", ["int8", "nf4", "bfloat16", "float16"])
def test_decoded_messages_keep_the_precision_of_the_weights(codec, tmp_path):
    found = run(tmp_path / "r", network(torch.bfloat16), codec={"upload": codec, "download": codec})
    assert {p.dtype for p in found.model().parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("algorithm", ["moon", "fedkd", "ditto"])
def test_losses_on_features_are_computed_in_float32(algorithm, tmp_path):
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.body, self.head = nn.Linear(5, 8).bfloat16(), nn.Linear(8, 3).bfloat16()

        def forward(self, x):
            features = torch.tanh(self.body(x))
            return {"logits": self.head(features), "features": features}

    found = run(tmp_path / "r", Features(), algorithm=algorithm)
    assert all(np.isfinite(row["loss"]) for row in found.rounds().to_pylist())


@pytest.mark.parametrize("block", [1, 2])
def test_uploads_in_half_precision_are_summed_in_float32(block):
    """Sums of 1,000 examples times 100 exceed the largest float16, and their mean does not."""
    uploads = torch.tensor([[100.0, 1.0], [100.0, 3.0]], dtype=torch.float16)
    sums, result = PartSums({"weights": "weighting"}), CohortResult(0, 2)
    for first in range(0, 2, block):
        sums.add(
            {"weights": {"w": uploads[first : first + block]}}, [1000.0, 3000.0][first : first + block], block, False
        )
    (result.sums, result.owned), result.dtypes = sums.totals(), sums.dtypes
    result.clients = Columns.of([{"weight": 1000.0}, {"weight": 3000.0}])
    aggregator = RoundAggregator({"weights": "weighting"}, 2)
    aggregator.take(result)
    mean = aggregator.mean().means["weights"]["w"]
    assert mean.dtype == torch.float16
    assert mean.tolist() == [100.0, 2.5]


def test_an_epsilon_that_is_zero_in_the_dtype_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"optimizer.eps: 1e-08 is 0 in torch.float16, the dtype of 0.weight"):
        run(tmp_path / "r", network(torch.float16), local={"optimizer": "adam"})
    found = run(tmp_path / "r", network(torch.float16), local={"optimizer": {"name": "adam", "eps": 1e-4}})
    assert found.summary["status"] == "completed"


def test_complex_parameters_are_refused(tmp_path):
    model = network(torch.float32)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ConfigError, match=r"model: phase has dtype torch.complex64, which cannot be sent"):
        run(tmp_path / "r", model)
    assert not (tmp_path / "r").exists()
