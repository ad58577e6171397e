"""`TreeReducer` is bit-identical to `weights.tree_sum` for every division, and writes to owned tensors only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simfl.aggregation.tree import PartSums, TreeReducer
from simfl.weights import Weights, tree_sum

floats = st.floats(-1e6, 1e6, width=32)
rows = st.lists(st.one_of(st.none(), floats), min_size=1, max_size=40)


def item(value: float | None) -> Weights | None:
    return None if value is None else {"w": torch.tensor([value, value / 3]), "b": torch.tensor(value)}


def bits(weights: Weights | None) -> list[bytes] | None:
    return None if weights is None else [t.numpy().tobytes() for t in weights.values()]


@given(rows, st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_the_sum_of_aligned_blocks_is_the_sum_over_the_whole_tree(values, width, own):
    reducer = TreeReducer()
    for first in range(0, len(values), width):
        inner = TreeReducer()
        for value in values[first : first + width]:
            inner.push(item(value), owned=own)
        reducer.push(inner.total(), width)
    assert bits(reducer.total()) == bits(tree_sum([item(value) for value in values]))


@given(rows)
def test_tensors_that_are_not_owned_are_not_changed(values):
    items = [item(value) for value in values]
    reducer = TreeReducer()
    for given_item in items:
        reducer.push(given_item)
    reducer.total()
    assert [bits(i) for i in items] == [bits(item(value)) for value in values]


def test_owned_tensors_are_summed_in_the_memory_of_the_first():
    items = [item(float(value)) for value in range(4)]
    places = [i["w"].data_ptr() for i in items if i]
    reducer = TreeReducer()
    for given_item in items:
        reducer.push(given_item, owned=True)
    total = reducer.total()
    assert total is not None
    assert total["w"].data_ptr() == places[0]


def test_positions_before_the_first_value_count_as_empty():
    reducer = TreeReducer(num_empty=3)
    reducer.push(item(1.0))
    reducer.push(item(2.0))
    assert bits(reducer.total()) == bits(tree_sum([None, None, None, item(1.0), item(2.0)]))


def test_the_sum_of_empty_uploads_is_empty():
    reducer = TreeReducer()
    reducer.push({}, owned=True)
    reducer.push({}, owned=True)
    assert reducer.total() == {}


def sent(values: list[float]) -> dict[str, Weights]:
    """Return stacked uploads of as many clients: floats, and an integer count."""
    return {"weights": {"w": torch.tensor(values)[:, None] / 3, "seen": torch.ones(len(values), 1, dtype=torch.int64)}}


@pytest.mark.parametrize("width", [1, 2])
@given(st.lists(st.tuples(floats, st.floats(1.5, 100.0, width=32)), min_size=1, max_size=9))
def test_owned_uploads_have_the_same_sum(width, visits):
    """One by one or as [n, …], in place or not: the sum of value · weight over one tree of positions."""
    found = []
    for owned in (False, True):
        sums = PartSums({"weights": "weighting"})
        for first in range(0, len(visits), width):
            values, weights = zip(*visits[first : first + width], strict=True)
            sums.add(sent(list(values)), weights, width, owned)
        found.append(bits(sums.totals()[0]["weights"]))
    by_hand = [{n: t[0] * weight for n, t in sent([value])["weights"].items()} for value, weight in visits]
    assert found[0] == found[1] == bits(tree_sum(by_hand))


def test_uploads_that_are_not_owned_are_not_changed():
    uploads, sums = [sent([float(k), 1.0]) for k in range(4)], PartSums({})
    for upload in uploads:
        sums.add(upload, [2.0, 3.0], 2, owned=False)
    assert [bits(upload["weights"]) for upload in uploads] == [bits(sent([float(k), 1.0])["weights"]) for k in range(4)]


def test_each_part_is_reduced_by_its_own_rule():
    """3 · 1 + 5 · 2 by weight, 1 + 2 by clients, and every gathered upload."""
    sums = PartSums({"a": "weighting", "b": "clients", "c": "gather"})
    sums.skip()
    for weight, value in ((3.0, 1.0), (5.0, 2.0)):
        sums.add({part: {"w": torch.tensor([value])} for part in "abc"}, [weight], 1, owned=False)
        sums.skip()
    assert {part: float(total["w"]) for part, total in sums.totals()[0].items()} == {"a": 13.0, "b": 3.0}
    assert [float(upload["w"]) for upload in sums.gathered["c"]] == [1.0, 2.0]
    assert sums.position == 5
