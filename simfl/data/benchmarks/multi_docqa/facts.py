"""Statements about a table: each false one is a true one with another entity, value or comparison.

Of every kind as many are true as false, regardless of the words of a statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from simfl.data.benchmarks.multi_docqa.page import PageQuestion, format_number
from simfl.data.benchmarks.multi_docqa.tables import DataTable, extreme, row_name, rows_with_number
from simfl.data.benchmarks.random_stream import RandomStream

ANSWERS = ("no", "yes")
Kind = Callable[[DataTable, RandomStream, bool], str | None]


class TruthBalancer:
    """Random choice of true and false statements: of every two of a kind, one is true."""

    def __init__(self, random: RandomStream) -> None:
        self._random, self._counts = random, Counter[str]()
        self._last: dict[str, bool] = {}

    def next(self, kind: str) -> bool:
        """Return whether the next statement of this kind is true."""
        first = self._counts[kind] % 2 == 0
        self._counts[kind] += 1
        self._last[kind] = self._random.random() < 0.5 if first else not self._last[kind]
        return self._last[kind]

    def undo(self, kind: str) -> None:
        """Revert `next` after a table that allows no statement of this kind."""
        self._counts[kind] -= 1
        if self._counts[kind] % 2:
            self._last[kind] = not self._last[kind]


def ask(table: DataTable, random: RandomStream, balancer: TruthBalancer, count: int) -> list[PageQuestion]:
    """Make up to `count` statements of different kinds."""
    questions: list[PageQuestion] = []
    for name in random.sample(list(KINDS), len(KINDS)):
        truth = balancer.next(name)
        statement = KINDS[name](table, random, truth)
        if statement is None:
            balancer.undo(name)
        elif len(questions) < count:
            questions.append(PageQuestion(name, statement, (ANSWERS[truth],)))
        if len(questions) == count:
            break
    return questions


def _value(table: DataTable, random: RandomStream, truth: bool) -> str | None:
    column, row = random.choice(list(table.columns)), random.randrange(len(table.keys))
    cells = table.columns[column]
    others = sorted(set(cells) - {cells[row], "NA"})
    if cells[row] == "NA" or not others:
        return None
    return f"The {column} of {row_name(table, row)} is {cells[row] if truth else random.choice(others)}."


def _more(table: DataTable, random: RandomStream, truth: bool) -> str | None:
    column = random.choice(list(table.numbers))
    first, second = random.sample(rows_with_number(table, column), 2)
    one, other = table.numbers[column][first], table.numbers[column][second]
    if one is None or other is None or one == other:
        return None
    word = "higher" if (one > other) == truth else "lower"
    return f"{row_name(table, first)} has {word} {column} than {row_name(table, second)}."


def _most(table: DataTable, random: RandomStream, truth: bool) -> str | None:
    column, highest = random.choice(list(table.numbers)), random.random() < 0.5
    row = extreme(table, column, highest)
    if row is None:
        return None
    named = row if truth else random.choice([other for other in rows_with_number(table, column) if other != row])
    return f"{row_name(table, named)} has the {'highest' if highest else 'lowest'} {column}."


def _count(table: DataTable, random: RandomStream, truth: bool) -> str | None:
    column, above = random.choice(list(table.numbers)), random.random() < 0.5
    values = [value for value in table.numbers[column] if value is not None]
    limit = random.choice(values)
    found = sum((value > limit) if above else (value < limit) for value in values)
    stated = found if truth else random.choice([n for n in range(len(values)) if n != found and abs(n - found) < 4])
    return f"{stated} rows have {column} {'above' if above else 'below'} {format_number(limit)}."


KINDS: dict[str, Kind] = {"value": _value, "comparison": _more, "extreme": _most, "number of rows": _count}
