"""Rows that a client holds out of training, on which its model is scored, and the cap on those that it trains on.

`assign` is how a run divides a split: the partitioner's rule first, then the hold-out of each client, then the cap
`max_examples`. The rows are drawn from the seed by name, so they depend neither on the model nor on the algorithm, and
are part of the manifest.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from simfl.data.base import TRAIN, Published, Split
from simfl.data.partition.base import Holdout, Partitioner, column, documents
from simfl.data.partition.manifest import Partition
from simfl.data.partition.nested import select_rows
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

WHERE = "partition.holdout"


def assign(partitioner: Partitioner, split: Split, seed: int) -> Partition:
    """Return the partition of a split, with the held-out rows of each client.

    Raises:
        ConfigError: The settings do not fit the data, or no client would have held-out examples.
        DataError: The data do not allow this partition, or a client would have no examples to train on.
    """
    _refuse_inner(partitioner)
    whole = partitioner.split(split, seed)
    return _capped(_with_holdout(partitioner, split, whole, seed), partitioner.max_examples, len(split), seed)


def _capped(whole: Partition, most: int | None, num_rows: int, seed: int) -> Partition:
    """Return the partition with at most so many training rows of each client.

    Every row of the split has a random number of its own, and a client keeps the rows with the smallest ones: which
    they are does not depend on other clients.
    """
    if most is None or int(whole.sizes.max(initial=0)) <= most:
        return whole
    owner = np.repeat(np.arange(len(whole)), whole.sizes)
    number = rng(seed, "partition", "max_examples").random(num_rows)[whole.order]
    drawn = np.lexsort((number, owner))
    kept = np.zeros(len(owner), bool)
    kept[drawn[np.arange(len(owner)) - whole.starts[owner] < most]] = True
    return select_rows(whole, kept)


def _with_holdout(partitioner: Partitioner, split: Split, whole: Partition, seed: int) -> Partition:
    """Return the partition with the held-out rows of each client."""
    if partitioner.holdout is None:
        return whole
    if whole.holds_out:
        raise ConfigError(f"{WHERE}: the manifest holds out examples already; leave it out")
    rule = partitioner.holdout
    rule = rule if isinstance(rule, Holdout) else Holdout(fraction=rule)
    held_out = _chosen(rule, split, whole) if rule.fraction is None else _drawn(rule, split, whole, seed)
    return _without(whole, held_out)


def expected_sizes(partitioner: Partitioner, published: Published) -> np.ndarray | None:
    """Return the expected number of training examples of each client, float64 [K]; None if it is unknown."""
    sizes, rule = partitioner.expected(published), partitioner.holdout
    if rule is not None and sizes is not None:
        fraction = rule.fraction if isinstance(rule, Holdout) else rule
        sizes = None if fraction is None else sizes - _counts(fraction, sizes)
    most = partitioner.max_examples
    return sizes if sizes is None or most is None else np.minimum(sizes, most)


def _refuse_inner(partitioner: Partitioner) -> None:
    """Raise ConfigError if a partition inside of another one holds out examples, or has a cap of its own."""
    for one in fields(partitioner):
        inner = getattr(partitioner, one.name)
        if isinstance(inner, Partitioner):
            if inner.holdout is not None:
                raise ConfigError(f"partition.{one.name}.holdout: has no effect there; allowed: {WHERE}")
            if inner.max_examples is not None:
                raise ConfigError(
                    f"partition.{one.name}.max_examples: has no effect there; allowed: partition.max_examples"
                )
            _refuse_inner(inner)


def _chosen(rule: Holdout, split: Split, whole: Partition) -> np.ndarray:
    """Return which entries of `order` have a held-out value of the rule's column, bool [n]."""
    assert rule.column is not None
    codes, names = column(split, rule.column)
    known = names.to_pylist()
    for value in rule.values:
        if value not in known:
            raise ConfigError(f"{WHERE}.values: column {rule.column!r} has no {value!r}; it has {', '.join(known[:9])}")
    if not rule.values and TRAIN not in known:
        raise ConfigError(
            f"{WHERE}.values: missing, because column {rule.column!r} has no 'train'; it has {', '.join(known[:9])}"
        )
    is_held_out = np.array([name in rule.values if rule.values else name != TRAIN for name in known], bool)
    found: np.ndarray = is_held_out[codes[whole.order]]
    return found


def _drawn(rule: Holdout, split: Split, whole: Partition, seed: int) -> np.ndarray:
    """Draw a share of each client's units, stratified; return which entries of `order` are held out, bool [n].

    A unit is a document, or an example where the data have no documents. Units are sorted by stratum in random order,
    and every 1/fraction-th one is taken, from a random start: each stratum has its share, up to rounding.
    """
    assert rule.fraction is not None
    owner = np.repeat(np.arange(len(whole)), whole.sizes)
    key = whole.order if split.documents is None else documents(split)[whole.order]
    _, first, unit = np.unique(owner * (int(key.max(initial=0)) + 1) + key, return_index=True, return_inverse=True)
    owner, stratum = owner[first], _strata(rule, split)[whole.order[first]]
    random = rng(seed, "partition", "holdout")
    ordered = np.lexsort((random.random(len(owner)), stratum, owner))
    sizes = np.bincount(owner, minlength=len(whole))
    counts, starts = _counts(rule.fraction, sizes).astype(np.int64), np.cumsum(sizes) - sizes
    rate = (counts / np.maximum(sizes, 1))[owner]  # `owner` is ascending, as are the positions in `ordered`
    offset = random.random(len(whole))[owner]
    position = np.arange(len(owner)) - starts[owner]
    chosen = np.empty(len(owner), bool)
    chosen[ordered] = np.floor((position + 1) * rate + offset + 1e-9) > np.floor(position * rate + offset + 1e-9)
    held_out: np.ndarray = chosen[unit]
    return held_out


def _counts(fraction: float, sizes: np.ndarray) -> np.ndarray:
    """Return how many of a client's units are held out: a share, at least one, but never the only one."""
    return np.where(sizes < 2, 0, np.clip(np.round(fraction * sizes), 1, np.maximum(sizes - 1, 1)))


def _strata(rule: Holdout, split: Split) -> np.ndarray:
    """Return the stratum of each row, int64 [N]; zeros without stratification."""
    name = rule.stratify
    if name is None or (name == Holdout.stratify and name not in split.examples.column_names):
        return np.zeros(len(split), np.int64)
    return column(split, name)[0]


def _without(whole: Partition, held_out: np.ndarray) -> Partition:
    """Return the partition in which these entries of `order`, bool [n], are held out."""
    if not held_out.any():
        raise ConfigError(f"{WHERE}: no example of any client would be held out")
    before = np.concatenate([[0], np.cumsum(held_out)]).astype(np.int64)
    starts = before[whole.starts]
    empty = np.flatnonzero((np.diff(starts) == whole.sizes) & (whole.sizes > 0))
    if len(empty):
        raise DataError(f"{WHERE}: all examples of client {empty[0]} of {len(whole)} would be held out")
    order = whole.order[held_out]
    by_row = np.lexsort((order, np.repeat(np.arange(len(whole)), np.diff(starts))))  # groups are not kept apart
    return replace(select_rows(whole, ~held_out), held_out_order=order[by_row], held_out_starts=starts)
