"""Plan of the pages: the source of each page, and its part and split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simfl.data.benchmarks.multi_docqa.archive import UNSEEN_PUBLISHERS, Source
from simfl.data.benchmarks.multi_docqa.charts import POINTS, TIME, lay_out, sample_series
from simfl.data.benchmarks.multi_docqa.charts import ask as ask_chart
from simfl.data.benchmarks.multi_docqa.facts import TruthBalancer
from simfl.data.benchmarks.multi_docqa.facts import ask as ask_facts
from simfl.data.benchmarks.multi_docqa.manuals import ManualPage, typeset
from simfl.data.benchmarks.multi_docqa.manuals import ask as ask_manual
from simfl.data.benchmarks.multi_docqa.page import MarkedPage, PageQuestion
from simfl.data.benchmarks.multi_docqa.tables import ROW, DataTable, read_table, sample
from simfl.data.benchmarks.multi_docqa.tables import ask as ask_table
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.io.table_page import lay_out_table

SHARES = {"train": 0.68, "valid": 0.1, "test": 0.22}  # of the families of sources
NAMED_FACTOR = 3  # tables with row names are used this many times as often as tables with numbered rows
MAX_PAGES = 18  # per source
NUM_QUESTIONS = 4  # per page

PageMaker = Callable[[Source, ManualPage | DataTable, RandomStream], tuple[MarkedPage, list[PageQuestion]] | None]


class PlannedPage(NamedTuple):
    """One page with its questions, before drawing."""

    id: str
    part: str
    publisher: str
    source: str
    page: MarkedPage
    questions: list[PageQuestion]


class PagePlan:
    """Sources of every part and split. A family of sources is in one split; tables are read when first used."""

    def __init__(self, seed: int, sources: Sequence[Source]) -> None:
        self.seed = seed
        held_out = {source.family for source in sources if source.publisher in UNSEEN_PUBLISHERS}
        self._sources: dict[str, list[Source]] = defaultdict(list)
        for source in sources:
            if source.publisher in UNSEEN_PUBLISHERS:
                self._sources["unseen"].append(source)
            elif source.family not in held_out:
                self._sources[self._split(source.family)].append(source)
        self._tables: dict[str, DataTable | None] = {}

    def _split(self, family: str) -> str:
        drawn = RandomStream("multi_docqa", self.seed, "split", family).random()
        return "train" if drawn < SHARES["train"] else "valid" if drawn < 1 - SHARES["test"] else "test"

    def _table_of(self, source: Source) -> DataTable | None:
        if source.id not in self._tables:
            self._tables[source.id] = read_table(source)
        return self._tables[source.id]

    def _part(self, source: Source, table: DataTable) -> str:
        """Return the one part that a table belongs to.

        Tables over time, and a quarter of those with row names, become charts; of the others half become lookups and
        half facts.
        """
        if any(TIME.fullmatch(name) for name in (table.key, *table.numbers)) and len(table.keys) >= POINTS[1]:
            return "charts"
        drawn = RandomStream("multi_docqa", self.seed, "part", source.family).random()
        if table.key != ROW and drawn > 0.75:
            return "charts"
        return "tables_lookup" if drawn % 0.5 < 0.25 else "tables_facts"

    def pages(self, part: str, split: str, count: int) -> list[PlannedPage]:
        """Return up to `count` pages of a part."""
        makers: dict[str, PageMaker] = {"manuals": self._manual, "charts": self._chart}
        make = makers[part] if part in makers else self._table(part, split)
        found: list[PlannedPage] = []
        for number, source, item in self._order(part, split):
            random = RandomStream("multi_docqa", self.seed, part, source.id, number)
            made = make(source, item, random)
            if made and made[1]:
                found.append(PlannedPage(f"{part}/{source.id}/{number}", part, source.publisher, source.id, *made))
            if len(found) == count:
                break
        return found

    def _order(self, part: str, split: str) -> Iterator[tuple[int, Source, ManualPage | DataTable]]:
        """Yield sources in repeated random order: the next page of a manual each time, or a table to sample rows from.

        Tables with numbered rows are used in every third repetition.
        """
        random = RandomStream("multi_docqa", self.seed, "order", part, split)
        sources = self._sources[split]
        pages: dict[str, list[ManualPage]] = {}
        for number in range(MAX_PAGES):
            for source in random.sample(sources, len(sources)):
                if part == "manuals":
                    manual = pages[source.id] if number else pages.setdefault(source.id, typeset(source))
                    if number < len(manual):
                        yield number, source, manual[number]
                    continue
                table = self._table_of(source)
                if table is None or (table.key == ROW and number % NAMED_FACTOR):
                    continue
                if self._part(source, table) == part:
                    yield number, source, table

    def _manual(
        self, source: Source, item: ManualPage | DataTable, random: RandomStream
    ) -> tuple[MarkedPage, list[PageQuestion]]:
        assert isinstance(item, ManualPage)
        return item.page, ask_manual(item, random, NUM_QUESTIONS)

    def _chart(
        self, source: Source, item: ManualPage | DataTable, random: RandomStream
    ) -> tuple[MarkedPage, list[PageQuestion]] | None:
        assert isinstance(item, DataTable)
        shown = sample_series(source, item, random)
        if shown is None:
            return None
        with_values = random.random() < 0.5
        return lay_out(shown, with_values), ask_chart(shown, random, with_values, NUM_QUESTIONS - 1)

    def _table(self, part: str, split: str) -> PageMaker:
        balancer = TruthBalancer(RandomStream("multi_docqa", self.seed, "balance", split))

        def make(
            source: Source, item: ManualPage | DataTable, random: RandomStream
        ) -> tuple[MarkedPage, list[PageQuestion]]:
            assert isinstance(item, DataTable)
            table = sample(item, random)
            page = MarkedPage(lay_out_table(table.header, table.body, table.title))
            if part == "tables_facts":
                return page, ask_facts(table, random, balancer, NUM_QUESTIONS)
            return page, ask_table(table, random, NUM_QUESTIONS)

        return make
