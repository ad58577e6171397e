"""The bundled benchmark: invoice questions on documents that this machine draws, with nothing to download.

The task is that of PFL-DocVQA (Tito et al. 2023): each provider's invoices look alike, clients hold different
providers, and some providers are never seen in training. What stands on the pages is made up; the fonts are real.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from simfl.constraints import Amount, Count
from simfl.data.base import Data, Dataset, Split
from simfl.data.baselines import fit_baselines, score_baselines
from simfl.data.benchmarks.provider_invoices.documents import Recipe, benchmark_providers
from simfl.data.benchmarks.provider_invoices.fonts import FAMILIES, face
from simfl.data.benchmarks.provider_invoices.invoice import QUESTIONS
from simfl.data.benchmarks.provider_invoices.plan import Place, plan
from simfl.data.benchmarks.provider_invoices.worker import MAKE, Job
from simfl.data.benchmarks.report import report
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.processes import default_processes, make_all
from simfl.data.io.token_pieces import cut, join, pages
from simfl.errors import ConfigError

EDITION = 1  # raised whenever the same settings give other documents
WORTH = 400  # documents; more are made by several processes
SPLITS = ("train", "valid", "test", "unseen")


@dataclass(frozen=True)
class ProviderInvoices(Data):
    """Questions about invoices of made-up providers in four languages, drawn on this machine."""

    providers: Count = 100  # seen in training
    unseen: Count = 20  # providers seen only in the split `unseen`
    train: Count = 1600  # documents; providers issue by Zipf's law
    valid: Count = 160  # further documents of the seen providers
    test: Count = 240  # likewise
    unseen_documents: Count = 200  # documents of the unseen providers
    clients: Count = 10  # official clients, each with its own providers, main language and scanner
    questions: Count = 6  # asked of a document, at most 9
    max_lines: Count = 5  # goods on an invoice, 1 to this many
    noise: Amount = 0.06  # share of characters that the last client's scanner misreads; the first reads all well
    image_width: Count = 224  # pixels
    seed: int = 1  # of providers, documents and questions

    def load(self, cache: Path) -> Dataset:
        """The benchmark from the cache, or made and kept there: some 10 seconds for the default size on two cores."""
        self._check()
        faces = [face(family, bold) for family in FAMILIES for bold in (False, True)]
        return stored(cache, "provider_invoices", EDITION, self, faces, self.build, partial(report, group="client"))

    def build(self, processes: int | None = None) -> Dataset:
        """The benchmark, made now; the same with any number of processes (None: one a core, if worth it)."""
        sizes = {"train": self.train, "valid": self.valid, "test": self.test, "unseen": self.unseen_documents}
        places = plan(self.seed, self.providers, self.unseen, sizes)
        processes = processes or default_processes(len(places), WORTH)
        whole = join(make_all(MAKE, [asdict(job) for job in self._jobs(places, processes)], processes))
        counts = Counter(place.split for place in places)
        splits = dict(zip(SPLITS, cut(whole, [counts[name] for name in SPLITS]), strict=True))
        return Dataset("provider_invoices", splits, content_sha256(splits), self._card(splits))

    def _jobs(self, places: list[Place], count: int) -> list[Job]:
        recipe = Recipe(self.seed, self.clients, self.questions, self.max_lines, self.noise, self.image_width)
        bounds = [i * len(places) // count for i in range(count + 1)]
        return [Job(self.providers, self.unseen, recipe, tuple(places[a:b])) for a, b in pairwise(bounds)]

    def _check(self) -> None:
        if self.providers < self.clients:
            raise ConfigError(f"data.providers: {self.providers} for {self.clients} clients, each needs one of its own")
        for name, documents, providers in (
            ("train", self.train, self.providers),
            ("unseen_documents", self.unseen_documents, self.unseen),
        ):
            if documents < providers:
                raise ConfigError(f"data.{name}: {documents} documents for {providers} providers, at least one each")
        for name, value, most in (
            ("max_lines", self.max_lines, 20),
            ("questions", self.questions, len(QUESTIONS)),
            ("noise", self.noise, 1),
        ):
            if value > most:
                raise ConfigError(f"data.{name}: {value} given, at most {most}")

    def _card(self, splits: dict[str, Split]) -> dict[str, object]:
        seen, unseen = benchmark_providers(self.seed, self.providers, self.unseen, self.clients)
        blind = fit_baselines(splits["train"], self.seed)
        return {
            "licence": "made by this project's code, Apache-2.0; fonts under the SIL Open Font License 1.1",
            "sources": [f"{package} {version}" for package, version, _ in FAMILIES.values()],
            "documents": {name: pages(split).num_rows for name, split in splits.items()},
            "questions": {name: split.examples.num_rows for name, split in splits.items()},
            "languages": {
                "seen": dict(sorted(Counter(p.language.code for p in seen).items())),
                "unseen": dict(sorted(Counter(p.language.code for p in unseen).items())),
            },
            "dropped": {},
            "baselines": {name: score_baselines(blind, splits[name]) for name in SPLITS[1:]},
        }
