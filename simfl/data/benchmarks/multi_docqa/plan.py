"""Which source each page is of, and which part and split it goes to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.multi_docqa.archive import PUBLISHERS_UNSEEN, Source
from simfl.data.benchmarks.multi_docqa.asked import Asked
from simfl.data.benchmarks.multi_docqa.charts import POINTS, TIME, lay_out, series
from simfl.data.benchmarks.multi_docqa.charts import ask as ask_chart
from simfl.data.benchmarks.multi_docqa.facts import Balance
from simfl.data.benchmarks.multi_docqa.facts import ask as ask_facts
from simfl.data.benchmarks.multi_docqa.manuals import Leaf, leaves
from simfl.data.benchmarks.multi_docqa.manuals import ask as ask_manual
from simfl.data.benchmarks.multi_docqa.sheet import Sheet
from simfl.data.benchmarks.multi_docqa.tables import ROW, Table, sample, whole
from simfl.data.benchmarks.multi_docqa.tables import ask as ask_table
from simfl.data.readers.table_page import lay_out as lay_out_table

SHARES = {"train": 0.68, "valid": 0.1, "test": 0.22}  # of the families of sources
OFTEN = 3  # a table whose rows have names is used so many times as often as one whose rows are numbered
MOST = 18  # pages of one source, at most
QUESTIONS = 4  # asked of a page


Make = Callable[[Source, object, Dice], tuple[Sheet, list[Asked]] | None]


class Drawn(NamedTuple):
    """One page with its questions, before it is drawn."""

    id: str
    part: str
    publisher: str
    source: str
    sheet: Sheet
    asked: list[Asked]


class Plan:
    """The sources of every part and split; families of sources are never divided. Nothing is read before it is used."""

    def __init__(self, seed: int, sources: Sequence[Source]) -> None:
        self.seed = seed
        held = {source.family for source in sources if source.publisher in PUBLISHERS_UNSEEN}
        self._sources: dict[str, list[Source]] = defaultdict(list)
        for source in sources:
            if source.publisher in PUBLISHERS_UNSEEN:
                self._sources["unseen"].append(source)
            elif source.family not in held:
                self._sources[self._split(source.family)].append(source)
        self._tables: dict[str, Table | None] = {}

    def _split(self, family: str) -> str:
        drawn = Dice("multi_docqa", self.seed, "split", family).real()
        return "train" if drawn < SHARES["train"] else "valid" if drawn < 1 - SHARES["test"] else "test"

    def _whole(self, source: Source) -> Table | None:
        if source.id not in self._tables:
            self._tables[source.id] = whole(source)
        return self._tables[source.id]

    def _part(self, source: Source, table: Table) -> str:
        """Lookups or facts, so that no table is in both; charts where there is time, or of a quarter of named rows."""
        if any(TIME.fullmatch(name) for name in (table.key, *table.numbers)) and len(table.keys) >= POINTS[1]:
            return "charts"
        drawn = Dice("multi_docqa", self.seed, "part", source.family).real()
        if table.key != ROW and drawn > 0.75:
            return "charts"
        return "tables_lookup" if drawn % 0.5 < 0.25 else "tables_facts"

    def pages(self, part: str, split: str, count: int) -> list[Drawn]:
        """Up to `count` pages of a part."""
        makers: dict[str, Make] = {"manuals": self._manual, "charts": self._chart}
        make = makers[part] if part in makers else self._table(part, split)
        found: list[Drawn] = []
        for number, source, thing in self._order(part, split):
            dice = Dice("multi_docqa", self.seed, part, source.id, number)
            made = make(source, thing, dice)
            if made and made[1]:
                found.append(Drawn(f"{part}/{source.id}/{number}", part, source.publisher, source.id, *made))
            if len(found) == count:
                break
        return found

    def _order(self, part: str, split: str) -> Iterator[tuple[int, Source, object]]:
        """The sources one after the other, again and again: of manuals each time the next page, of tables other rows.

        Tables whose rows are only numbered come every third time.
        """
        dice = Dice("multi_docqa", self.seed, "order", part, split)
        sources = self._sources[split]
        pages: dict[str, list[Leaf]] = {}
        for number in range(MOST):
            for source in dice.sample(sources, len(sources)):
                if part == "manuals":
                    held = pages[source.id] if number else pages.setdefault(source.id, leaves(source))
                    if number < len(held):
                        yield number, source, held[number]
                    continue
                table = self._whole(source)
                often = table is not None and (table.key != ROW or number % OFTEN == 0)
                if table is not None and often and self._part(source, table) == part:
                    yield number, source, table

    def _manual(self, source: Source, leaf: object, dice: Dice) -> tuple[Sheet, list[Asked]]:
        assert isinstance(leaf, Leaf)
        return leaf.sheet, ask_manual(leaf, dice, QUESTIONS)

    def _chart(self, source: Source, table: object, dice: Dice) -> tuple[Sheet, list[Asked]] | None:
        assert isinstance(table, Table)
        shown = series(source, table, dice)
        if shown is None:
            return None
        told = dice.real() < 0.5
        return lay_out(shown, told), ask_chart(shown, dice, told, QUESTIONS - 1)

    def _table(self, part: str, split: str) -> Make:
        balance = Balance(Dice("multi_docqa", self.seed, "balance", split))

        def make(source: Source, table: object, dice: Dice) -> tuple[Sheet, list[Asked]]:
            assert isinstance(table, Table)
            some = sample(table, dice)
            sheet = Sheet(lay_out_table(some.header, some.body, some.title))
            if part == "tables_facts":
                return sheet, ask_facts(some, dice, balance, QUESTIONS)
            return sheet, ask_table(some, dice, QUESTIONS)

        return make
