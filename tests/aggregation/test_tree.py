"""The running tree sum: the bits of `weights.tree_sum`, however cut; only what is its own is written to."""

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
def test_cut_into_aligned_blocks_it_is_the_sum_over_the_whole_tree(values, width, own):
    fold = TreeReducer()
    for first in range(0, len(values), width):
        inner = TreeReducer()
        for value in values[first : first + width]:
            inner.push(item(value), own=own)
        fold.push(inner.total(), width)
    assert bits(fold.total()) == bits(tree_sum([item(value) for value in values]))


@given(rows)
def test_values_that_are_not_its_own_are_left_as_they_were(values):
    items = [item(value) for value in values]
    fold = TreeReducer()
    for given_item in items:
        fold.push(given_item)
    fold.total()
    assert [bits(i) for i in items] == [bits(item(value)) for value in values]


def test_values_of_its_own_are_summed_in_the_memory_of_the_first():
    items = [item(float(value)) for value in range(4)]
    places = [i["w"].data_ptr() for i in items if i]
    fold = TreeReducer()
    for given_item in items:
        fold.push(given_item, own=True)
    total = fold.total()
    assert total is not None
    assert total["w"].data_ptr() == places[0]


def test_positions_before_the_first_value_count_as_empty():
    fold = TreeReducer(empty=3)
    fold.push(item(1.0))
    fold.push(item(2.0))
    assert bits(fold.total()) == bits(tree_sum([None, None, None, item(1.0), item(2.0)]))


def test_the_sum_of_nothing_is_nothing():
    fold = TreeReducer()
    fold.push({}, own=True)
    fold.push({}, own=True)
    assert fold.total() == {}


def sent(values: list[float]) -> dict[str, Weights]:
    """Uploads of as many visits, stacked: numbers, and a count."""
    return {"weights": {"w": torch.tensor(values)[:, None] / 3, "seen": torch.ones(len(values), 1, dtype=torch.int64)}}


@pytest.mark.parametrize("width", [1, 2])
@given(st.lists(st.tuples(floats, st.floats(1.5, 100.0, width=32)), min_size=1, max_size=9))
def test_what_may_be_written_to_is_summed_to_the_same_bits(width, visits):
    """Weighted one by one, as [n, …] or alone, in place or not: (value · weight) on one tree over the positions."""
    found = []
    for spare in (False, True):
        sums = PartSums({"weights": "weighting"})
        for first in range(0, len(visits), width):
            values, weights = zip(*visits[first : first + width], strict=True)
            sums.add(sent(list(values)), weights, width, spare)
        found.append(bits(sums.totals()["weights"]))
    by_hand = [{n: t[0] * weight for n, t in sent([value])["weights"].items()} for value, weight in visits]
    assert found[0] == found[1] == bits(tree_sum(by_hand))


def test_uploads_that_are_not_spare_are_left_as_they_were():
    uploads, sums = [sent([float(k), 1.0]) for k in range(4)], PartSums({})
    for upload in uploads:
        sums.add(upload, [2.0, 3.0], 2, spare=False)
    assert [bits(upload["weights"]) for upload in uploads] == [bits(sent([float(k), 1.0])["weights"]) for k in range(4)]


def test_parts_have_rules_of_their_own_and_empty_positions():
    """3 · 1 + 5 · 2 by weight, 1 + 2 by clients, and every upload of what is gathered."""
    sums = PartSums({"a": "weighting", "b": "clients", "c": "gather"})
    sums.skip()
    for weight, value in ((3.0, 1.0), (5.0, 2.0)):
        sums.add({part: {"w": torch.tensor([value])} for part in "abc"}, [weight], 1, spare=False)
        sums.skip()
    assert {part: float(total["w"]) for part, total in sums.totals().items()} == {"a": 13.0, "b": 3.0}
    assert [float(upload["w"]) for upload in sums.gathered["c"]] == [1.0, 2.0]
    assert sums.position == 5
