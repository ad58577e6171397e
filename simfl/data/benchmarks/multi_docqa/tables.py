"""Tables that fit a page, sampled from real ones, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.multi_docqa.archive import Source
from simfl.data.benchmarks.multi_docqa.asked import Asked, number, printed

ROWS, COLUMNS = (7, 13), (2, 4)  # on a page; columns beside the key
READ = (120, 12)  # rows and columns of a real table, at most: more are of no use to so small pages
LONGEST, WIDEST = 22, 14  # letters of a key or a cell, and of a header
ROW = "row"  # what rows without a name are called by


@dataclass(frozen=True)
class Table:
    """Some rows and columns of a real table; `None` is a value that is not told."""

    title: str
    key: str  # what the names of the rows are
    keys: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]  # as printed
    numbers: dict[str, tuple[Decimal | None, ...]]  # of the columns that hold numbers

    @property
    def header(self) -> list[str]:
        return [self.key, *self.columns]

    @property
    def body(self) -> list[list[str]]:
        return [[key, *(column[i] for column in self.columns.values())] for i, key in enumerate(self.keys)]


def whole(source: Source) -> Table | None:
    """The table of a source with all its rows, or None if it has too few rows with a name or columns with numbers."""
    header, *rows = [row[: READ[1]] for row in source.rows[: READ[0] + 1]] or [()]
    if len(rows) < ROWS[0] or any(len(row) != len(header) for row in rows):
        return None
    cells = [[_clean(cell, name) for cell in column] for name, *column in zip(header, *rows, strict=True)]
    named = [i for i, column in enumerate(cells) if _names(column)]
    years = [i for i, column in enumerate(cells) if header[i].lower() in ("year", "time") and _counts(column)]
    first = (named or years or ([0] if _counts(cells[0]) else []))[:1]
    told = {
        header[i]: column
        for i, column in enumerate(cells)
        if i and i not in first and 1 < len(header[i]) <= WIDEST and header[i].isascii() and _telling(column)
    }
    numbers = {name: tuple(map(number, column)) for name, column in told.items() if _numeric(column)}
    if not first or len(numbers) < 2:
        return None
    key = header[first[0]].lower() or (ROW if first[0] not in named else "name")
    columns = {name: tuple(column) for name, column in told.items()}
    return Table(_title(source), key, tuple(cells[first[0]]), columns, numbers)


def _title(source: Source) -> str:
    title = source.title.encode("ascii", "ignore").decode()
    return title if len(title) <= 64 else " ".join(title[:64].split(" ")[:-1])


def _clean(cell: str, header: str) -> str:
    value = None if header.lower() == "time" else number(cell.strip())  # parts of a year are months
    return " ".join(cell.split()) if value is None else printed(value)


def _names(column: list[str]) -> bool:
    """Whether these are different short texts."""
    return (
        len(set(column)) == len(column)
        and all(1 < len(cell) <= LONGEST and cell.isascii() and any(map(str.isalpha, cell)) for cell in column)
        and not any(cell in ("NA", "TRUE", "FALSE") for cell in column)
    )


def _counts(column: list[str]) -> bool:
    return len(set(column)) == len(column) and all(cell.isdigit() for cell in column)


def _numeric(column: list[str]) -> bool:
    known = [cell for cell in column if cell != "NA"]
    return len(known) > 0.8 * len(column) and all(number(cell) is not None for cell in known)


def _telling(column: list[str]) -> bool:
    return len(set(column)) > 2 and all(cell and len(cell) <= LONGEST and cell.isascii() for cell in column)


def sample(table: Table, dice: Dice) -> Table:
    """Rows and columns that fit a page, in their order; at least two columns have numbers."""
    rows = sorted(dice.sample(range(len(table.keys)), min(len(table.keys), dice.between(*ROWS))))
    numeric = dice.sample(list(table.numbers), 2)
    rest = [name for name in table.columns if name not in numeric]
    more = dice.sample(rest, min(len(rest), dice.between(*COLUMNS) - 2))
    names = [name for name in table.columns if name in (*numeric, *more)]
    return Table(
        table.title,
        table.key,
        tuple(table.keys[row] for row in rows),
        {name: tuple(table.columns[name][row] for row in rows) for name in names},
        {name: tuple(table.numbers[name][row] for row in rows) for name in names if name in table.numbers},
    )


def ask(table: Table, dice: Dice, count: int) -> list[Asked]:
    """Up to `count` questions of different kinds."""
    kinds: tuple[Callable[[Table, Dice], Asked | None], ...] = (
        _lookup, _reverse, _superlative, _count, _difference, _two_steps
    )  # fmt: skip
    asked = [kind(table, dice) for kind in dice.sample(kinds, len(kinds))]
    return [question for question in asked if question][:count]


def of(table: Table, row: int) -> str:
    """A row in words."""
    return f"{table.key} {table.keys[row]}" if table.keys[row].isdigit() else table.keys[row]


def known(table: Table, column: str) -> list[int]:
    """The rows whose number in a column is told."""
    return [row for row, value in enumerate(table.numbers[column]) if value is not None]


def extreme(table: Table, column: str, highest: bool) -> int | None:
    """The row with the highest or lowest number of a column, or None if there are several."""
    values = [value for value in table.numbers[column] if value is not None]
    best = max(values) if highest else min(values)
    return table.numbers[column].index(best) if values.count(best) == 1 else None


def _lookup(table: Table, dice: Dice) -> Asked | None:
    column, row = dice.pick(list(table.columns)), dice.below(len(table.keys))
    cell = table.columns[column][row]
    wording = dice.pick(("What is the {} of {}?", "What {} does {} have?", "Which {} is given for {}?"))
    return None if cell == "NA" else Asked("lookup", wording.format(column, of(table, row)), (cell,))


def _reverse(table: Table, dice: Dice) -> Asked | None:
    column, row = dice.pick(list(table.columns)), dice.below(len(table.keys))
    cell = table.columns[column][row]
    if cell == "NA" or table.columns[column].count(cell) > 1:
        return None
    return Asked("reverse", f"Which {table.key} has {column} {cell}?", (table.keys[row],))


def _superlative(table: Table, dice: Dice) -> Asked | None:
    column, highest = dice.pick(list(table.numbers)), dice.real() < 0.5
    row = extreme(table, column, highest)
    word = "highest" if highest else "lowest"
    return (
        None if row is None else Asked("superlative", f"Which {table.key} has the {word} {column}?", (table.keys[row],))
    )


def _count(table: Table, dice: Dice) -> Asked | None:
    column, above = dice.pick(list(table.numbers)), dice.real() < 0.5
    values = [value for value in table.numbers[column] if value is not None]
    limit = dice.pick(values)
    found = sum((value > limit) if above else (value < limit) for value in values)
    word = "above" if above else "below"
    return Asked("count", f"In how many rows is {column} {word} {printed(limit)}?", (str(found),))


def _difference(table: Table, dice: Dice) -> Asked | None:
    column = dice.pick(list(table.numbers))
    first, second = dice.sample(known(table, column), 2)
    values = table.numbers[column]
    more, less = (first, second) if values[first] > values[second] else (second, first)  # type: ignore[operator]
    gap = Decimal(table.columns[column][more]) - Decimal(table.columns[column][less])
    question = f"How much higher is the {column} of {of(table, more)} than that of {of(table, less)}?"
    return Asked("difference", question, (printed(gap),)) if gap else None


def _two_steps(table: Table, dice: Dice) -> Asked | None:
    column, highest = dice.pick(list(table.numbers)), dice.real() < 0.5
    row, other = extreme(table, column, highest), dice.pick([name for name in table.columns if name != column])
    if row is None or table.columns[other][row] == "NA":
        return None
    word = "highest" if highest else "lowest"
    question = f"What is the {other} of the {table.key} with the {word} {column}?"
    return Asked("two steps", question, (table.columns[other][row],))
