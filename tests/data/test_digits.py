"""The small classification data sets: real digits and synthetic prototypes."""

import sys

import numpy as np
import pytest

from simfl.data.base import Split
from simfl.data.benchmarks.prototypes import Prototypes
from simfl.data.partition.partitioners import Natural
from simfl.data.partition.synthetic import Dirichlet
from simfl.data.readers.digits import Digits
from simfl.errors import ConfigError, DataError


def arrays(split: Split) -> tuple[np.ndarray, np.ndarray]:
    flat = split.examples["features"].combine_chunks().flatten().to_numpy()
    return flat.reshape(len(split), -1), split.examples["label"].to_numpy()


def nearest_mean_accuracy(train: Split, test: Split) -> float:
    x, y = arrays(train)
    means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    u, v = arrays(test)
    return float((np.square(u[:, None] - means).sum(-1).argmin(1) == v).mean())


class TestDigits:
    @pytest.fixture(autouse=True)
    def needs_scikit_learn(self):
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")

    def test_every_digit_is_in_exactly_one_split(self, tmp_path):
        data = Digits().load(tmp_path)
        assert data.card["examples"] == {"train": 1258, "valid": 180, "test": 359}
        images = np.concatenate([arrays(s)[0] for s in data.splits.values()])
        assert len(np.unique(images, axis=0)) == 1797
        assert (images.min(), images.max()) == (0.0, 1.0)
        assert data.card["shape"] == [1, 8, 8]

    def test_digits_can_be_learned_and_partitioned(self, tmp_path):
        splits = Digits().load(tmp_path).splits
        assert nearest_mean_accuracy(splits["train"], splits["test"]) > 0.85
        assert Dirichlet(clients=10, alpha=0.3).split(splits["train"], seed=0).sizes.sum() == 1258

    def test_digits_are_reproducible(self, tmp_path):
        assert (
            Digits().load(tmp_path).sha256 == Digits().load(tmp_path).sha256 != Digits(test=0.3).load(tmp_path).sha256
        )

    def test_digits_refuse_shares_that_exceed_one(self, tmp_path):
        with pytest.raises(ConfigError, match="their sum below 1"):
            Digits(valid=0.6, test=0.6).load(tmp_path)


def test_digits_error_without_scikit_learn_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        Digits().load(tmp_path)


SMALL = Prototypes(examples=600, classes=5, shape=(2, 3, 4), groups=12)


def test_prototypes_have_the_requested_sizes(tmp_path):
    data = SMALL.load(tmp_path)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 600, "valid": 60, "test": 60}
    x, y = arrays(data.splits["train"])
    assert x.shape == (600, 24)
    assert np.bincount(y).tolist() == [120] * 5
    assert data.card["num_classes"] == 5
    assert Natural(column="group").split(data.splits["train"], seed=0).sizes.tolist() == [50] * 12


def test_prototypes_depend_on_the_seed_and_not_on_the_cache(tmp_path):
    sha = SMALL.load(tmp_path / "a").sha256
    assert SMALL.load(tmp_path / "b").sha256 == SMALL.load(tmp_path / "a").sha256 == sha
    assert Prototypes(examples=600, classes=5, shape=(2, 3, 4), groups=12, seed=1).load(tmp_path).sha256 != sha


def test_more_prototypes_keep_the_noise_of_earlier_blocks():
    few, many = (Prototypes(examples=n, classes=1, shape=(2,)) for n in (5000, 9000))
    a, b = (arrays(p._split("train", p.examples))[0] for p in (few, many))
    np.testing.assert_array_equal(a[:4096], b[:4096])


def test_prototype_margin_controls_difficulty(tmp_path):
    def accuracy(margin: float) -> float:
        splits = Prototypes(examples=2000, classes=5, shape=(20,), margin=margin).load(tmp_path).splits
        return nearest_mean_accuracy(splits["train"], splits["test"])

    assert accuracy(8.0) > 0.99
    assert 0.7 < accuracy(3.0) < 0.99
    assert accuracy(0.01) < 0.35


@pytest.mark.parametrize("wrong", [{"examples": 0}, {"classes": -1}, {"shape": ()}, {"shape": (3, 0)}, {"margin": 0}])
def test_invalid_prototype_settings_are_refused(wrong, tmp_path):
    with pytest.raises(ConfigError, match=f"data.{next(iter(wrong))}"):
        Prototypes(**wrong).load(tmp_path)
