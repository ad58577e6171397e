"""The running tree sum: the bits of `weights.tree_sum`, however cut; only what is its own is written to."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from simfl.cohort.fold import Fold
from simfl.weights import Weights, tree_sum

floats = st.floats(-1e6, 1e6, width=32)
rows = st.lists(st.one_of(st.none(), floats), min_size=1, max_size=40)


def item(value: float | None) -> Weights | None:
    return None if value is None else {"w": torch.tensor([value, value / 3]), "b": torch.tensor(value)}


def bits(weights: Weights | None) -> list[bytes] | None:
    return None if weights is None else [t.numpy().tobytes() for t in weights.values()]


@given(rows, st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_cut_into_aligned_blocks_it_is_the_sum_over_the_whole_tree(values, width, own):
    fold = Fold()
    for first in range(0, len(values), width):
        inner = Fold()
        for value in values[first : first + width]:
            inner.push(item(value), own=own)
        fold.push(inner.total(), width)
    assert bits(fold.total()) == bits(tree_sum([item(value) for value in values]))


@given(rows)
def test_values_that_are_not_its_own_are_left_as_they_were(values):
    items = [item(value) for value in values]
    fold = Fold()
    for given_item in items:
        fold.push(given_item)
    fold.total()
    assert [bits(i) for i in items] == [bits(item(value)) for value in values]


def test_values_of_its_own_are_summed_in_the_memory_of_the_first():
    items = [item(float(value)) for value in range(4)]
    places = [i["w"].data_ptr() for i in items if i]
    fold = Fold()
    for given_item in items:
        fold.push(given_item, own=True)
    total = fold.total()
    assert total is not None
    assert total["w"].data_ptr() == places[0]


def test_positions_before_the_first_value_count_as_empty():
    fold = Fold(empty=3)
    fold.push(item(1.0))
    fold.push(item(2.0))
    assert bits(fold.total()) == bits(tree_sum([None, None, None, item(1.0), item(2.0)]))


def test_the_sum_of_nothing_is_nothing():
    fold = Fold()
    fold.push({}, own=True)
    fold.push({}, own=True)
    assert fold.total() == {}
