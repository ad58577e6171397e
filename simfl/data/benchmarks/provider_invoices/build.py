"""Plan of the benchmark's documents, and their tables, built in one or several processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, Split
from simfl.data.benchmarks.provider_invoices.documents import (
    GRID,
    NAMESPACE,
    Document,
    Recipe,
    benchmark_providers,
    make_document,
)
from simfl.data.benchmarks.provider_invoices.provider import BENCHMARK
from simfl.data.benchmarks.random_stream import RandomStream

ZIPF_EXPONENT = 1.1
BUILD = "simfl.data.benchmarks.provider_invoices.build:build_documents"
EXAMPLES = QUESTIONS.append(pa.field("client", pa.int32()))  # the client whose scanner read the page


class PlannedDocument(NamedTuple):
    """One document to build. `provider` counts the seen providers first, then the unseen ones."""

    split: str
    provider: int
    page: int  # index among all documents of the provider


def plan_documents(seed: int, providers: int, unseen: int, sizes: dict[str, int]) -> list[PlannedDocument]:
    """Return all documents, split by split (train, valid, test, unseen), provider by provider.

    `sizes` is the number of documents of each split.
    """
    first = [0] * providers
    planned = []
    ranks = RandomStream("provider_invoices", NAMESPACE, seed, "sizes").sample(range(providers), providers)
    for split in ("train", "valid", "test"):
        for provider, count in enumerate(zipf(sizes[split], ranks)):
            planned += [PlannedDocument(split, provider, first[provider] + i) for i in range(count)]
            first[provider] += count
    ranks = RandomStream("provider_invoices", NAMESPACE, seed, "unseen sizes").sample(range(unseen), unseen)
    for provider, count in enumerate(zipf(sizes["unseen"], ranks)):
        planned += [PlannedDocument("unseen", providers + provider, i) for i in range(count)]
    return planned


def zipf(total: int, ranks: list[int]) -> list[int]:
    """Distribute `total` items by Zipf's law over holders with these ranks (rank 0 gets most).

    Each holder gets between 3/8 and 5/2 of the mean, and at least 1 if there are enough items.
    """
    count = len(ranks)
    if not count:
        return []
    least = max(3 * total // (8 * count), min(1, total // count))
    most = -(-5 * total // (2 * count))
    weights = [round(1e6 * (rank + 1) ** -ZIPF_EXPONENT) for rank in ranks]
    low, high = 0.0, float(total)
    for _ in range(64):  # bisection for the factor that makes the shares add up to the total
        middle = (low + high) / 2
        given = sum(min(most, max(least, w * middle)) for w in weights)
        low, high = (middle, high) if given < total else (low, middle)
    shares = [min(most, max(least, w * low)) for w in weights]
    counts = [math.floor(share) for share in shares]
    order = sorted(range(count), key=lambda i: (counts[i] - shares[i], ranks[i]))  # largest remainder first
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


@dataclass(frozen=True)
class BuildTask:
    """Documents that one process builds."""

    providers: int
    unseen: int
    recipe: Recipe
    documents: tuple[PlannedDocument, ...]


def build_documents(fields: Mapping[str, Any]) -> Split:
    """Build the documents of a `BuildTask`, given as the mapping of its fields."""
    recipe = Recipe(**fields["recipe"])
    planned = [PlannedDocument(*document) for document in fields["documents"]]
    seen, unseen = benchmark_providers(recipe.seed, fields["providers"], fields["unseen"], recipe.groups)
    providers = seen + unseen
    return to_split([make_document(providers[p.provider], p.page, NAMESPACE, BENCHMARK, recipe) for p in planned])


def to_split(documents: Sequence[Document]) -> Split:
    """Return documents and their questions as tables, one row each."""
    questions = [(row, i, d, q) for row, d in enumerate(documents) for i, q in enumerate(d.questions)]
    examples = {
        "id": [f"{d.id}-{i}" for _, i, d, _ in questions],
        "document": [row for row, _, _, _ in questions],
        "question": [q.question for _, _, _, q in questions],
        "answers": [list(q.answers) for _, _, _, q in questions],
        "field": [q.field for _, _, _, q in questions],
        "client": [d.group for _, _, d, _ in questions],
    }
    columns = {
        "id": [d.id for d in documents],
        "provider": [d.provider for d in documents],
        "words": [d.words for d in documents],
        "boxes": _boxes(documents),
        "image": [d.image for d in documents],
        "width": [d.width for d in documents],
        "height": [d.height for d in documents],
    }
    return Split(pa.table(examples, schema=EXAMPLES), pa.table(columns, schema=DOCUMENTS))


def _boxes(documents: Sequence[Document]) -> pa.Array:
    ends = np.cumsum([0] + [len(d.boxes) for d in documents]).astype(np.int32)
    flat = np.fromiter((v for d in documents for v in d.boxes), np.float32, ends[-1]) / np.float32(GRID)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(flat))
