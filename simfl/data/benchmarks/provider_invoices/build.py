"""The documents of one job, made here or in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simfl.data.base import Split
from simfl.data.benchmarks.provider_invoices.documents import NAMESPACE, Recipe, benchmark_providers, make_document
from simfl.data.benchmarks.provider_invoices.plan import Place
from simfl.data.benchmarks.provider_invoices.provider import BENCHMARK
from simfl.data.benchmarks.provider_invoices.tables import to_split

MAKE = "simfl.data.benchmarks.provider_invoices.worker:make"


@dataclass(frozen=True)
class Job:
    """Documents to make."""

    providers: int
    unseen: int
    recipe: Recipe
    places: tuple[Place, ...]


def make(told: Mapping[str, Any]) -> Split:
    """The documents of a job, given as the mapping of its fields."""
    job = Job(told["providers"], told["unseen"], Recipe(**told["recipe"]), tuple(Place(*p) for p in told["places"]))
    seen, unseen = benchmark_providers(job.recipe.seed, job.providers, job.unseen, job.recipe.groups)
    providers = seen + unseen
    return to_split(
        [make_document(providers[p.provider], p.page, NAMESPACE, BENCHMARK, job.recipe) for p in job.places]
    )
