"""An algorithm that needs features is refused before the run where a model returns none."""

import pytest
from fakes import experiment, run
from torch import nn

from simfl.errors import ConfigError
from simfl.models.own import OwnModel
from simfl.protocol import Outputs


class WithFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 4), nn.Linear(4, 5)

    def forward(self, x):
        features = self.body(x.flatten(1))
        return Outputs(self.head(features), features)


@pytest.mark.parametrize("algorithm", ["moon", "crd"])
def test_a_model_without_features_is_refused_before_the_run(algorithm, tmp_path):
    plain = OwnModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)))
    with pytest.raises(ConfigError, match=r"^phases\.0\.algorithm: \w+ needs features, which the model does not"):
        run(experiment(algorithm, model=plain), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"needs features, which the mentor does not"):
        run(experiment(algorithm, model=OwnModel(WithFeatures()), mentor=plain), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_with_features_is_trained(tmp_path):
    assert run(experiment("moon", model=OwnModel(WithFeatures()), rounds=1), tmp_path)["status"] == "completed"
