"""Invoices of issuers that are not among those of `provider_invoices`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simfl.data.benchmarks.provider_invoices.documents import GRID, Recipe, make_document
from simfl.data.benchmarks.provider_invoices.provider import BENCHMARK, make_provider

NAMESPACE = "multi_docqa"
PROVIDERS, UNSEEN = 12, 4  # issuers
ENGLISH = 6  # the first groups of provider_invoices print English
FIRST = {"train": 0, "valid": 10_000, "test": 20_000, "unseen": 30_000}  # number of a split's first document
LICENCE = "Apache-2.0"


def documents(seed: int, split: str, count: int, width: int) -> Iterator[dict[str, Any]]:
    """The columns of `count` invoices, and `asked`: their questions. The same whatever else is made."""
    recipe = Recipe(seed, questions=4, max_lines=4, noise=0.0, image_width=width)
    issuers = range(PROVIDERS, PROVIDERS + UNSEEN) if split == "unseen" else range(PROVIDERS)
    providers = [make_provider(NAMESPACE, seed, i, i % ENGLISH, BENCHMARK) for i in issuers]
    for i in range(count):
        provider = providers[i % len(providers)]
        page = make_document(provider, FIRST[split] + i // len(providers), NAMESPACE, BENCHMARK, recipe)
        yield {
            "id": f"invoices/{page.id}",
            "provider": provider.company,
            "words": page.words,
            "boxes": np.array(page.boxes, np.float32) / np.float32(GRID),
            "image": page.image,
            "width": page.width,
            "height": page.height,
            "source": page.id,
            "licence": LICENCE,
            "asked": page.questions,
        }
