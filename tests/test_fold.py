"""The running sum is the tree sum, however the positions are cut into aligned blocks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from simfl.cohort.fold import Fold
from simfl.weights import tree_sum


def weights(seed):
    """Many numbers, so that another order of adding gives other bits."""
    return {"w": torch.randn(256, generator=torch.Generator().manual_seed(seed))}


def same(a, b):
    return (a is None) == (b is None) and (a is None or torch.equal(a["w"], b["w"]))


positions = st.lists(st.one_of(st.none(), st.integers(0, 10**6).map(weights)), max_size=40)


@given(positions)
def test_one_by_one_it_is_the_tree_sum(items):
    fold = Fold()
    for item in items:
        fold.push(item)
    assert same(fold.total(), tree_sum(items))


@given(positions, st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_blocks_of_any_width_give_the_same_bits(items, width):
    """As the driver does it: each cohort's own sum, pushed as a block; the last block may be smaller."""
    fold = Fold()
    for first in range(0, len(items), width):
        fold.push(tree_sum(items[first : first + width]), width)
    assert same(fold.total(), tree_sum(items))


@given(positions, st.data())
def test_blocks_of_mixed_widths_give_the_same_bits(items, data):
    """Any aligned cut: a block of 2^k positions begins at a multiple of 2^k."""
    fold, first = Fold(), 0
    while first < len(items):
        aligned = [width for width in (1, 2, 4, 8, 16) if first % width == 0 and first + width <= len(items)]
        width = data.draw(st.sampled_from(aligned))
        fold.push(tree_sum(items[first : first + width]), width)
        first += width
    assert same(fold.total(), tree_sum(items))


@given(st.integers(0, 20), positions)
def test_a_late_beginning_leaves_its_positions_empty(empty, items):
    """A part that only the fifth client of a cohort sends."""
    fold = Fold(empty=empty)
    for item in items:
        fold.push(item)
    assert same(fold.total(), tree_sum([None] * empty + items))


def test_the_order_of_adding_matters_so_these_tests_can_fail():
    items = [weights(seed) for seed in range(5)]
    straight = {"w": sum(item["w"] for item in items)}
    assert not same(tree_sum(items), straight)
    torch.testing.assert_close(tree_sum(items), straight)


def test_at_most_one_partial_sum_is_kept_for_each_level():
    fold = Fold()
    for seed in range(1000):
        fold.push(weights(seed))
    assert len(fold.blocks) <= 10


def test_nothing_sums_to_nothing():
    assert Fold().total() is None
    assert Fold(empty=3).total() is None
