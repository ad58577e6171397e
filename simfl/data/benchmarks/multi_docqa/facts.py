"""Statements about a table, true or false: each false one is a true one with its entity, value or comparison swapped.

Of every kind as many are true as false, whatever the words of a statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.multi_docqa.asked import Asked, printed
from simfl.data.benchmarks.multi_docqa.tables import Table, extreme, known, of

ANSWERS = ("no", "yes")
Kind = Callable[[Table, Dice, bool], str | None]


class Balance:
    """Which statement of each kind is to be true: of every two, one, in random order."""

    def __init__(self, dice: Dice) -> None:
        self._dice, self._told = dice, Counter[str]()
        self._last: dict[str, bool] = {}

    def next(self, kind: str) -> bool:
        """For the next statement of this kind."""
        first = self._told[kind] % 2 == 0
        self._told[kind] += 1
        self._last[kind] = self._dice.real() < 0.5 if first else not self._last[kind]
        return self._last[kind]

    def undo(self, kind: str) -> None:
        """Where a table has nothing to say of this kind: the next one is asked for again."""
        self._told[kind] -= 1
        if self._told[kind] % 2:
            self._last[kind] = not self._last[kind]


def ask(table: Table, dice: Dice, balance: Balance, count: int) -> list[Asked]:
    """Up to `count` statements of different kinds."""
    asked: list[Asked] = []
    for name in dice.sample(list(KINDS), len(KINDS)):
        truth = balance.next(name)
        statement = KINDS[name](table, dice, truth)
        if statement is None:
            balance.undo(name)
        elif len(asked) < count:
            asked.append(Asked(name, statement, (ANSWERS[truth],)))
        if len(asked) == count:
            break
    return asked


def _value(table: Table, dice: Dice, truth: bool) -> str | None:
    column, row = dice.pick(list(table.columns)), dice.below(len(table.keys))
    cells = table.columns[column]
    others = sorted(set(cells) - {cells[row], "NA"})
    if cells[row] == "NA" or not others:
        return None
    return f"The {column} of {of(table, row)} is {cells[row] if truth else dice.pick(others)}."


def _more(table: Table, dice: Dice, truth: bool) -> str | None:
    column = dice.pick(list(table.numbers))
    first, second = dice.sample(known(table, column), 2)
    one, other = table.numbers[column][first], table.numbers[column][second]
    if one is None or other is None or one == other:
        return None
    word = "higher" if (one > other) == truth else "lower"
    return f"{of(table, first)} has {word} {column} than {of(table, second)}."


def _most(table: Table, dice: Dice, truth: bool) -> str | None:
    column, highest = dice.pick(list(table.numbers)), dice.real() < 0.5
    row = extreme(table, column, highest)
    if row is None:
        return None
    told = row if truth else dice.pick([other for other in known(table, column) if other != row])
    return f"{of(table, told)} has the {'highest' if highest else 'lowest'} {column}."


def _count(table: Table, dice: Dice, truth: bool) -> str | None:
    column, above = dice.pick(list(table.numbers)), dice.real() < 0.5
    values = [value for value in table.numbers[column] if value is not None]
    limit = dice.pick(values)
    found = sum((value > limit) if above else (value < limit) for value in values)
    told = found if truth else dice.pick([n for n in range(len(values)) if n != found and abs(n - found) < 4])
    return f"{told} rows have {column} {'above' if above else 'below'} {printed(limit)}."


KINDS: dict[str, Kind] = {"value": _value, "comparison": _more, "extreme": _most, "number of rows": _count}
