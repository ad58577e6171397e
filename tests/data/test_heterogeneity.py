"""Measures of heterogeneity against hand-computed values, for a million clients, and as a figure."""

import importlib.util

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from simfl.data.base import Dataset, Split
from simfl.data.partition import plot
from simfl.data.partition.heterogeneity import MAX_CLIENTS, MAX_VALUES, known_values, measure
from simfl.data.partition.partitioners import Natural, Provider
from simfl.data.partition.synthetic import Iid


def labelled(labels, **columns) -> Split:
    return Split(pa.table({"label": pa.array(labels, pa.int32())} | columns))


TWO = labelled([0, 0, 0, 0, 0, 0, 1, 1], who=["a"] * 4 + ["b"] * 4)


def test_entropy_and_divergence_match_hand_computed_values():
    numbers = measure(TWO, Natural(column="who").split(TWO, 0))
    assert numbers.sizes.tolist() == [4, 4]
    assert numbers.distinct.tolist() == [1, 2]
    np.testing.assert_allclose(numbers.entropy, [0, 1])
    # p = (1, 0), q = (.5, .5): H(.75, .25) = 0.811278, less (0 + 1) / 2
    np.testing.assert_allclose(numbers.pairwise, [[0, 0.311278], [0.311278, 0]], atol=1e-6)
    assert numbers.mean_pairwise == pytest.approx(0.311278, abs=1e-6)
    # from all, (.75, .25) with H = 0.811278: H(.875, .125) = 0.543564; H(.625, .375) = 0.954434
    np.testing.assert_allclose(numbers.divergence, [0.543564 - 0.405639, 0.954434 - (1 + 0.811278) / 2], atol=1e-6)
    assert numbers.heat.tolist() == [[4, 0], [2, 2]]
    assert numbers.values == ("0", "1")


def test_clients_with_disjoint_values_have_a_divergence_of_one_bit():
    split = labelled([0, 0, 1, 1], who=list("aabb"))
    np.testing.assert_allclose(measure(split, Natural(column="who").split(split, 0)).pairwise, [[0, 1], [1, 0]])


def test_heterogeneity_counts_first_answers_and_distinct_documents():
    examples = pa.table({"document": pa.array([0, 0, 1], pa.int32()), "answers": [["x", "z"], ["x"], []]})
    split = Split(examples, pa.table({"id": ["a", "b"], "provider": ["p", "q"]}))
    numbers = measure(split, Provider(clients=1).split(split, 0))
    assert (numbers.column, numbers.documents.tolist(), numbers.groups.tolist()) == ("answers", [2], [2])
    assert numbers.values == ("x", "")


def test_rare_values_share_one_column_of_the_heat_map():
    labels = [v for v in range(100) for _ in range(1 + (v < 3))]
    numbers = measure(labelled(labels), Iid(clients=2).split(labelled(labels), 0))
    assert numbers.heat.shape == (2, MAX_VALUES)
    assert numbers.values[:3] == ("0", "1", "2")
    assert numbers.values[-1] == "others"
    assert numbers.heat.sum() == 103


def test_known_values_gives_the_share_of_other_splits_that_clients_know():
    test = labelled([0, 1, 2, 2], who=["a", "c", "c", "a"])
    dataset = Dataset("x", {"train": TWO, "test": test}, "")
    only_a = Natural(column="who", values=("a",)).split(TWO, 0)
    assert known_values(dataset, only_a, ["label", "who"]) == {"test": {"label": 0.25, "who": 0.5}}
    both = Natural(column="who").split(TWO, 0)
    assert known_values(dataset, both, ["label"]) == {"test": {"label": 0.5}}


def test_heterogeneity_of_a_million_clients_compares_a_sample_of_them():
    split = labelled(np.arange(3_000_000) % 10)
    numbers = measure(split, Iid(clients=1_000_000).split(split, 0))
    assert numbers.sizes.sum() == 3_000_000
    assert numbers.pairwise.shape == (MAX_CLIENTS, MAX_CLIENTS)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.slow
def test_the_figure_has_a_column_for_each_partition(tmp_path):
    numbers = measure(TWO, Natural(column="who").split(TWO, 0))
    plot.save(tmp_path / "a.png", {"one": numbers}, {"one": {"test": {"label": 0.5}}})
    plot.save(tmp_path / "b.png", {"one": numbers, "cost $": numbers}, {})
    first, second = (Image.open(tmp_path / name) for name in ("a.png", "b.png"))
    assert second.size == (2 * first.size[0], first.size[1])
    assert len(np.unique(np.asarray(first.convert("L")))) > 50
