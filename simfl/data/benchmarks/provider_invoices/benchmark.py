"""The bundled benchmark of invoice questions, on documents that are drawn on this machine without any download.

The task is that of PFL-DocVQA (Tito et al. 2023): the invoices of a provider look alike, clients hold different
providers, and some providers are never seen in training. Page contents are invented; the fonts are real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from simfl.constraints import NonNegativeFloat, PositiveInt
from simfl.data.base import Data, Dataset, Split
from simfl.data.baselines import fit_baselines, score_baselines
from simfl.data.benchmarks.fonts import FAMILIES, faces
from simfl.data.benchmarks.provider_invoices.build import BUILD, BuildTask, PlannedDocument, plan_documents
from simfl.data.benchmarks.provider_invoices.documents import Recipe, benchmark_providers
from simfl.data.benchmarks.provider_invoices.invoice import QUESTIONS
from simfl.data.benchmarks.report import report
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.subprocesses import default_num_processes, run_tasks
from simfl.data.io.tables import concatenate, divide, documents_of
from simfl.errors import ConfigError

VERSION = 1  # increased whenever the same settings give other documents
PARALLEL_FROM = 400  # documents; larger builds use several processes
SPLITS = ("train", "valid", "test", "unseen")


@dataclass(frozen=True)
class ProviderInvoices(Data):
    """Questions about invoices of invented providers in four languages; needs simfl[benchmarks]."""

    providers: PositiveInt = 100  # number of providers seen in training
    unseen: PositiveInt = 20  # number of providers that are only in the split `unseen`
    train: PositiveInt = 1600  # number of documents; their distribution over providers follows Zipf's law
    valid: PositiveInt = 160  # number of further documents of the seen providers
    test: PositiveInt = 240  # number of further documents of the seen providers
    unseen_documents: PositiveInt = 200  # number of documents of the unseen providers
    clients: PositiveInt = 10  # official clients, each with its own providers, main language and scanner
    questions: PositiveInt = 6  # number of questions per document, at most 9
    max_lines: PositiveInt = 5  # an invoice has 1 to this many rows of goods
    noise: NonNegativeFloat = 0.06  # share of characters misread by the last client's scanner; the first has none
    image_width: PositiveInt = 224  # pixels
    seed: int = 1  # of providers, documents and questions
    example: ClassVar[Mapping[str, object]] = {
        "providers": 10,
        "unseen": 1,
        "train": 10,
        "valid": 1,
        "test": 1,
        "unseen_documents": 1,
    }

    def load(self, cache: Path) -> Dataset:
        """Load the benchmark from the cache, or build and store it: 10 s for the default size on two cores."""
        self._check()
        return load_or_build(
            cache, "provider_invoices", VERSION, self, faces(), self.build, partial(report, group="client")
        )

    def build(self, processes: int | None = None) -> Dataset:
        """Build the benchmark. The result does not depend on `processes` (None: one a core for large builds)."""
        sizes = {"train": self.train, "valid": self.valid, "test": self.test, "unseen": self.unseen_documents}
        planned = plan_documents(self.seed, self.providers, self.unseen, sizes)
        processes = processes or default_num_processes(len(planned), PARALLEL_FROM)
        whole = concatenate(run_tasks(BUILD, [asdict(task) for task in self._tasks(planned, processes)], processes))
        counts = Counter(document.split for document in planned)
        splits = dict(zip(SPLITS, divide(whole, [counts[name] for name in SPLITS]), strict=True))
        return Dataset("provider_invoices", splits, content_sha256(splits), self._card(splits))

    def _tasks(self, planned: list[PlannedDocument], count: int) -> list[BuildTask]:
        recipe = Recipe(self.seed, self.clients, self.questions, self.max_lines, self.noise, self.image_width)
        bounds = [i * len(planned) // count for i in range(count + 1)]
        return [BuildTask(self.providers, self.unseen, recipe, tuple(planned[a:b])) for a, b in pairwise(bounds)]

    def _check(self) -> None:
        if self.providers < self.clients:
            raise ConfigError(
                f"data.providers: {self.providers} for {self.clients} clients, at least one per client is needed"
            )
        for name, documents, providers in (
            ("train", self.train, self.providers),
            ("unseen_documents", self.unseen_documents, self.unseen),
        ):
            if documents < providers:
                raise ConfigError(
                    f"data.{name}: {documents} documents for {providers} providers, at least one each is needed"
                )
        for name, value, most in (
            ("max_lines", self.max_lines, 20),
            ("questions", self.questions, len(QUESTIONS)),
            ("noise", self.noise, 1),
        ):
            if value > most:
                raise ConfigError(f"data.{name}: {value} given, at most {most} is allowed")

    def _card(self, splits: dict[str, Split]) -> dict[str, object]:
        seen, unseen = benchmark_providers(self.seed, self.providers, self.unseen, self.clients)
        blind = fit_baselines(splits["train"], self.seed)
        return {
            "licence": "made by this project's code, Apache-2.0; fonts under the SIL Open Font License 1.1",
            "sources": [family.source for family in FAMILIES.values()],
            "documents": {name: documents_of(split).num_rows for name, split in splits.items()},
            "questions": {name: split.examples.num_rows for name, split in splits.items()},
            "languages": {
                "seen": dict(sorted(Counter(p.language.code for p in seen).items())),
                "unseen": dict(sorted(Counter(p.language.code for p in unseen).items())),
            },
            "dropped": {},
            "baselines": {name: score_baselines(blind, splits[name]) for name in SPLITS[1:]},
        }
