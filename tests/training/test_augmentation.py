"""Random transforms of training examples: keyed by client, round, epoch and example, and checked before the run."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from fakes import Killed, Stopping, experiment, model, run, scatter, traces
from torch import nn

import simfl
from simfl.config import read
from simfl.config.fields import written
from simfl.data.transform import Transform
from simfl.errors import ConfigError, DataError
from simfl.experiment import Execution
from simfl.models.own import OwnModel
from simfl.training.augmentation import Augmentation, example_keys

# ruff: noqa: NPY002  (users draw from numpy's global generator)

SEEN: list[tuple[float, ...]] = []


def noise(x, scale=0.1):
    """Draws from every global generator."""
    SEEN.append((torch.rand(1).item(), np.random.rand(), random.random()))
    return x + scale * sum(SEEN[-1])


class Mirror:
    """Has a generator of its own."""

    def __init__(self, p: float) -> None:
        self.p, self.rng = p, np.random.default_rng()

    def __call__(self, x):
        return -x if self.rng.random() < self.p else x


NOISE, MIRROR = Transform(f"{__name__}:noise"), Transform(f"{__name__}:Mirror", {"p": 0.5})


def augmented(transform, mode="sequential", **settings):
    return experiment("fedavg", mode, rounds=2, transform=transform, **settings)


@pytest.mark.parametrize("transform", [NOISE, MIRROR])
def test_modes_micro_batches_workers_and_resumed_runs_agree(transform, tmp_path, monkeypatch):
    run(augmented(transform), tmp_path / "whole")
    for name, case in {
        "vectorized": augmented(transform, "vectorized"),
        "parts": augmented(transform, execution=Execution(data_parallel=3)),
    }.items():
        run(case, tmp_path / name)
        for key, weights in model(tmp_path / "whole").items():
            torch.testing.assert_close(model(tmp_path / name)[key], weights, rtol=0, atol=1e-5)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    scatter(monkeypatch)
    with suppress(Killed):
        run(augmented(transform), tmp_path / "cut", display=Stopping(1, error=Killed))
    run(augmented(transform), tmp_path / "cut", resume=True)
    assert traces(tmp_path / "cut") == traces(tmp_path / "whole")


def test_a_transform_changes_the_result(tmp_path):
    found = [run(augmented(one), tmp_path / str(k))["weights_sha256"] for k, one in enumerate((None, NOISE, MIRROR))]
    assert len(set(found)) == 3


def test_every_client_round_epoch_and_example_has_draws_of_its_own(tmp_path):
    SEEN.clear()
    case = augmented(NOISE, participation=1.0, epochs=2)
    run(case, tmp_path)
    trained = 2 * 2 * sum(case.data.sizes)  # rounds, epochs, examples
    assert len(SEEN) == trained + 1  # and once before the run
    assert len(set(SEEN)) == len(SEEN)


def test_keys_name_the_row_and_its_epoch_whatever_the_batches():
    narrow = np.array([[4, 7], [9, -1], [7, 9], [4, -1]])
    wide = np.array([[9, 4, 7], [4, 7, 9]])
    by_row = [
        {row: keys[rows == row].tolist() for row in (4, 7, 9)}
        for rows, keys in ((one, example_keys(99, one)) for one in (narrow, wide))
    ]
    assert by_row[0] == by_row[1]
    assert len({key for keys in by_row[0].values() for key in keys}) == 6
    assert (example_keys(98, wide) != example_keys(99, wide)).all()


class FunctionalDropout(nn.Module):
    """One layer, with dropout that draws from torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 5)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x.flatten(1)), 0.5, self.training)


def test_draws_of_a_module_are_noticed_beside_those_of_a_transform(tmp_path):
    case = experiment("fedavg", "vectorized", model=OwnModel(FunctionalDropout()), rounds=2, transform=NOISE)
    with pytest.raises(ConfigError, match="training draws from torch's global generator"):
        run(case, tmp_path / "refused")
    run(augmented(NOISE, "vectorized"), tmp_path / "alone")


def test_an_example_has_the_shape_of_the_data_and_several_inputs_are_a_mapping():
    batch = {"x": torch.arange(12.0).reshape(2, 6), "mask": torch.ones(2)}
    shapes = []
    found = Augmentation(lambda x: shapes.append(x.shape) or x + 1, ("x",), (1, 2, 3), "here")
    rows = torch.tensor([3, -1])
    out = found.apply(batch, rows, np.array([1, 0]))
    assert shapes == [(1, 2, 3)]
    assert torch.equal(out["x"], batch["x"] + torch.tensor([[1.0], [0.0]]))  # padding stays
    assert batch["x"][0, 0] == 0
    both = {"words": torch.zeros(1, 4, dtype=torch.int64), "pixels": torch.zeros(1, 3, 2, 2, dtype=torch.uint8)}
    found = Augmentation(lambda one: one | {"pixels": one["pixels"] + 1}, ("words", "pixels"), None, "here")
    assert found.apply(both, torch.tensor([0]), np.array([1]))["pixels"].sum() == 12


WRONG = {
    "another shape": (lambda x: x[:2], r"for row 0 it returns float32 \[2\] as x; expected float32 \[12\]"),
    "another type": (lambda x: x.double(), "returns float64"),
    "nothing": (lambda x: None, "returns NoneType"),
    "infinite": (lambda x: x / 0, "not finite"),
    "an error": (lambda x: x["pixels"], "IndexError"),
    "unseeded": (lambda x: x + np.random.default_rng().random(), "randomness of the operating system"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_transform_is_one_line_before_the_run(name, tmp_path):
    function, message = WRONG[name]
    with pytest.raises(ConfigError, match=rf"^phases\.0\.transform: .*{message}") as error:
        run(augmented(Transform(function)), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_transform_is_read_from_a_name_a_mapping_and_a_function():
    assert read(Transform, f"{__name__}:noise", "transform") == NOISE
    assert read(Transform, {"of": f"{__name__}:Mirror", "settings": {"p": 0.5}}, "transform") == MIRROR
    assert written(read(Transform, noise, "transform"))["of"] == f"{__name__}:noise"
    assert written(Transform(lambda x: x))["sha256"]
    with pytest.raises(ConfigError, match=r"^t\.of: .* has no 'noize'; did you mean 'noise'\?"):
        Transform(f"{__name__}:noize").build("t")


class Drawing:
    """Items that draw when they are read."""

    def __init__(self, draw) -> None:
        self.draw, self.rng = draw, np.random.default_rng(1)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i):
        return [self.draw(self), 1.0], i % 2


@pytest.mark.parametrize(
    "draw",
    [
        lambda _: torch.rand(1).item(),
        lambda _: np.random.rand(),
        lambda _: random.random(),
        lambda items: items.rng.random(),
        lambda _: np.random.default_rng().random(),
    ],
)
def test_items_that_draw_are_refused_with_the_way_to_augment(draw):
    with pytest.raises(DataError, match=r"split train: its items draw from .*phases\.0\.transform"):
        simfl.check_data({"train": Drawing(draw)})
