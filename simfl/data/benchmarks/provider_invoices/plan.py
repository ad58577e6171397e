"""Which provider issues how many documents, and which split each goes to."""

from __future__ import annotations

import math
from typing import NamedTuple

from simfl.data.benchmarks.provider_invoices.dice import Dice
from simfl.data.benchmarks.provider_invoices.documents import NAMESPACE

EXPONENT = 1.1  # of Zipf's law


class Place(NamedTuple):
    """One document to make: `provider` counts through the seen ones, then the unseen."""

    split: str
    provider: int
    page: int  # among all documents of the provider


def plan(seed: int, providers: int, unseen: int, sizes: dict[str, int]) -> list[Place]:
    """All documents, split by split (train, valid, test, unseen), provider by provider. `sizes` counts documents."""
    first = [0] * providers
    places = []
    ranks = Dice(NAMESPACE, seed, "sizes").sample(range(providers), providers)
    for split in ("train", "valid", "test"):
        for provider, count in enumerate(zipf(sizes[split], ranks)):
            places += [Place(split, provider, first[provider] + i) for i in range(count)]
            first[provider] += count
    ranks = Dice(NAMESPACE, seed, "unseen sizes").sample(range(unseen), unseen)
    for provider, count in enumerate(zipf(sizes["unseen"], ranks)):
        places += [Place("unseen", providers + provider, i) for i in range(count)]
    return places


def zipf(total: int, ranks: list[int]) -> list[int]:
    """`total` dealt by Zipf's law to as many as have a rank (0 gets most).

    Each gets between 3/8 and 5/2 of the mean, and at least 1 where there is enough for all.
    """
    count = len(ranks)
    if not count:
        return []
    least = max(3 * total // (8 * count), min(1, total // count))
    most = -(-5 * total // (2 * count))
    weights = [round(1e6 * (rank + 1) ** -EXPONENT) for rank in ranks]
    low, high = 0.0, float(total)
    for _ in range(64):
        middle = (low + high) / 2
        given = sum(min(most, max(least, w * middle)) for w in weights)
        low, high = (middle, high) if given < total else (low, middle)
    shares = [min(most, max(least, w * low)) for w in weights]
    counts = [math.floor(share) for share in shares]
    order = sorted(range(count), key=lambda i: (counts[i] - shares[i], ranks[i]))  # largest remainder first
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts
